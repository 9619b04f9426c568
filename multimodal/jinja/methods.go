package jinja

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Methods never change a value.
var methods = map[string]native{
	"dict items(dict)": func(_ *run, a []any) any { return &seq{kind: "dict_items", items: as[*dict](a[0]).items()} },
	"dict keys(dict)":  func(_ *run, a []any) any { return &seq{kind: "dict_keys", items: as[*dict](a[0]).keys} },
	"dict values(dict)": func(_ *run, a []any) any {
		values := []any{}
		for _, k := range as[*dict](a[0]).keys {
			values = append(values, as[*dict](a[0]).values[k])
		}
		return &seq{kind: "dict_values", items: values}
	}, "list|tuple index(list, value)": func(r *run, a []any) any {
		i := slices.IndexFunc(r.iterate(a[0]), func(e any) bool { return r.equal(e, a[1]) })
		check(i >= 0, "ValueError: the value is not in the list")
		return i
	},
	"str capitalize(s)":       onText(capital),
	"str count(s, sub)":       onTexts(strings.Count),
	"str encode(s, *)":        func(*run, []any) any { return fail("str.encode is not supported") },
	"str endswith(s, suffix)": edge(strings.HasSuffix),
	"str find(s, sub)":        find(strings.Index),
	"str format(s, *)":        func(r *run, a []any) any { return r.format(as[string](a[0]), r.iterate(a[1]), as[*dict](a[2])) },
	"str isalpha(s)":          onText(regexp.MustCompile(`^\pL+$`).MatchString),
	"str isdigit(s)":          onText(regexp.MustCompile(`^\p{Nd}+$`).MatchString),
	"str isspace(s)":          onText(func(s string) bool { return s != "" && strings.TrimFunc(s, isSpace) == "" }),
	"str join(s, iterable)": func(r *run, a []any) any {
		items := r.iterate(a[1])
		for _, e := range items {
			as[string](e)
		}
		return r.join(items, as[string](a[0]))
	},
	"str lower(s)":                         onText(strings.ToLower),
	"str lstrip(s, chars=none)":            trim(strings.TrimLeftFunc),
	"str removesuffix(s, suffix)":          onTexts(strings.TrimSuffix),
	"str replace(s, old, new, count=-1)":   replace,
	"str rfind(s, sub)":                    find(strings.LastIndex),
	"str rsplit(s, sep=none, maxsplit=-1)": split(true),
	"str rstrip(s, chars=none)":            trim(strings.TrimRightFunc),
	"str split(s, sep=none, maxsplit=-1)":  split(false),
	"str splitlines(s)": onText(func(s string) *seq {
		lines := lineEnd.Split(s, -1)
		if last := len(lines) - 1; lines[last] == "" {
			lines = lines[:last]
		}
		return list(lines)
	}),
	"str startswith(s, prefix)": edge(strings.HasPrefix),
	"str strip(s, chars=none)":  trim(strings.TrimFunc),
	"str swapcase(s)":           onText(func(s string) string { return strings.Map(otherCase, s) }),
	"str title(s)":              onText(func(s string) string { return letters.ReplaceAllStringFunc(s, capital) }),
	"str upper(s)":              onText(strings.ToUpper),
}

var letters = regexp.MustCompile(`\pL+`)

func onText[T any](f func(string) T) native {
	return func(r *run, a []any) any { return f(r.str(a[0])) }
}

func onTexts[T any](f func(a, b string) T) native {
	return func(r *run, a []any) any { return f(r.str(a[0]), as[string](a[1])) }
}

// otherCase is c's other case: of the two, c is one.
func otherCase(c rune) rune { return unicode.ToUpper(c) + unicode.ToLower(c) - c }

// capital is a text with a capital at the start only.
func capital(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return strings.ToTitle(s[:n]) + strings.ToLower(s[n:])
}

// edge says whether a text starts or ends with another or with one of a tuple.
func edge(has func(s, part string) bool) native {
	return func(r *run, a []any) any {
		options := []any{a[1]}
		if t, ok := a[1].(*seq); ok && t.kind == "tuple" {
			options = t.items
		}
		return slices.ContainsFunc(options, func(o any) bool { return has(as[string](a[0]), as[string](o)) })
	}
}

// find is where a text is, in characters; -1 where it is not.
func find(index func(s, part string) int) native {
	return onTexts(func(s, part string) int {
		i := index(s, part)
		return min(i, 0) + utf8.RuneCountInString(s[:max(i, 0)])
	})
}

func replace(r *run, a []any) any {
	s, old, with, times := r.str(a[0]), as[string](a[1]), as[string](a[2]), small(a[3])
	r.spend(len(s) + len(with)*int(min(uint(times), uint(strings.Count(s, old)))))
	return strings.Replace(s, old, with, times)
}

func split(right bool) native {
	return func(r *run, a []any) any {
		s, n := as[string](a[0]), small(a[2])
		if a[1] == nil {
			check(n < 0, "ValueError: split with a maximum needs a separator")
			return list(strings.FieldsFunc(s, isSpace))
		}
		sep := as[string](a[1])
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
			chars := as[string](a[1])
			r.spend(len(s) * (len(chars)/16 + 4))
			unwanted = func(c rune) bool { return strings.ContainsRune(chars, c) }
		}
		return cut(s, unwanted)
	}
}

var globals = map[string]native{
	"global dict(*)":                  func(r *run, a []any) any { return r.dict(a) },
	"global lipsum(*)":                func(*run, []any) any { return fail("lipsum is not supported") },
	"global namespace(*)":             func(r *run, a []any) any { return &namespace{*r.dict(a)} },
	"global raise_exception(message)": func(r *run, a []any) any { return fail("TemplateError: %s", r.str(a[0])) },
	"global range(start, stop=none, step=1)": func(_ *run, a []any) any {
		start, stop, step := 0, small(a[0]), small(a[2])
		if a[1] != nil {
			start, stop = stop, small(a[1])
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
	"global strftime_now(format)": func(r *run, a []any) any {
		return directive.ReplaceAllStringFunc(as[string](a[0]), func(d string) string {
			layout, ok := layouts[d[1:]]
			check(ok, "ValueError: strftime directive %s is not supported", d)
			return r.now().Format(layout)
		})
	},
}

// dict is what Python's dict() makes of a mapping or pairs, and keywords.
func (r *run) dict(a []any) *dict {
	d, from := &dict{}, r.iterate(a[0])
	check(len(from) <= 1, "TypeError: dict expected at most 1 argument, got %d", len(from))
	for _, v := range append(from, a[1]) {
		d.update(r, v)
	}
	return d
}

var (
	directive = regexp.MustCompile(`%-?.?`)
	layouts   = map[string]string{
		"Y": "2006", "m": "01", "d": "02", "H": "15", "I": "03", "M": "04", "S": "05", "p": "PM", "b": "Jan", "B": "January",
		"a": "Mon", "A": "Monday", "y": "06", "j": "002", "Z": "MST", "z": "-0700", "F": "2006-01-02", "T": "15:04:05",
		"R": "15:04", "-d": "2", "-m": "1", "-I": "3", "%": "%",
	}
)
