package model

import (
	"fmt"
	"math"
)

// sight says how the patches of images lie as rows of a tower: squares of patches that become one embedding stay together, windows
// follow one another within their image, and rows that see nothing fill up to a number whose products do not depend on the other rows.
type sight struct {
	order          []int32 // which patch each row is
	back           []int32 // which merged row each embedding is, in the order of the images
	whole, windows []int32 // (first row, rows) of those that see each other
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
	l := &sight{back: make([]int32, patches/v.Merge/v.Merge), frequencies: Rope{Theta: v.Rope.Theta}.frequencies(v.Width / v.Heads / 2)}
	for _, g := range grids {
		first := len(l.order)
		v.image(l, first, g[1], g[2])
		l.whole = append(l.whole, int32(first), int32(g[1]*g[2]))
	}
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
			l.windows = append(l.windows, int32(start), int32(len(l.order)-start))
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
	if v.Table == 0 {
		return
	}
	side := v.side()
	var line [2][2]int // of the table, before and after the place; and how near they are
	var near [2][2]float32
	for axis := range at {
		p := float32(at[axis]) * float32(side-1) / float32(max(size[axis]-1, 1))
		line[axis] = [2]int{int(p), min(int(p)+1, side-1)}
		near[axis] = [2]float32{1 - (p - float32(int(p))), p - float32(int(p))}
	}
	for k := range l.taps {
		l.taps[k] = append(l.taps[k], int32(line[0][k/2]*side+line[1][k%2]))
		l.weights[k] = append(l.weights[k], near[0][k/2]*near[1][k%2])
	}
}
