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

func TestVisionEqualsTransformers(t *testing.T) {
	for _, f := range seeing(t) {
		t.Run(filepath.Base(f.path), func(t *testing.T) {
			f.t = t
			do(t, func(s *torch.Scope) {
				seen := see(t, s, load(t, s, f.path, torch.Float32), f.pictures()...)
				near(t, "embeddings", f.floats("vision.embeds"), torch.Values[float32](seen[0]), 5e-5)
				for i, x := range seen[1:] {
					near(t, "deepstack", f.floats(fmt.Sprintf("vision.deepstack.%d", i)), torch.Values[float32](x), 5e-5)
				}
				if _, more := f.file.Lookup(fmt.Sprintf("vision.deepstack.%d", len(seen)-1)); more {
					t.Errorf("%d deepstack features, the reference has more", len(seen)-1)
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
						n := alone[0].Dim(0)
						for i, x := range alone {
							if diff := cmp.Diff(torch.Values[float32](x), torch.Values[float32](s.Narrow(all[i], 0, at, n))); diff != "" {
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

// What was generated, with the prompt in chunks, scores the same bit for bit where all sequences are packed into one batch.
func TestGeneratedTokensAfterImagesScoreTheSameWhenPacked(t *testing.T) {
	for _, d := range []torch.DType{torch.Float32, torch.BFloat16} {
		eachModel(t, d, func(t *testing.T, s *torch.Scope, f folder, m *Model) {
			if m.Vision == nil {
				return
			}
			var b Batch
			var seen []Seen
			var at, next []int32
			var want []float32
			features := 0
			for _, p := range f.pages("gen") {
				out, logp := p.greedy(t, s, m, 9, 5)
				ids := append(slices.Clone(p.ids), out...)
				for i := range out {
					at = append(at, int32(b.Len()+len(p.ids)+i-1))
				}
				next, want = append(next, out...), append(want, logp...)
				p.add(&b, ids, 0, len(ids), features, int32(b.Len()), int32(len(ids)))
				features, seen = features+p.placeholders(len(p.ids)), append(seen, p.seen(t, s, m)...)
			}
			byRow := make([]int32, b.Len())
			for i, row := range at {
				byRow[row] = next[i]
			}
			lp, _ := m.LogP(s, hidden(t, s, m, &b, nil, seen...), byRow, slices.Repeat([]float32{1}, b.Len()))
			got := torch.Values[float32](s.IndexSelect(lp, 0, torch.New(s, at)))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
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
				{func(b *Batch) {}, nil, "row 2 takes image embedding 0, but 6 rows of images have 0 embeddings"},
				{func(b *Batch) {}, []Seen{{}}, "what was seen is 0 tensors"},
				{func(b *Batch) {}, []Seen{six, six}, "6 rows of images take 6 of their 12 embeddings"},
				{func(b *Batch) { b.Images = b.Images[:5] }, []Seen{six}, "5 rows of images take 5 of their 6 embeddings"},
				{func(b *Batch) { b.Images[5].Feature = 6 }, []Seen{six}, "row 7 takes image embedding 6, but 6 rows of images have 6 embeddings"},
				{func(b *Batch) { b.Images[0].Feature = -1 }, []Seen{six}, "row 2 takes image embedding -1"},
				{func(b *Batch) { b.Images[5].Row = 8 }, []Seen{six}, "row 8 of 9 stands for a part of an image"},
				{func(b *Batch) { b.Images[5].Row = 1000 }, []Seen{six}, "row 1000 of 9"},
				{func(b *Batch) { b.Images[1].Row = 2 }, []Seen{six}, "row 2 of 9"},
				{func(b *Batch) { b.IDs[4] = 7 }, []Seen{six}, "row 4 of 9 stands for a part of an image; it must have the id"},
			} {
				var b Batch
				b.AddSequence([]int32{5, v.Start, v.Image, v.Image, v.Image, v.Image, v.Image, v.Image, v.End}, 0, 9)
				for i := range int32(6) {
					b.Images = append(b.Images, ImageRow{Row: 2 + i, Feature: i, At: [3]int32{2, 2 + i/3, 2 + i%3}})
				}
				c.change(&b)
				if _, err := m.Hidden(s, &b, nil, c.seen...); (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
			}
		})
	}
}

func TestAModelWithoutATowerRefusesImages(t *testing.T) {
	eachModel(t, torch.Float32, func(t *testing.T, s *torch.Scope, _ folder, m *Model) {
		if m.Vision != nil {
			return
		}
		want := m.Family + " has no vision tower"
		if _, err := m.See(s, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
		b := page{ids: []int32{1}}.alone()
		b.Images = make([]ImageRow, 1)
		if _, err := m.Hidden(s, b, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
	})
}

func TestConfigsOfModelsThatSee(t *testing.T) {
	qwen25 := func(root, vision string) string {
		return `{"model_type":"qwen2_5_vl",` + root + `"vision_config":{"out_hidden_size":8192,` + vision + `"depth":9}}`
	}
	c, err := readConfig(t, qwen25("", ""))
	if err != nil {
		t.Fatal(err)
	}
	want := &Vision{Kind: "qwen2_5_vl_vision", Width: 3584, Inner: 3420, Layers: 9, Heads: 16, Out: 8192, Act: "silu", Channels: 3, Patch: 14,
		Frames: 2, Merge: 2, Window: 112, Whole: []int{7, 15, 23, 31},
		Markers: Markers{Image: 151655, Video: 151656, Start: 151652, End: 151653}}
	want.Rope.Type, want.Rope.Theta = "axial", 10000
	if diff := cmp.Diff(c, written(t, c)); diff != "" {
		t.Error("saved and read:", diff)
	}
	if diff := cmp.Diff(want, c.Vision); diff != "" || c.Rope.Axes != [3]int{16, 24, 24} || c.Eps != 1e-5 {
		t.Errorf("absent keys: %s, M-RoPE %v, eps %v", diff, c.Rope.Axes, c.Eps)
	}
	c, err = readConfig(t, qwen25(`"text_config":{"tie_word_embeddings":true,"num_hidden_layers":3},"tie_word_embeddings":false,`, ""))
	if err != nil || !c.Tied || c.Layers != 3 {
		t.Errorf("keys of text_config: tied %v, %d layers, %v", c.Tied, c.Layers, err)
	}
	for root, tied := range map[string]bool{`"tie_word_embeddings":false,`: false, `"tie_word_embeddings":true,`: true, "": true} {
		c, err = readConfig(t, `{"model_type":"qwen3_vl",`+root+
			`"text_config":{"tie_word_embeddings":true},"vision_config":{"out_hidden_size":4096}}`)
		if err != nil || c.Tied != tied {
			t.Errorf("%s text_config alone ties: %v, %v", root, c.Tied, err)
		}
	}
	for _, c := range []struct{ text, want string }{
		{qwen25(`"text_config":7,`, ""), "text_config"},
		{qwen25(`"rope_scaling":{"type":"mrope","mrope_section":[16,24]},`, ""), "must add up to half of head_dim (128)"},
		{qwen25(`"rope_scaling":{"type":"mrope","mrope_section":[16,24,23]},`, ""), "must add up to half of head_dim (128)"},
		{qwen25(`"rope_scaling":{"type":"mrope","mrope_section":[-1,33,32]},`, ""), "must add up to half of head_dim (128)"},
		{qwen25("", `"out_hidden_size":64,`), "out_hidden_size is 64, the decoder's hidden_size 8192"},
		{qwen25("", `"hidden_size":1e9,`), "vision_config"},
		{qwen25("", `"num_heads":0,`), "out of range: {Kind:qwen2_5_vl_vision Width:3584 Inner:3420 Layers:9 Heads:0 "},
		{qwen25("", `"num_heads":24,`), "must be a multiple of 4·num_heads (4·24)"},
		{qwen25("", `"patch_size":-14,`), " Patch:-14 "},
		{qwen25("", `"spatial_merge_size":1000000,`), " Merge:1000000 "},
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
