package jinja

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
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
	case markup:
		return string(v)
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
	if w.json {
		v = plain(v)
	}
	switch v := v.(type) {
	case string:
		w.quote(v)
	case *dict:
		items := v.items(w.run)
		if w.sort {
			items = w.sorted(items, w.getter("0", true), false)
		}
		w.members("{", items, "}", newline, w.pair)
	case *seq:
		switch {
		case w.json && v.kind != "list" && v.kind != "tuple":
			fail(notJSON, v.kind)
		case v.repr != "":
			w.put(v.repr)
		case v.kind == "generator" || v.kind == "range":
			fail("TypeError: an iterator or part of a range has no text; it can become a list")
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
		check(key == nil || isNumber(key), "TypeError: keys must be str, int, float, bool or None, not %s", typeName(key))
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
	case nil, bool, int, *big.Int:
		s := fmt.Sprint(v)
		check(len(s) <= 4300, "ValueError: Exceeds the limit (4300 digits) for integer string conversion")
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
	case undefined:
		check(!w.json, notJSON, "Undefined")
		return "Undefined"
	}
	check(!w.json, notJSON, typeName(v))
	if f, ok := v.(*function); ok && f.self != nil {
		return "<built-in method " + f.label + " of " + typeName(f.self[0]) + " object at 0x0>"
	} else if ok && f.around != nil {
		return "<" + f.label + ">"
	}
	return fail("TypeError: a %s cannot be written", typeName(v)).(string)
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
