package jinja

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"strings"
)

// exact bounds the integers that floats hold exactly: others have no arithmetic.
const exact = 1 << 53

// integer is the value of an int or a bool.
func integer(v any) (i int, ok bool) {
	check(reflect.TypeOf(v) != reflect.TypeFor[long](), "OverflowError: an integer of more than 64 bits can only be shown")
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
	i, ok := integer(v)
	check(max(i, -i) <= exact, "OverflowError: an integer of more than 53 bits can only be shown and compared with integers")
	return float64(i), ok
}

func isNumber(v any) bool { return slices.Contains([]string{"int", "float", "bool"}, typeName(v)) }

func finite(f float64) bool { return math.Abs(f) <= math.MaxFloat64 }

// whole is f without its fraction.
func whole(f float64) int {
	check(math.Abs(f) < exact, "OverflowError: float %v is infinite or an integer of more than 53 bits", f)
	return int(f)
}

// small is an integer for a size or position of at most 36 bits: far beyond every limit, but no product with a size overflows.
func small(v any) int {
	i, ok := integer(v)
	check(ok && i>>36 == i>>63, "TypeError: a size or position must be a small int, not %s", typeName(v))
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
	if s, ok := a.(string); ok && op == "%" {
		return r.percent(s, b)
	} else if op == "*" && isNumber(a) {
		a, b = b, a
	}
	r.spend(size(a) + size(b))
	kind := typeName(a)
	switch kind + " " + op + " " + typeName(b) {
	case "str + str":
		return a.(string) + b.(string)
	case "Markup + Markup", "Markup + str", "str + Markup":
		return r.escape(a) + r.escape(b)
	case "list + list", "tuple + tuple":
		return &seq{kind: kind, items: slices.Concat(a.(*seq).items, b.(*seq).items)}
	case "str * int", "str * bool":
		r.spend(size(a) * max(small(b), 0))
		return strings.Repeat(a.(string), max(small(b), 0))
	case "list * int", "list * bool", "tuple * int", "tuple * bool":
		r.spend(size(a) * max(small(b), 0))
		return &seq{kind: kind, items: slices.Repeat(a.(*seq).items, max(small(b), 0))}
	}
	mustExist(a, b)
	check(isNumber(a) && isNumber(b), "TypeError: unsupported operand type(s) for %s: '%s' and '%s'", op, kind, typeName(b))
	x, _ := asFloat(a)
	y, _ := asFloat(b)
	check(y != 0 || !strings.Contains("//%", op), "ZeroDivisionError: division by zero")
	z := floats[op](x, y)
	check(!math.IsNaN(z) && (op != "**" || finite(z)), "OverflowError or not supported: %v %s %v", x, op, y)
	if kind == "float" || typeName(b) == "float" || op == "/" || op == "**" && y < 0 {
		return z
	}
	check(math.Abs(z) < exact, "OverflowError: an integer of more than 53 bits is not supported")
	return int(z)
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
	if m != 0 && (m < 0) != (y < 0) {
		m += y
	}
	return math.Copysign(m, y)
}

// equal is Python's ==.
func (r *run) equal(a, b any) bool {
	a, b = plain(a), plain(b)
	r.spend(perValue + min(size(a), size(b)))
	if isNumber(a) && isNumber(b) {
		return r.compare("==", a, b) == 0
	}
	defer r.deeper()()
	switch x := a.(type) {
	case *seq:
		y, ok := b.(*seq)
		return ok && x.kind == y.kind && slices.EqualFunc(x.items, y.items, r.equal)
	case *dict:
		y, ok := b.(*dict)
		return ok && len(x.keys) == len(y.keys) && !slices.ContainsFunc(x.keys, func(k any) bool {
			v, _ := x.get(k)
			w, has := y.get(k)
			return !has || !r.equal(v, w)
		})
	case undefined:
		return typeName(b) == "Undefined"
	}
	return a == b
}

// compare orders a and b; op is for the error message.
func (r *run) compare(op string, a, b any) int {
	mustExist(a, b)
	r.spend(perValue + min(size(a), size(b)))
	switch x := a.(type) {
	case *seq:
		if y, ok := b.(*seq); ok && x.kind == y.kind && (x.kind == "list" || x.kind == "tuple") {
			defer r.deeper()()
			return slices.CompareFunc(x.items, y.items, func(a, b any) int {
				if r.equal(a, b) {
					return 0
				}
				return r.compare(op, a, b)
			})
		}
	case string:
		if y, ok := b.(string); ok {
			return strings.Compare(x, y)
		}
	case int:
		if y, ok := b.(int); ok {
			return cmp.Compare(x, y)
		}
	}
	x, ok := asFloat(a)
	y, both := asFloat(b)
	check(ok && both, "TypeError: '%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
	return cmp.Compare(x, y)
}

func (r *run) contains(box, v any) bool {
	switch box := plain(box).(type) {
	case string:
		s, ok := plain(v).(string)
		check(ok, "TypeError: 'in <string>' requires string as left operand, not %s", typeName(v))
		r.spend(len(box))
		return strings.Contains(box, s)
	case *dict:
		_, ok := box.get(v)
		return ok
	}
	return slices.ContainsFunc(r.iterate(box), func(e any) bool { return r.equal(e, v) })
}
