package model_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/molt-go/molt/torch/model"
)

// illustrated are a sequence's tokens, the images among them, and the positions of these tokens and those that come after.
type illustrated struct {
	ids    []int32
	images []Placed
	at     [][3]int32
}

// illustrated reads the sequences of a padded batch, whose images follow one another.
func (f folder) illustrated(side, positions string) (out []illustrated) {
	ids, _, rows, width := f.padded(side)
	all, ps, v := f.ints(side+"."+positions), f.pictures(), f.config.Vision
	span := len(all) / 3 * width / len(ids)
	for i := 0; i < len(ids); i += width {
		var q illustrated
		first := slices.IndexFunc(rows[i:i+width], func(row int32) bool { return row >= 0 })
		for j := i + first; j < i+width && rows[j] >= 0; j++ {
			q.ids = append(q.ids, ids[j])
		}
		for j := 0; j < len(q.ids); j++ {
			if q.ids[j] == v.Image {
				g := ps[0].grid
				n := g[1] * g[2] / v.Merge / v.Merge
				q.images, ps = append(q.images, Placed{Start: j, Len: n, Grid: g}), ps[1:]
				j += n
			}
		}
		n := len(q.ids)
		if span > width { // generated tokens follow
			n = span - first
		}
		for j := range n {
			q.at = append(q.at, axes(all, i/width*span+first+j))
		}
		out = append(out, q)
	}
	return out
}

// place gives the positions of tokens from to to, and which of all embeddings they take, −1 for none.
func (q illustrated) place(merge, from, to int) (at [][3]int32, features []int32) {
	var b Batch
	b.AddSequence([]int32{1, 2, 3}, 0, 3) // rows of another sequence stand before
	b.AddSequence(make([]int32, to-from), 3, int32(to))
	var shown []int32 // the embeddings of images with rows
	for _, k := range b.Place(merge, 3, from, to-from, q.images) {
		for i := range q.images[k].Len {
			shown = append(shown, int32(q.before(k)+i))
		}
	}
	for _, p := range b.Positions[3:] {
		at, features = append(at, [3]int32{p, p, p}), append(features, -1)
	}
	for _, r := range b.Images {
		at[r.Row-3], features[r.Row-3] = r.At, shown[r.Feature]
	}
	return at, features
}

// before counts the embeddings of the images before image k.
func (q illustrated) before(k int) (n int) {
	for _, m := range q.images[:k] {
		n += m.Len
	}
	return n
}

// Sequences whole and cut in two at every token, and what is generated after them.
func TestPositionsAmongImagesEqualTransformers(t *testing.T) {
	for _, f := range seeing(t) {
		v := f.config.Vision
		for side, name := range map[string]string{"right": "position_ids", "left": "position_ids", "gen": "full_position_ids"} {
			for i, q := range f.illustrated(side, name) {
				want, next := make([]int32, len(q.at)), int32(0)
				for j := range want {
					if want[j] = -1; j < len(q.ids) && q.ids[j] == v.Image {
						want[j], next = next, next+1
					}
				}
				for cut := range len(q.at) {
					at, features := q.place(v.Merge, 0, cut)
					rest, more := q.place(v.Merge, cut, len(q.at))
					diff := cmp.Diff(q.at, slices.Concat(at, rest)) + cmp.Diff(want, slices.Concat(features, more))
					if diff != "" {
						t.Fatalf("%s %s row %d cut at %d: %s", f.path, side, i, cut, diff)
					}
				}
				if side == "gen" {
					continue
				}
				n := len(q.ids)
				after, _ := q.place(v.Merge, n, n+1)
				if delta := f.ints(side + ".rope_deltas")[i]; int64(after[0][0]) != int64(n)+delta {
					t.Errorf("%s %s row %d: after %d tokens comes position %d, the delta is %d", f.path, side, i, n, after[0][0], delta)
				}
			}
		}
	}
}
