package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/molt-go/molt/multimodal"
)

// Task is one item of the data: what an agent is asked, and what its grader needs.
type Task struct {
	ID       string               `json:"id,omitempty"`
	Source   string               `json:"source,omitempty"` // the data set it is from, for metrics
	Messages []multimodal.Message `json:"messages"`
	Answer   string               `json:"answer,omitempty"`
	Images   []string             `json:"images,omitempty"` // paths or data URLs
	Tools    json.RawMessage      `json:"tools,omitempty"`  // definitions, as the chat template takes them
	Extra    json.RawMessage      `json:"extra,omitempty"`  // anything else that the agent knows how to read
}

// Spec is the order for one rollout.
type Spec struct {
	Task  Task
	ID    int64 // of the rollout: unique in a run, the same after a resume; negative if greedy
	Group int64 // the task's position in the stream of data; the rollouts of one task are a group
	Place int64 // the group's number in the order of admission; the group that replaces another inherits it
	Seed  uint64
	// Greedy says that the rollout is its group's baseline: it must be sampled at temperature 0, and is never trained on.
	Greedy bool
	// Sampling is what the run's config asks for; MaxTokens is meant per turn.
	Sampling Sampling
}

// Rollout is one run of an agent.
type Rollout struct {
	Spec
	Samples   []*Trajectory // sealed; they share Reward, which counts once in the group
	Reward    float64       // what is trained on
	Score     float64       // what is shown, evaluated, and filtered by
	Rewards   map[string]float64
	Info      map[string]float64
	Truncated bool // cut off by a budget of turns or tokens rather than ended by the task
}

// check is the gate between agents and the trainer.
func (r *Rollout) check(greedy bool) error {
	switch {
	case r == nil:
		return errors.New("the agent returned neither a rollout nor an error")
	case len(r.Samples) == 0:
		return errors.New("the rollout has no sample")
	case !finite(r.Reward) || !finite(r.Score):
		return fmt.Errorf("reward %v, score %v: both must be finite", r.Reward, r.Score)
	}
	for i, t := range r.Samples {
		if t == nil || !t.sealed || t.Len() == 0 {
			return fmt.Errorf("sample %d of %d is empty or not sealed: call Seal when it is done", i, len(r.Samples))
		}
		if greedy && t.NumTrained() > 0 {
			return fmt.Errorf("sample %d of a greedy rollout was not sampled greedily: ask the generator for Spec.Sampling", i)
		}
	}
	for _, numbers := range []map[string]float64{r.Rewards, r.Info} {
		for name, v := range numbers {
			if !finite(v) {
				return fmt.Errorf("%q is %v: it must be finite", name, v)
			}
		}
	}
	return nil
}

// Runner runs one rollout of one agent. It is called from many goroutines at once, and should return soon after its
// context ends. An error means that the rollout failed: it is left out and counted, and never has reward 0. An error
// that wraps ErrDead ends the run.
type Runner interface {
	Run(context.Context, Spec) (*Rollout, error)
}

// RunnerFunc is a function as a Runner.
type RunnerFunc func(context.Context, Spec) (*Rollout, error)

// Run calls f.
func (f RunnerFunc) Run(ctx context.Context, s Spec) (*Rollout, error) { return f(ctx, s) }

// Failure is the error of a failed rollout whose kind is known where it arises. Failures are counted by kind: "timeout", "panic",
// "task" (the data gives none), "generator", "no_reply" (the model was never asked), "exit" (of a program), "grader"; and "agent",
// which is any other error.
type Failure struct {
	Kind string
	Err  error
}

func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap is the error that has the kind.
func (f *Failure) Unwrap() error { return f.Err }

// failureKind is the kind of the outermost Failure in err.
func failureKind(err error) string {
	if f := (*Failure)(nil); errors.As(err, &f) {
		return f.Kind
	}
	return "agent"
}

var (
	// ErrDead says that no further rollout can succeed, because the engine is gone for instance.
	ErrDead = errors.New("rollout: rollouts cannot go on")
	// ErrEndOfData says that every epoch of the data was used.
	ErrEndOfData = errors.New("rollout: end of data")
)

// Kind is what an Event reports.
type Kind uint8

// The values of Kind.
const (
	Done      Kind = iota + 1 // a rollout ended; Rollout has it
	Failed                    // a rollout failed; Err says how
	Filtered                  // a complete group was taken out, as it teaches nothing
	EndOfData                 // no batch follows
	Dead                      // rollouts cannot go on; Err says why
)

// String is the kind's name.
func (k Kind) String() string {
	if names := [...]string{"", "done", "failed", "filtered", "end of data", "dead"}; int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Event is something that happened to a rollout, a group or the data.
type Event struct {
	Kind    Kind
	Rollout *Rollout
	Spec    Spec  // of Done and Failed
	Place   int64 // of Done, Failed and Filtered
	Err     error // of Failed and Dead
}
