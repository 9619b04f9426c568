package engine

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if n := torch.Live(); n != 0 {
		println("tensors still alive after all tests:", n)
		code = 1
	}
	if err := goleak.Find(); err != nil {
		println(err.Error())
		code = 1
	}
	os.Exit(code)
}

const tiny = "llama_untied_gqa"

var dtypes = []torch.DType{torch.Float32, torch.BFloat16}

func path(name string) string { return filepath.Join(reference, "models", name) }

func do(t *testing.T, f func(s *torch.Scope) error) {
	t.Helper()
	if err := torch.Do(1, f); err != nil {
		t.Fatal(err)
	}
}

// tinyConfig is for the tiny models: their caches need not be large.
func tinyConfig() Config {
	c := DefaultConfig()
	c.CacheMB = 32
	return c
}

// idle makes an engine that does not run; pages above 0 replaces the size of its cache.
func idle(t *testing.T, name string, cfg Config, d torch.DType, pages int) *Engine {
	t.Helper()
	m, err := model.PeekConfig(path(name))
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(cfg, m, d, 1)
	if err != nil {
		t.Fatal(err)
	}
	if pages > 0 {
		e.limits.pages = pages
		e.sched = newScheduler(pages, cfg.MaxRunning, cfg.StepTokens)
	}
	return e
}

// run runs e until the test ends, or until the function that it returns is called.
func run(t *testing.T, e *Engine) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	stopped := false
	stop = func() {
		cancel()
		if !stopped {
			stopped = true
			if err := <-ended; err != nil {
				t.Error("Run:", err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

// start runs an engine that serves the named model as version 0.
func start(t *testing.T, name string, cfg Config, d torch.DType, pages int) *Engine {
	t.Helper()
	e := idle(t, name, cfg, d, pages)
	run(t, e)
	refit(t, e, name, 0)
	return e
}

// serveQueued runs e, with the named model as version 0, once n requests wait.
func serveQueued(t *testing.T, e *Engine, name string, n int) {
	t.Helper()
	for queued := 0; queued < n; {
		e.mu.Lock()
		queued = len(e.inbox.requests)
		e.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	run(t, e)
	refit(t, e, name, 0)
}

// weights calls f with the named model's float32 weights, as policy version v has them: other ones for each v.
func weights(s *torch.Scope, name string, v int32, f func(*model.Model) error) error {
	m, err := model.Load(s, path(name), torch.Float32)
	if err != nil {
		return err
	}
	s.NoGrad(func(s *torch.Scope) torch.Tensor {
		for _, p := range m.Params() {
			s.Copy_(p.Tensor, s.MulScalar(p.Tensor, 1+0.05*float64(v)))
		}
		return torch.Tensor{}
	})
	return f(m)
}

func refit(t *testing.T, e *Engine, name string, v int32) {
	t.Helper()
	do(t, func(s *torch.Scope) error {
		return weights(s, name, v, func(m *model.Model) error { return e.Load(context.Background(), v, m.Params()) })
	})
}

func generate(t *testing.T, e *Engine, r rollout.Request) rollout.Completion {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := e.Generate(ctx, r)
	if err != nil || c.Finish == rollout.FinishCancelled {
		t.Fatal(c.Finish, err)
	}
	return c
}

func request(ids []int32, max int, temperature float32, seed uint64) rollout.Request {
	return rollout.Request{IDs: ids, Sampling: rollout.Sampling{Temperature: temperature, MaxTokens: max, Seed: seed, IgnoreEOS: true}}
}

func ids(c rollout.Completion) []int32 {
	out := make([]int32, len(c.Tokens))
	for i, g := range c.Tokens {
		out[i] = g.ID()
	}
	return out
}

// same tells whether two completions agree bit for bit, but for versions.
func same(a, b rollout.Completion) error {
	if len(a.Tokens) != len(b.Tokens) || a.Finish != b.Finish {
		return fmt.Errorf("%d tokens (%s), and %d (%s)", len(a.Tokens), a.Finish, len(b.Tokens), b.Finish)
	}
	for i, g := range a.Tokens {
		if h := b.Tokens[i]; g.ID() != h.ID() || g.LogP() != h.LogP() {
			return fmt.Errorf("token %d is %d with log-prob %v, and %d with %v", i, g.ID(), g.LogP(), h.ID(), h.LogP())
		}
	}
	return nil
}

// entry reads a tensor of the reference as a matrix.
func entry[T torch.Number](t *testing.T, f *torch.SafeTensors, name string) (rows, columns int, values []T) {
	t.Helper()
	x, ok := f.Lookup(name)
	if !ok || len(x.Shape) < 2 {
		t.Fatalf("no matrix %s in the reference", name)
	}
	do(t, func(s *torch.Scope) error {
		m := s.Empty(x.DType, x.Shape...)
		torch.WriteBytes(m, x.DType, unsafe.Pointer(unsafe.SliceData(x.Data)), m.Numel())
		values = torch.Values[T](m)
		return nil
	})
	return x.Shape[0], len(values) / x.Shape[0], values
}

func prompts(n int) [][]int32 {
	out := make([][]int32, n)
	for i := range out {
		out[i] = count(1+(i*37)%120, i)
		for j := range out[i] {
			out[i][j] = out[i][j] * 7 % 320
		}
	}
	return out
}

// trainer gives the log-probs that the trainer's forward pass finds for a completion's tokens: the whole sequence at once, no cache.
func trainer(s *torch.Scope, m *model.Model, r rollout.Request, c rollout.Completion) (logp []float32, err error) {
	all := slices.Concat(r.IDs, ids(c))
	n := len(c.Tokens)
	s.NoGrad(func(s *torch.Scope) torch.Tensor {
		var b model.Batch
		b.AddSequence(all, 0, int32(len(all)))
		var images []model.Placed
		var seen []model.Seen
		for _, i := range r.Images {
			x, e := m.See(s, i.Pixels, [][3]int{i.Grid})
			if err = e; err != nil {
				return torch.Tensor{}
			}
			images, seen = append(images, model.Placed{Start: i.Start, Len: i.Len, Grid: i.Grid}), append(seen, x)
		}
		if len(images) > 0 {
			b.Place(m.Vision.Merge, 0, 0, len(all), images)
		}
		var out model.Output
		if out, err = m.Hidden(s, &b, nil, seen...); err != nil {
			return torch.Tensor{}
		}
		lp, _ := m.LogP(s, s.Narrow(out.Hidden, 0, len(r.IDs)-1, n), ids(c), slices.Repeat([]float32{inverse(r.Sampling)}, n))
		logp = torch.Values[float32](lp)
		return torch.Tensor{}
	})
	return logp, err
}

// greedy is a prompt of the reference and what transformers makes of it.
type greedy struct {
	request      rollout.Request
	ids          []int32
	logp, margin []float32
}

func greedyCases(t *testing.T, name string) []greedy {
	t.Helper()
	f, err := torch.OpenSafeTensors(filepath.Join(path(name), "ref.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, width, in := entry[int32](t, f, "gen.input_ids")
	_, _, mask := entry[int32](t, f, "gen.attention_mask")
	_, n, tokens := entry[int32](t, f, "gen.new_ids")
	_, _, logp := entry[float32](t, f, "gen.log_probs")
	_, _, margin := entry[float32](t, f, "gen.margin")
	images := pictured(t, name, f)
	cases := make([]greedy, rows)
	for i := range cases {
		var prompt []int32
		for j := i * width; j < (i+1)*width; j++ {
			if mask[j] != 0 {
				prompt = append(prompt, in[j])
			}
		}
		r := request(prompt, n, 0, 0)
		r.Images = images(prompt)
		cases[i] = greedy{r, tokens[i*n : (i+1)*n], logp[i*n : (i+1)*n], margin[i*n : (i+1)*n]}
	}
	return cases
}

// pictured gives a function that finds the images of one prompt after the other.
func pictured(t *testing.T, name string, f *torch.SafeTensors) func(prompt []int32) []rollout.Image {
	t.Helper()
	m, err := model.PeekConfig(path(name))
	if err != nil {
		t.Fatal(err)
	}
	if m.Vision == nil {
		return func([]int32) []rollout.Image { return nil }
	}
	_, _, grids := entry[int32](t, f, "image_grid_thw")
	_, numbers, pixels := entry[float32](t, f, "pixel_values")
	return func(prompt []int32) (images []rollout.Image) {
		for i := 0; i < len(prompt); i++ {
			if prompt[i] != m.Vision.Image {
				continue
			}
			g := [3]int{int(grids[0]), int(grids[1]), int(grids[2])}
			patches := g[0] * g[1] * g[2]
			image := rollout.Image{Start: i, Len: patches / m.Vision.Merge / m.Vision.Merge, Grid: g, Pixels: pixels[:patches*numbers]}
			image.Digest = sha256.Sum256(fmt.Append(nil, image.Pixels))
			images, grids, pixels = append(images, image), grids[3:], pixels[patches*numbers:]
			i += image.Len
		}
		return images
	}
}

// compare stops where the two likeliest tokens are too near to tell apart.
func (g greedy) compare(t *testing.T, c rollout.Completion) {
	t.Helper()
	if len(c.Tokens) != len(g.ids) || c.Finish != rollout.FinishLength {
		t.Fatalf("%d tokens, finish %s", len(c.Tokens), c.Finish)
	}
	for j, id := range g.ids {
		if g.margin[j] < 1e-4 {
			break
		}
		if got := c.Tokens[j]; got.ID() != id || math.Abs(float64(got.LogP()-g.logp[j])) > 3e-5 || got.Exact() {
			t.Fatalf("token %d is %d with log-prob %v (exact: %v), want %d with %v", j, got.ID(), got.LogP(), got.Exact(), id, g.logp[j])
		}
	}
}
