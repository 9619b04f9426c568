package jinja

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

type (
	// fn is a filter, test, method or global. params names its parameters, those in brackets may be left out: "old new [count]";
	// "*" takes whatever comes.
	fn struct {
		params string
		do     func(*call) any
	}
	call struct {
		r     *run
		self  any   // what stands before the filter, the test or the method's dot
		args  []any // by position in params; absent{} where not given
		pos   []any // as written
		named *dict // as written
	}
	absent struct{}
)

// bind gives every parameter its argument, absent{} where there is none; ok is false where an argument is left over.
func (r *run) bind(params []string, positional int, pos []any, named *dict) (args []any, ok bool) {
	args = slices.Repeat([]any{absent{}}, len(params))
	given := copy(args[:positional], pos)
	for i, k := range named.keys {
		at := slices.Index(params, r.str(k))
		if at < given {
			return args, false
		}
		args[at] = named.values[i]
	}
	return args, given == len(pos)
}

func (r *run) native(name string, f fn, self any, pos []any, named *dict) any {
	c := &call{r: r, self: self, pos: pos, named: named}
	for _, v := range append([]any{self}, pos...) {
		s, _ := v.(string)
		r.step(1 + len(s)/32)
	}
	if f.params != "*" {
		required, optional, _ := strings.Cut(f.params, "[")
		must, may := strings.Fields(required), strings.Fields(strings.TrimSuffix(optional, "]"))
		args, ok := r.bind(append(must, may...), len(must)+len(may), pos, named)
		check(ok && !slices.Contains(args[:len(must)], any(absent{})), "TypeError: the arguments of %s must be (%s)", name, f.params)
		c.args = args
	}
	v := f.do(c)
	r.made(size(v))
	return v
}

// or is argument i, or standard where it was not given.
func (c *call) or(i int, standard any) any {
	if c.args[i] == (absent{}) {
		return standard
	}
	return c.args[i]
}

func (c *call) text(i int, standard string) string {
	s, ok := c.or(i, standard).(string)
	check(ok, "TypeError: argument %d must be str, not %s", i+1, typeName(c.args[i]))
	return s
}

func (c *call) int(i int, standard int64) int { return small(c.or(i, standard)) }
func (c *call) flag(i int) bool               { return truth(c.or(i, false)) }
func (c *call) str() string                   { return c.r.str(c.self) }
func (c *call) items() []any                  { return c.r.iterate(c.self) }

func (r *run) bound(name string, f fn, self any) *function {
	repr := "<built-in method " + name + " of " + typeName(self) + " object at 0x0>"
	return &function{repr, func(pos []any, named *dict) any { return r.native(name, f, self, pos, named) }}
}

// call calls a value.
func (r *run) call(f any, pos []any, named *dict) any {
	defer r.deeper()()
	mustExist(f)
	do, ok := f.(*function)
	check(ok, "TypeError: '%s' object is not callable", typeName(f))
	return do.call(pos, named)
}

// dot is v.name, where attributes hide items.
func (r *run) dot(v any, name string) any {
	if e := r.attribute(v, name); !missing(e) {
		return e
	}
	return r.item(v, name)
}

// index is v[key], where items hide attributes.
func (r *run) index(v, key any) any {
	e := r.item(v, key)
	if name, ok := key.(string); ok && missing(e) {
		return r.attribute(v, name)
	}
	return e
}

func (r *run) attribute(v any, name string) any {
	mustExist(v)
	switch v := v.(type) {
	case *namespace:
		if e, ok := v.get(name); ok {
			return e
		}
	case *loop:
		if get, ok := loopAttributes[name]; ok {
			return get(v)
		}
	}
	if f, ok := methods[typeName(v)][name]; ok {
		return r.bound(name, f, v)
	}
	return undefined("UndefinedError: '" + typeName(v) + " object' has no attribute '" + name + "'")
}

func (r *run) item(v, key any) any {
	mustExist(v)
	kind := typeName(v)
	if d, ok := v.(*dict); ok {
		if e, ok := d.get(key); ok {
			return e
		}
	} else if i, ok := asInt(key); ok && slices.Contains([]string{"str", "list", "tuple", "range"}, kind) {
		return at(r.iterate(v), i)
	}
	return undefined("UndefinedError: '" + kind + " object' has no element " + r.repr(key))
}

// at is items[i], counted from the end where i is negative.
func at(items []any, i int64) any {
	n := int64(len(items))
	if i < 0 {
		i += n
	}
	if i < 0 || i >= n {
		return undefined(fmt.Sprintf("UndefinedError: there is no item %d of %d", i, n))
	}
	return items[i]
}

// slice is v[from:to:by].
func (r *run) slice(v, from, to, by any) any {
	kind := typeName(v)
	check(kind == "str" || kind == "list" || kind == "tuple", "TypeError: '%s' object cannot be sliced", kind)
	items := r.iterate(v)
	n, step := len(items), 1
	if by != nil {
		step = small(by)
	}
	check(step != 0, "ValueError: slice step cannot be zero")
	first, last, low, high := 0, n, 0, n // bounds are cut to low and high
	if step < 0 {
		first, last, low, high = n-1, -1, -1, n-1
	}
	bound := func(v any, place *int) {
		if i := 0; v != nil {
			if i = small(v); i < 0 {
				i += n
			}
			*place = min(max(i, low), high)
		}
	}
	bound(from, &first)
	bound(to, &last)
	part := []any{}
	for i := first; (last-i)*step > 0; i += step {
		part = append(part, items[i])
	}
	r.made(perElement * len(part))
	if kind == "str" {
		return r.join(part, "")
	}
	return &seq{kind: kind, items: part}
}

// join writes items one behind the other.
func (r *run) join(items []any, sep string) string {
	t := &text{r: r}
	for i, e := range items {
		if i > 0 {
			t.put(sep)
		}
		t.put(r.str(e))
	}
	return t.String()
}

var loopAttributes = map[string]func(*loop) any{
	"index":     func(l *loop) any { return int64(l.i + 1) },
	"index0":    func(l *loop) any { return int64(l.i) },
	"revindex":  func(l *loop) any { return int64(len(l.items) - l.i) },
	"revindex0": func(l *loop) any { return int64(len(l.items) - l.i - 1) },
	"first":     func(l *loop) any { return l.i == 0 },
	"last":      func(l *loop) any { return l.i == len(l.items)-1 },
	"length":    func(l *loop) any { return int64(len(l.items)) },
	"previtem":  func(l *loop) any { return at(l.items[:l.i], -1) },
	"nextitem":  func(l *loop) any { return at(l.items[l.i+1:], 0) },
}

var globals = map[string]fn{
	"range":           {"start [stop step]", rangeOf},
	"dict":            {"*", func(c *call) any { return c.dict() }},
	"namespace":       {"*", func(c *call) any { return &namespace{*c.dict()} }},
	"lipsum":          {"*", func(*call) any { return fail("lipsum is not supported") }},
	"strftime_now":    {"format", func(c *call) any { return strftime(c.r.now(), c.text(0, "")) }},
	"raise_exception": {"message", func(c *call) any { return fail("TemplateError: %s", c.r.str(c.args[0])) }},
}

func rangeOf(c *call) any {
	start, stop, step := 0, c.int(0, 0), c.int(2, 1)
	if c.or(1, nil) != nil {
		start, stop = stop, c.int(1, 0)
	}
	check(step != 0, "ValueError: range() arg 3 must not be zero")
	items := []any{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		check(len(items) < 100000, "OverflowError: range too big; a template may make at most 100000 elements")
		items = append(items, int64(i))
	}
	repr := fmt.Sprintf("range(%d, %d, %d)", start, stop, step)
	return &seq{kind: "range", repr: strings.Replace(repr, ", 1)", ")", 1), items: items}
}

// dict is what Python's dict() makes of a mapping or pairs, and keywords.
func (c *call) dict() *dict {
	check(len(c.pos) <= 1, "TypeError: dict expected at most 1 argument, got %d", len(c.pos))
	d := &dict{}
	for _, v := range append(c.pos, c.named) {
		d.update(c.r, v)
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

func strftime(t time.Time, format string) string {
	return directive.ReplaceAllStringFunc(format, func(d string) string {
		layout, ok := layouts[d[1:]]
		check(ok, "ValueError: strftime directive %s is not supported", d)
		return t.Format(layout)
	})
}
