package engine

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// seeing names the models of the reference that have a vision tower.
func seeing(t *testing.T) []string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(path("*"), "preprocessor.json"))
	if len(files) == 0 {
		t.Fatal("no models with images in the reference")
	}
	for i, f := range files {
		files[i] = filepath.Base(filepath.Dir(f))
	}
	return files
}

// withImages is a prompt of the reference that has so many.
func withImages(t *testing.T, name string, n int) rollout.Request {
	t.Helper()
	for _, c := range greedyCases(t, name) {
		if len(c.request.Images) == n {
			return c.request
		}
	}
	t.Fatalf("no prompt with %d images", n)
	return rollout.Request{}
}

// other has the same tokens as r, and other pixels.
func other(r rollout.Request) rollout.Request {
	r.Images = slices.Clone(r.Images)
	r.Images[0].Pixels = slices.Clone(r.Images[0].Pixels)
	slices.Reverse(r.Images[0].Pixels)
	r.Images[0].Digest[0]++
	return r
}

func TestAnImageIsSeenOnceAndOnlyItsOwnTokensAreShared(t *testing.T) {
	for _, name := range seeing(t) {
		t.Run(name, func(t *testing.T) {
			cfg := tinyConfig()
			cfg.MaxRunning, cfg.StepTokens = 2, 3 // the image takes two steps
			e := start(t, name, cfg, torch.Float32, 0)
			r := withImages(t, name, 1)
			first := generate(t, e, r)
			if s := e.Stats(); s.Images != 1 || s.PrefillRows != int64(len(r.IDs)) {
				t.Errorf("a prompt of %d tokens, one image: %+v", len(r.IDs), s)
			}
			if err := same(first, generate(t, e, r)); err != nil {
				t.Error("again:", err)
			}
			if s := e.Stats(); s.Images != 1 || s.PrefixHits != int64(len(r.IDs))-1 {
				t.Errorf("the same again: %+v", s)
			}
			second := generate(t, e, other(r))
			if s := e.Stats(); s.Images != 2 || s.PrefixHits != int64(len(r.IDs)-1+r.Images[0].Start) {
				t.Errorf("another image after the %d tokens before it: %+v", r.Images[0].Start, s)
			}
			fresh := start(t, name, tinyConfig(), torch.Float32, 0)
			if err := same(generate(t, fresh, other(r)), second); err != nil {
				t.Error("alone, and after another image:", err)
			}
			if same(first, second) == nil {
				t.Error("two images gave the same log-probs")
			}
			refit(t, e, name, 1)
			refit(t, fresh, name, 1)
			if err := same(generate(t, fresh, r), generate(t, e, r)); err != nil {
				t.Error("after a refit:", err)
			}
		})
	}
}

func TestLogProbsAfterImagesEqualTheTrainersBitForBit(t *testing.T) {
	for _, name := range seeing(t) {
		for _, d := range dtypes {
			cfg := tinyConfig()
			cfg.MaxRunning, cfg.StepTokens = 2, 3
			r := withImages(t, name, 1)
			r.Sampling.Temperature = 0.7
			c := generate(t, start(t, name, cfg, d, 0), r)
			do(t, func(s *torch.Scope) error {
				m, err := model.Load(s, path(name), d)
				if err != nil {
					return err
				}
				logp, err := trainer(s, m, r, c)
				for i, g := range c.Tokens {
					if err == nil && g.LogP() != logp[i] {
						t.Fatalf("%s %s token %d: log-prob %v in the engine, %v in the trainer", name, d, i, g.LogP(), logp[i])
					}
				}
				return err
			})
		}
	}
}

// A mismatch of placeholders and features is one request's error, and what runs beside it goes on.
func TestMismatchedImagesAreRefusedOneByOne(t *testing.T) {
	for _, name := range seeing(t) {
		e := start(t, name, tinyConfig(), torch.Float32, 0)
		r := withImages(t, name, 1)
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { generate(t, e, r) })
		// The third is cut inside the image.
		n, first := r.Images[0].Len, r.Images[0].Start
		for want, change := range map[string]func(*rollout.Request){
			"none of the request's 0 images":                   func(r *rollout.Request) { r.Images = nil },
			"none of the request's 1 images":                   func(r *rollout.Request) { r.IDs = append(r.IDs, r.IDs[first]) },
			fmt.Sprintf("%d tokens; it has %d of its", n, n-1): func(r *rollout.Request) { r.IDs = r.IDs[:first+n-1] },
			"it has 0 of its":                                  func(r *rollout.Request) { r.Images[0].Start-- },
			fmt.Sprintf("%d of its %d placeholders", n-1, n-1): func(r *rollout.Request) { r.Images[0].Len-- },
			"from token -1 on":                                 func(r *rollout.Request) { r.Images[0].Start = -1 },
			"image 1 stands for":                               func(r *rollout.Request) { r.Images = append(r.Images, r.Images[0]) },
			"the grid [0 0 0]":                                 func(r *rollout.Request) { r.Images[0].Grid = [3]int{} },
			"the grid [1 3 4]":                                 func(r *rollout.Request) { r.Images[0].Grid = [3]int{1, 3, 4} },
			"has 0 numbers":                                    func(r *rollout.Request) { r.Images[0].Pixels = nil },
		} {
			bad := r
			bad.IDs, bad.Images = slices.Clone(r.IDs), slices.Clone(r.Images)
			change(&bad)
			if _, err := e.Generate(context.Background(), bad); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want one that says %q", name, err, want)
			}
		}
		two := withImages(t, name, 2)
		want := generate(t, e, two)
		two.Images = slices.Clone(two.Images)
		two.Images[1].Digest = two.Images[0].Digest // of another size: wrong, but of no harm
		if err := same(want, generate(t, start(t, name, tinyConfig(), torch.Float32, 0), two)); err != nil {
			t.Errorf("%s: two images with one digest: %v", name, err)
		}
		slices.Reverse(two.Images)
		if _, err := e.Generate(context.Background(), two); err == nil || !strings.Contains(err.Error(), "image 1 stands for") {
			t.Errorf("%s: images in another order than their tokens: %v", name, err)
		}
	}
}
