package jinja

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	directive = regexp.MustCompile(`(?s)%(?:\((\w+)\))?([-+ 0]*)(\d{0,6})(\.\d{1,2})?(.?)`)
	field     = regexp.MustCompile(`\{\{|\}\}|\{(\w*)(?:!([rs]))?(?::([<>]?)([+ ]?)(0?)(\d{0,6})(\.\d{1,2})?([a-zA-Z]?))?\}|[{}]`)
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
		name, flags, verb := m[1], m[2], m[5]
		if verb == "%" {
			return "%"
		}
		v, ok := any(nil), false
		if name != "" && named != nil {
			v, ok = named.get(r, name)
		} else if used < len(values) && name == "" {
			v, ok = values[used], true
			used++
		}
		check(ok && verb != "", "TypeError, KeyError or ValueError: no argument for %s, or incomplete", text)
		switch f, isFloat := v.(float64); {
		case verb == "s" || verb == "r":
			if flags = strings.ReplaceAll(flags, "0", ""); verb == "r" {
				v = r.repr(v)
			}
			return r.show(flags, m[3], m[4], "s", r.str(v))
		case strings.Contains("diu", verb) && isFloat:
			return r.show(flags, m[3], m[4], "d", whole(f))
		case strings.Contains("iu", verb):
			verb = "d"
		}
		return r.show(flags, m[3], m[4], verb, v)
	})
	lenient := slices.Contains([]string{"dict", "list", "Undefined"}, typeName(args)) // what Python takes for a mapping here
	check(used == len(values) || lenient && used == 0, "TypeError: not all arguments converted during string formatting")
	return text
}

// format is the method of that name of a text. Its fields have no attributes, fill characters or groups of digits.
func (r *run) format(format string, pos []any, named *dict) string {
	auto, manual := 0, false
	return field.ReplaceAllStringFunc(format, func(text string) string {
		m := field.FindStringSubmatch(text)
		name, align, flags, width, precision, verb := m[1], m[3], m[4]+m[5], m[6], m[7], m[8]
		if text == "{{" || text == "}}" {
			return text[:1]
		}
		v, ok := named.get(r, name)
		i, err := strconv.Atoi(cmp.Or(name, strconv.Itoa(auto)))
		if err == nil && i < len(pos) {
			v, ok = pos[i], true
		}
		if manual = manual || err == nil && name != ""; name == "" {
			auto++
		}
		check(ok && len(text) > 1 && (auto == 0 || !manual), "ValueError, KeyError or IndexError: wrong or unsupported field %s", text)
		kind, bare := typeName(v), align+flags+width+precision+verb == ""
		if m[2] == "r" {
			v = r.repr(v)
		} else if m[2] == "s" || bare {
			v = r.str(v)
		}
		if _, isText := v.(string); isText {
			check(flags == "", "ValueError: sign or zeros before text")
			align, verb = cmp.Or(align, "<"), cmp.Or(verb, "s")
		}
		if align == "<" {
			flags = "-" + strings.ReplaceAll(flags, "0", "")
		}
		return r.show(flags, width, precision, cmp.Or(verb, map[string]string{"int": "d", "bool": "d"}[kind]), v)
	})
}

// show writes a value as C's printf does. Text has the verb s.
func (r *run) show(flags, width, precision, verb string, v any) string {
	n, _ := strconv.Atoi(width) // "" is 0
	r.spend(n)
	shape := "%" + flags + width
	switch i, text := integer(v), ""; {
	case typeName(v) == "str" && verb == "s":
		text, _ = v.(string)
		return fmt.Sprintf(shape+precision+verb, text)
	case i != nil && verb != "" && strings.Contains("dxXob", verb) && precision == "":
		return fmt.Sprintf(shape+verb, i)
	case isNumber(v) && verb != "" && strings.Contains("eEfFgG", verb):
		f, _ := asFloat(v)
		check(finite(f), "ValueError: inf and nan are not supported in formats")
		return fmt.Sprintf(shape+cmp.Or(precision, ".6")+verb, f)
	}
	return fail("ValueError or TypeError: format %s%s of a %s is wrong or not supported", shape, verb, typeName(v)).(string)
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
