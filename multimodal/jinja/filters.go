package jinja

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

var filters = map[string]native{
	"filter batch(items, linecount)": func(r *run, a []any) any {
		batches := []any{}
		n := small(a[1])
		check(n > 0, "ValueError: batch of %d", n)
		for part := range slices.Chunk(r.iterate(a[0]), n) {
			batches = append(batches, list(part))
		}
		return generator(batches)
	},
	"filter capitalize(s)": onText(capital),
	"filter count|length(items)": func(r *run, a []any) any {
		check(typeName(a[0]) != "generator", "TypeError: object of type 'generator' has no len()")
		if s, ok := a[0].(string); ok {
			return utf8.RuneCountInString(s)
		}
		return len(r.iterate(a[0]))
	},
	"filter e|escape(s)": onText(escapes.Replace),
	"filter float(v, default=0.0)": func(_ *run, a []any) any {
		if f, ok := readFloat(a[0]); ok {
			return f
		}
		return a[1]
	},
	"filter indent(s, width=4, first=false, blank=false)": func(r *run, a []any) any {
		width := r.spaces(a[1])
		return r.capture(func() {
			for i, line := range lineEnd.Split(r.str(a[0]), -1) {
				if i > 0 {
					r.put("\n")
				}
				if i == 0 && truth(a[2]) || i > 0 && (line != "" || truth(a[3])) {
					r.put(width)
				}
				r.put(line)
			}
		})
	},
	"filter int(v, default=0)": func(_ *run, a []any) any {
		if i, ok := asInt(a[0]); ok {
			return i
		} else if f, ok := readFloat(a[0]); ok && finite(f) {
			return exact(f)
		}
		return a[1]
	},
	"filter items(dict)":          func(_ *run, a []any) any { return generator(as[*dict](a[0]).items()) },
	"filter join(items, d='')":    func(r *run, a []any) any { return r.join(r.iterate(a[0]), r.str(a[1])) },
	"filter list(items)":          func(r *run, a []any) any { return list(slices.Clone(r.iterate(a[0]))) },
	"filter lower(s)":             onText(strings.ToLower),
	"filter map(items, *)":        mapped,
	"filter reject(items, *)":     choose(false, false),
	"filter rejectattr(items, *)": choose(true, false),
	"filter pprint(v)": func(r *run, a []any) any {
		s := r.write(writer{comma: ", ", colon: ": ", sort: true}, a[0])
		check(utf8.RuneCountInString(s) <= 80, "pprint of more than one line is not supported")
		return s
	},
	"filter replace(s, old, new, count=-1)": replace,
	"filter reverse(items)": func(r *run, a []any) any {
		items := slices.Clone(r.iterate(a[0]))
		slices.Reverse(items)
		if typeName(a[0]) == "str" {
			return r.join(items, "")
		}
		return generator(items)
	},
	// Halves go to the even digit, and a whole number stays one.
	"filter round(n, precision=0)": func(_ *run, a []any) any {
		precision := small(a[1])
		check(precision >= 0 && precision <= 300, "ValueError: cannot round to %d digits", precision)
		if f, ok := a[0].(float64); ok {
			f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64)
			return f
		}
		return small(a[0])
	},
	"filter select(items, *)":     choose(false, true),
	"filter selectattr(items, *)": choose(true, true),
	"filter sort(items, reverse=false, case_sensitive=false, attribute=none)": func(r *run, a []any) any {
		return list(r.sorted(r.iterate(a[0]), r.getter(a[3]), !truth(a[2]), truth(a[1])))
	},
	"filter sum(items, start=0)": func(r *run, a []any) any {
		for _, e := range r.iterate(a[0]) {
			a[1] = r.operate("+", a[1], e)
		}
		return a[1]
	},
	"filter title(s)": onText(func(s string) string { return titleWord.ReplaceAllStringFunc(s, capital) }),
	"filter tojson(v, ensure_ascii=false, indent=none, separators=none, sort_keys=false)": func(r *run, a []any) any {
		w := writer{json: true, comma: ", ", colon: ": ", ascii: truth(a[1]), sort: truth(a[4])}
		if a[2] != nil {
			w.newline, w.indent, w.comma = "\n", r.spaces(a[2]), ","
		}
		if a[3] != nil {
			pair := r.iterate(a[3])
			check(len(pair) == 2, "ValueError: separators takes an item and a key separator")
			w.comma, w.colon = as[string](pair[0]), as[string](pair[1])
		}
		return r.write(w, a[0])
	},
	"filter trim(s, chars=none)": trim(strings.TrimFunc),
	"filter upper(s)":            onText(strings.ToUpper),
	"filter wordcount(s)":        onText(func(s string) int { return len(words.FindAllStringIndex(s, -1)) }),
	"filter xmlattr(dict)": func(r *run, a []any) any {
		return r.capture(func() {
			for _, k := range as[*dict](a[0]).keys {
				label, v := r.str(k), as[*dict](a[0]).values[k]
				check(!strings.ContainsAny(label, " \t\n\f\r/>="), "ValueError: invalid character in attribute name: %s", label)
				if !missing(v) && v != nil {
					r.put(" ", escapes.Replace(label), `="`, escapes.Replace(r.str(v)), `"`)
				}
			}
		})
	},
}

var (
	words     = regexp.MustCompile(`[\pL\pN\pM_]+`)
	titleWord = regexp.MustCompile(`[^-({\[<\s\v\x1c-\x1f\x{85}\pZ]+`)
	lineEnd   = regexp.MustCompile(`\r\n|[\n\r\v\f\x1c-\x1e\x{85}\x{2028}\x{2029}]`)
	escapes   = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")
)

func itself(v any) any { return v }

// getter reads an attribute path such as "function.name"; nil is the element itself.
func (r *run) getter(path any) func(any) any {
	if path == nil {
		return itself
	}
	keys := strings.Split(r.str(path), ".")
	return func(v any) any {
		for _, part := range keys {
			key := any(part)
			if i, err := strconv.Atoi(part); err == nil {
				key = i
			}
			v = r.member(v, key, item, attribute)
		}
		return v
	}
}

// sorted sorts a copy by what get gives of the elements, text in lower case if folded.
func (r *run) sorted(items []any, get func(any) any, folded, reverse bool) []any {
	key := func(v any) any {
		v = get(v)
		if s, ok := v.(string); ok && folded {
			return strings.ToLower(s)
		}
		return v
	}
	items = slices.Clone(items)
	slices.SortStableFunc(items, func(a, b any) int {
		if reverse {
			a, b = b, a
		}
		return r.compare("<", key(a), key(b))
	})
	return items
}

// applied is the filter or test that the first of args names, with the others as its arguments.
func (r *run) applied(what string, args []any, named *dict) func(any) any {
	label, _ := at(args, 0).(string)
	f, ok := r.library[what][label]
	check(ok, "TemplateRuntimeError: no %s named '%s'", what, label)
	return func(v any) any { return r.call(f, slices.Concat([]any{v}, args[1:]), named) }
}

func mapped(r *run, a []any) any {
	items, args, named := slices.Clone(r.iterate(a[0])), r.iterate(a[1]), as[*dict](a[2])
	path, byAttribute := named.get("attribute")
	apply := r.getter(path)
	if !byAttribute {
		apply = r.applied("filter", args, named)
	}
	check(!byAttribute || len(args)+len(named.keys) == 1, "FilterArgumentError: map takes a filter or an attribute")
	for i, v := range items {
		items[i] = apply(v)
	}
	return generator(items)
}

// choose keeps the elements that pass, or fail, a test, of an attribute or of themselves; without a test, their truth counts.
func choose(byAttribute, want bool) native {
	return func(r *run, a []any) any {
		args, get, test := r.iterate(a[1]), itself, itself
		if byAttribute {
			mustExist(at(args, 0))
			get, args = r.getter(args[0]), args[1:]
		}
		if len(args) > 0 {
			test = r.applied("test", args, as[*dict](a[2]))
		}
		return generator(r.keep(r.iterate(a[0]), func(e any) bool { return truth(test(get(e))) == want }))
	}
}

// readFloat is what Python's float() makes of a value.
func readFloat(v any) (f float64, ok bool) {
	mustExist(v)
	if s, isText := v.(string); isText && !strings.ContainsAny(s, "xXpP_") { // Go's own notations
		f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64)
		return f, err == nil || math.IsInf(f, 0)
	}
	return asFloat(v)
}

// spaces is a text as it is or so many spaces.
func (r *run) spaces(width any) string {
	if s, ok := width.(string); ok {
		return s
	}
	return r.repeat(" ", small(width)).(string)
}

var sequences = []string{"str", "list", "tuple", "dict", "range", "Undefined"}

var tests = map[string]native{
	"test boolean(v)":       isOf("bool"),
	"test callable(v)":      isOf("function"),
	"test false(v)":         func(_ *run, a []any) any { return a[0] == false },
	"test float(v)":         isOf("float"),
	"test integer(v)":       isOf("int"),
	"test iterable(v)":      isOf(append(sequences, "generator", "dict_keys", "dict_values", "dict_items")...),
	"test mapping(v)":       isOf("dict"),
	"test none(v)":          isOf("NoneType"),
	"test number(v)":        isOf("int", "float", "bool"),
	"test sameas(v, other)": func(r *run, a []any) any { return typeName(a[0]) == typeName(a[1]) && r.equal(a[0], a[1]) },
	"test sequence(v)":      isOf(sequences...),
	"test string(v)":        isOf("str"),
	"test true(v)":          func(_ *run, a []any) any { return a[0] == true },
	"test undefined(v)":     isOf("Undefined"),
}

func isOf(types ...string) native {
	return func(_ *run, a []any) any { return slices.Contains(types, typeName(a[0])) }
}
