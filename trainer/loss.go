package trainer

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/molt-go/molt/torch"
)

// LossInput is what a policy loss sees of one micro-batch: N rows, one for each token that the policy chose, samples one after
// the other. Other tokens have no row, so that nothing at a masked position can reach a loss. All numbers are finite.
type LossInput struct {
	LogP, Entropy torch.Tensor // float32 [N] under the policy now, in nats; leaves: the trainer takes the loss's gradients by them
	Old           torch.Tensor // float32 [N] log-probs that the ratio is taken to: those before this optimizer step
	Behaviour     torch.Tensor // float32 [N] log-probs that the tokens were sampled at
	Reference     torch.Tensor // float32 [N] log-probs under the reference model; none if loss.kl_coef is 0
	Advantages    torch.Tensor // float32 [N]
	Sample        []int32      // [N] sample of each row, an index into Samples
	Samples       []SampleInfo // the samples with rows in this micro-batch; a sample is never split
	Step          StepCounts
	Config        LossConfig
}

// SampleInfo counts the policy's tokens around one sample.
type SampleInfo struct {
	Tokens      int // in the sample
	GroupTokens int // in all samples of its prompt, over the whole optimizer step
}

// StepCounts are the denominators of one optimizer step, over all its micro-batches and ranks: neither accumulation nor sharding
// changes the loss.
type StepCounts struct {
	Tokens    int // that the policy chose
	Sequences int // samples, those without such a token included
	Prompts   int // groups
}

// LossOutput is a micro-batch's share of the step's loss, a scalar, and its metrics. Shares add up to the loss.
type LossOutput struct {
	Loss    torch.Tensor
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

// TokenMean is this micro-batch's share of the mean of x [N] over the tokens of the optimizer step.
func (in LossInput) TokenMean(s *torch.Scope, x torch.Tensor) torch.Tensor {
	return s.MulScalar(s.Sum(x), 1/float64(in.Step.Tokens))
}

// Aggregate turns token losses [N] into this micro-batch's share of the step's loss, as loss.aggregation says.
func (in LossInput) Aggregate(s *torch.Scope, losses torch.Tensor) torch.Tensor {
	return in.TokenMean(s, losses) // "token-mean" is the only aggregation that Validate lets through
}

var losses = map[string]func(*torch.Scope, LossInput) LossOutput{"ppo": PPO}

// RegisterLoss makes f available as loss.name, for a program's own main, before training starts. An empty or known name and a
// nil f are errors. The trainer adds the entropy bonus and the KL term to what f gives.
func RegisterLoss(name string, f func(*torch.Scope, LossInput) LossOutput) error {
	if _, ok := losses[name]; ok || name == "" || f == nil {
		return fmt.Errorf("trainer: cannot register the loss %q: it needs a new name and a function; known: %s", name, knownLosses())
	}
	losses[name] = f
	return nil
}

func knownLosses() string { return strings.Join(slices.Sorted(maps.Keys(losses)), ", ") }

// FindLoss returns an error that lists the known losses if name is not one of them.
func FindLoss(name string) error {
	if losses[name] == nil {
		return fmt.Errorf("loss.name: unknown loss %q; known: %s", name, knownLosses())
	}
	return nil
}

// evaluate runs the configured loss and adds what every loss has: the entropy bonus and the KL term, both as means over tokens
// whatever the aggregation, and the metrics of policy and behaviour.
func (in LossInput) evaluate(s *torch.Scope) LossOutput {
	out := losses[in.Config.Name](s, in)
	drift := s.Sub(in.LogP, in.Behaviour)
	metrics := map[string]Metric{
		"entropy":        in.Metric(s, in.Entropy),
		"advantage_mean": in.Metric(s, in.Advantages),
		"policy_kl":      in.Metric(s, s.Sub(in.Old, in.LogP)),
		"mismatch_abs":   in.Metric(s, s.Maximum(drift, s.Neg(drift))),
		"mismatch_k3":    in.Metric(s, klLosses["k3_base"](s, drift)),
	}
	maps.Copy(metrics, out.Metrics)
	out.Metrics = metrics
	if c := in.Config.EntropyCoef; c != 0 {
		out.Loss = s.Sub(out.Loss, s.MulScalar(in.TokenMean(s, in.Entropy), c))
	}
	if c := in.Config.KLCoef; c != 0 {
		kl := klLosses[in.Config.KL](s, s.Sub(in.LogP, in.Reference))
		out.Loss = s.Add(out.Loss, s.MulScalar(in.TokenMean(s, kl), c))
		metrics["kl"] = in.Metric(s, kl)
	}
	return out
}

// input makes the loss's view of m, whose places have these log-probs and entropies [N].
func (m *Micro) input(s *torch.Scope, logp, entropy torch.Tensor, step StepCounts, c LossConfig) LossInput {
	in := LossInput{
		LogP: logp, Entropy: entropy,
		Old: torch.New(s, m.Old), Behaviour: torch.New(s, m.Behaviour), Advantages: torch.New(s, m.Advantages),
		Sample: m.Sample, Samples: m.Samples, Step: step, Config: c,
	}
	if c.KLCoef != 0 {
		in.Reference = torch.New(s, m.Reference)
	}
	return in
}

// checkFinite returns an error that names the first place where x [N] is NaN or infinite.
func (m *Micro) checkFinite(what string, x torch.Tensor) error {
	for n, v := range torch.Values[float32](x) {
		if !finite(v) {
			p := m.Places[n]
			return fmt.Errorf("sample %d, token %d: %s is %v under the policy", p.Sample, p.Token, what, v)
		}
	}
	return nil
}
