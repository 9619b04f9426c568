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
	directive = regexp.MustCompile(`(?s)%(?:-?(?:[1-9]\d{0,2})?(?:\.\d{1,2})?s|[-+ 0]*\d{0,3}(?:\.\d{1,2})?[df]|.?)`)
	field     = regexp.MustCompile(`\{\{|\}\}|\{(\w*)(?::([\d.]+f))?\}|[{}]`)
)

// percent is format % args, which are a tuple or one value, for %s, %d and %f.
func (r *run) percent(format string, args any) string {
	values, used := []any{args}, 0
	if s, ok := args.(*seq); ok && s.kind == "tuple" {
		values = s.items
	}
	text := directive.ReplaceAllStringFunc(format, func(text string) string {
		if text == "%%" {
			return "%"
		}
		check(used < len(values), "TypeError: not enough arguments for format string")
		v := values[used]
		used++
		switch verb := text[len(text)-1]; {
		case verb == 's':
			v = r.str(v)
		case (verb == 'd' || verb == 'f') && isNumber(v):
			f, _ := asFloat(v)
			check(finite(f), "ValueError or not supported: %s of inf", text)
			if v = f; verb == 'd' {
				v = whole(f)
			}
		default:
			fail("ValueError or TypeError: %s of a %s is wrong or not supported", text, typeName(v))
		}
		text = fmt.Sprintf(text, v)
		r.spend(len(text))
		return text
	})
	lenient := slices.Contains([]string{"dict", "list", "Undefined"}, typeName(args)) // what Python takes for a mapping here
	check(used == len(values) || lenient && used == 0, "TypeError: not all arguments converted during string formatting")
	return text
}

// format is the method of that name of a text; its fields are {}, {number}, {name} and these with a format such as :.2f.
func (r *run) format(format string, pos []any, named *dict) string {
	auto, manual := 0, 0 // how many fields without and with a number
	return field.ReplaceAllStringFunc(format, func(text string) string {
		if text == "{{" || text == "}}" {
			return text[:1]
		}
		m := field.FindStringSubmatch(text)
		name := m[1]
		v, ok := named.get(name)
		i, err := strconv.Atoi(cmp.Or(name, strconv.Itoa(auto)))
		if err == nil && i < len(pos) {
			v, ok = pos[i], true
		}
		if name == "" {
			auto++
		} else if err == nil {
			manual++
		}
		check(ok && len(text) > 1 && auto*manual == 0, "ValueError, KeyError or IndexError: wrong or unsupported field %s", text)
		if m[2] != "" {
			return r.percent("%"+m[2], tuple(v))
		}
		return r.str(v)
	})
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
