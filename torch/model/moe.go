package model

import "github.com/molt-go/molt/torch"

// Routing is what the routers chose for the N rows of a batch, by sparse layer.
type Routing struct {
	Weights bool        // asks for Gates and Logits too, each a copy out of torch; the experts are copied anyway
	Experts [][]int64   // [N, chosen], in order of falling probability
	Gates   [][]float32 // [N, chosen] what the experts' results were multiplied by
	Logits  [][]float32 // [N, experts]
}

// moe runs the sparse MLP of layer i on h [N, hidden]: each row through the experts that it is routed to, and only those. To load
// [2, experts] it adds how often each was chosen and the sum of its probabilities, unless a cache is in use.
func (m *Model) moe(s *torch.Scope, i int, h, load torch.Tensor, in input) (y, total torch.Tensor) {
	l := &m.layers[i]
	logits := s.Linear(h, l.router, torch.Tensor{})
	probs := s.Call("aten::softmax.int", logits, -1, torch.Float32)[0]
	top := s.Call("aten::topk", probs, m.MoE.Chosen)
	gates, chosen := top[0], torch.Values[int64](top[1])
	if m.MoE.Normalize {
		gates = s.Div(gates, s.Call("aten::sum.dim_IntList", gates, []int{1}, true)[0])
	}
	if m.RoundGates {
		gates = s.To(gates, m.DType)
	}
	if r := in.routing; r != nil {
		k := m.MoE.NumSparse(i)
		if r.Experts[k] = chosen; r.Weights {
			r.Gates[k], r.Logits[k] = torch.Values[float32](gates), torch.Values[float32](logits)
		}
	}
	d := dispatch(chosen, m.MoE.Chosen, m.MoE.Experts)
	if in.slots == (torch.Tensor{}) {
		sum := s.Call("aten::sum.dim_IntList", probs, []int{0}, true)[0]
		total = s.Cat(0, torch.New(s, d.counts, 1, m.MoE.Experts), sum)
		if load != (torch.Tensor{}) {
			total = s.Add(load, total)
		}
	}
	rows := torch.New(s, d.rows)
	parts := s.Call("aten::split_with_sizes", s.IndexSelect(h, 0, rows), d.sizes)
	for j, e := range d.experts {
		parts[j] = m.gated(s, &l.experts[e], parts[j])
	}
	w := s.IndexSelect(s.Reshape(gates, -1, 1), 0, torch.New(s, d.places))
	sum := s.Zeros(m.DType, h.Dim(0), m.Width)
	return s.Call("aten::index_add_", sum, 0, rows, s.To(s.Mul(s.Cat(0, parts...), w), m.DType))[0], total
}

// NumSparse is the number of sparse layers before layer i.
func (c MoE) NumSparse(i int) (n int) {
	for _, sparse := range c.Layers[:i] {
		if sparse {
			n++
		}
	}
	return n
}

// shares are rows sorted by expert. Those of one expert stand in order: so a row's experts add up in ascending order.
type shares struct {
	experts []int     // that have rows
	sizes   []int     // rows of each
	rows    []int64   // of the batch, expert after expert
	places  []int64   // their entries of [N·chosen]
	counts  []float32 // by expert
}

// dispatch sorts the rows by the experts chosen for them, [N, k] flat.
func dispatch(chosen []int64, k, experts int) shares {
	byExpert := make([][]int64, experts)
	for i, e := range chosen {
		byExpert[e] = append(byExpert[e], int64(i))
	}
	d := shares{counts: make([]float32, experts)}
	for e, places := range byExpert {
		if d.counts[e] = float32(len(places)); len(places) == 0 {
			continue
		}
		for _, p := range places {
			d.rows = append(d.rows, p/int64(k))
		}
		d.places = append(d.places, places...)
		d.experts, d.sizes = append(d.experts, e), append(d.sizes, len(places))
	}
	return d
}

// balance is the load-balancing loss of load, summed over all sparse layers: experts × Σ share of choices × mean probability, as
// transformers has it. The choices have no gradient.
func (m *Model) balance(s *torch.Scope, load torch.Tensor, in input) torch.Tensor {
	n := float64(in.ids.Dim(0) * m.MoE.NumSparse(m.Layers))
	chosen, probs := s.Detach(s.Narrow(load, 0, 0, 1)), s.Narrow(load, 0, 1, 1)
	return s.MulScalar(s.Sum(s.Mul(chosen, probs)), float64(m.MoE.Experts)/n/n)
}
