package jinja

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// methods by type. None changes a value.
var methods = map[string]map[string]fn{
	"str":   strMethods,
	"list":  {"index": {"value", elementIndex}, "count": {"value", elementCount}},
	"tuple": {"index": {"value", elementIndex}, "count": {"value", elementCount}},
	"dict": {
		"get": {"key [default]", func(c *call) any {
			if v, ok := c.self.(*dict).get(c.r, c.args[0]); ok {
				return v
			}
			return c.or(1, nil)
		}},
		"keys":   {"", func(c *call) any { return &seq{kind: "dict_keys", items: c.self.(*dict).keys} }},
		"values": {"", func(c *call) any { return &seq{kind: "dict_values", items: c.self.(*dict).values} }},
		"items":  {"", func(c *call) any { return &seq{kind: "dict_items", items: c.self.(*dict).items()} }},
		"copy":   {"", func(c *call) any { return c.self }},
	},
}

func elementIndex(c *call) any {
	i := slices.IndexFunc(c.items(), func(e any) bool { return c.r.equal(e, c.args[0]) })
	check(i >= 0, "ValueError: the value is not in the list")
	return int64(i)
}

func elementCount(c *call) any {
	return int64(len(c.r.keep(c.items(), func(e any) bool { return c.r.equal(e, c.args[0]) })))
}

// strMethods are also the filters of those names; c.str is then any value's text.
var strMethods = map[string]fn{
	"upper": onText(strings.ToUpper), "lower": onText(strings.ToLower),
	"capitalize": onText(title(func(before rune) bool { return before < 0 })),
	"title":      onText(title(func(before rune) bool { return !unicode.IsLetter(before) })),
	"swapcase":   onText(func(s string) string { return strings.Map(swapCase, s) }),
	"strip":      trim(strings.TrimFunc), "lstrip": trim(strings.TrimLeftFunc), "rstrip": trim(strings.TrimRightFunc),
	"startswith":   {"prefix", func(c *call) any { return c.edge(strings.HasPrefix) }},
	"endswith":     {"suffix", func(c *call) any { return c.edge(strings.HasSuffix) }},
	"removeprefix": {"prefix", func(c *call) any { return strings.TrimPrefix(c.str(), c.text(0, "")) }},
	"removesuffix": {"suffix", func(c *call) any { return strings.TrimSuffix(c.str(), c.text(0, "")) }},
	"replace":      {"old new [count]", replace},
	"split":        {"[sep maxsplit]", func(c *call) any { return c.split(false) }},
	"rsplit":       {"[sep maxsplit]", func(c *call) any { return c.split(true) }},
	"splitlines":   {"[keepends]", func(c *call) any { return texts(splitLines(c.str(), c.flag(0))) }},
	"partition":    {"sep", func(c *call) any { return c.partition(strings.Index, 0) }},
	"rpartition":   {"sep", func(c *call) any { return c.partition(strings.LastIndex, 2) }},
	"join":         {"iterable", joinTexts},
	"find":         find(strings.Index, false), "rfind": find(strings.LastIndex, false),
	"index": find(strings.Index, true), "rindex": find(strings.LastIndex, true),
	"count":   {"sub", func(c *call) any { return int64(strings.Count(c.str(), c.text(0, ""))) }},
	"center":  {"width [fillchar]", func(c *call) any { return c.pad(func(n, width int) int { return n/2 + n&width&1 }) }},
	"ljust":   {"width [fillchar]", func(c *call) any { return c.pad(func(int, int) int { return 0 }) }},
	"rjust":   {"width [fillchar]", func(c *call) any { return c.pad(func(n, _ int) int { return n }) }},
	"zfill":   {"width", zeroFill},
	"format":  {"*", formatText},
	"isalpha": every(unicode.IsLetter), "isdigit": every(unicode.IsDigit), "isspace": every(isSpace),
	"isalnum": every(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) }),
	"islower": cased(unicode.IsLower, unicode.IsUpper), "isupper": cased(unicode.IsUpper, unicode.IsLower),
	"encode": {"*", func(*call) any { return fail("str.encode is not supported") }},
}

func onText(f func(string) string) fn {
	return fn{"", func(c *call) any { return f(c.str()) }}
}

func every(is func(rune) bool) fn {
	return fn{"", func(c *call) any {
		return c.str() != "" && strings.IndexFunc(c.str(), func(r rune) bool { return !is(r) }) < 0
	}}
}

// cased says whether there are letters of the wanted case and none of the other.
func cased(wanted, other func(rune) bool) fn {
	return fn{"", func(c *call) any {
		return strings.IndexFunc(c.str(), wanted) >= 0 && strings.IndexFunc(c.str(), other) < 0
	}}
}

// title capitalizes what stands behind a boundary; −1 is the start.
func title(boundary func(before rune) bool) func(string) string {
	return func(s string) string {
		before := rune(-1)
		return strings.Map(func(c rune) rune {
			start := boundary(before)
			if before = c; start {
				return unicode.ToTitle(c)
			}
			return unicode.ToLower(c)
		}, s)
	}
}

func swapCase(c rune) rune {
	if unicode.IsUpper(c) {
		return unicode.ToLower(c)
	}
	return unicode.ToUpper(c)
}

func trim(cut func(string, func(rune) bool) string) fn {
	return fn{"[chars]", func(c *call) any {
		if c.or(0, nil) == nil {
			return cut(c.str(), isSpace)
		}
		chars := c.text(0, "")
		c.r.step(len(c.str()) * min(len(chars), 64) / 32)
		return cut(c.str(), func(r rune) bool { return strings.ContainsRune(chars, r) })
	}}
}

func (c *call) edge(has func(s, part string) bool) bool {
	if options, ok := c.args[0].(*seq); ok && options.kind == "tuple" {
		return slices.ContainsFunc(options.items, func(o any) bool { return has(c.str(), c.r.str(o)) })
	}
	return has(c.str(), c.text(0, ""))
}

// find is where a text is, in characters; -1 where it is not, which may be an error.
func find(index func(s, part string) int, must bool) fn {
	return fn{"sub", func(c *call) any {
		i := index(c.str(), c.text(0, ""))
		check(i >= 0 || !must, "ValueError: substring not found")
		return int64(min(i, 0) + utf8.RuneCountInString(c.str()[:max(i, 0)]))
	}}
}

func replace(c *call) any {
	s, old, with, times := c.str(), c.text(0, ""), c.text(1, ""), -1
	if n := c.or(2, nil); n != nil {
		times = small(n)
	}
	c.r.made(len(s) + len(with)*int(min(uint(times), uint(strings.Count(s, old)))))
	return strings.Replace(s, old, with, times)
}

func (c *call) separator() string {
	check(c.args[0] != "", "ValueError: empty separator")
	return c.text(0, "")
}

// partition gives what is before the separator, it, and what is behind; all in one place where it is missing.
func (c *call) partition(index func(s, part string) int, place int) any {
	s, sep := c.str(), c.separator()
	i := index(s, sep)
	if i < 0 {
		parts := []any{"", "", ""}
		parts[place] = s
		return tuple(parts...)
	}
	return tuple(s[:i], sep, s[i+len(sep):])
}

func (c *call) split(right bool) any {
	s, n, sep := c.str(), c.int(1, -1), ""
	parts := strings.FieldsFuncSeq(s, isSpace)
	if c.or(0, nil) != nil {
		sep = c.separator()
		parts = strings.SplitSeq(s, sep)
	}
	var spans [][2]int
	at := 0
	for part := range parts {
		at += strings.Index(s[at:], part)
		spans = append(spans, [2]int{at, at + len(part)})
		at += len(part) + len(sep)
	}
	if last := len(spans) - 1; n >= 0 && n < last && right {
		spans = spans[last-n:]
		spans[0][0] = 0
	} else if n >= 0 && n < last {
		spans = spans[:n+1]
		spans[n][1] = len(s)
	}
	items := make([]any, len(spans))
	for i, span := range spans {
		items[i] = s[span[0]:span[1]]
	}
	return list(items)
}

var lineEnd = regexp.MustCompile(`\r\n|[\n\r\v\f\x1c-\x1e\x{85}\x{2028}\x{2029}]|$`)

func splitLines(s string, keep bool) []string {
	var lines []string
	for s != "" {
		end := lineEnd.FindStringIndex(s)
		if keep {
			end[0] = end[1]
		}
		lines = append(lines, s[:end[0]])
		s = s[end[1]:]
	}
	return lines
}

func joinTexts(c *call) any {
	items := c.r.iterate(c.args[0])
	for i, e := range items {
		check(typeName(e) == "str", "TypeError: sequence item %d: expected str instance, %s found", i, typeName(e))
	}
	return c.r.join(items, c.str())
}

// pad fills the text up to the width; left says how many of n characters go before it.
func (c *call) pad(left func(n, width int) int) string {
	s, width, fill := c.str(), c.int(0, 80), " "
	if len(c.args) > 1 { // the filter has no fillchar
		fill = c.text(1, fill)
	}
	n := max(0, width-utf8.RuneCountInString(s))
	c.r.made(n * len(fill))
	before := left(n, width)
	return strings.Repeat(fill, before) + s + strings.Repeat(fill, n-before)
}

func zeroFill(c *call) any {
	s, sign := c.str(), ""
	n := max(0, c.int(0, 0)-utf8.RuneCountInString(s))
	if s != "" && (s[0] == '-' || s[0] == '+') {
		s, sign = s[1:], s[:1]
	}
	c.r.made(n)
	return sign + strings.Repeat("0", n) + s
}
