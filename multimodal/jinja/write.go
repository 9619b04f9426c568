package jinja

import (
	"fmt"
	"math"
	"math/big"
	"slices"
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
func (r *run) repr(v any) string {
	t := &text{r: r}
	t.repr(v)
	return t.String()
}

func (t *text) repr(v any) {
	t.r.enter()
	defer t.r.leave()
	t.r.step(1)
	switch v := v.(type) {
	case nil:
		t.put("None")
	case bool:
		t.put(strings.ToUpper(strconv.FormatBool(v)[:1]), strconv.FormatBool(v)[1:])
	case int64:
		t.put(strconv.FormatInt(v, 10))
	case *big.Int:
		t.put(v.String())
	case float64:
		t.put(formatFloat(v))
	case string:
		t.quote(v)
	case []any:
		t.list("[", v, "]")
	case tuple:
		if len(v) == 1 {
			t.list("(", v, ",)")
		} else {
			t.list("(", v, ")")
		}
	case *dict:
		t.put("{")
		for i, k := range v.keys {
			if i > 0 {
				t.put(", ")
			}
			t.repr(k)
			t.put(": ")
			t.repr(v.values[i])
		}
		t.put("}")
	case *iterator:
		switch v.kind {
		case "range":
			t.put(v.repr)
		case "generator":
			t.put("<generator object at 0x0>")
		default:
			t.list(v.kind+"([", v.items, "])")
		}
	case *namespace:
		t.put("<Namespace ")
		t.repr(&v.dict)
		t.put(">")
	case *loop:
		t.put(fmt.Sprintf("<LoopContext %d/%d>", v.i+1, len(v.items)))
	case *macro:
		t.put("<Macro '", v.name, "'>")
	case *bound:
		t.put("<built-in method ", v.name, " of ", typeName(v.self), " object at 0x0>")
	default: // undefined inside a container
		t.put("Undefined")
	}
}

func (t *text) list(open string, list []any, closing string) {
	t.put(open)
	for i, e := range list {
		if i > 0 {
			t.put(", ")
		}
		t.repr(e)
	}
	t.put(closing)
}

func (t *text) quote(s string) {
	q := "'"
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = `"`
	}
	t.put(q)
	for _, c := range s {
		switch {
		case string(c) == q || c == '\\':
			t.put(`\`, string(c))
		case c == '\n':
			t.put(`\n`)
		case c == '\r':
			t.put(`\r`)
		case c == '\t':
			t.put(`\t`)
		case unicode.IsPrint(c):
			t.put(string(c))
		case c < 0x100:
			t.put(fmt.Sprintf(`\x%02x`, c))
		case c < 0x10000:
			t.put(fmt.Sprintf(`\u%04x`, c))
		default:
			t.put(fmt.Sprintf(`\U%08x`, c))
		}
	}
	t.put(q)
}

// formatFloat writes the shortest digits that read back, as Python does.
func formatFloat(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case math.IsNaN(f):
		return "nan"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	if exp, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:]); exp < -4 || exp >= 16 {
		return s
	}
	if s = strconv.FormatFloat(f, 'f', -1, 64); !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// dumper is Python's json.dumps with the arguments that chat templates give it.
type dumper struct {
	*text
	ascii, sort        bool
	indent, item, pair string
	newlines           bool
}

func (d *dumper) dump(v any, before string) {
	d.r.enter()
	defer d.r.leave()
	d.r.step(1)
	switch v := v.(type) {
	case nil:
		d.put("null")
	case bool:
		d.put(strconv.FormatBool(v))
	case float64:
		d.put(strings.NewReplacer("inf", "Infinity", "nan", "NaN").Replace(formatFloat(v)))
	case int64, *big.Int:
		d.repr(v)
	case string:
		d.string(v)
	case tuple:
		d.dump([]any(v), before)
	case []any:
		d.members("[", len(v), "]", before, func(i int, before string) { d.dump(v[i], before) })
	case *dict:
		items := v.items()
		if d.sort {
			slices.SortStableFunc(items, func(a, b any) int { return d.r.compare("<", a.(tuple)[0], b.(tuple)[0]) })
		}
		d.members("{", len(items), "}", before, func(i int, before string) {
			pair := items[i].(tuple)
			d.string(d.key(pair[0]))
			d.put(d.pair)
			d.dump(pair[1], before)
		})
	default:
		fail("TypeError: Object of type %s is not JSON serializable", typeName(v))
	}
}

func (d *dumper) members(open string, n int, closing, before string, member func(int, string)) {
	inner := before + d.indent
	d.put(open)
	for i := range n {
		if i > 0 {
			d.put(d.item)
		}
		if d.newlines {
			d.put("\n", inner)
		}
		member(i, inner)
	}
	if d.newlines && n > 0 {
		d.put("\n", before)
	}
	d.put(closing)
}

func (d *dumper) key(k any) string {
	switch k := k.(type) {
	case string:
		return k
	case nil, bool, int64, *big.Int, float64:
		sub := &dumper{text: &text{r: d.r}}
		sub.dump(k, "")
		return sub.String()
	}
	fail("TypeError: keys must be str, int, float, bool or None, not %s", typeName(k))
	return ""
}

var jsonEscapes = map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}

func (d *dumper) string(s string) {
	d.put(`"`)
	for _, c := range s {
		short := jsonEscapes[c]
		switch {
		case short != "":
			d.put(short)
		case c < ' ' || d.ascii && c >= 0x7f && c < 0x10000:
			d.put(fmt.Sprintf(`\u%04x`, c))
		case d.ascii && c >= 0x10000:
			high, low := utf16.EncodeRune(c)
			d.put(fmt.Sprintf(`\u%04x\u%04x`, high, low))
		default:
			d.put(string(c))
		}
	}
	d.put(`"`)
}

// dumps is the filter tojson.
func (c *call) dumps() string {
	d := &dumper{text: &text{r: c.r}, item: ", ", pair: ": ", ascii: truth(c.or(0, false)), sort: truth(c.or(3, false))}
	switch indent := c.or(1, nil).(type) {
	case int64:
		if indent > 1000 {
			fail("ValueError: indent %d is too large", indent)
		}
		d.indent, d.newlines, d.item = strings.Repeat(" ", int(max(indent, 0))), true, ","
	case string:
		d.indent, d.newlines, d.item = indent, true, ","
	}
	if separators := c.or(2, nil); separators != nil {
		pair := c.r.iterate(separators)
		if len(pair) != 2 {
			fail("ValueError: separators takes an item and a key separator")
		}
		d.item, d.pair = c.r.str(pair[0]), c.r.str(pair[1])
	}
	d.dump(c.self, "")
	return d.String()
}
