package jinja

import (
	"cmp"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// formatSpec is a directive of "%" or a replacement field of str.format.
type formatSpec struct {
	fill, align      string // align is <, >, ^ or = (padding behind the sign)
	sign, group      string
	alternate        bool // 0x before hexadecimal digits
	width, precision int  // precision -1: not given
	verb             string
}

var (
	percentSpec = regexp.MustCompile(`(?s)%(?:\(([^)]*)\))?([-+ #0]*)(\d*)(\.\d*)?(.?)`)
	formatField = regexp.MustCompile(`(?s)\{\{|\}\}|\{(\w*)((?:\.\w+|\[[^\]{}]+\])*)(?:!([rs]))?(?::((?:[^{}]|\{\w*\})*))?\}|[{}]`)
	fieldStep   = regexp.MustCompile(`\.(\w+)|\[([^\]]+)\]`)
	fieldSpec   = regexp.MustCompile(`(?s)^(?:(.)?([<>=^]))?([-+ ]?)(#?)(0?)(\d*)([,_]?)(\.\d+)?([a-zA-Z%]?)$`)
)

func (s *formatSpec) size(width, precision string) {
	s.precision = -1
	s.width, _ = strconv.Atoi(width) // "" is 0
	if precision != "" {
		s.precision, _ = strconv.Atoi(precision[1:])
	}
	check(s.width <= 1<<20 && s.precision <= 300 && len(width) < 8, "ValueError: a format is too wide")
}

// percent is format % args, which are a mapping, a tuple or one value.
func (r *run) percent(format string, args any) string {
	values, used := []any{args}, 0
	named, _ := args.(*dict)
	if s, ok := args.(*seq); ok && s.kind == "tuple" {
		values = s.items
	}
	text := percentSpec.ReplaceAllStringFunc(format, func(directive string) string {
		m := percentSpec.FindStringSubmatch(directive)
		name, flags, s := m[1], m[2], formatSpec{fill: " ", align: ">", alternate: strings.Contains(m[2], "#"), verb: m[5]}
		if s.verb == "%" {
			return "%"
		}
		check(s.verb != "", "ValueError: incomplete format")
		s.size(m[3], m[4])
		for _, sign := range []string{" ", "+"} {
			if strings.Contains(flags, sign) {
				s.sign = sign
			}
		}
		var v any
		if strings.HasPrefix(directive, "%(") {
			check(named != nil, "TypeError: format requires a mapping")
			found := false
			v, found = named.get(r, name)
			check(found, "KeyError: %s", name)
		} else {
			check(used < len(values), "TypeError: not enough arguments for format string")
			v = values[used]
			used++
		}
		switch {
		case s.verb == "s":
			v = r.str(v)
		case s.verb == "r":
			v, s.verb = r.repr(v), "s"
		case s.verb == "c" && typeName(v) == "str":
			check(utf8.RuneCountInString(v.(string)) == 1, "TypeError: %%c requires int or char")
			s.verb = "s"
		case strings.Contains("diu", s.verb):
			if f, ok := v.(float64); ok {
				v = whole(f)
			}
			s.verb = "d"
		}
		check(isNumber(v) || s.verb == "s", "TypeError: %%%s format: a number is required, not %s", s.verb, typeName(v))
		if strings.Contains(flags, "-") {
			s.align = "<"
		} else if strings.Contains(flags, "0") && s.verb != "s" {
			s.fill, s.align = "0", "="
		}
		return r.formatted(s, v)
	})
	lenient := slices.Contains([]string{"dict", "list", "Undefined"}, typeName(args)) // what Python takes for a mapping here
	check(used == len(values) || lenient && used == 0, "TypeError: not all arguments converted during string formatting")
	return text
}

// format is the method of that name of a text.
func (r *run) format(format string, pos []any, named *dict) string {
	auto, manual := 0, false
	var fields func(string) string
	fields = func(format string) string {
		return formatField.ReplaceAllStringFunc(format, func(field string) string {
			m := formatField.FindStringSubmatch(field)
			if field == "{{" || field == "}}" {
				return field[:1]
			}
			check(len(field) > 1, "ValueError: malformed or unsupported format field")
			i, err := strconv.Atoi(m[1])
			if manual = manual || err == nil; m[1] == "" {
				i, err = auto, nil
				auto++
			}
			check(auto == 0 || !manual, "ValueError: cannot switch from automatic field numbering to manual field specification")
			v, ok := named.get(r, m[1])
			if err == nil && i < len(pos) {
				v, ok = pos[i], true
			}
			check(ok, "KeyError or IndexError: no argument %s for the format", m[1])
			for _, step := range fieldStep.FindAllStringSubmatch(m[2], -1) {
				if i, err := strconv.Atoi(step[2]); err == nil {
					v = r.member(v, i, item, attribute)
				} else if step[2] != "" {
					v = r.member(v, step[2], item, attribute)
				} else {
					v = r.member(v, step[1], attribute, item)
				}
			}
			switch m[3] {
			case "r":
				v = r.repr(v)
			case "s":
				v = r.str(v)
			}
			return r.field(fields(m[4]), v)
		})
	}
	return fields(format)
}

// field is Python's format(v, spec).
func (r *run) field(spec string, v any) string {
	if spec == "" {
		return r.formatted(formatSpec{verb: "s", precision: -1}, r.str(v))
	}
	m := fieldSpec.FindStringSubmatch(spec)
	check(m != nil && (isNumber(v) || typeName(v) == "str"), "ValueError or TypeError: format %q of a %s", spec, typeName(v))
	s := formatSpec{fill: m[1], align: m[2], sign: m[3], alternate: m[4] != "", group: m[7], verb: m[9]}
	s.size(m[6], m[8])
	if s.fill == "" {
		s.fill = " "
	}
	if m[5] != "" && s.align == "" {
		s.fill, s.align = "0", "="
	}
	if typeName(v) == "str" {
		check(strings.Contains("s", s.verb) && s.sign == "" && s.group == "" && s.align != "=", "ValueError: format %q of text", spec)
		s.verb = "s"
	} else if check(s.verb != "s", "ValueError: format %q of a %s", spec, typeName(v)); s.align == "" {
		s.align = ">"
	}
	if s.verb == "" && typeName(v) == "float" {
		check(s.precision < 0, "a precision without f, e or g is not supported")
		return r.formatted(s, v)
	} else if s.verb == "" || s.verb == "n" {
		s.verb = "d"
	}
	check(!strings.Contains("dxXobc", s.verb) || integer(v) != nil && s.precision < 0, "ValueError: format %q of a %s", spec, typeName(v))
	return r.formatted(s, v)
}

var bases = map[string]int{"d": 10, "x": 16, "X": 16, "o": 8, "b": 2}

// formatted is a text, or a number, with what a directive asks for.
func (r *run) formatted(s formatSpec, v any) string {
	text, sign := "", ""
	switch base := bases[s.verb]; {
	case s.verb == "s":
		if text = v.(string); s.precision >= 0 {
			text = r.slice(text, nil, s.precision, nil).(string)
		}
	case s.verb == "c":
		text = string(rune(small(v)))
	case base != 0:
		i := integer(v)
		check(i != nil && s.precision < 0, "TypeError: format %%%s of a %s", s.verb, typeName(v))
		if text = i.Text(base); base != 10 && s.alternate {
			text = strings.Replace(text, new(big.Int).Abs(i).Text(base), "0"+s.verb+new(big.Int).Abs(i).Text(base), 1)
		}
	case s.verb == "":
		text = r.str(v)
	default:
		check(strings.Contains("eEfFgG%", s.verb), "ValueError: unsupported format character '%s'", s.verb)
		f, _ := asFloat(v)
		if s.precision < 0 {
			s.precision = 6
		}
		if s.verb == "%" {
			text = strconv.FormatFloat(f*100, 'f', s.precision, 64) + "%"
		} else {
			text = strconv.FormatFloat(f, strings.ToLower(s.verb)[0], max(s.precision, len(strings.Trim(s.verb, "eEfF"))), 64)
		}
		if !finite(f) {
			text = strings.ToLower(strings.TrimPrefix(text, "+"))
		}
	}
	if strings.Contains("XEFG", s.verb) && s.verb != "" {
		text = strings.ToUpper(text)
	}
	if s.verb != "s" && s.verb != "c" {
		if rest, ok := strings.CutPrefix(text, "-"); ok {
			text, sign = rest, "-"
		} else if s.sign != "-" {
			sign = s.sign
		}
	}
	if end := len(text) - len(strings.TrimLeft(text, "0123456789")); s.group != "" {
		check(s.align != "=", "grouped digits after zeros are not supported")
		for i := end - 3; i > 0; i -= 3 {
			text = text[:i] + s.group + text[i:]
		}
	}
	n := max(s.width-utf8.RuneCountInString(sign+text), 0)
	r.spend(len(text) + n)
	left := map[string]int{">": n, "^": n / 2}[s.align]
	if s.align == "=" {
		return sign + strings.Repeat(s.fill, n) + text
	}
	return strings.Repeat(s.fill, left) + sign + text + strings.Repeat(s.fill, n-left)
}

// strftime is t in a format of C's strftime.
func (r *run) strftime(format string) string {
	return directive.ReplaceAllStringFunc(format, func(d string) string {
		layout, ok := layouts[d[len(d)-1:]]
		check(ok && d != "%", "ValueError: strftime directive %s is not supported", d)
		text := r.now().Format(layout)
		if strings.HasPrefix(d, "%-") && text != "" {
			text = cmp.Or(strings.TrimLeft(text, "0 "), "0")
		}
		return text
	})
}

var (
	directive = regexp.MustCompile(`(?s)%-?.?`)
	layouts   = map[string]string{
		"Y": "2006", "m": "01", "d": "02", "H": "15", "I": "03", "M": "04", "S": "05", "p": "PM", "b": "Jan", "B": "January", "h": "Jan",
		"a": "Mon", "A": "Monday", "y": "06", "j": "002", "e": "_2", "F": "2006-01-02", "T": "15:04:05", "R": "15:04", "D": "01/02/06",
		"x": "01/02/06", "X": "15:04:05", "c": "Mon Jan _2 15:04:05 2006", "Z": "", "z": "", "n": "\n", "t": "\t", "%": "%",
	}
)
