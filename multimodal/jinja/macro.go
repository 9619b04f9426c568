package jinja

// macro is a callable block of the template.
type macro struct {
	name                    string
	params                  []string
	defaults                []expr // nil: none
	body                    stmt
	scope                   *scope
	caller, varargs, kwargs bool // whether the body reads these names
}

// signature parses (a, b=1).
func (p *parser) signature(m *macro) {
	p.expect(operator, "(")
	p.commas(")", func() expr {
		m.params = append(m.params, p.name())
		var standard expr
		if n := len(m.defaults); p.op("=") {
			standard = p.expression()
		} else if n > 0 && m.defaults[n-1] != nil {
			fail("TemplateSyntaxError: non-default argument follows default argument")
		}
		m.defaults = append(m.defaults, standard)
		return nil
	})
}

func (p *parser) macroBody(m *macro, closing string) {
	p.expect(end, "%}")
	caller, varargs, kwargs := p.used["caller"], p.used["varargs"], p.used["kwargs"]
	m.body = p.isolated(closing)
	m.caller, m.varargs, m.kwargs = p.used["caller"] > caller, p.used["varargs"] > varargs, p.used["kwargs"] > kwargs
}

// in is the macro as a value that sees a scope.
func (m macro) in(s *scope) *macro {
	m.scope = s
	return &m
}

func (p *parser) macro() stmt {
	m := &macro{name: p.name()}
	p.signature(m)
	p.macroBody(m, "endmacro")
	return func(r *run) flow {
		r.scope.set(m.name, m.in(r.scope))
		return next
	}
}

// callBlock parses {% call(params) macro(arguments) %}: the macro gets the body as caller.
func (p *parser) callBlock() stmt {
	m := &macro{name: "caller"}
	if p.is("(") {
		p.signature(m)
	}
	callee := p.primary()
	for p.op(".") {
		p.link()
		of, attr := callee, p.name()
		callee = func(r *run) any { return r.dot(of(r), attr) }
	}
	args := p.arguments()
	p.macroBody(m, "endcall")
	return func(r *run) flow {
		f := callee(r)
		pos, kw := args(r)
		if kw == nil {
			kw = newDict()
		}
		kw.put(r, "caller", m.in(r.scope))
		r.out.put(r.str(r.call(f, pos, kw)))
		return next
	}
}

func (m *macro) call(r *run, pos []any, kw *dict) any {
	rest := map[string]any{}
	for k, v := range kw.all() {
		rest[r.str(k)] = v
	}
	pop := func(k string) (any, bool) {
		v, ok := rest[k]
		delete(rest, k)
		return v, ok
	}
	return r.capture(func() {
		r.within(m.scope, func(s *scope) flow {
			for i, p := range m.params {
				v, ok := any(nil), true
				if i < len(pos) {
					v = pos[i]
				} else if v, ok = pop(p); !ok && m.defaults[i] != nil {
					v = m.defaults[i](r)
				} else if !ok {
					v = undefined("UndefinedError: parameter '" + p + "' was not provided")
				}
				s.set(p, v)
			}
			if m.caller {
				v, ok := pop("caller")
				if !ok {
					v = undefined("UndefinedError: No caller defined")
				}
				s.set("caller", v)
			}
			if more := pos[min(len(pos), len(m.params)):]; m.varargs {
				s.set("varargs", tuple(more))
			} else if len(more) > 0 {
				fail("TypeError: macro '%s' takes not more than %d argument(s)", m.name, len(m.params))
			}
			extra := newDict()
			for k := range kw.all() {
				if v, ok := pop(r.str(k)); ok {
					extra.put(r, k, v)
				}
			}
			if m.kwargs {
				s.set("kwargs", extra)
			} else if len(extra.keys) > 0 {
				fail("TypeError: macro '%s' takes no keyword argument %s", m.name, r.repr(extra.keys[0]))
			}
			return m.body(r)
		})
	})
}
