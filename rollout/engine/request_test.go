package engine

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// stopAfter is a matcher that stops at its n-th token and says that the last two are the stop.
type stopAfter struct{ n int }

func (m *stopAfter) Next(int32) bool { m.n--; return m.n == 0 }
func (m *stopAfter) Stops() int      { return 2 }

type panics struct{}

func (panics) Next(int32) bool { panic("a bad matcher") }

func TestStops(t *testing.T) {
	e := start(t, tiny, tinyConfig(), torch.Float32, 0)
	r := request(count(20, 5), 30, 1, 4)
	all := generate(t, e, r)
	at := 0 // the first token that did not come before, after some
	for at = 5; ; at++ {
		id, seen := all.Tokens[at].ID(), false
		for _, g := range all.Tokens[:at] {
			seen = seen || g.ID() == id
		}
		if !seen {
			break
		}
	}
	stop := all.Tokens[at].ID()
	for _, tc := range []struct {
		name    string
		change  func(*rollout.Request)
		tokens  int
		numStop int
		finish  rollout.Finish
	}{
		{"stop id", func(r *rollout.Request) { r.Sampling.StopIDs, r.Sampling.IgnoreEOS = []int32{stop}, false }, at + 1, 1, rollout.FinishStop},
		{"ignored", func(r *rollout.Request) { r.Sampling.StopIDs = []int32{stop} }, 30, 0, rollout.FinishLength},
		{"stop string", func(r *rollout.Request) { r.Stop = &stopAfter{4} }, 4, 2, rollout.FinishStop},
		{"stop at the last token", func(r *rollout.Request) { r.Stop = &stopAfter{30} }, 30, 2, rollout.FinishStop},
		{"length", func(r *rollout.Request) { r.Sampling.MaxTokens = 3 }, 3, 0, rollout.FinishLength},
	} {
		q := r
		tc.change(&q)
		c := generate(t, e, q)
		if len(c.Tokens) != tc.tokens || c.NumStop != tc.numStop || c.Finish != tc.finish {
			t.Errorf("%s: %d tokens, %d of the stop, %s", tc.name, len(c.Tokens), c.NumStop, c.Finish)
		}
		if diff := cmp.Diff(ids(all)[:len(c.Tokens)], ids(c)); diff != "" {
			t.Errorf("%s: other tokens: %s", tc.name, diff)
		}
		if c.Prefix != q.Prefix() {
			t.Errorf("%s: another prefix", tc.name)
		}
	}
	r.Stop = panics{}
	if _, err := e.Generate(context.Background(), r); err == nil || !strings.Contains(err.Error(), "a bad matcher") {
		t.Error("a matcher that panics:", err)
	}
	generate(t, e, request(count(3, 0), 3, 1, 0)) // and the engine goes on
}

// Case T7 of what users reported: a completion of its stop alone is one, with a log-prob to train on.
func TestACompletionMayBeItsStopAlone(t *testing.T) {
	e := start(t, tiny, tinyConfig(), torch.Float32, 0)
	r := request([]int32{3, 4}, 8, 1, 0)
	first := generate(t, e, r).Tokens[0]
	r.Sampling.StopIDs, r.Sampling.IgnoreEOS = []int32{first.ID()}, false
	c := generate(t, e, r)
	if len(c.Tokens) != 1 || c.Tokens[0] != first || c.Finish != rollout.FinishStop || c.NumStop != 1 || !first.Exact() || first.LogP() >= 0 {
		t.Errorf("%+v, want %+v alone", c, first)
	}
}

// Case L12 of what users reported: whatever shapes the sampling, the log-prob is that of softmax(logits/T), as the trainer finds it, and
// the token is marked, so that a trajectory does not train on it.
func TestShapedTokensKeepTheWholeDistributionsLogProbAndAreNotTrainedOn(t *testing.T) {
	e := start(t, tiny, tinyConfig(), torch.Float32, 0)
	do(t, func(s *torch.Scope) error {
		m, err := model.Load(s, path(tiny), torch.Float32)
		if err != nil {
			return err
		}
		for i, sampling := range []rollout.Sampling{
			{Temperature: 0.5, TopK: 5}, {Temperature: 1.5, TopP: 0.5}, {Temperature: 1, MinP: 0.2}, {Temperature: 0.7, Penalty: 1.3},
			{Temperature: 1, Bias: map[int32]float32{7: 3}}, {}, {Penalty: 1.3},
		} {
			var tr rollout.Trajectory
			if err := tr.Context(count(10, i)); err != nil {
				return err
			}
			sampling.MaxTokens, sampling.IgnoreEOS = 12, true
			r := tr.Request(sampling, nil)
			c := generate(t, e, r)
			logp, err := trainer(s, m, r, c)
			if err != nil {
				return err
			}
			for j, g := range c.Tokens {
				if g.Exact() || math.Abs(float64(g.LogP()-logp[j])) > 1e-5 {
					t.Errorf("%+v token %d: log-prob %v (exact: %v), want %v", sampling, j, g.LogP(), g.Exact(), logp[j])
				}
			}
			if err := tr.Append(c); err != nil || tr.NumTrained() != 0 || tr.Len() != 22 {
				t.Errorf("%+v: %d of %d tokens are trained on; %v", sampling, tr.NumTrained(), tr.Len(), err)
			}
		}
		return nil
	})
}

func TestTheModelsEndOfTextStopsToo(t *testing.T) {
	l := limits{Config: model.Config{Vocab: 20, Context: 100, EOS: []int32{9}}, pages: 10}
	q, err := newSequence(rollout.Request{IDs: []int32{1}, Sampling: rollout.Sampling{StopIDs: []int32{8}}}, l)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int32{8, 9}, q.stops); diff != "" {
		t.Error(diff)
	}
}

// Case T6 of what users reported: a text ends at what config.json names, at what generation_config.json names, and at what the request
// names, whichever of them knows the id.
func TestEveryFileThatKnowsAnEndOfTextIsHeard(t *testing.T) {
	r := request(count(10, 0), 20, 0, 0)
	end := generate(t, start(t, tiny, tinyConfig(), torch.Float32, 0), r).Tokens[0].ID()
	config, err := os.ReadFile(filepath.Join(path(tiny), "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	r.Sampling.IgnoreEOS = false
	for _, tc := range []struct{ config, generation, request int32 }{{end, 318, 319}, {318, end, 319}, {318, 319, end}} {
		dir, keys := t.TempDir(), map[string]any{}
		if err := json.Unmarshal(config, &keys); err != nil {
			t.Fatal(err)
		}
		keys["eos_token_id"] = tc.config
		for name, keys := range map[string]any{"config.json": keys, "generation_config.json": map[string]any{"eos_token_id": tc.generation}} {
			data, err := json.Marshal(keys)
			if err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), data, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		weights, err := filepath.Abs(filepath.Join(path(tiny), "model.safetensors"))
		if err = errors.Join(err, os.Symlink(weights, filepath.Join(dir, "model.safetensors"))); err != nil {
			t.Fatal(err)
		}
		m, err := model.PeekConfig(dir)
		if err != nil {
			t.Fatal(err)
		}
		e, err := New(tinyConfig(), m, torch.Float32, 1)
		if err != nil {
			t.Fatal(err)
		}
		run(t, e)
		if err := e.LoadFile(t.Context(), 0, dir); err != nil {
			t.Fatal(err)
		}
		r.Sampling.StopIDs = []int32{tc.request}
		if c := generate(t, e, r); len(c.Tokens) != 1 || c.Tokens[0].ID() != end || c.Finish != rollout.FinishStop {
			t.Errorf("%+v: %d tokens, %s; want %d alone", tc, len(c.Tokens), c.Finish, end)
		}
	}
}

// Case P6 of what users reported.
func TestMaxTokensAreCutToTheRoomInTheContext(t *testing.T) {
	cfg := tinyConfig()
	cfg.Context = 32
	e := start(t, tiny, cfg, torch.Float32, 0)
	for _, tc := range []struct{ prompt, max, want int }{{30, 8, 2}, {30, 1, 1}, {31, 0, 1}, {32, 8, 0}, {33, 8, 0}, {10, 0, 22}} {
		c := generate(t, e, request(count(tc.prompt, 0), tc.max, 1, 0))
		if len(c.Tokens) != tc.want || c.Finish != rollout.FinishLength {
			t.Errorf("prompt of %d, max %d: %d tokens, %s; want %d", tc.prompt, tc.max, len(c.Tokens), c.Finish, tc.want)
		}
	}
}

func TestBadRequestsAreErrorsThatSayWhatIsWrong(t *testing.T) {
	e := start(t, tiny, tinyConfig(), torch.Float32, 2)
	nan := float32(math.NaN())
	for want, r := range map[string]rollout.Request{
		"no tokens":                      {},
		"token 1 of the request, 320":    {IDs: []int32{1, 320}},
		"token 0 of the request, -1":     {IDs: []int32{-1}},
		"2 images":                       {IDs: []int32{1}, Images: make([]rollout.Image, 2)},
		"temperature = NaN":              {IDs: []int32{1}, Sampling: rollout.Sampling{Temperature: nan}},
		"temperature = -1":               {IDs: []int32{1}, Sampling: rollout.Sampling{Temperature: -1}},
		"temperature = 1e-40":            {IDs: []int32{1}, Sampling: rollout.Sampling{Temperature: 1e-40}},
		"top_p = 1.5":                    {IDs: []int32{1}, Sampling: rollout.Sampling{TopP: 1.5}},
		"top_k = -1":                     {IDs: []int32{1}, Sampling: rollout.Sampling{TopK: -1}},
		"max_tokens = -2":                {IDs: []int32{1}, Sampling: rollout.Sampling{MaxTokens: -2}},
		"number of top log-probs = 1000": {IDs: []int32{1}, Sampling: rollout.Sampling{TopLogP: 1000}},
		"bias 1 of token 400":            {IDs: []int32{1}, Sampling: rollout.Sampling{Bias: map[int32]float32{400: 1}}},
		"a prompt of 100 tokens and 30 new ones can never fit the cache of 128 tokens": request(count(100, 0), 30, 1, 0),
	} {
		if _, err := e.Generate(context.Background(), r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	if c := generate(t, e, request(count(100, 0), 29, 1, 0)); len(c.Tokens) != 29 {
		t.Error("what just fits is refused")
	}
}

func TestBadConfigsAreErrorsThatSayWhatIsWrong(t *testing.T) {
	m, err := model.PeekConfig(path(tiny))
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"cache_mb = 0":            func(c *Config) { c.CacheMB = 0 },
		"max_running = -1":        func(c *Config) { c.MaxRunning = -1 },
		"step_tokens = 100: must": func(c *Config) { c.StepTokens = 100 },
		"context = -1":            func(c *Config) { c.Context = -1 },
		"the model's is 256":      func(c *Config) { c.Context = 257 },
		`refit_kv = "discard"`:    func(c *Config) { c.RefitKV = "discard" },
	} {
		c := DefaultConfig()
		change(&c)
		if _, err := New(c, m, torch.Float32, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	m.Layers, m.HeadDim = 1000, 256
	c := DefaultConfig()
	c.CacheMB = 10
	if _, err := New(c, m, torch.Float32, 1); err == nil || !strings.Contains(err.Error(), "raise cache_mb to 250") {
		t.Error("a cache below one page:", err)
	}
	if _, err := New(DefaultConfig(), m, torch.Float32, 0); err == nil {
		t.Error("0 threads")
	}
}
