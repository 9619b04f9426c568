package jinja

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type reference struct {
	Templates map[string]string          `json:"templates"`
	Context   map[string]json.RawMessage `json:"context"` // of cases without one
	Cases     []struct {
		Template string                     `json:"tmpl"`
		Name     string                     `json:"name"`
		Source   string                     `json:"src"`
		Context  map[string]json.RawMessage `json:"ctx"`
		Want     string                     `json:"want"`
		Err      *string                    `json:"err"`
	} `json:"cases"`
}

func loadReference(t testing.TB, path string) reference {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var ref reference
	if err := json.NewDecoder(z).Decode(&ref); err != nil {
		t.Fatal(err)
	}
	if len(ref.Cases) == 0 {
		t.Fatalf("%s has no cases", path)
	}
	return ref
}

// references have one layout. The first is rendered by transformers, one language feature a case; files with whole models'
// templates can be put in its place. The second holds more features and two templates written for this test, rendered
// by Jinja 3.1.6 with the same settings. The third has the language systematically: testdata/cases.py made it.
var references = []string{"../../testdata/reference/text/templates.json.gz", "testdata/snippets.json.gz", "testdata/language.json.gz"}

// address is where CPython happened to keep an object.
var address = regexp.MustCompile(`0x[0-9a-f]+>`)

func TestRenderEqualsTransformers(t *testing.T) {
	for _, path := range references {
		compare(t, loadReference(t, path))
	}
}

func compare(t *testing.T, ref reference) {
	for _, c := range ref.Cases {
		source := c.Source
		if source == "" {
			source = ref.Templates[c.Template]
		}
		vars := map[string]any{}
		if c.Context == nil {
			c.Context = ref.Context
		}
		for k, v := range c.Context {
			vars[k] = v
		}
		tmpl, err := Parse(source)
		got := ""
		if err == nil {
			tmpl.Now = func() time.Time { return time.Date(2026, 12, 1, 9, 5, 3, 0, time.UTC) } // the reference's day
			got, err = tmpl.Render(vars)
		}
		switch {
		case c.Err != nil && err == nil:
			t.Errorf("%s %s %q: rendered %q, the reference raises %s", c.Template, c.Name, c.Source, got, *c.Err)
		case c.Err == nil && err != nil:
			t.Errorf("%s %s %q: %v", c.Template, c.Name, c.Source, err)
		case c.Err == nil:
			got, want := address.ReplaceAllString(got, "0x0>"), address.ReplaceAllString(c.Want, "0x0>")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s %s %q (-want +got):\n%s", c.Template, c.Name, c.Source, diff)
			}
		}
	}
}

func TestTargetsMayStandInParentheses(t *testing.T) {
	tmpl, err := Parse(`{% for (k, v) in d.items() %}{{ k }}={{ v }};{% endfor %}{% set (a, b) = [1, 2] %}{{ a + b }}`)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tmpl.Render(map[string]any{"d": map[string]any{"x": 1, "y": 2}}); err != nil || got != "x=1;y=2;3" {
		t.Errorf("%q, %v", got, err)
	}
}
