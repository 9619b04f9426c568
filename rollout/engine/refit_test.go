package engine

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// refitInFlight generates n tokens while the weights become those of version 1, and returns the completion and where that was.
func refitInFlight(t *testing.T, e *Engine, name string, prompt []int32, n int) (c rollout.Completion, at int) {
	t.Helper()
	started := make(chan struct{})
	r := request(prompt, n, 0, 0)
	once := sync.OnceFunc(func() { close(started) })
	r.OnToken = func(rollout.Generated) { once() }
	var wg sync.WaitGroup
	wg.Go(func() { c = generate(t, e, r) })
	<-started
	refit(t, e, name, 1)
	wg.Wait()
	for i, g := range c.Tokens {
		if i > 0 && g.Version() < c.Tokens[i-1].Version() {
			t.Fatalf("token %d has version %d, the one before %d", i, g.Version(), c.Tokens[i-1].Version())
		}
		if g.Version() == 0 {
			at = i + 1
		}
	}
	if at == 0 || at == n {
		t.Fatalf("%d of %d tokens are of version 0: the refit was not in flight", at, n)
	}
	return c, at
}

func TestAfterARefitInFlightTokensAreThoseOfTheNewWeights(t *testing.T) {
	for _, d := range dtypes {
		prompt := count(100, 3)
		e := start(t, tiny, tinyConfig(), d, 0)
		c, at := refitInFlight(t, e, tiny, prompt, 150)
		fresh := idle(t, tiny, tinyConfig(), d, 0)
		run(t, fresh)
		refit(t, fresh, tiny, 1)
		rest := generate(t, fresh, request(slices.Concat(prompt, ids(c)[:at]), 150-at, 0, 0))
		c.Tokens = c.Tokens[at:]
		if err := same(rest, c); err != nil {
			t.Errorf("%s: a fresh engine, and after the refit: %v", d, err)
		}
		// The prefix of version 0 is not used again either.
		before := e.Stats()
		if err := same(generate(t, fresh, request(prompt, 5, 0, 0)), generate(t, e, request(prompt, 5, 0, 0))); err != nil {
			t.Errorf("%s: the same prompt: %v", d, err)
		}
		if e.Stats().PrefillRows == before.PrefillRows {
			t.Error("the prompt was not computed at all")
		}
	}
}

func TestRefitKeepGoesOnWithTheCacheButStartsNothingOnIt(t *testing.T) {
	cfg := tinyConfig()
	cfg.RefitKV = RefitKeep
	prompt := count(100, 3)
	e := start(t, tiny, cfg, torch.Float32, 0)
	refitInFlight(t, e, tiny, prompt, 150)
	if s := e.Stats(); s.PrefillRows != 100 {
		t.Errorf("%d rows of prompts, want the 100 before the refit", s.PrefillRows)
	}
	got := generate(t, e, request(prompt, 10, 0, 0))
	if s := e.Stats(); s.PrefillRows != 200 || s.PrefixHits != 0 {
		t.Errorf("the same prompt after the refit: %+v", s)
	}
	fresh := idle(t, tiny, cfg, torch.Float32, 0)
	run(t, fresh)
	refit(t, fresh, tiny, 1)
	if err := same(generate(t, fresh, request(prompt, 10, 0, 0)), got); err != nil {
		t.Error(err)
	}
}

func TestAMissingParameterIsNamedAndTheOldVersionServesOn(t *testing.T) {
	e := start(t, tiny, tinyConfig(), torch.Float32, 0)
	before := generate(t, e, request(count(9, 0), 5, 0, 0))
	do(t, func(s *torch.Scope) error {
		return weights(s, tiny, 1, func(m *model.Model) error {
			params := slices.DeleteFunc(slices.Clone(m.Params()), func(p model.Param) bool { return p.Name == "model.norm.weight" })
			err := e.Load(context.Background(), 1, params)
			if err == nil || !strings.Contains(err.Error(), "model.norm.weight is missing") || !strings.Contains(err.Error(), "version 1") {
				t.Error("the error does not name what is missing:", err)
			}
			return nil
		})
	})
	if err := e.LoadFile(context.Background(), 1, path("llama_mha_bias")); err == nil || !strings.Contains(err.Error(), "version 1") {
		t.Error("the file of another model:", err)
	}
	after := generate(t, e, request(count(9, 0), 5, 0, 0))
	if err := same(before, after); err != nil || after.Tokens[4].Version() != 0 {
		t.Errorf("after the refused weights: %v, version %d", err, after.Tokens[4].Version())
	}
	if err := e.Load(context.Background(), -1, nil); err == nil {
		t.Error("a negative version was taken")
	}
}

// Case W2 of what users reported: after a refit each of the engine's tensors is the given one, the tied head with the embedding, which
// alone already changes the logits.
func TestAfterARefitEveryTensorIsTheGivenOneAndTheTiedHeadToo(t *testing.T) {
	const name = "llama_tied_rope_llama3"
	for _, d := range dtypes {
		e := start(t, name, tinyConfig(), d, 0)
		r := request(count(9, 0), 5, 1, 0)
		before := generate(t, e, r)
		do(t, func(s *torch.Scope) error {
			return weights(s, name, 0, func(m *model.Model) error {
				given := m.Params()
				s.NoGrad(func(s *torch.Scope) torch.Tensor {
					i := slices.IndexFunc(given, func(p model.Param) bool { return p.Name == "model.embed_tokens.weight" })
					// Rows are turned by one: what a row times the old head would be is another token's.
					return s.Copy_(given[i].Tensor, s.Call("aten::roll", given[i].Tensor, []int{1}, []int{0})[0])
				})
				if err := e.Load(context.Background(), 1, given); err != nil {
					return err
				}
				after := generate(t, e, r)
				held := model.New(s, m.Config, d)
				if err := held.CopyFrom(s, given); err != nil {
					return err
				}
				if logp, err := trainer(s, held, r, after); err != nil || same(before, after) == nil || logp[0] != after.Tokens[0].LogP() {
					t.Errorf("%s: log-probs %v, the trainer's %v, before the refit %v; %v", d, after.Tokens, logp, before.Tokens, err)
				}
				var want []string
				for _, p := range held.Params() {
					want = append(want, digest(p))
				}
				return e.load(context.Background(), 2, func(_ *torch.Scope, m *model.Model) error { // the engine's own
					for i, p := range m.Params() {
						if i >= len(want) || digest(p) != want[i] {
							t.Errorf("%s: %s is another tensor than the one given", d, p.Name)
						}
					}
					return nil
				})
			})
		})
	}
}

// digest tells a parameter's name, shape and bits.
func digest(p model.Param) string {
	return fmt.Sprintf("%s %v %x", p.Name, p.Tensor.Shape(), sha256.Sum256(fmt.Append(nil, torch.Values[float32](p.Tensor))))
}

func TestNothingIsServedBeforeTheFirstWeightsNorAfterTheEnd(t *testing.T) {
	e := idle(t, tiny, tinyConfig(), torch.Float32, 0)
	for _, running := range []bool{false, true} {
		stop := func() {}
		if running {
			stop = run(t, e)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		c, err := e.Generate(ctx, request(count(5, 0), 5, 1, 0))
		cancel()
		if err != nil || c.Finish != rollout.FinishCancelled || len(c.Tokens) != 0 {
			t.Errorf("without weights (running: %v): %+v, %v", running, c, err)
		}
		if _, err := e.Generate(ctx, request(count(5, 0), 5, 1, 0)); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("a context that has ended:", err)
		}
		if !running {
			if err := e.Load(ctx, 0, nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Error("Load without Run:", err)
			}
		}
		stop()
	}
	if _, err := e.Generate(context.Background(), request(count(5, 0), 5, 1, 0)); !errors.Is(err, rollout.ErrDead) {
		t.Error("Generate after the end:", err)
	}
	if err := e.Load(context.Background(), 0, nil); !errors.Is(err, rollout.ErrDead) {
		t.Error("Load after the end:", err)
	}
	if err := e.Run(context.Background()); !errors.Is(err, rollout.ErrDead) {
		t.Error("Run after the end:", err)
	}
}

func TestStoppingTheEngineAnswersEveryone(t *testing.T) {
	e := idle(t, tiny, tinyConfig(), torch.Float32, 8)
	stop := run(t, e)
	refit(t, e, tiny, 0)
	var wg sync.WaitGroup
	first := make(chan struct{})
	once := sync.OnceFunc(func() { close(first) })
	for i := range 50 {
		wg.Go(func() {
			r := request(count(20, i), 200, 1, uint64(i))
			r.OnToken = func(rollout.Generated) { once() }
			if c, err := e.Generate(context.Background(), r); err == nil && len(c.Tokens) != 200 || err != nil && !errors.Is(err, rollout.ErrDead) {
				t.Errorf("%d tokens, %v", len(c.Tokens), err)
			}
		})
	}
	<-first
	stop()
	wg.Wait()
}

func TestRequestsUnderCancellationsAndRefits(t *testing.T) { stress(t, 500) }

// stress asks for n completions at once, of prompts that overlap, in a small cache, under random cancellations and refits between two
// sets of weights: what was generated under one version has the tokens that it has alone, bit for bit, and the engine ends idle with no
// page in use and no more memory than before.
func stress(t *testing.T, n int) {
	const pages, longest = 30, 24
	ps, alone := prompts(20), [2][20]rollout.Completion{}
	calm := start(t, tiny, tinyConfig(), torch.BFloat16, 0)
	for v := range alone {
		refit(t, calm, tiny, int32(v))
		for i, p := range ps {
			alone[v][i] = generate(t, calm, request(p, longest, 1, uint64(i)))
		}
	}
	cfg := tinyConfig()
	cfg.MaxRunning = 64
	e := idle(t, tiny, cfg, torch.BFloat16, pages)
	stop := run(t, e)
	var wg sync.WaitGroup
	var finished, cancelled, mixed atomic.Int64
	for i := range n {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			k, n := r.IntN(len(ps)), 1+r.IntN(longest)
			limit := n + 1
			if i%3 == 0 {
				limit = 1 + r.IntN(n)
				time.AfterFunc(time.Duration(r.IntN(1000))*time.Millisecond, cancel)
			}
			var seen []rollout.Generated
			req := request(ps[k], n, 1, uint64(k))
			req.OnToken = func(g rollout.Generated) {
				if seen = append(seen, g); len(seen) >= limit {
					cancel()
				}
			}
			c, err := e.Generate(ctx, req)
			if errors.Is(err, context.Canceled) { // before it began
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			if c.Finish == rollout.FinishCancelled {
				cancelled.Add(1)
			} else if finished.Add(1); len(c.Tokens) != n {
				t.Errorf("request %d of %d tokens got %d, finish %s", i, n, len(c.Tokens), c.Finish)
			}
			if !slices.Equal(seen, c.Tokens) {
				t.Errorf("request %d: OnToken saw %d tokens, the completion has %d", i, len(seen), len(c.Tokens))
			}
			if !slices.IsSortedFunc(c.Tokens, func(a, b rollout.Generated) int { return int(a.Version() - b.Version()) }) {
				t.Errorf("request %d: versions fall", i)
			}
			first := 0 // tokens of the first version
			for first < len(c.Tokens) && c.Tokens[first].Version() == c.Tokens[0].Version() {
				first++
			}
			if first == 0 {
				return
			}
			if first < len(c.Tokens) {
				mixed.Add(1)
			}
			want := alone[c.Tokens[0].Version()%2][k]
			want.Tokens, want.Finish, c.Tokens = want.Tokens[:first], c.Finish, c.Tokens[:first]
			if err := same(want, c); err != nil {
				t.Errorf("request %d alone, and under load: %v", i, err)
			}
		})
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	do(t, func(s *torch.Scope) error {
		return weights(s, tiny, 0, func(even *model.Model) error {
			return weights(s, tiny, 1, func(odd *model.Model) error {
				live := 0
				for v := int32(0); ; v++ {
					if err := e.Load(context.Background(), v, [][]model.Param{even.Params(), odd.Params()}[v%2]); err != nil {
						return err
					}
					if v == 0 {
						live = torch.Live()
					}
					select {
					case <-ended:
						for end := time.Now().Add(5 * time.Second); torch.Live() > live && time.Now().Before(end); {
							time.Sleep(time.Millisecond)
						}
						if now := torch.Live(); now > live {
							return fmt.Errorf("%d tensors at first, %d at the end", live, now)
						}
						return nil
					case <-time.After(50 * time.Millisecond):
					}
				}
			})
		})
	})
	stats := e.Stats()
	for deadline := time.Now().Add(5 * time.Second); stats.Running+stats.Waiting > 0 && time.Now().Before(deadline); stats = e.Stats() {
		time.Sleep(time.Millisecond)
	}
	stop()
	if used := inUse(t, e.sched); stats.Running+stats.Waiting != 0 || used != 0 {
		t.Errorf("%+v; %d pages in use", stats, used)
	}
	t.Logf("%d finished, %d cancelled, %d of several versions, %+v", finished.Load(), cancelled.Load(), mixed.Load(), stats)
	if finished.Load() == 0 || cancelled.Load() == 0 || mixed.Load() == 0 {
		t.Error("nothing finished, was cancelled or saw a refit")
	}
}
