package trainer

import "github.com/molt-go/molt/torch"

// GSPO clips one ratio a sample, the geometric mean of its tokens' (arXiv:2507.18071, equations 5 and 7): a single token can neither
// clip nor blow up an update. The gradient flows through each token's own log-prob (GSPO-token, equation 13). Its objective is a mean
// over samples, so loss.aggregation "seq-mean-token-mean" is the paper's.
//
// Metrics: clip_ratio, the share of tokens where the clipped surrogate is lower.
func GSPO(s *torch.Scope, in LossInput) LossOutput {
	own := s.Sub(in.LogP, s.Detach(in.LogP)) // 0, with the token's gradient
	ratio := s.Exp(s.Add(own, s.Detach(in.SampleMean(s, in.LogRatio(s)))))
	return clipped(s, in, ratio)
}
