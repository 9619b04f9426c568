package jinja

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
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
func (r *run) repr(v any) string {
	return r.write(writer{names: inPython, comma: ", ", colon: ": "}, v)
}

func (r *run) write(w writer, v any) string {
	w.run = r
	return w.value(v, w.newline)
}

// writer writes values as Python's repr or as JSON.
type writer struct {
	*run
	json, ascii, sort bool
	names             map[string]string // of what Go calls otherwise
	comma, colon      string            // what follows an element and a key
	newline, indent   string            // what precedes an item, and more of it per level; "" for one line
}

var (
	inPython = map[string]string{"<nil>": "None", "true": "True", "false": "False", "+Inf": "inf", "-Inf": "-inf"}
	inJSON   = map[string]string{"<nil>": "null", "+Inf": "Infinity", "-Inf": "-Infinity"}
)

func (w *writer) value(v any, newline string) string {
	defer w.deeper()()
	w.spend(perValue)
	if w.json {
		v = plain(v)
	}
	switch v := v.(type) {
	case nil, bool, int, long:
		text := fmt.Sprint(v)
		return cmp.Or(w.names[text], text)
	case float64: // the shortest digits that read back
		format := byte('f')
		if size := math.Abs(v); v != 0 && (size < 1e-4 || size >= 1e16) {
			format = 'e'
		}
		text := strconv.FormatFloat(v, format, -1, 64)
		if !strings.ContainsAny(text, ".eI") {
			text += ".0"
		}
		return cmp.Or(w.names[text], text)
	case string:
		return w.quote(v)
	case *dict:
		items := v.items()
		if w.sort {
			items = w.sorted(items, w.getter("0", true), false)
		}
		return w.members("{", items, "}", newline, w.pair)
	case *seq:
		switch {
		case v.kind == "list" || v.kind == "tuple" && w.json:
			return w.members("[", v.items, "]", newline, w.value)
		case w.json || v.kind == "generator" || v.kind == "range":
		case v.kind == "tuple" && len(v.items) == 1:
			return w.members("(", v.items, ",)", newline, w.value)
		case v.kind == "tuple":
			return w.members("(", v.items, ")", newline, w.value)
		default:
			return w.members(v.kind+"([", v.items, "])", newline, w.value)
		}
	case undefined:
		if !w.json {
			return "Undefined"
		}
	case *function:
		if !w.json && v.self != nil {
			return "<built-in method " + v.label + " of " + typeName(v.self[0]) + " object at 0x0>"
		}
	}
	return fail("TypeError: a %s cannot be written", typeName(v)).(string)
}

// members writes the elements of a list or the pairs of a dict.
func (w *writer) members(before string, items []any, after, newline string, write func(v any, newline string) string) string {
	inner := newline + w.indent
	texts := w.each(items, func(v any) any { return write(v, inner) })
	if len(items) == 0 {
		inner, newline = "", ""
	}
	return before + inner + w.join(texts, w.comma+inner) + newline + after
}

// pair writes a key and its value; JSON has only text as keys.
func (w *writer) pair(kv any, newline string) string {
	k, v := entry(kv)
	if w.json && typeName(k) != "str" {
		k = w.value(k, "")
	}
	return w.value(k, "") + w.colon + w.value(v, newline)
}

func (w *writer) quote(s string) string {
	q := `"`
	if !w.json && (!strings.Contains(s, "'") || strings.Contains(s, q)) {
		q = "'"
	}
	out := []byte(q)
	for _, c := range s {
		short := strings.IndexRune("\n\r\t\b\f", c)
		switch {
		case c == '\\' || string(c) == q:
			out = append(out, '\\', byte(c))
		case short >= 0 && (short < 3 || w.json):
			out = append(out, '\\', "nrtbf"[short])
		case w.json && (c < ' ' || w.ascii && c > '~'):
			for _, unit := range utf16.Encode([]rune{c}) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
		case w.json || unicode.IsPrint(c):
			out = utf8.AppendRune(out, c)
		case c < 0x100:
			out = fmt.Appendf(out, `\x%02x`, c)
		default:
			out = append(out, strings.Trim(strconv.QuoteRuneToASCII(c), "'")...)
		}
	}
	w.spend(2 * len(out))
	return string(out) + q
}
