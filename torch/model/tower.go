package model

import (
	"fmt"
	"math"
	"slices"

	"github.com/molt-go/molt/torch"
)

// Seen is what a vision tower makes of images, end to end: tensors [n, width] in the model's dtype, whose rows stand for tokens of the
// decoder. The first are these tokens' embeddings; the others, where there is deepstack, are added after the decoder's first layers.
type Seen []torch.Tensor

// tower holds a vision tower's weights.
type tower struct {
	visionKind
	patch     affine       // w is [width, 3, frames, patch, patch]
	table     torch.Tensor // [side·side, width]: learned positions
	blocks    []visionBlock
	merger    merger
	deepstack []merger
}

type visionBlock struct{ norm1, qkv, out, norm2, up, down affine } // up holds the gate too where there is one

// merger makes one embedding of a square of patches; the norm is as wide as a patch or as the whole square.
type merger struct{ norm, fc1, fc2 affine }

// newTower makes the weights of the tower under the checkpoint's names.
func (m *Model) newTower(s *torch.Scope) *tower {
	v, t := m.Vision, &tower{visionKind: visionKinds[m.Family]}
	norm := func(name string, width int, columns ...int) (a affine) { // or another map that has a bias as norms do
		if a.w = m.weight(s, t.prefix+name, width, columns...); t.biased {
			a.b = m.leaf(s, []part{{t.prefix + name + ".bias", width}})
		}
		return a
	}
	linear := func(in, out int, name string, parts ...string) affine {
		var ps []part
		for _, p := range parts {
			ps = append(ps, part{t.prefix + name + p, out})
		}
		return m.linear(s, in, true, ps...)
	}
	t.patch = norm("patch_embed.proj", v.Width, 3, v.Frames, v.Patch, v.Patch)
	if v.Table > 0 {
		t.table = m.weight(s, t.prefix+"pos_embed", v.Table, v.Width)
	}
	up, down := []string{"mlp.linear_fc1"}, "mlp.linear_fc2"
	if t.gated {
		up, down = []string{"mlp.gate_proj", "mlp.up_proj"}, "mlp.down_proj"
	}
	for i := range v.Layers {
		name := fmt.Sprintf("blocks.%d.", i)
		t.blocks = append(t.blocks, visionBlock{
			norm1: norm(name+"norm1", v.Width), qkv: linear(v.Width, 3*v.Width, name, "attn.qkv"),
			out: linear(v.Width, v.Width, name, "attn.proj"), norm2: norm(name+"norm2", v.Width),
			up: linear(v.Width, v.Inner, name, up...), down: linear(v.Inner, v.Width, name, down),
		})
	}
	joined := v.Width * v.Merge * v.Merge
	merger := func(name string, width int) merger {
		return merger{norm(name+t.mergers[0], width), linear(joined, joined, name, t.mergers[1]), linear(joined, v.Out, name, t.mergers[2])}
	}
	t.merger = merger("merger.", v.Width)
	for i := range v.Deepstack {
		t.deepstack = append(t.deepstack, merger(fmt.Sprintf("deepstack_merger_list.%d.", i), joined))
	}
	return t
}

// See runs the vision tower over images. pixels are their patches [P, 3·Frames·Patch·Patch]: image after image, in each the squares of
// Merge·Merge patches in raster order; grids are the images' sizes in patches, (1, height, width). An image becomes
// height·width/Merge² rows, whose bits do not depend on the other images.
func (m *Model) See(s *torch.Scope, pixels []float32, grids [][3]int) (Seen, error) {
	if m.Vision == nil {
		return nil, fmt.Errorf("model: %s has no vision tower", m.Family)
	}
	l, err := m.Vision.sight(len(pixels), grids)
	if err != nil {
		return nil, err
	}
	seen, outer := make(Seen, 1+len(m.Vision.Deepstack)), s
	s.Block(func(s *torch.Scope) torch.Tensor {
		n := len(l.order)
		in := look{torch.New(s, l.cos, n, len(l.cos)/n), torch.New(s, l.sin, n, len(l.sin)/n), torch.New(s, l.back),
			newKeys(s, n, l.whole), newKeys(s, n, l.windows)}
		x, r := m.patches(s, pixels, l), torch.Tensor{}
		for i := range m.tower.blocks {
			x, r = m.visionBlock(s, i, x, r, in)
			if k := slices.Index(m.Vision.Deepstack, i); k >= 0 {
				seen[1+k] = m.merge(s, &m.tower.deepstack[k], s.Add(x, r), in.back)
			}
		}
		seen[0] = m.merge(s, &m.tower.merger, s.Add(x, r), in.back)
		s.Move(outer, seen...)
		return torch.Tensor{}
	})
	return seen, nil
}

// look is a sight as tensors; the layers share it.
type look struct {
	cos, sin, back torch.Tensor
	whole, windows keys
}

type keys struct{ rows, seqs, ranges torch.Tensor } // see [torch.Scope.Attention]

// newKeys lets the n rows see each other within their range, (first row, rows), and those past all ranges nothing.
func newKeys(s *torch.Scope, n int, ranges []int32) keys {
	rows, seqs := make([]int32, 0, 3*n), []int32{0}
	for i := 1; i < len(ranges); i += 2 {
		for range ranges[i] {
			rows = append(rows, int32(i/2), 0, ranges[i])
		}
		seqs = append(seqs, int32(i/2+1))
	}
	for len(rows) < 3*n {
		rows = append(rows, seqs[len(seqs)-2], 0, 0)
	}
	return keys{torch.New(s, rows, n, 3), torch.New(s, seqs), torch.New(s, ranges, len(ranges)/2, 2)}
}

// patches are the embeddings of the patches, in the order of the sight, with their learned positions.
func (m *Model) patches(s *torch.Scope, pixels []float32, l *sight) torch.Tensor {
	return s.Block(func(s *torch.Scope) torch.Tensor {
		size := m.tower.patch.w.Numel() / m.Vision.Width
		p := s.To(s.IndexSelect(torch.New(s, pixels, len(pixels)/size, size), 0, torch.New(s, l.order)), m.DType)
		x := s.Linear(p, s.Reshape(m.tower.patch.w, m.Vision.Width, size), m.tower.patch.b)
		if m.tower.table == (torch.Tensor{}) {
			return x
		}
		var sum torch.Tensor
		for k, taps := range l.taps {
			at := s.Mul(s.IndexSelect(m.tower.table, 0, torch.New(s, taps)), torch.New(s, l.weights[k], len(taps), 1))
			if k > 0 {
				at = s.Add(sum, at)
			}
			sum = at
		}
		return s.Add(x, s.To(sum, m.DType))
	})
}

// visionBlock runs layer i of the tower on x and r, whose sum is folded into its first norm.
func (m *Model) visionBlock(outer *torch.Scope, i int, x, r torch.Tensor, in look) (torch.Tensor, torch.Tensor) {
	b, v := &m.tower.blocks[i], m.Vision
	keys := in.windows
	if slices.Contains(v.Whole, i) {
		keys = in.whole
	}
	var x2 torch.Tensor
	r2 := outer.Block(func(s *torch.Scope) torch.Tensor {
		x, h := m.tower.norm(s, x, r, b.norm1)
		n, d := x.Dim(0), v.Width/v.Heads
		qkv := s.Reshape(b.qkv.of(s, h), n, 3*v.Heads, d)
		qk := s.Rotary(s.Narrow(qkv, 1, 0, 2*v.Heads), in.cos, in.sin)
		a := s.Attention(s.Narrow(qk, 1, 0, v.Heads), s.Narrow(qk, 1, v.Heads, v.Heads), s.Narrow(qkv, 1, 2*v.Heads, v.Heads),
			keys.rows, keys.seqs, keys.ranges, 1/math.Sqrt(float64(d)), 0)
		x, h = m.tower.norm(s, x, b.out.of(s, s.Reshape(a, n, v.Width)), b.norm2)
		s.Move(outer, x)
		x2 = x
		h = b.up.of(s, h)
		if m.tower.gated {
			h = s.SiLUMul(h)
		} else { // libtorch's own GELU by the tanh formula depends on where in memory a number stands
			h = s.GELUMul(s.Cat(1, h, s.Call("aten::ones_like", h)[0]))
		}
		return b.down.of(s, h)
	})
	return x2, r2
}

// merge joins every square of patches to one embedding and puts the embeddings into the order of their images.
func (m *Model) merge(s *torch.Scope, g *merger, x, back torch.Tensor) torch.Tensor {
	return s.Block(func(s *torch.Scope) torch.Tensor {
		joined := g.fc1.w.Dim(1)
		_, h := m.tower.norm(s, s.Reshape(x, -1, g.norm.w.Dim(0)), torch.Tensor{}, g.norm)
		h = s.GELU(g.fc1.of(s, s.Reshape(h, -1, joined)))
		return s.IndexSelect(g.fc2.of(s, h), 0, back)
	})
}

// norm gives x + r, where there is an r, and its norm.
func (t *tower) norm(s *torch.Scope, x, r torch.Tensor, a affine) (total, y torch.Tensor) {
	if !t.biased {
		return s.AddRMSNorm(x, r, a.w, visionEps)
	}
	if r != (torch.Tensor{}) {
		x = s.Add(x, r)
	}
	return x, s.LayerNorm(x, a.w, a.b, visionEps)
}
