package estimators

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Correction is importance sampling for tokens that another policy sampled than the one that is trained: older weights, or an engine
// that computes otherwise. Its weights multiply the token losses and have no gradient. The toml tags are its keys in a config; start
// from DefaultCorrection.
//
// The ratio of a token is that of its probabilities under the policy before the optimizer step and under the one that sampled it,
// log-ratios clamped to ±30. Stale tokens need nothing of their own: each has the log-prob that it was sampled at, so one ratio holds
// what age and engine have changed.
type Correction struct {
	// Preset names a correction that was published; it sets Level and Mode, and Band where that is empty. "" is the default; see Presets.
	Preset string `toml:"is_preset"`
	// Level is what is judged as one: "off", the default; "token"; "seq", the product of a sample's ratios; "geo", their geometric mean.
	Level string `toml:"is_level"`
	// Mode is what happens outside of the band: "mask", the default, gives weight 0; "clip" bounds the weight to the band; "trunc" bounds
	// it from above only. Inside, and under "mask" with a whole sample inside, a token's weight is its own ratio.
	Mode string `toml:"is_mode"`
	// Gate is the number that must lie in the band: "ratio", the default, or how far the probabilities of the sampled token are apart,
	// "binary_kl" or "tv" (of a sample their mean), which "mask" goes by and which have an upper bound only.
	Gate string `toml:"is_gate"`
	// Band is low and high, both inside, or high alone; default 0.5 and 5.
	Band []float64 `toml:"is_band"`
	// Rejected says what tokens of weight 0 are in the means over a step: "count", the default, as tokens with loss 0; "drop": they are
	// left out of the step, its denominators, KL and entropy too. Both hold for every aggregation.
	Rejected string `toml:"is_rejected"`
}

// DefaultCorrection is none.
func DefaultCorrection() Correction {
	return Correction{Level: "off", Mode: "mask", Gate: "ratio", Rejected: "count"}
}

// Presets are the corrections that have names.
var Presets = map[string]Correction{
	// Truncated importance sampling (Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025).
	"tis": {Level: "token", Mode: "trunc", Band: []float64{0, 2}},
	// IcePop (Ling team, "Small Leak Can Sink a Great Ship", 2025).
	"icepop": {Level: "token", Mode: "mask", Band: []float64{0.5, 5}},
	// Masked importance sampling of sequences (Liu, Li et al., "When Speed Kills Stability", 2025).
	"mis": {Level: "seq", Mode: "mask", Band: []float64{0, 2}},
	// Molt's default recipe: samples whose mean log-ratio is within about 1 %.
	"seq-mask-tis": {Level: "geo", Mode: "mask", Band: []float64{0.99, 1.01}},
}

// Resolve replaces the preset and an empty band by what they stand for, and returns what is wrong by the names of the keys.
func (c Correction) Resolve() (Correction, error) {
	preset, known := Presets[c.Preset]
	if known {
		if c.Level != "off" || c.Mode != "mask" || c.Gate != "ratio" {
			return c, fmt.Errorf("is_preset is %q, which sets is_level, is_mode and is_gate: leave out those or it", c.Preset)
		}
		c.Level, c.Mode = preset.Level, preset.Mode
		if len(c.Band) == 0 {
			c.Band = preset.Band
		}
	}
	one := func(value string, of ...string) bool { return slices.Contains(of, value) }
	gated := c.Gate != "ratio"
	switch {
	case c.Preset != "" && !known:
		return c, fmt.Errorf("is_preset is %q, want one of %s", c.Preset, strings.Join(slices.Sorted(maps.Keys(Presets)), ", "))
	case !one(c.Level, "off", "token", "seq", "geo"):
		return c, fmt.Errorf("is_level is %q, want off, token, seq or geo", c.Level)
	case !one(c.Mode, "mask", "clip", "trunc"):
		return c, fmt.Errorf("is_mode is %q, want mask, clip or trunc", c.Mode)
	case !one(c.Gate, "ratio", "binary_kl", "tv"):
		return c, fmt.Errorf("is_gate is %q, want ratio, binary_kl or tv", c.Gate)
	case !one(c.Rejected, "count", "drop"):
		return c, fmt.Errorf("is_rejected is %q, want count or drop", c.Rejected)
	case c.Mode != "mask" && one(c.Level, "seq", "geo"):
		return c, fmt.Errorf("is_mode is %q, but of is_level %q only the samples can be judged: want mask", c.Mode, c.Level)
	case gated && (c.Mode != "mask" || c.Level == "geo"):
		return c, fmt.Errorf("is_gate is %q, no weight and no ratio: want is_mode mask and is_level token or seq", c.Gate)
	case c.Rejected == "drop" && (c.Level == "off" || c.Mode != "mask"):
		return c, errors.New(`is_rejected is "drop", but only is_mode mask with a level rejects`)
	case gated && c.Level != "off" && len(c.Band) == 0:
		return c, fmt.Errorf("is_band is empty, want the upper bound of is_gate %q", c.Gate)
	}
	switch len(c.Band) {
	case 0:
		c.Band = []float64{0.5, 5}
	case 1:
		c.Band = []float64{math.Inf(-1), c.Band[0]}
	}
	if len(c.Band) != 2 || !(c.Band[0] <= c.Band[1]) || c.Band[1] <= 0 {
		return c, fmt.Errorf("is_band is %v, want low ≤ high, or high alone, above 0", c.Band)
	}
	if gated && c.Level != "off" && c.Band[0] > 0 {
		return c, fmt.Errorf("is_band is %v, but is_gate %q has an upper bound only", c.Band, c.Gate)
	}
	return c, nil
}

// MaxLogRatio bounds log-ratios before exp.
const MaxLogRatio = 30

// Weights is what a correction makes of N tokens.
type Weights struct {
	Ratio   []float32 // [N] raw, before the correction
	Weight  []float32 // [N] effective
	Outside []bool    // [N] its unit, token or sample, is outside of the band
}

// Weights judges tokens by their log-probs [N] under the policy before the step and under the one that sampled them; the tokens of a sample
// stand together. c must be resolved.
func (c Correction) Weights(old, behaviour []float32, sample []int32) Weights {
	w := Weights{make([]float32, len(old)), make([]float32, len(old)), make([]bool, len(old))}
	stats := make([]float64, len(old))
	for i := range old {
		d := min(max(float64(old[i])-float64(behaviour[i]), -MaxLogRatio), MaxLogRatio)
		w.Ratio[i] = float32(math.Exp(d))
		switch c.Gate {
		case "ratio":
			stats[i] = d
		case "tv":
			stats[i] = TV(behaviour[i], old[i])
		case "binary_kl":
			stats[i] = BinaryKL(behaviour[i], old[i])
		}
	}
	for a, b := 0, 0; a < len(old); a = b {
		for b = a + 1; b < len(old) && c.Level != "token" && sample[b] == sample[a]; b++ {
		}
		stat := 0.0
		for _, x := range stats[a:b] {
			stat += x
		}
		if c.Gate != "ratio" || c.Level == "geo" {
			stat /= float64(b - a)
		}
		if c.Gate == "ratio" {
			stat = math.Exp(min(max(stat, -MaxLogRatio), MaxLogRatio))
		}
		inside := stat >= c.Band[0] && stat <= c.Band[1]
		for i := a; i < b; i++ {
			w.Weight[i], w.Outside[i] = float32(c.weight(float64(w.Ratio[i]), inside)), !inside
		}
		if c.Mode == "trunc" {
			w.Outside[a] = stat > c.Band[1]
		}
	}
	return w
}

// TV is |p-q|, for two probabilities of one token by their logs.
func TV(logp, logq float32) float64 {
	return math.Abs(math.Exp(float64(logp)) - math.Exp(float64(logq)))
}

// BinaryKL is the KL divergence, in nats, of (p, 1-p) from (q, 1-q), for two probabilities of one token by their logs; both are taken at
// least 1e-6 away from 0 and 1.
func BinaryKL(logp, logq float32) float64 {
	inner := func(x float32) float64 { return min(max(math.Exp(float64(x)), 1e-6), 1-1e-6) }
	p, q := inner(logp), inner(logq)
	return p*math.Log(p/q) + (1-p)*math.Log((1-p)/(1-q))
}

// weight is the factor of a token's loss.
func (c Correction) weight(ratio float64, inside bool) float64 {
	switch {
	case c.Level == "off":
		return 1
	case c.Mode == "clip":
		return min(max(ratio, c.Band[0]), c.Band[1])
	case c.Mode == "trunc":
		return min(ratio, c.Band[1])
	case inside:
		return ratio
	}
	return 0
}

// tailFloor keeps the ratio of two tails finite where the head is nearly everything.
const tailFloor = 1e-6

// Center gives the weights [N,k] of score centering (arXiv:2609.20807, equations 10 and 14): the sum of weight · log-prob over the
// sampler's k most likely tokens, times the advantage, takes from a token's loss what the sampler's choice alone would push the policy to.
// policy and sampler are the log-probs [N,k] of those tokens under both. The tail counts as the policy's, rescaled; c weighs tokens as
// it does those that were sampled, so its level must be off or token and its gate the ratio.
func (c Correction) Center(policy, sampler []float32, k int) []float32 {
	f := func(ratio float64) float64 { return c.weight(ratio, ratio >= c.Band[0] && ratio <= c.Band[1]) }
	out := make([]float32, len(policy))
	for a := 0; a < len(policy); a += k {
		ps, qs := 0.0, 0.0
		for i := a; i < a+k; i++ {
			ps, qs = ps+math.Exp(float64(policy[i])), qs+math.Exp(float64(sampler[i]))
		}
		rho := max(1-qs, tailFloor) / max(1-ps, tailFloor)
		alpha := rho * f(1/rho)
		for i := a; i < a+k; i++ {
			p, q := math.Exp(float64(policy[i])), math.Exp(float64(sampler[i]))
			out[i] = float32(q*f(math.Exp(float64(policy[i])-float64(sampler[i]))) - alpha*p)
		}
	}
	return out
}
