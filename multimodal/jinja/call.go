package jinja

import (
	"fmt"
	"strings"
	"time"
)

type (
	// fn is a filter, test, method or global. params names its parameters, those with "?" may be left out;
	// "*" takes whatever comes.
	fn struct {
		params string
		do     func(*call) any
	}
	call struct {
		r    *run
		self any   // what stands before the filter, the test or the method's dot
		args []any // by position in params; absent{} where not given
		pos  []any // as written
		kw   *dict // as written; nil: none
	}
	absent struct{}
	bound  struct { // a callable value
		name string
		fn   fn
		self any
	}
)

func (r *run) native(name string, f fn, self any, pos []any, kw *dict) any {
	c := &call{r: r, self: self, pos: pos, kw: kw}
	for _, v := range append([]any{self}, pos...) {
		if s, ok := v.(string); ok {
			r.step(1 + len(s)/32)
		}
	}
	if f.params != "*" {
		c.bind(name, strings.Fields(f.params))
	}
	v := f.do(c)
	r.made(size(v))
	return v
}

func (c *call) bind(name string, params []string) {
	if len(c.pos) > len(params) {
		fail("TypeError: %s() takes at most %d arguments (%d given)", name, len(params), len(c.pos))
	}
	used := 0
	for i, p := range params {
		p, optional := strings.CutSuffix(p, "?")
		var v any = absent{}
		if i < len(c.pos) {
			v = c.pos[i]
		} else if c.kw != nil {
			if w, ok := c.kw.get(c.r, p); ok {
				v = w
				used++
			}
		}
		if v == any(absent{}) && !optional {
			fail("TypeError: %s() missing argument '%s'", name, p)
		}
		c.args = append(c.args, v)
	}
	if c.kw != nil && used < len(c.kw.keys) {
		fail("TypeError: %s() got an unexpected or repeated keyword argument", name)
	}
}

// or is argument i, or standard where it was not given.
func (c *call) or(i int, standard any) any {
	if _, ok := c.args[i].(absent); ok {
		return standard
	}
	return c.args[i]
}

func (c *call) text(i int, standard any) string {
	s, ok := c.or(i, standard).(string)
	if !ok {
		fail("TypeError: argument %d must be str, not %s", i+1, typeName(c.or(i, standard)))
	}
	return s
}

func (c *call) int(i int, standard int64) int {
	n, ok := asInt(c.or(i, standard))
	if !ok || !n.IsInt64() {
		fail("TypeError: argument %d must be a small int, not %s", i+1, typeName(c.args[i]))
	}
	return int(min(max(n.Int64(), -1<<40), 1<<40)) // far beyond every budget, and products do not overflow
}

// call calls a value.
func (r *run) call(f any, pos []any, kw *dict) any {
	r.enter()
	defer r.leave()
	switch f := f.(type) {
	case *bound:
		return r.native(f.name, f.fn, f.self, pos, kw)
	case *macro:
		return f.call(r, pos, kw)
	case *loop:
		if f.again != nil && len(pos) == 1 {
			return f.again(r, pos[0], f.depth+1)
		}
		fail("TypeError: the loop must have the 'recursive' marker and be called with one argument")
	case undefined:
		fail("%s", string(f))
	}
	fail("TypeError: '%s' object is not callable", typeName(f))
	return nil
}

// attribute is v.name without the fallback to v[name].
func (r *run) attribute(v any, name string) (any, bool) {
	switch v := v.(type) {
	case undefined:
		fail("%s", string(v))
	case *namespace:
		if e, ok := v.get(r, name); ok {
			return e, true
		}
	case *loop:
		if e, ok := v.attribute(name); ok {
			return e, true
		}
	case *macro:
		if name == "name" {
			return v.name, true
		}
	}
	kind := typeName(v)
	if f, ok := methods[kind][name]; ok {
		return &bound{name, f, v}, true
	}
	if strings.Contains(mutators[kind], " "+name+" ") || strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") {
		return undefined(fmt.Sprintf("SecurityError: access to attribute '%s' of '%s' object is unsafe.", name, kind)), true
	}
	return nil, false
}

var mutators = map[string]string{
	"dict": " clear pop popitem setdefault update ",
	"list": " append clear extend insert pop remove reverse sort ",
}

// dot is v.name, index v[key].
func (r *run) dot(v any, name string) any {
	if e, ok := r.attribute(v, name); ok {
		return e
	}
	if e, ok := r.item(v, name); ok {
		return e
	}
	return undefined("UndefinedError: '" + describe(v) + "' has no attribute '" + name + "'")
}

func (r *run) index(v, key any) any {
	mustExist(v)
	if e, ok := r.item(v, key); ok {
		return e
	}
	if name, ok := key.(string); ok {
		return r.dot(v, name)
	}
	return undefined("UndefinedError: " + describe(v) + " has no element " + r.repr(key))
}

func describe(v any) string {
	if v == nil {
		return "None"
	}
	return typeName(v) + " object"
}

var globals = map[string]fn{
	"range":     {"start stop? step?", rangeOf},
	"dict":      {"*", func(c *call) any { return c.dict(newDict()) }},
	"namespace": {"*", func(c *call) any { return &namespace{*c.dict(newDict())} }},
	"joiner":    {"sep?", joiner},
	"lipsum":    {"*", func(*call) any { fail("lipsum is not supported"); return nil }},
	"cycler":    {"*", func(*call) any { fail("cycler is not supported"); return nil }},
	"raise_exception": {"message", func(c *call) any {
		fail("TemplateError: %s", c.r.str(c.args[0]))
		return nil
	}},
	"strftime_now": {"format", func(c *call) any { return strftime(c.r.now(), c.text(0, "")) }},
}

func rangeOf(c *call) any {
	start, stop, step := 0, c.int(0, 0), c.int(2, 1)
	repr := fmt.Sprintf("range(%d, %d)", start, stop)
	if c.or(1, nil) != nil {
		start, stop = stop, c.int(1, 0)
		repr = fmt.Sprintf("range(%d, %d)", start, stop)
	}
	if step == 0 {
		fail("ValueError: range() arg 3 must not be zero")
	} else if step != 1 {
		repr = fmt.Sprintf("range(%d, %d, %d)", start, stop, step)
	}
	list := []any{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(list) == 100000 {
			fail("OverflowError: range too big; a template may make at most 100000 elements")
		}
		list = append(list, int64(i))
	}
	return &iterator{kind: "range", repr: repr, items: list}
}

// dict adds what Python's dict() takes: a mapping or pairs, and keywords.
func (c *call) dict(d *dict) *dict {
	if len(c.pos) > 1 {
		fail("TypeError: dict expected at most 1 argument, got %d", len(c.pos))
	}
	for _, v := range c.pos {
		if from, ok := v.(*dict); ok {
			v = from.items()
		}
		for _, pair := range c.r.iterate(v) {
			kv := c.r.iterate(pair)
			if len(kv) != 2 {
				fail("ValueError: dictionary update sequence element has length %d; 2 is required", len(kv))
			}
			d.put(c.r, kv[0], kv[1])
		}
	}
	for k, v := range c.kw.all() {
		d.put(c.r, k, v)
	}
	return d
}

func joiner(c *call) any {
	sep, used := c.or(0, ", "), false
	return &bound{name: "joiner", fn: fn{"", func(*call) any {
		if !used {
			used = true
			return ""
		}
		return sep
	}}}
}

var layouts = map[string]string{
	"Y": "2006", "m": "01", "d": "02", "H": "15", "I": "03", "M": "04", "S": "05", "p": "PM", "b": "Jan", "h": "Jan", "B": "January",
	"a": "Mon", "A": "Monday", "y": "06", "j": "002", "Z": "MST", "z": "-0700", "e": "_2", "F": "2006-01-02", "T": "15:04:05",
	"D": "01/02/06", "R": "15:04", "-d": "2", "-m": "1", "-I": "3", "c": time.ANSIC, "x": "01/02/06", "X": "15:04:05",
}

func strftime(t time.Time, format string) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(format, "%")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		n := min(len(rest), 1)
		if strings.HasPrefix(rest, "-") {
			n = min(len(rest), 2)
		}
		directive := rest[:n]
		format = rest[n:]
		layout, known := layouts[directive]
		switch {
		case known:
			b.WriteString(t.Format(layout))
		case directive == "%":
			b.WriteByte('%')
		default:
			fail("ValueError: strftime directive %%%s is not supported", directive)
		}
	}
}
