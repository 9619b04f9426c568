// Package grade scores replies: a mathematical answer, an exact one, a pattern, a JSON schema, or the opinion of
// another model. It knows no tensors, no trainer and no engine, and nothing of how the reply was made.
//
// A score is what the reply earned. An error is a fault of the grader, its settings or the task, and never a score of 0,
// or the policy would be trained on it.
package grade

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/molt-go/molt/rollout"
)

// Grader scores a reply to a task. It is called from many goroutines at once and returns soon after ctx ends.
type Grader func(ctx context.Context, task rollout.Task, reply string) (score float64, err error)

var (
	mu      sync.Mutex
	graders = map[string]Grader{"math": Math, "exact": Exact(false), "exact_fold": Exact(true)}
)

// Register makes a grader known by name. A name that is taken is an error.
func Register(name string, g Grader) error {
	mu.Lock()
	defer mu.Unlock()
	if _, taken := graders[name]; taken || name == "" || g == nil {
		return fmt.Errorf("grade: grader %q is registered already, or has no name or function", name)
	}
	graders[name] = g
	return nil
}

// Find is the registered grader of that name.
func Find(name string) (Grader, error) {
	mu.Lock()
	defer mu.Unlock()
	if g, ok := graders[name]; ok {
		return g, nil
	}
	return nil, fmt.Errorf("grader %q is not known; there are %s", name, strings.Join(slices.Sorted(maps.Keys(graders)), ", "))
}

// Exact gives 1 if the reply is the task's answer, white space around them aside, else 0. With fold, letters may differ
// in case.
func Exact(fold bool) Grader {
	return against(func(answer, reply string) bool { return reply == answer || fold && strings.EqualFold(reply, answer) })
}

// Regexp gives 1 if the first match of the pattern in the reply is the task's answer, white space around them aside,
// else 0. If the pattern has groups, the first one counts instead of the whole match.
func Regexp(pattern string) (Grader, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("grade: %w", err)
	}
	return against(func(answer, reply string) bool {
		found := re.FindStringSubmatch(reply)
		return found != nil && strings.TrimSpace(found[min(1, len(found)-1)]) == answer
	}), nil
}

// JSONSchema gives 1 if the reply is one JSON value that the schema accepts, else 0; a Markdown code block around it
// does not count. Drafts 4 to 2020-12 will do; references must stay inside the schema.
func JSONSchema(schema json.RawMessage) (Grader, error) {
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(jsonschema.SchemeURLLoader{}) // reads no files
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err == nil {
		err = compiler.AddResource("schema.json", doc)
	}
	if err != nil {
		return nil, fmt.Errorf("grade: schema: %w", err)
	}
	compiled, err := compiler.Compile("schema.json")
	if err != nil {
		return nil, fmt.Errorf("grade: schema: %w", err)
	}
	block := regexp.MustCompile("(?s)^\\s*```[a-z]*\n(.*)```\\s*$")
	return func(_ context.Context, _ rollout.Task, reply string) (float64, error) {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(block.ReplaceAllString(reply, "$1")))
		return score(err == nil && compiled.Validate(v) == nil), nil
	}, nil
}

// against makes a grader of a comparison.
func against(same func(answer, reply string) bool) Grader {
	return func(_ context.Context, task rollout.Task, reply string) (float64, error) {
		answer, err := answerOf(task)
		return score(err == nil && same(answer, strings.TrimSpace(reply))), err
	}
}

func score(right bool) float64 {
	if right {
		return 1
	}
	return 0
}

// answerOf is the task's Answer or, where that is empty, what Extra has under the names that data sets use.
func answerOf(task rollout.Task) (string, error) {
	answer := task.Answer
	if answer == "" && len(task.Extra) > 0 {
		var label any
		dec := json.NewDecoder(bytes.NewReader(task.Extra))
		dec.UseNumber() // a number is compared as it was written
		if err := dec.Decode(&label); err != nil {
			return "", fmt.Errorf("grade: extra of task %q: %w", task.ID, err)
		}
		answer = labelled(label)
	}
	if answer = strings.TrimSpace(answer); answer == "" {
		return "", fmt.Errorf("grade: task %q has no answer to compare with: give it one in answer or in extra", task.ID)
	}
	return answer, nil
}

func labelled(label any) string {
	switch v := label.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	case map[string]any:
		if _, text := v["solution"].(string); text {
			delete(v, "solution") // a derivation
		}
		for _, key := range []string{"ground_truth", "answer", "target", "label", "reward_model", "extra_info", "solution", "extracted"} {
			if s := labelled(v[key]); s != "" {
				return s
			}
		}
	}
	return ""
}
