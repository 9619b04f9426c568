package jinja

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// asInt is an integer or a bool; ok is false for other values.
func asInt(v any) (i int64, ok bool) {
	if v == true {
		return 1, true
	}
	i, ok = v.(int64)
	return i, ok || v == false
}

func asFloat(v any) (f float64, ok bool) {
	if f, ok = v.(float64); ok {
		return f, true
	}
	i, ok := asInt(v)
	return float64(i), ok
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// exact is f without its fraction; beyond 2**53, where floats skip integers, it fails.
func exact(f float64) int64 {
	check(math.Abs(f) <= 1<<53, "OverflowError: integers that are computed must be within 2**53, as %v is not", f)
	return int64(f)
}

// small is an integer for a size or position: far beyond every budget, but no product with a size overflows.
func small(v any) int {
	i, ok := asInt(v)
	check(ok && max(i, -i) >= 0 && max(i, -i) < 1<<36, "TypeError: a size or position must be a small int, not %s", typeName(v))
	return int(i)
}

// operate is a op b for all operators but and, or.
func (r *run) operate(op string, a, b any) any {
	switch op {
	case "==", "!=":
		return r.equal(a, b) == (op == "==")
	case "in", "not in":
		return r.contains(b, a) == (op == "in")
	case "<", "<=", ">", ">=":
		c := r.compare(op, a, b)
		return c < 0 && op[0] == '<' || c > 0 && op[0] == '>' || c == 0 && len(op) == 2
	case "~":
		a, b, op = r.str(a), r.str(b), "+"
	}
	mustExist(a, b)
	_, firstInt := asInt(a)
	_, secondInt := asInt(b)
	f, isNumber := asFloat(a)
	if g, ok := asFloat(b); ok && isNumber {
		z := onFloats(op, f, g)
		if firstInt && secondInt && op != "/" && (op != "**" || g >= 0) {
			exact(f)
			exact(g)
			return exact(z)
		}
		return z
	}
	if s, ok := a.(string); ok && op == "%" {
		return r.percent(s, b)
	}
	if op == "*" && firstInt {
		a, b = b, a
	}
	v, isSeq := a.(*seq)
	isSeq = isSeq && (v.kind == "list" || v.kind == "tuple")
	if s, isText := a.(string); (isText || isSeq) && op == "*" {
		n := max(small(b), 0)
		if r.made(size(a) * n); isText {
			return strings.Repeat(s, n)
		}
		return &seq{kind: v.kind, items: slices.Repeat(v.items, n)}
	} else if op == "+" && typeName(a) == typeName(b) && (isText || isSeq) {
		if r.made(size(a) + size(b)); isText {
			return s + b.(string)
		}
		return &seq{kind: v.kind, items: slices.Concat(v.items, b.(*seq).items)}
	}
	return fail("TypeError: unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
}

func onFloats(op string, f, g float64) (z float64) {
	m := math.Mod(f, g)
	if m != 0 && (m < 0) != (g < 0) { // Python's remainder has the sign of the divisor
		m += g
	}
	switch op {
	case "+":
		return f + g
	case "-":
		return f - g
	case "*":
		return f * g
	case "/":
		z = f / g
	case "//":
		z = math.Round((f - m) / g)
	case "%":
		z = m
	case "**":
		z = math.Pow(f, g)
	}
	check(finite(z) || !finite(f) || !finite(g), "ZeroDivisionError: %v %s %v is not finite", f, op, g)
	return z
}

// equal is Python's ==.
func (r *run) equal(a, b any) bool {
	r.step(1)
	switch x := a.(type) {
	case string:
		y, ok := b.(string)
		r.step(min(len(x), len(y)) / 32)
		return ok && x == y
	case *seq:
		y, ok := b.(*seq)
		defer r.deeper()()
		return ok && x.kind == y.kind && slices.EqualFunc(x.items, y.items, r.equal)
	case *dict:
		y, ok := b.(*dict)
		defer r.deeper()()
		for i := 0; ok && i < len(x.keys); i++ {
			w, has := y.get(x.keys[i])
			ok = has && len(x.keys) == len(y.keys) && r.equal(x.values[i], w)
		}
		return ok && len(x.keys) == len(y.keys)
	case undefined:
		return typeName(b) == "Undefined"
	}
	_, isNumber := asFloat(a)
	if _, ok := asFloat(b); ok && isNumber {
		return r.compare("==", a, b) == 0
	}
	return a == b // pointers and nil
}

// compare orders a and b; op is for the error message.
func (r *run) compare(op string, a, b any) int {
	r.step(1)
	mustExist(a, b)
	x, isInt := asInt(a)
	if y, ok := asInt(b); ok && isInt {
		return cmp.Compare(x, y)
	}
	f, isNumber := asFloat(a)
	if g, ok := asFloat(b); ok && isNumber {
		return cmp.Compare(f, g)
	}
	s, ok := a.(string)
	t, isText := b.(string)
	check(ok && isText, "TypeError: '%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
	r.step(min(len(s), len(t)) / 32)
	return strings.Compare(s, t)
}

func (r *run) contains(box, v any) bool {
	switch box := box.(type) {
	case string:
		s, ok := v.(string)
		check(ok, "TypeError: 'in <string>' requires string as left operand, not %s", typeName(v))
		r.step(len(box) / 32)
		return strings.Contains(box, s)
	case *dict:
		_, ok := box.get(v)
		return ok
	}
	return slices.ContainsFunc(r.iterate(box), func(e any) bool { return r.equal(e, v) })
}
