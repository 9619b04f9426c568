package trainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
	"github.com/molt-go/molt/torch/optim"
)

// openCritic makes a critic of the weights in dir that values everything at 0 or, if saved, reads the one that is there. It has oc's
// settings but for AdamW at a rate of its own; no gradient reaches the head of words.
func openCritic(s *torch.Scope, dir string, saved bool, d torch.DType, oc OptimConfig, lc LossConfig) (*Policy, error) {
	master, err := model.Load(s, dir, torch.Float32)
	if err != nil && saved {
		return nil, fmt.Errorf("resume: %w (the run so far must have had a critic)", err)
	}
	if err != nil {
		return nil, err
	}
	if oc.Name, oc.LR = "adamw", oc.CriticLR; !master.Tied {
		oc.Freeze = append(slices.Clip(oc.Freeze), "lm_head.weight")
	}
	lc.Name = "value"
	head := s.Zeros(torch.Float32, 1, master.Width)
	p := &Policy{what: "the critic's value", config: oc, loss: lc, heads: []model.Param{model.NewParam("value_head.weight", head)}}
	if err := p.train(s, master, d); err != nil {
		return nil, err
	}
	if p.optim = (withHead{p.optim, head}); saved {
		err = p.LoadOptimizer(filepath.Join(dir, optimizerFile))
	}
	return p, err
}

// withHead is an optimizer whose state holds the value head too.
type withHead struct {
	optim.Optimizer
	head torch.Tensor
}

func (o withHead) State() []optim.Named {
	return append(o.Optimizer.State(), optim.Named{Name: "value_head.weight", Tensor: o.head})
}

// consult gives the samples their values [T], 0 at tokens that are not trained. With bootstrap, after [N] is the value behind the last
// one that is: at the position that would predict the next, whatever it were.
func (p *Policy) consult(ctx context.Context, s *torch.Scope, samples []Sample, bootstrap bool) (after []float32, err error) {
	asked := slices.Clone(samples)
	for i, x := range asked {
		if n := x.rows() + 1; bootstrap {
			asked[i].Tokens = rollout.Tokens{IDs: append(x.Tokens.IDs[:n:n], 0), Mask: append(x.Tokens.Mask[:n:n], true),
				LogP: append(x.Tokens.LogP[:n:n], 0), Temp: append(x.Tokens.Temp[:n:n], 1)}
		}
	}
	values, err := p.perToken(ctx, s, asked)
	for i, v := range values {
		x := &samples[i]
		n := x.rows() + 1
		x.values = make([]float32, len(x.Tokens.IDs))
		if copy(x.values, v[:n]); bootstrap {
			after = append(after, v[n])
		}
	}
	return after, err
}

// learn makes a critic's optimizer step at learning rate lr towards the returns of all trained tokens, which count alike, and adds its
// metrics. It cannot be stopped: the policy has made the same step.
func (p *Policy) learn(s *torch.Scope, samples []Sample, lr float64, share func(bool) int, metrics map[string]Metric) error {
	own := make([]Sample, len(samples))
	for i, x := range samples { // a Micro's Advantages are returns here, and its Old the values before the step
		own[i] = Sample{Tokens: x.Tokens, Advantages: x.returns, Old: x.values, Group: x.Group, Rollout: x.Rollout}
	}
	plan, err := Pack(own, p.config.MicroTokens)
	if err != nil {
		return err
	}
	stats, err := p.step(context.Background(), s, plan, lr, share)
	maps.Copy(metrics, stats.Metrics)
	var returns, residuals []float64
	for _, m := range plan.Micros {
		for n, r := range m.Advantages {
			returns, residuals = append(returns, float64(r)), append(residuals, float64(r)-float64(m.Old[n]))
		}
	}
	spread := func(x []float64) float64 { return math.Pow(estimators.Std(x, estimators.Mean(x)), 2) }
	if total := spread(returns); total > 0 { // of values before the step: 1 is perfect, 0 as good as a constant
		metrics["explained_variance"] = Metric{1 - spread(residuals)/total, 1}
	}
	return err
}

// valueLeaves is leaves of the mean ValueLoss of the step, over the values [N].
func (m *Micro) valueLeaves(s *torch.Scope, values, _ torch.Tensor, step Step, c LossConfig) (value float64, metrics map[string]Metric,
	grads []torch.Tensor, err error) {
	leaf := s.Detach(values).RequireGrad(true)
	losses, outside := ValueLoss(s, leaf, torch.New(s, m.Old), torch.New(s, m.Advantages), c.ValueClip)
	sum, n := s.Sum(losses), float64(len(m.Places))
	metrics = map[string]Metric{"value_loss": {sum.Item(), n}}
	if outside != (torch.Tensor{}) {
		metrics["value_clip_ratio"] = Metric{s.Sum(outside).Item(), n}
	}
	loss := s.MulScalar(sum, 1/float64(step.Tokens))
	return loss.Item(), metrics, append(s.Gradients([]torch.Tensor{loss}, nil, []torch.Tensor{leaf}), torch.Tensor{}), nil
}

// save writes what Load of the model, and LoadOptimizer, read: a Hugging Face folder of the masters and the optimizer's state.
func (p *Policy) save(dir string) error {
	return errors.Join(os.MkdirAll(dir, 0o755), p.master.Save(dir), p.SaveOptimizer(filepath.Join(dir, optimizerFile)))
}
