package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent/grade"
)

// grade is a Grader: the program gets {"task": …, "output": …} and prints {"reward": 1} or {"score": 1}.
func (p Program) grade(ctx context.Context, task rollout.Task, output string) (float64, error) {
	printed, err := p.run(ctx, "grader of task "+task.ID, map[string]any{"task": task, "output": output})
	if err != nil {
		return 0, err
	}
	res, err := lastResult(printed, "reward", "score")
	score := cmp.Or(res.Reward, res.Score)
	if err == nil && score == nil {
		err = errors.New(`it gave neither reward nor score: let the last line that it prints be {"reward": 1.0}`)
	}
	if err != nil {
		return 0, fmt.Errorf("the grader %q: %w", p.Command, err)
	}
	return *score, nil
}

// grader is what c names, nil if nothing.
func (c Config) grader(log string, self grade.Asker) (grade.Grader, error) {
	takes := map[string]func() (grade.Grader, error){
		"regexp":      func() (grade.Grader, error) { return grade.Regexp(c.GraderArg) },
		"json_schema": func() (grade.Grader, error) { return grade.JSONSchema(json.RawMessage(c.GraderArg)) },
		"judge": func() (grade.Grader, error) {
			if c.Judge.BaseURL != "" || c.Judge.Model != "" {
				self = c.Judge.Ask
				if err := c.Judge.Validate(); err != nil {
					return nil, err
				}
			}
			return grade.Judge(self, c.GraderArg)
		},
	}
	switch make, names := takes[c.Grader], slices.Sorted(maps.Keys(takes)); {
	case make != nil && c.GraderArg == "" && c.Grader != "judge":
		return nil, fmt.Errorf("grader = %q needs a grader_arg: its pattern or schema", c.Grader)
	case make != nil:
		g, err := make()
		if err != nil {
			err = fmt.Errorf("grader = %q: %w", c.Grader, err)
		}
		return g, err
	case c.GraderArg != "" || c.Judge.BaseURL+c.Judge.Model != "":
		return nil, fmt.Errorf("grader_arg and judge are for graders that take them: %s", strings.Join(names, ", "))
	case len(c.GraderCommand) > 0:
		return Program{Command: c.GraderCommand, Log: log}.grade, nil
	case c.Grader == "":
		return nil, nil
	default:
		g, err := grade.Find(c.Grader)
		if err != nil {
			err = fmt.Errorf("%w, and with grader_arg %s", err, strings.Join(names, ", "))
		}
		return g, err
	}
}

// graded is a score of g, whose error is of a kind of its own.
func graded(ctx context.Context, g grade.Grader, task rollout.Task, output string) (float64, error) {
	score, err := g(ctx, task, output)
	if err != nil {
		return 0, &rollout.Failure{Kind: "grader", Err: fmt.Errorf("grader: %w", err)}
	}
	return score, nil
}

// answer is an environment of one turn: the grader scores the reply.
type answer struct {
	grader grade.Grader
	task   rollout.Task
}

// Reset keeps the task, which says all.
func (a *answer) Reset(_ context.Context, task rollout.Task, _ uint64) (Result, error) {
	a.task = task
	return Result{}, nil
}

// Step grades the reply and ends the episode.
func (a *answer) Step(ctx context.Context, action string) (Result, error) {
	score, err := graded(ctx, a.grader, a.task, action)
	return Result{Reward: score, Terminated: true}, err
}
