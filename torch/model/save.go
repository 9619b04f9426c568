package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/molt-go/molt/torch"
)

// maxShard is the size in bytes up to which Hugging Face's tools keep weights in one file.
const maxShard = 5e9

// Save writes m as a Hugging Face folder in m's dtype: config.json and model.safetensors, or shards of 5 GB with an index. Tied heads are
// stored once, as the embedding. One tensor at a time is in memory again. dir must exist; its earlier weights are replaced.
func (m *Model) Save(dir string) error {
	text, err := json.MarshalIndent(m.hf(m.DType), "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	entries := make([]torch.Entry, len(m.params))
	for i, p := range m.params {
		entries[i] = torch.EntryOf(p.Name, p.Tensor)
	}
	return torch.WriteShards(dir, entries, map[string]string{"format": "pt"}, maxShard)
}

// hf is c as a config.json of its family, with the keys of transformers 4 that 5 reads too.
func (c Config) hf(d torch.DType) map[string]any {
	f := families[c.Family]
	types, dense := make([]string, c.Layers), []int{}
	for i := range types {
		types[i] = "full_attention"
		if c.Local != nil && c.Local[i] {
			types[i] = "sliding_attention"
		}
		if c.MoE.Layers != nil && !c.MoE.Layers[i] {
			dense = append(dense, i)
		}
	}
	act := "silu"
	if c.GELU {
		act = "gelu_pytorch_tanh"
	}
	given := map[string]any{}
	text, _ := json.Marshal(c) // numbers, texts and flags, and lists of them
	_ = json.Unmarshal(text, &given)
	maps.Copy(given, map[string]any{
		"hidden_act": act, "hidden_activation": act, "layer_types": types, "mlp_only_layers": dense, "eos_token_id": c.EOS,
		"sliding_window": orNull(c.Window), "use_sliding_window": c.Window > 0, "rms_norm_eps": real(c.Eps),
		"clip_qkv": orNull(real(c.ClipQKV)), "attn_logit_softcapping": orNull(real(c.AttnCap)),
		"final_logit_softcapping": orNull(real(c.LogitCap)),
		"rope_theta":              real(c.Rope.Theta), "rope_local_base_freq": real(c.LocalRope.Theta),
	})
	out := map[string]any{"architectures": []string{f.Class}, "torch_dtype": d.String()}
	for key := range f.keys() {
		if v, ok := given[key]; ok {
			out[key] = v
		}
	}
	if c.Rope.Type != "" {
		out["rope_scaling"] = c.Rope
	}
	if _, ok := out["rope_local_base_freq"]; ok { // only transformers 5 has a key for all of it
		out["rope_parameters"] = map[string]Rope{"full_attention": c.Rope, "sliding_attention": c.LocalRope}
	}
	if c.MoE.Experts > 0 {
		out["num_experts"] = c.MoE.Experts
	}
	if c.Vision != nil {
		return c.nest(out)
	}
	return out
}

// orNull is v, or nil for the zero value.
func orNull[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// real is a number that transformers wants with a point or an exponent.
type real float64

func (r real) MarshalJSON() ([]byte, error) {
	text := strconv.FormatFloat(float64(r), 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return []byte(text), nil
}
