package jinja

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

var filters = map[string]fn{
	"capitalize": strMethods["capitalize"], "center": strMethods["center"], "lower": strMethods["lower"],
	"replace": strMethods["replace"], "trim": strMethods["strip"], "upper": strMethods["upper"],
	"abs":   {"", absolute},
	"batch": {"linecount", batch},
	"count": {"", length}, "length": {"", length},
	"d": {"[default_value boolean]", standard}, "default": {"[default_value boolean]", standard},
	"dictsort": {"", dictSort},
	"e":        onText(escapes.Replace), "escape": onText(escapes.Replace),
	"first":      {"", func(c *call) any { return at(c.items(), 0) }},
	"float":      {"[default]", toFloat},
	"indent":     {"[width first blank]", indent},
	"int":        {"[default]", toInt},
	"items":      {"", pairs},
	"join":       {"[d]", func(c *call) any { return c.r.join(c.items(), c.r.str(c.or(0, ""))) }},
	"last":       {"", func(c *call) any { return at(c.items(), -1) }},
	"list":       {"", func(c *call) any { return list(slices.Clone(c.items())) }},
	"map":        {"*", mapped},
	"max":        {"", func(c *call) any { return at(c.r.sorted(c.items(), folded, false), -1) }},
	"min":        {"", func(c *call) any { return at(c.r.sorted(c.items(), folded, false), 0) }},
	"pprint":     {"", pprint},
	"reject":     {"*", func(c *call) any { return c.choose(0, false) }},
	"rejectattr": {"*", func(c *call) any { return c.choose(1, false) }},
	"reverse":    {"", reverse},
	"round":      {"[precision]", round},
	"safe":       {"", func(c *call) any { return c.str() }}, "string": {"", func(c *call) any { return c.str() }},
	"select":     {"*", func(c *call) any { return c.choose(0, true) }},
	"selectattr": {"*", func(c *call) any { return c.choose(1, true) }},
	"sort":       {"[reverse case_sensitive attribute]", sorted},
	"sum":        {"[start]", sum},
	"title":      onText(title(func(before rune) bool { return before < 0 || isSpace(before) || strings.ContainsRune("-({[<", before) })),
	"tojson":     {"[ensure_ascii indent separators sort_keys]", toJSON},
	"truncate":   {"[length]", truncate},
	"wordcount":  {"", func(c *call) any { return int64(len(words.FindAllStringIndex(c.str(), -1))) }},
	"xmlattr":    {"", xmlAttributes},
}

var (
	words   = regexp.MustCompile(`[\pL\pN\pM_]+`)
	escapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")
)

// getter reads an attribute path such as "function.name"; nil is the element itself.
func (c *call) getter(path any) func(any) any {
	if path == nil {
		return func(v any) any { return v }
	}
	keys := strings.Split(c.r.str(path), ".")
	return func(v any) any {
		for _, key := range keys {
			check(strings.Trim(key, "0123456789") != "", "TypeError: attribute paths are of names, not numbers as %s", key)
			v = c.r.index(v, key)
		}
		return v
	}
}

// folded is text in lower case, as elements are compared.
func folded(v any) any {
	if s, ok := v.(string); ok {
		return strings.ToLower(s)
	}
	return v
}

// sorted sorts a copy.
func (r *run) sorted(items []any, key func(any) any, reverse bool) []any {
	items = slices.Clone(items)
	slices.SortStableFunc(items, func(a, b any) int {
		if reverse {
			a, b = b, a
		}
		return r.compare("<", key(a), key(b))
	})
	return items
}

func dictSort(c *call) any {
	d, ok := c.self.(*dict)
	check(ok, "TypeError: dictsort sorts a mapping, not %s", typeName(c.self))
	return list(c.r.sorted(d.items(), func(pair any) any { return folded(pair.(*seq).items[0]) }, false))
}

func sorted(c *call) any {
	get, key := c.getter(c.or(2, nil)), folded
	if c.flag(1) {
		key = func(v any) any { return v }
	}
	return list(c.r.sorted(c.items(), func(v any) any { return key(get(v)) }, c.flag(0)))
}

func pairs(c *call) any {
	d, ok := c.self.(*dict)
	check(ok, "TypeError: can only get item pairs from a mapping")
	return generator(d.items())
}

func reverse(c *call) any {
	items := slices.Clone(c.items())
	slices.Reverse(items)
	if typeName(c.self) == "str" {
		return c.r.join(items, "")
	}
	return generator(items)
}

func sum(c *call) any {
	total := c.or(0, int64(0))
	for _, e := range c.items() {
		total = c.r.operate("+", total, e)
	}
	return total
}

func batch(c *call) any {
	n, batches := c.int(0, 1), []any(nil)
	check(n > 0, "ValueError: batch of %d", n)
	for part := range slices.Chunk(c.items(), n) {
		batches = append(batches, list(part))
	}
	return generator(batches)
}

func length(c *call) any {
	if s, ok := c.self.(string); ok {
		return int64(utf8.RuneCountInString(s))
	}
	check(typeName(c.self) != "generator", "TypeError: object of type 'generator' has no len()")
	return int64(len(c.items()))
}

func standard(c *call) any {
	if missing(c.self) || c.flag(1) && !truth(c.self) {
		return c.or(0, "")
	}
	return c.self
}

// applied is the filter or test that argument i names, with the arguments behind it.
func (c *call) applied(what string, table map[string]fn, i int) func(any) any {
	name, _ := at(c.pos, int64(i)).(string)
	f, ok := table[name]
	check(ok, "TemplateRuntimeError: no %s named '%s'", what, name)
	return func(v any) any { return c.r.native(name, f, v, c.pos[i+1:], c.named) }
}

func mapped(c *call) any {
	path, byAttribute := c.named.get("attribute")
	apply, items := c.getter(path), slices.Clone(c.items())
	if !byAttribute {
		apply = c.applied("filter", c.r.filters, 0)
	}
	check(!byAttribute || len(c.pos)+len(c.named.keys) == 1, "FilterArgumentError: map takes a filter or an attribute")
	for i, v := range items {
		items[i] = apply(v)
	}
	return generator(items)
}

// choose keeps the elements that pass, or fail, a test; without a test, their truth counts. The test is argument i, behind
// the attribute that it looks at.
func (c *call) choose(i int, want bool) any {
	get, test := c.getter(nil), c.getter(nil)
	if i > 0 {
		path := at(c.pos, 0)
		mustExist(path)
		get = c.getter(path)
	}
	if i < len(c.pos) {
		test = c.applied("test", c.r.tests, i)
	}
	return generator(c.r.keep(c.items(), func(e any) bool { return truth(test(get(e))) == want }))
}

func absolute(c *call) any {
	if truth(c.r.operate("<", c.self, int64(0))) {
		return c.r.operate("-", int64(0), c.self)
	}
	return c.self
}

// readFloat is what Python's float() makes of a value.
func readFloat(v any) (f float64, ok bool) {
	mustExist(v)
	if s, isText := v.(string); isText && !strings.ContainsAny(s, "xXpP_") { // Go's own notations
		f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64)
		return f, err == nil || math.IsInf(f, 0)
	}
	return asFloat(v)
}

func toFloat(c *call) any {
	if f, ok := readFloat(c.self); ok {
		return f
	}
	return c.or(0, 0.0)
}

func toInt(c *call) any {
	if i, ok := asInt(c.self); ok {
		return i
	}
	if f, ok := readFloat(c.self); ok && finite(f) {
		return exact(f)
	}
	return c.or(0, int64(0))
}

// round follows Python: halves go to the even digit, and a whole number stays one.
func round(c *call) any {
	f, isNumber := asFloat(c.self)
	precision := c.int(0, 0)
	check(isNumber && precision >= 0 && precision <= 300, "TypeError: cannot round in this way")
	if _, whole := asInt(c.self); whole {
		return c.self
	}
	f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64)
	return f
}

// spaces is a text as it is or so many spaces.
func (c *call) spaces(width any) string {
	if s, ok := width.(string); ok {
		return s
	}
	n := max(small(width), 0)
	c.r.made(n)
	return strings.Repeat(" ", n)
}

func indent(c *call) any {
	width, t := c.spaces(c.or(0, int64(4))), &text{r: c.r}
	for i, line := range splitLines(c.str() + "\n") {
		if i > 0 {
			t.put("\n")
		}
		if i == 0 && c.flag(1) || i > 0 && (line != "" || c.flag(2)) {
			t.put(width)
		}
		t.put(line)
	}
	return t.String()
}

// truncate cuts a text at a space; five characters more than wanted are let pass.
func truncate(c *call) any {
	s, n := c.str(), c.int(0, 255)
	check(n >= 3, "AssertionError: expected length >= 3, got %d", n)
	if utf8.RuneCountInString(s) <= n+5 {
		return s
	}
	head := c.r.slice(s, nil, int64(n-3), nil).(string)
	if i := strings.LastIndexByte(head, ' '); i >= 0 {
		head = head[:i]
	}
	return head + "..."
}

func xmlAttributes(c *call) any {
	d, ok := c.self.(*dict)
	check(ok, "TypeError: xmlattr needs a mapping, not %s", typeName(c.self))
	t := &text{r: c.r}
	for i, v := range d.values {
		if missing(v) || v == nil {
			continue
		}
		key := c.r.str(d.keys[i])
		check(!strings.ContainsAny(key, " \t\n\f\r/>="), "ValueError: invalid character in attribute name: %s", key)
		t.put(" ", escapes.Replace(key), `="`, escapes.Replace(c.r.str(v)), `"`)
	}
	return t.String()
}

var sequences = []string{"str", "list", "tuple", "dict", "range", "Undefined"}

var tests = map[string]fn{
	"iterable": ofType(append(sequences, "generator", "dict_keys", "dict_values", "dict_items")...),
	"boolean":  ofType("bool"), "callable": ofType("function"), "float": ofType("float"), "integer": ofType("int"),
	"mapping": ofType("dict"), "none": ofType("NoneType"), "string": ofType("str"), "undefined": ofType("Undefined"),
	"number":   ofType("int", "float", "bool"),
	"sequence": ofType(sequences...),
	"defined":  {"", func(c *call) any { return !missing(c.self) }},
	"true":     {"", func(c *call) any { return c.self == true }}, "false": {"", func(c *call) any { return c.self == false }},
	"odd":         {"", func(c *call) any { return truth(c.r.operate("%", c.self, int64(2))) }},
	"even":        {"", func(c *call) any { return !truth(c.r.operate("%", c.self, int64(2))) }},
	"divisibleby": {"num", func(c *call) any { return !truth(c.r.operate("%", c.self, c.args[0])) }},
	"sameas":      {"other", func(c *call) any { return typeName(c.self) == typeName(c.args[0]) && c.r.equal(c.self, c.args[0]) }},
	"in":          relation("in"),
	"==":          relation("=="), "eq": relation("=="), "equalto": relation("=="), "!=": relation("!="), "ne": relation("!="),
	"<": relation("<"), "lt": relation("<"), "lessthan": relation("<"), "<=": relation("<="), "le": relation("<="),
	">": relation(">"), "gt": relation(">"), "greaterthan": relation(">"), ">=": relation(">="), "ge": relation(">="),
}

func ofType(names ...string) fn {
	return fn{"", func(c *call) any { return slices.Contains(names, typeName(c.self)) }}
}

func relation(op string) fn {
	return fn{"other", func(c *call) any { return c.r.operate(op, c.self, c.args[0]) }}
}
