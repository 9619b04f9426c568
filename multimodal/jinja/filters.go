package jinja

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

var filtersAndTests = map[string]any{
	"filter batch(items, linecount)": func(items []any, n int) any {
		check(n > 0, "ValueError: batch of %d", n)
		batches := []any{}
		for part := range slices.Chunk(items, n) {
			batches = append(batches, list(part))
		}
		return generator(batches)
	},
	"filter count|length(items)": func(r *run, v any) any {
		check(typeName(v) != "generator", "TypeError: object of type 'generator' has no len()")
		if s, ok := plain(v).(string); ok {
			return utf8.RuneCountInString(s)
		}
		return len(r.iterate(v))
	},
	"filter e|escape(v)": (*run).escape,
	"filter float(v, default=0.0)": func(v, standard any) any {
		if f, ok := readFloat(v); ok {
			return f
		}
		return standard
	},
	"filter int(v, default=0)": func(v, standard any) any {
		f, ok := readFloat(v)
		if _, isText := v.(string); !ok || isText && !finite(f) {
			return standard
		}
		return whole(f)
	},
	"filter join(items, d='', attribute=none)": func(r *run, items []any, sep, path any) any {
		return r.join(r.each(items, r.getter(path, true)), r.str(sep))
	},
	"filter last(v)": func(r *run, v any) any {
		check(typeName(v) != "generator", "TypeError: 'generator' object is not reversible")
		return at(r.iterate(v), -1)
	},
	"filter list(items)":       func(items []any) any { return list(items) },
	"filter map(items)":        mapped,
	"filter reject(items)":     choose(false, false),
	"filter rejectattr(items)": choose(true, false),
	"filter pprint(v)": func(r *run, v any) any {
		s := r.write(writer{names: inPython, comma: ", ", colon: ": ", sort: true}, v)
		check(utf8.RuneCountInString(s) <= 80, "pprint of more than one line is not supported")
		return s
	},
	"filter reverse(v)": func(r *run, v any) any {
		items := slices.Clone(r.iterate(v))
		slices.Reverse(items)
		if typeName(v) == "str" {
			return r.join(items, "")
		}
		return generator(items)
	},
	// With method "common" halves go to the even digit, and a whole number stays one.
	"filter round(n, precision=0, method='common')": func(n any, precision int, method string) any {
		f, ok := asFloat(n)
		to, other := map[string]func(float64) float64{"ceil": math.Ceil, "floor": math.Floor}[method]
		check(ok && (other || method == "common") && precision >= 0 && precision <= 300, "TypeError or ValueError: cannot round %v", n)
		if other {
			return to(f*math.Pow10(precision)) / math.Pow10(precision)
		} else if i, isInt := integer(n); isInt {
			return i
		}
		f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64)
		return f
	},
	"filter safe(v)":           func(r *run, v any) any { return markup(r.str(v)) },
	"filter select(items)":     choose(false, true),
	"filter selectattr(items)": choose(true, true),
	"filter sort(items, reverse=false, case_sensitive=false, attribute=none)": func(
		r *run, items []any, reverse, sensitive bool, path any) any {
		return list(r.sorted(items, r.getter(path, sensitive), reverse))
	},
	"filter sum(items, attribute=none, start=0)": func(r *run, items []any, path, sum any) any {
		check(typeName(sum) != "str", "TypeError: sum() can't sum strings")
		for _, v := range r.each(items, r.getter(path, true)) {
			sum = r.operate("+", sum, v)
		}
		return sum
	},
	"filter title(s)": func(r *run, s string) string {
		return titleWord.ReplaceAllStringFunc(s, func(word string) string {
			_, n := utf8.DecodeRuneInString(word)
			return r.upper(word[:n]) + r.lower(word[n:])
		})
	},
	"filter tojson(v, ensure_ascii=false, indent=none, separators=none, sort_keys=false)": func(
		r *run, v any, ascii bool, indent, separators any, sort bool) any {
		w := writer{json: true, names: inJSON, comma: ", ", colon: ": ", ascii: ascii, sort: sort}
		if indent != nil {
			if _, ok := indent.(string); !ok {
				indent = r.operate("*", " ", indent)
			}
			w.newline, w.indent, w.comma = "\n", as[string](indent), ","
		}
		if separators != nil {
			pair := r.iterate(separators)
			check(len(pair) == 2, "ValueError: separators takes an item and a key separator")
			w.comma, w.colon = as[string](pair[0]), as[string](pair[1])
		}
		return r.write(w, v)
	},
	"filter unique(items, case_sensitive=false, attribute=none)": func(r *run, items []any, sensitive bool, path any) any {
		seen, get := &dict{}, r.getter(path, sensitive)
		return generator(r.keep(items, func(v any) bool {
			before := len(seen.keys)
			seen.put(r, get(v), nil)
			return len(seen.keys) > before
		}))
	},
	"filter wordcount(s)":   func(s string) int { return len(words.FindAllStringIndex(s, -1)) },
	"test callable(v)":      isOf("function", "LoopContext", "Undefined"),
	"test escaped(v)":       isOf("Markup"),
	"test float(v)":         isOf("float"),
	"test integer(v)":       isOf("int"),
	"test iterable(v)":      isOf(append(sequences, "generator", "dict_keys", "dict_values", "dict_items")...),
	"test mapping(v)":       isOf("dict"),
	"test sameas(v, other)": func(v, other any) bool { return v == other && typeName(v) != "Undefined" },
	"test sequence(v)":      isOf(sequences...),
	"test string(v)":        isOf("str", "Markup"),
	"test undefined(v)":     isOf("Undefined"),
}

var (
	words     = regexp.MustCompile(`[\pL\pN\pM_]+`)
	titleWord = regexp.MustCompile(`[^-({\[<\s\v\x1c-\x1f\x{85}\pZ]+`)
	escapes   = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")
)

// escape is for HTML what v shows.
func (r *run) escape(v any) markup {
	r.spend(size(v))
	if safe, ok := v.(markup); ok {
		return safe
	}
	return markup(escapes.Replace(r.str(v)))
}

// each is what f gives of the items.
func (r *run) each(items []any, f func(any) any) []any {
	values := make([]any, len(items))
	for i, v := range items {
		r.spend(perValue)
		values[i] = f(v)
	}
	return values
}

// getter reads an attribute path such as "function.name"; nil is the element itself. Unless sensitive, text counts in lower
// case. A standard value other than nil replaces what is missing.
func (r *run) getter(path any, sensitive bool, standard ...any) func(any) any {
	keys := strings.Split(r.str(path), ".")
	if path == nil {
		keys = nil
	}
	return func(v any) any {
		for _, part := range keys {
			key := any(part)
			if i, err := strconv.Atoi(part); err == nil {
				key = i
			}
			v = r.member(v, key, item, attribute)
			if _, ok := v.(undefined); ok && len(standard) > 0 && standard[0] != nil {
				v = standard[0]
			}
		}
		if s, ok := v.(string); ok && !sensitive {
			return r.lower(s)
		}
		return v
	}
}

// sorted sorts a copy by what get gives of the elements.
func (r *run) sorted(items []any, get func(any) any, reverse bool) []any {
	items = slices.Clone(items)
	slices.SortStableFunc(items, func(a, b any) int {
		if reverse {
			a, b = b, a
		}
		return r.compare("<", get(a), get(b))
	})
	return items
}

// applied is the filter or test that the first of args names, with the others as its arguments.
func (r *run) applied(what string, args []any, named *dict) func(any) any {
	label, _ := at(args, 0).(string)
	f, ok := r.library[what+" "+label]
	check(ok, "TemplateRuntimeError: no %s named '%s'", what, label)
	return func(v any) any { return r.call(f, slices.Concat([]any{v}, args[1:]), named) }
}

// elements is what map, select and their like iterate over: of none, false and 0, nothing.
func (r *run) elements(v any) []any {
	if !truth(v) {
		return nil
	}
	return r.iterate(v)
}

func mapped(r *run, v any, args []any, named *dict) any {
	if path, ok := named.get("attribute"); ok {
		standard, hasDefault := named.get("default")
		check(len(args) == 0 && (len(named.keys) == 1 || hasDefault && len(named.keys) == 2), "FilterArgumentError: arguments of map")
		return generator(r.each(r.elements(v), r.getter(path, true, standard)))
	}
	return generator(r.each(r.elements(v), r.applied("filter", args, named)))
}

// choose keeps the elements that pass, or fail, a test, of an attribute or of themselves; without a test, their truth counts.
func choose(byAttribute, want bool) any {
	return func(r *run, v any, args []any, named *dict) any {
		get := r.getter(nil, true)
		test := get
		if byAttribute {
			mustExist(at(args, 0))
			get, args = r.getter(args[0], true), args[1:]
		}
		if len(args) > 0 {
			test = r.applied("test", args, named)
		}
		return generator(r.keep(r.elements(v), func(e any) bool { return truth(test(get(e))) == want }))
	}
}

// readFloat is what Python's float() makes of a value, but no NaN.
func readFloat(v any) (f float64, ok bool) {
	mustExist(v)
	if s, isText := v.(string); isText {
		foreign := func(c rune) bool { return c > unicode.MaxASCII && unicode.IsDigit(c) }
		check(!strings.ContainsFunc(s, foreign), "ValueError: '%s' has other digits than 0 to 9", s)
		f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64)
		check(!math.IsNaN(f), "ValueError: NaN is not supported")
		return f, (err == nil || math.IsInf(f, 0)) && !strings.ContainsAny(s, "xX") // Go's own notation
	}
	return asFloat(v)
}

var sequences = []string{"str", "Markup", "list", "tuple", "dict", "range", "Undefined"}

func isOf(types ...string) any {
	return func(v any) bool { return slices.Contains(types, typeName(v)) }
}
