package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
)

// Collector runs agents as goroutines in the order that a Queue decides, and hands out complete batches. Next,
// SetVersion and Skip are for one goroutine; State is for any.
type Collector struct {
	plan    Plan
	runner  Runner
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	changed chan struct{} // holds one signal: look at the queue again

	mu      sync.Mutex
	queue   *Queue
	running int
	groups  map[int64]groupContext // of groups with rollouts that run
}

// groupContext ends when its group is complete or taken out.
type groupContext struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// Collect starts rollouts at once. They end with ctx or Close.
func Collect(ctx context.Context, p Plan, r Runner) (*Collector, error) {
	if r == nil {
		return nil, errors.New("rollout: no agent to run")
	}
	q, err := NewQueue(p)
	if err != nil {
		return nil, err
	}
	c := &Collector{plan: p, runner: r, changed: make(chan struct{}, 1), queue: q, groups: map[int64]groupContext{}}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fill()
	return c, nil
}

// fill starts what may start. The lock is held.
func (c *Collector) fill() {
	for c.running < c.plan.Config.Concurrency && c.ctx.Err() == nil {
		spec, task, ok := c.queue.Admit()
		if !ok {
			return
		}
		g, ok := c.groups[spec.Group]
		if !ok {
			g.ctx, g.cancel = context.WithCancel(c.ctx)
			c.groups[spec.Group] = g
		}
		c.running++
		c.wg.Go(func() { c.run(g.ctx, spec, task) })
	}
}

// run runs one rollout and reports how it ended.
func (c *Collector) run(ctx context.Context, spec Spec, task int) {
	r, err := attempt(ctx, c.runner, spec, func() (Task, error) { return c.plan.Source.Task(task) }, c.plan.Config.Timeout)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	if c.ctx.Err() == nil { // else it was cut short, and is still in flight in State
		e := Event{Kind: Done, Rollout: r, Spec: spec, Err: err}
		if errors.Is(err, ErrDead) {
			e.Kind = Dead
		} else if err != nil {
			e.Kind = Failed
		}
		c.queue.Put(e)
		c.fill()
	}
	if g, ok := c.groups[spec.Group]; ok && !c.queue.Running(spec.Group) {
		g.cancel()
		delete(c.groups, spec.Group)
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Next waits for the next batch, in the order of admission. It returns ErrEndOfData behind the last one, and an
// error if ctx or the collector's ends, if rollouts cannot go on, or if no batch can come because SetVersion or Skip
// was not called for the one before.
func (c *Collector) Next(ctx context.Context) (Batch, error) {
	for {
		if err := cmp.Or(context.Cause(ctx), context.Cause(c.ctx)); err != nil {
			return Batch{}, err
		}
		c.mu.Lock()
		b, ok, err := c.queue.Take()
		idle := c.running == 0
		c.mu.Unlock()
		switch {
		case ok || err != nil:
			return b, err
		case idle:
			return Batch{}, fmt.Errorf("rollout: the staleness limit %d admits no rollout before SetVersion or Skip", c.plan.Limit)
		}
		select {
		case <-c.changed:
		case <-ctx.Done():
		case <-c.ctx.Done():
		}
	}
}

// SetVersion says that an optimizer step on the last batch made policy version v and that the engine has it. It
// opens admission.
func (c *Collector) SetVersion(v int32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.queue.SetVersion(v); err != nil {
		return err
	}
	c.fill()
	return nil
}

// Skip says that the last batch made no optimizer step. It opens admission as a step does.
func (c *Collector) Skip() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue.Skip()
	c.fill()
}

// State is what to save with the weights, after SetVersion.
func (c *Collector) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue.State()
}

// Close ends all rollouts and waits for them. An agent that ignores its context is left behind after two seconds.
func (c *Collector) Close() {
	c.cancel()
	c.wg.Wait()
}
