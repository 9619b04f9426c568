package model_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/molt-go/molt/torch"
	. "github.com/molt-go/molt/torch/model"
)

const reference = "../../testdata/reference"

func TestMain(m *testing.M) {
	code := m.Run()
	if n := torch.Live(); n != 0 {
		println("tensors still alive after all tests:", n)
		code = 1
	}
	os.Exit(code)
}

func do(t *testing.T, f func(s *torch.Scope)) {
	t.Helper()
	if err := torch.Do(2, func(s *torch.Scope) error { f(s); return nil }); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, s *torch.Scope, path string, d torch.DType) *Model {
	t.Helper()
	m, err := Load(s, path, d)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func smollm(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cache, "molt", "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; `make test` fetches the model", err)
	}
	return path
}

func near(t *testing.T, what string, want, got []float32, tol float64) {
	t.Helper()
	if len(want) != len(got) {
		t.Errorf("%s: %d values, want %d", what, len(got), len(want))
		return
	}
	worst, at := 0.0, 0
	for i := range want {
		if d := math.Abs(float64(want[i]) - float64(got[i])); d > worst || math.IsNaN(d) {
			worst, at = d, i
		}
	}
	if !(worst <= tol) {
		t.Errorf("%s: entry %d is %v, want %v (tolerance %g)", what, at, got[at], want[at], tol)
	}
}

// score gives the log-prob of each next token and the entropy at each position but the last, of a text alone in its batch.
func score(t *testing.T, s *torch.Scope, m *Model, ids []int32) (logp, entropy []float32) {
	t.Helper()
	s.NoGrad(func(s *torch.Scope) torch.Tensor {
		var b Batch
		n := len(ids) - 1
		b.AddSequence(ids, 0, int32(len(ids)))
		b.Pad(0)
		h := hidden(t, s, m, &b, nil)
		invT := slices.Repeat([]float32{1}, n)
		lp, e := m.LogP(s, s.Narrow(h, 0, 0, n), ids[1:], invT)
		logp, entropy = torch.Values[float32](lp), torch.Values[float32](e)
		return torch.Tensor{}
	})
	return logp, entropy
}

func hidden(t *testing.T, s *torch.Scope, m *Model, b *Batch, c *Cache, seen ...Seen) torch.Tensor {
	t.Helper()
	out, err := m.Hidden(s, b, c, seen...)
	if err != nil {
		t.Fatal(err)
	}
	return out.Hidden
}

// greedy generates n tokens after ids with a cache, one decode step a token, and returns them with their log-probs.
func greedy(t *testing.T, s *torch.Scope, m *Model, ids []int32, n int) (out []int32, logp []float32) {
	t.Helper()
	s.NoGrad(func(s *torch.Scope) torch.Tensor {
		slots := len(ids) + n
		cache := m.NewCache(s, slots+1)
		next := ids
		for done := 0; len(out) < n; {
			s.Block(func(s *torch.Scope) torch.Tensor {
				var b Batch
				b.AddSequence(next, 0, int32(done+len(next)))
				for i := range next {
					b.Slots = append(b.Slots, int64(done+i))
				}
				last := len(next) - 1
				b.Pad(int64(slots))
				h := hidden(t, s, m, &b, cache)
				logits := m.Logits(s, s.IndexSelect(h, 0, torch.New(s, slices.Repeat([]int64{int64(last)}, 8))))
				id, lp := s.Sample(logits, torch.New(s, []float32{0}), torch.New(s, []float64{0}))
				done += len(next)
				next = torch.Values[int32](id)
				out = append(out, next[0])
				logp = append(logp, torch.Values[float32](lp)[0])
				return torch.Tensor{}
			})
		}
		return torch.Tensor{}
	})
	return out, logp
}

// sameUntilClose compares ids up to the first step where the two best tokens are closer than the numbers' noise.
func sameUntilClose(t *testing.T, what string, want, got []int32, margins []float32) int {
	t.Helper()
	for i := range want {
		if margins[i] < 1e-4 {
			return i
		}
		if want[i] != got[i] {
			t.Errorf("%s: token %d is %d, want %d", what, i, got[i], want[i])
			return i
		}
	}
	return len(want)
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(path, err)
	}
}

func TestSmolLM2EqualsTransformers(t *testing.T) {
	var ref struct {
		Prompts []struct {
			Text      string    `json:"text"`
			IDs       []int32   `json:"ids"`
			TopIDs    []int64   `json:"top20_ids"`
			TopLogits []float32 `json:"top20_logits"`
			LSE       float32   `json:"logsumexp_last"`
			Greedy    []int32   `json:"greedy_ids"`
			LogP      []float32 `json:"greedy_log_probs"`
			Margins   []float32 `json:"greedy_margin_top1_top2"`
		} `json:"prompts"`
		Texts []struct {
			IDs     []int32   `json:"ids"`
			LogP    []float32 `json:"log_probs_of_next"`
			Entropy []float32 `json:"entropy"`
		} `json:"texts"`
	}
	readJSON(t, reference+"/smollm_model.json", &ref)
	if len(ref.Prompts) == 0 || len(ref.Texts) == 0 {
		t.Fatal("the reference holds no cases")
	}
	do(t, func(s *torch.Scope) {
		m := load(t, s, smollm(t), torch.Float32)
		for _, p := range ref.Prompts {
			s.NoGrad(func(s *torch.Scope) torch.Tensor {
				var b Batch
				b.AddSequence(p.IDs, 0, int32(len(p.IDs)))
				b.Pad(0)
				h := hidden(t, s, m, &b, nil)
				logits := s.Narrow(m.Logits(s, h), 0, len(p.IDs)-1, 1)
				top := s.IndexSelect(logits, 1, torch.New(s, p.TopIDs))
				near(t, "logits of "+p.Text, p.TopLogits, torch.Values[float32](top), 1e-3)
				near(t, "log-sum-exp of "+p.Text, []float32{p.LSE}, torch.Values[float32](s.Call("aten::logsumexp", logits, []int{-1})[0]), 1e-3)
				return torch.Tensor{}
			})
			ids, logp := greedy(t, s, m, p.IDs, len(p.Greedy))
			n := sameUntilClose(t, p.Text, p.Greedy, ids, p.Margins)
			near(t, "greedy log-probs of "+p.Text, p.LogP[:n], logp[:n], 1e-3)
		}
		for _, x := range ref.Texts {
			logp, entropy := score(t, s, m, x.IDs)
			near(t, "log-probs", x.LogP[:len(logp)], logp, 1e-3)
			near(t, "entropy", x.Entropy[:len(entropy)], entropy, 1e-3)
		}
	})
}

// folder is one model of the reference: its tensors by name.
type folder struct {
	t    *testing.T
	path string
	file *torch.SafeTensors
}

func models(t *testing.T) []folder {
	t.Helper()
	paths, _ := filepath.Glob(reference + "/models/*")
	if len(paths) == 0 {
		t.Fatal("no models in the reference")
	}
	var fs []folder
	for _, p := range paths {
		f, err := torch.OpenSafeTensors(filepath.Join(p, "ref.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		fs = append(fs, folder{t, p, f})
	}
	return fs
}

func (f folder) ints(name string) []int64     { return entry[int64](f, name) }
func (f folder) floats(name string) []float32 { return entry[float32](f, name) }
func (f folder) shape(name string) (rows, columns int) {
	e, ok := f.file.Lookup(name)
	if !ok {
		f.t.Fatalf("%s: no tensor %s", f.path, name)
	}
	return e.Shape[0], e.Shape[1]
}

func entry[T torch.Number](f folder, name string) []T {
	e, ok := f.file.Lookup(name)
	if !ok {
		f.t.Fatalf("%s: no tensor %s", f.path, name)
	}
	var out []T
	do(f.t, func(s *torch.Scope) {
		x := s.Empty(e.DType, e.Shape...)
		torch.WriteBytes(x, e.DType, unsafe.Pointer(unsafe.SliceData(e.Data)), x.Numel())
		out = torch.Values[T](x)
	})
	return out
}

// rows of a padded batch: the real ids of row i and where they start.
func (f folder) row(side string, i int) (ids []int32, start int) {
	_, width := f.shape(side + ".input_ids")
	all, mask := f.ints(side+".input_ids"), f.ints(side+".attention_mask")
	start = -1
	for j := i * width; j < (i+1)*width; j++ {
		if mask[j] != 0 {
			if start < 0 {
				start = j - i*width
			}
			ids = append(ids, int32(all[j]))
		}
	}
	return ids, start
}

func TestModelsEqualTransformers(t *testing.T) {
	for _, f := range models(t) {
		t.Run(filepath.Base(f.path), func(t *testing.T) {
			f.t = t
			do(t, func(s *torch.Scope) {
				m := load(t, s, f.path, torch.Float32)
				for _, side := range []string{"right", "left"} {
					rows, width := f.shape(side + ".input_ids")
					logits, logp := f.floats(side+".logits"), f.floats(side+".log_probs")
					for i := range rows {
						ids, start := f.row(side, i)
						s.NoGrad(func(s *torch.Scope) torch.Tensor {
							var b Batch
							b.AddSequence(ids, 0, int32(len(ids)))
							b.Pad(0)
							got := torch.Values[float32](s.Narrow(m.Logits(s, hidden(t, s, m, &b, nil)), 0, 0, len(ids)))
							at := (i*width + start) * m.Vocab
							near(t, side+" logits", logits[at:at+len(ids)*m.Vocab], got, 5e-5)
							return torch.Tensor{}
						})
						lp, entropy := score(t, s, m, ids)
						at := i*(width-1) + start
						near(t, side+" log-probs", logp[at:at+len(ids)-1], lp, 3e-5)
						if side == "right" {
							near(t, "entropy", f.floats("right.entropy")[i*width:i*width+len(ids)-1], entropy, 5e-5)
						}
					}
				}
			})
		})
	}
}

func TestModelsGenerateAsTransformers(t *testing.T) {
	for _, f := range models(t) {
		t.Run(filepath.Base(f.path), func(t *testing.T) {
			f.t = t
			do(t, func(s *torch.Scope) {
				m := load(t, s, f.path, torch.Float32)
				rows, _ := f.shape("gen.input_ids")
				_, n := f.shape("gen.new_ids")
				tokens, logp, margins := f.ints("gen.new_ids"), f.floats("gen.log_probs"), f.floats("gen.margin")
				for i := range rows {
					ids, _ := f.row("gen", i)
					got, lp := greedy(t, s, m, ids, n)
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

// The gradient of the mean negative log-prob over all real next tokens of the right-padded batch, per named parameter.
func TestModelsGradientsEqualTransformers(t *testing.T) {
	for _, f := range models(t) {
		t.Run(filepath.Base(f.path), func(t *testing.T) {
			f.t = t
			do(t, func(s *torch.Scope) {
				m := load(t, s, f.path, torch.Float32)
				for _, leaf := range m.Leaves() {
					leaf.RequireGrad(true)
				}
				rows, _ := f.shape("right.input_ids")
				var b Batch
				var at, next []int32
				for i := range rows {
					ids, _ := f.row("right", i)
					first := b.AddSequence(ids, int32(b.Len()), int32(len(ids)))
					for j := 1; j < len(ids); j++ {
						at, next = append(at, int32(first+j-1)), append(next, ids[j])
					}
				}
				b.Pad(0)
				loss := meanNLL(s, m, hidden(t, s, m, &b, nil), at, next)
				s.Backward([]torch.Tensor{loss}, nil)
				f.compareGradients(s, m, loss.Item())
			})
		})
	}
}

// meanNLL of tokens next, each after the row at of h.
func meanNLL(s *torch.Scope, m *Model, h torch.Tensor, at, next []int32) torch.Tensor {
	logp, _ := m.LogP(s, s.IndexSelect(h, 0, torch.New(s, at)), next, slices.Repeat([]float32{1}, len(next)))
	return s.Neg(s.Mean(logp))
}

// compareGradients compares what backward left with the reference's gradients of the mean NLL.
func (f folder) compareGradients(s *torch.Scope, m *Model, nll float64) {
	t := f.t
	var ref struct {
		NLL   float64 `json:"right_mean_nll"`
		Grads map[string]struct {
			Norm  float64   `json:"norm"`
			Sum   float64   `json:"sum"`
			Dot   float64   `json:"dot_weight"`
			First []float32 `json:"first"`
			Max   float64   `json:"max_abs"`
		} `json:"grad_of_right_mean_nll"`
	}
	readJSON(t, filepath.Join(f.path, "ref.json"), &ref)
	if math.Abs(nll-ref.NLL) > 3e-5 {
		t.Errorf("mean NLL %v, want %v", nll, ref.NLL)
	}
	seen := 0
	for _, p := range m.Params() {
		want, ok := ref.Grads[p.Name]
		if !ok {
			t.Errorf("no reference gradient for %s", p.Name)
			continue
		}
		seen++
		g := torch.Values[float32](p.Grad(s))
		w := torch.Values[float32](p.Tensor)
		var sum, square, dot float64
		for i, x := range g {
			sum += float64(x)
			square += float64(x) * float64(x)
			dot += float64(x) * float64(w[i])
		}
		scale := 1e-4*want.Norm + 1e-7
		if math.Abs(math.Sqrt(square)-want.Norm) > scale || math.Abs(sum-want.Sum) > scale*math.Sqrt(float64(len(g))) || math.Abs(dot-want.Dot) > scale*10 {
			t.Errorf("%s: norm %v sum %v dot %v, want %v %v %v", p.Name, math.Sqrt(square), sum, dot, want.Norm, want.Sum, want.Dot)
		}
		if diff := cmp.Diff(want.First, g[:len(want.First)], cmpopts.EquateApprox(1e-4, 1e-4*want.Max)); diff != "" {
			t.Errorf("%s: first entries: %s", p.Name, diff)
		}
	}
	if seen != len(ref.Grads) {
		t.Errorf("%d gradients compared, the reference has %d", seen, len(ref.Grads))
	}
}
