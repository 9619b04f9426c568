package rollout

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// grace is how long an agent may take to return after its context has ended. Then it is left behind.
const grace = 2 * time.Second

// attempt runs one rollout of one task: with a time limit, and a panic as an error.
func attempt(ctx context.Context, r Runner, spec Spec, task func() (Task, error), limit time.Duration) (*Rollout, error) {
	late := &Failure{"timeout", fmt.Errorf("timed out after %v, its [rollout] timeout: %w", limit, context.DeadlineExceeded)}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	type result struct {
		rollout *Rollout
		err     error
	}
	ended := make(chan result, 1)
	go func() {
		res := result{err: errors.New("the agent ended its goroutine")}
		defer func() {
			if v := recover(); v != nil {
				res.err = &Failure{"panic", fmt.Errorf("the agent panicked: %v\n%s", v, debug.Stack())}
			}
			ended <- res
		}()
		s := spec
		var err error
		if s.Task, err = task(); err != nil {
			res.err = &Failure{"task", fmt.Errorf("task: %w", err)}
			return
		}
		out, err := r.Run(ctx, s)
		if err == nil {
			err = out.check(s.Greedy)
		}
		if err == nil {
			out.Spec = s
		}
		res = result{out, err}
	}()
	select {
	case res := <-ended:
		if res.err != nil {
			return nil, fmt.Errorf("rollout %d: %w", spec.ID, res.err)
		}
		return res.rollout, nil
	case <-ctx.Done():
		left := time.NewTimer(grace)
		defer left.Stop()
		err := context.Cause(ctx)
		select {
		case res := <-ended:
			if errors.Is(res.err, err) { // it also says what was stopped
				err = &Failure{failureKind(err), res.err}
			}
		case <-left.C:
		}
		return nil, fmt.Errorf("rollout %d: %w", spec.ID, err)
	}
}
