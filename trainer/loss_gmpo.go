package trainer

import (
	"math"

	"github.com/molt-go/molt/torch"
)

var gmpoParams = []Param{{Name: "epsilon", Default: 0.4, Min: 0, Max: maxLogRatio}}

// GMPO is -G·A, where G is the geometric mean over the sample of its tokens' ratios, each bounded in the direction of its advantage: to
// e^epsilon where A > 0, from e^-epsilon elsewhere (Geometric-Mean Policy Optimization, arXiv:2507.20673, equation 4 and algorithm
// 1). The gradient flows through the mean: every token that is not bounded has the same, -G·A by the number of the sample's tokens. The
// paper has one advantage a sample and a mean over samples: loss.aggregation "seq-mean-token-mean" is its objective.
//
// Metrics: clip_ratio, the share of tokens that are bounded.
func GMPO(s *torch.Scope, in LossInput) LossOutput {
	ratio, epsilon := in.LogRatio(s), in.Param("epsilon")
	rising := s.Call("aten::gt.Scalar", in.Advantages, 0)[0]
	bounded := s.Where(rising, s.Clamp(ratio, math.Inf(-1), epsilon), s.Clamp(ratio, -epsilon, math.Inf(1)))
	return LossOutput{
		Loss:    s.Neg(s.Mul(s.Exp(in.SampleMean(s, bounded)), in.Advantages)),
		Metrics: map[string]Metric{"clip_ratio": in.Metric(s, s.Call("aten::ne.Tensor", bounded, ratio)[0])},
	}
}
