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
	"dict items(dict)": func(r *run, d *dict) any { return &seq{kind: "dict_items", items: d.items(r)} },
	"dict keys(dict)":  func(d *dict) any { return &seq{kind: "dict_keys", items: d.keys} },
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
	"filter|str capitalize(s)":   (*run).capital,
	"filter|str lower(s)":        (*run).lower,
	"filter|str upper(s)":        (*run).upper,
	"filter trim(s, chars=none)": trim(strings.TrimFunc),
	"str strip(s, chars=none)":   trim(strings.TrimFunc),
	"str casefold(s)":            func(s string) string { return cases.Fold().String(s) },
	"str count(s, sub)":          strings.Count,
	"str endswith(s, suffix)":    edge(strings.HasSuffix),
	"str find(s, sub)":           find(strings.Index),
	"str encode(s, *)":           func(s string, args []any, named *dict) any { return unsupported(args, named) },
	"str format(s, *)":           (*run).format,
	"str isalnum(s)":             regexp.MustCompile(`^[\pL\pN]+$`).MatchString,
	"str isalpha(s)":             regexp.MustCompile(`^\pL+$`).MatchString,
	"str isascii(s)":             regexp.MustCompile(`^[\x00-\x7f]*$`).MatchString,
	"str isdecimal(s)":           regexp.MustCompile(`^\p{Nd}+$`).MatchString,
	"str isdigit(s)":             regexp.MustCompile(`^[\p{Nd}²³¹⁰⁴-⁹₀-₉]+$`).MatchString,
	"str isidentifier(s)":        regexp.MustCompile(`^[\pL_][\pL\pM\pN_]*$`).MatchString,
	"str islower(s)":             regexp.MustCompile(`^[^\p{Lu}\p{Lt}]*\p{Ll}[^\p{Lu}\p{Lt}]*$`).MatchString,
	"str isnumeric(s)":           regexp.MustCompile(`^\pN+$`).MatchString,
	"str isprintable(s)":         func(s string) bool { return strings.TrimFunc(s, unicode.IsPrint) == "" },
	"str istitle(s)":             func(r *run, s string) bool { return cased.MatchString(s) && r.title(s) == s },
	"str isupper(s)":             regexp.MustCompile(`^[^\p{Ll}\p{Lt}]*\p{Lu}[^\p{Ll}\p{Lt}]*$`).MatchString,
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
	"str rfind(s, sub)":                    find(strings.LastIndex),
	"str rsplit(s, sep=none, maxsplit=-1)": split(true),
	"str rstrip(s, chars=none)":            trim(strings.TrimRightFunc),
	"str split(s, sep=none, maxsplit=-1)":  split(false),
	"str splitlines(s)": func(s string) []string {
		lines := lineEnd.Split(s, -1)
		if last := len(lines) - 1; lines[last] == "" {
			lines = lines[:last]
		}
		return lines
	},
	"str startswith(s, prefix)": edge(strings.HasPrefix),
	"str swapcase(s)": func(r *run, s string) string {
		return oneCase.ReplaceAllStringFunc(s, func(same string) string {
			if low := r.lower(same); low != same {
				return low
			}
			return r.upper(same)
		})
	},
	"str title(s)": (*run).title,
}

var (
	cased   = regexp.MustCompile(`[\p{Lu}\p{Ll}\p{Lt}ªºʰ-ʸˀˁˠ-ˤ]+`)
	oneCase = regexp.MustCompile(`\p{Lu}+|\p{Ll}+`)
)

func (r *run) upper(s string) string {
	r.spend(8 * len(s))
	return cases.Upper(language.Und).String(s)
}

func (r *run) lower(s string) string {
	r.spend(8 * len(s))
	return cases.Lower(language.Und, cases.HandleFinalSigma(true)).String(s)
}

// capital is a text with a capital at the start only.
func (r *run) capital(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return cases.Title(language.Und).String(s[:n]) + r.lower(s)[len(r.lower(s[:n])):]
}

func (r *run) title(s string) string { return cased.ReplaceAllStringFunc(s, r.capital) }

// edge says whether a text starts or ends with another or with one of a tuple.
func edge(has func(s, part string) bool) any {
	return func(s string, parts any) bool {
		options := []any{parts}
		if t, ok := parts.(*seq); ok && t.kind == "tuple" {
			options = t.items
		}
		return slices.ContainsFunc(options, func(o any) bool { return has(s, as[string](o)) })
	}
}

// find is where a text is, in characters; -1 where it is not.
func find(index func(s, part string) int) any {
	return func(s, part string) int {
		i := index(s, part)
		return min(i, 0) + utf8.RuneCountInString(s[:max(i, 0)])
	}
}

func split(right bool) any {
	return func(r *run, s string, separator any, n int) any {
		var parts [][2]int // ranges of s
		from := 0
		if separator == nil {
			r.spend(24 * len(s))
			for to, c := range s + " " {
				if isSpace(c) && from < to {
					parts = append(parts, [2]int{from, to})
				}
				if isSpace(c) {
					from = to + utf8.RuneLen(c)
				}
			}
		} else {
			sep := as[string](separator)
			check(sep != "", "ValueError: empty separator")
			for part := range strings.SplitSeq(s, sep) {
				parts = append(parts, [2]int{from, from + len(part)})
				from += len(part) + len(sep)
			}
		}
		if last := len(parts) - 1; n >= 0 && n <= last && right {
			parts[last-n][0] = 0
			parts = parts[last-n:]
		} else if n >= 0 && n <= last {
			parts[n][1] = len(s)
			parts = parts[:n+1]
		}
		texts := make([]string, len(parts))
		for i, p := range parts {
			texts[i] = s[p[0]:p[1]]
		}
		return texts
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
	"global strftime_now(format)": (*run).strftime,
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
