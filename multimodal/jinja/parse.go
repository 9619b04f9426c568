package jinja

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// parser turns tokens into closures. Rules follow the grammar of Jinja 3.1; each method parses one rule.
type parser struct {
	tokens  []token
	at      int
	line    int // of the tag that is being parsed
	nesting int // rules within each other
	chain   int // operators in this tag
	loops   int // for statements around here within the macro
}

func (t token) String() string {
	if t.kind == endOfFile {
		return "end of template"
	}
	return "'" + t.text + "'"
}

func (p *parser) take() token {
	t := p.tokens[p.at]
	if t.kind != endOfFile {
		p.at++
	}
	p.line = t.line
	return t
}

// is says whether the next token is one of these operators or words.
func (p *parser) is(texts ...string) bool {
	t := p.tokens[p.at]
	return (t.kind == sign || t.kind == name) && slices.Contains(texts, t.text)
}

// accept takes the next token if it is one of these; "" if not.
func (p *parser) accept(texts ...string) string {
	if !p.is(texts...) {
		return ""
	}
	return p.take().text
}

func (p *parser) has(text string) bool { return p.accept(text) != "" }

func (p *parser) expect(text string) {
	t := p.tokens[p.at]
	check(p.has(text), "TemplateSyntaxError: expected token '%s', got %v", text, t)
}

func (p *parser) name() string {
	t := p.take()
	check(t.kind == name, "TemplateSyntaxError: expected token 'name', got %v", t)
	return t.text
}

func (p *parser) deeper() func() {
	p.nesting++
	check(p.nesting <= maxNesting, "RecursionError: more than %d levels of brackets or statements", maxNesting)
	return func() { p.nesting-- }
}

// link counts an operator; each is one more closure around the last.
func (p *parser) link() {
	p.chain++
	check(p.chain <= maxChain, "RecursionError: more than %d operators in one tag", maxChain)
}

// expression parses a value with inline if.
func (p *parser) expression() expr {
	defer p.deeper()()
	e := p.simple()
	for p.has("if") {
		p.link()
		then, cond := e, p.simple()
		other := constant(undefined("UndefinedError: the inline if-expression evaluated to false and no else section was defined"))
		if p.has("else") {
			other = p.expression()
		}
		e = func(r *run) any {
			if truth(cond(r)) {
				return then(r)
			}
			return other(r)
		}
	}
	return e
}

// sequence parses one value or, with commas, a tuple.
func (p *parser) sequence(item func() expr) expr {
	var parts []expr
	isTuple := p.is(")")
	for more := !isTuple; more; more = more && !p.is(")", "=", "%}", "}}") {
		parts = append(parts, item())
		more = p.has(",")
		isTuple = isTuple || more
	}
	if !isTuple {
		return parts[0]
	}
	return func(r *run) any { return tuple(eval(r, parts)...) }
}

func eval(r *run, parts []expr) []any {
	values := make([]any, len(parts))
	for i, e := range parts {
		values[i] = e(r)
	}
	r.made(perElement * len(parts))
	return values
}

// levels are the binary operators, the weakest first, and the place of the unary not among them.
var levels = [][]string{
	{"or"}, {"and"}, {"not"}, {"==", "!=", "<", "<=", ">", ">=", "in", "not in"}, {"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"},
}

func (p *parser) simple() expr { return p.binary(0) }

func (p *parser) binary(level int) expr {
	switch {
	case level == len(levels):
		return p.unary(true)
	case level == 2 && p.has("not"):
		defer p.deeper()()
		e := p.binary(level)
		return func(r *run) any { return !truth(e(r)) }
	case level == 2:
		return p.binary(level + 1)
	}
	left := p.binary(level + 1)
	last := left
	for op, first := p.accept(levels[level]...), true; op != ""; op, first = p.accept(levels[level]...), false {
		p.link()
		before, a, b := left, last, p.binary(level+1)
		last = b
		switch {
		case op == "or" || op == "and":
			left = func(r *run) any {
				if v := before(r); truth(v) == (op == "or") {
					return v
				}
				return b(r)
			}
		case level == 3 && !first: // a < b < c is a < b and b < c
			left = func(r *run) any { return truth(before(r)) && truth(r.operate(op, a(r), b(r))) }
		default:
			left = func(r *run) any { return r.operate(op, before(r), b(r)) }
		}
	}
	return left
}

func (p *parser) unary(withFilters bool) expr {
	op := p.accept("-", "+")
	if op == "" {
		return p.postfix(p.primary(), withFilters)
	}
	done := p.deeper()
	operand := p.unary(false)
	done()
	return p.postfix(func(r *run) any {
		v := r.operate("+", int64(0), operand(r)) // only numbers have a sign
		if op == "-" {
			v = r.operate("*", int64(-1), v)
		}
		return v
	}, withFilters)
}

var constants = map[string]any{"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil}

func (p *parser) primary() expr {
	switch t := p.take(); {
	case t.kind == name:
		if v, ok := constants[t.text]; ok {
			return constant(v)
		}
		check(t.text != "varargs" && t.text != "kwargs", "TemplateSyntaxError: %s is not supported", t.text)
		return func(r *run) any { return r.name(t.text) }
	case t.kind == number:
		return constant(parseNumber(t.text))
	case t.kind == str:
		for p.tokens[p.at].kind == str {
			t.text += p.take().text
		}
		return constant(t.text)
	default:
		defer p.deeper()()
		return p.bracket(t)
	}
}

// bracket parses what an opening bracket begins: a tuple or an expression, a list or a dict.
func (p *parser) bracket(open token) (e expr) {
	var items, values []expr
	switch open.text {
	case "(":
		e = p.sequence(p.expression)
		p.expect(")")
	case "[":
		p.commas("]", func() { items = append(items, p.expression()) })
		e = func(r *run) any { return list(eval(r, items)) }
	case "{":
		p.commas("}", func() {
			items = append(items, p.expression())
			p.expect(":")
			values = append(values, p.expression())
		})
		e = func(r *run) any {
			d := &dict{}
			for i, key := range items {
				d.put(r, key(r), values[i](r))
			}
			return d
		}
	}
	check(e != nil && open.kind == sign, "TemplateSyntaxError: unexpected %v", open)
	return e
}

func constant(v any) expr {
	return func(r *run) any {
		r.step(1)
		return v
	}
}

// commas parses items up to the closing bracket; a last comma is allowed.
func (p *parser) commas(closing string, item func()) {
	for more := true; more && !p.is(closing); more = p.has(",") {
		item()
	}
	p.expect(closing)
}

// parseNumber reads a number of a template or of JSON; what is beyond the range of floats is infinite, as in Python.
func parseNumber(s string) any {
	i, err := strconv.ParseInt(s, 0, 64)
	if err == nil {
		return i
	}
	s = strings.ReplaceAll(s, "_", "")
	f, floatErr := strconv.ParseFloat(s, 64)
	check(!errors.Is(floatErr, strconv.ErrSyntax), "ValueError: the number %.20s is not supported", s)
	if errors.Is(err, strconv.ErrRange) {
		return bigInt(s)
	}
	return f
}

// postfix parses what stands behind a value: attributes, subscripts, calls and, if wanted, filters and tests.
func (p *parser) postfix(e expr, withFilters bool) expr {
	for filtered := false; ; p.link() {
		of := e
		switch {
		case !filtered && p.has("."):
			name := p.name()
			e = func(r *run) any { return r.dot(of(r), name) }
		case !filtered && p.has("["):
			e = p.subscript(of)
		case p.is("("):
			args := p.arguments()
			e = func(r *run) any {
				f := of(r)
				pos, named := args(r)
				return r.call(f, pos, named)
			}
		case withFilters && p.has("|"):
			e, filtered = p.filter(of, "filter", filters), true
		case withFilters && p.is("is", "is not"):
			negated := p.take().text == "is not"
			test := p.filter(of, "test", tests)
			e, filtered = func(r *run) any { return truth(test(r)) != negated }, true
		default:
			return e
		}
	}
}

// subscript parses what stands in v[…]: an index or a slice.
func (p *parser) subscript(of expr) expr {
	bounds := [3]expr{constant(nil), constant(nil), constant(nil)}
	check(!p.is("]"), "TemplateSyntaxError: expected a subscript expression")
	colons := 0
	for ; colons < 3; colons++ {
		if !p.is(":", "]") {
			bounds[colons] = p.expression()
		}
		if !p.has(":") {
			break
		}
	}
	check(colons < 3, "TemplateSyntaxError: expected token ']', got ':'")
	p.expect("]")
	if colons == 0 {
		return func(r *run) any { return r.index(of(r), bounds[0](r)) }
	}
	return func(r *run) any { return r.slice(of(r), bounds[0](r), bounds[1](r), bounds[2](r)) }
}

type arguments func(*run) (pos []any, named *dict)

// arguments parses those of a call: (a, b, c=d, **dict).
func (p *parser) arguments() arguments {
	defer p.deeper()()
	var kinds []string // of the values: "", "**" or a name
	var values []expr
	p.expect("(")
	p.commas(")", func() {
		kind := p.accept("**")
		if next := p.tokens[p.at+1]; kind == "" && next.kind == sign && next.text == "=" {
			kind = p.name()
			p.take()
		}
		n := len(kinds)
		check(kind != "" || n == 0 || kinds[n-1] == "", "TemplateSyntaxError: invalid syntax for function call expression")
		kinds, values = append(kinds, kind), append(values, p.expression())
	})
	return func(r *run) (pos []any, named *dict) {
		named = &dict{}
		for i, v := range eval(r, values) {
			switch kinds[i] {
			case "":
				pos = append(pos, v)
			case "**":
				named.update(r, v)
			default:
				named.put(r, kinds[i], v)
			}
		}
		return pos, named
	}
}

// filter parses the name of a filter or test and its arguments; a test's only argument needs no brackets.
func (p *parser) filter(of expr, what string, table map[string]fn) expr {
	label := p.name()
	f, ok := table[label]
	check(ok, "TemplateAssertionError: no %s named '%s'", what, label)
	args := arguments(func(*run) ([]any, *dict) { return nil, &dict{} })
	if t := p.tokens[p.at]; p.is("(") {
		args = p.arguments()
	} else if what == "test" && (t.kind == str || t.kind == number || p.is("[", "{") ||
		t.kind == name && !slices.Contains([]string{"else", "or", "and"}, t.text)) {
		arg := p.postfix(p.primary(), false)
		args = func(r *run) ([]any, *dict) { return []any{arg(r)}, &dict{} }
	}
	return func(r *run) any {
		v := of(r)
		pos, named := args(r)
		return r.native(label, f, v, pos, named)
	}
}
