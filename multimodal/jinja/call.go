package jinja

import (
	_ "embed"
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
		defaults []expr // nil: none
		rest     bool   // takes more arguments: a list and a dict of them stand behind the others
	}
	absent struct{}
)

// library has the built-ins by kind, "filter", "test", "global" or the type whose methods they are, and name.
type library map[string]map[string]*function

//go:embed builtins.jinja
var inJinja string

var builtins = sync.OnceValue(func() library {
	l := library{}
	for _, natives := range []map[string]native{filters, tests, methods, globals} {
		for definition, do := range natives {
			l.define(definition, do)
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
	p := &parser{library: l, position: position{source: "{{(" + rest + "}}"}}
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
	for _, k := range named.keys {
		if i := slices.Index(f.params, r.str(k)); i >= n {
			args[i] = named.values[k]
		} else {
			others.put(r, k, named.values[k])
		}
	}
	ok := f.rest || n == len(pos) && len(others.keys) == 0
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
		if f.rest {
			args = append(args, list(pos[n:]), others)
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

// member is what the first of the two ways to look it up finds: attribute, item for v.key, the other way round for v[key].
func (r *run) member(v, key any, first, second func(r *run, v, key any) (any, bool)) any {
	mustExist(v)
	e, ok := first(r, v, key)
	if !ok {
		e, ok = second(r, v, key)
	}
	if !ok {
		return undefined("UndefinedError: '" + typeName(v) + " object' has no attribute or element " + r.repr(key))
	}
	return e
}

func attribute(r *run, v, key any) (any, bool) {
	label, _ := key.(string)
	switch v := v.(type) {
	case *namespace:
		return v.get(label)
	case *loop:
		if get, ok := loopAttributes[label]; ok {
			return get(v), true
		}
	}
	f, ok := r.library[typeName(v)][label]
	if !ok {
		return nil, false
	}
	method := *f
	method.self = []any{v}
	return &method, true
}

func item(r *run, v, key any) (any, bool) {
	if d, ok := v.(*dict); ok {
		return d.get(key)
	}
	i, ok := asInt(key)
	if !ok || !slices.Contains([]string{"str", "list", "tuple", "range"}, typeName(v)) {
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
	kind, items, step := typeName(v), r.iterate(v), 1
	check(kind == "str" || kind == "list" || kind == "tuple", "TypeError: '%s' object cannot be sliced", kind)
	if by != nil {
		step = small(by)
	}
	check(step != 0, "ValueError: slice step cannot be zero")
	low, high := 0, len(items) // what bounds are cut to
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
	part := []any{}
	for i := first; (last-i)*step > 0; i += step {
		part = append(part, items[i])
	}
	r.spend(perValue * len(part))
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
	"index":     func(l *loop) any { return l.i + 1 },
	"index0":    func(l *loop) any { return l.i },
	"revindex":  func(l *loop) any { return len(l.items) - l.i },
	"revindex0": func(l *loop) any { return len(l.items) - l.i - 1 },
	"first":     func(l *loop) any { return l.i == 0 },
	"last":      func(l *loop) any { return l.i == len(l.items)-1 },
	"length":    func(l *loop) any { return len(l.items) },
	"previtem":  func(l *loop) any { return at(l.items[:l.i], -1) },
	"nextitem":  func(l *loop) any { return at(l.items[l.i+1:], 0) },
}
