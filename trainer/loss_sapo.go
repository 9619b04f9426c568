package trainer

import "github.com/molt-go/molt/torch"

var sapoParams = []Param{{Name: "tau_pos", Default: 1, Min: 0.01, Max: 100}, {Name: "tau_neg", Default: 1.05, Min: 0.01, Max: 100}}

// SAPO is -σ(τ·(r-1))·4/τ·A with τ = tau_pos where A > 0 and tau_neg elsewhere: a gate that closes softly on both sides of ratio 1
// instead of a clip (Soft Adaptive Policy Optimization, arXiv:2511.20347). The gradient flows through the gate: that of r·A, times
// 4·σ·(1-σ), which is 1 at ratio 1. Its objective is a mean over samples, so loss.aggregation "seq-mean-token-mean" is the paper's.
//
// Metrics: gate, the mean of 4·σ·(1-σ).
func SAPO(s *torch.Scope, in LossInput) LossOutput {
	rising := s.Call("aten::gt.Scalar", in.Advantages, 0)[0]
	tau := s.Where(rising, torch.New(s, []float32{float32(in.Param("tau_pos"))}), torch.New(s, []float32{float32(in.Param("tau_neg"))}))
	gate := s.Call("aten::sigmoid", s.Mul(tau, s.AddScalar(s.Exp(in.LogRatio(s)), -1)))[0]
	open := s.MulScalar(s.Mul(gate, s.AddScalar(s.Neg(gate), 1)), 4)
	return LossOutput{
		Loss:    s.Neg(s.Mul(s.Div(s.MulScalar(gate, 4), tau), in.Advantages)),
		Metrics: map[string]Metric{"gate": in.Metric(s, open)},
	}
}
