package trainer

import "github.com/molt-go/molt/torch"

// PPO is the clipped surrogate -min(r·A, clip(r, 1-low, 1+high)·A) of the ratio r to the old policy (Schulman et al.,
// arXiv:1707.06347, equation 7), with the two bounds apart (DAPO, arXiv:2503.14476, equation 10). Where A < 0, dual clip bounds it
// at -DualClip·A (Ye et al., arXiv:1912.09729, equation 5). Log-ratios are clamped to ±30.
//
// Metrics: clip_ratio, the share of tokens where the clipped surrogate is lower.
func PPO(s *torch.Scope, in LossInput) LossOutput {
	out := clipped(s, in, s.Exp(in.LogRatio(s)))
	if c := in.Config.DualClip; c > 0 {
		// For A > 0 the bound would be below 0 and cannot hold, so it is taken where A < 0 only.
		negative := s.Call("aten::lt.Scalar", in.Advantages, 0)[0]
		out.Loss = s.Where(negative, s.Minimum(out.Loss, s.MulScalar(in.Advantages, -c)), out.Loss)
	}
	return out
}

// clipped is -min(r·A, clip(r, 1-low, 1+high)·A) of a ratio r [N].
func clipped(s *torch.Scope, in LossInput, ratio torch.Tensor) LossOutput {
	plain := s.Mul(ratio, in.Advantages)
	bound := s.Mul(s.Clamp(ratio, 1-in.Config.ClipLow, 1+in.Config.ClipHigh), in.Advantages)
	return LossOutput{s.Neg(s.Minimum(plain, bound)), map[string]Metric{"clip_ratio": in.Metric(s, s.Less(bound, plain))}}
}
