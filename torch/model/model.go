// Package model holds one decoder-only transformer for several families of language models, configured by flags, the vision towers of
// those that see, their weights' loading and saving, and the packed batches that they run on. The rollout engine and the trainer run
// this same code. It knows nothing of reinforcement learning or of text.
package model

import (
	"fmt"

	"github.com/molt-go/molt/torch"
)

// Model is a decoder and its weights, which live in the scope that made it.
type Model struct {
	Config
	DType  torch.DType
	embed  torch.Tensor // [vocab, hidden]
	head   torch.Tensor // [vocab, hidden]; the embedding when tied
	norm   torch.Tensor // [hidden]
	layers []layer
	tower  *tower // where Vision is
	leaves []torch.Tensor
	params []Param
	filled bool // CopyFrom has been here
}

// layer holds a block's weights; projections that read the same input are fused, and the named parameters are views of them.
type layer struct {
	attnNorm, mlpNorm torch.Tensor
	afterAttn         torch.Tensor // with sandwich norms: of what attention gives
	afterMLP          torch.Tensor
	qkv, qkvBias      torch.Tensor // [(heads + 2 kvHeads)·headDim, hidden]
	qNorm, kNorm      torch.Tensor // [headDim] or [heads·headDim]
	out, outBias      torch.Tensor // [hidden, heads·headDim]
	mlp               mlp          // of a dense layer
	router            torch.Tensor // [experts, hidden], of a sparse layer
	experts           []mlp
}

// mlp is a gated MLP.
type mlp struct {
	gateUp, guBias torch.Tensor // [2 inner, hidden]
	down, downBias torch.Tensor // [hidden, inner]
}

// Param is a named weight as checkpoints have it: rows [first, first+rows) of a leaf.
type Param struct {
	Name        string
	Tensor      torch.Tensor // a view of the leaf
	Frozen      bool         // keeps its value: a model's first CopyFrom takes it, later ones need not
	leaf        torch.Tensor
	first, rows int
}

// RequireGrad marks the leaf that holds p for gradients.
func (p Param) RequireGrad() { p.leaf.RequireGrad(true) }

// Grad is the gradient that backward left for p, a view in s, or the zero Tensor.
func (p Param) Grad(s *torch.Scope) torch.Tensor {
	g := s.GradOf(p.leaf)
	if g == (torch.Tensor{}) {
		return g
	}
	return s.Narrow(g, 0, p.first, p.rows)
}

// New makes a model of uninitialised weights in s.
func New(s *torch.Scope, c Config, d torch.DType) *Model {
	m := &Model{Config: c, DType: d}
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	m.embed = m.matrix(s, c.Width, part{c.Prefix + "embed_tokens.weight", c.Vocab})
	for i := range c.Layers {
		name := func(rest string) string { return fmt.Sprintf("%slayers.%d.%s", c.Prefix, i, rest) }
		norm := func(rest string, width int) torch.Tensor { return m.vector(s, part{name(rest + ".weight"), width}) }
		l := layer{attnNorm: norm("input_layernorm", c.Width)}
		l.qkv, l.qkvBias = m.linear(s, c.Width, c.QKVBias,
			part{name("self_attn.q_proj"), q}, part{name("self_attn.k_proj"), kv}, part{name("self_attn.v_proj"), kv})
		switch c.QKNorm {
		case "head":
			l.qNorm, l.kNorm = norm("self_attn.q_norm", c.HeadDim), norm("self_attn.k_norm", c.HeadDim)
		case "width":
			l.qNorm, l.kNorm = norm("self_attn.q_norm", q), norm("self_attn.k_norm", kv)
		}
		l.out, l.outBias = m.linear(s, q, c.OutBias, part{name("self_attn.o_proj"), c.Width})
		if c.Sandwich {
			l.afterAttn, l.mlpNorm = norm("post_attention_layernorm", c.Width), norm("pre_feedforward_layernorm", c.Width)
			l.afterMLP = norm("post_feedforward_layernorm", c.Width)
		} else {
			l.mlpNorm = norm("post_attention_layernorm", c.Width)
		}
		if c.MoE.Layers != nil && c.MoE.Layers[i] {
			n := c.Sparse
			l.router = m.matrix(s, c.Width, part{name(n.Router + ".weight"), c.MoE.Experts})
			for e := range c.MoE.Experts {
				at := name(fmt.Sprintf("%s.%d.", n.Experts, e))
				l.experts = append(l.experts, m.mlp(s, c.MoE.Inner, at+n.Gate, at+n.Up, at+n.Down))
			}
		} else {
			l.mlp = m.mlp(s, c.Inner, name("mlp.gate_proj"), name("mlp.up_proj"), name("mlp.down_proj"))
		}
		m.layers = append(m.layers, l)
	}
	m.norm = m.vector(s, part{c.Prefix + "norm.weight", c.Width})
	m.head = m.embed
	if !c.Tied {
		m.head = m.matrix(s, c.Width, part{"lm_head.weight", c.Vocab})
	}
	if c.Vision != nil {
		m.tower = m.newTower(s)
	}
	return m
}

func (m *Model) mlp(s *torch.Scope, inner int, gate, up, down string) (l mlp) {
	l.gateUp, l.guBias = m.linear(s, m.Width, m.MLPBias, part{gate, inner}, part{up, inner})
	l.down, l.downBias = m.linear(s, inner, m.MLPBias, part{down, m.Width})
	return l
}

// part is a named share of a leaf: its rows.
type part struct {
	name string
	rows int
}

func (m *Model) linear(s *torch.Scope, in int, bias bool, parts ...part) (w, b torch.Tensor) {
	ws, bs := make([]part, len(parts)), make([]part, len(parts))
	for i, p := range parts {
		ws[i], bs[i] = part{p.name + ".weight", p.rows}, part{p.name + ".bias", p.rows}
	}
	w = m.matrix(s, in, ws...)
	if bias {
		b = m.vector(s, bs...)
	}
	return w, b
}

func (m *Model) matrix(s *torch.Scope, columns int, parts ...part) torch.Tensor {
	return m.leaf(s, parts, columns)
}
func (m *Model) vector(s *torch.Scope, parts ...part) torch.Tensor { return m.leaf(s, parts) }

func (m *Model) leaf(s *torch.Scope, parts []part, columns ...int) torch.Tensor {
	rows := 0
	for _, p := range parts {
		rows += p.rows
	}
	t := s.Empty(m.DType, append([]int{rows}, columns...)...)
	first := 0
	for _, p := range parts {
		m.params = append(m.params, Param{p.name, s.Narrow(t, 0, first, p.rows), false, t, first, p.rows})
		first += p.rows
	}
	m.leaves = append(m.leaves, t)
	return t
}

// Params lists the named weights in the order of the layers; a tied head is not listed again.
func (m *Model) Params() []Param { return m.params }

// Freeze marks the parameters with these names, and no other, as Frozen.
func (m *Model) Freeze(names map[string]bool) {
	for i := range m.params {
		m.params[i].Frozen = names[m.params[i].Name]
	}
}

// Leaves lists the tensors that hold the parameters and, where they are marked, their gradients.
func (m *Model) Leaves() []torch.Tensor { return m.leaves }

// NumParams counts the weights.
func (m *Model) NumParams() int {
	n := 0
	for _, t := range m.leaves {
		n += t.Numel()
	}
	return n
}

// CopyFrom copies params, in place, converting to m's dtype. Every parameter of m must be there with its shape, and no other;
// otherwise nothing is copied and the error names all that differ. After the first time those that are Frozen stay as they are.
func (m *Model) CopyFrom(s *torch.Scope, params []Param) error {
	given, shapes, want := map[string]Param{}, map[string][]int{}, map[string][]int{}
	for _, p := range params {
		given[p.Name], shapes[p.Name] = p, p.Tensor.Shape()
	}
	for _, p := range m.params {
		want[p.Name] = p.Tensor.Shape()
	}
	if err := fit(want, shapes); err != nil {
		return err
	}
	s.NoGrad(func(s *torch.Scope) torch.Tensor {
		for _, p := range m.params {
			if from := given[p.Name]; !from.Frozen || !m.filled {
				s.Copy_(p.Tensor, from.Tensor)
			}
		}
		return torch.Tensor{}
	})
	m.filled = true
	return nil
}
