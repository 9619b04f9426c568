package gguf

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func openSmolLM(t testing.TB) *File {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(filepath.Join(cache, "molt", "models", "SmolLM2-135M-Instruct.Q4_1.gguf"))
	if err != nil {
		t.Fatalf("%v\n`make test` fetches the model", err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// ggufName maps a checkpoint's name to the file's; the reference names tensors as checkpoints do.
func ggufName(t *testing.T, name string) string {
	parts := map[string]string{
		"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
		"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
		"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
	}
	switch name {
	case "model.embed_tokens.weight":
		return "token_embd.weight"
	case "model.norm.weight":
		return "output_norm.weight"
	}
	layer, part, _ := strings.Cut(strings.TrimPrefix(name, "model.layers."), ".")
	short, ok := parts[strings.TrimSuffix(part, ".weight")]
	if !ok {
		t.Fatalf("no tensor for %s", name)
	}
	return fmt.Sprintf("blk.%s.%s.weight", layer, short)
}

// The reference describes the half-split row order; its sums and its first and last values would be the same for the
// stored order, so TestUnpermuteRotaryRestoresHalfSplitRows is the proof of the rows.
func TestSmolLMDequantisesToTheReference(t *testing.T) {
	f := openSmolLM(t)
	raw, err := os.ReadFile("../../../testdata/reference/smollm_model.json")
	if err != nil {
		t.Fatal(err)
	}
	var reference struct {
		Tensors map[string]struct {
			Shape       []int
			Sum         float64
			AbsSum      float64 `json:"abs_sum"`
			SqSum       float64 `json:"sq_sum"`
			First, Last []float32
		} `json:"dequantised_tensors"`
	}
	if err := json.Unmarshal(raw, &reference); err != nil {
		t.Fatal(err)
	}
	if len(reference.Tensors) == 0 || len(reference.Tensors) != len(f.Tensors) {
		t.Fatalf("%d tensors in the reference, %d in the file", len(reference.Tensors), len(f.Tensors))
	}
	var spent time.Duration
	for name, want := range reference.Tensors {
		info, ok := f.Lookup(ggufName(t, name))
		if !ok || !cmp.Equal(info.Shape, want.Shape) {
			t.Errorf("%s: found %v as %v, want %v", name, ok, info.Shape, want.Shape)
			continue
		}
		w := make([]float32, info.Len())
		start := time.Now()
		if err := f.Dequantize(info, 0, w); err != nil {
			t.Fatal(err)
		}
		spent += time.Since(start)
		for suffix, heads := range map[string]int{"q_proj.weight": 9, "k_proj.weight": 3} {
			if strings.HasSuffix(name, suffix) {
				if err := UnpermuteRotary(w, heads, info.Shape[0], info.Shape[1]); err != nil {
					t.Fatal(err)
				}
			}
		}
		var sum, abs, sq float64
		for _, v := range w {
			sum, abs, sq = sum+float64(v), abs+math.Abs(float64(v)), sq+float64(v)*float64(v)
		}
		near := func(got, want, scale float64) bool { return math.Abs(got-want) <= 1e-8*scale }
		if !near(sum, want.Sum, abs) || !near(abs, want.AbsSum, abs) || !near(sq, want.SqSum, sq) {
			t.Errorf("%s: sums %v %v %v, want %v %v %v", name, sum, abs, sq, want.Sum, want.AbsSum, want.SqSum)
		}
		if d := cmp.Diff(want.First, w[:len(want.First)]) + cmp.Diff(want.Last, w[len(w)-len(want.Last):]); d != "" {
			t.Errorf("%s:\n%s", name, d)
		}
	}
	t.Logf("dequantised in %v", spent)
}

func BenchmarkDequantizeSmolLM(b *testing.B) {
	f := openSmolLM(b)
	dst := make([]float32, 49152*576)
	for b.Loop() {
		n := 0
		for _, info := range f.Tensors {
			if err := f.Dequantize(info, 0, dst[:info.Len()]); err != nil {
				b.Fatal(err)
			}
			n += info.Len()
		}
		b.SetBytes(int64(4 * n))
	}
}
