package jinja

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// layout is how a directive of "%" or a field of str.format shows a value.
type layout struct {
	sign, width, precision, verb string // precision with its point
	fill, align                  string // align is <, >, ^ or = (fill behind the sign)
	comma                        bool   // between groups of three digits
}

var (
	directive  = regexp.MustCompile(`(?s)%(?:\((\w+)\))?([-+ 0]*)(\d{0,6})(\.\d{1,2})?(.?)`)
	field      = regexp.MustCompile(`(?s)\{\{|\}\}|\{(\w*)(?:!([rs]))?(?::([^{}]*))?\}|[{}]`)
	fieldShape = regexp.MustCompile(`(?s)^(?:(.)?([<>=^]))?([-+ ]?)(0?)(\d{0,6})(,?)(\.\d{1,2})?([a-zA-Z%]?)$`)
)

// percent is format % args, which are a mapping, a tuple or one value.
func (r *run) percent(format string, args any) string {
	values, used := []any{args}, 0
	named, _ := args.(*dict)
	if s, ok := args.(*seq); ok && s.kind == "tuple" {
		values = s.items
	}
	text := directive.ReplaceAllStringFunc(format, func(text string) string {
		m := directive.FindStringSubmatch(text)
		l, v, ok := layout{width: m[3], precision: m[4], verb: m[5], fill: " ", align: ">"}, any(nil), false
		if l.verb == "%" {
			return "%"
		} else if l.verb == "" {
			fail("ValueError: incomplete format")
		} else if m[1] != "" && named != nil {
			v, ok = named.get(r, m[1])
		} else if used < len(values) && m[1] == "" {
			v, ok = values[used], true
			used++
		}
		check(ok, "TypeError or KeyError: no argument for %s", text)
		l.sign = map[bool]string{strings.Contains(m[2], " "): " ", strings.Contains(m[2], "+"): "+"}[true]
		switch f, isFloat := v.(float64); {
		case l.verb == "s":
			v = r.str(v)
		case l.verb == "r":
			v, l.verb = r.repr(v), "s"
		case strings.Contains("diu", l.verb) && isFloat:
			v, l.verb = whole(f), "d"
		case strings.Contains("iu", l.verb):
			l.verb = "d"
		}
		if strings.Contains(m[2], "-") {
			l.align = "<"
		} else if strings.Contains(m[2], "0") && l.verb != "s" {
			l.fill, l.align = "0", "="
		}
		return r.show(l, v)
	})
	lenient := slices.Contains([]string{"dict", "list", "Undefined"}, typeName(args)) // what Python takes for a mapping here
	check(used == len(values) || lenient && used == 0, "TypeError: not all arguments converted during string formatting")
	return text
}

// format is the method of that name of a text.
func (r *run) format(format string, pos []any, named *dict) string {
	auto, manual := 0, false
	return field.ReplaceAllStringFunc(format, func(text string) string {
		m := field.FindStringSubmatch(text)
		if text == "{{" || text == "}}" {
			return text[:1]
		}
		v, ok := named.get(r, m[1])
		i, err := strconv.Atoi(cmp.Or(m[1], strconv.Itoa(auto)))
		if err == nil && i < len(pos) {
			v, ok = pos[i], true
		}
		if manual = manual || err == nil && m[1] != ""; m[1] == "" {
			auto++
		}
		check(ok && len(text) > 1 && (auto == 0 || !manual), "ValueError, KeyError or IndexError: wrong field %s", text)
		if m[2] == "r" {
			v = r.repr(v)
		} else if m[2] == "s" || m[3] == "" {
			v = r.str(v)
		}
		shape := fieldShape.FindStringSubmatch(m[3])
		check(shape != nil, "ValueError: invalid or unsupported format %q", m[3])
		l := layout{fill: shape[1], align: shape[2], sign: strings.Trim(shape[3], "-"), width: shape[5], comma: shape[6] != "",
			precision: shape[7], verb: shape[8]}
		if kind := typeName(v); kind == "str" {
			check(l.align != "=" && l.sign == "" && shape[4] == "", "ValueError: format %q of text", m[3])
			l.align, l.verb = cmp.Or(l.align, "<"), cmp.Or(l.verb, "s")
		} else if l.verb == "" {
			l.verb = map[string]string{"int": "d", "bool": "d", "float": "shortest"}[kind]
		}
		if shape[4] != "" && l.align == "" {
			l.fill, l.align = "0", "="
		}
		l.fill, l.align = cmp.Or(l.fill, " "), cmp.Or(l.align, ">")
		return r.show(l, v)
	})
}

// show writes a value that the verb fits.
func (r *run) show(l layout, v any) (text string) {
	s, isText := v.(string)
	switch i, f := integer(v), 0.0; {
	case isText && l.verb == "s":
		text = fmt.Sprintf("%"+l.precision+"s", s)
	case i != nil && strings.Contains("dxXob", l.verb) && l.precision == "":
		text = fmt.Sprintf("%"+l.sign+l.verb, i)
	case isNumber(v) && strings.Contains("eEfFgG%", l.verb):
		f, _ = asFloat(v)
		if l.verb == "%" {
			text = fmt.Sprintf("%"+l.sign+cmp.Or(l.precision, ".6")+"f%%", f*100)
		} else {
			text = fmt.Sprintf("%"+l.sign+cmp.Or(l.precision, ".6")+l.verb, f)
		}
		check(finite(f), "ValueError: inf and nan are not supported in formats")
	case l.verb == "shortest" && l.precision == "" && l.sign == "":
		text = r.str(v)
	default:
		fail("ValueError or TypeError: format %s%s of a %s is wrong or not supported", l.precision, l.verb, typeName(v))
	}
	check(!l.comma || l.align != "=", "ValueError: zeros before grouped digits are not supported")
	digits := strings.TrimLeft(text, "+- ")
	sign := text[:len(text)-len(digits)]
	if isText {
		sign, digits = "", text
	}
	for i := len(digits) - len(strings.TrimLeft(digits, "0123456789")) - 3; l.comma && i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	width, _ := strconv.Atoi(l.width) // "" is 0
	n := max(width-utf8.RuneCountInString(sign+digits), 0)
	r.spend(len(digits) + n)
	if l.align == "=" {
		return sign + strings.Repeat(l.fill, n) + digits
	}
	left := map[string]int{">": n, "^": n / 2}[l.align]
	return strings.Repeat(l.fill, left) + sign + digits + strings.Repeat(l.fill, n-left)
}

var (
	clock   = regexp.MustCompile(`(?s)%-?.?`)
	layouts = map[string]string{
		"Y": "2006", "m": "01", "d": "02", "H": "15", "I": "03", "M": "04", "S": "05", "p": "PM", "b": "Jan", "B": "January", "h": "Jan",
		"a": "Mon", "A": "Monday", "y": "06", "j": "002", "e": "_2", "F": "2006-01-02", "T": "15:04:05", "R": "15:04", "D": "01/02/06",
		"x": "01/02/06", "X": "15:04:05", "c": "Mon Jan _2 15:04:05 2006", "Z": "", "z": "", "n": "\n", "t": "\t", "%": "%",
	}
)

// strftime is the time in a format of C's strftime.
func (r *run) strftime(format any) string {
	return clock.ReplaceAllStringFunc(as[string](format), func(d string) string {
		layout, ok := layouts[d[len(d)-1:]]
		check(ok && d != "%", "ValueError: strftime directive %s is not supported", d)
		text := r.now().Format(layout)
		if strings.HasPrefix(d, "%-") && text != "" {
			text = cmp.Or(strings.TrimLeft(text, "0 "), "0")
		}
		return text
	})
}
