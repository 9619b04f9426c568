package grade

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/molt-go/molt/rollout"
)

type outcome struct {
	answer, reply string
	score         float64
}

func checkScores(t *testing.T, g Grader, cases []outcome) {
	t.Helper()
	for _, c := range cases {
		if got, err := g(t.Context(), rollout.Task{Answer: c.answer}, c.reply); got != c.score || err != nil {
			t.Errorf("answer %q, reply %q: %v, %v, want %v", c.answer, c.reply, got, err, c.score)
		}
	}
}

func TestExactComparesTrimmedTextAndFoldsCaseWhereAsked(t *testing.T) {
	checkScores(t, Exact(false), []outcome{{" Paris", "Paris\n", 1}, {"Paris", "paris", 0}, {"a b", "ab", 0}, {"x", "", 0}})
	checkScores(t, Exact(true), []outcome{{"Paris", " PARIS ", 1}, {"Paris", "Paris!", 0}})
}

func TestRegexpComparesTheFirstGroupOrTheMatch(t *testing.T) {
	group, err := Regexp(`Answer: *(\w+)`)
	if err != nil {
		t.Fatal(err)
	}
	checkScores(t, group, []outcome{{"B", "Answer: B. Answer: C", 1}, {"C", "Answer: B. Answer: C", 0}, {"B", "B", 0}})
	whole, err := Regexp(`[0-9]+`)
	if err != nil {
		t.Fatal(err)
	}
	checkScores(t, whole, []outcome{{"42", "it is 42, not 7", 1}, {"7", "it is 42, not 7", 0}, {"42", "", 0}})
	if _, err := Regexp(`(`); err == nil {
		t.Error("a pattern that does not compile is taken")
	}
}

func TestJSONSchemaTakesOneValueThatTheSchemaAccepts(t *testing.T) {
	g, err := JSONSchema(json.RawMessage(`{"type":"object","required":["n"],"properties":{"n":{"$ref":"#/$defs/small"}},
		"$defs":{"small":{"type":"integer","maximum":9}}}`))
	if err != nil {
		t.Fatal(err)
	}
	checkScores(t, g, []outcome{
		{"", `{"n": 3}`, 1}, {"", "```json\n{\"n\": 3}\n```", 1}, {"", " ```\n{\"n\": 3}``` \n", 1}, {"", `{"n": 10}`, 0}, {"", `{"n": 3.5}`, 0}, {"", `{}`, 0},
		{"", `{"n": 3} {"n": 3}`, 0}, {"", `so {"n": 3}`, 0}, {"", "", 0}, {"", `{"n": 1e999999999}`, 0}, {"", `{"n": -1e99999999}`, 0},
		{"", strings.Repeat("[", 1<<20), 0}, {"", `{"n":` + strings.Repeat("9", 1<<16) + "}", 0},
	})
}

func TestJSONSchemaRefusesSchemasThatAreNoneOrReadFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.json")
	if err := os.WriteFile(file, []byte(`{"type":"integer"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, schema := range []string{``, `{`, `{"type":"nothing"}`, `{"$ref":"file://` + file + `"}`, `{"$ref":"http://127.0.0.1:1/s.json"}`} {
		if _, err := JSONSchema(json.RawMessage(schema)); err == nil {
			t.Errorf("schema %s is taken", schema)
		}
	}
}

func TestATaskWithoutAnswerIsAnErrorNotAScore(t *testing.T) {
	re, err := Regexp(`x`)
	if err != nil {
		t.Fatal(err)
	}
	for name, g := range map[string]Grader{"math": Math, "exact": Exact(true), "regexp": re} {
		if score, err := g(t.Context(), rollout.Task{ID: "task 7", Answer: " "}, ""); score != 0 || err == nil || !strings.Contains(err.Error(), "task 7") {
			t.Errorf("%s: %v, %v", name, score, err)
		}
	}
}

func TestGradersAreFoundByNameAndAnUnknownNameListsTheKnown(t *testing.T) {
	half := func(context.Context, rollout.Task, string) (float64, error) { return 0.5, nil }
	if err := Register("half", half); err != nil {
		t.Fatal(err)
	}
	defer delete(graders, "half")
	g, err := Find("half")
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := g(t.Context(), rollout.Task{}, ""); v != 0.5 {
		t.Errorf("found a grader that gives %v", v)
	}
	if _, err := Find("maths"); err == nil || !strings.Contains(err.Error(), "exact, exact_fold, half, math") {
		t.Errorf("unknown name: %v", err)
	}
	if Register("math", half) == nil || Register("", half) == nil || Register("nil", nil) == nil {
		t.Error("a taken name, no name or no function is registered")
	}
}
