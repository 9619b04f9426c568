package trainer

import "github.com/molt-go/molt/torch"

// aggregations turn token losses into one number: each gives the divisor of the token losses of a sample. All of them count over the
// whole optimizer step.
var aggregations = map[string]func(in LossInput, sample SampleInfo) int{
	// The mean over all tokens.
	"token-mean": func(in LossInput, _ SampleInfo) int { return in.Step.Tokens },
	// The mean over samples of the sum over their tokens: long samples weigh more.
	"seq-mean-token-sum": func(in LossInput, _ SampleInfo) int { return in.Step.Sequences },
	// The same over a fixed length, loss.norm_tokens (Dr. GRPO, arXiv:2503.20783).
	"seq-mean-token-sum-norm": func(in LossInput, _ SampleInfo) int { return in.Step.Sequences * in.Config.NormTokens },
	// The mean over samples of the mean over their tokens (GRPO, arXiv:2402.03300).
	"seq-mean-token-mean": func(in LossInput, sample SampleInfo) int { return in.Step.Sequences * sample.Tokens },
	// The mean over prompts of the mean over the tokens of all their samples.
	"prompt-mean-token-mean": func(in LossInput, sample SampleInfo) int { return in.Step.Prompts * sample.GroupTokens },
}

// Aggregate turns token losses [N] into this micro-batch's share of the step's loss, a scalar, as loss.aggregation says.
func (in LossInput) Aggregate(s *torch.Scope, losses torch.Tensor) torch.Tensor {
	if in.Config.Aggregation == "token-mean" {
		return in.tokenMean(s, losses)
	}
	divisor, weights := aggregations[in.Config.Aggregation], make([]float32, len(in.Sample))
	for n, i := range in.Sample {
		weights[n] = float32(1 / float64(divisor(in, in.Samples[i])))
	}
	return s.Sum(s.Mul(losses, torch.New(s, weights)))
}

// tokenMean is this micro-batch's share of the mean of x [N] over the tokens of the optimizer step.
func (in LossInput) tokenMean(s *torch.Scope, x torch.Tensor) torch.Tensor {
	return s.MulScalar(s.Sum(x), 1/float64(in.Step.Tokens))
}
