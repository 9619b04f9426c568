package estimators

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// KLBound keeps one token of k2 or k3 from outweighing a batch; k1 is not bounded.
const KLBound = 10

// klKinds holds the estimates of KL by their names, as functions of d = logp - base
// (Schulman, "Approximating KL Divergence", 2020). Tokens are sampled from the policy, but for k3_base from the base.
var klKinds = map[string]func(d float64) float64{
	"k1":      func(d float64) float64 { return d },
	"k2":      func(d float64) float64 { return min(d*d/2, KLBound) },
	"k3":      func(d float64) float64 { return min(math.Expm1(-d)+d, KLBound) },
	"k3_base": func(d float64) float64 { return min(math.Expm1(d)-d, KLBound) },
}

// KL returns the KL value of each action, in nats, from its log-probs under the policy and under the base policy, all in
// the shape of the masks; masked slots are 0 and may hold anything. Their expectation, not one value, is the divergence:
//
//   - k1 = d, unbiased, can be negative; gradient 1, whose expectation pulls nowhere: for rewards, not for losses;
//   - k2 = d²/2, biased, never negative, at most 10; gradient d, in expectation that of KL(policy ‖ base);
//   - k3 = exp(-d) - 1 + d, unbiased, never negative, at most 10; gradient 1 - exp(-d), that of KL(base ‖ policy);
//   - k3_base = exp(d) - 1 - d, for tokens that the base sampled: KL(base ‖ policy); gradient exp(d) - 1, its own.
//
// Gradients are those of the value with respect to logp, 0 beyond the bound; their expectation over the tokens times the
// gradient of logp is what a loss would follow.
//
// A log-prob that is NaN or infinite under an action is an error that names sample and slot.
func KL(kind string, logp, base [][]float32, masks [][]bool) ([][]float32, error) {
	f, ok := klKinds[kind]
	if !ok {
		return nil, fmt.Errorf("estimators: unknown KL %q; known: %s", kind, strings.Join(slices.Sorted(maps.Keys(klKinds)), ", "))
	}
	if err := errors.Join(checkRows("log-probs", logp, masks), checkRows("base log-probs", base, masks)); err != nil {
		return nil, fmt.Errorf("estimators: %s: %w", kind, err)
	}
	out := Batch{Masks: masks}.Zeros()
	for i, mask := range masks {
		for t, action := range mask {
			if action {
				out[i][t] = float32(f(float64(logp[i][t]) - float64(base[i][t])))
			}
		}
	}
	return out, nil
}

// KLController holds the coefficient of the KL. It is fixed if Target is 0; else it steers towards that divergence (Ziegler
// et al., arXiv:1909.08593, section 2.2).
type KLController struct {
	Coef    float64 // the coefficient now, at least 0
	Target  float64 // nats; 0: fixed
	Horizon float64 // samples over which it moves by about its own size, above 0 if there is a target
}

// Update returns the controller after a batch of n samples with mean KL current, in nats: the coefficient changes by at most
// 20 % · n / Horizon. A step that would leave no coefficient or a negative one, which rewards divergence, is an error; with n
// below 5 · Horizon there is none.
func (c KLController) Update(current float64, n int) (KLController, error) {
	if !finite(current+c.Coef+c.Target+c.Horizon) || !(c.Coef >= 0 && c.Target >= 0 && (c.Target == 0 || c.Horizon > 0)) {
		return c, fmt.Errorf("estimators: KL controller %+v after a batch with KL %v: all must be finite, coef and target at least 0, "+
			"horizon above 0", c, current)
	}
	if c.Target == 0 {
		return c, nil
	}
	const most = 0.2
	factor := 1 + min(max(current/c.Target-1, -most), most)*float64(n)/c.Horizon
	if !(factor > 0) {
		return c, fmt.Errorf("estimators: KL controller %+v: %d samples move the coefficient by %v of itself: the horizon must be above %v",
			c, n, factor-1, most*float64(n))
	}
	c.Coef *= factor
	return c, nil
}
