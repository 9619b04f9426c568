package model_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
	. "github.com/molt-go/molt/torch/model"
)

// A decode step among others, the prefill and the packed training rows of a text give the same bits: mismatch 0 by construction.
// The sampler's log-prob is the scorer's.
func TestLogProbsDoNotDependOnTheRestOfTheBatch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	text := func(n int) []int32 {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = r.Int32N(320)
		}
		return ids
	}
	for _, d := range []torch.DType{torch.Float32, torch.BFloat16} {
		eachModel(t, d, func(t *testing.T, s *torch.Scope, _ folder, m *Model) {
			ids := text(83)
			alone, _ := score(t, s, m, ids)
			s.NoGrad(func(s *torch.Scope) torch.Tensor {
				var b Batch
				other := text(40)
				b.AddSequence(other, 0, 40)
				prompt := ids[:50] // one prompt, two continuations of it
				first := b.AddSequence(prompt, 40, 50)
				b.AddSequence(ids[50:70], 40, 50, 90, 20)
				own := b.AddSequence(ids[50:], 40, 50, 110, 33)
				var at []int64
				for i := range len(ids) - 1 {
					row := first + i
					if i >= 50 {
						row = own + i - 50
					}
					at = append(at, int64(row))
				}
				h := s.IndexSelect(hidden(t, s, m, &b, nil), 0, torch.New(s, at))
				packed, _ := m.LogP(s, h, ids[1:], slices.Repeat([]float32{1}, len(at)))
				if diff := cmp.Diff(alone, torch.Values[float32](packed)); diff != "" {
					t.Errorf("%v: packed with a shared prompt: %s", d, diff)
				}
				// The same text again, token by token through a cache.
				cache := m.NewCache(s, len(ids)+1)
				for i := range len(ids) - 1 {
					s.Block(func(s *torch.Scope) torch.Tensor {
						var b Batch
						b.AddSequence(ids[i:i+1], 0, int32(i+1))
						b.Slots = []int64{int64(i)}
						h := hidden(t, s, m, &b, cache)
						drawn, drawnLogP, _ := s.Sample(m.Logits(s, h), torch.New(s, []float32{1}), torch.New(s, []float64{0.5}), torch.Tensor{})
						scored, _ := m.LogP(s, s.IndexSelect(h, 0, torch.New(s, []int64{0, 0})),
							[]int32{ids[i+1], torch.Values[int32](drawn)[0]}, []float32{1, 1})
						got := torch.Values[float32](scored)
						if diff := cmp.Diff([]float32{alone[i], torch.Values[float32](drawnLogP)[0]}, got); diff != "" {
							t.Errorf("%v: decode step %d and the token drawn: %s", d, i, diff)
						}
						return torch.Tensor{}
					})
				}
				return torch.Tensor{}
			})
		})
	}
}

func TestFusedProjectionsEqualSeparateOnes(t *testing.T) {
	for _, d := range []torch.DType{torch.Float32, torch.BFloat16} {
		do(t, func(s *torch.Scope) {
			m := load(t, s, llama(t), d)
			x := s.To(s.Randn(12, m.Width), d)
			byName := map[string]torch.Tensor{}
			for _, p := range m.Params() {
				byName[p.Name] = p.Tensor
			}
			q, k := byName["model.layers.0.self_attn.q_proj.weight"], byName["model.layers.0.self_attn.k_proj.weight"]
			fused := s.Linear(x, s.Cat(0, q, k), torch.Tensor{})
			separate := s.Cat(1, s.Linear(x, s.Clone(q), torch.Tensor{}), s.Linear(x, s.Clone(k), torch.Tensor{}))
			if diff := cmp.Diff(torch.Values[float32](separate), torch.Values[float32](fused)); diff != "" {
				t.Errorf("%v: %s", d, diff)
			}
		})
	}
}

func TestCopyFromAccountsForEveryParameter(t *testing.T) {
	do(t, func(s *torch.Scope) {
		path := llama(t)
		a, b := load(t, s, path, torch.Float32), load(t, s, path, torch.BFloat16)
		s.NoGrad(func(s *torch.Scope) torch.Tensor { s.Zero_(a.Params()[0].Tensor); return torch.Tensor{} })
		if err := b.CopyFrom(s, a.Params()); err != nil {
			t.Fatal(err)
		}
		for i, p := range a.Params() {
			want := torch.Values[float32](s.To(p.Tensor, torch.BFloat16))
			if diff := cmp.Diff(want, torch.Values[float32](b.Params()[i].Tensor)); diff != "" {
				t.Fatal(p.Name, diff)
			}
		}
		before := torch.Values[float32](b.Params()[0].Tensor)
		short := slices.Delete(slices.Clone(a.Params()), 3, 4)
		short[0] = Param{Name: "stranger", Tensor: short[0].Tensor}
		err := b.CopyFrom(s, short)
		for _, name := range []string{a.Params()[0].Name + " is missing", a.Params()[3].Name + " is missing", "stranger is not a parameter"} {
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("error %v does not say %q", err, name)
			}
		}
		if diff := cmp.Diff(before, torch.Values[float32](b.Params()[0].Tensor)); diff != "" {
			t.Error("a refused copy changed weights:", diff)
		}
	})
}

func TestAfterAReadTheNextCopyTakesFrozenParametersToo(t *testing.T) {
	do(t, func(s *torch.Scope) {
		path := llama(t)
		a, b := load(t, s, path, torch.Float32), load(t, s, path, torch.Float32)
		s.NoGrad(func(s *torch.Scope) torch.Tensor { s.Zero_(a.Params()[0].Tensor); return torch.Tensor{} })
		a.Freeze(map[string]bool{a.Params()[0].Name: true})
		if err := errors.Join(b.CopyFrom(s, a.Params()), b.Read(s, path), b.CopyFrom(s, a.Params())); err != nil {
			t.Fatal(err)
		}
		same(t, a, b)
	})
}

// llama is the path of a small model of the reference.
func llama(t *testing.T) string {
	t.Helper()
	fs := models(t)
	i := slices.IndexFunc(fs, func(f folder) bool { return strings.Contains(f.path, "llama_untied") })
	if i < 0 {
		t.Fatal("the reference has no untied Llama")
	}
	return fs[i].path
}

func TestBadFilesAndBatchesAreErrorsThatNameTheFault(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	good, err := os.ReadFile(filepath.Join(llama(t), "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	do(t, func(s *torch.Scope) {
		for _, c := range []struct{ path, want string }{
			{filepath.Join(dir, "nowhere"), "no such file"},
			{write("short.gguf", "GGUF"), "short.gguf"},
			{dir, "config.json"},
		} {
			if _, err := Load(s, c.path, torch.Float32); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Load(%s): %v, want %q", c.path, err, c.want)
			}
		}
		write("config.json", strings.Replace(string(good), `"llama"`, `"dodo"`, 1))
		if _, err := Load(s, dir, torch.Float32); err == nil || !strings.Contains(err.Error(), `"dodo" is not supported; known: gemma2, `) {
			t.Error(err)
		}
		write("config.json", strings.Replace(string(good), `"num_hidden_layers": `, `"num_hidden_layers": 1`, 1))
		weights, err := os.ReadFile(filepath.Join(llama(t), "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		write("model.safetensors", string(weights))
		if _, err := Load(s, dir, torch.Float32); err == nil || !strings.Contains(err.Error(), "model.layers.12.mlp.down_proj.weight is missing") {
			t.Error(err)
		}
		m := load(t, s, llama(t), torch.Float32)
		var b Batch
		b.AddSequence([]int32{1, 400}, 0, 2)
		if _, err := m.Hidden(s, &b, nil); err == nil || !strings.Contains(err.Error(), "token 400 at row 1 is not in the vocabulary of 320") {
			t.Error(err)
		}
		b = Batch{}
		b.AddSequence([]int32{1, 2}, 100, 2)
		if _, err := m.Hidden(s, &b, nil); err == nil || !strings.Contains(err.Error(), "range (100, 2) over 2 slots") {
			t.Error(err)
		}
	})
}

func TestSavedModelLoadsWithTheSameBits(t *testing.T) {
	for _, f := range models(t) {
		for _, d := range []torch.DType{torch.Float32, torch.BFloat16} {
			dir := t.TempDir()
			do(t, func(s *torch.Scope) {
				a := load(t, s, f.path, d)
				if err := a.Save(dir); err != nil {
					t.Fatal(err)
				}
				b := load(t, s, dir, d)
				if diff := cmp.Diff(a.Config, b.Config); diff != "" {
					t.Error(f.path, diff)
				}
				for i, p := range a.Params() {
					if q := b.Params()[i]; p.Name != q.Name || string(torch.Bytes(p.Tensor)) != string(torch.Bytes(q.Tensor)) {
						t.Errorf("%s: %s changed on its way through a file", f.path, p.Name)
					}
				}
			})
		}
	}
}

// A tied head is the embedding's own storage: a refit of the embedding moves the logits, and the head is not listed again.
func TestATiedHeadFollowsTheEmbedding(t *testing.T) {
	for _, f := range models(t) {
		do(t, func(s *torch.Scope) {
			m := load(t, s, f.path, torch.Float32)
			if !m.Tied {
				return
			}
			listed := slices.ContainsFunc(m.Params(), func(p Param) bool { return p.Name == "lm_head.weight" })
			m.LogitCap = 0
			h := s.Randn(8, m.Width)
			before := torch.Values[float32](m.Logits(s, h))
			trained := load(t, s, f.path, torch.Float32)
			s.NoGrad(func(s *torch.Scope) torch.Tensor {
				return s.Add_(trained.Params()[0].Tensor, trained.Params()[0].Tensor)
			})
			if err := m.CopyFrom(s, trained.Params()); err != nil {
				t.Fatal(err)
			}
			after := torch.Values[float32](m.Logits(s, h))
			if listed || after[5] != 2*before[5] {
				t.Errorf("%s: head listed: %v; logit went from %v to %v, want twice as much", f.path, listed, before[5], after[5])
			}
		})
	}
}
