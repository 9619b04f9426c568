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
	qkv               affine       // [(heads + 2 kvHeads)·headDim, hidden]
	qNorm, kNorm      torch.Tensor // [headDim] or [heads·headDim]
	out               affine       // [hidden, heads·headDim]
	mlp               mlp          // of a dense layer
	router            torch.Tensor // [experts, hidden], of a sparse layer
	experts           []mlp
}

// mlp is a gated MLP.
type mlp struct {
	gateUp affine // [2 inner, hidden]
	down   affine // [hidden, inner]
}

// affine holds the weights of a linear map or a norm; b may be none.
type affine struct{ w, b torch.Tensor }

func (a affine) of(s *torch.Scope, x torch.Tensor) torch.Tensor { return s.Linear(x, a.w, a.b) }

// Param is a named weight as checkpoints have it: rows [first, first+rows) of a leaf.
type Param struct {
	Name        string
	Tensor      torch.Tensor // a view of the leaf
	Frozen      bool         // keeps its value: a model's first CopyFrom takes it, later ones need not
	leaf        torch.Tensor
	first, rows int
}

// NewParam is a weight beside those of a model, such as a value head; t is its leaf.
func NewParam(name string, t torch.Tensor) Param { return Param{name, t, false, t, 0, t.Dim(0)} }

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
	m.embed = m.weight(s, c.Prefix+"embed_tokens", c.Vocab, c.Width)
	for i := range c.Layers {
		name := func(rest string) string { return fmt.Sprintf("%slayers.%d.%s", c.Prefix, i, rest) }
		norm := func(rest string, width int) torch.Tensor { return m.weight(s, name(rest), width) }
		l := layer{attnNorm: norm("input_layernorm", c.Width)}
		l.qkv = m.linear(s, c.Width, c.QKVBias,
			part{name("self_attn.q_proj"), q}, part{name("self_attn.k_proj"), kv}, part{name("self_attn.v_proj"), kv})
		switch c.QKNorm {
		case "head":
			l.qNorm, l.kNorm = norm("self_attn.q_norm", c.HeadDim), norm("self_attn.k_norm", c.HeadDim)
		case "width":
			l.qNorm, l.kNorm = norm("self_attn.q_norm", q), norm("self_attn.k_norm", kv)
		}
		l.out = m.linear(s, q, c.OutBias, part{name("self_attn.o_proj"), c.Width})
		if c.Sandwich {
			l.afterAttn, l.mlpNorm = norm("post_attention_layernorm", c.Width), norm("pre_feedforward_layernorm", c.Width)
			l.afterMLP = norm("post_feedforward_layernorm", c.Width)
		} else {
			l.mlpNorm = norm("post_attention_layernorm", c.Width)
		}
		if c.MoE.Layers != nil && c.MoE.Layers[i] {
			n := c.Sparse
			l.router = m.weight(s, name(n.Router), c.Experts, c.Width)
			for e := range c.MoE.Experts {
				at := name(fmt.Sprintf("%s.%d.", n.Experts, e))
				l.experts = append(l.experts, m.mlp(s, c.MoE.Inner, at+n.Gate, at+n.Up, at+n.Down))
			}
		} else {
			l.mlp = m.mlp(s, c.Inner, name("mlp.gate_proj"), name("mlp.up_proj"), name("mlp.down_proj"))
		}
		m.layers = append(m.layers, l)
	}
	m.norm = m.weight(s, c.Prefix+"norm", c.Width)
	m.head = m.embed
	if !c.Tied {
		m.head = m.weight(s, "lm_head", c.Vocab, c.Width)
	}
	if c.Vision != nil {
		m.tower = m.newTower(s)
	}
	return m
}

func (m *Model) mlp(s *torch.Scope, inner int, gate, up, down string) mlp {
	return mlp{m.linear(s, m.Width, m.MLPBias, part{gate, inner}, part{up, inner}), m.linear(s, inner, m.MLPBias, part{down, m.Width})}
}

// part is a named share of a leaf: its rows.
type part struct {
	name string
	rows int
}

// linear makes a linear map of parts that read the same input.
func (m *Model) linear(s *torch.Scope, in int, bias bool, parts ...part) (a affine) {
	ws, bs := make([]part, len(parts)), make([]part, len(parts))
	for i, p := range parts {
		ws[i], bs[i] = part{p.name + ".weight", p.rows}, part{p.name + ".bias", p.rows}
	}
	if a.w = m.leaf(s, ws, in); bias {
		a.b = m.leaf(s, bs)
	}
	return a
}

// weight is a [rows, columns] weight of its own, or without columns a vector.
func (m *Model) weight(s *torch.Scope, name string, rows int, columns ...int) torch.Tensor {
	return m.leaf(s, []part{{name + ".weight", rows}}, columns...)
}

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
