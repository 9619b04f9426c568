package rollout

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFailuresAreCountedByTheirKind(t *testing.T) {
	p := testPlan(100, 2, 4, 1)
	p.Config.MaxFailed, p.Config.PartialGroups = 10, true
	q := newQueue(t, p)
	specs := admitAll(q)
	if len(specs) != 16 {
		t.Fatalf("%d rollouts", len(specs))
	}
	put := func(q *Queue, s Spec, err error) {
		if err == nil {
			q.Put(done(s, 1))
		} else {
			q.Put(Event{Kind: Failed, Spec: s, Err: err})
		}
	}
	exit, grader := &Failure{"exit", errors.New("status 1")}, &Failure{"grader", &Failure{"exit", errors.New("status 2")}}
	for i := range 4 { // a group that is lost as a whole, and so replaced
		put(q, specs[i], exit)
	}
	before := q.State()
	for i, err := range []error{fmt.Errorf("agent: %w", exit), grader, errors.New("boom"), nil} {
		put(q, specs[4+i], err)
	}
	after := q.State()
	for _, s := range specs[8:] {
		put(q, s, nil)
	}
	finish := func(q *Queue) Batch {
		for _, s := range admitAll(q) {
			put(q, s, nil)
		}
		return take(t, q)
	}
	b := finish(q)
	if want := map[string]int{"exit": 5, "grader": 1, "agent": 1}; b.Failed != 7 || !cmp.Equal(b.Kinds, want) {
		t.Errorf("%d failed: %v, want %v", b.Failed, b.Kinds, want)
	}
	if b := take(t, q); b.Failed != 0 || len(b.Kinds) != 0 {
		t.Errorf("the next batch: %d failed: %v", b.Failed, b.Kinds)
	}
	for _, s := range []State{before, after} { // a state does not change any more
		if want := (Tally{Out: 1, Failed: 4, Kinds: map[string]int{"exit": 4}}); !cmp.Equal(s.Out[0], want) {
			t.Errorf("saved %+v, want %+v", s.Out[0], want)
		}
	}
	p.State = &after
	if b := finish(newQueue(t, p)); b.Failed != 4 || !cmp.Equal(b.Kinds, map[string]int{"exit": 4}) {
		t.Errorf("resumed: %d failed: %v", b.Failed, b.Kinds)
	}
}

// The time limit is the reason of whatever an agent says after its end.
func TestAnAttemptKnowsTheKindOfItsFailure(t *testing.T) {
	late := func(err error) func(context.Context) error {
		return func(ctx context.Context) error { <-ctx.Done(); return err }
	}
	for name, c := range map[string]struct {
		agent func(context.Context) error
		kind  string
	}{
		"plain":          {func(context.Context) error { return errors.New("boom") }, "agent"},
		"of a kind":      {func(context.Context) error { return fmt.Errorf("x: %w", &Failure{"exit", errors.New("y")}) }, "exit"},
		"panic":          {func(context.Context) error { panic("ouch") }, "panic"},
		"nothing":        {func(context.Context) error { return nil }, "agent"},
		"late":           {late(errors.New("killed")), "timeout"},
		"late of a kind": {late(&Failure{"exit", errors.New("killed")}), "timeout"},
		"late without":   {late(nil), "timeout"},
		"late and says what": {func(ctx context.Context) error {
			<-ctx.Done()
			return &Failure{"grader", fmt.Errorf("the grader: %w", context.Cause(ctx))}
		}, "timeout"},
	} {
		limit := time.Minute
		if c.kind == "timeout" {
			limit = time.Millisecond
		}
		run := RunnerFunc(func(ctx context.Context, _ Spec) (*Rollout, error) { return &Rollout{}, c.agent(ctx) })
		_, err := attempt(t.Context(), run, Spec{}, func() (Task, error) { return Task{}, nil }, limit)
		if kind := failureKind(err); err == nil || kind != c.kind {
			t.Errorf("%s: %s: %v", name, kind, err)
		} else if name == "late and says what" {
			wantError(t, err, "rollout 0: the grader: timed out after 1ms")
		}
	}
	_, err := attempt(t.Context(), RunnerFunc(nil), Spec{}, func() (Task, error) { return Task{}, errors.New("bad line") }, time.Minute)
	if failureKind(err) != "task" {
		t.Error(err)
	}
}
