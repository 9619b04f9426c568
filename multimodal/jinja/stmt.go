package jinja

import "slices"

// body parses up to a block tag with one of the names, which it takes, or to the end if there are none.
func (p *parser) body(ends ...string) (stmt, string) {
	defer p.deeper()()
	opened := p.line
	var list []stmt
	for {
		var s stmt
		t := p.take()
		p.chain = 0
		switch {
		case t.kind == endOfFile:
			p.line = opened
			check(len(ends) == 0, "TemplateSyntaxError: unexpected end of template, expected one of %v", ends)
			return block(list), ""
		case t.kind == data:
			s = func(r *run) { r.out.put(t.text) }
		case t.text == "{{":
			e := p.sequence(p.expression)
			p.expect("}}")
			s = func(r *run) { r.out.put(r.str(e(r))) }
		default:
			tag := p.name()
			if slices.Contains(ends, tag) {
				return block(list), tag
			}
			s = p.statement(tag)
		}
		list = append(list, func(r *run) {
			r.line = t.line
			r.step(1)
			s(r)
		})
	}
}

func block(list []stmt) stmt {
	return func(r *run) {
		for _, s := range list {
			if s(r); r.jump != "" {
				return
			}
		}
	}
}

func (p *parser) statement(tag string) stmt {
	switch tag {
	case "if":
		return p.ifs()
	case "for":
		return p.fors()
	case "set":
		return p.set()
	case "macro":
		m := &macro{name: p.name()}
		p.signature(m)
		p.macroBody(m, "endmacro")
		return func(r *run) { r.scope.set(m.name, m.in(r)) }
	case "call":
		return p.callBlock()
	case "generation": // marks what the model wrote; here only a scope
		p.expect("%}")
		content := p.inner("endgeneration")
		return func(r *run) { r.within(r.scope, func() { content(r) }) }
	case "break", "continue":
		check(p.loops > 0, "TemplateSyntaxError: '%s' outside loop", tag)
		p.expect("%}")
		return func(r *run) { r.jump = tag }
	}
	fail("TemplateSyntaxError: unknown or unsupported tag '%s'", tag)
	return nil
}

// inner parses a body and the end tag.
func (p *parser) inner(closing string) stmt {
	body, _ := p.body(closing)
	p.expect("%}")
	return body
}

func (p *parser) ifs() stmt {
	cond := p.sequence(p.simple)
	p.expect("%}")
	then, tag := p.body("elif", "else", "endif")
	other := block(nil)
	if tag == "elif" {
		defer p.deeper()()
		other = p.ifs()
	} else if p.expect("%}"); tag == "else" {
		other = p.inner("endif")
	}
	return func(r *run) {
		if truth(cond(r)) {
			then(r)
		} else {
			other(r)
		}
	}
}

// target parses what a for or set assigns to.
func (p *parser) target() func(*run, any) {
	var parts []func(*run, any)
	for more := true; more; more = p.has(",") {
		assign := p.assignee()
		parts = append(parts, assign)
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return func(r *run, v any) {
		values := r.iterate(v)
		check(len(values) == len(parts), "ValueError: expected %d values to unpack, got %d", len(parts), len(values))
		for i, assign := range parts {
			assign(r, values[i])
		}
	}
}

// assignee is a name, an attribute of a namespace, or targets in parentheses.
func (p *parser) assignee() func(*run, any) {
	if p.has("(") {
		inner := p.target()
		p.expect(")")
		return inner
	}
	n := p.name()
	_, isConstant := constants[n]
	check(!isConstant, "TemplateSyntaxError: can't assign to '%s'", n)
	if !p.has(".") {
		return func(r *run, v any) { r.scope.set(n, v) }
	}
	attr := p.name()
	return func(r *run, v any) {
		ns, ok := r.name(n).(*namespace)
		check(ok, "TemplateRuntimeError: cannot assign attribute on non-namespace object")
		ns.put(r, attr, v)
	}
}

func (p *parser) set() stmt {
	assign := p.target()
	if p.has("=") {
		e := p.sequence(p.expression)
		p.expect("%}")
		return func(r *run) { assign(r, e(r)) }
	}
	p.expect("%}")
	content := p.inner("endset")
	return func(r *run) { assign(r, r.capture(r.scope, func() { content(r) })) }
}

// loop is the variable of that name within a for.
type loop struct {
	items []any
	i     int
}

func (p *parser) fors() stmt {
	assign := p.target()
	p.expect("in")
	over, test := p.sequence(p.simple), constant(true)
	if p.has("if") {
		test = p.expression()
	}
	p.expect("%}")
	p.loops++
	body, tag := p.body("else", "endfor")
	p.loops--
	p.expect("%}")
	other := block(nil)
	if tag == "else" {
		other = p.inner("endfor")
	}
	return func(r *run) {
		around := r.scope
		l := &loop{items: r.keep(r.iterate(over(r)), func(e any) (ok bool) {
			r.within(around, func() {
				assign(r, e)
				ok = truth(test(r))
			})
			return ok
		})}
		for ; l.i < len(l.items) && r.jump != "break"; l.i++ {
			r.jump = ""
			r.within(around, func() {
				assign(r, l.items[l.i])
				r.scope.set("loop", l)
				body(r)
			})
		}
		if r.jump = ""; len(l.items) == 0 {
			other(r)
		}
	}
}

// keep is the elements that pass.
func (r *run) keep(items []any, pass func(any) bool) []any {
	kept := []any{}
	for _, e := range items {
		if r.step(1); pass(e) {
			kept = append(kept, e)
		}
	}
	r.made(perElement * len(kept))
	return kept
}

// macro is a callable block of the template.
type macro struct {
	name     string
	params   []string // with "caller" as the last, which takes no argument by position
	defaults []expr   // nil: none
	body     stmt
}

// signature parses (a, b=1).
func (p *parser) signature(m *macro) {
	p.expect("(")
	p.commas(")", func() {
		m.params = append(m.params, p.name())
		var standard expr
		if p.has("=") {
			standard = p.expression()
		}
		m.defaults = append(m.defaults, standard)
	})
}

func (p *parser) macroBody(m *macro, closing string) {
	p.expect("%}")
	loops := p.loops
	p.loops = 0 // a loop around the macro cannot be left from within
	m.body = p.inner(closing)
	p.loops = loops
	m.params, m.defaults = append(m.params, "caller"), append(m.defaults, nil)
}

// callBlock parses {% call macro(arguments) %}: the macro gets the body as caller.
func (p *parser) callBlock() stmt {
	m := &macro{name: "caller"}
	callee, args := p.primary(), p.arguments()
	p.macroBody(m, "endcall")
	return func(r *run) {
		f := callee(r)
		pos, named := args(r)
		named.put(r, "caller", m.in(r))
		r.out.put(r.str(r.call(f, pos, named)))
	}
}

// in is the macro as a value that sees the scope of its definition.
func (m *macro) in(r *run) *function {
	around := r.scope
	return &function{"<Macro '" + m.name + "'>", func(pos []any, named *dict) any {
		args, ok := r.bind(m.params, len(m.params)-1, pos, named)
		check(ok, "TypeError: macro '%s' does not take these arguments", m.name)
		return r.capture(around, func() {
			for i, name := range m.params {
				if args[i] == (absent{}) && m.defaults[i] != nil {
					args[i] = m.defaults[i](r)
				} else if args[i] == (absent{}) {
					args[i] = undefined("UndefinedError: parameter '" + name + "' was not provided")
				}
				r.scope.set(name, args[i])
			}
			m.body(r)
		})
	}}
}
