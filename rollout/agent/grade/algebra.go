package grade

import (
	"crypto/sha256"
	"math"
	"math/big"
	"math/cmplx"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

const (
	ulp       = 0x1p-52
	operators = "+-*/^**)"
)

var (
	powers    = regexp.MustCompile(`\^[{(]|\^[0-9]+\^|\^[0-9][0-9]+`) // never evaluated: exponents of several digits, towers
	lexeme    = regexp.MustCompile(`^(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]{1,3})?|^[\pL_][\pL_\p{Nd}]*|^\*\*|^[-+*/^()]`)
	nameParts = regexp.MustCompile(`[0-9]+|.`)
)

// identical reports whether two expressions in +, -, *, /, powers, sqrt, ln, pi and at most two different letters are
// equal wherever both have a value. Rational numbers are compared exactly. Others are evaluated at random complex
// points, which tell the branches of roots apart: an identity holds at each up to its rounding error, which is carried
// along, and anything else fails at one. What cannot be read, divides by zero, or loses more than half of its digits is
// not identical to anything; nor is a decimal of more than 14 digits to an irrational number.
func identical(a, b string) bool {
	letters := map[rune]bool{}
	for _, c := range rewrite(a+b, "sqrt", "", "frac", "") {
		if unicode.IsLetter(c) {
			letters[c] = true
		}
	}
	left, right := lex(a), lex(b)
	if len(letters) > 2 || left == nil || right == nil || powers.MatchString(a) || powers.MatchString(b) {
		return false
	}
	for e := (expression{}); e.point < 32; e.point++ {
		x, y := e.value(left), e.value(right)
		d := e.add(x, e.negated(y))
		switch {
		case e.failed:
			return false
		case d.rat != nil: // sympy rounds what it computes with decimals: 0.1+0.2 is not 0.3
			return d.rat.Sign() == 0 && (d.val == 0 || !d.decimal)
		case e.long || cmplx.Abs(d.val) > 8*d.err || d.err > 1e-9*(1+min(cmplx.Abs(x.val), cmplx.Abs(y.val))):
			return false
		}
	}
	return true
}

// lex splits an expression; nil is none. A name is a product of its letters and numbers, unless it is that of a
// function, of a Greek letter or has an index.
func lex(s string) (tokens []string) {
	for number := false; s != ""; {
		t := lexeme.FindString(s)
		s = s[len(t):]
		twoNumbers := number && isNumber(t)
		number = isNumber(t)
		switch {
		case t == "" || twoNumbers || len(tokens) > 400 || slices.Contains([]string{"as", "if", "in", "is", "or"}, t):
			return nil // a word of Python is no name
		case number || strings.Contains(t, "_") || slices.Contains([]string{"pi", "sqrt", "ln", "mu", "nu", "xi", "**"}, t):
			tokens = append(tokens, t)
		default:
			tokens = append(tokens, nameParts.FindAllString(t, -1)...)
		}
	}
	return tokens
}

func isNumber(t string) bool { return t != "" && (t[0] == '.' || t[0] >= '0' && t[0] <= '9') }

var one = number{rat: big.NewRat(1, 1), val: 1}

type number struct {
	rat     *big.Rat // nil: irrational, or of a variable
	val     complex128
	err     float64 // of val
	decimal bool    // made with a decimal
}

// expression evaluates tokens at one point.
type expression struct {
	tokens       []string
	point        byte
	pos, work    int  // work: results so far, at all points
	long, failed bool // long: there was a decimal of more than 14 digits
}

func (e *expression) fail() number {
	e.failed = true
	return one
}

func (e *expression) result(rat *big.Rat, val complex128, err float64, decimal bool) number {
	e.work++
	if cmplx.IsNaN(val) || cmplx.IsInf(val) || e.work > 1e5 || rat != nil && rat.Num().BitLen()+rat.Denom().BitLen() > 1024 {
		return e.fail()
	}
	return number{rat, val, err + ulp*cmplx.Abs(val), decimal}
}

func exact(op func(z, x, y *big.Rat) *big.Rat, a, b number) *big.Rat {
	if a.rat == nil || b.rat == nil {
		return nil
	}
	return op(new(big.Rat), a.rat, b.rat)
}

func (e *expression) add(a, b number) number {
	return e.result(exact((*big.Rat).Add, a, b), a.val+b.val, a.err+b.err, a.decimal || b.decimal)
}

func (e *expression) mul(a, b number) number {
	return e.result(exact((*big.Rat).Mul, a, b), a.val*b.val, cmplx.Abs(a.val)*b.err+cmplx.Abs(b.val)*a.err, a.decimal || b.decimal)
}

func (e *expression) negated(a number) number {
	return e.mul(number{rat: big.NewRat(-1, 1), val: -1}, a)
}

func (e *expression) quo(a, b number) number {
	if e.zero(b) {
		return e.fail()
	}
	err := (a.err + cmplx.Abs(a.val/b.val)*b.err) / cmplx.Abs(b.val)
	return e.result(exact((*big.Rat).Quo, a, b), a.val/b.val, err, a.decimal || b.decimal)
}

func (e *expression) zero(a number) bool {
	return a.rat != nil && a.rat.Sign() == 0 || a.rat == nil && cmplx.Abs(a.val) <= 8*a.err
}

// log has its branch cut on the negative axis, which belongs to the upper half of the plane.
func (e *expression) log(a number) number {
	if e.zero(a) {
		return e.fail()
	}
	return e.result(nil, cmplx.Log(complex(real(a.val), imag(a.val)+0)), a.err/cmplx.Abs(a.val)+ulp, a.decimal)
}

func (e *expression) pow(a, b number) number {
	if b.rat != nil && b.rat.IsInt() && b.rat.Num().BitLen() < 8 && !(b.decimal && a.rat == nil) {
		n := b.rat.Num().Int64()
		v := one
		for range max(n, -n) {
			v = e.mul(v, a)
		}
		if n < 0 {
			v = e.quo(one, v)
		}
		return v
	}
	if e.zero(a) {
		return a
	}
	if b.decimal {
		b.val *= 1 + 0x1p-20 // x^0.5 is not √x in sympy
	}
	l := e.log(a)
	val := cmplx.Exp(b.val * l.val)
	return e.result(nil, val, cmplx.Abs(val)*(cmplx.Abs(b.val)*l.err+cmplx.Abs(l.val)*b.err+4*ulp), a.decimal || b.decimal)
}

// value is that of a whole expression.
func (e *expression) value(tokens []string) number {
	e.tokens, e.pos = tokens, 0
	if v := e.parse(0); e.pos == len(tokens) {
		return v
	}
	return e.fail()
}

func (e *expression) next() string {
	if e.pos < len(e.tokens) && !e.failed {
		return e.tokens[e.pos]
	}
	return ""
}

func (e *expression) take(token string) bool {
	found := e.next() == token
	if found {
		e.pos++
	}
	return found
}

// parse reads a sum at level 0, a product at 1, and a power or sign at 2.
func (e *expression) parse(level int) (v number) {
	if e.take("-") {
		v = e.negated(e.parse(2))
	} else if e.take("+") {
		v = e.parse(2)
	} else if v = e.primary(); e.take("^") || e.take("**") {
		v = e.pow(v, e.parse(2))
	}
	for {
		switch next := e.next(); {
		case level < 1 && e.take("+"):
			v = e.add(v, e.parse(1))
		case level < 1 && e.take("-"):
			v = e.add(v, e.negated(e.parse(1)))
		case level < 2 && e.take("/"):
			v = e.quo(v, e.parse(2))
		case level < 2 && (e.take("*") || next != "" && !strings.Contains(operators, next)): // the sign may be missing
			v = e.mul(v, e.parse(2))
		default:
			return v
		}
	}
}

func (e *expression) primary() number {
	t := e.next()
	e.pos++
	switch {
	case t == "(" || t == "sqrt" && e.take("(") || t == "ln" && e.take("("):
		v := e.parse(0)
		if !e.take(")") {
			return e.fail()
		}
		if t == "sqrt" {
			return e.pow(v, number{rat: big.NewRat(1, 2), val: 0.5})
		} else if t == "ln" {
			return e.log(v)
		}
		return v
	case t == "pi":
		return number{val: math.Pi, err: ulp}
	case isNumber(t):
		v := number{decimal: strings.ContainsAny(t, ".e")}
		v.rat, _ = new(big.Rat).SetString(strings.TrimSuffix(t, "."))
		f, err := strconv.ParseFloat(t, 64)
		if v.rat == nil || err != nil || t[0] == '0' && !v.decimal && f != 0 {
			return e.fail() // 05 is no number in Python
		}
		e.long = e.long || len(t) > 15
		return e.result(v.rat, complex(f, 0), 0, v.decimal)
	case t == "" || t == "sqrt" || t == "ln" || strings.Contains(operators, t):
		return e.fail()
	}
	// A variable has a value at random, the same for its name wherever it stands.
	rng := rand.New(rand.NewChaCha8(sha256.Sum256(append([]byte(t), e.point))))
	return number{val: complex(3*rng.Float64()-1.5, 3*rng.Float64()-1.5)}
}
