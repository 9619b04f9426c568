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
	"list":  {"index": {"value", elementIndex}},
	"tuple": {"index": {"value", elementIndex}},
	"dict": {
		"get": {"key [default]", func(c *call) any {
			if v, ok := c.self.(*dict).get(c.args[0]); ok {
				return v
			}
			return c.or(1, nil)
		}},
		"keys":   {"", func(c *call) any { return &seq{kind: "dict_keys", items: c.self.(*dict).keys} }},
		"values": {"", func(c *call) any { return &seq{kind: "dict_values", items: c.self.(*dict).values} }},
		"items":  {"", func(c *call) any { return &seq{kind: "dict_items", items: c.self.(*dict).items()} }},
	},
}

func elementIndex(c *call) any {
	i := slices.IndexFunc(c.items(), func(e any) bool { return c.r.equal(e, c.args[0]) })
	check(i >= 0, "ValueError: the value is not in the list")
	return int64(i)
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
	"splitlines":   {"", func(c *call) any { return texts(splitLines(c.str())) }},
	"partition":    {"sep", partition},
	"join":         {"iterable", joinTexts},
	"find":         find(strings.Index, false), "rfind": find(strings.LastIndex, false),
	"index": find(strings.Index, true), "rindex": find(strings.LastIndex, true),
	"count":   {"sub", func(c *call) any { return int64(strings.Count(c.str(), c.text(0, ""))) }},
	"center":  {"[width]", center},
	"zfill":   {"width", zeroFill},
	"format":  {"*", formatText},
	"isalpha": every(unicode.IsLetter), "isdigit": every(unicode.IsDigit), "isspace": every(isSpace),
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

// partition gives what is before the separator, it, and what is behind.
func partition(c *call) any {
	sep := c.separator()
	before, after, found := strings.Cut(c.str(), sep)
	if !found {
		sep = ""
	}
	return tuple(before, sep, after)
}

func (c *call) split(right bool) any {
	s, n := c.str(), c.int(1, -1)
	if c.or(0, nil) == nil {
		check(n < 0, "ValueError: split with a maximum needs a separator")
		return texts(strings.FieldsFunc(s, isSpace))
	}
	sep := c.separator()
	parts := strings.Split(s, sep)
	if last := len(parts) - 1; n >= 0 && n < last && right {
		parts = append([]string{strings.Join(parts[:last-n+1], sep)}, parts[last-n+1:]...)
	} else if n >= 0 && n < last {
		parts = append(parts[:n], strings.Join(parts[n:], sep))
	}
	return texts(parts)
}

var lineEnd = regexp.MustCompile(`\r\n|[\n\r\v\f\x1c-\x1e\x{85}\x{2028}\x{2029}]|$`)

func splitLines(s string) []string {
	var lines []string
	for s != "" {
		end := lineEnd.FindStringIndex(s)
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

func center(c *call) any {
	s, width := c.str(), c.int(0, 80)
	n := max(0, width-utf8.RuneCountInString(s))
	c.r.made(n)
	before := n/2 + n&width&1
	return strings.Repeat(" ", before) + s + strings.Repeat(" ", n-before)
}

func zeroFill(c *call) any {
	n := max(0, c.int(0, 0)-utf8.RuneCountInString(c.str()))
	check(!strings.ContainsAny(c.str()[:min(1, len(c.str()))], "+-"), "ValueError: zfill of a text with a sign is not supported")
	c.r.made(n)
	return strings.Repeat("0", n) + c.str()
}
