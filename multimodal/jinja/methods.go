package jinja

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// methodsAndGlobals never change a value.
var methodsAndGlobals = map[string]any{
	"dict items(dict)": func(d *dict) any { return &seq{kind: "dict_items", items: d.items()} },
	"dict keys(dict)":  func(d *dict) any { return &seq{kind: "dict_keys", items: d.keys} },
	"dict values(dict)": func(r *run, d *dict) any {
		return &seq{kind: "dict_values", items: r.each(d.keys, func(k any) any { return d.values[key(k)] })}
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
	"str lstrip(s, chars=none)":  trim(strings.TrimLeftFunc),
	"str rstrip(s, chars=none)":  trim(strings.TrimRightFunc),
	"str title(s)":               func(r *run, s string) string { return cased.ReplaceAllStringFunc(s, r.capital) },
	"str startswith(s, prefix)":  edge(strings.HasPrefix),
	"str endswith(s, suffix)":    edge(strings.HasSuffix),
	"str count(s, sub)":          strings.Count,
	"str find(s, sub)": func(s, sub string) int { // in characters; -1 where it is not
		i := strings.Index(s, sub)
		return min(i, utf8.RuneCountInString(s[:max(i, 0)]))
	},
	"str format(s)":  (*run).format,
	"str isalnum(s)": regexp.MustCompile(`^[\pL\pN]+$`).MatchString,
	"str isalpha(s)": regexp.MustCompile(`^\pL+$`).MatchString,
	"str isdigit(s)": regexp.MustCompile(`^[\p{Nd}²³¹⁰⁴-⁹₀-₉]+$`).MatchString,
	"str islower(s)": regexp.MustCompile(`^[^\p{Lu}\p{Lt}]*\p{Ll}[^\p{Lu}\p{Lt}]*$`).MatchString,
	"str isupper(s)": regexp.MustCompile(`^[^\p{Ll}\p{Lt}]*\p{Lu}[^\p{Ll}\p{Lt}]*$`).MatchString,
	"str replace(s, old, new, count=-1)": func(r *run, s, old, with string, times int) string {
		r.spend(len(s) + len(with)*int(min(uint(times), uint(strings.Count(s, old)))))
		return strings.Replace(s, old, with, times)
	},
	"str split(s, sep=none, maxsplit=-1)": func(r *run, s string, separator any, n int) any {
		if n >= 0 {
			n++ // parts
		}
		if separator != nil {
			sep := as[string](separator)
			check(sep != "", "ValueError: empty separator")
			return list(strings.SplitN(s, sep, n))
		}
		r.spend(24 * len(s))
		parts := []string{}
		for s = strings.TrimLeftFunc(s, isSpace); s != ""; s = strings.TrimLeftFunc(s, isSpace) {
			end := strings.IndexFunc(s, isSpace)
			if n--; n == 0 || end < 0 {
				return list(append(parts, s))
			}
			parts, s = append(parts, s[:end]), s[end:]
		}
		return list(parts)
	},
	"str splitlines(s)": func(s string) any {
		lines := lineEnd.Split(s, -1)
		if last := len(lines) - 1; lines[last] == "" {
			lines = lines[:last]
		}
		return list(lines)
	},
	"global dict()": newDict,
	"global namespace()": func(r *run, args []any, named *dict) any {
		n := &namespace{*newDict(r, args, named)}
		for _, k := range n.keys {
			n.set(r, r.str(k), n.values[k])
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
		return &seq{kind: "range", items: items}
	},
	"global strftime_now(format)": (*run).strftime,
}

var (
	cased   = regexp.MustCompile(`[\p{Lu}\p{Ll}\p{Lt}ªºʰ-ʸˀˁˠ-ˤ]+`)
	lineEnd = regexp.MustCompile(`\r\n|[\n\r\v\f\x1c-\x1e\x{85}\x{2028}\x{2029}]`)
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
