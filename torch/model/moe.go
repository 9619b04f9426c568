package model

import "github.com/molt-go/molt/torch"

// Routing is what the routers chose for the N rows of a batch, by sparse layer. Padding rows have entries that mean nothing.
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
	wide := s.Linear(s.To(h, torch.Float32), s.To(l.router, torch.Float32), torch.Tensor{}) // libtorch's small bfloat16 products vary
	logits := s.To(wide, m.DType)
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
	d := dispatch(chosen, in.real, m.MoE.Experts)
	if in.mask != (torch.Tensor{}) {
		total = s.Cat(0, torch.New(s, d.counts, 1, m.MoE.Experts), s.MatMul(in.mask, probs))
		if load != (torch.Tensor{}) {
			total = s.Add(load, total)
		}
	}
	sum := s.Zeros(m.DType, len(in.real)+1, m.Width)
	if len(d.sizes) > 0 {
		parts := s.Call("aten::split_with_sizes", s.IndexSelect(h, 0, torch.New(s, d.from)), d.sizes)
		for j, e := range d.experts {
			parts[j] = m.gated(s, &l.experts[e], parts[j])
		}
		w := s.IndexSelect(s.Reshape(gates, -1, 1), 0, torch.New(s, d.gates))
		sum = s.Call("aten::index_add_", sum, 0, torch.New(s, d.to), s.To(s.Mul(s.Cat(0, parts...), w), m.DType))[0]
	}
	return s.Narrow(sum, 0, 0, len(in.real)), total
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

// shares are rows sorted by expert. Those of one expert are padded as a batch is, so that a row does not depend on the others, and
// stand in order: so a row's experts add up in ascending order.
type shares struct {
	experts  []int     // that have rows
	sizes    []int     // rows of each, padding included
	from, to []int64   // the row that goes in, and where its result is added: padding's to one more row
	gates    []int64   // the entry of [N·chosen] that it is multiplied by
	counts   []float32 // by expert
}

// dispatch sorts the real rows by the experts chosen for them, [N, chosen] flat.
func dispatch(chosen []int64, real []bool, experts int) shares {
	byExpert := make([][]int64, experts)
	k := len(chosen) / len(real)
	for i, e := range chosen {
		if real[i/k] {
			byExpert[e] = append(byExpert[e], int64(i))
		}
	}
	d := shares{counts: make([]float32, experts)}
	for e, places := range byExpert {
		if d.counts[e] = float32(len(places)); len(places) == 0 {
			continue
		}
		for _, p := range places {
			d.from, d.to, d.gates = append(d.from, p/int64(k)), append(d.to, p/int64(k)), append(d.gates, p)
		}
		n := Padded(len(places))
		for range n - len(places) {
			d.from, d.to, d.gates = append(d.from, 0), append(d.to, int64(len(real))), append(d.gates, 0)
		}
		d.experts, d.sizes = append(d.experts, e), append(d.sizes, n)
	}
	return d
}

// balance is the load-balancing loss of load, summed over all sparse layers: experts × Σ share of choices × mean probability, as
// transformers has it. The choices have no gradient.
func (m *Model) balance(s *torch.Scope, load torch.Tensor, in input) torch.Tensor {
	n := float64(max(in.numReal, 1) * m.MoE.NumSparse(m.Layers))
	chosen, probs := s.Detach(s.Narrow(load, 0, 0, 1)), s.Narrow(load, 0, 1, 1)
	return s.MulScalar(s.Sum(s.Mul(chosen, probs)), float64(m.MoE.Experts)/n/n)
}
