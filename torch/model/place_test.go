package model_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/molt-go/molt/torch/model"
)

// placed are the images of a page, their embeddings end to end.
func (p page) placed(v *Vision) (images []Placed) {
	start, feature := 0, int32(0)
	for _, m := range p.pictures {
		start += slices.Index(p.ids[start:], v.Image)
		n := m.grid[1] * m.grid[2] / v.Merge / v.Merge
		images = append(images, Placed{Start: start, Len: n, Grid: m.grid, Feature: feature})
		start, feature = start+n, feature+int32(n)
	}
	return images
}

// positions are those of tokens from to to of a sequence with images, and features the embeddings that they take, −1 for none.
func positions(merge, from, to int, images []Placed) (at [][3]int32, features []int32) {
	var b Batch
	b.AddSequence([]int32{1, 2, 3}, 0, 3) // rows of another sequence stand before
	b.AddSequence(make([]int32, to-from), 3, int32(to))
	b.Place(merge, 3, from, to-from, images)
	for _, p := range b.Positions[3:] {
		at, features = append(at, [3]int32{p, p, p}), append(features, -1)
	}
	for _, r := range b.Images {
		at[r.Row-3], features[r.Row-3] = r.At, r.Feature
	}
	return at, features
}

// Prompts whole and cut in two at every token, and what is generated after them.
func TestPositionsAmongImagesEqualTransformers(t *testing.T) {
	for _, f := range seeing(t) {
		m := &Model{Config: f.config()}
		for side, name := range map[string]string{"right": "position_ids", "left": "position_ids", "gen": "full_position_ids"} {
			rows, _ := f.shape(side + ".input_ids")
			for i := range rows {
				p, _ := f.page(m, side, name, i)
				n, images, next := max(len(p.ids), len(p.at)), p.placed(m.Vision), int32(0)
				if side != "gen" {
					n = len(p.ids)
					after, _ := positions(m.Vision.Merge, n, n+1, images)
					if delta := f.ints(side + ".rope_deltas")[i]; int64(after[0][0])-int64(n) != int64(delta) {
						t.Errorf("%s %s row %d: after %d tokens comes position %d, the delta is %d", f.path, side, i, n, after[0][0], delta)
					}
				}
				for cut := range n {
					at, features := positions(m.Vision.Merge, 0, cut, images)
					rest, more := positions(m.Vision.Merge, cut, n, images)
					if diff := cmp.Diff(p.at[:n], slices.Concat(at, rest)); diff != "" {
						t.Fatalf("%s %s row %d cut at %d: %s", f.path, side, i, cut, diff)
					}
					next = 0
					for j, feature := range slices.Concat(features, more) {
						if image := j < len(p.ids) && p.ids[j] == m.Vision.Image; image != (feature >= 0) || image && feature != next {
							t.Fatalf("%s %s row %d token %d takes embedding %d, want %d", f.path, side, i, j, feature, next)
						} else if image {
							next++
						}
					}
				}
			}
		}
	}
}
