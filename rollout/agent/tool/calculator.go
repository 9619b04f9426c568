package tool

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
)

// Calculator is a tool with Python's operators, precedence and rounding. Integers and decimals are exact fractions, so that
// 0.1 + 0.2 is 0.3; irrational roots, powers to a fraction, pi and e are float64. A result that is a decimal is given in
// full, another one to 15 digits.
func Calculator() Tool {
	return oneString("calculator", "Computes an arithmetic expression, exactly where that is possible.", "expression",
		"numbers, + - * / // % **, parentheses, sqrt(x), abs(x), min(...), max(...), round(x, digits), pi, e",
		func(_ context.Context, expression string) (string, error) { return calculate(expression), nil })
}

const (
	maxExpression = 4096    // bytes
	maxNesting    = 100     // of parentheses, signs and powers
	maxBits       = 1 << 13 // of a numerator or denominator, 2,466 digits: no expression takes more than a moment
)

var (
	token      = regexp.MustCompile(`(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?|[A-Za-z_]\w*|\*\*|//|\S`)
	precedence = map[string]int{"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "**": 4} // of a sign 3: -2**2 is -4
	arguments  = map[string]int{"(": 1, "abs": 1, "sqrt": 1, "round": 2, "min": maxExpression, "max": maxExpression}
	constants  = map[string]float64{"pi": math.Pi, "e": math.E}
)

func calculate(expression string) string {
	if len(expression) > maxExpression {
		return fmt.Sprintf("error: the expression has %d bytes; at most %d are read", len(expression), maxExpression)
	}
	p := &parser{tokens: append(token.FindAllString(expression, -1), "")}
	v := p.expression(0)
	p.expect("")
	digits, finite := v.FloatPrec()
	switch x, _ := v.Float64(); {
	case p.err != nil:
		return "error: " + p.err.Error()
	case finite && v.exact:
		return v.FloatString(digits)
	default:
		return strconv.FormatFloat(x, 'g', 15, 64)
	}
}

// number is a fraction; if it only stands for a number near to it, exact is false.
type number struct {
	*big.Rat
	exact bool
}

func whole(n int64) number { return number{big.NewRat(n, 1), true} }

// parser computes while it reads. After its first error nothing is left to read, so that it ends at once.
type parser struct {
	tokens []string // the last one is empty
	depth  int
	err    error
}

func (p *parser) fail(format string, args ...any) number {
	p.err, p.tokens = cmp.Or(p.err, fmt.Errorf(format, args...)), []string{""}
	return whole(1)
}

func (p *parser) next() string {
	t := p.tokens[0]
	p.tokens = p.tokens[min(1, len(p.tokens)-1):]
	return t
}

func (p *parser) expect(want string) {
	if t := p.next(); t != want {
		p.fail("%.40q does not fit where it stands; a power is written **", cmp.Or(t, "the end"))
	}
}

// expression reads operators of at least that precedence.
func (p *parser) expression(least int) number {
	if p.depth++; p.depth > maxNesting {
		return p.fail("nested more than %d deep", maxNesting)
	}
	defer func() { p.depth-- }()
	v := p.operand()
	for level := precedence[p.tokens[0]]; level > 0 && level >= least; level = precedence[p.tokens[0]] {
		op := p.next()
		if op != "**" { // which groups from the right, the others from the left
			level++
		}
		v = p.compute(op, v, p.expression(level))
	}
	return v
}

func (p *parser) operand() number {
	t := p.next()
	if most, ok := arguments[t]; ok {
		if t != "(" {
			p.expect("(")
		}
		args := []number{p.expression(0)}
		for p.tokens[0] == "," && len(args) < most {
			p.next()
			args = append(args, p.expression(0))
		}
		p.expect(")")
		return p.compute(t, args...)
	}
	if x, ok := constants[t]; ok {
		return p.bound(new(big.Rat).SetFloat64(x), false)
	}
	if t == "-" || t == "+" {
		return p.compute(t, whole(0), p.expression(3))
	}
	if v, ok := new(big.Rat).SetString(t); ok {
		return p.bound(v, true)
	}
	return p.fail("%.40q is no number; there are pi, e, abs, max, min, round and sqrt", cmp.Or(t, "the end"))
}

// bound makes v a number, rounded unless it is exact, and refuses what is large or, as nil, not real.
func (p *parser) bound(v *big.Rat, exact bool) number {
	if v != nil && !exact {
		x, _ := v.Float64()
		v = v.SetFloat64(x)
	}
	if v == nil || max(v.Num().BitLen(), v.Denom().BitLen()) > maxBits {
		return p.fail("a number has too many digits or is not real")
	}
	return number{v, exact}
}

func floor(v *big.Rat) *big.Rat { return new(big.Rat).SetInt(new(big.Int).Div(v.Num(), v.Denom())) }

func compare(a, b number) int { return a.Cmp(b.Rat) }

// compute is an operator or a function of its operands.
func (p *parser) compute(name string, args ...number) number {
	a, b, v := args[0], args[len(args)-1], new(big.Rat)
	exact := a.exact && b.exact
	switch name {
	case "(":
		return a
	case "min":
		return slices.MinFunc(args, compare)
	case "max":
		return slices.MaxFunc(args, compare)
	case "abs":
		v.Abs(a.Rat)
	case "+":
		v.Add(a.Rat, b.Rat)
	case "-":
		v.Sub(a.Rat, b.Rat)
	case "*":
		v.Mul(a.Rat, b.Rat)
	case "**":
		return p.power(a, b)
	case "sqrt":
		if a.Sign() < 0 {
			return p.bound(nil, false)
		}
		v.SetFrac(new(big.Int).Sqrt(a.Num()), new(big.Int).Sqrt(a.Denom()))
		if x, _ := a.Float64(); !exact || new(big.Rat).Mul(v, v).Cmp(a.Rat) != 0 {
			return p.bound(v.SetFloat64(math.Sqrt(x)), false)
		}
	case "round":
		digits := append(args, whole(0))[1]
		if !digits.IsInt() {
			return p.fail("round takes a whole number of digits")
		}
		scale := p.power(whole(10), digits)
		half := new(big.Rat).Add(v.Mul(a.Rat, scale.Rat), big.NewRat(1, 2))
		if v = floor(half); half.IsInt() && v.Num().Bit(0) == 1 { // half to even
			v.Sub(v, big.NewRat(1, 1))
		}
		v.Quo(v, scale.Rat)
		exact = true
	default: // / // %
		if b.Sign() == 0 {
			return p.fail("division by zero")
		}
		if v.Quo(a.Rat, b.Rat); name != "/" {
			v = floor(v)
		}
		if name == "%" { // has the sign of b, as in Python
			v.Sub(a.Rat, v.Mul(v, b.Rat))
		}
	}
	return p.bound(v, exact)
}

func (p *parser) power(a, b number) number {
	n, bits := new(big.Int).Abs(b.Num()), int64(max(a.Num().BitLen(), a.Denom().BitLen())-1)
	x, _ := a.Float64()
	y, _ := b.Float64()
	switch {
	case a.Sign() == 0 && b.Sign() < 0:
		return p.fail("division by zero")
	case !a.exact || !b.IsInt():
		return p.bound(new(big.Rat).SetFloat64(math.Pow(x, y)), false)
	case !n.IsInt64() || bits > 0 && n.Int64() > maxBits/bits:
		return p.bound(nil, true)
	}
	v := new(big.Rat).SetFrac(new(big.Int).Exp(a.Num(), n, nil), new(big.Int).Exp(a.Denom(), n, nil))
	if b.Sign() < 0 {
		v.Inv(v)
	}
	return p.bound(v, b.exact)
}
