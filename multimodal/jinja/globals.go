package jinja

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

var globals = map[string]native{
	"dict(*)":                  func(r *run, a []any) any { return r.dict(a) },
	"lipsum(*)":                func(*run, []any) any { return fail("lipsum is not supported") },
	"namespace(*)":             func(r *run, a []any) any { return &namespace{*r.dict(a)} },
	"raise_exception(message)": func(r *run, a []any) any { return fail("TemplateError: %s", r.str(a[0])) },
	"range(start, stop=none, step=1)": func(_ *run, a []any) any {
		start, stop, step := 0, small(a[0]), small(a[2])
		if a[1] != nil {
			start, stop = stop, small(a[1])
		}
		check(step != 0, "ValueError: range() arg 3 must not be zero")
		items := []any{}
		for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
			check(len(items) < 100000, "OverflowError: range too big; a template may make at most 100000 elements")
			items = append(items, i)
		}
		repr := fmt.Sprintf("range(%d, %d, %d)", start, stop, step)
		return &seq{kind: "range", repr: strings.Replace(repr, ", 1)", ")", 1), items: items}
	},
	"strftime_now(format)": func(r *run, a []any) any { return strftime(r.now(), text(a[0])) },
}

// dict is what Python's dict() makes of a mapping or pairs, and keywords.
func (r *run) dict(a []any) *dict {
	d, from := &dict{}, r.iterate(a[0])
	check(len(from) <= 1, "TypeError: dict expected at most 1 argument, got %d", len(from))
	for _, v := range append(from, a[1]) {
		d.update(r, v)
	}
	return d
}

var (
	directive = regexp.MustCompile(`%-?.?`)
	layouts   = map[string]string{
		"Y": "2006", "m": "01", "d": "02", "H": "15", "I": "03", "M": "04", "S": "05", "p": "PM", "b": "Jan", "B": "January",
		"a": "Mon", "A": "Monday", "y": "06", "j": "002", "Z": "MST", "z": "-0700", "F": "2006-01-02", "T": "15:04:05",
		"R": "15:04", "-d": "2", "-m": "1", "-I": "3", "%": "%",
	}
)

func strftime(t time.Time, format string) string {
	return directive.ReplaceAllStringFunc(format, func(d string) string {
		layout, ok := layouts[d[1:]]
		check(ok, "ValueError: strftime directive %s is not supported", d)
		return t.Format(layout)
	})
}
