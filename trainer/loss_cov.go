package trainer

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/molt-go/molt/torch"
)

var (
	clipCovParams = []Param{{Name: "r", Default: 2e-4, Min: 1e-9, Max: 1}, {Name: "omega_low", Default: 1, Min: -1e9, Max: 1e9},
		{Name: "omega_high", Default: 5, Min: -1e9, Max: 1e9}}
	klCovParams = []Param{{Name: "k", Default: 2e-3, Min: 1e-9, Max: 1}, {Name: "beta", Default: 1, Min: 0, Max: 1e9}}
)

// ClipCov is PPO's clipped surrogate without some of the tokens that lower entropy most: of those whose covariance lies in
// [omega_low, omega_high] the share r of all tokens of the step, at least one, is drawn and has loss and gradient 0 (The Entropy Mechanism
// of Reinforcement Learning for Reasoning Language Models, arXiv:2505.22617, Clip-Cov). A token's covariance is that of its log-prob
// and its advantage, each less its mean over the step. The draw depends on the token's place in the step alone, so that neither the
// run nor the micro-batches change it.
//
// The authors' code takes the covariance by the log-prob under the policy now, over a micro-batch, and draws among tokens that the
// surrogate has not clipped. Here it is by the log-prob under the policy that sampled, which is known of the whole step before its first
// micro-batch, and the draw is among all tokens.
//
// Metrics: clip_ratio as PPO's; cov_ratio, the share of tokens that are drawn.
func ClipCov(s *torch.Scope, in LossInput) LossOutput {
	out := clipped(s, in, s.Exp(in.LogRatio(s)))
	low, high := in.Param("omega_low"), in.Param("omega_high")
	drawn := in.chosen(s, in.Param("r"), func(covariance float64, place int) (float64, bool) {
		return rand.New(rand.NewPCG(uint64(place), 0)).Float64(), covariance >= low && covariance <= high
	})
	out.Loss = s.Mul(out.Loss, s.AddScalar(s.Neg(drawn), 1))
	out.Metrics["cov_ratio"] = in.Metric(s, drawn)
	return out
}

// KLCov is -r·A, not clipped, and for the share k of the step's tokens, at least one, with the highest covariance (see ClipCov)
// beta·|log r| on top, which keeps them near the old policy (arXiv:2505.22617, KL-Cov). The gradient flows through both; at ratio 1 that
// of the penalty is 0. The paper writes a KL divergence from the old policy; the authors' code, and this, take the size of the log-ratio.
//
// Metrics: cov_ratio, the share of tokens with the penalty.
func KLCov(s *torch.Scope, in LossInput) LossOutput {
	ratio := in.LogRatio(s)
	chosen := in.chosen(s, in.Param("k"), func(covariance float64, _ int) (float64, bool) { return covariance, true })
	penalty := s.MulScalar(s.Mul(chosen, s.Call("aten::abs", ratio)[0]), in.Param("beta"))
	return LossOutput{
		Loss:    s.Sub(penalty, s.Mul(s.Exp(ratio), in.Advantages)),
		Metrics: map[string]Metric{"cov_ratio": in.Metric(s, chosen)},
	}
}

// chosen is 1 for the tokens of this micro-batch that are among the share of the step's that rank highest, and 0 for others [N].
// rank, of a token's covariance and place in the step, also says whether it can be chosen at all. It is asked once a step.
func (in LossInput) chosen(s *torch.Scope, share float64, rank func(covariance float64, place int) (float64, bool)) torch.Tensor {
	if *in.Step.chosen == nil {
		*in.Step.chosen = in.Step.choose(share, rank)
	}
	return torch.New(s, (*in.Step.chosen)[in.First:in.First+len(in.Sample)])
}

func (step Step) choose(share float64, rank func(covariance float64, place int) (float64, bool)) []float32 {
	n, logp, advantage := float64(len(step.Behaviour)), 0.0, 0.0 // their number and means
	for i := range step.Behaviour {
		logp, advantage = logp+float64(step.Behaviour[i])/n, advantage+float64(step.Advantages[i])/n
	}
	var order []int
	ranks, out := make([]float64, len(step.Behaviour)), make([]float32, len(step.Behaviour))
	for i := range ranks {
		var ok bool
		if ranks[i], ok = rank((float64(step.Behaviour[i])-logp)*(float64(step.Advantages[i])-advantage), i); ok {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Or(cmp.Compare(ranks[j], ranks[i]), i-j) })
	for _, i := range order[:min(len(order), max(1, int(share*n)))] {
		out[i] = 1
	}
	return out
}
