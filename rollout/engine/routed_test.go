package engine

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// sparse names the models of the reference that have experts.
func sparse(t *testing.T) (names []string) {
	t.Helper()
	paths, _ := filepath.Glob(path("*"))
	for _, p := range paths {
		if c, err := model.PeekConfig(p); err != nil {
			t.Fatal(err)
		} else if c.Experts > 0 {
			names = append(names, filepath.Base(p))
		}
	}
	if len(names) < 4 {
		t.Fatalf("the reference has experts in %v only", names)
	}
	return names
}

// choices are what the trainer's routers choose for ids, the whole sequence at once, under the weights of version v.
func choices(t *testing.T, name string, v int32, ids []int32) (r rollout.Routed) {
	t.Helper()
	do(t, func(s *torch.Scope) error {
		return weights(s, name, v, func(m *model.Model) (err error) {
			s.NoGrad(func(s *torch.Scope) torch.Tensor {
				b := model.Batch{Routing: &model.Routing{}}
				b.AddSequence(ids, 0, int32(len(ids)))
				_, err = m.Hidden(s, &b, nil)
				r = flat(b.Routing.Experts, m.Chosen, len(ids))
				return torch.Tensor{}
			})
			return err
		})
	})
	return r
}

// flat puts the choices of n rows, by layer, as Routed has them.
func flat(layers [][]int64, k, n int) rollout.Routed {
	r := rollout.Routed{Layers: len(layers), K: k}
	for i := range n {
		for _, l := range layers {
			for _, e := range l[i*k : (i+1)*k] {
				r.Experts = append(r.Experts, uint16(e))
			}
		}
	}
	return r
}

// routedCases are the right-padded prompts of the reference, and what the routers of transformers choose for them.
func routedCases(t *testing.T, name string) (prompts [][]int32, want []rollout.Routed) {
	t.Helper()
	f, err := torch.OpenSafeTensors(filepath.Join(path(name), "ref.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, width, in := entry[int32](t, f, "right.input_ids")
	_, _, mask := entry[int32](t, f, "right.attention_mask")
	for i := range rows {
		n := 0
		for n < width && mask[i*width+n] != 0 {
			n++
		}
		var layers [][]int64
		k := 0
		for l := 0; ; l++ {
			label := fmt.Sprintf("right.router.%d.indices", l)
			if _, ok := f.Lookup(label); !ok {
				break
			}
			_, columns, chosen := entry[int64](t, f, label)
			k = columns / width
			layers = append(layers, chosen[i*columns:(i+1)*columns])
		}
		prompts, want = append(prompts, in[i*width:i*width+n]), append(want, flat(layers, k, n))
	}
	return prompts, want
}

// expectRouted compares c's experts with those that the trainer chooses for the prompt and the tokens but the last.
func expectRouted(t *testing.T, name string, prompt []int32, c rollout.Completion) {
	t.Helper()
	all := slices.Concat(prompt, ids(c))
	if diff := cmp.Diff(choices(t, name, 0, all[:len(all)-1]), c.Routed); diff != "" {
		t.Errorf("%s: other experts than the trainer's for %d tokens after %d: %s", name, len(c.Tokens), len(prompt), diff)
	}
}

// In whole and in chunks of a few tokens, all at once; in a cache so small that sequences give way to each other; and for each the next
// turn, which finds the experts of the last one beside its keys and values.
func TestRoutedExpertsEqualTransformersAndTheTrainers(t *testing.T) {
	for _, name := range sparse(t) {
		t.Run(name, func(t *testing.T) {
			prompts, want := routedCases(t, name)
			for _, tc := range []struct{ pages, chunk, tokens int }{{0, len(prompts) + 2, 20}, {5, 512, 130}} {
				cfg := tinyConfig()
				cfg.MaxRunning, cfg.StepTokens = len(prompts), tc.chunk
				e := idle(t, name, cfg, torch.Float32, tc.pages)
				var wg sync.WaitGroup
				for i, p := range prompts {
					wg.Go(func() {
						c := generate(t, e, request(p, tc.tokens, 1, uint64(i)))
						expectRouted(t, name, p, c)
						turn := slices.Concat(p, ids(c), []int32{5})
						expectRouted(t, name, turn, generate(t, e, request(turn, 3, 0, 0)))
						c.Routed.Experts = c.Routed.Experts[:len(want[i].Experts)]
						if diff := cmp.Diff(want[i], c.Routed); diff != "" {
							t.Errorf("%+v prompt %d: transformers chooses other experts: %s", tc, i, diff)
						}
					})
				}
				serveQueued(t, e, name, len(prompts))
				wg.Wait()
				if s := e.Stats(); s.Preemptions == 0 && (tc.pages > 0 || s.PrefixHits == 0) {
					t.Errorf("%+v: %+v", tc, s)
				}
			}
		})
	}
}

// Whatever a refit does to the cache, a row is of the pass that the next token was drawn from: that token's log-prob and the row have one
// policy version. The prompt's rows are of the first token's.
func TestARefitLeavesTheExpertsThatTokensWereDrawnWith(t *testing.T) {
	const name, n = "mixtral", 150
	prompt := count(40, 3)
	for _, mode := range []string{RefitRecompute, RefitKeep} {
		cfg := tinyConfig()
		cfg.RefitKV = mode
		e := start(t, name, cfg, torch.Float32, 0)
		c, at := refitInFlight(t, e, name, prompt, n)
		all := slices.Concat(prompt, ids(c))
		before, after := choices(t, name, 0, all[:len(all)-1]), choices(t, name, 1, all[:len(all)-1])
		row, split := before.Layers*before.K, len(prompt)+at-1
		if slices.Equal(before.Experts[:split*row], after.Experts[:split*row]) {
			t.Fatal("the two versions choose the same experts: the test says nothing")
		}
		want := slices.Concat(before.Experts[:split*row], after.Experts[split*row:])
		got := c.Routed.Experts
		if mode == RefitKeep { // which other computation has
			want, got = want[:split*row], got[:min(split*row, len(got))]
		}
		if diff := cmp.Diff(want, got); diff != "" || len(c.Routed.Experts) != len(before.Experts) {
			t.Errorf("%s, %d of %d tokens before the refit: %d experts, %s", mode, at, n, len(c.Routed.Experts), diff)
		}
		next := request(all, 1, 0, 0) // the new version's alone
		if diff := cmp.Diff(choices(t, name, 1, all), generate(t, e, next).Routed); diff != "" {
			t.Errorf("%s, a request after the refit: %s", mode, diff)
		}
	}
}

func TestTheCacheBudgetCountsExperts(t *testing.T) {
	m := model.Config{Layers: 2, KVHeads: 1, HeadDim: 1, Context: 10}
	cfg := DefaultConfig()
	cfg.CacheMB = 1
	for want, moe := range map[int]model.MoE{1024: {}, 819: {Chosen: 2, Layers: []bool{false, true}}} { // 16 and 20 bytes a token
		m.MoE = moe
		if l, err := cfg.limits(m, torch.Float32); err != nil || l.pages != want {
			t.Errorf("%+v: %d pages, want %d; %v", moe, l.pages, want, err)
		}
	}
}

func TestCancelledRequestsHaveTheirExpertsAndDenseModelsNone(t *testing.T) {
	const name = "olmoe"
	e := start(t, name, tinyConfig(), torch.Float32, 0)
	ctx, cancel := context.WithCancel(context.Background())
	r := request(count(20, 3), 200, 1, 0)
	r.OnToken = func(rollout.Generated) { cancel() }
	c, err := e.Generate(ctx, r)
	if err != nil || c.Finish != rollout.FinishCancelled || len(c.Tokens) == 0 {
		t.Fatal(c.Finish, len(c.Tokens), err)
	}
	expectRouted(t, name, r.IDs, c)
	for what, c := range map[string]rollout.Completion{
		"no room":       generate(t, e, request(count(256, 0), 1, 1, 0)),
		"a dense model": generate(t, start(t, tiny, tinyConfig(), torch.Float32, 0), request(count(20, 0), 5, 1, 0)),
	} {
		if diff := cmp.Diff(rollout.Routed{}, c.Routed); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
}

// Case X1 of what users reported: two turns with a delta between them have one row a token, each of its own pass, and none is missing at
// the border; a turn that a refit precedes leaves the rows of the turns before.
func TestTheTrajectoryHasOneRowOfExpertsAToken(t *testing.T) {
	const name = "qwen3_moe_norm"
	e := start(t, name, tinyConfig(), torch.Float32, 0)
	var tr rollout.Trajectory
	turn := func(delta ...int32) {
		t.Helper()
		if err := tr.Context(delta); err != nil {
			t.Fatal(err)
		}
		if err := tr.Append(generate(t, e, tr.Request(request(nil, 2, 1, 7).Sampling, nil))); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(versions ...int32) {
		t.Helper()
		k := tr.Tokens()
		var want rollout.Routed
		for i, v := range versions {
			r := choices(t, name, v, k.IDs)
			want.Layers, want.K = r.Layers, r.K
			want.Experts = append(want.Experts, r.Experts[i*r.Layers*r.K:(i+1)*r.Layers*r.K]...)
		}
		unknown := slices.Repeat([]uint16{rollout.UnknownExpert}, want.Layers*want.K)
		want.Experts = append(want.Experts, unknown...)
		if diff := cmp.Diff(want, k.Routed); diff != "" {
			t.Error(diff)
		}
	}
	turn(1, 2, 3)
	expect(0, 0, 0, 0)
	turn(4)
	expect(0, 0, 0, 0, 0, 0, 0)
	refit(t, e, name, 1)
	turn(5, 6)
	expect(0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1)
}
