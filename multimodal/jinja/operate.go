package jinja

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// asInt is an integer or a bool; ok is false for other values.
func asInt(v any) (i int, ok bool) {
	if v == true {
		return 1, true
	}
	i, ok = v.(int)
	return i, ok || v == false
}

func asFloat(v any) (f float64, ok bool) {
	if f, ok = v.(float64); ok {
		return f, true
	}
	i, ok := asInt(v)
	return float64(i), ok
}

func finite(f float64) bool { return math.Abs(f) <= math.MaxFloat64 }

// exact is f without its fraction; beyond 2**53, where floats skip integers, it fails.
func exact(f float64) int {
	check(math.Abs(f) <= 1<<53, "OverflowError: integers that are computed must be within 2**53, as %v is not", f)
	return int(f)
}

// small is an integer for a size or position: far beyond every limit, but no product with a size overflows.
func small(v any) int {
	i, ok := asInt(v)
	check(ok && max(i, -i) >= 0 && max(i, -i) < 1<<36, "TypeError: a size or position must be a small int, not %s", typeName(v))
	return i
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
	x, isNumber := asFloat(a)
	if y, ok := asFloat(b); ok && isNumber {
		z := arithmetic[op](x, y)
		check(finite(z) || strings.Contains("+-*", op) || !finite(x) || !finite(y), "ZeroDivisionError: %v %s %v is not finite", x, op, y)
		if typeName(a) != "float" && typeName(b) != "float" && op != "/" && (op != "**" || y >= 0) {
			exact(x)
			exact(y)
			return exact(z)
		}
		return z
	}
	if op == "*" && isNumber {
		a, b = b, a
	}
	switch kind := typeName(a); {
	case kind == "str" && op == "%":
		return r.percent(a.(string), b)
	case kind != "str" && kind != "list" && kind != "tuple":
	case op == "*":
		return r.repeat(a, small(b))
	case op == "+" && kind == typeName(b):
		r.spend(size(a) + size(b))
		if s, ok := a.(string); ok {
			return s + b.(string)
		}
		return &seq{kind: kind, items: slices.Concat(a.(*seq).items, b.(*seq).items)}
	}
	return fail("TypeError: unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
}

// repeat is a text, list or tuple n times.
func (r *run) repeat(v any, n int) any {
	n = max(n, 0)
	r.spend(size(v) * n)
	if s, ok := v.(*seq); ok {
		return &seq{kind: s.kind, items: slices.Repeat(s.items, n)}
	}
	return strings.Repeat(v.(string), n)
}

var arithmetic = map[string]func(x, y float64) float64{
	"+":  func(x, y float64) float64 { return x + y },
	"-":  func(x, y float64) float64 { return x - y },
	"*":  func(x, y float64) float64 { return x * y },
	"/":  func(x, y float64) float64 { return x / y },
	"//": func(x, y float64) float64 { return math.Round((x - modulo(x, y)) / y) },
	"%":  modulo,
	"**": math.Pow,
}

// modulo is Python's remainder, which has the sign of the divisor.
func modulo(x, y float64) float64 {
	m := math.Mod(x, y)
	if m != 0 && (m < 0) != (y < 0) {
		m += y
	}
	return m
}

// equal is Python's ==.
func (r *run) equal(a, b any) bool {
	r.spend(perValue + min(size(a), size(b)))
	_, isNumber := asFloat(a)
	if _, ok := asFloat(b); ok && isNumber {
		return r.compare("==", a, b) == 0
	}
	switch x := a.(type) {
	case *seq:
		defer r.deeper()()
		y, ok := b.(*seq)
		return ok && x.kind == y.kind && slices.EqualFunc(x.items, y.items, r.equal)
	case *dict:
		defer r.deeper()()
		y, ok := b.(*dict)
		return ok && len(x.keys) == len(y.keys) && !slices.ContainsFunc(x.keys, func(k any) bool {
			v, has := y.values[k]
			return !has || !r.equal(x.values[k], v)
		})
	case undefined:
		return missing(b)
	}
	return a == b
}

// compare orders a and b; op is for the error message.
func (r *run) compare(op string, a, b any) int {
	mustExist(a, b)
	r.spend(perValue + min(size(a), size(b)))
	i, isInt := asInt(a)
	if j, ok := asInt(b); ok && isInt {
		return cmp.Compare(i, j)
	}
	x, isNumber := asFloat(a)
	if y, ok := asFloat(b); ok && isNumber {
		return cmp.Compare(x, y)
	}
	s, isText := a.(string)
	t, ok := b.(string)
	check(ok && isText, "TypeError: '%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
	return strings.Compare(s, t)
}

func (r *run) contains(box, v any) bool {
	switch box := box.(type) {
	case string:
		s, ok := v.(string)
		check(ok, "TypeError: 'in <string>' requires string as left operand, not %s", typeName(v))
		r.spend(len(box))
		return strings.Contains(box, s)
	case *dict:
		_, ok := box.get(v)
		return ok
	}
	return slices.ContainsFunc(r.iterate(box), func(e any) bool { return r.equal(e, v) })
}
