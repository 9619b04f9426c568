package jinja

import (
	"math/big"
	"unicode"
)

var tests = map[string]fn{
	"boolean":     {"", is(func(v any) bool { return typeName(v) == "bool" })},
	"callable":    {"", is(callable)},
	"defined":     {"", is(func(v any) bool { return typeName(v) != "Undefined" })},
	"undefined":   {"", is(func(v any) bool { return typeName(v) == "Undefined" })},
	"none":        {"", is(func(v any) bool { return v == nil })},
	"true":        {"", is(func(v any) bool { return v == true })},
	"false":       {"", is(func(v any) bool { return v == false })},
	"integer":     {"", is(func(v any) bool { return typeName(v) == "int" })},
	"float":       {"", is(func(v any) bool { return typeName(v) == "float" })},
	"number":      {"", is(func(v any) bool { _, ok := asFloat(v); return ok })},
	"string":      {"", is(func(v any) bool { return typeName(v) == "str" })},
	"mapping":     {"", is(func(v any) bool { return typeName(v) == "dict" })},
	"sequence":    {"", is(sequence)},
	"iterable":    {"", is(iterable)},
	"divisibleby": {"num", func(c *call) any { return c.r.equal(c.r.arithmetic("%", c.self, c.args[0]), int64(0)) }},
	"even":        {"", func(c *call) any { return c.r.equal(c.r.arithmetic("%", c.self, int64(2)), int64(0)) }},
	"odd":         {"", func(c *call) any { return c.r.equal(c.r.arithmetic("%", c.self, int64(2)), int64(1)) }},
	"lower":       {"", func(c *call) any { return cased(c.r.str(c.self), unicode.IsLower, unicode.IsUpper) }},
	"upper":       {"", func(c *call) any { return cased(c.r.str(c.self), unicode.IsUpper, unicode.IsLower) }},
	"filter":      {"", func(c *call) any { _, ok := c.r.filters[c.r.str(c.self)]; return ok }},
	"test":        {"", func(c *call) any { _, ok := c.r.tests[c.r.str(c.self)]; return ok }},
	"sameas": {"other", func(c *call) any {
		return typeName(c.self) == typeName(c.args[0]) && c.r.equal(c.self, c.args[0])
	}},
	"in":          {"seq", func(c *call) any { return c.r.contains(c.args[0], c.self) }},
	"==":          comparison("=="),
	"eq":          comparison("=="),
	"equalto":     comparison("=="),
	"!=":          comparison("!="),
	"ne":          comparison("!="),
	"<":           comparison("<"),
	"lt":          comparison("<"),
	"lessthan":    comparison("<"),
	"<=":          comparison("<="),
	"le":          comparison("<="),
	">":           comparison(">"),
	"gt":          comparison(">"),
	"greaterthan": comparison(">"),
	">=":          comparison(">="),
	"ge":          comparison(">="),
}

func is(f func(any) bool) func(*call) any { return func(c *call) any { return f(c.self) } }

func comparison(op string) fn {
	return fn{"other", func(c *call) any { return c.r.relation(op, c.self, c.args[0]) }}
}

func callable(v any) bool {
	switch v.(type) {
	case *bound, *macro:
		return true
	}
	return false
}

func sequence(v any) bool {
	switch v := v.(type) {
	case string, []any, tuple, *dict, undefined:
		return true
	case *iterator:
		return v.kind == "range"
	}
	return false
}

func iterable(v any) bool {
	switch v.(type) {
	case nil, bool, int64, float64, *big.Int, *namespace, *macro, *bound:
		return false
	}
	return true
}
