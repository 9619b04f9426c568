package trainer

import (
	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/torch"
)

// klBound is the bound of k2 and k3, beyond which they have no gradient.
const klBound = estimators.KLBound

// klLosses holds the estimates of KL that can be minimised, as functions of d = logp - base [N]; the values are those of
// estimators.KL. The gradient is that of the value, which is not that of the divergence for each of them: for tokens that the
// policy sampled k1's is 0 in expectation, k2's is that of KL(policy ‖ base), k3's that of KL(base ‖ policy).
var klLosses = map[string]func(s *torch.Scope, d torch.Tensor) torch.Tensor{
	"k1": func(_ *torch.Scope, d torch.Tensor) torch.Tensor { return d },
	"k2": func(s *torch.Scope, d torch.Tensor) torch.Tensor {
		return s.Clamp(s.MulScalar(s.Mul(d, d), 0.5), -klBound, klBound)
	},
	"k3": func(s *torch.Scope, d torch.Tensor) torch.Tensor {
		return s.Clamp(expGap(s, s.Neg(d)), -klBound, klBound)
	},
	"k3_base": func(s *torch.Scope, d torch.Tensor) torch.Tensor { return s.Clamp(expGap(s, d), -klBound, klBound) },
}

// expGap is exp(d) - 1 - d, not bounded by klBound. The clamp only keeps exp finite.
func expGap(s *torch.Scope, d torch.Tensor) torch.Tensor {
	d = s.Clamp(d, -maxLogRatio, maxLogRatio)
	return s.Sub(s.Call("aten::expm1", d)[0], d)
}
