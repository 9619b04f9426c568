package jinja

import (
	"cmp"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

const maxBits = 14000 // of an integer; Python refuses to write longer ones

func asInt(v any) (*big.Int, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return big.NewInt(1), true
		}
		return big.NewInt(0), true
	case int64:
		return big.NewInt(v), true
	case *big.Int:
		return v, true
	}
	return nil, false
}

func asFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case int64:
		return float64(v), true
	}
	i, ok := asInt(v)
	if !ok {
		return 0, false
	}
	f, _ := new(big.Float).SetInt(i).Float64()
	return f, true
}

func simplest(i *big.Int) any {
	if i.IsInt64() {
		return i.Int64()
	}
	if i.BitLen() > maxBits {
		fail("ValueError: integer of more than %d bits", maxBits)
	}
	return i
}

// parseInt reads what the lexer or a JSON decoder took for an integer.
func parseInt(s string, base int) any {
	if len(s) > maxBits/3 {
		fail("ValueError: integer of more than %d digits", maxBits/3)
	}
	i, ok := new(big.Int).SetString(s, base)
	if !ok {
		fail("ValueError: %q is not an integer", s)
	}
	return simplest(i)
}

// arithmetic is a op b for + - * / // % **.
func (r *run) arithmetic(op string, a, b any) any {
	mustExist(a)
	mustExist(b)
	x, isInt := asInt(a)
	y, ok := asInt(b)
	if isInt = isInt && ok; isInt && op != "/" && (op != "**" || y.Sign() >= 0) {
		return integers2(op, x, y)
	}
	f, isNumber := asFloat(a)
	g, ok := asFloat(b)
	if isNumber && ok {
		return floats2(op, f, g)
	}
	switch left := a.(type) {
	case string:
		switch right, ok := b.(string); {
		case op == "%":
			return r.percent(left, b)
		case op == "+" && ok:
			r.made(len(left) + len(right))
			return left + right
		case op == "+":
			fail("TypeError: can only concatenate str (not \"%s\") to str", typeName(b))
		}
	case []any:
		if right, ok := b.([]any); ok && op == "+" {
			r.made(perElement * (len(left) + len(right)))
			return slices.Concat(left, right)
		}
	case tuple:
		if right, ok := b.(tuple); ok && op == "+" {
			r.made(perElement * (len(left) + len(right)))
			return slices.Concat(left, right)
		}
	}
	if op == "*" {
		if y != nil {
			return r.repeat(a, b, y)
		} else if x != nil {
			return r.repeat(b, b, x)
		}
	}
	fail("TypeError: unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	return nil
}

func (r *run) repeat(v, other any, times *big.Int) any {
	n := 0
	if times.Sign() > 0 {
		n = maxBytes
		if times.IsInt64() {
			n = int(min(times.Int64(), maxBytes))
		}
	}
	r.made(size(v) * n)
	switch v := v.(type) {
	case string:
		return strings.Repeat(v, n*min(1, len(v)))
	case []any:
		return slices.Repeat(v, n*min(1, len(v)))
	case tuple:
		return slices.Repeat(v, n*min(1, len(v)))
	}
	fail("TypeError: unsupported operand type(s) for *: '%s' and '%s'", typeName(v), typeName(other))
	return nil
}

func integers2(op string, x, y *big.Int) any {
	z := new(big.Int)
	switch op {
	case "+":
		z.Add(x, y)
	case "-":
		z.Sub(x, y)
	case "*":
		z.Mul(x, y)
	case "**":
		if x.BitLen() > 1 && (!y.IsInt64() || y.Int64() > maxBits || int(y.Int64())*(x.BitLen()-1) > maxBits) {
			fail("ValueError: integer of more than %d bits", maxBits)
		} else if x.BitLen() <= 1 { // -1, 0, 1: only whether y is zero or odd matters
			y = new(big.Int).Add(big.NewInt(int64(y.Bit(0))), big.NewInt(2*int64(y.Sign())))
		}
		z.Exp(x, y, nil)
	default:
		if y.Sign() == 0 {
			fail("ZeroDivisionError: integer division or modulo by zero")
		}
		m := new(big.Int)
		z.QuoRem(x, y, m)
		if m.Sign() != 0 && m.Sign() != y.Sign() { // Python rounds down
			z.Sub(z, big.NewInt(1))
			m.Add(m, y)
		}
		if op == "%" {
			z = m
		}
	}
	return simplest(z)
}

func floats2(op string, f, g float64) any {
	if g == 0 && (op == "/" || op == "//" || op == "%") || f == 0 && g < 0 && op == "**" {
		fail("ZeroDivisionError: float division by zero")
	}
	switch op {
	case "+":
		return f + g
	case "-":
		return f - g
	case "*":
		return f * g
	case "/":
		return f / g
	case "**":
		p := math.Pow(f, g)
		if f < 0 && g != math.Trunc(g) || math.IsInf(p, 0) && !math.IsInf(f, 0) && !math.IsInf(g, 0) {
			fail("OverflowError: %v ** %v is no float", f, g)
		}
		return p
	}
	m := math.Mod(f, g)
	if m != 0 && (m < 0) != (g < 0) {
		m += g
	}
	if op == "%" {
		return m
	}
	return math.Floor((f-m)/g + 0.5)
}

// equal is Python's ==.
func (r *run) equal(a, b any) bool {
	r.step(1)
	if x, ok := asFloat(a); ok {
		y, ok := asFloat(b)
		return ok && x == y && compareNumbers(a, b) == 0
	}
	switch a := a.(type) {
	case string:
		b, ok := b.(string)
		r.step(min(len(a), len(b)) / 32)
		return ok && a == b
	case []any:
		b, ok := b.([]any)
		return ok && r.equalLists(a, b)
	case tuple:
		b, ok := b.(tuple)
		return ok && r.equalLists(a, b)
	case *dict:
		b, ok := b.(*dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		r.enter()
		defer r.leave()
		for k, v := range a.all() {
			if w, ok := b.get(r, k); !ok || !r.equal(v, w) {
				return false
			}
		}
		return true
	case undefined:
		_, ok := b.(undefined)
		return ok
	case *bound:
		b, ok := b.(*bound)
		return ok && a.name == b.name && r.equal(a.self, b.self)
	}
	return typeName(a) == typeName(b) && a == b // pointers and nil
}

func (r *run) equalLists(a, b []any) bool {
	r.enter()
	defer r.leave()
	return slices.EqualFunc(a, b, r.equal)
}

func compareNumbers(a, b any) int {
	if i, ok := a.(int64); ok {
		if j, ok := b.(int64); ok {
			return cmp.Compare(i, j)
		}
	}
	x, ok := asInt(a)
	y, ok2 := asInt(b)
	if ok && ok2 {
		return x.Cmp(y)
	}
	f, _ := asFloat(a)
	g, _ := asFloat(b)
	return cmp.Compare(f, g)
}

// compare orders a and b; op is for the error message.
func (r *run) compare(op string, a, b any) int {
	r.step(1)
	_, ok := asFloat(a)
	_, ok2 := asFloat(b)
	if ok && ok2 {
		return compareNumbers(a, b)
	}
	mustExist(a)
	mustExist(b)
	switch a := a.(type) {
	case string:
		if b, ok := b.(string); ok {
			r.step(min(len(a), len(b)) / 32)
			return strings.Compare(a, b)
		}
	case []any:
		if b, ok := b.([]any); ok {
			return r.compareLists(op, a, b)
		}
	case tuple:
		if b, ok := b.(tuple); ok {
			return r.compareLists(op, a, b)
		}
	}
	fail("TypeError: '%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
	return 0
}

func (r *run) compareLists(op string, a, b []any) int {
	r.enter()
	defer r.leave()
	for i := range min(len(a), len(b)) {
		if !r.equal(a[i], b[i]) {
			return r.compare(op, a[i], b[i])
		}
	}
	return cmp.Compare(len(a), len(b))
}

// relation is a op b for the comparison operators and in.
func (r *run) relation(op string, a, b any) bool {
	switch op {
	case "==":
		return r.equal(a, b)
	case "!=":
		return !r.equal(a, b)
	case "in":
		return r.contains(b, a)
	case "not in":
		return !r.contains(b, a)
	}
	f, isFloat := a.(float64)
	g, ok := b.(float64)
	if isFloat && math.IsNaN(f) || ok && math.IsNaN(g) {
		return false
	}
	c := r.compare(op, a, b)
	return c < 0 && op[0] == '<' || c > 0 && op[0] == '>' || c == 0 && len(op) == 2
}

func (r *run) contains(box, v any) bool {
	switch box := box.(type) {
	case string:
		s, ok := v.(string)
		if !ok {
			fail("TypeError: 'in <string>' requires string as left operand, not %s", typeName(v))
		}
		r.step(len(box) / 32)
		return strings.Contains(box, s)
	case *dict:
		return box.has(r, v)
	case nil, bool, int64, float64, *big.Int, *namespace, *macro, *bound:
		fail("TypeError: argument of type '%s' is not iterable", typeName(box))
	}
	return slices.ContainsFunc(r.iterate(box), func(e any) bool { return r.equal(e, v) })
}

// number reads a Python number literal.
func number(k kind, s string) any {
	s = strings.ReplaceAll(s, "_", "")
	if k == float {
		f, _ := strconv.ParseFloat(s, 64) // beyond the range: infinity
		return f
	}
	base := 10
	if len(s) > 2 && s[0] == '0' {
		if b := map[byte]int{'b': 2, 'o': 8, 'x': 16}[s[1]|0x20]; b != 0 {
			s, base = s[2:], b
		}
	}
	return parseInt(s, base)
}
