package trainer

import (
	"crypto/sha256"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// picture is a random image of 4 by 6 patches, which stands for 6 tokens.
func picture(v *model.Vision, seed uint64) rollout.Image {
	r := rand.New(rand.NewPCG(seed, 1))
	m := rollout.Image{Len: 6, Grid: [3]int{1, 4, 6}, Digest: sha256.Sum256([]byte{byte(seed)})}
	m.Pixels = make([]float32, 4*6*3*v.Frames*v.Patch*v.Patch)
	for i := range m.Pixels {
		m.Pixels[i] = float32(r.NormFloat64())
	}
	return m
}

// sighted are samples of one group: image 1 in the prompt, image 2 in what the second sample has of its own. The third has another image
// in the place of the first, under the same ids.
func sighted(v *model.Vision) []Sample {
	spot := slices.Repeat([]int32{v.Image}, 6)
	prompt := slices.Concat([]int32{5, 6}, spot, []int32{7, 8})
	add := func(x *Sample, start int, m rollout.Image) {
		m.Start = start
		x.Tokens.Images = append(x.Tokens.Images, m)
	}
	samples := []Sample{
		dialogue(0, len(prompt), slices.Concat(prompt, []int32{11, 12, 13})...),
		dialogue(0, len(prompt), slices.Concat(prompt, []int32{11, 9}, spot, []int32{14, 15})...),
		dialogue(0, len(prompt), slices.Concat(prompt, []int32{11, 12})...),
	}
	for i := range samples {
		x := &samples[i]
		add(x, 2, picture(v, []uint64{1, 1, 3}[i]))
		for t := range x.Tokens.IDs {
			if x.Tokens.IDs[t] == v.Image {
				x.Tokens.Mask[t] = false
			}
			x.Tokens.LogP[t], x.Advantages[t] = -2, float32(t%3)-0.7
		}
	}
	add(&samples[1], len(prompt)+2, picture(v, 2))
	return samples
}

var seeing = []string{"qwen2_5_vl", "qwen3_vl"}

func TestSharedImagesChangeNeitherLogProbsNorGradients(t *testing.T) {
	for _, name := range seeing {
		for _, recompute := range []bool{false, true} {
			do(t, func(s *torch.Scope) {
				p := newPolicy(t, s, "../testdata/reference/models/"+name, torch.Float32, func(c *Config) { c.Optim.Recompute = recompute })
				samples := sighted(p.compute.Vision)
				alone := slices.Clone(samples)
				for i := range alone {
					alone[i].Group = int64(i)
				}
				apart := mustPack(t, samples, noLimit).Micros[0] // the third sample has only the first two tokens in common
				if n := apart.Batch.Len(); len(apart.Images) != 4 || n != 2+10+17+9 {
					t.Errorf("%s: %d images, %d rows", name, len(apart.Images), n)
				}
				samples[2].Group = 1
				m := mustPack(t, samples, noLimit).Micros[0]
				if n := m.Batch.Len(); len(m.Images) != 3 || n != 11+1+8+11 {
					t.Errorf("%s: %d images, %d rows", name, len(m.Images), n)
				}
				want, wantGrads := gradients(t, s, p, alone, 24)
				got, grads := gradients(t, s, p, samples, noLimit)
				if diff := cmp.Diff(want.Loss, got.Loss, close64(0, 1e-6)); diff != "" {
					t.Errorf("%s: loss: %s", name, diff)
				}
				for param, g := range grads {
					if d := distance(wantGrads[param], g); d > 1e-5 {
						t.Errorf("%s: the gradient of %s differs by %.2g of its norm", name, param, d)
					}
				}
				var tower float64
				for param, g := range grads {
					if strings.HasSuffix(param, "visual.patch_embed.proj.weight") {
						tower = float64(slices.Max(g))
					}
				}
				if tower == 0 {
					t.Errorf("%s: no gradient reaches the tower", name)
				}
			})
		}
	}
}

// What the trainer computes with an image is what the model computes for one packed by hand.
func TestATokenAfterAnImageIsScoredFromIt(t *testing.T) {
	for _, name := range seeing {
		do(t, func(s *torch.Scope) {
			p := newPolicy(t, s, "../testdata/reference/models/"+name, torch.Float32, nil)
			v := p.compute.Vision
			samples := sighted(v)
			got, err := p.perToken(t.Context(), s, samples)
			if err != nil {
				t.Fatal(err)
			}
			for i, x := range samples {
				var b model.Batch
				var seen []model.Seen
				var placed []model.Placed
				b.AddSequence(x.Tokens.IDs, 0, int32(len(x.Tokens.IDs)))
				for _, m := range x.Tokens.Images {
					embeddings, err := p.compute.See(s, m.Pixels, [][3]int{m.Grid})
					if err != nil {
						t.Fatal(err)
					}
					seen, placed = append(seen, embeddings), append(placed, model.Placed{Start: m.Start, Len: m.Len, Grid: m.Grid})
				}
				b.Place(v.Merge, 0, 0, b.Len(), placed)
				out, err := p.compute.Hidden(s, &b, nil, seen...)
				if err != nil {
					t.Fatal(err)
				}
				n := b.Len() - 1
				h := s.Narrow(out.Hidden, 0, 0, n)
				lp, _ := p.compute.LogP(s, h, x.Tokens.IDs[1:], slices.Repeat([]float32{1}, n))
				for at, logp := range torch.Values[float32](lp) {
					if x.Tokens.Mask[at+1] && logp != got[i][at+1] {
						t.Errorf("%s: sample %d, token %d: %v, alone %v", name, i, at+1, got[i][at+1], logp)
					}
				}
			}
			if a, b := got[0][len(got[2])-1], got[2][len(got[2])-1]; a == b {
				t.Errorf("%s: another image, the same log-prob %v", name, a)
			}
		})
	}
}
