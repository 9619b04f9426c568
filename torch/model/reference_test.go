package model_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

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
				h := hidden(t, s, m, &b, nil)
				logits := s.Narrow(m.Logits(s, h), 0, len(p.IDs)-1, 1)
				top := s.IndexSelect(logits, 1, torch.New(s, p.TopIDs))
				near(t, "logits of "+p.Text, p.TopLogits, torch.Values[float32](top), 1e-3)
				near(t, "log-sum-exp of "+p.Text, []float32{p.LSE}, torch.Values[float32](s.Call("aten::logsumexp", logits, []int{-1})[0]), 1e-3)
				return torch.Tensor{}
			})
			ids, logp := page{ids: p.IDs}.greedy(t, s, m, len(p.Greedy), len(p.IDs))
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
