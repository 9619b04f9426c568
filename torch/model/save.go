package model

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/molt-go/molt/torch"
)

// Save writes m as a Hugging Face folder, config.json and model.safetensors, in m's dtype. Tied heads are stored once, as
// the embedding. dir must exist.
func (m *Model) Save(dir string) error {
	text, err := json.MarshalIndent(m.hf(), "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	return SaveParams(filepath.Join(dir, "model.safetensors"), m.params)
}

// SaveParams writes named tensors to a safetensors file, one in memory at a time.
func SaveParams(path string, params []Param) error {
	entries := make([]torch.Entry, len(params))
	for i, p := range params {
		entries[i] = torch.EntryOf(p.Name, p.Tensor)
	}
	return torch.WriteSafeTensors(path, entries, map[string]string{"format": "pt"})
}

// hf is m's config.json, in the keys that transformers 4 and 5 both read.
func (m *Model) hf() map[string]any {
	c := map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": m.Family, "vocab_size": m.Vocab, "hidden_size": m.Width,
		"intermediate_size": m.Inner, "num_hidden_layers": m.Layers, "num_attention_heads": m.Heads, "num_key_value_heads": m.KVHeads,
		"head_dim": m.HeadDim, "max_position_embeddings": m.Context, "rms_norm_eps": m.Eps, "hidden_act": "silu",
		"tie_word_embeddings": m.Tied, "attention_bias": m.QKVBias, "mlp_bias": m.MLPBias, "torch_dtype": m.DType.String(),
		"rope_theta": m.Rope.Theta,
	}
	if len(m.EOS) > 0 {
		c["eos_token_id"] = m.EOS
	}
	if r := m.Rope; r.Type != "" {
		scaling := map[string]any{"rope_type": r.Type, "factor": r.Factor}
		if r.Type == "llama3" {
			scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["original_max_position_embeddings"] = r.Low, r.High, r.Original
		}
		c["rope_scaling"] = scaling
	}
	return c
}
