package estimators

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Input is one training batch of N samples; sample i has len(Masks[i]) slots.
type Input struct {
	Rewards   []float32   // [N]
	Rollouts  []int64     // [N] rollout of each sample; empty: every sample is a rollout of its own
	Groups    []int64     // [N] prompt of each sample; empty: every rollout is a group of its own
	Masks     [][]bool    // [N][T] true where the policy sampled the token
	KLs       [][]float32 // [N][T] KL value of each token against the reference policy; nil: 0 everywhere
	Values    [][]float32 // [N][T] the critic's estimate before each token; only gae needs it
	Truncated []bool      // [N] the sample was cut by a limit, not ended by the policy; empty: none was
	Contexts  []int       // [N] longest context in tokens, prompt included; only the overlong penalty needs it
	// Baselines are the rewards of a greedy rollout of each sample's prompt, [N]; only estimators that need Greedy.
	Baselines []float32
	// Components are the parts of each sample's reward by their names, [N] each; only estimators that need Components.
	Components map[string][]float32
	Options    Options
}

// Result holds what the losses need, in the shape of the input's masks: 0 where the mask is false.
type Result struct {
	Advantages [][]float32 // [N][T] weight of the policy gradient
	Returns    [][]float32 // [N][T] target of the critic
}

// Unit says what one reward stands for.
type Unit int

const (
	PerSample  Unit = iota // every sample is judged alone
	PerRollout             // the samples of one rollout share one reward, that of the first, and count once
)

// Func computes advantages and returns from a checked and shaped batch. It may leave any value in masked slots.
type Func func(Batch) (Result, error)

// Need is something of the input that an estimator cannot do without.
type Need int

const (
	Greedy     Need = iota // the reward of one greedy rollout a prompt, which is never trained on
	Values                 // of a critic
	KLs                    // against a reference policy or a teacher
	Components             // of the reward
)

type estimator struct {
	unit  Unit
	f     Func
	needs []Need
}

var registry = map[string]estimator{
	"dr_grpo":            {PerRollout, DrGRPO, nil},
	"flash_reinforce":    {PerSample, FlashReinforce, nil},
	"gae":                {PerSample, GAE, []Need{Values}},
	"grpo":               {PerRollout, GRPO, nil},
	"on_policy_distill":  {PerSample, OnPolicyDistill, []Need{KLs}},
	"reinforce":          {PerSample, Reinforce, nil},
	"reinforce_baseline": {PerRollout, ReinforceBaseline, nil},
	"rloo":               {PerRollout, RLOO, nil},
}

// Register makes f available under name, for a program's own main, before training starts: it is not safe beside Estimate.
// An empty or known name and a nil f are errors.
func Register(name string, unit Unit, f Func, needs ...Need) error {
	if _, ok := registry[name]; ok || name == "" || f == nil || (unit != PerSample && unit != PerRollout) {
		return fmt.Errorf("estimators: cannot register %q: it needs a new name, a known unit and a function; known: %s",
			name, strings.Join(Names(), ", "))
	}
	registry[name] = estimator{unit, f, needs}
	return nil
}

// Names lists the known estimators in alphabetical order.
func Names() []string { return slices.Sorted(maps.Keys(registry)) }

// Check returns an error that lists the known estimators if name is not one of them.
func Check(name string) error {
	if _, ok := registry[name]; !ok {
		return fmt.Errorf("estimators: unknown estimator %q; known: %s", name, strings.Join(Names(), ", "))
	}
	return nil
}

// Needs reports whether the estimator called name needs that.
func Needs(name string, need Need) bool { return slices.Contains(registry[name].needs, need) }

// Estimate checks and shapes in, runs the estimator called name and returns advantages and returns per token. It keeps
// none of in's slices and does not change them.
func Estimate(name string, in Input) (Result, error) {
	if err := Check(name); err != nil {
		return Result{}, err
	}
	est := registry[name]
	batch, err := newBatch(in, est.unit)
	if err != nil {
		return Result{}, fmt.Errorf("estimators: %s: %w", name, err)
	}
	out, err := est.f(batch)
	if err != nil {
		return Result{}, fmt.Errorf("estimators: %s: %w", name, err)
	}
	err = errors.Join(applyMask("advantages", out.Advantages, in.Masks), applyMask("returns", out.Returns, in.Masks))
	if err != nil {
		return Result{}, fmt.Errorf("estimators: %s: %w", name, err)
	}
	return out, nil
}
