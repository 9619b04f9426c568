package jinja

import "slices"

// body parses up to a block tag with one of the names, which it takes, or to the end if there are none.
func (p *parser) body(ends ...string) (expr, string) {
	defer p.deeper()()
	opened, depth := p.at, p.depth
	var list []expr
	for {
		var s expr
		t := p.take()
		p.depth = depth
		switch {
		case t.kind == endOfFile:
			p.at = opened
			check(len(ends) == 0, "TemplateSyntaxError: unexpected end of template, expected one of %v", ends)
			return block(list), ""
		case t.kind == data:
			s = constant(t.text)
		case t.text == "{{":
			e := p.sequence(p.expression)
			p.expect("}}")
			s = func(r *run) any { return r.str(e(r)) }
		default:
			tag := p.name()
			if slices.Contains(ends, tag) {
				return block(list), tag
			}
			s = p.statement(tag)
		}
		list = append(list, func(r *run) any {
			r.at = t.at
			r.spend(perValue)
			return s(r)
		})
	}
}

// block is what the statements write, up to a break or continue.
func block(list []expr) expr {
	return func(r *run) any {
		var written []any
		for i := 0; i < len(list) && r.jump == ""; i++ {
			written = append(written, list[i](r))
		}
		return r.join(written, "")
	}
}

// content parses the rest of a tag, a body and the end tag.
func (p *parser) content(closing string) expr {
	p.expect("%}")
	body, _ := p.body(closing)
	p.expect("%}")
	return body
}

// statement parses a tag and what belongs to it; its value is the text that it writes.
func (p *parser) statement(tag string) expr {
	switch tag {
	case "if":
		return p.ifs()
	case "for":
		return p.fors()
	case "set":
		assign := p.target()
		var e expr
		if p.has("=") {
			e = p.sequence(p.expression)
			p.expect("%}")
		} else {
			e = p.filtered("endset", false)
		}
		return silent(func(r *run) { assign(r, e(r)) })
	case "filter":
		return p.filtered("endfilter", true)
	case "macro":
		label := p.name()
		macro := p.macro(label, p.signature(notProvided), "endmacro")
		return silent(func(r *run) { r.scope.vars[label] = macro(r) })
	case "call": // of a macro, which gets the body as caller
		params := signature{}
		if p.is("(") {
			params = p.signature(notProvided)
		}
		callee := p.primary()
		check(p.is("("), "TemplateSyntaxError: expected call")
		c := p.call(callee)
		c.add("caller", p.macro("caller", params, "endcall"))
		return c.value
	case "generation": // marks what the model wrote; here only a scope
		loops := p.loops
		p.loops = 0
		content := p.content("endgeneration")
		p.loops = loops
		return func(r *run) any { return r.within(r.scope, content) }
	case "break", "continue":
		check(p.loops > 0, "TemplateSyntaxError: '%s' outside loop", tag)
		p.expect("%}")
		return silent(func(r *run) { r.jump = tag })
	}
	return constant(fail("TemplateSyntaxError: unknown or unsupported tag '%s'", tag))
}

// silent is a statement that writes nothing.
func silent(do func(*run)) expr {
	return func(r *run) any {
		do(r)
		return ""
	}
}

func (p *parser) ifs() expr {
	cond := p.sequence(p.simple)
	p.expect("%}")
	then, tag := p.body("elif", "else", "endif")
	return branch(cond, then, p.otherwise(tag, "endif"))
}

// otherwise parses what stands behind a body that ended with the given tag: a further condition, an else, or nothing.
func (p *parser) otherwise(tag, closing string) expr {
	switch tag {
	case "elif":
		defer p.deeper()()
		return p.ifs()
	case "else":
		return p.content(closing)
	}
	p.expect("%}")
	return block(nil)
}

// target parses what a for or set assigns to: names, attributes of namespaces, or targets in parentheses.
func (p *parser) target() func(*run, any) {
	defer p.deeper()()
	var parts []func(*run, any)
	for more := true; more; more = p.has(",") {
		if p.has("(") {
			parts = append(parts, p.target())
			p.expect(")")
			continue
		}
		label := p.name()
		_, isConstant := constants[label]
		check(!isConstant, "TemplateSyntaxError: can't assign to '%s'", label)
		assign := func(r *run, v any) { r.scope.vars[label] = v }
		if p.has(".") {
			attr := p.name()
			assign = func(r *run, v any) { as[*namespace](r.variable(label)).set(r, attr, v) }
		}
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

// filtered parses the rest of a tag with filters, the first maybe without "|", and the content that they are applied to.
func (p *parser) filtered(closing string, named bool) expr {
	var content expr
	e := func(r *run) any { return r.within(r.scope, content) }
	for ; named || p.has("|"); named = false {
		e = p.filter(e, "filter")
	}
	content = p.content(closing)
	return e
}

// loop is the variable of that name within a for.
type loop struct {
	items    []any
	i, depth int
	again    *function // of a recursive loop
}

func (p *parser) fors() expr {
	assign := p.target()
	p.expect("in")
	over, test := p.sequence(p.simple), constant(true)
	if p.has("if") {
		test = p.expression()
	}
	recursive := p.has("recursive")
	p.expect("%}")
	p.loops++
	body, tag := p.body("else", "endfor")
	p.loops--
	other := p.otherwise(tag, "endfor")
	var visit func(r *run, around *scope, v any, depth int) string
	visit = func(r *run, around *scope, v any, depth int) string {
		l := &loop{depth: depth, items: r.keep(r.iterate(v), func(e any) bool {
			return r.within(around, func(*run) any {
				assign(r, e)
				return truth(test(r))
			}) == true
		})}
		if recursive {
			l.again = &function{signature: signature{[]string{"items"}, []expr{constant(nil)}}, label: "loop", do: func(r *run) any {
				return visit(r, around, r.scope.vars["items"], depth+1)
			}}
		}
		var written []any
		empty := true // no iteration came to its end
		for ; l.i < len(l.items) && r.jump != "break"; l.i++ {
			r.jump = ""
			written = append(written, r.within(around, func(*run) any {
				assign(r, l.items[l.i])
				r.scope.vars["loop"] = l
				return body(r)
			}))
			empty = empty && r.jump != ""
		}
		if r.jump = ""; empty {
			written = append(written, r.within(around, other))
		}
		return r.join(written, "")
	}
	return func(r *run) any { return visit(r, r.scope, over(r), 1) }
}

// keep is the elements that pass.
func (r *run) keep(items []any, pass func(any) bool) []any {
	kept := []any{}
	for _, e := range items {
		if r.spend(perValue); pass(e) {
			kept = append(kept, e)
		}
	}
	return kept
}

func notProvided(param string) any {
	return undefined("UndefinedError: parameter '" + param + "' was not provided")
}

// macro parses the rest of a macro or of a call. The result is the macro as a value that sees the scope of its definition.
func (p *parser) macro(label string, s signature, closing string) expr {
	loops, special := p.loops, p.special
	p.loops, p.special = 0, map[string]bool{} // a loop around the macro cannot be left from within
	f := function{signature: s, special: p.special, label: "Macro '" + label + "'", do: p.content(closing)}
	p.loops, p.special = loops, special
	for _, param := range s.params {
		delete(f.special, param)
	}
	return func(r *run) any {
		macro := f
		macro.around = r.scope
		return &macro
	}
}
