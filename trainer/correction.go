package trainer

import (
	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/torch"
)

// correction is what importance sampling and score centering do to the token losses of one micro-batch.
type correction struct {
	on      bool
	level   string
	weights estimators.Weights // [N], if on
	center  torch.Tensor       // float32 [N,K] weights of in.Top; none without score centering
}

// newCorrection takes the log-probs [N] that stand over the sampler's in the ratio.
func newCorrection(s *torch.Scope, in LossInput, m *Micro, old []float32) correction {
	is, err := in.Config.Correction.Resolve()
	if err != nil {
		panic(err) // Validate has seen it
	}
	out := correction{on: is.Level != "off", level: is.Level}
	if out.on {
		out.weights = is.Weights(old, m.Behaviour, m.Sample)
	}
	if k := in.Config.ScoreCentering; k > 0 {
		out.center = torch.New(s, is.Center(torch.Values[float32](in.Top), m.Top, k), len(m.Places), k)
	}
	return out
}

// apply returns the corrected losses [N] and adds its metrics: raw and effective ratios apart, so that what the correction hides shows.
func (c correction) apply(s *torch.Scope, in LossInput, losses torch.Tensor, metrics map[string]Metric) torch.Tensor {
	if c.on {
		raw, weight := torch.New(s, c.weights.Ratio), torch.New(s, c.weights.Weight)
		losses = s.Mul(losses, weight)
		metrics["is_ratio"], metrics["is_weight"] = in.Metric(s, raw), in.Metric(s, weight)
		metrics["behaviour_kl"] = in.Metric(s, s.Sub(in.Behaviour, in.Old))
		metrics["is_outside"] = shareOutside(c.level, c.weights, in.Sample)
	}
	if c.center != (torch.Tensor{}) {
		head := s.Call("aten::sum.dim_IntList", s.Mul(c.center, in.Top), []int{-1})[0]
		losses = s.Add(losses, s.Mul(in.Advantages, head))
	}
	return losses
}

// shareOutside is how many lie outside of the band, of tokens or, where these are judged as one, of samples.
func shareOutside(level string, w estimators.Weights, sample []int32) (m Metric) {
	for n, out := range w.Outside {
		if level == "token" || n == 0 || sample[n] != sample[n-1] {
			m.Count++
			if out {
				m.Sum++
			}
		}
	}
	return m
}
