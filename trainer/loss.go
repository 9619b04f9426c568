package trainer

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/torch"
)

// LossInput is what a policy loss sees of one micro-batch: N rows, one for each token that the policy chose, samples one after
// the other. Other tokens have no row, so that nothing at a masked position can reach a loss. All numbers are finite.
type LossInput struct {
	LogP, Entropy torch.Tensor // float32 [N] under the policy now, in nats; the trainer takes the loss's gradients by them
	Old           torch.Tensor // float32 [N] log-probs that the ratio is taken to, see loss.old
	Behaviour     torch.Tensor // float32 [N] log-probs that the tokens were sampled at
	Reference     torch.Tensor // float32 [N] log-probs under the reference policy; none if loss.kl_coef is 0
	Advantages    torch.Tensor // float32 [N]
	// Top and TopBehaviour, float32 [N,K], are the log-probs of the sampler's K most likely tokens under the policy now and as they were
	// sampled; none without loss.score_centering.
	Top, TopBehaviour torch.Tensor
	Sample            []int32      // [N] sample of each row, an index into Samples
	Samples           []SampleInfo // the samples with rows in this micro-batch; a sample is never split
	First             int          // row 0 is this token of the step
	Step              Step
	Config            LossConfig

	correction correction
	params     map[string]float64
}

// SampleInfo counts the policy's tokens around one sample.
type SampleInfo struct {
	Tokens      int // in the sample
	GroupTokens int // in all samples of its prompt, over the whole optimizer step
}

// Step is one optimizer step over all its micro-batches and ranks. Losses divide by these counts alone: neither accumulation nor
// sharding changes the loss.
type Step struct {
	Tokens    int // that the policy chose
	Sequences int // samples, those without such a token included
	Prompts   int // groups with such a token
	// Behaviour and Advantages are those of all tokens [Tokens], for losses that compare a token with the rest of the step.
	Behaviour, Advantages []float32
	chosen                *[]float32 // see LossInput.chosen
}

// LossOutput is a policy loss: what each token of the micro-batch is to be punished by, and metrics.
type LossOutput struct {
	Loss    torch.Tensor // float32 [N]
	Metrics map[string]Metric
}

// Metric is a mean in parts: sums and counts add up over micro-batches and ranks, means do not.
type Metric struct{ Sum, Count float64 }

// Add is the metric over what m and n are of.
func (m Metric) Add(n Metric) Metric { return Metric{m.Sum + n.Sum, m.Count + n.Count} }

// Mean is NaN if nothing was counted.
func (m Metric) Mean() float64 { return m.Sum / m.Count }

// Metric is the sum of x [N] and its number of rows.
func (in LossInput) Metric(s *torch.Scope, x torch.Tensor) Metric {
	return Metric{s.Sum(x).Item(), float64(len(in.Sample))}
}

// maxLogRatio bounds log-ratios before exp: beyond it a ratio is far outside every clip range and has no gradient.
const maxLogRatio = estimators.MaxLogRatio

// LogRatio is LogP - Old [N], clamped to ±30.
func (in LossInput) LogRatio(s *torch.Scope) torch.Tensor {
	return s.Clamp(s.Sub(in.LogP, in.Old), -maxLogRatio, maxLogRatio)
}

// SampleMean gives each row of x [N] the mean of its sample's rows.
func (in LossInput) SampleMean(s *torch.Scope, x torch.Tensor) torch.Tensor {
	counts := make([]float64, len(in.Samples))
	for i, sample := range in.Samples {
		counts[i] = float64(sample.Tokens)
	}
	index := torch.New(s, in.Sample)
	sums := s.Call("aten::index_add", s.Zeros(torch.Float64, len(counts)), 0, index, s.To(x, torch.Float64), 1)[0]
	return s.To(s.IndexSelect(s.Div(sums, torch.New(s, counts)), 0, index), torch.Float32)
}

// Param is a number that a loss can be configured with, in the table [loss.params].
type Param struct {
	Name              string
	Default, Min, Max float64
}

// Param is the value of a parameter that the loss was registered with, NaN for another name, which the trainer refuses as a loss.
func (in LossInput) Param(name string) float64 {
	if v, ok := in.params[name]; ok {
		return v
	}
	return math.NaN()
}

type policyLoss struct {
	f      func(*torch.Scope, LossInput) LossOutput
	params []Param
}

var losses = map[string]policyLoss{
	"ppo":      {f: PPO},
	"gspo":     {f: GSPO},
	"cispo":    {f: CISPO},
	"sapo":     {SAPO, sapoParams},
	"dppo_tv":  {DPPOTV, dppoParams(0.2)},
	"dppo_kl":  {DPPOKL, dppoParams(0.05)},
	"gmpo":     {GMPO, gmpoParams},
	"clip_cov": {ClipCov, clipCovParams},
	"kl_cov":   {KLCov, klCovParams},
	"sft":      {f: SFT},
}

// RegisterLoss makes f available as loss.name, for a program's own main, before training starts; params are its keys in
// [loss.params]. An empty or known name and a nil f are errors. What f gives is multiplied by the weights of the correction for importance
// sampling and aggregated by the trainer, which also adds the entropy bonus and the KL term.
func RegisterLoss(name string, f func(*torch.Scope, LossInput) LossOutput, params ...Param) error {
	if _, ok := losses[name]; ok || name == "" || f == nil {
		return fmt.Errorf("trainer: cannot register the loss %q: it needs a new name and a function; known: %s", name, knownLosses())
	}
	losses[name] = policyLoss{f, params}
	return nil
}

func knownLosses() string { return strings.Join(slices.Sorted(maps.Keys(losses)), ", ") }

// FindLoss returns an error that lists the known losses if name is not one of them.
func FindLoss(name string) error {
	if losses[name].f == nil {
		return fmt.Errorf("loss.name: unknown loss %q; known: %s", name, knownLosses())
	}
	return nil
}

// evaluate runs the configured loss and gives this micro-batch's share of the step's loss, a scalar; shares add up. Every loss has the
// correction, the entropy bonus and the KL term, both as means over tokens whatever the aggregation, and the metrics of policy and
// behaviour.
func (in LossInput) evaluate(s *torch.Scope) (torch.Tensor, map[string]Metric, error) {
	out := losses[in.Config.Name].f(s, in)
	if out.Loss == (torch.Tensor{}) || !slices.Equal(out.Loss.Shape(), in.LogP.Shape()) {
		return out.Loss, nil, fmt.Errorf("the loss %q gives %v, want token losses %v", in.Config.Name, out.Loss, in.LogP.Shape())
	}
	drift := s.Sub(in.LogP, in.Behaviour)
	metrics := map[string]Metric{
		"entropy":        in.Metric(s, in.Entropy),
		"advantage_mean": in.Metric(s, in.Advantages),
		"policy_kl":      in.Metric(s, s.Sub(in.Old, in.LogP)),
		"ratio":          in.Metric(s, s.Exp(in.LogRatio(s))),
		"mismatch_abs":   in.Metric(s, s.Call("aten::abs", drift)[0]),
		"mismatch_k3":    in.Metric(s, expGap(s, drift)),
		"mismatch_share": in.Metric(s, s.Call("aten::ne.Scalar", drift, 0)[0]), // of tokens with any difference
	}
	corrected := in.correction.apply(s, in, out.Loss, metrics)
	metrics["policy_loss"] = in.Metric(s, corrected)
	maps.Copy(metrics, out.Metrics)
	loss := in.Aggregate(s, corrected)
	if c := in.Config.EntropyCoef; c != 0 {
		loss = s.Sub(loss, s.MulScalar(in.tokenMean(s, in.Entropy), c))
	}
	if c := in.Config.KLCoef; c != 0 {
		kl := klLosses[in.Config.KL](s, s.Sub(in.LogP, in.Reference))
		loss = s.Add(loss, s.MulScalar(in.tokenMean(s, kl), c))
		metrics["kl"] = in.Metric(s, kl)
	}
	return loss, metrics, nil
}

// input makes the loss's view of m. scores [N,1+K] are the log-probs of each place's token and, with score centering, of the sampler's
// K most likely ones; entropy is [N].
func (m *Micro) input(s *torch.Scope, scores, entropy torch.Tensor, step Step, c LossConfig) LossInput {
	logp := s.Reshape(s.Narrow(scores, 1, 0, 1), len(m.Places))
	in := LossInput{
		LogP: logp, Entropy: entropy, Behaviour: torch.New(s, m.Behaviour), Advantages: torch.New(s, m.Advantages),
		Sample: m.Sample, Samples: m.Samples, First: m.First, Step: step, Config: c, params: map[string]float64{},
	}
	for _, p := range losses[c.Name].params {
		in.params[p.Name] = p.Default
	}
	maps.Copy(in.params, c.Params)
	old := m.Old
	switch {
	case old != nil:
		in.Old = torch.New(s, old)
	case c.Old == "policy":
		in.Old, old = s.Detach(logp), torch.Values[float32](logp)
	default:
		in.Old, old = in.Behaviour, m.Behaviour
	}
	if c.KLCoef != 0 && c.KLReference == "behaviour" {
		in.Reference = in.Behaviour
	} else if c.KLCoef != 0 {
		in.Reference = torch.New(s, m.Reference)
	}
	if k := c.ScoreCentering; k > 0 {
		in.Top, in.TopBehaviour = s.Narrow(scores, 1, 1, k), torch.New(s, m.Top, len(m.Places), k)
	}
	in.correction = newCorrection(s, in, m, old)
	return in
}

// checkFinite returns an error that names the first place where x, of as many numbers for each of them, is NaN or infinite.
func (m *Micro) checkFinite(what string, x torch.Tensor) error {
	for i, v := range torch.Values[float32](x) {
		if !finite(v) {
			p := m.Places[i*len(m.Places)/x.Numel()]
			return fmt.Errorf("sample %d, token %d: %s is %v", p.Sample, p.Token, what, v)
		}
	}
	return nil
}
