package model_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/molt-go/molt/torch"
	. "github.com/molt-go/molt/torch/model"
)

// picture is an image of a folder: its patches and their grid.
type picture struct {
	pixels []float32
	grid   [3]int
}

func (f folder) pictures() []picture {
	_, size := f.shape("pixel_values")
	grids, pixels := f.ints("image_grid_thw"), f.floats("pixel_values")
	var ps []picture
	for i := 0; i < len(grids); i += 3 {
		g := [3]int{int(grids[i]), int(grids[i+1]), int(grids[i+2])}
		n := g[0] * g[1] * g[2] * size
		ps, pixels = append(ps, picture{pixels[:n], g}), pixels[n:]
	}
	return ps
}

func see(t *testing.T, s *torch.Scope, m *Model, ps ...picture) Seen {
	t.Helper()
	var pixels []float32
	var grids [][3]int
	for _, p := range ps {
		pixels, grids = append(pixels, p.pixels...), append(grids, p.grid)
	}
	seen, err := m.See(s, pixels, grids)
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

// seen is what m sees in the folder's pictures, if it sees.
func (f folder) seen(s *torch.Scope, m *Model) []Seen {
	if m.Vision == nil {
		return nil
	}
	return []Seen{see(f.t, s, m, f.pictures()...)}
}

// axes are the positions of place i of a [3, rows·width] tensor.
func axes(all []int64, i int) (at [3]int32) {
	for k := range at {
		at[k] = int32(all[k*len(all)/3+i])
	}
	return at
}

// place gives the rows of a padded batch their positions and images, in the order of the folder's pictures.
func (f folder) place(b *Batch, side string, rows []int32) {
	name := side + ".position_ids"
	if _, ok := f.file.Lookup(name); f.config.Vision == nil || !ok { // a side without images
		return
	}
	all := f.ints(name)
	for i, row := range rows {
		if row < 0 {
			continue
		}
		at := axes(all, i)
		if b.Positions[row] = at[0]; b.IDs[row] == f.config.Vision.Image {
			b.Images = append(b.Images, ImageRow{Row: row, Feature: int32(len(b.Images)), At: at})
		}
	}
}

// deepen adds to hidden states i at the places at what deepstack adds after transformers has recorded them.
func (f folder) deepen(i int, hidden []float32, at []int32, b *Batch) {
	if v := f.config.Vision; v == nil || i == 0 || i > len(v.Deepstack) {
		return
	}
	added, width := f.floats(fmt.Sprintf("vision.deepstack.%d", i-1)), f.config.Width
	for _, image := range b.Images {
		place := slices.Index(at, image.Row)
		for j := range width {
			hidden[place*width+j] += added[int(image.Feature)*width+j]
		}
	}
}

// page is a sequence of a folder: its tokens, their places on three axes where the model has those, and the pictures among them.
type page struct {
	ids      []int32
	at       [][3]int32
	image    int32 // the id of placeholders
	pictures []picture
}

// pages are the sequences of a side.
func (f folder) pages(side string) (pages []page) {
	ids, _, rows, width := f.padded(side)
	var at []int64
	var ps []picture
	if f.config.Vision != nil {
		name := side + ".position_ids"
		if side == "gen" {
			name = "gen.full_position_ids" // past the prompt, through the generated tokens
		}
		at, ps = f.ints(name), f.pictures()
	}
	for i := range len(ids) / width {
		p := page{image: -1}
		for j := range width {
			if rows[i*width+j] >= 0 {
				p.ids = append(p.ids, ids[i*width+j])
			}
		}
		if v := f.config.Vision; v != nil {
			p.image = v.Image
			span := len(at) * width / (3 * len(ids))
			first := slices.IndexFunc(rows[i*width:], func(row int32) bool { return row >= 0 })
			for j := first; j < span; j++ {
				p.at = append(p.at, axes(at, i*span+j))
			}
			for left := p.placeholders(len(p.ids)); left > 0; ps = ps[1:] {
				left -= ps[0].grid[1] * ps[0].grid[2] / v.Merge / v.Merge
				p.pictures = append(p.pictures, ps[0])
			}
		}
		pages = append(pages, p)
	}
	return pages
}

// alone is the page as a batch.
func (p page) alone() *Batch {
	var b Batch
	p.add(&b, p.ids, 0, len(p.ids), 0, 0, int32(len(p.ids)))
	return &b
}

func (p page) seen(t *testing.T, s *torch.Scope, m *Model) []Seen {
	if len(p.pictures) == 0 {
		return nil
	}
	return []Seen{see(t, s, m, p.pictures...)}
}

// placeholders counts the rows of images among the first n tokens.
func (p page) placeholders(n int) (count int) {
	for _, id := range p.ids[:n] {
		if id == p.image {
			count++
		}
	}
	return count
}

// add appends the tokens from to to of ids, which go on after the page's own, as a sequence over ranges; the features of its images
// begin at feature.
func (p page) add(b *Batch, ids []int32, from, to, feature int, ranges ...int32) {
	first := b.AddSequence(ids[from:to], ranges...)
	for i := from; i < to && p.at != nil; i++ {
		row := int32(first + i - from)
		if b.Positions[row] = p.at[i][0]; i < len(p.ids) && ids[i] == p.image {
			b.Images = append(b.Images, ImageRow{Row: row, Feature: int32(feature + p.placeholders(i)), At: p.at[i]})
		}
	}
}

// greedy generates n tokens with a cache, into which the prompt goes in chunks, which may split an image.
func (p page) greedy(t *testing.T, s *torch.Scope, m *Model, n, chunk int) (out []int32, logp []float32) {
	t.Helper()
	s.NoGrad(func(s *torch.Scope) torch.Tensor {
		seen := p.seen(t, s, m)
		ids, slots := slices.Clone(p.ids), len(p.ids)+n
		cache := m.NewCache(s, slots+1)
		for done := 0; len(out) < n; {
			s.Block(func(s *torch.Scope) torch.Tensor {
				var b Batch
				to := min(done+chunk, len(ids))
				p.add(&b, ids, done, to, 0, 0, int32(to))
				for i := done; i < to; i++ {
					b.Slots = append(b.Slots, int64(i))
				}
				last := b.Len() - 1
				h := hidden(t, s, m, &b, cache, seen...)
				if done = to; done < len(p.ids) {
					return torch.Tensor{}
				}
				logits := m.Logits(s, s.IndexSelect(h, 0, torch.New(s, slices.Repeat([]int64{int64(last)}, 8))))
				id, lp, _ := s.Sample(logits, torch.New(s, []float32{0}), torch.New(s, []float64{0}), torch.Tensor{})
				ids = append(ids, torch.Values[int32](id)[0])
				out = ids[len(p.ids):]
				logp = append(logp, torch.Values[float32](lp)[0])
				return torch.Tensor{}
			})
		}
		return torch.Tensor{}
	})
	return out, logp
}
