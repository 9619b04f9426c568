package jinja

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Methods never change a value.
var dictMethods = map[string]native{
	"get(dict, key, default=none)": func(_ *run, a []any) any {
		v, ok := mapping(a[0]).get(a[1])
		return either(ok, v, a[2])
	},
	"items(dict)": func(_ *run, a []any) any {
		return &seq{kind: "dict_items", items: mapping(a[0]).items(mapping(a[0]).keys)}
	},
	"keys(dict)": func(_ *run, a []any) any { return &seq{kind: "dict_keys", items: mapping(a[0]).keys} },
	"values(dict)": func(_ *run, a []any) any {
		values := []any{}
		for _, k := range mapping(a[0]).keys {
			values = append(values, mapping(a[0]).values[k])
		}
		return &seq{kind: "dict_values", items: values}
	},
}

var listMethods = map[string]native{
	"index(list, value)": func(r *run, a []any) any {
		i := slices.IndexFunc(r.iterate(a[0]), func(e any) bool { return r.equal(e, a[1]) })
		check(i >= 0, "ValueError: the value is not in the list")
		return i
	},
}

var textMethods = map[string]native{
	"capitalize(s)":       onText(capital),
	"center(s, width=80)": center,
	"count(s, sub)":       onTexts(strings.Count),
	"encode(s, *)":        func(*run, []any) any { return fail("str.encode is not supported") },
	"endswith(s, suffix)": edge(strings.HasSuffix),
	"find(s, sub)":        find(strings.Index, false),
	"format(s, *)":        func(r *run, a []any) any { return r.format(text(a[0]), r.iterate(a[1]), mapping(a[2])) },
	"index(s, sub)":       find(strings.Index, true),
	"isalpha(s)":          every(unicode.IsLetter),
	"isdigit(s)":          every(unicode.IsDigit),
	"isspace(s)":          every(isSpace),
	"join(s, iterable)": func(r *run, a []any) any {
		items := r.iterate(a[1])
		for _, e := range items {
			text(e)
		}
		return r.join(items, text(a[0]))
	},
	"lower(s)":              onText(strings.ToLower),
	"lstrip(s, chars=none)": trim(strings.TrimLeftFunc),
	"partition(s, sep)": onTexts(func(s, sep string) *seq {
		check(sep != "", "ValueError: empty separator")
		before, after, found := strings.Cut(s, sep)
		if !found {
			sep = ""
		}
		return tuple(before, sep, after)
	}),
	"removeprefix(s, prefix)":          onTexts(strings.TrimPrefix),
	"removesuffix(s, suffix)":          onTexts(strings.TrimSuffix),
	"replace(s, old, new, count=none)": replace,
	"rfind(s, sub)":                    find(strings.LastIndex, false),
	"rindex(s, sub)":                   find(strings.LastIndex, true),
	"rsplit(s, sep=none, maxsplit=-1)": split(true),
	"rstrip(s, chars=none)":            trim(strings.TrimRightFunc),
	"split(s, sep=none, maxsplit=-1)":  split(false),
	"splitlines(s)": onText(func(s string) *seq {
		lines := lineEnd.Split(s, -1)
		if last := len(lines) - 1; lines[last] == "" {
			lines = lines[:last]
		}
		return list(lines)
	}),
	"startswith(s, prefix)": edge(strings.HasPrefix),
	"strip(s, chars=none)":  trim(strings.TrimFunc),
	"swapcase(s)": onText(func(s string) string {
		return strings.Map(func(c rune) rune {
			if unicode.IsUpper(c) {
				return unicode.ToLower(c)
			}
			return unicode.ToUpper(c)
		}, s)
	}),
	"title(s)": onText(func(s string) string { return letters.ReplaceAllStringFunc(s, capital) }),
	"upper(s)": onText(strings.ToUpper),
	"zfill(s, width)": func(r *run, a []any) any {
		s := text(a[0])
		check(!strings.HasPrefix(s, "+") && !strings.HasPrefix(s, "-"), "ValueError: zfill of a text with a sign is not supported")
		return r.repeat("0", small(a[1])-utf8.RuneCountInString(s)).(string) + s
	},
}

var letters = regexp.MustCompile(`\pL+`)

func onText[T any](f func(string) T) native {
	return func(r *run, a []any) any { return f(r.str(a[0])) }
}

func onTexts[T any](f func(a, b string) T) native {
	return func(r *run, a []any) any { return f(r.str(a[0]), text(a[1])) }
}

func every(is func(rune) bool) native {
	return onText(func(s string) bool {
		return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !is(c) })
	})
}

// capital is a text with a capital at the start only.
func capital(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return strings.ToTitle(s[:n]) + strings.ToLower(s[n:])
}

func center(r *run, a []any) any {
	s, width := r.str(a[0]), small(a[1])
	n := max(0, width-utf8.RuneCountInString(s))
	before := n/2 + n&width&1
	return r.spaces(before) + s + r.spaces(n-before)
}

// edge says whether a text starts or ends with another or with one of a tuple.
func edge(has func(s, part string) bool) native {
	return func(r *run, a []any) any {
		options := []any{a[1]}
		if t, ok := a[1].(*seq); ok && t.kind == "tuple" {
			options = t.items
		}
		return slices.ContainsFunc(options, func(o any) bool { return has(text(a[0]), text(o)) })
	}
}

// find is where a text is, in characters; -1 where it is not, which may be an error.
func find(index func(s, part string) int, must bool) native {
	return onTexts(func(s, part string) int {
		i := index(s, part)
		check(i >= 0 || !must, "ValueError: substring not found")
		return min(i, 0) + utf8.RuneCountInString(s[:max(i, 0)])
	})
}

func replace(r *run, a []any) any {
	s, old, with, times := r.str(a[0]), text(a[1]), text(a[2]), -1
	if a[3] != nil {
		times = small(a[3])
	}
	r.spend(len(s) + len(with)*int(min(uint(times), uint(strings.Count(s, old)))))
	return strings.Replace(s, old, with, times)
}

func split(right bool) native {
	return func(r *run, a []any) any {
		s, n := text(a[0]), small(a[2])
		if a[1] == nil {
			check(n < 0, "ValueError: split with a maximum needs a separator")
			return list(strings.FieldsFunc(s, isSpace))
		}
		sep := text(a[1])
		check(sep != "", "ValueError: empty separator")
		parts := strings.Split(s, sep)
		if last := len(parts) - 1; n >= 0 && n < last && right {
			parts = append([]string{strings.Join(parts[:last-n+1], sep)}, parts[last-n+1:]...)
		} else if n >= 0 && n < last {
			parts = append(parts[:n], strings.Join(parts[n:], sep))
		}
		return list(parts)
	}
}

func trim(cut func(string, func(rune) bool) string) native {
	return func(r *run, a []any) any {
		s, unwanted := r.str(a[0]), isSpace
		if a[1] != nil {
			chars := text(a[1])
			r.spend(len(s) * (len(chars)/16 + 4))
			unwanted = func(c rune) bool { return strings.ContainsRune(chars, c) }
		}
		return cut(s, unwanted)
	}
}
