package jinja

import (
	"cmp"
	"math"
	"math/big"
	"slices"
	"strings"
)

// maxBits bounds integers; Python shows none of more than 4,300 digits.
const maxBits = 1 << 16

// integer is the value of an int or a bool; nil for others.
func integer(v any) *big.Int {
	switch v := v.(type) {
	case int:
		return big.NewInt(int64(v))
	case *big.Int:
		return v
	case bool:
		if v {
			return big.NewInt(1)
		}
		return new(big.Int)
	}
	return nil
}

// normal is the value of an integer: an int where it can be one.
func normal(z *big.Int) any {
	check(z.BitLen() <= maxBits, "OverflowError: an integer of more than %d bits", maxBits)
	if z.IsInt64() {
		return int(z.Int64())
	}
	return z
}

// newFloat is a number without rounding; nil for other values. It must not be NaN.
func newFloat(v any) *big.Float {
	if f, ok := v.(float64); ok {
		return big.NewFloat(f)
	} else if i := integer(v); i != nil {
		return new(big.Float).SetInt(i)
	}
	return nil
}

func asFloat(v any) (f float64, ok bool) {
	if f, ok = v.(float64); ok {
		return f, true
	} else if i := integer(v); i != nil {
		f, _ = new(big.Float).SetInt(i).Float64()
		check(finite(f), "OverflowError: int too large to convert to float")
		return f, true
	}
	return 0, false
}

func isNumber(v any) bool { return slices.Contains([]string{"int", "float", "bool"}, typeName(v)) }

func isNaN(v any) bool { f, ok := v.(float64); return ok && math.IsNaN(f) }

func finite(f float64) bool { return math.Abs(f) <= math.MaxFloat64 }

// whole is f without its fraction.
func whole(f float64) any {
	check(finite(f), "OverflowError: cannot convert float infinity or NaN to integer")
	i, _ := big.NewFloat(f).Int(nil)
	return normal(i)
}

// small is an integer for a size or position: far beyond every limit, but no product with a size overflows.
func small(v any) int {
	i := integer(v)
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
		return !isNaN(a) && !isNaN(b) && (c < 0 && op[0] == '<' || c > 0 && op[0] == '>' || c == 0 && len(op) == 2)
	case "~":
		a, b, op = r.str(a), r.str(b), "+"
	}
	if s, ok := a.(string); ok && op == "%" {
		return r.percent(s, b)
	}
	if x, y := typeName(a), typeName(b); op == "+" && (x == "Markup" && y == "str" || y == "Markup" && (x == "str" || x == "Markup")) {
		return r.escape(a) + r.escape(b)
	}
	mustExist(a, b)
	r.spend(size(a) + size(b))
	if x, y := integer(a), integer(b); x != nil && y != nil && (op != "**" || y.Sign() >= 0) {
		return integers(op, x, y)
	} else if isNumber(a) && isNumber(b) {
		x, _ := asFloat(a)
		y, _ := asFloat(b)
		z := floats[op](x, y)
		check(y != 0 || !strings.Contains("//%", op), "ZeroDivisionError: division by zero")
		check(op != "**" || finite(z) || !finite(x) || !finite(y), "OverflowError or a complex number: %v ** %v", x, y)
		return z
	}
	if op == "*" && integer(a) != nil {
		a, b = b, a
	}
	switch kind := typeName(a); {
	case kind != "str" && kind != "list" && kind != "tuple":
	case op == "*":
		n := max(small(b), 0)
		r.spend(size(a) * n)
		if s, ok := a.(*seq); ok {
			return &seq{kind: kind, items: slices.Repeat(s.items, n)}
		}
		return strings.Repeat(a.(string), n)
	case op == "+" && kind == typeName(b):
		if s, ok := a.(string); ok {
			return s + b.(string)
		}
		return &seq{kind: kind, items: slices.Concat(a.(*seq).items, b.(*seq).items)}
	}
	return fail("TypeError: unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
}

func integers(op string, x, y *big.Int) any {
	z := new(big.Int)
	switch op {
	case "+":
		z.Add(x, y)
	case "-":
		z.Sub(x, y)
	case "*":
		z.Mul(x, y)
	case "**":
		check(x.BitLen() <= 1 || y.IsInt64() && y.Int64() <= maxBits/int64(x.BitLen()-1), "OverflowError: an integer of too many bits")
		z.Exp(x, y, nil)
	default:
		check(y.Sign() != 0, "ZeroDivisionError: division by zero")
		if op == "/" {
			f, _ := new(big.Rat).SetFrac(x, y).Float64()
			check(finite(f), "OverflowError: integer division result too large for a float")
			return math.Copysign(f, float64(cmp.Or(x.Sign(), 1)*y.Sign()))
		}
		_, m := z.QuoRem(x, y, new(big.Int))
		if m.Sign()*y.Sign() < 0 { // rounded down, the remainder has the sign of the divisor
			z.Sub(z, big.NewInt(1))
			m.Add(m, y)
		}
		if op == "%" {
			z = m
		}
	}
	return normal(z)
}

var floats = map[string]func(x, y float64) float64{
	"+":  func(x, y float64) float64 { return x + y },
	"-":  func(x, y float64) float64 { return x - y },
	"*":  func(x, y float64) float64 { return x * y },
	"/":  func(x, y float64) float64 { return x / y },
	"//": func(x, y float64) float64 { return math.Copysign(math.Round((x-modulo(x, y))/y), x/y) },
	"%":  modulo,
	"**": math.Pow,
}

func modulo(x, y float64) float64 {
	m := math.Mod(x, y)
	if m == 0 {
		return math.Copysign(0, y)
	} else if (m < 0) != (y < 0) {
		m += y
	}
	return m
}

// equal is Python's ==.
func (r *run) equal(a, b any) bool {
	a, b = plain(a), plain(b)
	r.spend(perValue + min(size(a), size(b)))
	if isNumber(a) && isNumber(b) {
		return !isNaN(a) && !isNaN(b) && r.compare("==", a, b) == 0
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
			v, _ := x.get(r, k)
			w, has := y.get(r, k)
			return !has || !r.equal(v, w)
		})
	case undefined:
		_, ok := b.(undefined)
		return ok
	}
	return a == b
}

// compare orders a and b; op is for the error message.
func (r *run) compare(op string, a, b any) int {
	mustExist(a, b)
	r.spend(perValue + min(size(a), size(b)))
	switch x := a.(type) {
	case string:
		if y, ok := b.(string); ok {
			return strings.Compare(x, y)
		}
	case *seq:
		if y, ok := b.(*seq); ok && x.kind == y.kind && (x.kind == "list" || x.kind == "tuple") {
			defer r.deeper()()
			for i, v := range x.items[:min(len(x.items), len(y.items))] {
				if !r.equal(v, y.items[i]) {
					return r.compare(op, v, y.items[i])
				}
			}
			return cmp.Compare(len(x.items), len(y.items))
		}
	case int:
		if y, ok := b.(int); ok {
			return cmp.Compare(x, y)
		}
	}
	check(isNumber(a) && isNumber(b), "TypeError: '%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
	if isNaN(a) || isNaN(b) { // has no place
		return 0
	}
	return newFloat(a).Cmp(newFloat(b))
}

func (r *run) contains(box, v any) bool {
	switch box := plain(box).(type) {
	case string:
		s, ok := plain(v).(string)
		check(ok, "TypeError: 'in <string>' requires string as left operand, not %s", typeName(v))
		r.spend(len(box))
		return strings.Contains(box, s)
	case *dict:
		_, ok := box.get(r, v)
		return ok
	}
	return slices.ContainsFunc(r.iterate(box), func(e any) bool { return r.equal(e, v) })
}
