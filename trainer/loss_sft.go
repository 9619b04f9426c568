package trainer

import "github.com/molt-go/molt/torch"

// SFT is the negative log-likelihood of every token, whatever its advantage.
func SFT(s *torch.Scope, in LossInput) LossOutput { return LossOutput{Loss: s.Neg(in.LogP)} }

// ValueLoss is half the squared error [N] of a critic's values to their returns, the larger of that of the values and that of the
// values within ±clip of the old ones (Schulman et al., arXiv:1506.02438 and PPO's reference code); clip 0 is off. All are float32 [N].
// outside [N] is 1 where the values were clipped; none without clip.
func ValueLoss(s *torch.Scope, values, old, returns torch.Tensor, clip float64) (losses, outside torch.Tensor) {
	square := func(x torch.Tensor) torch.Tensor { return s.Mul(x, x) }
	losses = square(s.Sub(values, returns))
	if clip > 0 {
		moved := s.Sub(values, old)
		bound := s.Add(old, s.Clamp(moved, -clip, clip))
		losses = s.Maximum(losses, square(s.Sub(bound, returns)))
		outside = s.Call("aten::gt.Scalar", s.Call("aten::abs", moved)[0], clip)[0]
	}
	return s.MulScalar(losses, 0.5), outside
}
