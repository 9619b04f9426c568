package jinja

import (
	_ "embed"
	"reflect"
	"slices"
	"strings"
	"sync"
)

type (
	// function is a macro, or a filter, test, method or global, whose first argument is what stands before it.
	function struct {
		signature
		special map[string]bool // which of varargs, kwargs and caller it takes
		label   string
		self    []any  // the first arguments of a method
		around  *scope // of a macro's definition; nil for others
		do      expr   // sees the arguments as variables
	}
	signature struct {
		params   []string
		defaults []expr
	}
	// library has the built-ins by kind, "filter", "test", "global" or the type whose methods they are, a blank, and name.
	library map[string]*function
)

//go:embed builtins.jinja
var inJinja string

var builtins = sync.OnceValue(func() library {
	l := library{}
	for _, table := range []map[string]any{filtersAndTests, methodsAndGlobals} {
		for definition, do := range table {
			l.define("{% "+definition+" %}", do)
		}
	}
	for definition := range strings.Lines(inJinja) {
		l.define(strings.TrimSuffix(definition, "\n"), nil)
	}
	return l
})

// define adds a built-in: "{% ", kinds and names, each with "|" between them, its signature and, where there is no Go function
// do, "=" and its value or, behind the tag, the template whose text is its value.
func (l library) define(definition string, do any) {
	label, rest, _ := strings.Cut(definition[len("{% "):], "(")
	kinds, names, _ := strings.Cut(label, " ")
	p := &parser{library: l, position: position{source: "{%(" + rest}, special: map[string]bool{}}
	p.lex()
	p.take()
	missing := func(param string) any { return fail("TypeError: %s needs the argument '%s'", names, param) }
	f := &function{signature: p.signature(missing), label: names, special: p.special}
	if do != nil {
		f.do = native(do, f)
	} else if p.has("=") {
		f.do = p.expression()
	} else {
		p.take()
		body, _ := p.body()
		f.do = func(r *run) any {
			defer func(at int) { r.at = at }(r.at)
			return body(r)
		}
	}
	for _, kind := range strings.Split(kinds, "|") {
		for _, name := range strings.Split(names, "|") {
			l[kind+" "+name] = f
		}
	}
}

// native is a Go function as a built-in. The types of its parameters say what it takes: string text (the first one whatever
// has a text), int a size or position, bool the truth of a value, []any its elements, any the value itself. Two parameters
// more than f has are for all further arguments.
func native(do any, f *function) expr {
	call, t := reflect.ValueOf(do), reflect.TypeOf(do)
	first := 0 // of the arguments; before it, the run may stand
	if t.In(0) == reflect.TypeFor[*run]() {
		first = 1
	}
	names := append(slices.Clone(f.params), "varargs", "kwargs")[:t.NumIn()-first]
	f.special["varargs"], f.special["kwargs"] = len(names) > len(f.params), len(names) > len(f.params)
	return func(r *run) any {
		in := []reflect.Value{reflect.ValueOf(r)}[:first]
		safe := false // text that a filter takes marked, it gives back marked
		for i, name := range names {
			v := r.scope.vars[name]
			param := reflect.New(t.In(len(in))).Elem()
			switch param.Interface().(type) {
			case string:
				if i == 0 {
					safe, v = typeName(v) == "Markup", r.str(v)
				}
				v = as[string](v)
			case int:
				v = small(v)
			case bool:
				v = truth(v)
			case []any:
				v = r.iterate(v)
			case *dict:
				v = as[*dict](v)
			}
			if v != nil {
				param.Set(reflect.ValueOf(v))
			}
			in = append(in, param)
		}
		out := call.Call(in)[0].Interface()
		if s, ok := out.(string); ok && safe {
			return markup(s)
		}
		return out
	}
}

// call calls f.
func (r *run) call(f *function, pos []any, named *dict) any {
	defer r.deeper()()
	pos = slices.Concat(f.self, pos)
	n, others := min(len(pos), len(f.params)), &dict{}
	v := r.within(f.around, func(*run) any {
		vars, missing := r.scope.vars, undefined("UndefinedError: No caller defined")
		for name, v := range map[string]any{"varargs": tuple(pos[n:]...), "kwargs": others, "caller": missing} {
			if f.special[name] {
				vars[name] = v
			}
		}
		for i, v := range pos {
			s, _ := v.(string)
			if r.spend(perValue + len(s)); i < n {
				vars[f.params[i]] = v
			}
		}
		for _, k := range named.keys {
			if name := r.str(k); slices.Contains(f.params[n:], name) || name == "caller" && f.special[name] {
				vars[name] = named.values[k]
			} else {
				others.put(r, k, named.values[k])
			}
		}
		check((f.special["varargs"] || n == len(pos)) && (f.special["kwargs"] || len(others.keys) == 0),
			"TypeError: the arguments of %s are %v", f.label, f.params)
		for i, param := range f.params {
			if _, given := vars[param]; !given {
				vars[param] = f.defaults[i](r)
			}
		}
		return f.do(r)
	})
	r.spend(size(v))
	return v
}

// member is what the first of the two ways to look it up finds: attribute, item for v.key, the other way round for v[key].
func (r *run) member(v, key any, first, second func(r *run, v, key any) (any, bool)) any {
	mustExist(v)
	e, ok := first(r, v, key)
	if !ok {
		e, ok = second(r, v, key)
	}
	if !ok {
		return undefined("UndefinedError: '" + typeName(v) + " object' has no attribute or element " + r.str(key))
	}
	return e
}

func attribute(r *run, v, key any) (any, bool) {
	label, _ := key.(string)
	kind := typeName(v)
	switch v := v.(type) {
	case *namespace:
		return v.get(label)
	case *function:
		check(v.around == nil, "the attribute %s of a macro is not supported", label)
	case *loop:
		if get, ok := loopAttributes[label]; ok {
			return get(v), true
		}
	}
	f, ok := r.library[kind+" "+label]
	if !ok {
		// The methods of a dict that change it: templates see neither them nor keys of these names behind a dot.
		hidden := kind == "dict" && slices.Contains([]string{"clear", "pop", "popitem", "setdefault", "update"}, label)
		return undefined("SecurityError: access to attribute '" + label + "' is unsafe"), hidden
	}
	method := *f
	method.self = []any{v}
	return &method, true
}

var indexed = []string{"str", "list", "tuple", "range"}

func item(r *run, v, key any) (any, bool) {
	if d, ok := v.(*dict); ok && !slices.Contains([]string{"list", "tuple", "dict"}, typeName(key)) {
		return d.get(key)
	}
	i, ok := integer(key)
	if !ok || !slices.Contains(indexed, typeName(v)) {
		return nil, false
	}
	return at(r.iterate(v), i), true
}

// at is items[i], counted from the end where i is negative.
func at(items []any, i int) any {
	if i < 0 {
		i += len(items)
	}
	if i < 0 || i >= len(items) {
		return undefined("UndefinedError: there is no such item in the list")
	}
	return items[i]
}

// slice is v[from:to:by].
func (r *run) slice(v, from, to, by any) any {
	mustExist(v)
	kind := typeName(v)
	check(slices.Contains(indexed, kind), "TypeError: '%s' object cannot be sliced", kind)
	r.spend(size(v))
	items, part := r.iterate(v), []any{}
	step, first, last := 1, 0, len(items)
	if by != nil {
		step = small(by)
	}
	check(step != 0, "ValueError: slice step cannot be zero")
	if step < 0 {
		first, last = len(items)-1, -1
	}
	bound := func(v any, standard int) int {
		if v == nil {
			return standard
		}
		i := small(v)
		if i < 0 {
			i += len(items)
		}
		return min(max(i, min(first, last)), max(first, last))
	}
	for i, end := bound(from, first), bound(to, last); (end-i)*step > 0; i += step {
		part = append(part, items[i])
	}
	if kind == "str" {
		return r.join(part, "")
	}
	return &seq{kind: kind, items: part}
}

// join writes items one behind the other.
func (r *run) join(items []any, sep string) string {
	parts := make([]string, len(items))
	for i, e := range items {
		parts[i] = r.str(e)
		r.spend(len(parts[i]) + len(sep))
	}
	return strings.Join(parts, sep)
}

var loopAttributes = map[string]func(*loop) any{
	"depth":     func(l *loop) any { return l.depth },
	"depth0":    func(l *loop) any { return l.depth - 1 },
	"first":     func(l *loop) any { return l.i == 0 },
	"index":     func(l *loop) any { return l.i + 1 },
	"index0":    func(l *loop) any { return l.i },
	"last":      func(l *loop) any { return l.i == len(l.items)-1 },
	"length":    func(l *loop) any { return len(l.items) },
	"nextitem":  func(l *loop) any { return at(l.items[l.i+1:], 0) },
	"previtem":  func(l *loop) any { return at(l.items[:l.i], -1) },
	"revindex":  func(l *loop) any { return len(l.items) - l.i },
	"revindex0": func(l *loop) any { return len(l.items) - l.i - 1 },
}
