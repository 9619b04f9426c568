package jinja

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

var filters = map[string]fn{
	"capitalize": strMethods["capitalize"], "center": {"[width]", strMethods["center"].do}, "lower": strMethods["lower"],
	"replace": strMethods["replace"], "trim": strMethods["strip"], "upper": strMethods["upper"],
	"abs":   {"", absolute},
	"attr":  {"name", func(c *call) any { return c.r.attribute(c.self, c.r.str(c.args[0])) }},
	"batch": {"linecount [fill_with]", batch},
	"count": {"", length}, "length": {"", length},
	"d": {"[default_value boolean]", standard}, "default": {"[default_value boolean]", standard},
	"dictsort": {"[case_sensitive by reverse]", dictSort},
	"e":        onText(escapes.Replace), "escape": onText(escapes.Replace),
	"first":      {"", func(c *call) any { return at(c.items(), 0) }},
	"float":      {"[default]", toFloat},
	"format":     {"*", format},
	"indent":     {"[width first blank]", indent},
	"int":        {"[default]", toInt},
	"items":      {"", pairs},
	"join":       {"[d attribute]", func(c *call) any { return c.r.join(c.attributes(1), c.r.str(c.or(0, ""))) }},
	"last":       {"", func(c *call) any { return at(c.items(), -1) }},
	"list":       {"", func(c *call) any { return list(slices.Clone(c.items())) }},
	"map":        {"*", mapped},
	"max":        {"[case_sensitive attribute]", func(c *call) any { return c.extreme(-1) }},
	"min":        {"[case_sensitive attribute]", func(c *call) any { return c.extreme(0) }},
	"pprint":     {"", pprint},
	"reject":     {"*", func(c *call) any { return c.choose(0, false) }},
	"rejectattr": {"*", func(c *call) any { return c.choose(1, false) }},
	"reverse":    {"", reverse},
	"round":      {"[precision method]", round},
	"safe":       {"", func(c *call) any { return c.str() }}, "string": {"", func(c *call) any { return c.str() }},
	"select":     {"*", func(c *call) any { return c.choose(0, true) }},
	"selectattr": {"*", func(c *call) any { return c.choose(1, true) }},
	"sort":       {"[reverse case_sensitive attribute]", func(c *call) any { return list(c.r.sorted(c.items(), c.key(2, 1), c.flag(0))) }},
	"sum":        {"[attribute start]", sum},
	"title":      onText(title(func(before rune) bool { return before < 0 || isSpace(before) || strings.ContainsRune("-({[<", before) })),
	"tojson":     {"[ensure_ascii indent separators sort_keys]", toJSON},
	"truncate":   {"[length killwords end leeway]", truncate},
	"unique":     {"[case_sensitive attribute]", unique},
	"wordcount":  {"", func(c *call) any { return int64(len(words.FindAllStringIndex(c.str(), -1))) }},
	"xmlattr":    {"", xmlAttributes},
}

var (
	words   = regexp.MustCompile(`[\pL\pN\pM_]+`)
	escapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")
)

// getter reads an attribute path such as "function.name"; nil is the element itself.
func (c *call) getter(path any) func(any) any {
	keys := []any{path}
	if s, ok := path.(string); ok {
		keys = texts(strings.Split(s, ".")).items
	}
	for i, k := range keys {
		if n, err := strconv.ParseInt(fmt.Sprint(k), 10, 64); err == nil {
			keys[i] = n
		}
	}
	return func(v any) any {
		for i := 0; path != nil && i < len(keys); i++ {
			v = c.r.index(v, keys[i])
		}
		return v
	}
}

// attributes are the elements, or their attributes where argument i names one.
func (c *call) attributes(i int) []any {
	list, get := slices.Clone(c.items()), c.getter(c.or(i, nil))
	for i, e := range list {
		list[i] = get(e)
	}
	return list
}

// key is what elements are compared by: the attribute in one argument; text in lower case unless the other says no.
func (c *call) key(attribute, sensitive int) func(any) any {
	get, heed := c.getter(c.or(attribute, nil)), c.flag(sensitive)
	return func(v any) any {
		v = get(v)
		if s, ok := v.(string); ok && !heed {
			return strings.ToLower(s)
		}
		return v
	}
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
	column := slices.Index([]string{"key", "value"}, c.text(1, "key"))
	check(ok && column >= 0, "TypeError: dictsort sorts a mapping by 'key' or 'value'")
	c.args = append(c.args, int64(column))
	return list(c.r.sorted(d.items(), c.key(3, 0), c.flag(2)))
}

func (c *call) extreme(i int64) any { return at(c.r.sorted(c.items(), c.key(1, 0), false), i) }

func unique(c *call) any {
	key, first := c.key(1, 0), &dict{}
	for _, e := range c.items() {
		if k := key(e); !c.r.contains(first, k) {
			first.put(c.r, k, e)
		}
	}
	return generator(first.values)
}

func pairs(c *call) any {
	d, ok := c.self.(*dict)
	if check(ok || missing(c.self), "TypeError: can only get item pairs from a mapping"); !ok {
		d = &dict{}
	}
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
	total := c.or(1, int64(0))
	for _, e := range c.attributes(0) {
		check(typeName(total) != "str", "TypeError: sum can't sum strings")
		total = c.r.operate("+", total, e)
	}
	return total
}

// format is self % the arguments.
func format(c *call) any {
	if len(c.named.keys) > 0 {
		return c.r.percent(c.str(), c.named)
	}
	return c.r.percent(c.str(), tuple(c.pos...))
}

func batch(c *call) any {
	n, batches := c.int(0, 1), []any(nil)
	check(n > 0, "ValueError: batch of %d", n)
	for part := range slices.Chunk(c.items(), n) {
		if fill := c.or(1, nil); fill != nil && len(part) < n {
			c.r.made(perElement * n)
			part = slices.Concat(part, slices.Repeat([]any{fill}, n-len(part)))
		}
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
	path, _ := c.named.get(c.r, "attribute")
	other, replaces := c.named.get(c.r, "default")
	apply, items := c.getter(path), slices.Clone(c.items())
	check(len(c.pos)+len(c.named.keys) > 0, "FilterArgumentError: map needs a filter or an attribute")
	if len(c.pos) > 0 {
		apply = c.applied("filter", c.r.filters, 0)
	}
	for i, v := range items {
		if items[i] = apply(v); missing(items[i]) && replaces {
			items[i] = other
		}
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
	s, ok := v.(string)
	if !ok {
		mustExist(v)
		return asFloat(v)
	}
	f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64)
	return f, (err == nil || math.IsInf(f, 0)) && !strings.ContainsAny(s, "xXpP_") // Go's own notations
}

func toFloat(c *call) any {
	if f, ok := readFloat(c.self); ok {
		return f
	}
	return c.or(0, 0.0)
}

func toInt(c *call) any {
	i := asInt(c.self)
	if s, ok := c.self.(string); ok && len(s) < maxBits/3 {
		i, _ = new(big.Int).SetString(strings.TrimFunc(s, isSpace), 10)
	}
	if f, ok := readFloat(c.self); ok && i == nil {
		i = whole(f)
	}
	if i == nil {
		return c.or(0, int64(0))
	}
	return simplest(i)
}

var rounders = map[string]func(float64) float64{"ceil": math.Ceil, "floor": math.Floor, "common": math.RoundToEven}

// round follows Python: halves go to the even digit, and a whole number stays one.
func round(c *call) any {
	method, precision := c.text(1, "common"), c.int(0, 0)
	f, isNumber := asFloat(c.self)
	check(isNumber && rounders[method] != nil && max(precision, -precision) <= 300, "TypeError: cannot round in this way")
	if method == "common" && precision > 0 {
		f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64)
	} else {
		scale := math.Pow(10, float64(precision))
		f = rounders[method](f*scale) / scale
	}
	if method == "common" && asInt(c.self) != nil {
		return simplest(whole(f))
	}
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
	for i, line := range splitLines(c.str()+"\n", false) {
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

func truncate(c *call) any {
	s, n, end := c.str(), c.int(0, 255), c.r.str(c.or(2, "..."))
	keep := n - utf8.RuneCountInString(end)
	check(keep >= 0, "AssertionError: expected length >= %d, got %d", n-keep, n)
	if utf8.RuneCountInString(s) <= n+c.int(3, 5) {
		return s
	}
	head := c.r.slice(s, nil, int64(keep), nil).(string)
	if i := strings.LastIndexByte(head, ' '); i >= 0 && !c.flag(1) {
		head = head[:i]
	}
	return head + end
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

var tests = map[string]fn{
	"boolean": ofType("bool"), "callable": ofType("function"), "float": ofType("float"), "integer": ofType("int"),
	"mapping": ofType("dict"), "none": ofType("NoneType"), "string": ofType("str"), "undefined": ofType("Undefined"),
	"number":      ofType("int", "float", "bool"),
	"sequence":    ofType("str", "list", "tuple", "dict", "range", "Undefined"),
	"iterable":    ofType("str", "list", "tuple", "dict", "range", "Undefined", "generator", "dict_keys", "dict_values", "dict_items"),
	"defined":     {"", func(c *call) any { return !missing(c.self) }},
	"true":        {"", func(c *call) any { return c.self == true }},
	"false":       {"", func(c *call) any { return c.self == false }},
	"odd":         {"", func(c *call) any { return truth(c.r.operate("%", c.self, int64(2))) }},
	"even":        {"", func(c *call) any { return !truth(c.r.operate("%", c.self, int64(2))) }},
	"divisibleby": {"num", func(c *call) any { return !truth(c.r.operate("%", c.self, c.args[0])) }},
	"filter":      {"", func(c *call) any { return c.r.filters[c.str()].do != nil }},
	"test":        {"", func(c *call) any { return c.r.tests[c.str()].do != nil }},
	"sameas":      {"other", func(c *call) any { return typeName(c.self) == typeName(c.args[0]) && c.r.equal(c.self, c.args[0]) }},
	"lower":       strMethods["islower"], "upper": strMethods["isupper"], "in": relation("in"),
	"==": relation("=="), "eq": relation("=="), "equalto": relation("=="), "!=": relation("!="), "ne": relation("!="),
	"<": relation("<"), "lt": relation("<"), "lessthan": relation("<"), "<=": relation("<="), "le": relation("<="),
	">": relation(">"), "gt": relation(">"), "greaterthan": relation(">"), ">=": relation(">="), "ge": relation(">="),
}

func ofType(names ...string) fn {
	return fn{"", func(c *call) any { return slices.Contains(names, typeName(c.self)) }}
}

func relation(op string) fn {
	return fn{"other", func(c *call) any { return c.r.operate(op, c.self, c.args[0]) }}
}
