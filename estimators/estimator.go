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
	Bootstrap []float32   // [N] the critic's estimate after the last action; only the option bootstrap needs it
	Truncated []bool      // [N] the sample was cut by a limit, not ended by the policy; empty: none was
	Contexts  []int       // [N] longest context in tokens, prompt included; only the overlong penalty needs it
	// Baselines are the rewards of a greedy rollout of each sample's prompt, [N]; only estimators that need Greedy.
	Baselines []float32
	// Components are the parts of each sample's reward by their names, [N] each; only estimators that need Components.
	Components map[string][]float32
	Options    Options
}

// Result holds what the losses and the log need; Advantages and Returns are 0 where the mask is false.
type Result struct {
	Advantages [][]float32 // [N][T] weight of the policy gradient
	Returns    [][]float32 // [N][T] target of the critic; what a Func leaves nil becomes the advantages, in the same memory
	// GroupStd is the standard deviation of the shaped rewards in each sample's group, n-1 form, [N]. Estimate fills it in.
	GroupStd []float64
}

// Unit says what one reward stands for.
type Unit int

const (
	PerSample  Unit = iota // every sample is judged alone and is a group of its own
	PerRollout             // the samples of one rollout share one reward, that of the first, and count once
)

// Func computes advantages and returns from a checked and shaped batch. It may leave any value in masked slots.
type Func func(Batch) (Result, error)

// Need is something that an estimator asks of a run beside rewards.
type Need int

const (
	Greedy     Need = iota // the reward of one greedy rollout a prompt, which is never trained on
	Values                 // of a critic
	KLs                    // against a reference policy or a teacher
	Components             // of the reward
	KLReward               // nothing, but it takes kl_coef times the KL off the reward of a token; a run without it refuses kl_coef
	Groups                 // all rollouts of a group, which it compares with each other: a run refuses to keep parts of groups
)

type estimator struct {
	unit  Unit
	f     Func
	needs []Need
}

var registry = map[string]estimator{
	"dr_grpo":            {PerRollout, DrGRPO, []Need{Groups}},
	"flash_reinforce":    {PerSample, FlashReinforce, nil},
	"gae":                {PerSample, GAE, []Need{Values, KLReward}},
	"gdpo":               {PerRollout, GDPO, []Need{Components, Groups}},
	"gpg":                {PerRollout, GPG, []Need{Groups}},
	"grpo":               {PerRollout, GRPO, []Need{Groups}},
	"maxrl":              {PerRollout, MaxRL, []Need{Groups}},
	"on_policy_distill":  {PerSample, OnPolicyDistill, []Need{KLs}},
	"opo":                {PerRollout, OPO, []Need{Groups}},
	"pass_at_k":          {PerRollout, PassAtK, []Need{Groups}},
	"reinforce":          {PerSample, Reinforce, []Need{KLReward}},
	"reinforce_baseline": {PerRollout, ReinforceBaseline, []Need{Groups}},
	"remax":              {PerRollout, ReMax, []Need{Greedy}},
	"rloo":               {PerRollout, RLOO, []Need{Groups}},
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
	out, err := registry[name].estimate(in)
	if err != nil {
		return Result{}, fmt.Errorf("estimators: %s: %w", name, err)
	}
	return out, nil
}

func (e estimator) estimate(in Input) (Result, error) {
	for _, need := range e.needs {
		if err := in.has(need); err != nil {
			return Result{}, err
		}
	}
	batch, err := newBatch(in, e.unit)
	if err != nil {
		return Result{}, err
	}
	out, err := e.f(batch)
	if err != nil {
		return Result{}, err
	}
	stds := batch.PerGroup(func(r []float64) {
		std := Std(r, Mean(r))
		for i := range r {
			r[i] = std
		}
	})
	out.GroupStd = make([]float64, len(in.Rewards))
	for i, u := range batch.Units {
		out.GroupStd[i] = stds[u]
	}
	if err := applyMask("advantages", out.Advantages, in.Masks); err != nil || out.Returns != nil {
		return out, errors.Join(err, applyMask("returns", out.Returns, in.Masks))
	}
	out.Returns = out.Advantages
	return out, nil
}

// has returns an error if the input lacks what is needed.
func (in Input) has(need Need) error {
	switch {
	case need == Greedy && in.Baselines == nil:
		return errors.New("it needs the reward of a greedy rollout of each prompt: Baselines is nil")
	case need == Values && in.Values == nil:
		return errors.New("it needs the values of a critic: Values is nil")
	case need == KLs && in.KLs == nil:
		return errors.New("it needs the KL against a reference policy or a teacher: KLs is nil")
	case need == Components && len(in.Components) == 0:
		return errors.New("it needs the components of the reward: Components is empty")
	}
	return nil
}
