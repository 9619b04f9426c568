package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

var _ rollout.Generator = (*Engine)(nil)

// post changes the inbox and wakes the engine.
func (e *Engine) post(change func(*inbox)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped != nil {
		return e.stopped
	}
	change(&e.inbox)
	signal(e.wake)
	return nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Load gives the engine the weights of a policy version: it copies params in place between two steps, converting them to its dtype,
// while the caller waits; their tensors must stay alive until it returns. Every parameter of the model must be there; otherwise the
// error names all that do not fit, and the old version still serves. ctx ends the wait, not a copy that has begun. Of refits without a
// pause each waits until the oldest request has got a token under the one before, so that all requests finish.
func (e *Engine) Load(ctx context.Context, version int32, params []model.Param) error {
	return e.load(ctx, version, func(s *torch.Scope, m *model.Model) error { return m.CopyFrom(s, params) })
}

// LoadFile is Load from a Hugging Face folder or a .gguf file, without a copy of the weights beside the engine's. Writers must replace
// such files, as WriteSafeTensors does: to cut one off while it is read ends the process.
func (e *Engine) LoadFile(ctx context.Context, version int32, path string) error {
	return e.load(ctx, version, func(s *torch.Scope, m *model.Model) error { return m.Read(s, path) })
}

func (e *Engine) load(ctx context.Context, version int32, fill func(*torch.Scope, *model.Model) error) error {
	if version < 0 {
		return fmt.Errorf("engine: policy version %d is negative", version)
	}
	l := &load{version, fill, make(chan error, 1)}
	if err := e.post(func(in *inbox) { in.loads = append(in.loads, l) }); err != nil {
		return err
	}
	select {
	case err := <-l.done:
		return err
	case <-ctx.Done():
		if withdraw(e, &e.inbox.loads, l) {
			return context.Cause(ctx)
		}
		return <-l.done
	}
}

// withdraw takes x out of a list of the inbox, unless the engine has it already.
func withdraw[T comparable](e *Engine, list *[]T, x T) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.Index(*list, x)
	if i >= 0 {
		*list = slices.Delete(*list, i, i+1)
	}
	return i >= 0
}

// SetThreads changes how many cores the engine computes on, from the next step on.
func (e *Engine) SetThreads(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.threads, e.inbox.threads = max(n, 1), max(n, 1)
}

// Stats reports what the engine did and holds.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

// Generate continues r.IDs. It waits for the first Load, and for its turn. MaxTokens is cut to the room that the context leaves; with
// no room at all the completion is empty and its Finish "length". When ctx ends, the completion has the tokens so far and Finish
// "cancelled"; if it ended before the call, its cause is the error. The model's own end-of-text ids stop as StopIDs do. OnToken is called
// on the caller's goroutine and never holds up the engine; Stop is called on the engine's own and must be quick. The same weights, ids
// and seed give the same tokens.
func (e *Engine) Generate(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
	if ctx.Err() != nil {
		return rollout.Completion{}, context.Cause(ctx)
	}
	q, err := newSequence(r, e.limits)
	if err != nil {
		return rollout.Completion{}, err
	}
	c := rollout.Completion{Prefix: r.Prefix(), Finish: rollout.FinishLength}
	if q.max == 0 {
		return c, nil
	}
	if err := e.post(func(in *inbox) { in.requests = append(in.requests, q) }); err != nil {
		return rollout.Completion{}, err
	}
	for ended := ctx.Done(); ; {
		select {
		case <-q.wake:
			q.stream(r.OnToken)
			continue
		case <-ended:
			if withdraw(e, &e.inbox.requests, q) {
				c.Finish = rollout.FinishCancelled
				return c, nil
			}
			_ = e.post(func(in *inbox) { in.cancels = append(in.cancels, q) }) // a stopped engine has closed done
			ended = nil
			continue
		case <-q.done:
		}
		q.stream(r.OnToken)
		c.Tokens, c.Finish, c.NumStop, c.Top = q.generated, q.finish, q.numStop, q.top
		c.Routed = q.routed
		if q.err != nil {
			return rollout.Completion{}, q.err
		}
		return c, nil
	}
}

// stream hands on the tokens that came since the last call.
func (q *sequence) stream(onToken func(rollout.Generated)) {
	q.mu.Lock()
	fresh := q.fresh
	q.fresh = nil
	q.mu.Unlock()
	for _, g := range fresh {
		onToken(g)
	}
}
