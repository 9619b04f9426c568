// Package optim updates parameters from gradients: optimizers, gradient clipping and learning-rate schedules.
// It must not know what is trained: no RL, no text, no models.
package optim

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/molt-go/molt/torch"
)

// Named is a tensor under the name that checkpoints and errors know it by.
type Named struct {
	Name   string
	Tensor torch.Tensor
}

// Optimizer moves the parameters that it was made of by their gradients.
type Optimizer interface {
	// Step updates the parameters in place by their gradients, float32 of the same shapes, at learning rate lr. A parameter whose
	// gradient is absent, not listed or the zero Tensor, keeps its value, without decay, and its state. On an error nothing changes.
	Step(s *torch.Scope, grads []Named, lr float64) error
	// State lists the optimizer's tensors, each under its kind and its parameter's name. They are the state itself, not copies.
	State() []Named
}

// params are the parameters of an optimizer in a fixed order.
type params struct {
	names   []string
	tensors []torch.Tensor
	index   map[string]int
}

func newParams(list []Named) (params, error) {
	p := params{index: map[string]int{}}
	for i, n := range list {
		if _, ok := p.index[n.Name]; ok || n.Tensor.DType() != torch.Float32 || !n.Tensor.IsContiguous() {
			return p, fmt.Errorf("optim: parameter %q is %v: parameters must be float32, contiguous, and their names distinct", n.Name,
				n.Tensor)
		}
		p.names, p.tensors, p.index[n.Name] = append(p.names, n.Name), append(p.tensors, n.Tensor), i
	}
	return p, nil
}

// zeros makes one tensor of state for each parameter, of its shape and on its device.
func (p params) zeros(s *torch.Scope) []torch.Tensor {
	out := make([]torch.Tensor, len(p.tensors))
	for i, t := range p.tensors {
		out[i] = s.Call("aten::zeros_like", t)[0]
	}
	return out
}

// match gives the gradients that are there, contiguous as the fused update wants them, and the places of their parameters, and checks
// everything about a step.
func (p params) match(s *torch.Scope, grads []Named, lr float64) (at []int, g []torch.Tensor, err error) {
	if !(lr >= 0) || math.IsInf(lr, 0) {
		return nil, nil, fmt.Errorf("optim: learning rate %v, want at least 0", lr)
	}
	seen := map[string]bool{}
	for _, grad := range grads {
		i, ok := p.index[grad.Name]
		if !ok || seen[grad.Name] {
			return nil, nil, fmt.Errorf("optim: the gradient of %q is for no parameter or there twice", grad.Name)
		}
		seen[grad.Name] = true
		if grad.Tensor == (torch.Tensor{}) {
			continue
		}
		if want := p.tensors[i]; grad.Tensor.String() != want.String() || grad.Tensor.Device() != want.Device() {
			return nil, nil, fmt.Errorf("optim: the gradient of %q is %v on %s, the parameter %v on %s", grad.Name, grad.Tensor,
				grad.Tensor.Device(), want, want.Device())
		}
		dense := grad.Tensor
		if !dense.IsContiguous() {
			func() {
				defer torch.Catch(&err) // a sparse one has no such form
				dense = s.Call("aten::contiguous", dense)[0]
			}()
			if err != nil {
				return nil, nil, fmt.Errorf("optim: the gradient of %q: %w", grad.Name, err)
			}
		}
		at, g = append(at, i), append(g, dense)
	}
	return at, g, nil
}

func pick[T any](list []T, at []int) []T {
	out := make([]T, len(at))
	for i, k := range at {
		out[i] = list[k]
	}
	return out
}

// offloaded is an optimizer of copies.
type offloaded struct {
	Optimizer
	params params
	copies []torch.Tensor
}

// Offload keeps an optimizer, its state and the copies of the parameters that it moves on the CPU, wherever the parameters
// themselves are. create makes the optimizer of the copies.
func Offload(s *torch.Scope, list []Named, create func(copies []Named) (Optimizer, error)) (Optimizer, error) {
	p, err := newParams(list)
	if err != nil {
		return nil, err
	}
	copies, named := make([]torch.Tensor, len(list)), make([]Named, len(list))
	for i, n := range list { // whatever device s makes tensors on
		copies[i] = s.Call("aten::empty.memory_format", n.Tensor.Shape(), torch.Float32, nil, "cpu")[0]
		named[i] = Named{n.Name, copies[i]}
	}
	o, err := create(named)
	if err != nil {
		return nil, err
	}
	return &offloaded{o, p, copies}, nil
}

// Step is that of Optimizer.
func (o *offloaded) Step(s *torch.Scope, grads []Named, lr float64) (err error) {
	s.NoGrad(func(s *torch.Scope) (none torch.Tensor) {
		at, g, failed := o.params.match(s, grads, lr)
		given := make([]Named, len(at))
		for i, k := range at {
			given[i] = Named{o.params.names[k], s.ToDevice(g[i], torch.CPU)}
			s.Copy_(o.copies[k], o.params.tensors[k])
		}
		if err = failed; err == nil {
			err = o.Optimizer.Step(s, given, lr)
		}
		if err == nil {
			for _, k := range at {
				s.Copy_(o.params.tensors[k], o.copies[k])
			}
		}
		return none
	})
	return err
}

// Save writes o's state as a safetensors file.
func Save(path string, o Optimizer) error {
	var entries []torch.Entry
	for _, t := range o.State() {
		entries = append(entries, torch.EntryOf(t.Name, t.Tensor))
	}
	return torch.WriteSafeTensors(path, entries, nil)
}

// Load reads a state that Save wrote into o. Every tensor must be there with its shape, and no other; otherwise nothing is read
// and the error names those that differ.
func Load(path string, o Optimizer) error {
	f, err := torch.OpenSafeTensors(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var faults []string
	state, known := o.State(), map[string]bool{}
	for _, t := range state {
		known[t.Name] = true
		e, ok := f.Lookup(t.Name)
		switch {
		case !ok:
			faults = append(faults, t.Name+" is missing")
		case e.DType != torch.Float32 || !slices.Equal(e.Shape, t.Tensor.Shape()):
			faults = append(faults, fmt.Sprintf("%s is %v%v, want %v", t.Name, e.DType, e.Shape, t.Tensor))
		}
	}
	for _, name := range f.Names() {
		if !known[name] {
			faults = append(faults, name+" is of no parameter")
		}
	}
	if n := len(faults); n > 0 {
		const shown = 6
		if n > shown {
			faults = append(faults[:shown], fmt.Sprintf("and %d more", n-shown))
		}
		return fmt.Errorf("optim: %s is not the state of this optimizer and these parameters: %s", path, strings.Join(faults, ", "))
	}
	for _, t := range state {
		if err := f.Read(t.Tensor, t.Name, 0); err != nil {
			return err
		}
	}
	return nil
}
