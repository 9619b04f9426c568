package jinja

import (
	"encoding/json"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

var hostile = map[string]string{
	"recursive loop": "{% for i in l recursive %}{{ loop(l) }}{% endfor %}{% for i in [1] recursive %}{{ loop([1, 2]) }}{% endfor %}",
	"callers":        "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{% call f() %}x{% endcall %}",
	"cyclic":         "{% set n = namespace() %}{% set n.n = n %}{{ n.n.n.n }}",
	"big integers":   "{% set n = namespace(i=3) %}{% for i in range(100) %}{% set n.i = n.i * n.i %}{% endfor %}",
	"digits":         "{{ " + strings.Repeat("9", 1000000) + " }}",
	"wide format":    "{{ '%999999d' % 1 }}{{ ('%999999d' * 1000) % range(1000) }}",
	"case":           "{% set s = 'É' * 1000000 %}{% for i in range(100000) %}{% set x = s|title %}{% endfor %}",
	"attributes":     "{% set l = range(100000)|list %}{% for i in range(1000) %}{% set x = l|map(attribute='a') %}{% endfor %}",
	"swapcase":       "{% set s = 'aB' * 1000000 %}{% for i in range(1000) %}{% set x = s.swapcase() %}{% endfor %}",
	"rsplit":         "{% set s = 'a ' * 1000000 %}{% for i in range(1000) %}{% set x = s.rsplit() %}{% endfor %}",
	"xmlattr":        "{% set d = {'a': 'a' * 1000000} %}{% for i in range(1000) %}{% set x = d|xmlattr %}{% endfor %}",
	"unique":         "{% set l = range(100000)|list %}{% for i in range(1000) %}{% set x = l|unique|list %}{% endfor %}",
	"fill":           "{{ [1]|batch(100000000, 1)|list }}",
	"nested loops":   strings.Repeat("{% for i in range(100000) %}", 5) + "x" + strings.Repeat("{% endfor %}", 5),
	"empty loops":    strings.Repeat("{% for i in range(100000) %}", 5) + strings.Repeat("{% endfor %}", 5),
	"growing text":   "{% set n = namespace(s='x') %}{% for i in range(100) %}{% set n.s = n.s + n.s %}{% endfor %}",
	"growing list":   "{% set n = namespace(l=[1]) %}{% for i in range(100) %}{% set n.l = n.l + n.l %}{% endfor %}",
	"shared list":    "{% set n = namespace(l=[1]) %}{% for i in range(100) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
	"compared lists": "{% set n = namespace(l=[1], m=[1]) %}{% for i in range(99) %}{% set n.l = [n.l, n.l] %}" +
		"{% set n.m = [n.m, n.m] %}{% endfor %}{{ n.l == n.m }}",
	"shared JSON": "{% set n = namespace(l=[1]) %}{% for i in range(100) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l|tojson }}",
	"shared dict": "{% set n = namespace(l=1) %}{% for i in range(100) %}{% set n.l = {'a': n.l, 'b': n.l} %}{% endfor %}" +
		"{{ n.l|pprint }}",
	"deep list":          "{% set n = namespace(l=[]) %}{% for i in range(100000) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l }}",
	"deep JSON":          "{% set n = namespace(l=[]) %}{% for i in range(100000) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l|tojson }}",
	"deep key":           "{% set n = namespace(l=()) %}{% for i in range(100000) %}{% set n.l = (n.l,) %}{% endfor %}{{ {n.l: 1} }}",
	"recursion":          "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
	"doubling recursion": "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
	"repeat":             "{{ 'ab' * 1000000000000 }}",
	"repeat list":        "{{ [1] * 100000000000000000000 }}",
	"power":              "{{ 10 ** 1000000000 }}",
	"squares":            "{% set n = namespace(i=10) %}{% for i in range(64) %}{% set n.i = n.i * n.i %}{% endfor %}{{ n.i }}",
	"center":             "{{ 'a'.center(1000000000000) }}",
	"zfill":              "{{ 'a'.zfill(1000000000000) }}",
	"percent":            "{{ '%1000000000000d' % 1 }}",
	"format":             "{{ '{:1000000000000}'.format(1) }}",
	"precision":          "{{ '%.1000000000f' % 1.0 }}",
	"indent":             "{{ ('a\n' * 100000) | indent(1000000) }}",
	"JSON indent":        "{{ [1] | tojson(indent=1000000000) }}",
	"replace":            "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
	"join":               "{{ (['a' * 1000000] * 100000) | join('b' * 1000000) }}",
	"batch":              "{{ [1] | batch(1000000000000, 1) | list }}",
	"round":              "{{ 1.5 | round(1000000000) }}",
	"scan":               "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{{ s.count('ab') }}{{ s.find('b') }}{% endfor %}",
	"strip":              "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{% set x = s.strip('abc') %}{% endfor %}",
	"split":              "{% set s = 'a ' * 1000000 %}{% for i in range(100000) %}{% set x = s.split() %}{% endfor %}",
	"characters":         "{% set s = 'é' * 1000000 %}{% for i in range(100000) %}{% set x = s[500000] %}{% endfor %}",
	"slices":             "{% set s = 'é' * 100000 %}{% for i in range(100000) %}{% set x = s[1:] %}{% endfor %}",
	"compare":            "{% set s = 'a' * 1000000 %}{% set t = s + '' %}{% for i in range(100000) %}{% set x = s == t %}{% endfor %}",
	"upper":              "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{% set x = s|upper %}{% endfor %}",
	"escape":             "{% set s = '<' * 1000000 %}{% for i in range(100000) %}{% set x = s|e %}{% endfor %}",
	"sort":               "{% set l = range(100000)|list %}{% for i in range(1000) %}{% set x = l|sort(reverse=true) %}{% endfor %}",
	"reverse":            "{% set l = range(100000)|list %}{% for i in range(100000) %}{% set x = l|reverse %}{% endfor %}",
	"membership":         "{% set l = range(100000)|list %}{% for i in range(100000) %}{% set x = -1 in l %}{% endfor %}",
	"ranges":             "{% for i in range(100000) %}{% set x = range(100000) %}{% endfor %}",
	"output":             "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{{ s }}{% endfor %}",
	"dicts":              "{% set l = range(100000)|list %}{% for i in range(100000) %}{% set x = {i: l|map('string')|list} %}{% endfor %}",
	"brackets":           "{{ " + strings.Repeat("(", 100000) + "1" + strings.Repeat(")", 100000) + " }}",
	"minus":              "{{ " + strings.Repeat("- ", 100000) + "1 }}",
	"not":                "{{ " + strings.Repeat("not ", 100000) + "1 }}",
	"chain":              "{{ 1" + strings.Repeat(" + 1", 100000) + " }}",
	"dots":               "{{ a" + strings.Repeat(".a", 100000) + " }}",
	"else":               "{% if a %}" + strings.Repeat("{% elif a %}", 50000) + "{% endif %}",
	"blocks":             strings.Repeat("{% if 1 %}", 100000),
	"size":               strings.Repeat("a", 2<<20),
	"targets":            "{% for " + strings.Repeat("(", 100000) + "a in x %}",
}

// processTime is what the processor has spent on this process: other programs may hold the cores.
func processTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestATemplateWithoutEndIsAnErrorInBoundedTimeAndMemory(t *testing.T) {
	for name, src := range hostile {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := processTime(t)
		tmpl, err := Parse(src)
		if err == nil {
			_, err = tmpl.Render(nil)
		}
		took := processTime(t) - start
		runtime.ReadMemStats(&after)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: error %v", name, err)
		}
		if took > 10*time.Second { // what is not bounded takes hours
			t.Errorf("%s took %v", name, took)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 3<<30 {
			t.Errorf("%s allocated %d MiB in all", name, n>>20)
		}
	}
}

func TestALongConversationIsWithinTheBudget(t *testing.T) {
	src := "{% for m in messages[::-1] %}{% if m.role == 'x' and '</think>' in m.content %}a{% endif %}{% endfor %}" +
		"{% for m in messages %}{% set c = m.content.split('</think>')[-1].lstrip('\n') %}{{ m.role + '\n' + c|trim }}" +
		"{% if loop.index0 > messages|length - 2 %}{{ m|tojson }}{% endif %}{% endfor %}"
	message := map[string]any{"role": "user", "content": strings.Repeat("word ", 4000)}
	messages := make([]any, 200)
	for i := range messages {
		messages[i] = message
	}
	tmpl, err := Parse(src)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := tmpl.Render(map[string]any{"messages": messages}); err != nil || len(out) < 200*19999 {
		t.Errorf("%d bytes, %v", len(out), err)
	}
}

// As gpt-oss and Gemma 4 do.
func TestEveryMessageMayLookAtAllOthers(t *testing.T) {
	tmpl, err := Parse("{% for m in messages %}{% set ns = namespace(last=true) %}{% for other in messages[loop.index:] %}" +
		"{% if other.role == 'assistant' and 'tool_calls' not in other %}{% set ns.last = false %}{% endif %}{% endfor %}" +
		"{{ ns.last }}{% endfor %}")
	if err != nil {
		t.Fatal(err)
	}
	messages := slices.Repeat([]any{map[string]any{"role": "tool", "content": strings.Repeat("word ", 200)}}, 1000)
	if out, err := tmpl.Render(map[string]any{"messages": messages}); err != nil || out != strings.Repeat("True", 1000) {
		t.Errorf("%.40s, %v", out, err)
	}
}

func TestUnsupportedConstructsAreErrorsAtLoadWithTheirLine(t *testing.T) {
	for src, want := range map[string]string{
		"a\n{% include 'b' %}":             "line 2: TemplateSyntaxError: unknown or unsupported tag 'include'",
		"{% set a = 1 %}\n\n{% do a %}":    "line 3: TemplateSyntaxError: unknown or unsupported tag 'do'",
		"{{ 1 }}\n{{ 2|urlize }}":          "line 2: TemplateAssertionError: no filter named 'urlize'",
		"{% if 1 %}\n{{ 2 is prime }}":     "line 2: TemplateAssertionError: no test named 'prime'",
		"\n{% for a in b %}\n\n":           "line 2: TemplateSyntaxError: unexpected end of template, expected one of [else endfor]",
		"{# a\n#}\n{{ 'a\nb' }}\n{{ 1 + }": "line 5: TemplateSyntaxError: unexpected '}'",
	} {
		if _, err := Parse(src); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", src, err, want)
		}
	}
}

func TestVariablesThatAreNoJSONAreErrors(t *testing.T) {
	tmpl, err := Parse("{{ x }}")
	if err != nil {
		t.Fatal(err)
	}
	deep := json.RawMessage(strings.Repeat("[", 5000) + strings.Repeat("]", 5000))
	for _, v := range []any{math.NaN(), make(chan int), json.RawMessage("{"), json.RawMessage("1 2"), json.RawMessage(""), deep} {
		if out, err := tmpl.Render(map[string]any{"x": v}); err == nil {
			t.Errorf("%T: %q", v, out)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, src := range hostile {
		f.Add(src)
	}
	for _, path := range references {
		for _, c := range loadReference(f, path).Cases {
			f.Add(c.Source)
		}
	}
	f.Fuzz(func(t *testing.T, src string) {
		if _, err := Parse(src); err != nil && strings.Contains(err.Error(), "internal error") {
			t.Error(err)
		}
	})
}

func FuzzRender(f *testing.F) {
	for _, path := range references {
		for _, c := range loadReference(f, path).Cases {
			f.Add(c.Source, `[{"role":"user","content":"é\n"}]`)
		}
	}
	f.Fuzz(func(t *testing.T, src, messages string) {
		tmpl, err := Parse(src)
		if err != nil {
			return
		}
		start := time.Now()
		_, err = tmpl.Render(map[string]any{
			"messages": json.RawMessage(messages), "x": json.RawMessage(`{"k":"v","l":[1,2.5,null,true]}`), "s": "hello world",
			"l": []any{1, 2, 3},
		})
		if err != nil && strings.Contains(err.Error(), "internal error") {
			t.Error(err)
		}
		if took := time.Since(start); took > 5*time.Second { // fuzzing shares the cores
			t.Errorf("took %v: %v", took, err)
		}
	})
}
