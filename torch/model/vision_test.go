package model_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
	. "github.com/molt-go/molt/torch/model"
)

// seeing are the models of the reference that have a vision tower.
func seeing(t *testing.T) []folder {
	t.Helper()
	fs := slices.DeleteFunc(models(t), func(f folder) bool { return f.config().Vision == nil })
	if len(fs) == 0 {
		t.Fatal("no model of the reference has a vision tower")
	}
	return fs
}

func (f folder) config() Config {
	c, err := ReadConfig(filepath.Join(f.path, "config.json"))
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

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

func TestVisionEqualsTransformers(t *testing.T) {
	for _, f := range seeing(t) {
		t.Run(filepath.Base(f.path), func(t *testing.T) {
			f.t = t
			do(t, func(s *torch.Scope) {
				seen := see(t, s, load(t, s, f.path, torch.Float32), f.pictures()...)
				near(t, "embeddings", f.floats("vision.embeds"), torch.Values[float32](seen.Embeds), 5e-5)
				for i, x := range seen.Deepstack {
					near(t, "deepstack", f.floats(fmt.Sprintf("vision.deepstack.%d", i)), torch.Values[float32](x), 5e-5)
				}
				if _, more := f.file.Lookup(fmt.Sprintf("vision.deepstack.%d", len(seen.Deepstack))); more {
					t.Errorf("%d deepstack features, the reference has more", len(seen.Deepstack))
				}
			})
		})
	}
}

func TestAnImagesEmbeddingsDoNotDependOnOthers(t *testing.T) {
	for _, f := range seeing(t) {
		for _, d := range []torch.DType{torch.Float32, torch.BFloat16} {
			for threads := range 3 {
				err := torch.Do(threads+1, func(s *torch.Scope) error {
					m := load(t, s, f.path, d)
					ps, at := f.pictures(), 0
					all := see(t, s, m, ps...)
					for _, p := range ps {
						alone := see(t, s, m, p)
						n := alone.Embeds.Dim(0)
						for i, x := range append([]torch.Tensor{alone.Embeds}, alone.Deepstack...) {
							y := append([]torch.Tensor{all.Embeds}, all.Deepstack...)[i]
							if diff := cmp.Diff(torch.Values[float32](x), torch.Values[float32](s.Narrow(y, 0, at, n))); diff != "" {
								t.Errorf("%s, %v: image of %v: %s", f.path, d, p.grid, diff)
							}
						}
						at += n
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// page is a sequence of a folder: its tokens, their places on three axes, and the images that stand among them.
type page struct {
	ids      []int32
	at       [][3]int32
	pictures []picture
	prompt   int // tokens that are given; images stand among these
}

// page reads row i of a padded batch; the images of earlier rows come first.
func (f folder) page(m *Model, side, positions string, i int) (p page, start int) {
	rows, width := f.shape(side + ".input_ids")
	ps := f.pictures()
	for row := range i + 1 {
		p.ids, start = f.row(side, row)
		left := 0
		for _, id := range p.ids {
			if id == m.Vision.Image {
				left += m.Vision.Merge * m.Vision.Merge
			}
		}
		for p.pictures = nil; left > 0; ps = ps[1:] {
			left -= ps[0].grid[1] * ps[0].grid[2]
			p.pictures = append(p.pictures, ps[0])
		}
	}
	p.prompt = len(p.ids)
	at := f.ints(side + "." + positions)
	stride := len(at) / 3 / rows // positions go on through the generated tokens
	for j := start; j < stride && (j < width || positions != "position_ids"); j++ {
		var a [3]int32
		for axis := range a {
			a[axis] = int32(at[(axis*rows+i)*stride+j])
		}
		p.at = append(p.at, a)
	}
	return p, start
}

// add gives b the tokens from to to of the page, as a sequence over ranges, the features of whose images begin at feature.
func (p page) add(m *Model, b *Batch, from, to int, feature int32, ranges ...int32) int {
	first := b.AddSequence(p.ids[from:to], ranges...)
	for _, id := range p.ids[:min(from, p.prompt)] {
		if id == m.Vision.Image {
			feature++
		}
	}
	for i := from; i < to; i++ {
		row := first + i - from
		b.Positions[row] = p.at[i][0]
		if p.ids[i] == m.Vision.Image && i < p.prompt {
			b.Images = append(b.Images, ImageRow{Row: int32(row), Feature: feature, At: p.at[i]})
			feature++
		}
	}
	return first
}

func TestImagesAmongTextEqualTransformers(t *testing.T) {
	for _, f := range seeing(t) {
		t.Run(filepath.Base(f.path), func(t *testing.T) {
			f.t = t
			do(t, func(s *torch.Scope) {
				m := load(t, s, f.path, torch.Float32)
				for _, side := range []string{"right", "left"} {
					rows, width := f.shape(side + ".input_ids")
					logits, logp := f.floats(side+".logits"), f.floats(side+".log_probs")
					for i := range rows {
						p, start := f.page(m, side, "position_ids", i)
						n := len(p.ids)
						s.NoGrad(func(s *torch.Scope) torch.Tensor {
							var b Batch
							p.add(m, &b, 0, n, 0, 0, int32(n))
							b.Pad(0)
							h := s.Narrow(hidden(t, s, m, &b, nil, see(t, s, m, p.pictures...)), 0, 0, n)
							at := (i*width + start) * m.Vocab
							near(t, side+" logits", logits[at:at+n*m.Vocab], torch.Values[float32](m.Logits(s, h)), 5e-5)
							lp, _ := m.LogP(s, s.Narrow(h, 0, 0, n-1), p.ids[1:], slices.Repeat([]float32{1}, n-1))
							at = i*(width-1) + start
							near(t, side+" log-probs", logp[at:at+n-1], torch.Values[float32](lp), 3e-5)
							return torch.Tensor{}
						})
					}
				}
			})
		})
	}
}

// With recomputation and without, through the decoder and the tower.
func TestGradientsThroughImagesEqualTransformers(t *testing.T) {
	for _, f := range seeing(t) {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/again=%v", filepath.Base(f.path), again), func(t *testing.T) {
				f.t = t
				do(t, func(s *torch.Scope) {
					m := load(t, s, f.path, torch.Float32)
					for _, leaf := range m.Leaves() {
						leaf.RequireGrad(true)
					}
					rows, _ := f.shape("right.input_ids")
					var b Batch
					var at, next []int32
					var seen []Seen
					features := 0
					for i := range rows {
						p, _ := f.page(m, "right", "position_ids", i)
						first := p.add(m, &b, 0, len(p.ids), int32(features), int32(b.Len()), int32(len(p.ids)))
						for j, id := range p.ids[1:] {
							at, next = append(at, int32(first+j)), append(next, id)
						}
						x := see(t, s, m, p.pictures...)
						seen, features = append(seen, x), features+x.Embeds.Dim(0)
					}
					b.Pad(0)
					if !again {
						loss := meanNLL(s, m, hidden(t, s, m, &b, nil, seen...), at, next)
						s.Backward([]torch.Tensor{loss}, nil)
						f.compareGradients(s, m, loss.Item())
						return
					}
					out, back, err := m.HiddenAgain(s, &b, seen...)
					if err != nil {
						t.Fatal(err)
					}
					loss := meanNLL(s, m, out.Hidden.RequireGrad(true), at, next)
					s.Backward([]torch.Tensor{loss}, nil)
					back(s, s.GradOf(out.Hidden), torch.Tensor{})
					f.compareGradients(s, m, loss.Item())
				})
			})
		}
	}
}

// A prompt goes into the cache in chunks, which may split an image; the tokens after it go on at the text's positions.
func TestGenerationAfterImagesEqualsTransformers(t *testing.T) {
	for _, f := range seeing(t) {
		for _, chunk := range []int{3, 1000} {
			t.Run(fmt.Sprintf("%s/chunk=%d", filepath.Base(f.path), chunk), func(t *testing.T) {
				f.t = t
				do(t, func(s *torch.Scope) {
					m := load(t, s, f.path, torch.Float32)
					rows, _ := f.shape("gen.input_ids")
					_, n := f.shape("gen.new_ids")
					tokens, logp, margins := f.ints("gen.new_ids"), f.floats("gen.log_probs"), f.floats("gen.margin")
					for i := range rows {
						p, _ := f.page(m, "gen", "full_position_ids", i)
						got, lp := p.greedy(t, s, m, n, chunk)
						want := make([]int32, n)
						for j := range want {
							want[j] = int32(tokens[i*n+j])
						}
						k := sameUntilClose(t, "greedy", want, got, margins[i*n:])
						near(t, "log-probs", logp[i*n:i*n+k], lp[:k], 3e-5)
					}
				})
			})
		}
	}
}

func (p page) greedy(t *testing.T, s *torch.Scope, m *Model, n, chunk int) (out []int32, logp []float32) {
	s.NoGrad(func(s *torch.Scope) torch.Tensor {
		var seen []Seen
		if len(p.pictures) > 0 {
			seen = append(seen, see(t, s, m, p.pictures...))
		}
		slots := p.prompt + n
		cache := m.NewCache(s, slots+1)
		for done := 0; len(out) < n; {
			s.Block(func(s *torch.Scope) torch.Tensor {
				var b Batch
				to := min(done+chunk, len(p.ids))
				p.add(m, &b, done, to, 0, 0, int32(to))
				for ; done < to; done++ {
					b.Slots = append(b.Slots, int64(done))
				}
				last := b.Len() - 1
				b.Pad(int64(slots))
				h := hidden(t, s, m, &b, cache, seen...)
				if done < p.prompt {
					return torch.Tensor{}
				}
				logits := m.Logits(s, s.IndexSelect(h, 0, torch.New(s, slices.Repeat([]int64{int64(last)}, 8))))
				id, lp := s.Sample(logits, torch.New(s, []float32{0}), torch.New(s, []float64{0}))
				p.ids = append(p.ids, torch.Values[int32](id)[0])
				out = p.ids[p.prompt:]
				logp = append(logp, torch.Values[float32](lp)[0])
				return torch.Tensor{}
			})
		}
		return torch.Tensor{}
	})
	return out, logp
}
