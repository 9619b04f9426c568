package trainer

import (
	"math"

	"github.com/molt-go/molt/torch"
)

// CISPO is -min(r, clip_high)·A·log p without a gradient through the ratio (MiniMax-M1, arXiv:2506.13585, equation 4), so that
// tokens whose ratio is clipped still learn. loss.clip_high is here the ceiling itself, at least 1.
//
// Metrics: clip_ratio, the share of tokens above the ceiling.
func CISPO(s *torch.Scope, in LossInput) LossOutput {
	ratio := s.Detach(s.Exp(in.LogRatio(s)))
	weight := s.Clamp(ratio, math.Inf(-1), in.Config.ClipHigh)
	return LossOutput{
		Loss:    s.Neg(s.Mul(s.Mul(weight, in.Advantages), in.LogP)),
		Metrics: map[string]Metric{"clip_ratio": in.Metric(s, s.Call("aten::gt.Scalar", ratio, in.Config.ClipHigh)[0])},
	}
}
