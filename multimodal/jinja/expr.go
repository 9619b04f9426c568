package jinja

import (
	"slices"
)

// parser turns tokens into closures. Rules follow the grammar of Jinja 3.1; each method parses one rule.
type parser struct {
	tokens  []token
	at      int
	line    int            // of the tag that is being parsed
	nesting int            // rules within each other
	chain   int            // operators in this tag
	loops   int            // for statements around here within the macro
	used    map[string]int // how often a name was read
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) take() token {
	t := p.tokens[p.at]
	if t.kind != endOfFile {
		p.at++
	}
	p.line = t.line
	return t
}

func (t token) String() string {
	if t.kind == endOfFile {
		return "end of template"
	}
	return "'" + t.text + "'"
}

// accept takes the next token if it is one of the operators or words.
func (p *parser) accept(k kind, texts ...string) (string, bool) {
	if t := p.peek(); t.kind == k && slices.Contains(texts, t.text) {
		p.take()
		return t.text, true
	}
	return "", false
}

func (p *parser) op(text string) bool {
	_, ok := p.accept(operator, text)
	return ok
}

func (p *parser) word(text string) bool {
	_, ok := p.accept(name, text)
	return ok
}

func (p *parser) expect(k kind, text string) {
	if t := p.take(); t.kind != k || t.text != text {
		fail("TemplateSyntaxError: expected token '%s', got %v", text, t)
	}
}

func (p *parser) name() string {
	t := p.take()
	if t.kind != name {
		fail("TemplateSyntaxError: expected token 'name', got %v", t)
	}
	return t.text
}

func (p *parser) is(text string) bool {
	t := p.peek()
	return (t.kind == operator || t.kind == name || t.kind == end) && t.text == text
}

func (p *parser) deeper() func() {
	if p.nesting++; p.nesting > maxNesting {
		fail("RecursionError: more than %d levels of brackets or statements", maxNesting)
	}
	return func() { p.nesting-- }
}

// link counts an operator; each is one more closure around the last.
func (p *parser) link() {
	if p.chain++; p.chain > maxChain {
		fail("RecursionError: more than %d operators in one tag", maxChain)
	}
}

// expression parses a value with inline if.
func (p *parser) expression() expr {
	defer p.deeper()()
	e := p.or()
	for p.word("if") {
		p.link()
		then, cond := e, p.or()
		other := func(*run) any {
			return undefined("UndefinedError: the inline if-expression evaluated to false and no else section was defined")
		}
		if p.word("else") {
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
	if p.is(")") {
		return func(*run) any { return tuple{} }
	}
	first := item()
	if !p.is(",") {
		return first
	}
	parts := []expr{first}
	for p.op(",") && !p.is(")") && !p.is("=") && !p.is("%}") && !p.is("}}") && !p.is("in") {
		parts = append(parts, item())
	}
	return func(r *run) any { return tuple(eval(r, parts)) }
}

func eval(r *run, parts []expr) []any {
	values := make([]any, len(parts))
	for i, e := range parts {
		values[i] = e(r)
	}
	r.made(perElement * len(parts))
	return values
}

func (p *parser) or() expr  { return p.logical("or", p.and, true) }
func (p *parser) and() expr { return p.logical("and", p.not, false) }

// logical parses a chain of or, which ends at the first true operand, or of and, at the first false one.
func (p *parser) logical(word string, operand func() expr, ends bool) expr {
	left := operand()
	for p.word(word) {
		p.link()
		a, b := left, operand()
		left = func(r *run) any {
			if v := a(r); truth(v) == ends {
				return v
			}
			return b(r)
		}
	}
	return left
}

func (p *parser) not() expr {
	if !p.word("not") {
		return p.comparison()
	}
	defer p.deeper()()
	e := p.not()
	return func(r *run) any { return !truth(e(r)) }
}

// comparison parses chains such as 1 < x <= 9, where x is read once.
func (p *parser) comparison() expr {
	operands, ops := []expr{p.binary(0)}, []string(nil)
	for {
		op, ok := p.accept(operator, "==", "!=", "<", "<=", ">", ">=")
		if !ok && p.is("not") && p.tokens[p.at+1].text == "in" {
			p.take()
			op, ok = "not in", p.word("in")
		} else if !ok {
			op, ok = p.accept(name, "in")
		}
		if !ok {
			break
		}
		p.link()
		ops, operands = append(ops, op), append(operands, p.binary(0))
	}
	if len(ops) == 0 {
		return operands[0]
	}
	return func(r *run) any {
		left := operands[0](r)
		for i, op := range ops {
			right := operands[i+1](r)
			if !r.relation(op, left, right) {
				return false
			}
			left = right
		}
		return true
	}
}

var levels = [][]string{{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}}

func (p *parser) binary(level int) expr {
	if level == len(levels) {
		return p.unary(true)
	}
	left := p.binary(level + 1)
	for {
		op, ok := p.accept(operator, levels[level]...)
		if !ok {
			return left
		}
		p.link()
		a, b := left, p.binary(level+1)
		left = func(r *run) any { return r.arithmetic(op, a(r), b(r)) }
		if op == "~" {
			left = func(r *run) any { return r.arithmetic("+", r.str(a(r)), r.str(b(r))) }
		}
	}
}

func (p *parser) unary(withFilters bool) expr {
	var e expr
	if op, ok := p.accept(operator, "-", "+"); ok {
		done := p.deeper()
		operand := p.unary(false)
		done()
		e = func(r *run) any {
			v := operand(r)
			if f, ok := v.(float64); ok && op == "-" {
				return -f // keeps the sign of zero
			}
			return r.arithmetic(op, int64(0), v)
		}
	} else {
		e = p.primary()
	}
	e = p.postfix(e)
	if withFilters {
		e = p.filtered(e)
	}
	return e
}

var constants = map[string]any{"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil}

func (p *parser) primary() expr {
	switch t := p.take(); t.kind {
	case name:
		if v, ok := constants[t.text]; ok {
			return constant(v)
		}
		p.used[t.text]++
		return func(r *run) any { return r.name(t.text) }
	case integer, float:
		return constant(number(t.kind, t.text))
	case str:
		text := t.text
		for p.peek().kind == str {
			text += p.take().text
		}
		return constant(text)
	case operator:
		defer p.deeper()()
		switch t.text {
		case "(":
			e := p.sequence(p.expression)
			p.expect(operator, ")")
			return e
		case "[":
			parts := p.commas("]", p.expression)
			return func(r *run) any { return eval(r, parts) }
		case "{":
			return p.dict()
		}
		fail("TemplateSyntaxError: unexpected %v", t)
	default:
		fail("TemplateSyntaxError: unexpected %v", t)
	}
	return nil
}

func constant(v any) expr {
	return func(r *run) any {
		r.step(1)
		return v
	}
}

// commas parses items up to the closing bracket; a last comma is allowed.
func (p *parser) commas(closing string, item func() expr) []expr {
	var items []expr
	for !p.op(closing) {
		if len(items) > 0 {
			p.expect(operator, ",")
			if p.op(closing) {
				break
			}
		}
		items = append(items, item())
	}
	return items
}

func (p *parser) dict() expr {
	var values []expr
	keys := p.commas("}", func() expr {
		key := p.expression()
		p.expect(operator, ":")
		values = append(values, p.expression())
		return key
	})
	return func(r *run) any {
		d := newDict()
		for i, key := range keys {
			d.put(r, key(r), values[i](r))
		}
		return d
	}
}
