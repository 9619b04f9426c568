package jinja

import (
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

var filters = map[string]fn{
	"abs": {"", absolute},
	"attr": {"name", func(c *call) any {
		if v, ok := c.r.attribute(c.self, c.r.str(c.args[0])); ok {
			return v
		}
		return undefined("UndefinedError: '" + describe(c.self) + "' has no attribute '" + c.r.str(c.args[0]) + "'")
	}},
	"batch":      {"linecount fill_with?", batch},
	"capitalize": {"", filterText(capitalize)},
	"center":     {"width?", func(c *call) any { return c.pad(func(n, width int) int { return n/2 + n&width&1 }) }},
	"count":      {"", length},
	"d":          {"default_value? boolean?", standard},
	"default":    {"default_value? boolean?", standard},
	"dictsort":   {"case_sensitive? by? reverse?", dictSort},
	"e":          {"", filterText(escape)},
	"escape":     {"", filterText(escape)},
	"first":      {"", func(c *call) any { return c.end(0) }},
	"float":      {"default?", toFloat},
	"format":     {"*", func(c *call) any { return c.format() }},
	"indent":     {"width? first? blank?", indent},
	"int":        {"default? base?", toInt},
	"items": {"", func(c *call) any {
		if d, ok := c.self.(*dict); ok {
			return generator(d.items())
		} else if _, ok := c.self.(undefined); !ok {
			fail("TypeError: Can only get item pairs from a mapping.")
		}
		return generator(nil)
	}},
	"join": {"d? attribute?", func(c *call) any {
		t, get, d := &text{r: c.r}, c.getter(c.or(1, nil)), c.r.str(c.or(0, ""))
		for i, e := range c.r.iterate(c.self) {
			if i > 0 {
				t.put(d)
			}
			t.put(c.r.str(get(e)))
		}
		return t.String()
	}},
	"last":   {"", func(c *call) any { return c.end(-1) }},
	"length": {"", length},
	"list":   {"", func(c *call) any { return slices.Concat([]any{}, c.r.iterate(c.self)) }},
	"lower":  {"", filterText(strings.ToLower)},
	"map":    {"*", mapped},
	"max":    {"case_sensitive? attribute?", func(c *call) any { return c.extreme(1) }},
	"min":    {"case_sensitive? attribute?", func(c *call) any { return c.extreme(-1) }},
	"pprint": {"", func(c *call) any {
		s := c.r.repr(c.r.sorted(c.self))
		if utf8.RuneCountInString(s) > 80 {
			fail("pprint of more than one line is not supported")
		}
		return s
	}},
	"reject":     {"*", func(c *call) any { return c.choose(false, false) }},
	"rejectattr": {"*", func(c *call) any { return c.choose(true, false) }},
	"replace":    {"old new count?", func(c *call) any { return c.replace(c.r.str(c.self)) }},
	"reverse": {"", func(c *call) any {
		if s, ok := c.self.(string); ok {
			return c.r.slice(s, nil, nil, int64(-1))
		}
		rest := slices.Clone(c.r.iterate(c.self))
		slices.Reverse(rest)
		return generator(rest)
	}},
	"round":      {"precision? method?", round},
	"safe":       {"", filterText(func(s string) string { return s })},
	"select":     {"*", func(c *call) any { return c.choose(false, true) }},
	"selectattr": {"*", func(c *call) any { return c.choose(true, true) }},
	"sort":       {"reverse? case_sensitive? attribute?", sortList},
	"string":     {"", filterText(func(s string) string { return s })},
	"sum": {"attribute? start?", func(c *call) any {
		total, get := c.or(1, int64(0)), c.getter(c.or(0, nil))
		for _, e := range c.r.iterate(c.self) {
			total = c.r.arithmetic("+", total, get(e))
		}
		return total
	}},
	"title": {"", filterText(func(s string) string {
		start := true
		return strings.Map(func(c rune) rune {
			was := start
			if start = isSpace(c) || strings.ContainsRune("-({[<", c); was && !start {
				return unicode.ToUpper(c)
			}
			return unicode.ToLower(c)
		}, s)
	})},
	"tojson":   {"ensure_ascii? indent? separators? sort_keys?", func(c *call) any { return c.dumps() }},
	"trim":     {"chars?", func(c *call) any { return c.trim(true, true) }},
	"truncate": {"length? killwords? end? leeway?", truncate},
	"unique":   {"case_sensitive? attribute?", unique},
	"upper":    {"", filterText(strings.ToUpper)},
	"wordcount": {"", func(c *call) any {
		return int64(len(wordRuns.FindAllStringIndex(c.r.str(c.self), -1)))
	}},
	"xmlattr": {"autospace?", xmlAttributes},
}

var wordRuns = regexp.MustCompile(`[\pL\pN\pM_]+`)

func generator(items []any) *iterator { return &iterator{kind: "generator", items: items} }

func filterText(f func(string) string) func(*call) any {
	return func(c *call) any { return f(c.r.str(c.self)) }
}

// getter reads an attribute path such as "function.name"; nil is the element itself.
func (c *call) getter(path any) func(any) any {
	var keys []any
	switch path := path.(type) {
	case nil:
		return func(v any) any { return v }
	case string:
		for _, part := range strings.Split(path, ".") {
			if n, err := strconv.ParseInt(part, 10, 64); err == nil {
				keys = append(keys, n)
			} else {
				keys = append(keys, part)
			}
		}
	default:
		keys = []any{path}
	}
	return func(v any) any {
		for _, k := range keys {
			v = c.r.index(v, k)
		}
		return v
	}
}

// folded is get, with text in lower case unless the comparison is to heed it.
func (c *call) folded(get func(any) any, sensitive any) func(any) any {
	return func(v any) any {
		if v = get(v); !truth(sensitive) {
			if s, ok := v.(string); ok {
				return strings.ToLower(s)
			}
		}
		return v
	}
}

func (c *call) end(i int) any {
	list := c.r.iterate(c.self)
	if len(list) == 0 {
		return undefined("UndefinedError: no first or last item, sequence was empty")
	}
	return list[(i+len(list))%len(list)]
}

// format is self % the arguments.
func (c *call) format() string {
	if c.kw != nil {
		return c.r.percent(c.r.str(c.self), c.kw)
	}
	return c.r.percent(c.r.str(c.self), tuple(c.pos))
}

func absolute(c *call) any {
	if i, ok := asInt(c.self); ok {
		return simplest(new(big.Int).Abs(i))
	}
	f, ok := asFloat(c.self)
	if !ok {
		fail("TypeError: bad operand type for abs(): '%s'", typeName(c.self))
	}
	return math.Abs(f)
}

func batch(c *call) any {
	n := c.int(0, 1)
	if n < 1 {
		fail("ValueError: batch of %d", n)
	}
	var batches []any
	for part := range slices.Chunk(c.r.iterate(c.self), n) {
		if fill := c.or(1, nil); fill != nil && len(part) < n {
			c.r.made(perElement * n)
			part = append(slices.Clone(part), slices.Repeat([]any{fill}, n-len(part))...)
		}
		batches = append(batches, part)
	}
	return generator(batches)
}

func length(c *call) any {
	n, ok := c.r.length(c.self)
	if !ok {
		fail("TypeError: object of type '%s' has no len()", typeName(c.self))
	}
	return int64(n)
}

func standard(c *call) any {
	_, missing := c.self.(undefined)
	if missing || truth(c.or(1, false)) && !truth(c.self) {
		return c.or(0, "")
	}
	return c.self
}

func dictSort(c *call) any {
	d, ok := c.self.(*dict)
	by := map[any]int{"key": 0, "value": 1}
	at, known := by[c.or(1, "key")]
	if !ok || !known {
		fail("TypeError: dictsort sorts a mapping by 'key' or 'value'")
	}
	key := c.folded(func(v any) any { return v.(tuple)[at] }, c.or(0, false))
	return c.order(d.items(), key, truth(c.or(2, false)))
}

func sortList(c *call) any {
	list, key := slices.Clone(c.r.iterate(c.self)), c.folded(c.getter(c.or(2, nil)), c.or(1, false))
	return c.order(list, key, truth(c.or(0, false)))
}

func (c *call) order(list []any, key func(any) any, reverse bool) []any {
	slices.SortStableFunc(list, func(a, b any) int {
		if reverse {
			a, b = b, a
		}
		return c.r.compare("<", key(a), key(b))
	})
	return list
}

func (c *call) extreme(sign int) any {
	list, key := c.r.iterate(c.self), c.folded(c.getter(c.or(1, nil)), c.or(0, false))
	if len(list) == 0 {
		return undefined("UndefinedError: no aggregated item, sequence was empty")
	}
	best := list[0]
	for _, e := range list[1:] {
		if c.r.compare("<", key(e), key(best))*sign > 0 {
			best = e
		}
	}
	return best
}

func unique(c *call) any {
	key := c.folded(c.getter(c.or(1, nil)), c.or(0, false))
	first := newDict()
	for _, e := range c.r.iterate(c.self) {
		if k := key(e); !first.has(c.r, k) {
			first.put(c.r, k, e)
		}
	}
	return generator(first.values)
}

func mapped(c *call) any {
	list := slices.Clone(c.r.iterate(c.self))
	var apply func(any) any
	if len(c.pos) == 0 && c.kw != nil {
		path, _ := c.kw.get(c.r, "attribute")
		other, ok := c.kw.get(c.r, "default")
		get := c.getter(path)
		apply = func(v any) any {
			v = get(v)
			if _, missing := v.(undefined); missing && ok {
				return other
			}
			return v
		}
	} else {
		name, f := c.lookup("filter", c.r.filters, 0)
		apply = func(v any) any { return c.r.native(name, f, v, c.pos[1:], c.kw) }
	}
	for i, v := range list {
		list[i] = apply(v)
	}
	return generator(list)
}

func (c *call) lookup(what string, table map[string]fn, at int) (string, fn) {
	if at >= len(c.pos) {
		fail("FilterArgumentError: missing name of a %s", what)
	}
	name, _ := c.pos[at].(string)
	f, ok := table[name]
	if !ok {
		fail("TemplateRuntimeError: no %s named %s", what, c.r.repr(c.pos[at]))
	}
	return name, f
}

// choose keeps the elements that pass, or fail, a test; without a test, their truth counts.
func (c *call) choose(byAttribute, want bool) any {
	get, at := c.getter(nil), 0
	if byAttribute {
		if len(c.pos) == 0 {
			fail("FilterArgumentError: missing parameter for attribute name")
		}
		get, at = c.getter(c.pos[0]), 1
	}
	is := truth
	if at < len(c.pos) {
		name, f := c.lookup("test", c.r.tests, at)
		is = func(v any) bool { return truth(c.r.native(name, f, v, c.pos[at+1:], c.kw)) }
	}
	var list []any
	for _, e := range c.r.iterate(c.self) {
		if c.r.step(1); is(get(e)) == want {
			list = append(list, e)
		}
	}
	return generator(list)
}
