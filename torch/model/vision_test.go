package model_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
	. "github.com/molt-go/molt/torch/model"
)

// seeing are the models of the reference that have a vision tower.
func seeing(t *testing.T) []folder {
	t.Helper()
	fs := slices.DeleteFunc(models(t), func(f folder) bool { return f.config.Vision == nil })
	if len(fs) == 0 {
		t.Fatal("no model of the reference has a vision tower")
	}
	return fs
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

// A model that sees is a model of text where there are no images.
func TestTextAloneEqualsTransformers(t *testing.T) {
	for _, f := range seeing(t) {
		do(t, func(s *torch.Scope) {
			m := load(t, s, f.path, torch.Float32)
			_, b, at, _ := f.padded("text")
			logits := torch.Values[float32](m.Logits(s, hidden(t, s, m, b, nil)))
			near(t, f.path, f.floats("text.logits"), spread(logits, at, m.Vocab), 5e-5)
		})
	}
}

func TestImagesThatDoNotFitAreErrorsThatNameTheFault(t *testing.T) {
	for _, f := range seeing(t) {
		do(t, func(s *torch.Scope) {
			m := load(t, s, f.path, torch.Float32)
			v := m.Vision
			size := 3 * v.Frames * v.Patch * v.Patch
			for _, c := range []struct {
				numbers int
				grids   [][3]int
				want    string
			}{
				{16 * size, nil, "the grids [] have 0 patches"},
				{16 * size, [][3]int{{1, 4, 6}}, "24 patches"},
				{24*size - 1, [][3]int{{1, 4, 6}}, "24 patches"},
				{24 * size, [][3]int{{2, 4, 3}}, "image 0 has the grid [2 4 3]: video"},
				{24 * size, [][3]int{{1, 4, 6}, {1, 3, 8}}, "image 1 has the grid [1 3 8]; its sides must be positive multiples of 2"},
				{0, [][3]int{{1, 0, 4}}, "positive multiples"},
				{16 * size, [][3]int{{1, -4, -4}}, "positive multiples"},
				{16 * size, [][3]int{{1, 1 << 62, 4}}, "positive multiples"},
				{16 * size, [][3]int{{1, 1 << 16, 1 << 16}}, "4294967296 patches"},
			} {
				if _, err := m.See(s, make([]float32, c.numbers), c.grids); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%d numbers, %v: %v, want %q", c.numbers, c.grids, err, c.want)
				}
			}
			// An image of 6 embeddings, of whose rows some are changed.
			six := see(t, s, m, picture{make([]float32, 24*size), [3]int{1, 4, 6}})
			for _, c := range []struct {
				change func(b *Batch)
				seen   []Seen
				want   string
			}{
				{func(b *Batch) {}, []Seen{six}, ""},
				{func(b *Batch) {}, nil, "row 2 takes row 0 of 0 image embeddings; 6 rows stand for images"},
				{func(b *Batch) {}, []Seen{six, six}, "6 rows stand for images that have 12 embeddings"},
				{func(b *Batch) { b.Images = b.Images[:5] }, []Seen{six}, "5 rows stand for images that have 6 embeddings"},
				{func(b *Batch) { b.Images[5].Feature = 6 }, []Seen{six}, "row 7 takes row 6 of 6 image embeddings"},
				{func(b *Batch) { b.Images[0].Feature = -1 }, []Seen{six}, "row 2 takes row -1 of 6"},
				{func(b *Batch) { b.Images[5].Row = 8 }, []Seen{six}, "row 8 of 12 takes a part of an image"},
				{func(b *Batch) { b.Images[5].Row = 1000 }, []Seen{six}, "row 1000 of 12"},
				{func(b *Batch) { b.Images[1].Row = 2 }, []Seen{six}, "row 2 of 12"},
				{func(b *Batch) { b.IDs[4] = 7 }, []Seen{six}, "row 4 of 12 takes a part of an image, but is not an image token"},
			} {
				var b Batch
				b.AddSequence([]int32{5, v.Start, v.Image, v.Image, v.Image, v.Image, v.Image, v.Image, v.End}, 0, 9)
				for i := range int32(6) {
					b.Images = append(b.Images, ImageRow{Row: 2 + i, Feature: i, At: [3]int32{2, 2 + i/3, 2 + i%3}})
				}
				b.Pad(0)
				c.change(&b)
				if _, err := m.Hidden(s, &b, nil, c.seen...); (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
			}
			text, b := load(t, s, filepath.Join(reference, "models", "llama_untied_gqa"), torch.Float32), alone([]int32{1})
			if _, err := text.See(s, nil, nil); err == nil || !strings.Contains(err.Error(), "llama has no vision tower") {
				t.Error(err)
			}
			if _, err := text.Hidden(s, b, nil, six); err == nil || !strings.Contains(err.Error(), "llama has no vision tower") {
				t.Error(err)
			}
		})
	}
}

func TestConfigsOfModelsThatSee(t *testing.T) {
	qwen25 := func(root, vision string) string {
		return `{"model_type":"qwen2_5_vl",` + root + `"vision_config":{"out_hidden_size":8192,` + vision + `"depth":9}}`
	}
	c, err := readConfig(t, qwen25("", ""))
	if err != nil {
		t.Fatal(err)
	}
	want := &Vision{Width: 3584, Inner: 3420, Layers: 9, Heads: 16, Patch: 14, Frames: 2, Merge: 2, Window: 112, Whole: []int{7, 15, 23, 31},
		Theta: 10000, Image: 151655, Video: 151656, Start: 151652, End: 151653}
	if diff := cmp.Diff(want, c.Vision); diff != "" || c.Rope.Axes != [3]int{16, 24, 24} || c.Eps != 1e-5 {
		t.Errorf("absent keys: %s, M-RoPE %v, eps %v", diff, c.Rope.Axes, c.Eps)
	}
	if c, err := readConfig(t, qwen25(`"text_config":{"tie_word_embeddings":true,"num_hidden_layers":3},"tie_word_embeddings":false,`, "")); err != nil || !c.Tied || c.Layers != 3 {
		t.Errorf("keys of text_config: tied %v, %d layers, %v", c.Tied, c.Layers, err)
	}
	for _, c := range []struct{ text, want string }{
		{qwen25(`"text_config":7,`, ""), "text_config"},
		{qwen25(`"rope_scaling":{"type":"mrope","mrope_section":[16,24]},`, ""), "mrope_section must be three numbers"},
		{qwen25(`"rope_scaling":{"type":"mrope","mrope_section":[16,24,23]},`, ""), "must add up to half of head_dim (128)"},
		{qwen25(`"rope_scaling":{"type":"mrope","mrope_section":[-1,33,32]},`, ""), "must add up to half of head_dim (128)"},
		{qwen25(`"hidden_size":4096,`, ""), "out_hidden_size is 8192, the decoder's hidden_size 4096"},
		{qwen25("", `"hidden_size":1e9,`), "vision_config"},
		{qwen25("", `"num_heads":0,`), "num_heads is out of range (0)"},
		{qwen25("", `"num_heads":24,`), "must be a multiple of 4·num_heads (4·24)"},
		{qwen25("", `"patch_size":-14,`), "patch_size is out of range (-14)"},
		{qwen25("", `"spatial_merge_size":1000000,`), "spatial_merge_size is out of range"},
		{qwen25("", `"window_size":27,`), "window_size (27) must hold 2 patches of 14 pixels"},
		{qwen25("", `"hidden_act":"gelu",`), `hidden_act "gelu" is not supported; known: silu`},
		{qwen25("", `"in_channels":1,`), "in_channels must be 3"},
		{qwen25("", `"rope_parameters":{"rope_type":"axial","rope_theta":0},`), "rope_theta positive"},
		{`{"model_type":"qwen3_vl","vision_config":{"out_hidden_size":4096,"num_position_embeddings":2305}}`, "must be a square"},
		{`{"model_type":"qwen3_vl","vision_config":{"out_hidden_size":4096,"deepstack_visual_indexes":[5,5]}}`, "[5 5] must be of 27 layers"},
		{`{"model_type":"qwen3_vl","vision_config":{"out_hidden_size":4096,"deepstack_visual_indexes":[27]}}`, "[27] must be of 27 layers"},
		{`{"model_type":"qwen3_vl","vision_config":[]}`, "vision_config"},
	} {
		if _, err := readConfig(t, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.150s: %v, want %q", c.text, err, c.want)
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

// prompts are the sequences to generate after.
func (f folder) prompts() (pages []page) {
	ids, _, rows, width := f.padded("gen")
	var at []int64
	var ps []picture
	if f.config.Vision != nil {
		at, ps = f.ints("gen.full_position_ids"), f.pictures()
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
			span := len(at) * width / (3 * len(ids)) // past the prompt, through the generated tokens
			for j := width - len(p.ids); j < span; j++ {
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

// placeholders counts the rows of images among the first n tokens.
func (p page) placeholders(n int) (count int) {
	for _, id := range p.ids[:n] {
		if id == p.image {
			count++
		}
	}
	return count
}

// greedy generates n tokens with a cache, into which the prompt goes in chunks, which may split an image.
func (p page) greedy(t *testing.T, s *torch.Scope, m *Model, n, chunk int) (out []int32, logp []float32) {
	t.Helper()
	s.NoGrad(func(s *torch.Scope) torch.Tensor {
		var seen []Seen
		if len(p.pictures) > 0 {
			seen = append(seen, see(t, s, m, p.pictures...))
		}
		ids, slots := slices.Clone(p.ids), len(p.ids)+n
		cache := m.NewCache(s, slots+1)
		for done := 0; len(out) < n; {
			s.Block(func(s *torch.Scope) torch.Tensor {
				var b Batch
				to := min(done+chunk, len(ids))
				b.AddSequence(ids[done:to], 0, int32(to))
				for row := range b.Len() {
					if b.Slots = append(b.Slots, int64(done+row)); p.at == nil {
						continue
					}
					at := p.at[done+row]
					if b.Positions[row] = at[0]; done+row < len(p.ids) && b.IDs[row] == p.image {
						b.Images = append(b.Images, ImageRow{Row: int32(row), Feature: int32(p.placeholders(done + row)), At: at})
					}
				}
				last := b.Len() - 1
				b.Pad(int64(slots))
				h := hidden(t, s, m, &b, cache, seen...)
				if done = to; done < len(p.ids) {
					return torch.Tensor{}
				}
				logits := m.Logits(s, s.IndexSelect(h, 0, torch.New(s, slices.Repeat([]int64{int64(last)}, 8))))
				id, lp := s.Sample(logits, torch.New(s, []float32{0}), torch.New(s, []float64{0}))
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
