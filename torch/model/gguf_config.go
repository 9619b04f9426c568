package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/molt-go/molt/torch/model/gguf"
)

// layouts are llama.cpp's names of the families that it keeps in the layout read here. Mixtral is its llama with experts.
var layouts = map[string]string{
	"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "olmoe": "olmoe", "gemma2": "gemma2",
	"gemma3": "gemma3_text",
}

// The metadata behind the architecture's name, and what config.json calls it: what must be there, and what need not.
var ggufNeeds = map[string]string{
	"embedding_length": "hidden_size", "block_count": "num_hidden_layers", "feed_forward_length": "intermediate_size",
	"context_length": "max_position_embeddings", "attention.head_count": "num_attention_heads",
	"attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
var ggufTakes = map[string]string{
	"attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim", "attention.sliding_window": "sliding_window",
	"attention.sliding_window_pattern": "sliding_window_pattern", "attention.clamp_kqv": "clip_qkv",
	"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping",
	"rope.freq_base": "rope_theta", "rope.freq_base_swa": "rope_local_base_freq", "expert_count": "num_local_experts",
	"expert_used_count": "num_experts_per_tok", "expert_feed_forward_length": "moe_intermediate_size",
	"expert_weights_norm": "norm_topk_prob",
}

// metadata is a file's for its architecture.
type metadata struct {
	*gguf.File
	arch string
}

func (m metadata) has(tensor string) bool { _, ok := m.Lookup(tensor); return ok }

// number is 0 where there is none.
func (m metadata) number(key string) float64 {
	switch v := m.Meta[m.arch+"."+key].(type) {
	case int64:
		return float64(v)
	case float64:
		return v
	}
	return 0
}

// ggufConfig reads a file's metadata as the config.json that it was made from.
func ggufConfig(f *gguf.File) (Config, error) {
	arch, err := gguf.Get[string](f, "general.architecture")
	if err != nil {
		return Config{}, err
	}
	keys, err := metadata{f, arch}.keys()
	if err != nil {
		return Config{}, err
	}
	file := map[string]json.RawMessage{}
	for key, v := range keys {
		if x, ok := v.(float64); ok && float64(float32(x)) == x {
			v = float32(x) // whose shortest decimal is what config.json had
		}
		if file[key], err = json.Marshal(v); err != nil {
			return Config{}, fmt.Errorf("the metadata that is %s: %w", key, err)
		}
	}
	return parse(file)
}

func (m metadata) keys() (map[string]any, error) {
	family, ok := layouts[m.arch]
	if !ok {
		known := strings.Join(slices.Sorted(maps.Keys(layouts)), ", ")
		return nil, fmt.Errorf("architecture %.200q is not supported; known: %s", m.arch, known)
	}
	experts := m.number("expert_count") > 0
	if family == "llama" && experts {
		family = "mixtral"
	}
	// What is absent may mean something else to llama.cpp than to transformers.
	keys := map[string]any{
		"model_type": family, "num_key_value_heads": nil, "head_dim": nil, "rope_theta": 10000, "norm_topk_prob": family != "olmoe",
		"tie_word_embeddings": !m.has("output.weight"), "mlp_bias": m.has("blk.0.ffn_up.bias"),
		"attention_bias": m.has("blk.0.attn_q.bias"), "query_pre_attn_scalar": nil, "eos_token_id": m.ends(),
		"mlp_only_layers": m.dense(experts),
	}
	for from, to := range ggufNeeds {
		if _, ok := m.Meta[m.arch+"."+from]; !ok {
			return nil, fmt.Errorf("no metadata %q in this file", m.arch+"."+from)
		}
		keys[to] = m.Meta[m.arch+"."+from]
	}
	for from, to := range ggufTakes {
		if v, ok := m.Meta[m.arch+"."+from]; ok {
			keys[to] = v
		}
	}
	if embed, ok := m.Lookup("token_embd.weight"); ok && len(embed.Shape) == 2 {
		keys["vocab_size"] = embed.Shape[0]
	}
	if locals, ok := keys["sliding_window_pattern"].([]bool); ok {
		types := slices.Repeat([]string{"full_attention"}, len(locals))
		for i, local := range locals {
			if local {
				types[i] = "sliding_attention"
			}
		}
		keys["layer_types"], keys["sliding_window_pattern"] = types, 0
	}
	heads, layers := max(m.number("attention.head_count"), 1), m.number("block_count")
	perHead := math.Floor(m.number("embedding_length") / heads)
	if scale := m.number("attention.scale"); scale > 0 {
		keys["query_pre_attn_scalar"] = math.Round(1 / (scale * scale))
	} else if m.arch == "gemma2" && layers == 46 || m.arch == "gemma3" && layers == 62 { // the 27B models, whose files leave it out
		keys["query_pre_attn_scalar"] = perHead
	}
	headDim := m.number("attention.key_length")
	if headDim == 0 {
		headDim = perHead
	}
	if n := m.number("rope.dimension_count"); n != 0 && n != headDim {
		return nil, fmt.Errorf("rotary embeddings of %v of a head's %v dimensions are not supported", n, headDim)
	}
	var err error
	keys["rope_scaling"], err = m.scaling(int(headDim))
	return keys, err
}

// ends are the ids that end a text and a turn.
func (m metadata) ends() []any {
	ids := []any{}
	for _, key := range []string{"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"} {
		if id, ok := m.Meta[key]; ok && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// dense are the layers without experts in a model that has some.
func (m metadata) dense(experts bool) []int {
	layers := []int{}
	for i := 0; experts && i < min(int(m.number("block_count")), len(m.Tensors)); i++ {
		if !m.has(fmt.Sprintf("blk.%d.ffn_gate_inp.weight", i)) {
			layers = append(layers, i)
		}
	}
	return layers
}

// scaling is rope_scaling, nil for none.
func (m metadata) scaling(headDim int) (*Rope, error) {
	if t, ok := m.Lookup("rope_freqs.weight"); ok {
		return m.llama3(t, headDim)
	}
	r := Rope{
		Factor: m.number("rope.scaling.factor"), Original: int(m.number("rope.scaling.original_context_length")),
		Slow: m.number("rope.scaling.yarn_beta_slow"), Fast: m.number("rope.scaling.yarn_beta_fast"),
	}
	r.Scale = m.number("rope.scaling.yarn_attn_factor") * yarnScale(r.Factor, 1)
	switch kind := m.Meta[m.arch+".rope.scaling.type"].(type) {
	case string:
		r.Type = kind
	case nil:
		if r.Factor != 0 {
			r.Type = "linear"
		}
	default:
		return nil, fmt.Errorf("metadata %q is a %T", m.arch+".rope.scaling.type", kind)
	}
	if r.Type == "" || r.Type == "none" {
		return nil, nil
	}
	return &r, nil
}

// llama3 finds the rope_scaling that gives the factors by which llama.cpp divides the frequencies, with the bounds of every Llama so far.
func (m metadata) llama3(t gguf.TensorInfo, headDim int) (*Rope, error) {
	if t.Len() != headDim/2 {
		return nil, fmt.Errorf("rope_freqs.weight is %v for heads of %d", t.Shape, headDim)
	}
	factors := make([]float32, t.Len())
	if err := m.Dequantize(t, 0, factors); err != nil {
		return nil, err
	}
	theta := m.number("rope.freq_base")
	if theta == 0 {
		theta = 10000
	}
	r := Rope{Theta: theta, Type: "llama3", Factor: float64(slices.Max(factors)), Low: 1, High: 4, Original: 1}
	kept := Rope{Theta: theta}.frequencies(2 * len(factors))
	for i, f := range factors {
		wavelength := 2 * math.Pi / float64(kept[i])
		switch smooth := (1/float64(f) - 1/r.Factor) / (1 - 1/r.Factor); {
		case f == 1:
			r.Original = max(r.Original, int(r.High*wavelength)+1)
		case float64(f) < r.Factor:
			r.Original = int(math.Round(wavelength * (r.Low + smooth*(r.High-r.Low))))
		}
	}
	for i, f := range r.frequencies(2 * len(factors)) {
		if !(math.Abs(float64(f*factors[i]/kept[i])-1) < 1e-5) {
			return nil, errors.New("rope_freqs.weight is not of Llama 3: take the Hugging Face folder")
		}
	}
	return &r, nil
}
