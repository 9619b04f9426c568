package jinja

import (
	"cmp"
	"math"
	"math/big"
	"slices"
	"strings"
)

const maxBits = 14000 // of an integer; Python refuses to write longer ones

// asInt is an integer or a bool; nil for other values.
func asInt(v any) *big.Int {
	switch v := v.(type) {
	case bool:
		return big.NewInt(map[bool]int64{true: 1}[v])
	case int64:
		return big.NewInt(v)
	case *big.Int:
		return v
	}
	return nil
}

func asFloat(v any) (f float64, ok bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case int64:
		return float64(v), true
	}
	i := asInt(v)
	if i != nil {
		f, _ = i.Float64()
	}
	return f, i != nil
}

func simplest(i *big.Int) any {
	check(i.BitLen() <= maxBits, "ValueError: integer of more than %d bits", maxBits)
	if i.IsInt64() {
		return i.Int64()
	}
	return i
}

// whole is f without its fraction; nil where it is not finite.
func whole(f float64) *big.Int {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	i, _ := big.NewFloat(f).Int(nil)
	return i
}

// small is an integer for a size or position: far beyond every budget, but no product with a size overflows.
func small(v any) int {
	i := asInt(v)
	check(i != nil && i.BitLen() <= 36, "TypeError: a size or position must be a small int, not %s", typeName(v))
	return int(i.Int64())
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
	x, y := asInt(a), asInt(b)
	if x != nil && y != nil && op != "/" && (op != "**" || y.Sign() >= 0) {
		return onInts(op, x, y)
	}
	f, isNumber := asFloat(a)
	if g, ok := asFloat(b); ok && isNumber {
		return onFloats(op, f, g)
	}
	if s, ok := a.(string); ok && op == "%" {
		return r.percent(s, b)
	}
	if op == "*" && x != nil {
		a, b = b, a
	}
	v, isSeq := a.(*seq)
	isSeq = isSeq && isArray(v)
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

func isArray(v *seq) bool { return v.kind == "list" || v.kind == "tuple" }

func onInts(op string, x, y *big.Int) any {
	z := new(big.Int)
	switch op {
	case "+":
		z.Add(x, y)
	case "-":
		z.Sub(x, y)
	case "*":
		z.Mul(x, y)
	case "**":
		check(y.IsInt64() && y.Int64() <= int64(maxBits/max(1, x.BitLen())), "ValueError: integer of more than %d bits", maxBits)
		z.Exp(x, y, nil)
	default:
		check(y.Sign() != 0, "ZeroDivisionError: integer division or modulo by zero")
		z.Mul(x, big.NewInt(int64(y.Sign())))
		z.Div(z, new(big.Int).Abs(y)) // division by a positive number rounds down, as Python's does
		if op == "%" {
			z.Sub(x, z.Mul(z, y))
		}
	}
	return simplest(z)
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
		z = math.Floor((f-m)/g + 0.5)
	case "%":
		z = m
	case "**":
		z = math.Pow(f, g)
	}
	check(whole(z) != nil || whole(f) == nil || whole(g) == nil, "ZeroDivisionError: %v %s %v is not finite", f, op, g)
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
			w, has := y.get(r, x.keys[i])
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
	f, isNumber := asFloat(a)
	if g, ok := asFloat(b); ok && isNumber {
		if c := cmp.Compare(f, g); c != 0 || math.Abs(f) < 1<<53 {
			return c
		}
		if x, y := asInt(a), asInt(b); x != nil && y != nil {
			return x.Cmp(y)
		}
		return 0
	}
	switch a := a.(type) {
	case string:
		if b, ok := b.(string); ok {
			r.step(min(len(a), len(b)) / 32)
			return strings.Compare(a, b)
		}
	case *seq:
		if b, ok := b.(*seq); ok && a.kind == b.kind && isArray(a) {
			defer r.deeper()()
			for i := range min(len(a.items), len(b.items)) {
				if !r.equal(a.items[i], b.items[i]) {
					return r.compare(op, a.items[i], b.items[i])
				}
			}
			return cmp.Compare(len(a.items), len(b.items))
		}
	}
	fail("TypeError: '%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
	return 0
}

func (r *run) contains(box, v any) bool {
	switch box := box.(type) {
	case string:
		s, ok := v.(string)
		check(ok, "TypeError: 'in <string>' requires string as left operand, not %s", typeName(v))
		r.step(len(box) / 32)
		return strings.Contains(box, s)
	case *dict:
		_, ok := box.get(r, v)
		return ok
	}
	return slices.ContainsFunc(r.iterate(box), func(e any) bool { return r.equal(e, v) })
}
