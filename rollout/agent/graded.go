package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"

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
