package trainer

import (
	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/torch"
)

// dppoParams has the values of the paper's scaling experiments (appendix E). Its stability analysis has δ 0.15 for TV, and no bound c.
func dppoParams(delta float64) []Param {
	return []Param{{Name: "delta", Default: delta, Min: 0, Max: 100}, {Name: "c", Default: 5, Min: 1, Max: 1e13}}
}

// DPPOTV is -M·min(r, c)·A, where M is 0 for tokens that have gone further than delta from the policy that sampled them and that their
// advantage would push on, and 1 for others (Divergence Proximal Policy Optimization, arXiv:2602.04879, equations 12, 13 and 23). How
// far is the total variation of (p, 1-p), the probability of the token and of all others. It is always taken to in.Behaviour and the
// ratio to in.Old, which are the same unless loss.old says otherwise. The gradient, by the token's log-prob, is -M·min(r, c)·A too:
// where r > c it is bounded and not lost. The authors' code has this gradient with the value -M·min(r, c)·A·log p.
//
// Metrics: clip_ratio, the share of tokens with M = 0.
func DPPOTV(s *torch.Scope, in LossInput) LossOutput { return dppo(s, in, estimators.TV) }

// DPPOKL is DPPOTV with the KL divergence of the policy that sampled from the policy now in place of the total variation (equation
// 14). The authors' code adds 1e-8 to 1-p; here p stays 1e-6 away from 0 and 1.
func DPPOKL(s *torch.Scope, in LossInput) LossOutput { return dppo(s, in, estimators.BinaryKL) }

func dppo(s *torch.Scope, in LossInput, divergence func(logp, logq float32) float64) LossOutput {
	then, now := torch.Values[float32](in.Behaviour), torch.Values[float32](in.LogP)
	kept := make([]float32, len(now))
	for n, a := range torch.Values[float32](in.Advantages) {
		onward := a > 0 && now[n] > then[n] || a < 0 && now[n] < then[n]
		if !onward || divergence(then[n], now[n]) <= in.Param("delta") {
			kept[n] = 1
		}
	}
	mask := torch.New(s, kept)
	own := s.Exp(s.Sub(in.LogP, s.Detach(in.LogP))) // 1, with the token's gradient
	weight := s.Mul(mask, s.Detach(s.Clamp(s.Exp(in.LogRatio(s)), 0, in.Param("c"))))
	return LossOutput{
		Loss:    s.Neg(s.Mul(s.Mul(weight, own), in.Advantages)),
		Metrics: map[string]Metric{"clip_ratio": in.Metric(s, s.AddScalar(s.Neg(mask), 1))},
	}
}
