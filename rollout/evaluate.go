package rollout

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Evaluation has one entry a task, in the order of the source.
type Evaluation struct {
	Rollouts []*Rollout // nil where the rollout failed
	Errs     []error    // nil where it did not
}

// Score is the mean score of the rollouts that did not fail, and their number.
func (e Evaluation) Score() (mean float64, scored int) {
	for r := range present(e.Rollouts) {
		mean += r.Score
		scored++
	}
	return mean / float64(max(scored, 1)), scored
}

// Evaluate runs each task of the source once. It touches no queue, cursor or counter of a run; seeds are its own, a
// function of seed and the task's number. c gives timeout and concurrency. The error is for what ends the whole:
// ctx, or ErrDead.
func Evaluate(ctx context.Context, r Runner, tasks Source, s Sampling, seed uint64, c Config) (Evaluation, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n := tasks.Len()
	e := Evaluation{Rollouts: make([]*Rollout, n), Errs: make([]error, n)}
	slots := make(chan struct{}, max(c.Concurrency, 1))
	var wg sync.WaitGroup
	for i := range n {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			spec := Spec{ID: int64(i), Group: int64(i), Place: int64(i), Seed: MixSeed(seed, uint64(i)), Sampling: s}
			e.Rollouts[i], e.Errs[i] = attempt(ctx, r, spec, func() (Task, error) { return tasks.Task(i) }, c.Timeout)
			if errors.Is(e.Errs[i], ErrDead) {
				cancel(e.Errs[i])
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return Evaluation{}, fmt.Errorf("rollout: evaluation: %w", err)
	}
	return e, nil
}
