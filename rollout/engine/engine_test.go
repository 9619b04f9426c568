package engine

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// Every family's prompts at once, in whole and in chunks of a few tokens, which end within images.
func TestGreedyTokensEqualTransformersAndTheTrainers(t *testing.T) {
	paths, _ := filepath.Glob(path("*"))
	if len(paths) == 0 {
		t.Fatal("no models in the reference")
	}
	for _, p := range paths {
		name := filepath.Base(p)
		t.Run(name, func(t *testing.T) {
			cases := greedyCases(t, name)
			for _, chunk := range []int{512, len(cases) + 2} {
				cfg := tinyConfig()
				cfg.MaxRunning, cfg.StepTokens = len(cases), chunk
				e := start(t, name, cfg, torch.Float32, 0)
				out := make([]rollout.Completion, len(cases))
				var wg sync.WaitGroup
				for i, c := range cases {
					wg.Go(func() { out[i] = generate(t, e, c.request) })
				}
				wg.Wait()
				do(t, func(s *torch.Scope) error {
					m, err := model.Load(s, p, torch.Float32)
					if err != nil {
						return err
					}
					for i, c := range cases {
						c.compare(t, out[i])
						logp, err := trainer(s, m, c.request, out[i])
						if err != nil {
							return err
						}
						for j, g := range out[i].Tokens {
							if g.LogP() != logp[j] {
								t.Fatalf("row %d token %d: log-prob %v in the engine, %v in the trainer", i, j, g.LogP(), logp[j])
							}
						}
					}
					return nil
				})
			}
		})
	}
}

// Of a mixture's rows each expert has others beside it in the engine than in the trainer.
func TestAMixturesLogProbsEqualTheTrainersBitForBitInBFloat16(t *testing.T) {
	for _, name := range sparse(t) {
		cfg := tinyConfig()
		cfg.MaxRunning, cfg.StepTokens = 8, 24
		e := start(t, name, cfg, torch.BFloat16, 0)
		var reqs []rollout.Request
		for i, p := range prompts(12) {
			reqs = append(reqs, request(p, 20, 0.7, uint64(i)))
		}
		out := make([]rollout.Completion, len(reqs))
		var wg sync.WaitGroup
		for i, r := range reqs {
			wg.Go(func() { out[i] = generate(t, e, r) })
		}
		wg.Wait()
		do(t, func(s *torch.Scope) error {
			m, err := model.Load(s, path(name), torch.BFloat16)
			for i, c := range out {
				if err != nil {
					return err
				}
				var logp []float32
				if logp, err = trainer(s, m, reqs[i], c); err != nil {
					return err
				}
				for j, g := range c.Tokens {
					if g.LogP() != logp[j] {
						t.Fatalf("%s request %d token %d: log-prob %v in the engine, %v in the trainer", name, i, j, g.LogP(), logp[j])
					}
				}
			}
			return err
		})
	}
}

// The same requests alone, and together in random order: tokens and log-probs agree bit for bit; and so do the log-probs that
// the trainer finds for those tokens.
func TestResultsDependOnNothingElseAndEqualTheTrainersBitForBit(t *testing.T) {
	for _, d := range dtypes {
		t.Run(d.String(), func(t *testing.T) {
			const n = 65
			var reqs []rollout.Request
			for i, p := range prompts(n) {
				reqs = append(reqs, request(p, 1+i%40, []float32{1, 0.7, 1.3}[i%3], uint64(i)))
			}
			alone := make([]rollout.Completion, n)
			e := start(t, tiny, tinyConfig(), d, 0)
			for i, r := range reqs {
				alone[i] = generate(t, e, r)
			}
			for _, chunk := range []int{512, 64} {
				cfg := tinyConfig()
				cfg.MaxRunning, cfg.StepTokens = 64, chunk
				e := start(t, tiny, cfg, d, 0)
				e.SetThreads(2)
				var wg sync.WaitGroup
				for _, i := range rand.Perm(n) {
					wg.Go(func() {
						if err := same(alone[i], generate(t, e, reqs[i])); err != nil {
							t.Errorf("request %d alone, and among others: %v", i, err)
						}
					})
				}
				wg.Wait()
			}
			do(t, func(s *torch.Scope) error {
				m, err := model.Load(s, path(tiny), d)
				if err != nil {
					return err
				}
				for i, c := range alone {
					logp, err := trainer(s, m, reqs[i], c)
					if err != nil {
						return err
					}
					for j, g := range c.Tokens {
						if g.LogP() != logp[j] || !g.Exact() {
							t.Fatalf("request %d token %d: log-prob %v in the engine, %v in the trainer", i, j, g.LogP(), logp[j])
						}
					}
				}
				return nil
			})
		})
	}
}

func TestAGroupSharesItsPromptAndTheNextTurnIsADelta(t *testing.T) {
	e := idle(t, tiny, tinyConfig(), torch.Float32, 64)
	prompt := slices.Concat(prompts(14)[13], prompts(4)[3])
	out := make([]rollout.Completion, 16)
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() { out[i] = generate(t, e, request(prompt, 12, 1, uint64(i))) })
	}
	serveQueued(t, e, tiny, len(out))
	wg.Wait()
	if s := e.Stats(); s.PrefillRows != int64(len(prompt)) || s.PrefixHits != int64(15*len(prompt)) || s.Generated != 16*12 {
		t.Errorf("a prompt of %d tokens for 16: %+v", len(prompt), s)
	}
	if same(out[0], out[1]) == nil {
		t.Error("two seeds gave the same tokens")
	}
	before := e.Stats()
	turn := slices.Concat(prompt, ids(out[5]), []int32{3, 1, 4})
	next := generate(t, e, request(turn, 8, 1, 1))
	if got := e.Stats().PrefillRows - before.PrefillRows; got != 4 {
		t.Errorf("the next turn computed %d rows, want its 3 tokens and the last one generated", got)
	}
	if err := same(generate(t, start(t, tiny, tinyConfig(), torch.Float32, 0), request(turn, 8, 1, 1)), next); err != nil {
		t.Error("from an empty cache, and from the last turn's:", err)
	}
}

func TestPreemptionLosesAndRepeatsNothing(t *testing.T) {
	for _, d := range dtypes {
		roomy, tight := start(t, tiny, tinyConfig(), d, 0), start(t, tiny, tinyConfig(), d, 5)
		var wg sync.WaitGroup
		for i, p := range prompts(24) {
			wg.Go(func() {
				r := request(p, 100, 1, uint64(i))
				if err := same(generate(t, roomy, r), generate(t, tight, r)); err != nil {
					t.Errorf("%s request %d: large cache, and small: %v", d, i, err)
				}
			})
		}
		wg.Wait()
		if s := tight.Stats(); s.Preemptions == 0 {
			t.Errorf("nothing was preempted: %+v", s)
		}
		if s := roomy.Stats(); s.Preemptions != 0 {
			t.Errorf("preemption in a large cache: %+v", s)
		}
	}
}

func TestTopLogProbsAndShapedSamplingAgreeWithThePlainPath(t *testing.T) {
	e := start(t, tiny, tinyConfig(), torch.Float32, 0)
	r := request(count(20, 5), 10, 0, 0)
	plain := generate(t, e, r)
	r.Sampling.TopLogP = 3
	with := generate(t, e, r)
	if err := same(plain, with); err != nil || len(with.Top) != len(with.Tokens) {
		t.Fatal("with top log-probs:", err)
	}
	for i, top := range with.Top {
		g := with.Tokens[i]
		if len(top) != 3 || top[0].ID != g.ID() || math.Abs(float64(top[0].LogP-g.LogP())) > 1e-5 || top[1].LogP > top[0].LogP {
			t.Errorf("token %d is %d with %v, the likeliest are %v", i, g.ID(), g.LogP(), top)
		}
	}
	r.Sampling = rollout.Sampling{Temperature: 0.8, TopK: 1, MaxTokens: 10, IgnoreEOS: true}
	c := generate(t, e, r)
	if diff := cmp.Diff(ids(plain), ids(c)); diff != "" {
		t.Error("top-k 1 is greedy:", diff)
	}
	for _, g := range c.Tokens {
		if g.Exact() || g.Temp() != 0.8 {
			t.Error("a truncated token counts as exact")
		}
	}
	r.Sampling = rollout.Sampling{MaxTokens: 10, IgnoreEOS: true, Bias: map[int32]float32{7: 1000}}
	if diff := cmp.Diff(slices.Repeat([]int32{7}, 10), ids(generate(t, e, r))); diff != "" {
		t.Error("a large bias:", diff)
	}
}
