package trainer

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
	"github.com/molt-go/molt/torch/optim"
)

// Policy is the model that is trained, with its optimizer and its loss. The masters are float32. Forward and backward run on a
// copy in the compute type, or on the masters themselves where that is float32; gradients add up in float32. A critic is the same but for
// its head and loss; the reference has a compute model only.
type Policy struct {
	what            string // that a token gets from it, for errors: the policy's or the reference's log-prob, the critic's value
	master, compute *model.Model
	heads           []model.Param // float32 [1, hidden] of a critic, which makes values of hidden states; none of a policy
	trained         []model.Param // of compute and heads: those that are not frozen
	optim           optim.Optimizer
	config          OptimConfig
	loss            LossConfig
	moved           bool // an update of the masters has begun; whoever keeps the state that goes with them sets it back
}

// Stats says what an optimizer step did.
type Stats struct {
	Stepped  bool    // false: no sample had a token to train on, and nothing changed
	Loss     float64 // as optimized, over all tokens of the step
	GradNorm float64 // before clipping
	Tokens   int     // trained
	Metrics  map[string]Metric
}

// NewPolicy makes a policy of the float32 model master, computing in d. Its tensors live in s, which must outlive it.
func NewPolicy(s *torch.Scope, master *model.Model, d torch.DType, oc OptimConfig, lc LossConfig) (*Policy, error) {
	if err := lc.validate(); err != nil {
		return nil, err
	}
	p := &Policy{what: "the policy's log-prob", config: oc, loss: lc}
	return p, p.train(s, master, d)
}

// train sets p up to train master and p's heads.
func (p *Policy) train(s *torch.Scope, master *model.Model, d torch.DType) error {
	if master.DType != torch.Float32 {
		return fmt.Errorf("trainer: the master weights are %v, want float32", master.DType)
	}
	frozen, err := p.config.frozen(master.Params())
	if err != nil {
		return err
	}
	master.Freeze(frozen)
	p.master, p.compute = master, master
	if p.optim, err = p.config.optimizer(s, slices.Concat(master.Params(), p.heads)); err != nil {
		return err
	}
	if d != torch.Float32 {
		p.compute = model.New(s, master.Config, d)
		if err := p.compute.CopyFrom(s, master.Params()); err != nil {
			return err
		}
		p.compute.Freeze(frozen)
	}
	for _, param := range slices.Concat(p.compute.Params(), p.heads) {
		if !param.Frozen {
			param.RequireGrad()
			p.trained = append(p.trained, param)
		}
	}
	return nil
}

// Params are the weights that the policy computes with, in the compute type: what the engine is refitted with.
func (p *Policy) Params() []model.Param { return p.compute.Params() }

// Masters are the float32 weights: what a checkpoint keeps.
func (p *Policy) Masters() []model.Param { return p.master.Params() }

// SaveOptimizer writes the optimizer's state as a safetensors file.
func (p *Policy) SaveOptimizer(path string) error { return optim.Save(path, p.optim) }

// LoadOptimizer reads a state that SaveOptimizer wrote for a model of the same shape.
func (p *Policy) LoadOptimizer(path string) error { return optim.Load(path, p.optim) }

// Step makes one optimizer step at learning rate lr, over all samples at once: how they are cut into micro-batches does not
// change it. share, if given, is asked before each micro-batch how many cores it may use. A log-prob, loss or gradient that is
// not finite is an error that names it; then, and when ctx ends before the update, nothing has changed.
func (p *Policy) Step(ctx context.Context, s *torch.Scope, samples []Sample, lr float64, share func(waiting bool) int) (Stats, error) {
	samples, raw, err := p.dropRejected(ctx, s, samples)
	if err != nil {
		return Stats{}, err
	}
	plan, err := Pack(samples, p.config.MicroTokens)
	if err != nil {
		return Stats{}, err
	}
	if p.loss.needsReference() && len(plan.Micros) > 0 && plan.Micros[0].Reference == nil {
		return Stats{}, fmt.Errorf("loss.kl_coef is %v, but the samples have no log-probs under a reference model", p.loss.KLCoef)
	}
	if k := p.loss.ScoreCentering; k > 0 {
		if err := plan.addTop(samples, k); err != nil {
			return Stats{}, err
		}
	}
	stats, err := p.step(ctx, s, plan, lr, share)
	if stats.Stepped {
		maps.Copy(stats.Metrics, raw)
	}
	return stats, err
}

func (p *Policy) step(ctx context.Context, s *torch.Scope, plan Plan, lr float64, share func(waiting bool) int) (Stats, error) {
	if len(plan.Micros) == 0 {
		return Stats{}, nil
	}
	defer p.clearGrads()
	stats := Stats{Stepped: true, Tokens: plan.Step.Tokens, Metrics: map[string]Metric{}}
	err := within(s.Grad, func(s *torch.Scope) error {
		grads, err := p.gradients(ctx, s, plan, share, &stats)
		if err != nil {
			return err
		}
		return p.update(s, grads, lr, &stats)
	})
	if err != nil {
		return Stats{}, err
	}
	return stats, nil
}

// gradients are those of the whole plan by each parameter that is not frozen, in float32.
func (p *Policy) gradients(ctx context.Context, s *torch.Scope, plan Plan, share func(bool) int, stats *Stats) ([]optim.Named, error) {
	grads := make([]optim.Named, len(p.trained))
	for i, param := range p.trained {
		grads[i].Name = param.Name
	}
	for i := range plan.Micros {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if share != nil {
			s.SetThreads(share(false))
		}
		m := &plan.Micros[i]
		if err := within(s.Grad, func(s *torch.Scope) error { return p.backward(s, m, plan.Step, stats) }); err != nil {
			return nil, err
		}
		if p.compute != p.master {
			p.collect(s, grads)
		}
	}
	if p.compute == p.master { // backward itself has added them up in float32
		for i, param := range p.trained {
			grads[i].Tensor = param.Grad(s)
		}
	}
	return grads, nil
}

// dropRejected takes the tokens that the correction rejects out of the samples, and samples of which none is left out of the list, if
// loss.is_rejected says so: denominators are of the whole step, so it must be known before the first micro-batch. The raw metrics are of
// all tokens: of those that are left they would look healthy whatever was dropped.
func (p *Policy) dropRejected(ctx context.Context, s *torch.Scope, samples []Sample) (kept []Sample, raw map[string]Metric, err error) {
	is, err := p.loss.Correction.Resolve()
	if err != nil || is.Rejected != "drop" {
		return samples, nil, err
	}
	old, err := p.perToken(ctx, s, samples)
	if err != nil {
		return nil, nil, err
	}
	raw = map[string]Metric{}
	for i, x := range samples {
		if x.Old == nil {
			x.Old = old[i]
		}
		var at []int
		var a, b []float32
		for t, on := range x.Tokens.Mask {
			if on {
				at, a, b = append(at, t), append(a, x.Old[t]), append(b, x.Tokens.LogP[t])
			}
		}
		mask, left, sample := make([]bool, len(x.Tokens.Mask)), false, make([]int32, len(at))
		w := is.Weights(a, b, sample)
		raw["is_outside"] = raw["is_outside"].Add(shareOutside(is.Level, w, sample))
		for n, out := range w.Outside {
			mask[at[n]] = !out
			left = left || !out
			raw["is_ratio"] = raw["is_ratio"].Add(Metric{float64(w.Ratio[n]), 1})
			raw["behaviour_kl"] = raw["behaviour_kl"].Add(Metric{float64(b[n]) - float64(a[n]), 1})
		}
		if x.Tokens.Mask = mask; left {
			kept = append(kept, x)
		}
	}
	return kept, raw, nil
}

// backward adds one micro-batch's gradients to those of the leaves. The loss meets the model at the leaves' own log-probs and
// entropies: it is a small expression over [N], whose gradients are where the model's backward starts.
func (p *Policy) backward(s *torch.Scope, m *Micro, step Step, stats *Stats) error {
	scores, entropy, again, err := p.score(s, m, p.config.Recompute)
	if err != nil {
		return err
	}
	if err := m.checkFinite(p.what, scores); err != nil {
		return err
	}
	leaves := m.leaves
	if p.heads != nil {
		leaves = m.valueLeaves
	}
	loss, metrics, grads, err := leaves(s, scores, entropy, step, p.loss)
	if err != nil {
		return err
	}
	if !finite(loss) {
		return fmt.Errorf("the loss %q is %v where %s is finite, with samples %d to %d", p.loss.Name, loss, p.what,
			m.Places[0].Sample, m.Places[len(m.Places)-1].Sample)
	}
	roots := []torch.Tensor{scores, entropy}
	for i := len(roots) - 1; i >= 0; i-- {
		if grads[i] == (torch.Tensor{}) { // the loss does not depend on it
			roots, grads = slices.Delete(roots, i, i+1), slices.Delete(grads, i, i+1)
		}
	}
	s.Backward(roots, grads)
	again(s)
	stats.Loss += loss
	for name, v := range metrics {
		stats.Metrics[name] = stats.Metrics[name].Add(v)
	}
	return nil
}

// leaves evaluates the loss on the values of scores and entropy alone, and gives its gradients by both; none if it does not depend on one.
func (m *Micro) leaves(s *torch.Scope, scores, entropy torch.Tensor, step Step, c LossConfig) (value float64, metrics map[string]Metric,
	grads []torch.Tensor, err error) {
	if err := m.checkFinite("the policy's entropy", entropy); err != nil {
		return 0, nil, nil, err
	}
	leaves := []torch.Tensor{s.Detach(scores).RequireGrad(true), s.Detach(entropy).RequireGrad(true)}
	loss, metrics, err := m.input(s, leaves[0], leaves[1], step, c).evaluate(s)
	if err != nil {
		return 0, nil, nil, err
	}
	return loss.Item(), metrics, s.Gradients([]torch.Tensor{loss}, nil, leaves), nil
}

// score runs the model over m: log-probs of its IDs, [N,1] or [N,1+K], and entropies [N], or a critic's values [N]. Where recompute is
// set their graph begins at the last hidden states, and again, after a backward through it, does the rest.
func (p *Policy) score(s *torch.Scope, m *Micro, recompute bool) (scores, entropy torch.Tensor, again func(s *torch.Scope), err error) {
	var out model.Output
	var seen []model.Seen
	again = func(*torch.Scope) {}
	for _, x := range m.Images {
		embeddings, err := p.compute.See(s, x.Pixels, [][3]int{x.Grid})
		if err != nil {
			return scores, entropy, nil, err
		}
		seen = append(seen, embeddings)
	}
	if recompute {
		var back func(s *torch.Scope, hidden, aux torch.Tensor)
		if out, back, err = p.compute.HiddenAgain(s, &m.Batch, seen...); err == nil {
			out.Hidden.RequireGrad(true)
			again = func(s *torch.Scope) { back(s, s.GradOf(out.Hidden), torch.Tensor{}) }
		}
	} else {
		out, err = p.compute.Hidden(s, &m.Batch, nil, seen...)
	}
	if err != nil {
		return scores, entropy, nil, err
	}
	h := s.IndexSelect(out.Hidden, 0, torch.New(s, m.Rows))
	if p.heads != nil {
		return s.Reshape(s.Linear(s.To(h, torch.Float32), p.heads[0].Tensor, torch.Tensor{}), len(m.Rows)), entropy, again, nil
	}
	scores, entropy = p.compute.LogP(s, h, m.IDs, m.InvT)
	return scores, entropy, again, nil
}

// collect adds the gradients of a micro-batch to those so far, in float32, and clears them.
func (p *Policy) collect(outer *torch.Scope, grads []optim.Named) {
	outer.NoGrad(func(s *torch.Scope) torch.Tensor {
		for i, param := range p.trained {
			g, sum := param.Grad(s), &grads[i].Tensor
			switch {
			case g == (torch.Tensor{}):
			case *sum == (torch.Tensor{}):
				*sum = s.To(g, torch.Float32)
				s.Move(outer, *sum)
			default:
				s.Add_(*sum, g)
			}
		}
		return torch.Tensor{}
	})
	p.clearGrads()
}

// update clips the gradients, moves the masters and brings the compute copy up to them.
func (p *Policy) update(s *torch.Scope, grads []optim.Named, lr float64, stats *Stats) (err error) {
	if stats.GradNorm, err = optim.ClipGradNorm(s, grads, p.config.MaxNorm); err != nil {
		return err
	}
	p.moved = true
	if err := p.optim.Step(s, grads, lr); err != nil || p.compute == p.master {
		return err
	}
	return p.compute.CopyFrom(s, p.Masters())
}

func (p *Policy) clearGrads() {
	for _, leaf := range p.compute.Leaves() {
		leaf.ClearGrad()
	}
	for _, head := range p.heads {
		head.Tensor.ClearGrad()
	}
}

// perToken gives the log-probs [T] of each sample's trained tokens under the weights that the policy computes with now, at the
// temperatures that they were sampled at, or a critic's values; 0 elsewhere.
func (p *Policy) perToken(ctx context.Context, s *torch.Scope, samples []Sample) ([][]float32, error) {
	out, bare := make([][]float32, len(samples)), make([]Sample, len(samples))
	for i, x := range samples {
		out[i] = make([]float32, len(x.Tokens.IDs))
		bare[i] = Sample{Tokens: x.Tokens, Advantages: out[i], Group: x.Group, Rollout: x.Rollout}
	}
	plan, err := Pack(bare, p.config.MicroTokens)
	if err != nil {
		return nil, err
	}
	for i := range plan.Micros {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		m := &plan.Micros[i]
		err := within(s.NoGrad, func(s *torch.Scope) error {
			scores, _, _, err := p.score(s, m, false)
			if err != nil {
				return err
			}
			for n, v := range torch.Values[float32](scores) {
				out[m.Places[n].Sample][m.Places[n].Token] = v
			}
			return m.checkFinite(p.what, scores)
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// within runs f in a scope of its own, s.Grad or s.NoGrad.
func within(open func(func(*torch.Scope) torch.Tensor) torch.Tensor, f func(*torch.Scope) error) (err error) {
	open(func(s *torch.Scope) torch.Tensor {
		err = f(s)
		return torch.Tensor{}
	})
	return err
}
