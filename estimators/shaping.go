package estimators

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Options are the settings that estimators and shaping share; the toml tags are their names in a config. Start from
// DefaultOptions: the zero value is refused.
type Options struct {
	// Gamma discounts rewards by gamma for each slot, masked ones too in reinforce; 0 to 1, default 1. For reinforce, gae.
	Gamma float64 `toml:"gamma"`
	// Lambda weighs long returns against the critic's values; 0 to 1, default 1. For gae.
	Lambda float64 `toml:"lambda"`
	// KLCoef times the KL of a token is taken off its reward; at least 0, default 0. For reinforce, gae, on_policy_distill; others ignore
	// it, and a run refuses it.
	KLCoef float64 `toml:"kl_coef"`
	// Whiten scales advantages to mean 0 and variance 1 over the batch's actions; default true. For reinforce,
	// reinforce_baseline, gae, and gdpo, which does so over the batch's rollouts.
	Whiten bool `toml:"whiten"`
	// Bootstrap takes the critic's value after the last action of a truncated sample for the future that was cut off; default
	// false: 0. For gae.
	Bootstrap bool `toml:"bootstrap"`
	// SkipGaps discounts from action to action, not by slots between them such as tool results; default false. For reinforce;
	// gae always does so.
	SkipGaps bool `toml:"skip_gaps"`
	// PassK is the number of tries of which one must be right; at least 1, default 2. For pass_at_k.
	PassK int `toml:"pass_k"`
	// RewardWeights are the weights of the reward's components by their names; missing: 1. For gdpo.
	RewardWeights map[string]float64 `toml:"reward_weights"`
	// OverlongBuffer is the width, in tokens below MaxLen, of the zone where a long context is punished; 0, the default: off.
	OverlongBuffer int `toml:"overlong_buffer"`
	// OverlongFactor is the penalty at MaxLen and beyond, in units of reward; at least 0, default 1.
	OverlongFactor float64 `toml:"overlong_factor"`
	// StopCoef multiplies the reward of a truncated unit if at least 0, and replaces it if negative; default 1: no change.
	StopCoef float64 `toml:"stop_coef"`
	// RewardMin and RewardMax clip the shaped reward; default -inf and inf: off.
	RewardMin float64 `toml:"reward_min"`
	RewardMax float64 `toml:"reward_max"`
	// MaxLen is the longest context that the run allows, in tokens. Not a key of its own: the run's limits decide it.
	MaxLen int `toml:"-"`
}

// DefaultOptions returns options that change nothing: no discount, no KL, no shaping; whitening is on.
func DefaultOptions() Options {
	return Options{Gamma: 1, Lambda: 1, Whiten: true, PassK: 2, OverlongFactor: 1, StopCoef: 1,
		RewardMin: math.Inf(-1), RewardMax: math.Inf(1)}
}

// Validate returns an error that names the option by its toml key.
func (o Options) Validate() error {
	unit := func(x float64) bool { return x >= 0 && x <= 1 }
	switch {
	case !unit(o.Gamma):
		return fmt.Errorf("gamma is %v, want 0 to 1", o.Gamma)
	case !unit(o.Lambda):
		return fmt.Errorf("lambda is %v, want 0 to 1", o.Lambda)
	case !(o.KLCoef >= 0) || math.IsInf(o.KLCoef, 0):
		return fmt.Errorf("kl_coef is %v, want at least 0", o.KLCoef)
	case o.OverlongBuffer < 0:
		return fmt.Errorf("overlong_buffer is %d, want at least 0 (0: off)", o.OverlongBuffer)
	case !(o.OverlongFactor >= 0) || math.IsInf(o.OverlongFactor, 0):
		return fmt.Errorf("overlong_factor is %v, want at least 0", o.OverlongFactor)
	case !finite(o.StopCoef):
		return fmt.Errorf("stop_coef is %v, want a number (1: off)", o.StopCoef)
	case !(o.RewardMin < o.RewardMax):
		return fmt.Errorf("reward_min is %v and reward_max %v, want min < max (-inf and inf: off)", o.RewardMin, o.RewardMax)
	case o.PassK < 1:
		return fmt.Errorf("pass_k is %d, want at least 1", o.PassK)
	}
	for _, name := range slices.Sorted(maps.Keys(o.RewardWeights)) {
		if !finite(o.RewardWeights[name]) {
			return fmt.Errorf("reward_weights.%s is %v, want a number", name, o.RewardWeights[name])
		}
	}
	return nil
}

// OverlongPenalty is 0 up to maxLen-buffer tokens, then falls linearly to -factor at maxLen, and stays there
// (DAPO, arXiv:2503.14476, equation 13, where factor is 1). buffer must be above 0.
func OverlongPenalty(length, maxLen, buffer int, factor float64) float64 {
	over := min(max(length-(maxLen-buffer), 0), buffer)
	return -factor * float64(over) / float64(buffer)
}

// shape applies length penalty, truncation coefficient and clipping to one reward.
func (o Options) shape(reward float64, context int, truncated bool) float64 {
	if o.OverlongBuffer > 0 {
		reward += OverlongPenalty(context, o.MaxLen, o.OverlongBuffer, o.OverlongFactor)
	}
	if truncated && o.StopCoef >= 0 {
		reward *= o.StopCoef
	} else if truncated {
		reward = o.StopCoef
	}
	return o.clip(reward)
}

func (o Options) clip(reward float64) float64 { return min(max(reward, o.RewardMin), o.RewardMax) }

// Shapes tells whether shaping can change a reward.
func (o Options) Shapes() bool {
	return o.OverlongBuffer > 0 || o.StopCoef != 1 || !math.IsInf(o.RewardMin, -1) || !math.IsInf(o.RewardMax, 1)
}

// checkOverlong reports what the overlong penalty lacks.
func (in Input) checkOverlong() error {
	o := in.Options
	switch {
	case o.OverlongBuffer == 0:
		return nil
	case o.MaxLen < o.OverlongBuffer:
		return fmt.Errorf("overlong_buffer is %d, more than the context limit of %d tokens", o.OverlongBuffer, o.MaxLen)
	case len(in.Contexts) != len(in.Rewards):
		return errors.New("overlong_buffer is set, but the batch has no context lengths")
	}
	return nil
}
