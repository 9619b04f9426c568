package optim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/molt-go/molt/torch"
)

// MuonConfig holds the constants of Muon; the learning rate of the matrices comes with each step.
type MuonConfig struct {
	Variant     string      // one of MuonVariants()
	Momentum    float64     // decay of the running gradient, below 1
	Nesterov    bool        // the update looks one step of momentum ahead
	MatchRMS    bool        // updates as large as AdamW's usual ones: 0.2·√max(rows, columns) in place of the variant's scale
	WeightDecay float64     // of matrices, decoupled: a step first takes lr·WeightDecay off each weight
	AdamW       AdamWConfig // for the other parameters
	AdamWRate   float64     // their learning rate as a multiple of the matrices'
}

// Muon moves matrices along the orthogonalised running mean of their gradients (Jordan et al., 2024) and all other parameters by
// AdamW. Parameters and state are float32; the iterations that orthogonalise run in bfloat16, matrices of one shape together.
type Muon struct {
	config MuonConfig
	variant
	params   // the matrices
	momentum []torch.Tensor
	rest     *AdamW
}

// variant is what differs between public implementations.
type variant struct {
	state  string       // name of the momentum
	mean   bool         // momentum is a mean of gradients, not a decaying sum
	floor  float64      // updates are scaled by √max(floor, rows/columns)
	safety float64      // divides each matrix, with its norm, before the first iteration
	clamp  bool         // that norm is at least 1e-7; else 1e-7 is added to it
	steps  [][3]float64 // coefficients a, b, c of X ← aX + (bA + cA²)X, A = XXᵀ
}

// The coefficients are those of torch.optim.Muon and of microsoft/dion: the Polar Express (arXiv:2505.16932) or the older table.
var variants = map[string]variant{
	"muon": {"momentum_buffer.", true, 1, 1, true, slices.Repeat([][3]float64{{3.4445, -4.7750, 2.0315}}, 5)},
	"dion": {"momentum.", false, 0, 1.02, false, [][3]float64{{8.156554524902461, -22.48329292557795, 15.878769915207462},
		{4.042929935166739, -2.808917465908714, 0.5000178451051316}, {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
		{3.285753657755655, -2.3681294933425376, 0.46449024233003106}, {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}}},
	"dion_newton_schulz": {"momentum.", false, 0, 1, false, [][3]float64{{4.0848, -6.8946, 2.9270}, {3.9505, -6.3029, 2.6377},
		{3.7418, -5.5913, 2.3037}, {2.8769, -3.1427, 1.2046}, {2.8366, -3.0525, 1.2012}}},
}

// MuonVariants lists the known ones: "muon" is torch.optim's, "dion" and "dion_newton_schulz" are microsoft/dion's.
func MuonVariants() []string { return slices.Sorted(maps.Keys(variants)) }

// NewMuon makes the optimizer of matrices, [rows, columns] each, and of the rest, whose state lives in s. Parameters must be float32
// and their names distinct.
func NewMuon(s *torch.Scope, matrices, rest []Named, c MuonConfig) (*Muon, error) {
	v, ok := variants[c.Variant]
	if !ok {
		return nil, fmt.Errorf("optim: unknown variant of Muon %q; known: %s", c.Variant, strings.Join(MuonVariants(), ", "))
	}
	if !(c.Momentum >= 0 && c.Momentum < 1 && c.WeightDecay >= 0 && c.AdamWRate >= 0) || math.IsInf(c.AdamWRate, 0) {
		return nil, fmt.Errorf("optim: Muon %+v: momentum must be at least 0 and below 1, decay and rate at least 0", c)
	}
	for _, m := range matrices {
		if len(m.Tensor.Shape()) != 2 || m.Tensor.Numel() == 0 {
			return nil, fmt.Errorf("optim: Muon takes matrices that are not empty; %q is %v", m.Name, m.Tensor)
		}
	}
	if _, err := newParams(slices.Concat(matrices, rest)); err != nil {
		return nil, err
	}
	p, _ := newParams(matrices)
	adam, err := NewAdamW(s, rest, c.AdamW)
	if err != nil {
		return nil, err
	}
	return &Muon{config: c, variant: v, params: p, momentum: p.zeros(s), rest: adam}, nil
}

// batchSize is the number of weights that are orthogonalised together, at least one matrix: it bounds memory.
const batchSize = 1 << 23

// Step is that of Optimizer.
func (o *Muon) Step(s *torch.Scope, grads []Named, lr float64) (err error) {
	s.NoGrad(func(s *torch.Scope) (none torch.Tensor) {
		err = o.step(s, grads, lr)
		return none
	})
	return err
}

func (o *Muon) step(s *torch.Scope, grads []Named, lr float64) error {
	var matrices, rest []Named
	for _, g := range grads {
		if _, ok := o.rest.index[g.Name]; ok {
			rest = append(rest, g)
		} else {
			matrices = append(matrices, g)
		}
	}
	at, g, err := o.match(s, matrices, lr)
	if err != nil {
		return err
	}
	if err := o.rest.Step(s, rest, lr*o.config.AdamWRate); err != nil {
		return err
	}
	shapes := map[[2]int][]int{} // places in at and g
	for i, k := range at {
		shape := [2]int(o.tensors[k].Shape())
		shapes[shape] = append(shapes[shape], i)
	}
	for shape, list := range shapes {
		for batch := range slices.Chunk(list, max(1, batchSize/(shape[0]*shape[1]))) {
			s.Block(func(s *torch.Scope) torch.Tensor { return o.update(s, pick(at, batch), pick(g, batch), lr) })
		}
	}
	return nil
}

// update moves matrices of one shape; its result is none.
func (o *Muon) update(s *torch.Scope, at []int, g []torch.Tensor, lr float64) (none torch.Tensor) {
	c, p, m, weight := o.config, pick(o.tensors, at), pick(o.momentum, at), 1.0
	if o.mean {
		weight = 1 - c.Momentum
	}
	s.Call("aten::_foreach_mul_.Scalar", m, c.Momentum)
	s.Call("aten::_foreach_add_.List", m, g, weight)
	if c.Nesterov {
		m = s.Call("aten::_foreach_mul.Scalar", m, c.Momentum)
		s.Call("aten::_foreach_add_.List", m, g, weight)
	}
	x := o.orthogonalise(s, s.Call("aten::stack", m)[0])
	rows, columns := float64(x.Dim(1)), float64(x.Dim(2))
	scale := math.Sqrt(max(o.floor, rows/columns))
	if c.MatchRMS {
		scale = 0.2 * math.Sqrt(max(rows, columns))
	}
	updates := make([]torch.Tensor, len(p))
	for i := range p {
		updates[i] = s.Call("aten::select.int", x, 0, i)[0]
	}
	s.Call("aten::_foreach_mul_.Scalar", p, 1-lr*c.WeightDecay)
	s.Call("aten::_foreach_add_.List", p, updates, -lr*scale)
	return none
}

// orthogonalise gives for each matrix of x [n, rows, columns] one with the same singular vectors and with singular values near 1,
// in bfloat16.
func (v variant) orthogonalise(s *torch.Scope, x torch.Tensor) torch.Tensor {
	if x.Dim(1) > x.Dim(2) {
		return s.Transpose(v.orthogonalise(s, s.Transpose(x, 1, 2)), 1, 2)
	}
	x = s.To(x, torch.BFloat16)
	const tiny = 1e-7
	norm := s.MulScalar(s.Call("aten::linalg_vector_norm", x, 2, []int{1, 2}, true)[0], v.safety)
	if v.clamp {
		norm = s.Clamp(norm, tiny, math.Inf(1))
	} else {
		norm = s.AddScalar(norm, tiny)
	}
	x = s.Div(x, norm)
	for _, k := range v.steps {
		a := s.MatMul(x, s.Transpose(x, 1, 2))
		x = s.Call("aten::baddbmm", x, s.Call("aten::baddbmm", a, a, a, k[1], k[2])[0], x, k[0], 1.0)[0]
	}
	return x
}

// State lists the momentum before each matrix's name, as its implementation calls it, and the state of AdamW for the rest.
func (o *Muon) State() []Named {
	var state []Named
	for i, name := range o.names {
		state = append(state, Named{o.state + name, o.momentum[i]})
	}
	return append(state, o.rest.State()...)
}
