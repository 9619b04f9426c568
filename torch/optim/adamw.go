package optim

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unsafe"

	"github.com/molt-go/molt/torch"
)

// Named is a tensor under the name that checkpoints and errors know it by.
type Named struct {
	Name   string
	Tensor torch.Tensor
}

// AdamWConfig holds the constants of AdamW; the learning rate comes with each step.
type AdamWConfig struct {
	Beta1, Beta2 float64 // decay of the running means of the gradient and of its square, below 1
	Eps          float64
	WeightDecay  float64 // decoupled: a step first takes lr·WeightDecay off each weight
}

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101), in float32. All parameters are updated by
// one fused call.
type AdamW struct {
	config             AdamWConfig
	params             []Named
	index              map[string]int
	mean, square, step []torch.Tensor // of each parameter; step is a float32 scalar, as the fused call wants it
}

// NewAdamW makes the optimizer of params, whose state lives in s. Parameters must be float32 and their names distinct.
func NewAdamW(s *torch.Scope, params []Named, c AdamWConfig) (*AdamW, error) {
	if !(c.Beta1 >= 0 && c.Beta1 < 1 && c.Beta2 >= 0 && c.Beta2 < 1 && c.Eps > 0 && c.WeightDecay >= 0) {
		return nil, fmt.Errorf("optim: AdamW %+v: betas must be at least 0 and below 1, eps above 0, decay at least 0", c)
	}
	o := &AdamW{config: c, params: slices.Clone(params), index: map[string]int{}}
	for i, p := range params {
		if _, ok := o.index[p.Name]; ok || p.Tensor.DType() != torch.Float32 {
			return nil, fmt.Errorf("optim: parameter %q is %v: parameters must be float32 and their names distinct", p.Name, p.Tensor)
		}
		o.index[p.Name] = i
		o.mean = append(o.mean, s.Zeros(torch.Float32, p.Tensor.Shape()...))
		o.square = append(o.square, s.Zeros(torch.Float32, p.Tensor.Shape()...))
		o.step = append(o.step, s.Zeros(torch.Float32))
	}
	return o, nil
}

// Step updates the parameters in place by their gradients, float32 of the same shapes, at learning rate lr. A parameter whose
// gradient is absent, not listed or the zero Tensor, keeps its value, without decay, and its state. On an error nothing changes.
func (o *AdamW) Step(s *torch.Scope, grads []Named, lr float64) error {
	if !(lr >= 0) || math.IsInf(lr, 0) {
		return fmt.Errorf("optim: learning rate %v, want at least 0", lr)
	}
	var p, g, mean, square, step []torch.Tensor
	seen := map[string]bool{}
	for _, grad := range grads {
		i, ok := o.index[grad.Name]
		if !ok || seen[grad.Name] {
			return fmt.Errorf("optim: the gradient of %q is for no parameter or there twice", grad.Name)
		}
		seen[grad.Name] = true
		if grad.Tensor == (torch.Tensor{}) {
			continue
		}
		if grad.Tensor.String() != o.params[i].Tensor.String() {
			return fmt.Errorf("optim: the gradient of %q is %v, the parameter %v", grad.Name, grad.Tensor, o.params[i].Tensor)
		}
		p, g = append(p, o.params[i].Tensor), append(g, grad.Tensor)
		mean, square, step = append(mean, o.mean[i]), append(square, o.square[i]), append(step, o.step[i])
	}
	if len(p) == 0 {
		return nil
	}
	s.NoGrad(func(s *torch.Scope) torch.Tensor {
		s.Call("aten::_foreach_add_.Scalar", step, 1)
		const amsgrad, maximize = false, false
		c := o.config
		s.Call("aten::_fused_adamw_", p, g, mean, square, []torch.Tensor{}, step,
			lr, c.Beta1, c.Beta2, c.WeightDecay, c.Eps, amsgrad, maximize)
		return torch.Tensor{}
	})
	return nil
}

// State lists the optimizer's tensors: "exp_avg.", "exp_avg_sq." and "step." before each parameter's name, as torch.optim calls
// them. They are the state itself, not copies.
func (o *AdamW) State() []Named {
	var state []Named
	for i, p := range o.params {
		state = append(state, Named{"exp_avg." + p.Name, o.mean[i]}, Named{"exp_avg_sq." + p.Name, o.square[i]},
			Named{"step." + p.Name, o.step[i]})
	}
	return state
}

// Save writes the state as a safetensors file.
func (o *AdamW) Save(path string) error {
	var entries []torch.Entry
	for _, t := range o.State() {
		write := func(w io.Writer) error { return binary.Write(w, binary.LittleEndian, torch.Values[float32](t.Tensor)) }
		entries = append(entries, torch.Entry{Name: t.Name, DType: torch.Float32, Shape: t.Tensor.Shape(), Write: write})
	}
	return torch.WriteSafeTensors(path, entries, nil)
}

// Load reads a state that Save wrote. Every tensor must be there with its shape, and no other; otherwise nothing is read and the
// error names those that differ.
func (o *AdamW) Load(path string) error {
	f, err := torch.OpenSafeTensors(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var faults []string
	state := o.State()
	for _, t := range state {
		e, ok := f.Lookup(t.Name)
		switch {
		case !ok:
			faults = append(faults, t.Name+" is missing")
		case e.DType != torch.Float32 || !slices.Equal(e.Shape, t.Tensor.Shape()):
			faults = append(faults, fmt.Sprintf("%s is %v%v, want %v", t.Name, e.DType, e.Shape, t.Tensor))
		}
	}
	if n := len(f.Names()); n != len(state) {
		faults = append(faults, fmt.Sprintf("%d tensors, want %d", n, len(state)))
	}
	if faults != nil {
		return fmt.Errorf("optim: %s is not the state of these parameters: %s", path, strings.Join(faults, ", "))
	}
	for _, t := range state {
		e, _ := f.Lookup(t.Name)
		torch.WriteBytes(t.Tensor, e.DType, unsafe.Pointer(unsafe.SliceData(e.Data)), t.Tensor.Numel())
	}
	return nil
}

// ClipGradNorm scales grads in place so that their global norm is at most maxNorm, by maxNorm/(norm + 1e-6) as torch does, and
// returns the norm before. maxNorm 0 only measures. Absent gradients count as 0. A norm that is not finite is an error that
// names the tensors; nothing is scaled then.
func ClipGradNorm(s *torch.Scope, grads []Named, maxNorm float64) (norm float64, err error) {
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
