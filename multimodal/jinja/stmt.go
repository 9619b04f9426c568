package jinja

// body parses up to a block tag with one of the names, which it takes, or to the end if there are none.
func (p *parser) body(ends ...string) (stmt, string) {
	defer p.deeper()()
	opened := p.line
	var list []stmt
	for {
		t := p.take()
		p.chain = 0
		switch {
		case t.kind == endOfFile:
			if p.line = opened; len(ends) > 0 {
				fail("TemplateSyntaxError: unexpected end of template, expected one of %v", ends)
			}
			return block(list), ""
		case t.kind == data:
			list = append(list, func(r *run) flow {
				r.step(1)
				r.out.put(t.text)
				return next
			})
		case t.text == "{{":
			e := p.sequence(p.expression)
			p.expect(end, "}}")
			list = append(list, func(r *run) flow {
				r.line = t.line
				r.out.put(r.str(e(r)))
				return next
			})
		default:
			tag := p.name()
			for _, e := range ends {
				if tag == e {
					return block(list), tag
				}
			}
			s := p.statement(tag)
			list = append(list, func(r *run) flow {
				r.line = t.line
				r.step(1)
				return s(r)
			})
		}
	}
}

func block(list []stmt) stmt {
	return func(r *run) flow {
		for _, s := range list {
			if f := s(r); f != next {
				return f
			}
		}
		return next
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
		return p.macro()
	case "call":
		return p.callBlock()
	case "with":
		return p.with()
	case "generation": // marks what the model wrote; here only a scope
		p.expect(end, "%}")
		content := p.isolated("endgeneration")
		return func(r *run) flow { return r.within(r.scope, func(*scope) flow { return content(r) }) }
	case "break", "continue":
		if p.loops == 0 {
			fail("TemplateSyntaxError: '%s' outside loop", tag)
		}
		p.expect(end, "%}")
		if tag == "break" {
			return func(*run) flow { return breaks }
		}
		return func(*run) flow { return continues }
	}
	fail("TemplateSyntaxError: unknown or unsupported tag '%s'", tag)
	return nil
}

// inner parses a body and the end tag.
func (p *parser) inner(closing string) stmt {
	body, _ := p.body(closing)
	p.expect(end, "%}")
	return body
}

// isolated is inner for a body that a loop around it cannot be left from.
func (p *parser) isolated(closing string) stmt {
	loops := p.loops
	p.loops = 0
	body := p.inner(closing)
	p.loops = loops
	return body
}

func (p *parser) ifs() stmt {
	cond := p.sequence(p.or)
	p.expect(end, "%}")
	then, tag := p.body("elif", "else", "endif")
	other := block(nil)
	switch tag {
	case "elif":
		defer p.deeper()()
		other = p.ifs()
	case "else":
		p.expect(end, "%}")
		other = p.inner("endif")
	default:
		p.expect(end, "%}")
	}
	return func(r *run) flow {
		if truth(cond(r)) {
			return then(r)
		}
		return other(r)
	}
}

// target parses what a for, set or with assigns to.
func (p *parser) target() func(*run, any) {
	var parts []func(*run, any)
	for {
		if p.op("(") {
			parts = append(parts, p.target())
			p.expect(operator, ")")
		} else {
			n := p.name()
			if _, ok := constants[n]; ok {
				fail("TemplateSyntaxError: can't assign to '%s'", n)
			}
			parts = append(parts, func(r *run, v any) { r.scope.set(n, v) })
		}
		if !p.op(",") {
			break
		}
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return func(r *run, v any) {
		values := r.iterate(v)
		if len(values) != len(parts) {
			fail("ValueError: expected %d values to unpack, got %d", len(parts), len(values))
		}
		for i, assign := range parts {
			assign(r, values[i])
		}
	}
}

func (p *parser) set() stmt {
	if next := p.tokens[p.at+1]; next.kind == operator && next.text == "." {
		return p.setAttribute()
	}
	assign := p.target()
	if p.op("=") {
		e := p.sequence(p.expression)
		p.expect(end, "%}")
		return func(r *run) flow {
			assign(r, e(r))
			return next
		}
	}
	p.expect(end, "%}")
	content := p.inner("endset")
	return func(r *run) (how flow) {
		text := r.capture(func() { how = r.within(r.scope, func(*scope) flow { return content(r) }) })
		assign(r, text)
		return how
	}
}

func (p *parser) setAttribute() stmt {
	object := p.name()
	p.take()
	attr := p.name()
	p.expect(operator, "=")
	e := p.sequence(p.expression)
	p.expect(end, "%}")
	return func(r *run) flow {
		v := e(r)
		ns, ok := r.name(object).(*namespace)
		if !ok {
			fail("TemplateRuntimeError: cannot assign attribute on non-namespace object")
		}
		ns.put(r, attr, v)
		return next
	}
}

func (p *parser) with() stmt {
	var targets []func(*run, any)
	var values []expr
	for !p.is("%}") {
		if len(targets) > 0 {
			p.expect(operator, ",")
		}
		n := p.name()
		targets = append(targets, func(r *run, v any) { r.scope.set(n, v) })
		p.expect(operator, "=")
		values = append(values, p.expression())
	}
	p.expect(end, "%}")
	content := p.inner("endwith")
	return func(r *run) flow {
		list := eval(r, values)
		return r.within(r.scope, func(*scope) flow {
			for i, assign := range targets {
				assign(r, list[i])
			}
			return content(r)
		})
	}
}
