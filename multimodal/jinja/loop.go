package jinja

// loop is the variable of that name within a for.
type loop struct {
	items    []any
	i, depth int
	again    func(r *run, v any, depth int) any // recursive loops: renders the body over v
}

func (p *parser) fors() stmt {
	assign := p.target()
	p.expect(name, "in")
	over := p.sequence(p.or)
	var test expr
	if p.word("if") {
		test = p.expression()
	}
	recursive := p.word("recursive")
	p.expect(end, "%}")
	p.loops++
	body, tag := p.body("else", "endfor")
	p.loops--
	p.expect(end, "%}")
	other := block(nil)
	if tag == "else" {
		other = p.inner("endfor")
	}
	var walk func(r *run, v any, depth int) flow
	walk = func(r *run, v any, depth int) flow {
		l := &loop{items: r.iterate(v), depth: depth}
		if recursive {
			around := r.scope
			l.again = func(r *run, v any, depth int) any {
				return r.capture(func() { r.within(around, func(*scope) flow { return walk(r, v, depth) }) })
			}
		}
		if test != nil {
			l.items = r.passing(l.items, assign, test)
		}
		for n := 0; l.i < len(l.items); l.i++ {
			n++
			how := r.within(r.scope, func(s *scope) flow {
				assign(r, l.items[l.i])
				s.set("loop", l)
				return body(r)
			})
			if how == breaks {
				break
			}
		}
		if len(l.items) == 0 {
			return other(r)
		}
		return next
	}
	return func(r *run) flow { return walk(r, over(r), 1) }
}

// passing are the items for which the for's own test holds.
func (r *run) passing(items []any, assign func(*run, any), test expr) []any {
	var kept []any
	for _, e := range items {
		r.within(r.scope, func(*scope) flow {
			if assign(r, e); truth(test(r)) {
				kept = append(kept, e)
			}
			return next
		})
	}
	r.made(perElement * len(kept))
	return kept
}

func (l *loop) attribute(name string) (any, bool) {
	n := len(l.items)
	switch name {
	case "index":
		return int64(l.i + 1), true
	case "index0":
		return int64(l.i), true
	case "revindex":
		return int64(n - l.i), true
	case "revindex0":
		return int64(n - l.i - 1), true
	case "first":
		return l.i == 0, true
	case "last":
		return l.i == n-1, true
	case "length":
		return int64(n), true
	case "depth":
		return int64(l.depth), true
	case "depth0":
		return int64(l.depth - 1), true
	case "previtem", "nextitem":
		at := l.i - 1
		if name == "nextitem" {
			at = l.i + 1
		}
		if at < 0 || at >= n {
			return undefined("UndefinedError: there is no previous or next item"), true
		}
		return l.items[at], true
	case "cycle":
		return &bound{name: name, fn: fn{"*", func(c *call) any {
			if len(c.pos) == 0 {
				fail("TypeError: no items for cycling given")
			}
			return c.pos[l.i%len(c.pos)]
		}}}, true
	}
	return nil, false
}
