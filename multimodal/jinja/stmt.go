package jinja

import (
	"maps"
	"slices"
)

// body parses up to a block tag with one of the names, which it takes, or to the end if there are none.
func (p *parser) body(ends ...string) (stmt, string) {
	defer p.deeper()()
	opened, depth := p.at, p.depth
	var list []stmt
	for {
		var s stmt
		t := p.take()
		p.depth = depth
		switch {
		case t.kind == endOfFile:
			p.at = opened
			check(len(ends) == 0, "TemplateSyntaxError: unexpected end of template, expected one of %v", ends)
			return block(list), ""
		case t.kind == data:
			s = func(r *run) { r.put(t.text) }
		case t.text == "{{":
			e := p.sequence(p.expression)
			p.expect("}}")
			s = func(r *run) { r.put(r.str(e(r))) }
		default:
			tag := p.name()
			if slices.Contains(ends, tag) {
				return block(list), tag
			}
			s = p.statement(tag)
		}
		list = append(list, func(r *run) {
			r.at = t.at
			r.spend(perValue)
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

// content parses the rest of a tag, a body and the end tag.
func (p *parser) content(closing string) stmt {
	p.expect("%}")
	body, _ := p.body(closing)
	p.expect("%}")
	return body
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
		label := p.name()
		macro := p.macro(label, p.signature(), "endmacro")
		return func(r *run) { r.scope.vars[label] = macro(r) }
	case "call": // of a macro, which gets the body as caller
		params := signature{}
		if p.is("(") {
			params = p.signature()
		}
		callee := p.primary()
		check(p.is("("), "TemplateSyntaxError: expected call")
		args, caller := p.arguments(callee), p.macro("caller", params, "endcall")
		return func(r *run) {
			pos, named := args(r)
			named.put(r, "caller", caller(r))
			r.put(r.str(r.call(r.callee(pos[0]), pos[1:], named)))
		}
	case "filter":
		var content stmt
		e := p.filters(p.filter(captured(&content), "filter"))
		content = p.content("endfilter")
		return func(r *run) { r.put(r.str(e(r))) }
	case "generation": // marks what the model wrote; here only a scope
		loops := p.loops
		p.loops = 0
		content := p.content("endgeneration")
		p.loops = loops
		return func(r *run) { r.within(r.scope, content) }
	case "break", "continue":
		check(p.loops > 0, "TemplateSyntaxError: '%s' outside loop", tag)
		p.expect("%}")
		return func(r *run) { r.jump = tag }
	}
	fail("TemplateSyntaxError: unknown or unsupported tag '%s'", tag)
	return nil
}

func (p *parser) ifs() stmt {
	cond := p.sequence(p.simple)
	p.expect("%}")
	then, tag := p.body("elif", "else", "endif")
	other := p.otherwise(tag, "endif")
	return func(r *run) {
		if truth(cond(r)) {
			then(r)
		} else {
			other(r)
		}
	}
}

// otherwise parses what stands behind a body that ended with the given tag: a further condition, an else, or nothing.
func (p *parser) otherwise(tag, closing string) stmt {
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

func (p *parser) set() stmt {
	assign := p.target()
	if p.has("=") {
		e := p.sequence(p.expression)
		p.expect("%}")
		return func(r *run) { assign(r, e(r)) }
	}
	var content stmt
	e := p.filters(captured(&content))
	content = p.content("endset")
	return func(r *run) { assign(r, e(r)) }
}

// captured is what a body writes.
func captured(body *stmt) expr {
	return func(r *run) any { return r.capture(func() { r.within(r.scope, *body) }) }
}

// filters parses filters behind e.
func (p *parser) filters(e expr) expr {
	for p.has("|") {
		e = p.filter(e, "filter")
	}
	return e
}

// loop is the variable of that name within a for.
type loop struct {
	items    []any
	i, depth int
	last     *seq      // what changed has seen
	again    *function // of a recursive loop
}

func (p *parser) fors() stmt {
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
	var visit func(r *run, around *scope, v any, depth int)
	visit = func(r *run, around *scope, v any, depth int) {
		l := &loop{depth: depth, items: r.keep(r.iterate(v), func(e any) (ok bool) {
			r.within(around, func(*run) {
				assign(r, e)
				ok = truth(test(r))
			})
			return ok
		})}
		if recursive {
			l.again = &function{signature: signature{params: []string{"items"}, defaults: []expr{nil}}, label: "loop"}
			l.again.do = func(r *run, args []any) any {
				return r.capture(func() { visit(r, around, args[0], depth+1) })
			}
		}
		empty := true // no iteration came to its end
		for ; l.i < len(l.items) && r.jump != "break"; l.i++ {
			r.jump = ""
			r.within(around, func(*run) {
				assign(r, l.items[l.i])
				r.scope.vars["loop"] = l
				body(r)
			})
			empty = empty && r.jump != ""
		}
		if r.jump = ""; empty {
			r.within(around, other)
		}
	}
	return func(r *run) { visit(r, r.scope, over(r), 1) }
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

// macro parses the rest of a macro or of a call. The result is the macro as a value that sees the scope of its definition.
func (p *parser) macro(label string, s signature, closing string) func(*run) *function {
	loops, special := p.loops, p.special
	p.loops, p.special = 0, map[string]bool{} // a loop around the macro cannot be left from within
	check(s.special == nil, "TemplateSyntaxError: expected token 'name', got '*'")
	body := p.content(closing)
	s.special = p.special
	maps.DeleteFunc(s.special, func(name string, known bool) bool { return !known || slices.Contains(s.params, name) })
	p.loops, p.special = loops, special
	for i, param := range s.params {
		if s.defaults[i] == nil {
			s.defaults[i] = constant(undefined("UndefinedError: parameter '" + param + "' was not provided"))
		}
	}
	do := func(r *run, _ []any) any { return r.capture(func() { body(r) }) }
	return func(r *run) *function { return &function{s, "Macro '" + label + "'", nil, r.scope, do} }
}
