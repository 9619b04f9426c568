package model

import (
	"math"

	"github.com/molt-go/molt/torch"
)

// Cache holds keys and values per layer, [slots, kvHeads, headDim] in the model's dtype.
type Cache struct {
	slots      int
	keys, vals []torch.Tensor
}

// NewCache makes a cache of so many token slots in s, not initialised: no slot is read before it is written.
func (m *Model) NewCache(s *torch.Scope, slots int) *Cache {
	c := &Cache{slots: slots}
	for range m.layers {
		c.keys = append(c.keys, s.Empty(m.DType, slots, m.KVHeads, m.HeadDim))
		c.vals = append(c.vals, s.Empty(m.DType, slots, m.KVHeads, m.HeadDim))
	}
	return c
}

// CacheBytes is what one slot of a cache takes.
func (m *Model) CacheBytes() int { return 2 * m.Layers * m.KVHeads * m.HeadDim * m.DType.Size() }

// Hidden runs the decoder over the rows of b and gives their last hidden states [N, hidden], after the final norm.
// Without a cache, slot i is row i of the batch itself; with one, each row's key and value are first written to b.Slots, and the
// cache must not require grad.
func (m *Model) Hidden(s *torch.Scope, b *Batch, c *Cache) (torch.Tensor, error) {
	slots := b.Len()
	if c != nil {
		slots = c.slots
	}
	if err := b.check(slots, m.Vocab); err != nil {
		return torch.Tensor{}, err
	}
	return s.Block(func(s *torch.Scope) torch.Tensor {
		var x []torch.Tensor
		for _, stage := range m.stages(s, b, c) {
			x = stage(s, x)
		}
		return x[0]
	}), nil
}

// HiddenAgain is Hidden without a cache that keeps only what goes into each layer. back takes the gradient of the result, runs the
// layers again, from the last, and adds up the gradients of the weights; b must not have changed.
func (m *Model) HiddenAgain(s *torch.Scope, b *Batch) (h torch.Tensor, back func(s *torch.Scope, grad torch.Tensor), err error) {
	if err := b.check(b.Len(), m.Vocab); err != nil {
		return h, nil, err
	}
	out, again := s.Recompute(m.stages(s, b, nil))
	return out[0], func(s *torch.Scope, grad torch.Tensor) { again(s, []torch.Tensor{grad}) }, nil
}

// stages are the embedding, the layers, between which x is the residual stream and r what the layer before adds to it, and the
// final norm.
func (m *Model) stages(s *torch.Scope, b *Batch, c *Cache) []torch.Stage {
	in := m.input(s, b)
	stages := []torch.Stage{func(s *torch.Scope, _ []torch.Tensor) []torch.Tensor {
		return []torch.Tensor{s.Embedding(m.embed, in.ids), {}}
	}}
	for i := range m.layers {
		stages = append(stages, func(s *torch.Scope, x []torch.Tensor) []torch.Tensor {
			x0, r := m.block(s, i, x[0], x[1], in, c)
			return []torch.Tensor{x0, r}
		})
	}
	return append(stages, func(s *torch.Scope, x []torch.Tensor) []torch.Tensor {
		_, h := s.AddRMSNorm(x[0], x[1], m.norm, m.Eps)
		return []torch.Tensor{h}
	})
}

// block runs layer i on x and r, whose sum is folded into its first norm.
func (m *Model) block(outer *torch.Scope, i int, x, r torch.Tensor, in input, c *Cache) (torch.Tensor, torch.Tensor) {
	l := &m.layers[i]
	var x2 torch.Tensor
	r2 := outer.Block(func(s *torch.Scope) torch.Tensor {
		x, h := s.AddRMSNorm(x, r, l.attnNorm, m.Eps)
		a := m.attention(s, i, h, in, c)
		x, h = s.AddRMSNorm(x, s.Linear(a, l.out, l.outBias), l.mlpNorm, m.Eps)
		s.Move(outer, x)
		x2 = x
		return s.Linear(s.SiLUMul(s.Linear(h, l.gateUp, l.guBias)), l.down, l.downBias)
	})
	return x2, r2
}

func (m *Model) attention(s *torch.Scope, i int, h torch.Tensor, in input, c *Cache) torch.Tensor {
	l := &m.layers[i]
	n := h.Dim(0)
	qkv := s.Reshape(s.Linear(h, l.qkv, l.qkvBias), n, m.Heads+2*m.KVHeads, m.HeadDim)
	qk := s.Rotary(s.Narrow(qkv, 1, 0, m.Heads+m.KVHeads), in.cos, in.sin)
	q, k := s.Narrow(qk, 1, 0, m.Heads), s.Narrow(qk, 1, m.Heads, m.KVHeads)
	v := s.Narrow(qkv, 1, m.Heads+m.KVHeads, m.KVHeads)
	if c != nil {
		k, v = s.IndexCopy_(c.keys[i], 0, in.slots, k), s.IndexCopy_(c.vals[i], 0, in.slots, v)
	}
	o := s.Attention(q, k, v, in.rows, in.seqs, in.ranges, 1/math.Sqrt(float64(m.HeadDim)), 0)
	return s.Reshape(o, n, m.Heads*m.HeadDim)
}

// Logits are those of hidden states h [N, hidden]: [N, vocab]. N should be a multiple of 4, at least 8, where bits must agree
// with [Model.LogP].
func (m *Model) Logits(s *torch.Scope, h torch.Tensor) torch.Tensor {
	return s.Linear(h, m.head, torch.Tensor{})
}

// headChunk rows of logits are held at a time: 100 MB in float32 at a vocabulary of 49,152.
const headChunk = 512

// LogP gives log-probs [N,K] of ids, K for each row, and the entropy [N] at hidden states h [N, hidden], under logits times invT [N].
func (m *Model) LogP(s *torch.Scope, h torch.Tensor, ids []int32, invT []float32) (logp, entropy torch.Tensor) {
	wide := make([]int64, len(ids))
	for i, id := range ids {
		wide[i] = int64(id)
	}
	return s.LMLogP(h, m.head, torch.New(s, wide, len(invT), len(ids)/len(invT)), torch.New(s, invT), 0, headChunk)
}
