package model

import (
	"fmt"
	"math"
)

// sight says how the patches of images lie as rows of a tower: squares of patches that become one embedding stay together, windows
// follow one another within their image, and rows that see nothing fill up to a number whose products do not depend on the other rows.
type sight struct {
	order          []int32   // which patch each row is
	back           []int32   // which merged row each embedding is, in the order of the images
	whole, windows partition // who sees whom
	frequencies    []float32
	cos, sin       []float32
	taps           [4][]int32 // entries of the learned position table, and their weights
	weights        [4][]float32
}

// sight lays out images of the given grids (1, height, width) in patches, whose pixels are so many numbers.
func (v *Vision) sight(numbers int, grids [][3]int) (*sight, error) {
	patch, patches := 3*v.Frames*v.Patch*v.Patch, 0
	for i, g := range grids {
		if g[0] != 1 {
			return nil, fmt.Errorf("model: image %d has the grid %v: video, more than one frame, is not supported", i, g)
		}
		for _, side := range g[1:] {
			if side <= 0 || side > 1<<16 || side%v.Merge != 0 {
				return nil, fmt.Errorf("model: image %d has the grid %v; its sides must be positive multiples of %d", i, g, v.Merge)
			}
		}
		patches += g[1] * g[2]
	}
	if patches == 0 || numbers%patch != 0 || numbers/patch != patches {
		return nil, fmt.Errorf("model: the grids %v have %d patches of %d numbers each, not %d numbers", grids, patches, patch, numbers)
	}
	l := &sight{back: make([]int32, patches/v.Merge/v.Merge), frequencies: Rope{Theta: v.Theta}.frequencies(v.Width / v.Heads / 2)}
	for _, g := range grids {
		first := len(l.order)
		v.image(l, first, g[1], g[2])
		l.whole.add(first, g[1]*g[2])
	}
	for rows := max(8, (len(l.back)+3)/4*4) * v.Merge * v.Merge; len(l.order) < rows; {
		v.row(l, 0, [2]int{}, [2]int{1, 1})
	}
	l.whole.fill(len(l.order))
	l.windows.fill(len(l.order))
	return l, nil
}

// image appends the rows of one image, window by window.
func (v *Vision) image(l *sight, first, h, w int) {
	side := max(h, w)
	if v.Window > 0 {
		side = v.Window / v.Patch / v.Merge * v.Merge
	}
	for top := 0; top < h; top += side {
		for left := 0; left < w; left += side {
			start := len(l.order)
			for y := top; y < min(top+side, h); y += v.Merge {
				for x := left; x < min(left+side, w); x += v.Merge {
					patch := first + y*w + x*v.Merge // of the square at (y, x)
					l.back[patch/v.Merge/v.Merge] = int32(len(l.order) / v.Merge / v.Merge)
					for i := range v.Merge * v.Merge {
						v.row(l, patch+i, [2]int{y + i/v.Merge, x + i%v.Merge}, [2]int{h, w})
					}
				}
			}
			l.windows.add(start, len(l.order)-start)
		}
	}
}

// row appends a patch at a place in an image of the given size.
func (v *Vision) row(l *sight, patch int, at, size [2]int) {
	l.order = append(l.order, int32(patch))
	for axis := range at {
		for _, f := range l.frequencies {
			sin, cos := math.Sincos(float64(float32(at[axis]) * f))
			l.cos, l.sin = append(l.cos, float32(cos)), append(l.sin, float32(sin))
		}
	}
	if v.Side == 0 {
		return
	}
	var low, high [2]int32 // the table's lines on both sides of the place, and their weights
	var weight [2][2]float32
	for axis := range at {
		p := float32(at[axis]) * float32(v.Side-1) / float32(max(size[axis]-1, 1))
		low[axis] = int32(p)
		high[axis] = min(low[axis]+1, int32(v.Side-1))
		weight[axis][1] = p - float32(low[axis])
		weight[axis][0] = 1 - weight[axis][1]
	}
	for k := range l.taps {
		y, x := [2]int32{low[0], high[0]}[k/2], [2]int32{low[1], high[1]}[k%2]
		l.taps[k] = append(l.taps[k], y*int32(v.Side)+x)
		l.weights[k] = append(l.weights[k], weight[0][k/2]*weight[1][k%2])
	}
}

// partition says which rows see each other, in the layout of [torch.Scope.Attention].
type partition struct{ rows, seqs, ranges []int32 }

// add appends n rows that all see each other, and no other; first is the first of them.
func (p *partition) add(first, n int) {
	p.ranges = append(p.ranges, int32(first), int32(n))
	for range n {
		p.rows = append(p.rows, int32(len(p.seqs)), 0, int32(n))
	}
	p.seqs = append(p.seqs, int32(len(p.seqs)))
}

// fill appends rows that see nothing until there are n.
func (p *partition) fill(n int) {
	for last := int32(len(p.seqs) - 1); len(p.rows) < 3*n; {
		p.rows = append(p.rows, last, 0, 0)
	}
	p.seqs = append(p.seqs, int32(len(p.seqs)))
}
