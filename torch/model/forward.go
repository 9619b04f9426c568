package model

import (
	"fmt"
	"math"
	"slices"

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

// CacheBytes is what one slot of a cache takes in dtype d.
func (c Config) CacheBytes(d torch.DType) int { return 2 * c.Layers * c.KVHeads * c.HeadDim * d.Size() }

// Output is what the decoder gives for a batch of N rows.
type Output struct {
	Hidden torch.Tensor // [N, hidden], after the final norm
	// Aux is the routers' load-balancing loss over all layers and rows, a float32 scalar not yet multiplied by its
	// coefficient; the zero Tensor without sparse layers, or with a cache.
	Aux torch.Tensor
}

// Hidden runs the decoder over the rows of b. Without a cache, slot i is row i of the batch itself; with one, each row's key and
// value are first written to b.Slots, and the cache must not require grad. b.Images take their embeddings from seen, end to end;
// without a cache, all of them must be taken.
func (m *Model) Hidden(s *torch.Scope, b *Batch, c *Cache, seen ...Seen) (out Output, err error) {
	x, err := m.inputs(s, b, c, seen)
	if err != nil {
		return out, err
	}
	s.Block(func(inner *torch.Scope) torch.Tensor {
		for _, stage := range m.stages(inner, b, c) {
			x = stage(inner, x)
		}
		if out = (Output{x[0], x[1]}); out.Aux != (torch.Tensor{}) {
			inner.Move(s, out.Aux)
		}
		return out.Hidden
	})
	return out, nil
}

// HiddenAgain is Hidden without a cache that keeps only what goes into each layer. back takes the gradients of the results, of which
// aux may be the zero Tensor, runs the layers again, from the last, and adds up the gradients of the weights, those that seen depends
// on among them; b must not have changed.
func (m *Model) HiddenAgain(s *torch.Scope, b *Batch, seen ...Seen) (out Output, back func(s *torch.Scope, hidden, aux torch.Tensor),
	err error) {
	in, err := m.inputs(s, b, nil, seen)
	if err != nil {
		return out, nil, err
	}
	x, again := s.Recompute(m.stages(s, b, nil), in...)
	return Output{x[0], x[1]}, func(s *torch.Scope, hidden, aux torch.Tensor) {
		var roots, grads []torch.Tensor
		for i, g := range again(s, []torch.Tensor{hidden, aux}) {
			if g != (torch.Tensor{}) && in[i].RequiresGrad() {
				roots, grads = append(roots, in[i]), append(grads, g)
			}
		}
		if len(roots) > 0 {
			s.Backward(roots, grads)
		}
	}, nil
}

// inputs checks what Hidden is given, and joins what has been seen: the embeddings and what deepstack adds after each layer.
func (m *Model) inputs(s *torch.Scope, b *Batch, c *Cache, seen []Seen) ([]torch.Tensor, error) {
	slots := b.Len()
	if c != nil {
		slots = c.slots
	}
	if err := b.check(slots, m.Vocab); err != nil {
		return nil, err
	}
	if m.Vision == nil && len(seen)+len(b.Images) > 0 {
		return nil, fmt.Errorf("model: %s has no vision tower, but the batch has images", m.Family)
	}
	if m.Vision == nil {
		return nil, nil
	}
	features, parts := 0, make([][]torch.Tensor, 1+len(m.Vision.Deepstack))
	for _, x := range seen {
		if len(x) != len(parts) {
			return nil, fmt.Errorf("model: what was seen is %d tensors, want %d, of this model's own tower", len(x), len(parts))
		}
		features += x[0].Dim(0)
		for i, t := range x {
			parts[i] = append(parts[i], t)
		}
	}
	if err := b.checkImages(m.Vision.Image, features, c == nil); err != nil || len(b.Images) == 0 {
		return nil, err
	}
	in := make([]torch.Tensor, len(parts))
	for i, p := range parts {
		in[i] = s.Cat(0, p...)
	}
	return in, nil
}

// stages are the embedding, the layers and the final norm. Between layers stand the residual stream, what the layer before adds to
// it, the load of the experts so far, and what deepstack has yet to add.
func (m *Model) stages(s *torch.Scope, b *Batch, c *Cache) []torch.Stage {
	in := m.input(s, b)
	stages := []torch.Stage{func(s *torch.Scope, seen []torch.Tensor) []torch.Tensor {
		x := m.embedding(s, in.ids)
		if len(seen) == 0 {
			return []torch.Tensor{x, {}, {}}
		}
		x = s.Call("aten::index_copy", x, 0, in.imageRows, s.IndexSelect(seen[0], 0, in.features))[0]
		return append([]torch.Tensor{x, {}, {}}, seen[1:]...)
	}}
	for i := range m.layers {
		stages = append(stages, func(s *torch.Scope, x []torch.Tensor) []torch.Tensor {
			x = m.block(s, i, x, in, c)
			if len(x) > 3 {
				x[1] = s.Call("aten::index_add", x[1], 0, in.imageRows, s.IndexSelect(x[3], 0, in.features))[0]
				x = slices.Delete(x, 3, 4)
			}
			return x
		})
	}
	return append(stages, func(s *torch.Scope, x []torch.Tensor) []torch.Tensor {
		out := []torch.Tensor{{}, {}}
		if _, out[0] = m.rmsNorm(s, x[0], x[1], m.norm); x[2] != (torch.Tensor{}) {
			out[1] = m.balance(s, x[2], in)
		}
		return out
	})
}

func (m *Model) embedding(s *torch.Scope, ids torch.Tensor) torch.Tensor {
	x := s.Embedding(m.embed, ids)
	if m.ScaleEmbed { // by a number of the model's dtype
		x = s.Mul(x, s.To(torch.New(s, []float32{float32(math.Sqrt(float64(m.Width)))}), m.DType))
	}
	return x
}

// rmsNorm gives x + r, r may be missing, and its norm.
func (m *Model) rmsNorm(s *torch.Scope, x, r, w torch.Tensor) (total, y torch.Tensor) {
	if !m.UnitNorm {
		return s.AddRMSNorm(x, r, w, m.Eps)
	}
	if r != (torch.Tensor{}) {
		x = s.Add(x, r)
	}
	w = s.AddScalar(s.To(w, torch.Float32), 1)
	_, y = s.AddRMSNorm(s.To(x, torch.Float32), torch.Tensor{}, w, m.Eps)
	return x, s.To(y, m.DType)
}

// block runs layer i on x[0] + x[1], a sum that is folded into its first norm.
func (m *Model) block(outer *torch.Scope, i int, x []torch.Tensor, in input, c *Cache) []torch.Tensor {
	l := &m.layers[i]
	out := slices.Clone(x)
	out[1] = outer.Block(func(s *torch.Scope) torch.Tensor {
		total, h := m.rmsNorm(s, x[0], x[1], l.attnNorm)
		r := l.out.of(s, m.attention(s, i, h, in, c))
		if m.Sandwich {
			_, r = m.rmsNorm(s, r, torch.Tensor{}, l.afterAttn)
		}
		out[0], h = m.rmsNorm(s, total, r, l.mlpNorm)
		s.Move(outer, out[0])
		if l.experts == nil {
			r = m.gated(s, &l.mlp, h)
		} else if r, out[2] = m.moe(s, i, h, x[2], in); out[2] != (torch.Tensor{}) {
			s.Move(outer, out[2])
		}
		if m.Sandwich {
			_, r = m.rmsNorm(s, r, torch.Tensor{}, l.afterMLP)
		}
		return r
	})
	return out
}

// gated is act(gate)·up of h, projected down.
func (m *Model) gated(s *torch.Scope, l *mlp, h torch.Tensor) torch.Tensor {
	act := s.SiLUMul
	if m.GELU {
		act = s.GELUMul
	}
	return l.down.of(s, act(l.gateUp.of(s, h)))
}

func (m *Model) attention(s *torch.Scope, i int, h torch.Tensor, in input, c *Cache) torch.Tensor {
	l, see := &m.layers[i], in.all
	if m.Local != nil && m.Local[i] {
		see = in.local
	}
	n := h.Dim(0)
	qkv := m.normQKV(s, l, l.qkv.of(s, h))
	qkv = s.Reshape(qkv, n, m.Heads+2*m.KVHeads, m.HeadDim)
	qk := s.Rotary(s.Narrow(qkv, 1, 0, m.Heads+m.KVHeads), see.cos, see.sin)
	q, k := s.Narrow(qk, 1, 0, m.Heads), s.Narrow(qk, 1, m.Heads, m.KVHeads)
	v := s.Narrow(qkv, 1, m.Heads+m.KVHeads, m.KVHeads)
	if c != nil {
		k, v = s.IndexCopy_(c.keys[i], 0, in.slots, k), s.IndexCopy_(c.vals[i], 0, in.slots, v)
	}
	o := s.Attention(q, k, v, see.rows, in.seqs, in.ranges, 1/math.Sqrt(float64(m.QueryScalar)), m.AttnCap)
	return s.Reshape(o, n, m.Heads*m.HeadDim)
}

// normQKV is qkv with queries and keys normed, each head or all at once, and with all of it clipped, where the family does so.
func (m *Model) normQKV(s *torch.Scope, l *layer, qkv torch.Tensor) torch.Tensor {
	if l.qNorm != (torch.Tensor{}) {
		n, kv := qkv.Dim(0), m.KVHeads*m.HeadDim
		parts := s.Call("aten::split_with_sizes", qkv, []int{m.Heads * m.HeadDim, kv, kv}, 1)
		for j, w := range []torch.Tensor{l.qNorm, l.kNorm} {
			_, y := m.rmsNorm(s, s.Reshape(s.Clone(parts[j]), -1, w.Dim(0)), torch.Tensor{}, w)
			parts[j] = s.Reshape(y, n, -1)
		}
		qkv = s.Cat(1, parts...)
	}
	if m.ClipQKV > 0 {
		qkv = s.Clamp(qkv, -m.ClipQKV, m.ClipQKV)
	}
	return qkv
}

// Logits are those of hidden states h [N, hidden]: [N, vocab], in float32 where the model caps them; then they have no gradient.
func (m *Model) Logits(s *torch.Scope, h torch.Tensor) torch.Tensor {
	logits := s.Linear(h, m.head, torch.Tensor{})
	if m.LogitCap > 0 {
		logits = s.SoftCap(logits, m.LogitCap)
	}
	return logits
}

// headChunk rows of logits are held at a time: 100 MB in float32 at a vocabulary of 49,152.
const headChunk = 512

// LogP gives log-probs [N,K] of ids, K for each row, and the entropy [N] at hidden states h [N, hidden], under logits times invT [N].
func (m *Model) LogP(s *torch.Scope, h torch.Tensor, ids []int32, invT []float32) (logp, entropy torch.Tensor) {
	wide := make([]int64, len(ids))
	for i, id := range ids {
		wide[i] = int64(id)
	}
	return s.LMLogP(h, m.head, torch.New(s, wide, len(invT), len(ids)/len(invT)), torch.New(s, invT), m.LogitCap, headChunk)
}
