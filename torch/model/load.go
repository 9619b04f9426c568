package model

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model/gguf"
)

// Load reads a model into s, in dtype d: path is a Hugging Face folder (config.json and safetensors) or a .gguf file.
// Weights are converted one tensor at a time. A missing, extra or misshapen tensor is an error that lists all of them.
func Load(s *torch.Scope, path string, d torch.DType) (*Model, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("model: %w; the model must be a folder with config.json or a .gguf file", err)
	}
	load := loadGGUF
	if info.IsDir() {
		load = loadFolder
	}
	m, err := load(s, path, d)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", path, err)
	}
	return m, nil
}

// PeekConfig reads the shape of the model at path without its weights.
func PeekConfig(path string) (Config, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Config{}, fmt.Errorf("model: %w; the model must be a folder with config.json or a .gguf file", err)
	}
	if info.IsDir() {
		return ReadConfig(filepath.Join(path, "config.json"))
	}
	f, err := gguf.Open(path)
	if err != nil {
		return Config{}, err
	}
	defer f.Close()
	return ggufConfig(f)
}

func loadFolder(s *torch.Scope, dir string, d torch.DType) (*Model, error) {
	c, err := ReadConfig(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	f, err := torch.OpenSafeTensors(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m := New(s, c, d)
	var fault mismatch
	want := map[string]bool{"lm_head.weight": true} // a tied head may be stored, and is the embedding
	for _, p := range m.params {
		want[p.Name] = true
		if e, ok := f.Lookup(p.Name); ok {
			fault.shape(p.Name, p.Tensor.Shape(), e.Shape)
		} else {
			fault.missing(p.Name)
		}
	}
	for _, name := range f.Names() {
		if !want[name] && !strings.HasSuffix(name, "rotary_emb.inv_freq") {
			fault.extra(name)
		}
	}
	if err := fault.err(); err != nil {
		return nil, err
	}
	for _, p := range m.params {
		e, _ := f.Lookup(p.Name)
		torch.WriteBytes(p.Tensor, e.DType, unsafe.Pointer(unsafe.SliceData(e.Data)), p.Tensor.Numel())
	}
	return m, nil
}

// ggufNames maps the parts of a Hugging Face name to those of the GGUF llama layout.
var ggufNames = strings.NewReplacer("model.embed_tokens", "token_embd", "model.norm", "output_norm", "lm_head", "output",
	"model.layers.", "blk.", "input_layernorm", "attn_norm",
	"self_attn.q_proj", "attn_q", "self_attn.k_proj", "attn_k", "self_attn.v_proj", "attn_v",
	"self_attn.o_proj", "attn_output", "post_attention_layernorm", "ffn_norm", "mlp.gate_proj", "ffn_gate", "mlp.up_proj", "ffn_up",
	"mlp.down_proj", "ffn_down")

func loadGGUF(s *torch.Scope, path string, d torch.DType) (*Model, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := ggufConfig(f)
	if err != nil {
		return nil, err
	}
	m := New(s, c, d)
	var fault mismatch
	want := map[string]bool{}
	for _, p := range m.params {
		name := ggufNames.Replace(p.Name)
		want[name] = true
		if t, ok := f.Lookup(name); ok {
			fault.shape(name, p.Tensor.Shape(), t.Shape)
		} else {
			fault.missing(name)
		}
	}
	for _, t := range f.Tensors {
		if !want[t.Name] {
			fault.extra(t.Name)
		}
	}
	if err := fault.err(); err != nil {
		return nil, err
	}
	var buffer []float32
	for _, p := range m.params {
		t, _ := f.Lookup(ggufNames.Replace(p.Name))
		buffer = slices.Grow(buffer[:0], t.Len())[:t.Len()]
		if err := f.Dequantize(t, 0, buffer); err != nil {
			return nil, err
		}
		if heads := m.permuted(p.Name); heads > 0 {
			if err := gguf.UnpermuteRotary(buffer, heads, t.Shape[0], t.Len()/t.Shape[0]); err != nil {
				return nil, err
			}
		}
		torch.Write(p.Tensor, buffer)
	}
	return m, nil
}

// permuted tells how many heads a projection has whose rows GGUF keeps in the interleaved rotary order, 0 for others.
func (m *Model) permuted(name string) int {
	switch {
	case strings.Contains(name, ".q_proj."):
		return m.Heads
	case strings.Contains(name, ".k_proj."):
		return m.KVHeads
	}
	return 0
}

// mismatch collects every tensor that does not fit, so that one error names them all.
type mismatch struct{ faults []string }

func (m *mismatch) missing(name string) { m.faults = append(m.faults, name+" is missing") }
func (m *mismatch) extra(name string) {
	m.faults = append(m.faults, name+" is not a parameter of this model")
}
func (m *mismatch) shape(name string, want, got []int) {
	if !slices.Equal(want, got) {
		m.faults = append(m.faults, fmt.Sprintf("%s must be %v, not %v", name, want, got))
	}
}

func (m *mismatch) err() error {
	if len(m.faults) == 0 {
		return nil
	}
	slices.Sort(m.faults)
	return fmt.Errorf("%d tensors do not fit:\n  %s", len(m.faults), strings.Join(m.faults, "\n  "))
}
