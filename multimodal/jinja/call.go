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
		label  string
		self   []any  // the first arguments of a method
		around *scope // where arguments become variables; nil: nowhere
		do     native
	}
	native    func(r *run, args []any) any // args are in the order of the signature
	signature struct {
		params   []string
		defaults []expr          // nil: none
		special  map[string]bool // which of varargs, kwargs and caller it takes; a built-in, as its last arguments
	}
	absent struct{}
)

// library has the built-ins by kind, "filter", "test", "global" or the type whose methods they are, and name.
type library map[string]map[string]*function

//go:embed builtins.jinja
var inJinja string

var builtins = sync.OnceValue(func() library {
	l := library{}
	for _, table := range []map[string]any{filters, tests, methods, globals} {
		for definition, do := range table {
			l.define(definition, adapt(do))
		}
	}
	for definition := range strings.Lines(inJinja) {
		l.define(definition, nil)
	}
	return l
})

// define adds a built-in: kinds and names, each with "|" between them, its signature and, where there is no do, its value.
func (l library) define(definition string, do native) {
	label, rest, _ := strings.Cut(definition, "(")
	kinds, names, _ := strings.Cut(label, " ")
	p := &parser{library: l, position: position{source: "{{(" + rest + "}}"}, special: map[string]bool{}}
	p.lex()
	p.take()
	f := &function{signature: p.signature(), label: names, do: do}
	if p.has("=") {
		value := p.expression()
		f.around, f.do = &scope{}, func(r *run, _ []any) any { return value(r) }
	}
	for _, kind := range strings.Split(kinds, "|") {
		if l[kind] == nil {
			l[kind] = map[string]*function{}
		}
		for _, name := range strings.Split(names, "|") {
			l[kind][name] = f
		}
	}
}

// adapt makes a built-in of a Go function, whose parameters' types say what it takes: string text (the first one whatever
// has a text), int a size or position, bool the truth of a value, []any its elements, any the value itself.
func adapt(f any) native {
	do, t, first := reflect.ValueOf(f), reflect.TypeOf(f), 0
	if t.In(0) == reflect.TypeFor[*run]() {
		first = 1
	}
	return func(r *run, args []any) any {
		in := make([]reflect.Value, t.NumIn())
		in[0] = reflect.ValueOf(r)
		safe := false // text that a filter takes marked, it gives back marked
		for i, v := range args {
			param := reflect.New(t.In(first + i))
			switch param.Interface().(type) {
			case *string:
				if i == 0 {
					safe, v = typeName(v) == "Markup", r.str(v)
				}
				v = as[string](v)
			case *int:
				v = small(v)
			case *bool:
				v = truth(v)
			case *[]any:
				v = r.iterate(v)
			case **dict:
				v = as[*dict](v)
			}
			if v != nil {
				param.Elem().Set(reflect.ValueOf(v))
			}
			in[first+i] = param.Elem()
		}
		switch out := do.Call(in)[0].Interface().(type) {
		case []string:
			return list(out)
		case []any:
			return list(out)
		case string:
			if safe {
				return markup(out)
			}
			return out
		default:
			return out
		}
	}
}

// call calls f.
func (r *run) call(f *function, pos []any, named *dict) (v any) {
	defer r.deeper()()
	pos = slices.Concat(f.self, pos)
	for _, v := range pos {
		s, _ := v.(string)
		r.spend(perValue + len(s))
	}
	args, others := slices.Repeat([]any{absent{}}, len(f.params)), &dict{}
	n := copy(args, pos)
	special := map[string]any{"varargs": tuple(pos[n:]...), "kwargs": others, "caller": undefined("UndefinedError: No caller defined")}
	for _, k := range named.keys {
		name, v := r.str(k), named.values[k]
		if i := slices.Index(f.params, name); i >= n {
			args[i] = v
		} else if name == "caller" && f.special[name] {
			special[name] = v
		} else {
			others.put(r, k, v)
		}
	}
	ok := (f.special["varargs"] || n == len(pos)) && (f.special["kwargs"] || len(others.keys) == 0)
	do := func(*run) {
		for i, param := range f.params {
			if args[i] == (absent{}) && f.defaults[i] != nil {
				args[i] = f.defaults[i](r)
			}
			ok = ok && args[i] != absent{}
			if f.around != nil {
				r.scope.vars[param] = args[i]
			}
		}
		check(ok, "TypeError: the arguments of %s are %v", f.label, f.params)
		for name := range f.special {
			if f.around != nil {
				r.scope.vars[name] = special[name]
			} else if name == "varargs" {
				args = append(args, special["varargs"], others)
			}
		}
		v = f.do(r, args)
	}
	if f.around != nil {
		r.within(f.around, do)
	} else {
		do(r)
	}
	r.spend(size(v))
	return v
}

// callee is what v calls: itself, or a recursive loop around it.
func (r *run) callee(v any) *function {
	if l, ok := v.(*loop); ok {
		check(l.again != nil, "TypeError: the loop must have the 'recursive' marker to be called recursively")
		return l.again
	}
	return as[*function](v)
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

// unsafe are the methods of a dict that change it; templates see neither them nor keys of these names behind a dot.
var unsafe = []string{"clear", "pop", "popitem", "setdefault", "update"}

func attribute(r *run, v, key any) (any, bool) {
	label, _ := key.(string)
	kind := typeName(v)
	switch v := v.(type) {
	case *namespace:
		return v.get(r, label)
	case *seq:
		if i := slices.Index([]string{"grouper", "list"}, label); v.group && i >= 0 {
			return v.items[i], true
		}
	case *loop:
		if get, ok := loopAttributes[label]; ok {
			return get(v), true
		}
	}
	f, ok := r.library[kind][label]
	if !ok {
		hidden := kind == "dict" && slices.Contains(unsafe, label)
		return undefined("SecurityError: access to attribute '" + label + "' is unsafe"), hidden
	}
	method := *f
	method.self = []any{v}
	return &method, true
}

func item(r *run, v, key any) (any, bool) {
	kind, of := typeName(v), typeName(key)
	if d, ok := v.(*dict); ok && of != "list" && of != "dict" {
		return d.get(r, key)
	}
	i := integer(key)
	if i == nil || i.BitLen() > 36 || !slices.Contains([]string{"str", "list", "tuple", "range"}, kind) {
		return nil, false
	}
	if s, ok := v.(string); ok {
		r.spend(4 * len(s))
		if c, ok := at([]rune(s), small(key)).(rune); ok {
			return string(c), true
		}
	}
	return at(r.iterate(v), small(key)), true
}

// at is items[i], counted from the end where i is negative.
func at[T any](items []T, i int) any {
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
	r.spend(size(v))
	if s, ok := v.(string); ok {
		r.spend(8 * len(s))
		return string(cut([]rune(s), from, to, by))
	}
	kind := typeName(v)
	check(slices.Contains([]string{"list", "tuple", "range"}, kind), "TypeError: '%s' object cannot be sliced", kind)
	return &seq{kind: kind, items: cut(v.(*seq).items, from, to, by)}
}

func cut[T any](items []T, from, to, by any) []T {
	step, low, high := 1, 0, len(items) // bounds are cut to low and high
	if by != nil {
		step = small(by)
	}
	check(step != 0, "ValueError: slice step cannot be zero")
	if step < 0 {
		low, high = -1, len(items)-1
	}
	bound := func(v any, standard int) int {
		if v == nil {
			return standard
		}
		i := small(v)
		if i < 0 {
			i += len(items)
		}
		return min(max(i, low), high)
	}
	first, last := bound(from, low), bound(to, high)
	if step < 0 {
		first, last = bound(from, high), bound(to, low)
	}
	part := []T{}
	for i := first; (last-i)*step > 0; i += step {
		part = append(part, items[i])
	}
	return part
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
