// Package jinja renders chat templates: the subset of Jinja that the templates of published models use, with the settings
// of Hugging Face's apply_chat_template. It must not know messages, tokens or models.
//
// # Language
//
// Statements: if, for (filter, else, recursive), break, continue, set (also block and namespace form), filter, macro,
// call, raw, generation (renders its body). Expressions: Jinja's, with Python's arithmetic, slices, methods, % (for %s, %d
// and %f) and str.format (for fields without a format but :.2f). What can be called is listed in builtins.jinja, where the
// language can say it, and in the tables filtersAndTests and methodsAndGlobals. What Parse does not know is its error; what
// turns up later (a method, an argument) is Render's.
// trim_blocks and lstrip_blocks are on; nothing is HTML-escaped; values are immutable.
//
// Different from Jinja: escaped or safe text can be shown, compared, added to and filtered, and no more; filters that return a
// generator run at once, though it can be read only once; integers have 64 bits, in arithmetic and with floats 53, and longer
// ones can be shown; there is no NaN; tuples are no keys of a dict; macros have no attributes.
//
// # Values
//
// Variables are what encoding/json can write; they arrive as that JSON, a whole float as an integer. In a json.RawMessage
// objects keep the order of their keys and floats are floats: pass messages and tools in that form.
package jinja

import (
	"fmt"
	"strings"
	"time"
)

// A template is data from a model's author, so what it can use is limited.
const (
	maxSource = 1 << 20  // bytes of template
	maxTokens = 1 << 16  // in its tags and between them
	maxDepth  = 400      // statements, brackets, operators, calls or parts of a value within each other
	maxWork   = 64 << 20 // bytes that a rendering reads or makes, kept or not
	maxReads  = 1 << 10  // times that more for each byte of its variables: templates look back from one message at all others
	maxMore   = 1 << 30  // but at most
	perValue  = 80       // bytes that a value which is read or kept counts for, beside its text
)

// Error is what Parse and Render return.
type Error struct {
	Line int    // of the tag, from 1
	Msg  string // starts with the name of Python's exception, where there is one
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Msg) }

// fail ends Parse or Render. It returns nothing, but lets a function return it.
func fail(format string, args ...any) any { panic(&Error{Msg: fmt.Sprintf(format, args...)}) }

func check(ok bool, format string, args ...any) {
	if !ok {
		fail(format, args...)
	}
}

// position is how far a Parse or a Render is.
type position struct {
	source string
	at     int // where in source the tag at work is
	depth  int
}

// recovered makes the error of what failed.
func (p *position) recovered(err *error) {
	switch e := recover().(type) {
	case nil:
	case *Error:
		e.Line = 1 + strings.Count(p.source[:p.at], "\n")
		*err = e
	default: // a bug here must not end the program
		*err = &Error{Msg: fmt.Sprintf("internal error: %v", e)}
	}
}

// deeper is called on the way into something nested; it returns what to call on the way out.
func (p *position) deeper() func() {
	before := p.depth
	p.depth++
	check(p.depth <= maxDepth, "RecursionError: more than %d levels within each other", maxDepth)
	return func() { p.depth = before }
}

// Template is a parsed template. Render may be called from several goroutines.
type Template struct {
	Now    func() time.Time // what strftime_now shows; time.Now unless set
	source string
	body   expr
}

// Parse compiles a template. The error is an *Error.
func Parse(src string) (t *Template, err error) {
	src = strings.TrimSuffix(newlines.Replace(src), "\n")
	p := &parser{library: builtins(), special: map[string]bool{}, position: position{source: src}}
	defer p.recovered(&err)
	check(len(src) <= maxSource, "template of %d bytes; at most %d are read", len(src), maxSource)
	p.lex()
	body, _ := p.body()
	return &Template{time.Now, p.source, body}, nil
}

// Render fills in the template. The error is an *Error: what the template raised, a wrong type, or an exceeded limit.
func (t *Template) Render(vars map[string]any) (out string, err error) {
	r := &run{position: position{source: t.source}, now: t.Now, library: builtins()}
	defer r.recovered(&err)
	r.scope = &scope{vars: map[string]any{}}
	for name, v := range vars {
		r.scope.vars[name] = r.convert(v)
	}
	return r.str(t.body(r)), nil
}

type (
	expr func(*run) any
	run  struct { // one rendering
		position
		scope *scope
		jump  string // the break or continue on its way to the loop
		now   func() time.Time
		work  int
		library
	}
	scope struct {
		vars map[string]any
		up   *scope
	}
)

// spend counts work of n bytes.
func (r *run) spend(n int) {
	r.work += n
	if r.work > maxWork || n < 0 {
		fail("the template reads or makes more bytes than a rendering may, by the size of its variables")
	}
}

// within evaluates body in a new scope above up.
func (r *run) within(up *scope, body expr) any {
	old := r.scope
	r.scope = &scope{up: up, vars: map[string]any{}}
	r.spend(2 * perValue)
	v := body(r)
	r.scope = old
	return v
}

func (r *run) variable(name string) any {
	r.spend(perValue)
	for s := r.scope; s != nil; s = s.up {
		if v, ok := s.vars[name]; ok {
			return v
		}
	}
	if f, ok := r.library["global "+name]; ok {
		return f
	}
	return undefined("UndefinedError: '" + name + "' is undefined")
}
