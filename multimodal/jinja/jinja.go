// Package jinja renders chat templates: the subset of Jinja that the templates of published models use, with the settings
// of Hugging Face's apply_chat_template. It must not know messages, tokens or models.
//
// # Language
//
// Statements: if, for (filter, else), break, continue, set (also block and namespace form), macro, call, raw, generation
// (renders its body). Expressions: Jinja's, with Python's arithmetic, slices, "%" (s and d), str.format (plain fields) and
// methods. The tables filters, tests, globals and methods list what can be called; what Parse does not know is its error.
// trim_blocks and lstrip_blocks are on; nothing is HTML-escaped; values are immutable.
//
// Different from Jinja: there is no Markup; filters that return a generator run at once, though it can be read only once; case
// mapping is one letter to one; computed integers stay within 2**53, those beyond 64 bits can only be shown and tested for
// equality; 1, 1.0 and true are three keys of a dict.
//
// # Values
//
// Variables are nil, bool, int, int64, float64, string, []any, map[string]any (keys sorted, whole floats become integers) or
// json.RawMessage, whose objects keep the order of their keys: pass messages and tools in that form.
//
// # Limits
//
// A template is data from a model's author: rendering counts steps, nesting and bytes made, and fails beyond a fixed budget.
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
