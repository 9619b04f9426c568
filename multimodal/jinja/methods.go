package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// methods by type. Those that change a value are in mutators.
var methods = map[string]map[string]fn{
	"str": strMethods,
	"dict": {
		"get": {"key default?", func(c *call) any {
			if v, ok := c.self.(*dict).get(c.r, c.args[0]); ok {
				return v
			}
			return c.or(1, nil)
		}},
		"keys":   {"", func(c *call) any { return &iterator{kind: "dict_keys", items: c.self.(*dict).keys} }},
		"values": {"", func(c *call) any { return &iterator{kind: "dict_values", items: c.self.(*dict).values} }},
		"items":  {"", func(c *call) any { return &iterator{kind: "dict_items", items: c.self.(*dict).items()} }},
		"copy":   {"", func(c *call) any { return c.self }},
	},
	"list":  {"index": {"value", elementIndex}, "count": {"value", elementCount}, "copy": {"", func(c *call) any { return c.self }}},
	"tuple": {"index": {"value", elementIndex}, "count": {"value", elementCount}},
}

func elementIndex(c *call) any {
	i := slices.IndexFunc(c.r.iterate(c.self), func(e any) bool { return c.r.equal(e, c.args[0]) })
	if i < 0 {
		fail("ValueError: %s is not in list", c.r.repr(c.args[0]))
	}
	return int64(i)
}

func elementCount(c *call) any {
	n := int64(0)
	for _, e := range c.r.iterate(c.self) {
		if c.r.equal(e, c.args[0]) {
			n++
		}
	}
	return n
}

var strMethods = map[string]fn{
	"upper":      {"", onText(strings.ToUpper)},
	"lower":      {"", onText(strings.ToLower)},
	"capitalize": {"", onText(capitalize)},
	"title":      {"", onText(title)},
	"swapcase":   {"", onText(swapCase)},
	"strip":      {"chars?", func(c *call) any { return c.trim(true, true) }},
	"lstrip":     {"chars?", func(c *call) any { return c.trim(true, false) }},
	"rstrip":     {"chars?", func(c *call) any { return c.trim(false, true) }},
	"startswith": {"prefix", func(c *call) any { return c.edge(strings.HasPrefix) }},
	"endswith":   {"suffix", func(c *call) any { return c.edge(strings.HasSuffix) }},
	"removeprefix": {"prefix", func(c *call) any {
		return strings.TrimPrefix(c.self.(string), c.text(0, ""))
	}},
	"removesuffix": {"suffix", func(c *call) any {
		return strings.TrimSuffix(c.self.(string), c.text(0, ""))
	}},
	"replace":    {"old new count?", func(c *call) any { return c.replace(c.self.(string)) }},
	"split":      {"sep? maxsplit?", func(c *call) any { return c.split(false) }},
	"rsplit":     {"sep? maxsplit?", func(c *call) any { return c.split(true) }},
	"splitlines": {"keepends?", func(c *call) any { return list(splitLines(c.self.(string), truth(c.or(0, false)))) }},
	"partition": {"sep", func(c *call) any {
		sep := c.separator()
		before, after, found := strings.Cut(c.self.(string), sep)
		if !found {
			sep = ""
		}
		return tuple{before, sep, after}
	}},
	"rpartition": {"sep", func(c *call) any {
		s, sep := c.self.(string), c.separator()
		i := strings.LastIndex(s, sep)
		if i < 0 {
			return tuple{"", "", s}
		}
		return tuple{s[:i], sep, s[i+len(sep):]}
	}},
	"join": {"iterable", func(c *call) any {
		t := &text{r: c.r}
		for i, e := range c.r.iterate(c.args[0]) {
			s, ok := e.(string)
			if !ok {
				fail("TypeError: sequence item %d: expected str instance, %s found", i, typeName(e))
			} else if i > 0 {
				t.put(c.self.(string))
			}
			t.put(s)
		}
		return t.String()
	}},
	"find":   {"sub", func(c *call) any { return c.find(strings.Index) }},
	"rfind":  {"sub", func(c *call) any { return c.find(strings.LastIndex) }},
	"index":  {"sub", func(c *call) any { return found(c.find(strings.Index)) }},
	"rindex": {"sub", func(c *call) any { return found(c.find(strings.LastIndex)) }},
	"count":  {"sub", func(c *call) any { return int64(strings.Count(c.self.(string), c.text(0, ""))) }},
	"center": {"width fillchar?", func(c *call) any { return c.pad(func(n, width int) int { return n/2 + n&width&1 }) }},
	"ljust":  {"width fillchar?", func(c *call) any { return c.pad(func(n, _ int) int { return 0 }) }},
	"rjust":  {"width fillchar?", func(c *call) any { return c.pad(func(n, _ int) int { return n }) }},
	"zfill": {"width", func(c *call) any {
		s, sign := c.self.(string), ""
		n := c.int(0, 0) - utf8.RuneCountInString(s)
		if s != "" && (s[0] == '-' || s[0] == '+') {
			s, sign = s[1:], s[:1]
		}
		c.r.made(max(n, 0))
		return sign + strings.Repeat("0", max(n, 0)) + s
	}},
	"format":  {"*", func(c *call) any { return c.formatted(c.self.(string)) }},
	"isalpha": {"", every(unicode.IsLetter)},
	"isdigit": {"", every(unicode.IsDigit)},
	"isalnum": {"", every(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) })},
	"isspace": {"", every(isSpace)},
	"islower": {"", func(c *call) any { return cased(c.self.(string), unicode.IsLower, unicode.IsUpper) }},
	"isupper": {"", func(c *call) any { return cased(c.self.(string), unicode.IsUpper, unicode.IsLower) }},
	"encode":  {"*", func(*call) any { fail("str.encode is not supported"); return nil }},
}

func onText(f func(string) string) func(*call) any {
	return func(c *call) any { return f(c.self.(string)) }
}

func every(is func(rune) bool) func(*call) any {
	return func(c *call) any {
		s := c.self.(string)
		return s != "" && strings.IndexFunc(s, func(r rune) bool { return !is(r) }) < 0
	}
}

func cased(s string, wanted, other func(rune) bool) bool {
	return strings.IndexFunc(s, wanted) >= 0 && strings.IndexFunc(s, other) < 0
}

func capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return strings.ToTitle(s[:n]) + strings.ToLower(s[n:])
}

func title(s string) string {
	inWord := false
	return strings.Map(func(c rune) rune {
		was := inWord
		if inWord = unicode.IsLetter(c); was {
			return unicode.ToLower(c)
		}
		return unicode.ToTitle(c)
	}, s)
}

func swapCase(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsUpper(c) {
			return unicode.ToLower(c)
		}
		return unicode.ToUpper(c)
	}, s)
}

func (c *call) trim(left, right bool) string {
	s := c.r.str(c.self)
	out := isSpace
	if c.or(0, nil) != nil {
		chars := c.text(0, "")
		out = func(r rune) bool { return strings.ContainsRune(chars, r) }
		c.r.step(len(s) * min(len(chars), 64) / 32)
	}
	if left {
		s = strings.TrimLeftFunc(s, out)
	}
	if right {
		s = strings.TrimRightFunc(s, out)
	}
	return s
}

func (c *call) edge(has func(s, part string) bool) bool {
	s := c.self.(string)
	if options, ok := c.args[0].(tuple); ok {
		return slices.ContainsFunc(options, func(o any) bool { return has(s, c.r.str(o)) })
	}
	return has(s, c.text(0, ""))
}

func (c *call) find(index func(s, part string) int) int64 {
	s := c.self.(string)
	i := index(s, c.text(0, ""))
	if i < 0 {
		return -1
	}
	return int64(utf8.RuneCountInString(s[:i]))
}

func found(i int64) int64 {
	if i < 0 {
		fail("ValueError: substring not found")
	}
	return i
}

func (c *call) replace(s string) string {
	old, with, n := c.text(0, ""), c.text(1, ""), -1
	if c.or(2, nil) != nil {
		n = c.int(2, -1)
	}
	times := strings.Count(s, old)
	if n >= 0 {
		times = min(n, times)
	}
	c.r.made(len(s) + times*len(with))
	return strings.Replace(s, old, with, n)
}

func (c *call) separator() string {
	if c.or(0, nil) == "" {
		fail("ValueError: empty separator")
	}
	return c.text(0, "")
}

func (c *call) split(right bool) any {
	s, n := c.self.(string), c.int(1, -1)
	var parts []string
	if c.or(0, nil) != nil {
		sep := c.separator()
		if !right && n >= 0 {
			return list(strings.SplitN(s, sep, n+1))
		}
		if parts = strings.Split(s, sep); right && n >= 0 && len(parts) > n+1 {
			head := len(parts) - n
			parts = append([]string{strings.Join(parts[:head], sep)}, parts[head:]...)
		}
		return list(parts)
	}
	edge := strings.TrimLeftFunc
	if right {
		edge = strings.TrimRightFunc
	}
	for s = edge(s, isSpace); s != ""; s = edge(s, isSpace) {
		word, rest := s, ""
		if i := strings.IndexFunc(s, isSpace); !right && i >= 0 && n != 0 {
			word, rest = s[:i], s[i:]
		} else if i := strings.LastIndexFunc(s, isSpace); right && i >= 0 && n != 0 {
			_, size := utf8.DecodeRuneInString(s[i:])
			word, rest = s[i+size:], s[:i]
		}
		parts, s, n = append(parts, word), rest, n-1
	}
	if right {
		slices.Reverse(parts)
	}
	return list(parts)
}

func list(parts []string) []any {
	list := make([]any, len(parts))
	for i, p := range parts {
		list[i] = p
	}
	return list
}

func splitLines(s string, keep bool) []string {
	var lines []string
	for s != "" {
		i := strings.IndexAny(s, "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029")
		if i < 0 {
			return append(lines, s)
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		if line := s[:i]; keep {
			lines = append(lines, s[:i+n])
		} else {
			lines = append(lines, line)
		}
		s = s[i+n:]
	}
	return lines
}

// pad fills self up to the width; left says how many of n characters go before it.
func (c *call) pad(left func(n, width int) int) string {
	s, width, fill := c.r.str(c.self), c.int(0, 80), " "
	if len(c.args) > 1 {
		fill = c.text(1, " ")
	}
	n := max(0, width-utf8.RuneCountInString(s))
	c.r.made(n * len(fill))
	before := left(n, width)
	return strings.Repeat(fill, before) + s + strings.Repeat(fill, n-before)
}
