package jinja

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// parser turns tokens into closures. Rules follow the grammar of Jinja 3.1; each method parses one rule.
type parser struct {
	position
	tokens  []token         // those that are left
	loops   int             // for statements around here within the macro
	special map[string]bool // the names that the macro around here reads
	library
}

func (p *parser) take() token {
	t := p.tokens[0]
	p.at = t.at
	if t.kind != endOfFile {
		p.tokens = p.tokens[1:]
	}
	return t
}

// is says whether the next token is one of these operators or words.
func (p *parser) is(texts ...string) bool {
	t := p.tokens[0]
	return (t.kind == sign || t.kind == name) && slices.Contains(texts, t.text)
}

// has takes the next token if it is this one.
func (p *parser) has(text string) bool {
	found := p.is(text)
	if found {
		p.take()
	}
	return found
}

func (p *parser) expect(text string) {
	check(p.has(text), "TemplateSyntaxError: expected token '%s', got '%s'", text, p.tokens[0].text)
}

func (p *parser) name() string {
	t := p.take()
	check(t.kind == name, "TemplateSyntaxError: expected token 'name', got '%s'", t.text)
	return t.text
}

// sequence parses one value or, with commas, a tuple.
func (p *parser) sequence(item func() expr) expr {
	var items []expr
	isTuple := p.is(")")
	for more := !isTuple; more; more = more && !p.is(")", "=", "%}", "}}") {
		items = append(items, item())
		more = p.has(",")
		isTuple = isTuple || more
	}
	if !isTuple {
		return items[0]
	}
	return func(r *run) any { return tuple(eval(r, items)...) }
}

func eval(r *run, parts []expr) []any {
	values := make([]any, len(parts))
	for i, e := range parts {
		values[i] = e(r)
	}
	r.spend(perValue * len(parts))
	return values
}

// strength of the binary operators; that of "not" is 4.
var strength = map[string]int{
	"if": 1, "or": 2, "and": 3, "==": 5, "!=": 5, "<": 5, "<=": 5, ">": 5, ">=": 5, "in": 5, "not in": 5,
	"+": 6, "-": 6, "~": 7, "*": 8, "/": 8, "//": 8, "%": 8, "**": 9,
}

func (p *parser) expression() expr { return p.binary(1) }

// simple parses an expression without inline if.
func (p *parser) simple() expr { return p.binary(2) }

// binary parses a value with operators of at least the given strength.
func (p *parser) binary(least int) expr {
	defer p.deeper()()
	var left, last expr // last: the right side of the comparison that left is
	if least <= 4 && p.has("not") {
		e := p.binary(4)
		left = func(r *run) any { return !truth(e(r)) }
	} else {
		left = p.unary(true)
	}
	for {
		op := p.tokens[0].text
		level := strength[op]
		if level < least || !p.is(op) {
			return left
		}
		p.take()
		p.deeper() // each operator is one more closure around the last
		a, middle, b := left, last, p.binary(level+1)
		switch {
		case op == "if":
			other := constant(undefined("UndefinedError: the inline if-expression evaluated to false and no else section was defined"))
			if p.has("else") {
				other = p.expression()
			}
			left = branch(b, a, other)
		case op == "and" || op == "or":
			left = func(r *run) any {
				if v := a(r); truth(v) == (op == "or") {
					return v
				}
				return b(r)
			}
		case level == 5 && middle != nil: // a < b < c is a < b and b < c
			left = func(r *run) any { return truth(a(r)) && truth(r.operate(op, middle(r), b(r))) }
		default:
			left = func(r *run) any { return r.operate(op, a(r), b(r)) }
		}
		if level == 5 {
			last = b
		}
	}
}

func branch(condition, then, other expr) expr {
	return func(r *run) any {
		if truth(condition(r)) {
			return then(r)
		}
		return other(r)
	}
}

func (p *parser) unary(withFilters bool) expr {
	if !p.is("-", "+") {
		return p.postfix(p.primary(), withFilters)
	}
	defer p.deeper()()
	factor := map[string]int{"-": -1, "+": 1}[p.take().text]
	operand := p.unary(false)
	return p.postfix(func(r *run) any {
		return r.operate("*", r.operate("-", operand(r), 0), factor) // only numbers have a difference
	}, withFilters)
}

var constants = map[string]any{"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil}

// primary parses a name, a constant, or what an opening bracket begins: a tuple or an expression, a list or a dict.
func (p *parser) primary() expr {
	t := p.take()
	switch t.kind {
	case name:
		if v, ok := constants[t.text]; ok {
			return constant(v)
		}
		p.special[t.text] = true
		return func(r *run) any { return r.variable(t.text) }
	case number:
		return constant(parseNumber(t.text))
	case str:
		for p.tokens[0].kind == str {
			t.text += p.take().text
		}
		return constant(t.text)
	}
	defer p.deeper()()
	var items, values []expr
	switch t.text {
	case "(":
		e := p.sequence(p.expression)
		p.expect(")")
		return e
	case "[":
		p.commas("]", func() { items = append(items, p.expression()) })
		return func(r *run) any { return list(eval(r, items)) }
	case "{":
		p.commas("}", func() {
			items = append(items, p.expression())
			p.expect(":")
			values = append(values, p.expression())
		})
		return func(r *run) any {
			d := &dict{}
			for i, key := range items {
				d.put(r, key(r), values[i](r))
			}
			return d
		}
	}
	return constant(fail("TemplateSyntaxError: unexpected '%s'", t.text))
}

func constant(v any) expr {
	return func(r *run) any {
		r.spend(perValue)
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
		return int(i)
	} else if digits := strings.ReplaceAll(s, "_", ""); strings.Trim(digits, "-0123456789") == "" && len(digits) <= 4300 {
		return long(digits)
	}
	f, err := strconv.ParseFloat(s, 64)
	check(!errors.Is(err, strconv.ErrSyntax) && strings.ContainsAny(s, ".eE"), "ValueError: the number %.20s is not supported", s)
	return f
}

// postfix parses what stands behind a value: attributes, subscripts, calls and, if wanted, filters and tests.
func (p *parser) postfix(e expr, withFilters bool) expr {
	for filtered := false; ; p.deeper() {
		of := e
		switch {
		case !filtered && p.has("."):
			key := any(p.tokens[0].text)
			if p.tokens[0].kind == number {
				key = parseNumber(p.take().text)
			} else {
				p.name()
			}
			e = func(r *run) any { return r.member(of(r), key, attribute, item) }
		case !filtered && p.has("["):
			e = p.subscript(of)
		case p.is("("):
			e = p.call(of).value
		case withFilters && p.has("|"):
			e, filtered = p.filter(of, "filter"), true
		case withFilters && p.is("is", "is not"):
			negated := p.take().text == "is not"
			test := p.filter(of, "test")
			e, filtered = func(r *run) any { return truth(test(r)) != negated }, true
		default:
			return e
		}
	}
}

// subscript parses what stands in v[…]: an index or a slice.
func (p *parser) subscript(of expr) expr {
	check(!p.is("]"), "TemplateSyntaxError: expected a subscript expression")
	var bounds []expr
	for more := true; more; more = len(bounds) < 3 && p.has(":") {
		bound := constant(nil)
		if !p.is(":", "]") {
			bound = p.expression()
		}
		bounds = append(bounds, bound)
	}
	p.expect("]")
	if len(bounds) == 1 {
		return func(r *run) any { return r.member(of(r), bounds[0](r), item, attribute) }
	}
	bounds = append(bounds, constant(nil)) // without a step
	return func(r *run) any { return r.slice(of(r), bounds[0](r), bounds[1](r), bounds[2](r)) }
}

// signature parses (a, b=1); missing is the value of a parameter that gets none.
func (p *parser) signature(missing func(param string) any) (s signature) {
	p.expect("(")
	optional := false
	p.commas(")", func() {
		param := p.name()
		value := expr(func(*run) any { return missing(param) })
		if p.has("=") {
			value, optional = p.expression(), true
		} else {
			check(!optional, "TemplateSyntaxError: non-default argument follows default argument")
		}
		s.params, s.defaults = append(s.params, param), append(s.defaults, value)
	})
	return s
}

// call is the call of the first value with the others as arguments.
type call struct {
	kinds  []string // "", "*", "**" or a name
	values []expr
}

func (c *call) add(kind string, value expr) {
	c.kinds, c.values = append(c.kinds, kind), append(c.values, value)
}

func (c *call) value(r *run) any {
	var pos []any
	named := &dict{}
	for i, v := range eval(r, c.values) {
		switch kind := c.kinds[i]; kind {
		case "":
			pos = append(pos, v)
		case "*":
			pos = append(pos, r.iterate(v)...)
		case "**":
			named.update(r, v)
		default:
			named.put(r, kind, v)
		}
	}
	if l, ok := pos[0].(*loop); ok {
		check(l.again != nil, "TypeError: the loop must have the 'recursive' marker to be called recursively")
		pos[0] = l.again
	}
	return r.call(as[*function](pos[0]), pos[1:], named)
}

// call parses arguments, (a, *list, c=d, **dict), if there are any; the given values stand before them.
func (p *parser) call(values ...expr) *call {
	defer p.deeper()()
	c := &call{make([]string, len(values)), values}
	if p.has("(") {
		p.commas(")", func() {
			kind := ""
			if p.is("*", "**") {
				kind = p.take().text
			} else if next := p.tokens[min(1, len(p.tokens)-1)]; next.kind == sign && next.text == "=" {
				kind = p.name()
				p.take()
			}
			check(kind != "" || c.kinds[len(c.kinds)-1] == "", "TemplateSyntaxError: invalid syntax for function call expression")
			c.add(kind, p.expression())
		})
	}
	return c
}

// filter parses the name of a filter or test and its arguments; a test's only argument needs no brackets.
func (p *parser) filter(of expr, what string) expr {
	label := p.name()
	f, ok := p.library[what+" "+label]
	check(ok, "TemplateAssertionError: no %s named '%s'", what, label)
	check(what == "filter" || !p.is("is", "is not", "not in"), "TemplateSyntaxError: tests cannot be chained")
	values := []expr{constant(f), of}
	if t := p.tokens[0]; what == "test" && (t.kind == str || t.kind == number || p.is("[", "{") ||
		t.kind == name && !p.is("else", "or", "and")) {
		values = append(values, p.postfix(p.primary(), false))
	}
	return p.call(values...).value
}
