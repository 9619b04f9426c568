package jinja

import (
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

func toFloat(c *call) any {
	if f, ok := asFloat(c.self); ok {
		return f
	}
	if s, ok := c.self.(string); ok {
		if f, ok := parseFloat(s); ok {
			return f
		}
	}
	mustExist(c.self)
	return c.or(0, 0.0)
}

func mustExist(v any) {
	if u, ok := v.(undefined); ok {
		fail("%s", string(u))
	}
}

func toInt(c *call) any {
	switch v := c.self.(type) {
	case float64:
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			i, _ := big.NewFloat(math.Trunc(v)).Int(nil)
			return simplest(i)
		}
	case string:
		s := strings.TrimFunc(v, isSpace)
		base := c.int(1, 10)
		if base < 2 || base > 36 || len(s) > maxBits/3 {
			break
		}
		if prefix := map[int]string{2: "0b", 8: "0o", 16: "0x"}[base]; prefix != "" {
			s = strings.TrimPrefix(strings.ToLower(s), prefix)
		}
		if i, ok := new(big.Int).SetString(s, base); ok {
			return simplest(i)
		}
		if f, ok := parseFloat(s); ok && !math.IsNaN(f) && !math.IsInf(f, 0) {
			i, _ := big.NewFloat(math.Trunc(f)).Int(nil)
			return simplest(i)
		}
	default:
		if i, ok := asInt(v); ok {
			return simplest(i)
		}
	}
	mustExist(c.self)
	return c.or(0, int64(0))
}

func parseFloat(s string) (float64, bool) {
	s = strings.TrimFunc(s, isSpace)
	f, err := strconv.ParseFloat(s, 64)
	if strings.ContainsAny(s, "xXpP_") { // Go's own notations
		return 0, false
	}
	return f, err == nil || math.IsInf(f, 0)
}

// round follows Python: halves go to the even digit, and a whole number stays one.
func round(c *call) any {
	precision := c.int(0, 0)
	f, ok := asFloat(c.self)
	if !ok || precision > 300 || precision < -300 {
		fail("TypeError: cannot round %s to %d digits", typeName(c.self), precision)
	}
	scale := math.Pow(10, float64(precision))
	switch method := c.or(1, "common"); method {
	case "ceil":
		return math.Ceil(f*scale) / scale
	case "floor":
		return math.Floor(f*scale) / scale
	case "common":
		if _, whole := asInt(c.self); whole && precision >= 0 {
			return c.self
		} else if precision < 0 {
			f = math.RoundToEven(f*scale) / scale
			if whole {
				return int64(f)
			}
			return f
		}
		s, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64)
		return s
	}
	fail("FilterArgumentError: method must be common, ceil or floor")
	return nil
}

var htmlEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")

func escape(s string) string { return htmlEscapes.Replace(s) }

func indent(c *call) any {
	width, ok := c.or(0, int64(4)).(string)
	if !ok {
		n := c.int(0, 4)
		c.r.made(n)
		width = strings.Repeat(" ", max(n, 0))
	}
	lines := splitLines(c.r.str(c.self)+"\n", false)
	t := &text{r: c.r}
	for i, line := range lines {
		if i > 0 {
			t.put("\n")
		}
		if i == 0 && truth(c.or(1, false)) || i > 0 && (line != "" || truth(c.or(2, false))) {
			t.put(width)
		}
		t.put(line)
	}
	return t.String()
}

func truncate(c *call) any {
	s, n, end := c.r.str(c.self), c.int(0, 255), c.r.str(c.or(2, "..."))
	keep := n - utf8.RuneCountInString(end)
	if keep < 0 {
		fail("AssertionError: expected length >= %d, got %d", n-keep, n)
	}
	if utf8.RuneCountInString(s) <= n+c.int(3, 5) {
		return s
	}
	head := c.r.slice(s, nil, int64(keep), nil).(string)
	if i := strings.LastIndexByte(head, ' '); i >= 0 && !truth(c.or(1, false)) {
		head = head[:i]
	}
	return head + end
}

func xmlAttributes(c *call) any {
	d, ok := c.self.(*dict)
	if !ok {
		fail("TypeError: xmlattr needs a mapping, not %s", typeName(c.self))
	}
	t := &text{r: c.r}
	for k, v := range d.all() {
		if _, missing := v.(undefined); missing || v == nil {
			continue
		}
		key := c.r.str(k)
		if strings.ContainsAny(key, " \t\n\f\r/>=") {
			fail("ValueError: invalid character in attribute name: %s", c.r.repr(key))
		}
		if t.Len() > 0 || truth(c.or(0, true)) {
			t.put(" ")
		}
		t.put(escape(key), `="`, escape(c.r.str(v)), `"`)
	}
	return t.String()
}

// sorted is v with all dictionaries in the order of their keys.
func (r *run) sorted(v any) any {
	r.enter()
	defer r.leave()
	r.step(1)
	switch v := v.(type) {
	case []any:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = r.sorted(e)
		}
		return list
	case *dict:
		d, items := newDict(), v.items()
		slices.SortStableFunc(items, func(a, b any) int { return r.compare("<", a.(tuple)[0], b.(tuple)[0]) })
		for _, kv := range items {
			d.put(r, kv.(tuple)[0], r.sorted(kv.(tuple)[1]))
		}
		return d
	}
	return v
}
