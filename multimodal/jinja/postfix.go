package jinja

import "slices"

func (p *parser) postfix(e expr) expr {
	for {
		of := e
		switch {
		case p.op("."):
			t := p.take()
			if t.kind == integer {
				i := number(t.kind, t.text)
				e = func(r *run) any { return r.index(of(r), i) }
				break
			}
			p.at--
			attr := p.name()
			e = func(r *run) any { return r.dot(of(r), attr) }
		case p.op("["):
			e = p.subscript(of)
		case p.is("("):
			e = p.called(of)
		default:
			return e
		}
		p.link()
	}
}

// subscript parses what stands in v[…]: an index, a tuple or a slice.
func (p *parser) subscript(of expr) expr {
	var bounds [3]expr
	colons := 0
	for ; colons < 3 && !p.is("]"); colons++ {
		if !p.is(":") {
			bounds[colons] = p.sequence(p.expression)
		}
		if !p.op(":") {
			break
		}
	}
	p.expect(operator, "]")
	if key := bounds[0]; colons == 0 && key != nil {
		return func(r *run) any { return r.index(of(r), key(r)) }
	} else if colons == 0 || colons == 3 {
		fail("TemplateSyntaxError: expected a subscript expression")
	}
	return func(r *run) any {
		v := of(r)
		var at [3]any
		for i, b := range bounds {
			if b != nil {
				at[i] = b(r)
			}
		}
		return r.slice(v, at[0], at[1], at[2])
	}
}

type argument struct {
	name  string // "": positional
	stars int
	value expr
}

// arguments parses (a, b, *list, c=d, **dict).
func (p *parser) arguments() func(*run) ([]any, *dict) {
	defer p.deeper()()
	var list []argument
	p.expect(operator, "(")
	named := false
	p.commas(")", func() expr {
		var a argument
		if stars, ok := p.accept(operator, "*", "**"); ok {
			a.stars = len(stars)
		} else if p.peek().kind == name && p.tokens[p.at+1].text == "=" && p.tokens[p.at+1].kind == operator {
			a.name = p.name()
			p.take()
		}
		if named && a.name == "" && a.stars == 0 {
			fail("TemplateSyntaxError: invalid syntax for function call expression")
		}
		named = named || a.name != "" || a.stars > 0
		a.value = p.expression()
		list = append(list, a)
		return a.value
	})
	return func(r *run) (pos []any, kw *dict) {
		for _, a := range list {
			v := a.value(r)
			if a.name != "" || a.stars == 2 {
				if kw == nil {
					kw = newDict()
				}
			}
			switch {
			case a.name != "":
				kw.put(r, a.name, v)
			case a.stars == 1:
				pos = append(pos, r.iterate(v)...)
			case a.stars == 2:
				d, ok := v.(*dict)
				if !ok {
					fail("TypeError: argument after ** must be a mapping, not %s", typeName(v))
				}
				for k, e := range d.all() {
					kw.put(r, k, e)
				}
			default:
				pos = append(pos, v)
			}
		}
		r.made(perElement * len(pos))
		return pos, kw
	}
}

func (p *parser) called(f expr) expr {
	args := p.arguments()
	return func(r *run) any {
		callee := f(r)
		pos, kw := args(r)
		return r.call(callee, pos, kw)
	}
}

func (p *parser) filtered(e expr) expr {
	for {
		of := e
		switch {
		case p.op("|"):
			e = p.filter(of)
		case p.word("is"):
			e = p.test(of)
		case p.is("("):
			e = p.called(of)
		default:
			return e
		}
		p.link()
	}
}

func (p *parser) filter(of expr) expr {
	label := p.name()
	f, ok := filters[label]
	if !ok {
		fail("TemplateAssertionError: no filter named '%s'", label)
	}
	args := func(*run) ([]any, *dict) { return nil, nil }
	if p.is("(") {
		args = p.arguments()
	}
	return func(r *run) any {
		v := of(r)
		pos, kw := args(r)
		return r.native(label, f, v, pos, kw)
	}
}

func (p *parser) test(of expr) expr {
	negated := p.word("not")
	label := p.name()
	f, ok := tests[label]
	if !ok {
		fail("TemplateAssertionError: no test named '%s'", label)
	}
	args := func(*run) ([]any, *dict) { return nil, nil }
	if t := p.peek(); p.is("(") {
		args = p.arguments()
	} else if t.kind == str || t.kind == integer || t.kind == float || p.is("[") || p.is("{") ||
		t.kind == name && !slices.Contains([]string{"else", "or", "and"}, t.text) {
		if t.text == "is" {
			fail("TemplateSyntaxError: you cannot chain multiple tests with is")
		}
		arg := p.postfix(p.primary())
		args = func(r *run) ([]any, *dict) { return []any{arg(r)}, nil }
	}
	return func(r *run) any {
		v := of(r)
		pos, kw := args(r)
		return truth(r.native(label, f, v, pos, kw)) != negated
	}
}
