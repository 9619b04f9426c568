package optim

import (
	"fmt"
	"math"
	"strings"

	"github.com/molt-go/molt/torch"
)

// AdamWConfig holds the constants of AdamW; the learning rate comes with each step.
type AdamWConfig struct {
	Beta1, Beta2 float64 // decay of the running means of the gradient and of its square, below 1
	Eps          float64
	WeightDecay  float64 // decoupled: a step first takes lr·WeightDecay off each weight
}

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101), in float32. All parameters are updated by
// one fused call.
type AdamW struct {
	config AdamWConfig
	params
	mean, square, step []torch.Tensor // of each parameter; step is a float32 scalar, as the fused call wants it
}

// NewAdamW makes the optimizer of params, whose state lives in s. Parameters must be float32 and their names distinct.
func NewAdamW(s *torch.Scope, list []Named, c AdamWConfig) (*AdamW, error) {
	if !(c.Beta1 >= 0 && c.Beta1 < 1 && c.Beta2 >= 0 && c.Beta2 < 1 && c.Eps > 0 && c.WeightDecay >= 0) ||
		math.IsInf(c.Eps+c.WeightDecay, 0) {
		return nil, fmt.Errorf("optim: AdamW %+v: betas must be at least 0 and below 1, eps above 0, decay at least 0", c)
	}
	p, err := newParams(list)
	if err != nil {
		return nil, err
	}
	o := &AdamW{config: c, params: p, mean: p.zeros(s), square: p.zeros(s)}
	for _, t := range p.tensors {
		o.step = append(o.step, s.Call("aten::new_zeros", t, []int{})[0])
	}
	return o, nil
}

// Step is that of Optimizer.
func (o *AdamW) Step(s *torch.Scope, grads []Named, lr float64) (err error) {
	s.NoGrad(func(s *torch.Scope) (none torch.Tensor) {
		at, g, failed := o.match(s, grads, lr)
		if err = failed; err != nil || len(at) == 0 {
			return none
		}
		step := pick(o.step, at)
		s.Call("aten::_foreach_add_.Scalar", step, 1)
		const amsgrad, maximize = false, false
		c := o.config
		s.Call("aten::_fused_adamw_", pick(o.tensors, at), g, pick(o.mean, at), pick(o.square, at), []torch.Tensor{}, step,
			lr, c.Beta1, c.Beta2, c.WeightDecay, c.Eps, amsgrad, maximize)
		return none
	})
	return err
}

// State lists "exp_avg.", "exp_avg_sq." and "step." before each parameter's name, as torch.optim calls them.
func (o *AdamW) State() []Named {
	var state []Named
	for i, name := range o.names {
		state = append(state, Named{"exp_avg." + name, o.mean[i]}, Named{"exp_avg_sq." + name, o.square[i]},
			Named{"step." + name, o.step[i]})
	}
	return state
}

// ClipGradNorm scales grads in place so that their global norm is at most maxNorm, by maxNorm/(norm + 1e-6) as torch does, and
// returns the norm before. maxNorm 0 only measures. Absent gradients count as 0. A norm that is not finite is an error that
// names the tensors; nothing is scaled then.
func ClipGradNorm(s *torch.Scope, grads []Named, maxNorm float64) (norm float64, err error) {
	if !(maxNorm >= 0) {
		return 0, fmt.Errorf("optim: clipping to a norm of %v, want at least 0", maxNorm)
	}
	var tensors []torch.Tensor
	var names []string
	for _, g := range grads {
		if g.Tensor != (torch.Tensor{}) {
			tensors, names = append(tensors, g.Tensor), append(names, g.Name)
		}
	}
	if len(tensors) == 0 {
		return 0, nil
	}
	s.NoGrad(func(s *torch.Scope) torch.Tensor {
		var faults []string
		for i, n := range torch.Values[float64](s.Call("aten::stack", s.Call("aten::_foreach_norm.Scalar", tensors, 2))[0]) {
			if math.IsNaN(n) || math.IsInf(n, 0) {
				faults = append(faults, fmt.Sprintf("%s (norm %v)", names[i], n))
			}
			norm = math.Hypot(norm, n)
		}
		if faults != nil {
			err = fmt.Errorf("optim: gradients are not finite: %s", strings.Join(faults, ", "))
		} else if coef := maxNorm / (norm + 1e-6); maxNorm > 0 && coef < 1 {
			s.Call("aten::_foreach_mul_.Scalar", tensors, coef)
		}
		return torch.Tensor{}
	})
	return norm, err
}
