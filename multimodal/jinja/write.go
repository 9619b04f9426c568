package jinja

import (
	"fmt"
	"math"
	"regexp"
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
	case undefined:
		return ""
	}
	return r.repr(v)
}

// repr is Python's repr.
func (r *run) repr(v any) string { return r.write(writer{comma: ", ", colon: ": "}, v) }

func pprint(c *call) any {
	s := c.r.write(writer{comma: ", ", colon: ": ", sort: true}, c.self)
	check(utf8.RuneCountInString(s) <= 80, "pprint of more than one line is not supported")
	return s
}

// toJSON is Python's json.dumps with the arguments that chat templates give it.
func toJSON(c *call) any {
	w := writer{json: true, comma: ", ", colon: ": ", ascii: c.flag(0), sort: c.flag(3)}
	if width := c.or(1, nil); width != nil {
		w.newline, w.indent, w.comma = "\n", c.spaces(width), ","
	}
	if separators := c.or(2, nil); separators != nil {
		pair := c.r.iterate(separators)
		check(len(pair) == 2, "ValueError: separators takes an item and a key separator")
		w.comma, w.colon = c.r.str(pair[0]), c.r.str(pair[1])
	}
	return c.r.write(w, c.self)
}

func (r *run) write(w writer, v any) string {
	w.text = &text{r: r}
	w.value(v, w.newline)
	return w.String()
}

// writer writes values as Python's repr or as JSON.
type writer struct {
	*text
	json, ascii, sort bool
	comma, colon      string // what follows an element and a key
	newline, indent   string // what precedes an item, and more of it per level; "" for one line
}

func (w *writer) value(v any, newline string) {
	defer w.r.deeper()()
	w.r.step(1)
	switch v := v.(type) {
	case nil, bool, int64, bigInt, float64:
		s := scalar(v)
		if other := jsonNames[s]; w.json && other != "" {
			s = other
		}
		w.put(s)
	case string:
		w.quote(v)
	case *dict:
		items := v.items()
		if w.r.step(2 * len(items)); w.sort {
			items = w.r.sorted(items, func(pair any) any { return pair.(*seq).items[0] }, false)
		}
		w.members("{", items, "}", newline, w.pair)
	case *seq:
		w.seq(v, newline)
	default:
		check(!w.json, "TypeError: Object of type %s is not JSON serializable", typeName(v))
		if f, ok := v.(*function); ok {
			w.put(f.repr)
		} else {
			w.put(typeName(v))
		}
	}
}

func (w *writer) seq(v *seq, newline string) {
	open, closing := v.kind+"([", "])"
	switch {
	case v.kind == "list" || v.kind == "tuple" && w.json:
		open, closing = "[", "]"
	case v.kind == "tuple" && len(v.items) == 1:
		open, closing = "(", ",)"
	case v.kind == "tuple":
		open, closing = "(", ")"
	case w.json:
		fail("TypeError: Object of type %s is not JSON serializable", v.kind)
	case v.repr != "":
		w.put(v.repr)
		return
	}
	w.members(open, v.items, closing, newline, w.value)
}

// members writes the elements of a list or the pairs of a dict.
func (w *writer) members(open string, items []any, closing, newline string, write func(v any, newline string)) {
	w.put(open)
	for i, e := range items {
		if i > 0 {
			w.put(w.comma)
		}
		w.put(newline + w.indent)
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
		key = w.r.write(writer{json: true}, key)
	}
	w.value(key, "")
	w.put(w.colon)
	w.value(v, newline)
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
		case c < 0x10000:
			w.put(fmt.Sprintf(`\u%04x`, c))
		default:
			w.put(fmt.Sprintf(`\U%08x`, c))
		}
	}
	w.put(q)
}

var jsonNames = map[string]string{"None": "null", "True": "true", "False": "false", "inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}

// scalar is Python's repr of None, a bool or a number; floats have the shortest digits that read back.
func scalar(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return strings.ToUpper(fmt.Sprint(v)[:1]) + fmt.Sprint(v)[1:]
	case float64:
		s := strconv.FormatFloat(v, 'e', -1, 64)
		if !finite(v) {
			return strings.ToLower(strings.TrimPrefix(s, "+"))
		} else if size := math.Abs(v); v != 0 && (size < 1e-4 || size >= 1e16) {
			return s
		}
		if s = strconv.FormatFloat(v, 'f', -1, 64); !strings.Contains(s, ".") {
			s += ".0"
		}
		return s
	}
	return fmt.Sprint(v)
}

var (
	percentSpec = regexp.MustCompile(`(?s)%(.?)`)
	formatField = regexp.MustCompile(`\{\{|\}\}|\{\w*\}|[{}]`)
)

// percent is format % args, which are a tuple or one value; the directives are %s, %d and %%.
func (r *run) percent(format string, args any) string {
	values := []any{args}
	if s, ok := args.(*seq); ok && s.kind == "tuple" {
		values = s.items
	}
	text := percentSpec.ReplaceAllStringFunc(format, func(spec string) string {
		if spec == "%%" {
			return "%"
		}
		check(spec == "%s" || spec == "%d", "ValueError: the format %s is not supported; take %%s or %%d", spec)
		check(len(values) > 0, "TypeError: not enough arguments for format string")
		v := values[0]
		values = values[1:]
		check(spec == "%s" || typeName(v) == "int", "TypeError: %%d format: an int is required, not %s", typeName(v))
		s := r.str(v)
		r.made(len(s))
		return s
	})
	check(len(values) == 0, "TypeError: not all arguments converted during string formatting")
	return text
}

// formatText is the method format of a str: fields by position or name.
func formatText(c *call) any {
	auto := 0
	return formatField.ReplaceAllStringFunc(c.str(), func(field string) string {
		check(len(field) > 1, "ValueError: malformed or unsupported format field")
		name := field[1 : len(field)-1]
		switch field {
		case "{{", "}}":
			return field[:1]
		case "{}":
			name = strconv.Itoa(auto)
			auto++
		}
		v, ok := c.named.get(name)
		if i, err := strconv.Atoi(name); err == nil && i < len(c.pos) {
			v, ok = c.pos[i], true
		}
		check(ok, "KeyError or IndexError: no argument %s for the format", name)
		s := c.r.str(v)
		c.r.made(len(s))
		return s
	})
}
