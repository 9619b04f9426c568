package trainer

import "github.com/molt-go/molt/torch"

// maxLogRatio bounds log-ratios before exp: beyond it a ratio is far outside every clip range and has no gradient.
const maxLogRatio = 30

// PPO is the clipped surrogate -min(r·A, clip(r, 1-low, 1+high)·A) of the ratio r to the old policy (Schulman et al.,
// arXiv:1707.06347, equation 7), with the two bounds apart (DAPO, arXiv:2503.14476, equation 10). Where A < 0, dual clip bounds it
// at -DualClip·A (Ye et al., arXiv:1912.09729, equation 5). Log-ratios are clamped to ±30.
//
// Metrics: policy_loss, the mean of the surrogate; clip_ratio, the share of tokens where the clipped one is lower; ratio.
func PPO(s *torch.Scope, in LossInput) LossOutput {
	c := in.Config
	ratio := s.Exp(s.Clamp(s.Sub(in.LogP, in.Old), -maxLogRatio, maxLogRatio))
	plain := s.Mul(ratio, in.Advantages)
	clipped := s.Mul(s.Clamp(ratio, 1-c.ClipLow, 1+c.ClipHigh), in.Advantages)
	gain := s.Minimum(plain, clipped)
	if c.DualClip > 0 {
		// A bound below 0 for A > 0 cannot hold, so the bound is taken where A < 0 only.
		negative := s.Less(in.Advantages, torch.New(s, []float32{0}))
		gain = s.Where(negative, s.Maximum(gain, s.MulScalar(in.Advantages, c.DualClip)), gain)
	}
	loss := s.Neg(gain)
	return LossOutput{
		Loss: in.Aggregate(s, loss),
		Metrics: map[string]Metric{
			"policy_loss": in.Metric(s, loss),
			"clip_ratio":  in.Metric(s, s.Less(clipped, plain)),
			"ratio":       in.Metric(s, ratio),
		},
	}
}
