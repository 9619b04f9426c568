package jinja

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
)

// str is Python's str.
func (r *run) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case undefined:
		return ""
	}
	return r.repr(v)
}

// repr is Python's repr.
func (r *run) repr(v any) string { return r.write(writer{comma: ", ", colon: ": "}, v) }

func (r *run) write(w writer, v any) string {
	w.run = r
	return r.capture(func() { w.value(v, w.newline) })
}

// writer writes values as Python's repr or as JSON.
type writer struct {
	*run
	json, ascii, sort bool
	comma, colon      string // what follows an element and a key
	newline, indent   string // what precedes an item, and more of it per level; "" for one line
}

func (w *writer) value(v any, newline string) {
	defer w.deeper()()
	w.spend(perValue)
	switch v := v.(type) {
	case string:
		w.quote(v)
	case *dict:
		items := v.items()
		if w.sort {
			items = w.sorted(items, w.getter("0"), false, false)
		}
		w.members("{", items, "}", newline, w.pair)
	case *seq:
		switch {
		case w.json && v.kind != "list" && v.kind != "tuple":
			fail(notJSON, v.kind)
		case v.repr != "":
			w.put(v.repr)
		case v.kind == "list" || w.json:
			w.members("[", v.items, "]", newline, w.value)
		case v.kind == "tuple" && len(v.items) == 1:
			w.members("(", v.items, ",)", newline, w.value)
		case v.kind == "tuple":
			w.members("(", v.items, ")", newline, w.value)
		default:
			w.members(v.kind+"([", v.items, "])", newline, w.value)
		}
	default:
		w.put(w.scalar(v))
	}
}

// members writes the elements of a list or the pairs of a dict.
func (w *writer) members(open string, items []any, closing, newline string, write func(v any, newline string)) {
	w.put(open)
	for i, e := range items {
		if i > 0 {
			w.put(w.comma)
		}
		w.put(newline, w.indent)
		write(e, newline+w.indent)
	}
	if len(items) > 0 {
		w.put(newline)
	}
	w.put(closing)
}

// pair writes a key and its value; JSON has only text as keys.
func (w *writer) pair(kv any, newline string) {
	key, v := kv.(*seq).items[0], kv.(*seq).items[1]
	if w.json && typeName(key) != "str" {
		key = w.write(writer{json: true}, key)
	}
	w.value(key, "")
	w.put(w.colon)
	w.value(v, newline)
}

const notJSON = "TypeError: Object of type %s is not JSON serializable"

var (
	pythonNames = map[string]string{"<nil>": "None", "true": "True", "false": "False", "+Inf": "inf", "-Inf": "-inf", "NaN": "nan"}
	jsonNames   = map[string]string{"<nil>": "null", "+Inf": "Infinity", "-Inf": "-Infinity"}
)

// scalar writes what has no parts; floats have the shortest digits that read back.
func (w *writer) scalar(v any) string {
	names := pythonNames
	if w.json {
		names = jsonNames
	}
	switch v := v.(type) {
	case nil, bool, int, bigInt:
		s := fmt.Sprint(v)
		return cmp.Or(names[s], s)
	case float64:
		format := byte('f')
		if size := math.Abs(v); v != 0 && (size < 1e-4 || size >= 1e16) {
			format = 'e'
		}
		s := strconv.FormatFloat(v, format, -1, 64)
		if !strings.ContainsAny(s, ".eIN") {
			s += ".0"
		}
		return cmp.Or(names[s], s)
	}
	check(!w.json, notJSON, typeName(v))
	if f, ok := v.(*function); ok && f.self != nil {
		return "<built-in method " + f.label + " of " + typeName(f.self[0]) + " object at 0x0>"
	} else if ok {
		return "<" + f.label + ">"
	}
	return typeName(v)
}

func (w *writer) quote(s string) {
	q := `"`
	if !w.json && (!strings.Contains(s, "'") || strings.Contains(s, q)) {
		q = "'"
	}
	w.put(q)
	for _, c := range s {
		short := strings.IndexRune("\n\r\t\b\f", c)
		switch {
		case c == '\\' || string(c) == q:
			w.put(`\`, string(c))
		case short >= 0 && (short < 3 || w.json):
			w.put(`\`, "nrtbf"[short:short+1])
		case w.json && (c < ' ' || w.ascii && c > '~'):
			for _, unit := range utf16.Encode([]rune{c}) {
				w.put(fmt.Sprintf(`\u%04x`, unit))
			}
		case w.json || unicode.IsPrint(c):
			w.put(string(c))
		case c < 0x100:
			w.put(fmt.Sprintf(`\x%02x`, c))
		default:
			w.put(strings.Trim(strconv.QuoteRuneToASCII(c), "'"))
		}
	}
	w.put(q)
}

var (
	percentSpec = regexp.MustCompile(`(?s)%.?`)
	percentText = strings.NewReplacer("{", "{{", "}", "}}", "%s", "{}", "%d", "{}", "%%", "%")
	formatField = regexp.MustCompile(`\{\{|\}\}|\{\w*\}|[{}]`)
)

// percent is format % args, which are a tuple or one value; the directives are %s, %d and %%.
func (r *run) percent(format string, args any) string {
	values, used := []any{args}, 0
	if s, ok := args.(*seq); ok && s.kind == "tuple" {
		values = s.items
	}
	for _, spec := range percentSpec.FindAllString(format, -1) {
		if spec != "%%" {
			kind := typeName(at(values, used))
			check(spec == "%s" || spec == "%d" && kind == "int", "ValueError: the format %s is not supported for %s", spec, kind)
			used++
		}
	}
	check(used == len(values), "TypeError: %d arguments for %d fields of a format", len(values), used)
	return r.format(percentText.Replace(format), values, &dict{})
}

// format is the method of that name of a text: fields by position or name.
func (r *run) format(format string, pos []any, named *dict) string {
	auto := 0
	return formatField.ReplaceAllStringFunc(format, func(field string) string {
		check(len(field) > 1, "ValueError: malformed or unsupported format field")
		label := field[1 : len(field)-1]
		switch field {
		case "{{", "}}":
			return field[:1]
		case "{}":
			label = strconv.Itoa(auto)
			auto++
		}
		v, ok := named.get(label)
		if i, err := strconv.Atoi(label); err == nil && i < len(pos) {
			v, ok = pos[i], true
		}
		check(ok, "KeyError or IndexError: no argument %s for the format", label)
		s := r.str(v)
		r.spend(len(s))
		return s
	})
}
