// Package jinja renders chat templates: the subset of Jinja that the templates of published models use, with the settings
// of Hugging Face's apply_chat_template. It must not know messages, tokens or models.
//
// # Language
//
// Statements: if, for (filter, else, recursive, loop), break, continue, set (also block and namespace form), macro, call,
// raw, generation (renders its body). Expressions: all of Jinja's, with Python's arithmetic, slices, "%", str.format (of
// plain fields) and the methods of str, dict, list and tuple. The tables filters, tests, globals and methods list what can be called.
// trim_blocks and lstrip_blocks are on; nothing is HTML-escaped; tojson keeps key order, writes non-ASCII text as it is and
// takes ensure_ascii, indent, separators and sort_keys; raise_exception and strftime_now are there; values are immutable and
// Python's internals are out of reach. Parts of other files (include, import, extends, block) do not exist.
// What Parse does not know, an unknown filter or test included, is its error.
//
// Different from Jinja: there is no Markup (safe returns plain text, escape escapes twice); filters that return a generator
// run at once, though the result can be read only once, as in Python; case mapping is one letter to one ("ß".upper()).
//
// # Values
//
// Variables are nil, bool, int, int64, float64, string, []any, map[string]any (keys in sorted order) or json.RawMessage.
// Lists and maps become values by way of JSON: a float in them that is whole becomes an integer.
// JSON objects keep the order in which their keys were written, which templates show: pass messages and tools as json.RawMessage.
//
// # Limits
//
// A template is data from a model's author. Rendering counts steps, nesting and bytes made, and fails beyond a fixed budget,
// so that one that loops or grows without end is an error and takes neither a second nor the memory.
package jinja

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Budgets of one Parse or Render.
const (
	maxSource  = 1 << 20   // bytes of template
	maxNesting = 100       // statements or brackets within each other, when parsed
	maxChain   = 1000      // operators in one tag
	maxSteps   = 4_000_000 // values read, elements visited, 32 bytes scanned
	maxBytes   = 64 << 20  // bytes made, live or not
	maxDepth   = 250       // calls within each other; depth of a value that is written or compared
)

// Error is what Parse and Render return. Line counts from 1 and is the line of the tag.
type Error struct {
	Line int
	Msg  string // starts with the name of Python's exception, where there is one
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Msg) }

// failure is what fail panics with; Parse and Render turn it into an *Error.
type failure string

// fail returns nothing, but lets a function return it.
func fail(format string, args ...any) any { panic(failure(fmt.Sprintf(format, args...))) }

func check(ok bool, format string, args ...any) {
	if !ok {
		fail(format, args...)
	}
}

func recoverError(err *error, line *int) {
	switch v := recover().(type) {
	case nil:
	case failure:
		*err = &Error{*line, string(v)}
	default:
		panic(v)
	}
}

// Template is a parsed template. Render may be called from several goroutines.
type Template struct {
	Now  func() time.Time // what strftime_now shows; time.Now unless set
	body stmt
}

// Parse compiles a template. The error is an *Error.
func Parse(src string) (t *Template, err error) {
	p := &parser{line: 1}
	defer recoverError(&err, &p.line)
	check(len(src) <= maxSource, "template of %d bytes; at most %d are read", len(src), maxSource)
	p.tokens = lex(src, &p.line)
	body, _ := p.body()
	return &Template{Now: time.Now, body: body}, nil
}

// Render fills in the template. The error is an *Error: what the template raised, a wrong type, or an exceeded budget.
func (t *Template) Render(vars map[string]any) (out string, err error) {
	r := &run{now: t.Now, filters: filters, tests: tests, line: 1, scope: &scope{}}
	defer recoverError(&err, &r.line)
	return r.capture(nil, func() {
		for name, v := range vars {
			r.scope.set(name, r.convert(v))
		}
		t.body(r)
	}), nil
}

type (
	expr func(*run) any
	stmt func(*run)
	run  struct { // one rendering
		out                       *text
		scope                     *scope
		jump                      string // the break or continue on its way to the loop
		now                       func() time.Time
		filters, tests            map[string]fn
		line, steps, bytes, depth int
	}
	scope struct { // few variables each: a search beats a map
		names  []string
		values []any
		up     *scope
	}
	text struct { // a string under construction that is charged to the run
		strings.Builder
		r *run
	}
)

func (t *text) put(parts ...string) {
	for _, s := range parts {
		t.r.made(len(s))
		t.WriteString(s)
	}
}

func (r *run) step(n int) {
	if r.steps += n; r.steps > maxSteps || n < 0 {
		fail("the template takes more than %d steps", maxSteps)
	}
}

func (r *run) made(n int) {
	if r.bytes += n; r.bytes > maxBytes || n < 0 {
		fail("the template makes more than %d bytes", maxBytes)
	}
	r.step(n / 256)
}

// perElement is a list element's share of bytes made: the interface, a boxed value, room for growth.
const perElement = 48

// size is what a new value is charged for.
func size(v any) int {
	if s, ok := v.(*seq); ok {
		return perElement * len(s.items)
	}
	s, _ := v.(string)
	return len(s)
}

// deeper is called on the way into a nested value or call; it returns what to call on the way out.
func (r *run) deeper() func() {
	if r.depth++; r.depth > maxDepth {
		fail("RecursionError: more than %d levels of calls or nested values", maxDepth)
	}
	return func() { r.depth-- }
}

// within runs f in a new scope above up and goes back.
func (r *run) within(up *scope, f func()) {
	old := r.scope
	r.step(2)
	r.scope = &scope{up: up}
	f()
	r.scope = old
}

// capture returns what f, in a new scope above up, writes.
func (r *run) capture(up *scope, f func()) string {
	old, t := r.out, &text{r: r}
	r.out = t
	r.within(up, f)
	r.out = old
	return t.String()
}

func (s *scope) set(name string, v any) {
	if i := slices.Index(s.names, name); i >= 0 {
		s.values[i] = v
		return
	}
	s.names, s.values = append(s.names, name), append(s.values, v)
}

func (r *run) name(name string) any {
	r.step(1)
	for s := r.scope; s != nil; s = s.up {
		if i := slices.Index(s.names, name); i >= 0 {
			return s.values[i]
		}
	}
	if f, ok := globals[name]; ok {
		return r.bound(name, f, nil)
	}
	return undefined("UndefinedError: '" + name + "' is undefined")
}
