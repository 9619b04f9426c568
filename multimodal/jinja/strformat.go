package jinja

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

var (
	percentSpec = regexp.MustCompile(`^%(?:\(([^)]*)\))?([-+ 0]*)(\d{0,4}(?:\.\d{1,3})?)([a-zA-Z%])`)
	formatField = regexp.MustCompile(`^\{(\w*)(!r|!s)?(?::([<>]?)(0?)(\d{0,4}(?:\.\d{1,3})?)([sdfx]?))?\}`)
)

// format writes v as directed; what Go's fmt does with flags, size and verb is what Python does.
func (t *text) format(flags, size string, verb byte, v any) {
	switch i, isInt := asInt(v); verb {
	case 's':
		t.put(fmt.Sprintf("%"+strings.ReplaceAll(flags, "0", "")+size+"s", t.r.str(v)))
		return
	case 'r':
		t.put(fmt.Sprintf("%"+strings.ReplaceAll(flags, "0", "")+size+"s", t.r.repr(v)))
		return
	case 'd', 'i', 'x', 'X', 'o':
		if f, ok := v.(float64); ok && !math.IsNaN(f) && !math.IsInf(f, 0) && (verb == 'd' || verb == 'i') {
			i, _ = big.NewFloat(math.Trunc(f)).Int(nil)
			isInt = true
		}
		if isInt {
			t.put(fmt.Sprintf("%"+flags+size+strings.Replace(string(verb), "i", "d", 1), i))
			return
		}
	case 'e', 'E', 'f':
		if f, ok := asFloat(v); ok && !math.IsNaN(f) && !math.IsInf(f, 0) {
			t.put(fmt.Sprintf("%"+flags+size+string(verb), f))
			return
		}
	}
	fail("TypeError: %%%c format of %s is an error or not supported", verb, typeName(v))
}

// percent is format % args: a tuple, one value, or a dict for named directives.
func (r *run) percent(format string, args any) string {
	values, isTuple := args.(tuple)
	if !isTuple {
		values = tuple{args}
	}
	named, isDict := args.(*dict)
	t, used := &text{r: r}, 0
	for {
		before, _, ok := strings.Cut(format, "%")
		if t.put(before); !ok {
			break
		}
		format = format[len(before):]
		m := percentSpec.FindStringSubmatch(format)
		if m == nil {
			fail("ValueError: incomplete or unsupported format %q", format)
		}
		format = format[len(m[0]):]
		switch {
		case m[4] == "%":
			t.put("%")
		case m[1] != "" && isDict:
			v, ok := named.get(r, m[1])
			if !ok {
				fail("KeyError: %s", r.repr(m[1]))
			}
			t.format(m[2], m[3], m[4][0], v)
		case m[1] != "":
			fail("TypeError: format requires a mapping")
		case used == len(values):
			fail("TypeError: not enough arguments for format string")
		default:
			t.format(m[2], m[3], m[4][0], values[used])
			used++
		}
	}
	if used < len(values) && !isDict {
		fail("TypeError: not all arguments converted during string formatting")
	}
	return t.String()
}

// formatted is the method format of a str: fields by position or name with !r, alignment, width, precision, and s d f x.
func (c *call) formatted(format string) string {
	t, auto := &text{r: c.r}, 0
	for format != "" {
		i := strings.IndexAny(format, "{}")
		if i < 0 {
			t.put(format)
			break
		}
		t.put(format[:i])
		if format = format[i:]; strings.HasPrefix(format, "{{") || strings.HasPrefix(format, "}}") {
			t.put(format[:1])
			format = format[2:]
			continue
		}
		m := formatField.FindStringSubmatch(format)
		if m == nil {
			fail("ValueError: malformed or unsupported format field %.40q", format)
		}
		format = format[len(m[0]):]
		v := c.field(m[1], &auto)
		_, isNumber := asFloat(v)
		if m[2] == "!r" {
			v, isNumber = c.r.repr(v), false
		}
		verb, flags := byte('s'), m[4]
		if m[3] == "<" || m[3] == "" && !isNumber {
			flags += "-"
		}
		if m[6] != "" {
			verb = m[6][0]
		}
		t.format(flags, m[5], verb, v)
	}
	return t.String()
}

func (c *call) field(name string, auto *int) any {
	at, err := strconv.Atoi(name)
	if name == "" {
		at = *auto
		*auto++
	} else if err != nil {
		if c.kw != nil {
			if v, ok := c.kw.get(c.r, name); ok {
				return v
			}
		}
		fail("KeyError: %s", c.r.repr(name))
	}
	if at >= len(c.pos) {
		fail("IndexError: Replacement index %d out of range for positional args tuple", at)
	}
	return c.pos[at]
}
