package jinja

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// Methods never change a value.
var methods = map[string]any{
	"LoopContext changed(loop, *)": func(r *run, self any, args []any, _ *dict) any {
		l := self.(*loop)
		before := l.last
		l.last = list(args)
		return before == nil || !r.equal(before, l.last)
	},
	"LoopContext cycle(loop, *)": func(self any, args []any, _ *dict) any {
		check(len(args) > 0, "TypeError: no items for cycling given")
		return args[self.(*loop).i%len(args)]
	},
	"dict|list copy(v)": func(v any) any { return v },
	"dict items(dict)":  func(r *run, d *dict) any { return &seq{kind: "dict_items", items: d.items(r)} },
	"dict keys(dict)":   func(d *dict) any { return &seq{kind: "dict_keys", items: d.keys} },
	"dict values(dict)": func(r *run, d *dict) any {
		return &seq{kind: "dict_values", items: r.each(d.items(r), func(kv any) any { return kv.(*seq).items[1] })}
	},
	"list|tuple count(list, value)": func(r *run, items []any, v any) any {
		return len(r.keep(items, func(e any) bool { return r.equal(e, v) }))
	},
	"list|tuple index(list, value)": func(r *run, items []any, v any) any {
		i := slices.IndexFunc(items, func(e any) bool { return r.equal(e, v) })
		check(i >= 0, "ValueError: the value is not in the list")
		return i
	},
	"filter|str capitalize(s)":   capital,
	"filter|str lower(s)":        lower,
	"filter|str upper(s)":        upper,
	"filter trim(s, chars=none)": trim(strings.TrimFunc),
	"str strip(s, chars=none)":   trim(strings.TrimFunc),
	"str casefold(s)":            func(s string) string { return cases.Fold().String(s) },
	"str count(s, sub, start=0, end=none)": func(r *run, s, sub string, start int, end any) int {
		part, _, ok := r.window(s, start, end)
		if !ok {
			return 0
		}
		return strings.Count(part, sub)
	},
	"str encode(s, *)":                           func(s string, args []any, named *dict) any { return unsupported(args, named) },
	"str endswith(s, suffix, start=0, end=none)": edge(strings.HasSuffix),
	"str expandtabs(s, tabsize=8)":               expandTabs,
	"str find(s, sub, start=0, end=none)":        find(strings.Index),
	"str format(s, *)":                           (*run).format,
	"str isalnum(s)":                             regexp.MustCompile(`^[\pL\pN]+$`).MatchString,
	"str isalpha(s)":                             regexp.MustCompile(`^\pL+$`).MatchString,
	"str isascii(s)":                             regexp.MustCompile(`^[\x00-\x7f]*$`).MatchString,
	"str isdecimal(s)":                           regexp.MustCompile(`^\p{Nd}+$`).MatchString,
	"str isdigit(s)":                             regexp.MustCompile(`^[\p{Nd}²³¹⁰⁴-⁹₀-₉]+$`).MatchString,
	"str isidentifier(s)":                        regexp.MustCompile(`^[\pL_][\pL\pM\pN_]*$`).MatchString,
	"str islower(s)":                             regexp.MustCompile(`^[^\p{Lu}\p{Lt}]*\p{Ll}[^\p{Lu}\p{Lt}]*$`).MatchString,
	"str isnumeric(s)":                           regexp.MustCompile(`^\pN+$`).MatchString,
	"str isprintable(s)":                         func(s string) bool { return strings.TrimFunc(s, unicode.IsPrint) == "" },
	"str isspace(s)":                             func(s string) bool { return s != "" && strings.TrimFunc(s, isSpace) == "" },
	"str istitle(s)":                             func(s string) bool { return cased.MatchString(s) && title(s) == s },
	"str isupper(s)":                             regexp.MustCompile(`^[^\p{Ll}\p{Lt}]*\p{Lu}[^\p{Ll}\p{Lt}]*$`).MatchString,
	"str join(s, iterable)": func(r *run, s string, items []any) any {
		for _, e := range items {
			as[string](e)
		}
		return r.join(items, s)
	},
	"str lstrip(s, chars=none)": trim(strings.TrimLeftFunc),
	"str replace(s, old, new, count=-1)": func(r *run, s, old, with string, times int) string {
		r.spend(len(s) + len(with)*int(min(uint(times), uint(strings.Count(s, old)))))
		return strings.Replace(s, old, with, times)
	},
	"str rfind(s, sub, start=0, end=none)": find(strings.LastIndex),
	"str rsplit(s, sep=none, maxsplit=-1)": split(true),
	"str rstrip(s, chars=none)":            trim(strings.TrimRightFunc),
	"str split(s, sep=none, maxsplit=-1)":  split(false),
	"str splitlines(s, keepends=false)": func(s string, keep bool) []string {
		lines := []string{}
		for s != "" {
			end := lineEnd.FindStringIndex(s)
			if end == nil {
				return append(lines, s)
			}
			line := s[:end[0]]
			if keep {
				line = s[:end[1]]
			}
			lines, s = append(lines, line), s[end[1]:]
		}
		return lines
	},
	"str startswith(s, prefix, start=0, end=none)": edge(strings.HasPrefix),
	"str swapcase(s)": func(s string) string {
		return oneCase.ReplaceAllStringFunc(s, func(same string) string {
			if lower(same) != same {
				return lower(same)
			}
			return upper(same)
		})
	},
	"str title(s)": title,
}

var (
	cased   = regexp.MustCompile(`[\p{Lu}\p{Ll}\p{Lt}ªºʰ-ʸˀˁˠ-ˤ]+`)
	oneCase = regexp.MustCompile(`\p{Lu}+|\p{Ll}+`)
)

func upper(s string) string { return cases.Upper(language.Und).String(s) }

func lower(s string) string { return cases.Lower(language.Und, cases.HandleFinalSigma(true)).String(s) }

// capital is a text with a capital at the start only.
func capital(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return cases.Title(language.Und).String(s[:n]) + lower(s)[len(lower(s[:n])):]
}

func title(s string) string { return cased.ReplaceAllStringFunc(s, capital) }

// window is s[start:end] and how many characters stand before it; ok is false where it starts behind the end of s.
func (r *run) window(s string, start int, end any) (part string, before int, ok bool) {
	if start == 0 && end == nil {
		return s, 0, true
	}
	n := utf8.RuneCountInString(s)
	if start < 0 {
		start = max(start+n, 0)
	}
	return r.slice(s, start, end, nil).(string), start, start <= n
}

// edge says whether a text starts or ends with another or with one of a tuple.
func edge(has func(s, part string) bool) any {
	return func(r *run, s string, parts any, start int, end any) bool {
		options := []any{parts}
		if t, ok := parts.(*seq); ok && t.kind == "tuple" {
			options = t.items
		}
		part, _, ok := r.window(s, start, end)
		return ok && slices.ContainsFunc(options, func(o any) bool { return has(part, as[string](o)) })
	}
}

// find is where a text is, in characters; -1 where it is not.
func find(index func(s, part string) int) any {
	return func(r *run, s, sub string, start int, end any) int {
		part, before, ok := r.window(s, start, end)
		if i := index(part, sub); ok && i >= 0 {
			return before + utf8.RuneCountInString(part[:i])
		}
		return -1
	}
}

func expandTabs(r *run, s string, size int) any {
	return r.capture(func() {
		column := 0
		for _, c := range s {
			text := string(c)
			if c == '\t' && size > 0 {
				text = r.spaces(size - column%size)
			} else if c == '\t' {
				text = ""
			}
			r.put(text)
			if column += utf8.RuneCountInString(text); c == '\n' || c == '\r' {
				column = 0
			}
		}
	})
}

var word = regexp.MustCompile(`[^\s\v\x1c-\x1f\x{85}\pZ]+`)

func split(right bool) any {
	return func(s string, separator any, n int) any {
		var parts [][]int // ranges of s, from the left
		if separator == nil {
			parts = word.FindAllStringIndex(s, -1)
		} else {
			sep := as[string](separator)
			check(sep != "", "ValueError: empty separator")
			from := 0
			for _, part := range strings.Split(s, sep) {
				parts = append(parts, []int{from, from + len(part)})
				from += len(part) + len(sep)
			}
		}
		if last := len(parts) - 1; n >= 0 && n <= last && right {
			parts[last-n][0] = 0
			parts = parts[last-n:]
		} else if n >= 0 && n <= last {
			parts = append(parts[:n], []int{parts[n][0], len(s)})
		}
		texts := make([]string, len(parts))
		for i, p := range parts {
			texts[i] = s[p[0]:p[1]]
		}
		return list(texts)
	}
}

func trim(cut func(string, func(rune) bool) string) any {
	return func(r *run, s string, unwanted any) string {
		if unwanted == nil {
			return cut(s, isSpace)
		}
		chars := as[string](unwanted)
		r.spend(len(s) * (len(chars)/16 + 4))
		return cut(s, func(c rune) bool { return strings.ContainsRune(chars, c) })
	}
}

var globals = map[string]any{
	"global cycler|joiner|lipsum(*)": unsupported,
	"global dict(*)":                 newDict,
	"global namespace(*)": func(r *run, args []any, named *dict) any {
		n := &namespace{}
		for _, kv := range newDict(r, args, named).items(r) {
			n.set(r, r.str(kv.(*seq).items[0]), kv.(*seq).items[1])
		}
		return n
	},
	"global raise_exception(message)": func(message string) any { return fail("TemplateError: %s", message) },
	"global range(start, stop=none, step=1)": func(from int, to any, step int) any {
		start, stop := 0, from
		if to != nil {
			start, stop = from, small(to)
		}
		check(step != 0, "ValueError: range() arg 3 must not be zero")
		items := []any{}
		for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
			check(len(items) < 100000, "OverflowError: range too big; a template may make at most 100000 elements")
			items = append(items, i)
		}
		repr := fmt.Sprintf("range(%d, %d, %d)", start, stop, step)
		return &seq{kind: "range", repr: strings.Replace(repr, ", 1)", ")", 1), items: items}
	},
	"global strftime_now(format)": func(r *run, format any) any { return r.strftime(as[string](format)) },
}

func unsupported([]any, *dict) any { return fail("this function is not supported") }

// newDict is what Python's dict() makes of a mapping or pairs, and keywords.
func newDict(r *run, args []any, named *dict) *dict {
	check(len(args) <= 1, "TypeError: dict expected at most 1 argument, got %d", len(args))
	d := &dict{}
	for _, v := range slices.Concat(args, []any{named}) {
		d.update(r, v)
	}
	return d
}

// set is the assignment of an attribute.
func (n *namespace) set(r *run, name string, v any) {
	check(!strings.HasPrefix(name, "_"), "SecurityError: a namespace cannot have the attribute %s", name)
	n.put(r, name, v)
}
