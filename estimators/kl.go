package estimators

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// klBound keeps one token of k2 or k3 from outweighing a batch; k1 is not bounded.
const klBound = 10

// klKinds holds the estimates of KL by their names, as functions of d = logp - base
// (Schulman, "Approximating KL Divergence", 2020). Tokens are sampled from the policy, but for k3_base from the base.
var klKinds = map[string]func(d float64) float64{
	"k1":      func(d float64) float64 { return d },
	"k2":      func(d float64) float64 { return min(d*d/2, klBound) },
	"k3":      func(d float64) float64 { return min(math.Expm1(-d)+d, klBound) },
	"k3_base": func(d float64) float64 { return min(math.Expm1(d)-d, klBound) },
}

// KL returns the KL value of each action, in nats, from its log-probs under the policy and under the base policy, all in
// the shape of the masks; masked slots are 0 and may hold anything. Their expectation, not one value, is the divergence:
//
//   - k1 = d, unbiased, can be negative;
//   - k2 = d²/2, biased, never negative; at most 10;
//   - k3 = exp(-d) - 1 + d, unbiased, never negative; at most 10;
//   - k3_base = exp(d) - 1 - d, the same where the base sampled the tokens, KL(base ‖ policy).
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

// AdaptiveKL steers the KL coefficient towards a target divergence (Ziegler et al., arXiv:1909.08593, section 2.2).
// A fixed coefficient needs no controller.
type AdaptiveKL struct {
	Coef    float64 // the coefficient now
	Target  float64 // nats, above 0
	Horizon float64 // samples over which it moves by about its own size, above 0
}

// Update returns the controller after a batch of n samples with mean KL current, in nats: the coefficient changes by at most
// 20 % · n / Horizon, so keep n below 5 · Horizon, or it can turn negative.
func (c AdaptiveKL) Update(current float64, n int) (AdaptiveKL, error) {
	if !finite(current) || !(c.Target > 0) || !(c.Horizon > 0) {
		return c, fmt.Errorf("estimators: adaptive KL %+v after a batch with KL %v: all must be finite, target and horizon above 0", c,
			current)
	}
	const most = 0.2
	change := min(max(current/c.Target-1, -most), most)
	c.Coef *= 1 + change*float64(n)/c.Horizon
	return c, nil
}
