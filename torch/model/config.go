package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/molt-go/molt/torch/model/gguf"
)

// Config is the shape of a decoder. It is what differs between families: the decoder itself is one.
type Config struct {
	Family  string // "llama"
	Vocab   int
	Width   int // width of the residual stream
	Inner   int // width inside the MLP
	Layers  int
	Heads   int
	KVHeads int
	HeadDim int
	Context int     // longest sequence that the positions were made for
	Eps     float64 // of the RMS norms
	Tied    bool    // the head is the embedding
	QKVBias bool
	OutBias bool // of the attention's output projection
	MLPBias bool
	Rope    Rope
	EOS     []int32 // ids that end a text, as the model's own files say
	Vision  *Vision // the vision tower, if there is one
}

// hfConfig is config.json as transformers 4 and 5 write it.
type hfConfig struct {
	ModelType     string   `json:"model_type"`
	Vocab         int      `json:"vocab_size"`
	Hidden        int      `json:"hidden_size"`
	Inner         int      `json:"intermediate_size"`
	Layers        int      `json:"num_hidden_layers"`
	Heads         int      `json:"num_attention_heads"`
	KVHeads       int      `json:"num_key_value_heads"`
	HeadDim       int      `json:"head_dim"`
	Context       int      `json:"max_position_embeddings"`
	Eps           float64  `json:"rms_norm_eps"`
	Act           string   `json:"hidden_act"`
	Tied          bool     `json:"tie_word_embeddings"`
	AttentionBias bool     `json:"attention_bias"`
	MLPBias       bool     `json:"mlp_bias"`
	EOS           idList   `json:"eos_token_id"`
	Rope          *hfRope  `json:"rope_parameters"` // transformers 5
	RopeScaling   *hfRope  `json:"rope_scaling"`    // transformers 4, beside rope_theta
	RopeTheta     *float64 `json:"rope_theta"`
}

type hfRope struct {
	Type     string   `json:"rope_type"`
	OldType  string   `json:"type"`
	Theta    *float64 `json:"rope_theta"`
	Factor   float64  `json:"factor"`
	Low      float64  `json:"low_freq_factor"`
	High     float64  `json:"high_freq_factor"`
	Original int      `json:"original_max_position_embeddings"`
}

// idList is one id or a list of them.
type idList []int32

func (l *idList) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]int32)(l))
	}
	var id *int32
	err := json.Unmarshal(b, &id)
	if id != nil {
		*l = idList{*id}
	}
	return err
}

// ReadConfig reads a Hugging Face config.json, in the key style of transformers 4 or 5.
func ReadConfig(path string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("model: %w", err)
	}
	var h hfConfig
	if err := json.Unmarshal(data, &h); err != nil {
		return Config{}, fmt.Errorf("model: %s: %w", path, err)
	}
	c, err := h.config()
	if err != nil {
		return Config{}, fmt.Errorf("model: %s: %w", path, err)
	}
	return c, nil
}

func (h hfConfig) config() (Config, error) {
	c := Config{
		Family: h.ModelType, Vocab: h.Vocab, Width: h.Hidden, Inner: h.Inner, Layers: h.Layers, Heads: h.Heads, KVHeads: h.KVHeads,
		HeadDim: h.HeadDim, Context: h.Context, Eps: h.Eps, Tied: h.Tied, EOS: h.EOS,
		QKVBias: h.AttentionBias, OutBias: h.AttentionBias, MLPBias: h.MLPBias,
	}
	if h.ModelType != "llama" {
		return c, fmt.Errorf("model_type %q is not supported; known: llama", h.ModelType)
	}
	if h.Act != "silu" {
		return c, fmt.Errorf("hidden_act %q is not supported; known: silu", h.Act)
	}
	if c.KVHeads == 0 {
		c.KVHeads = c.Heads
	}
	if c.HeadDim == 0 && c.Heads > 0 {
		c.HeadDim = c.Width / c.Heads
	}
	c.Rope.Theta = 10000
	if h.RopeTheta != nil {
		c.Rope.Theta = *h.RopeTheta
	}
	for _, r := range []*hfRope{h.RopeScaling, h.Rope} {
		if r == nil {
			continue
		}
		if r.Theta != nil {
			c.Rope.Theta = *r.Theta
		}
		c.Rope.Type, c.Rope.Factor, c.Rope.Low, c.Rope.High, c.Rope.Original = r.Type, r.Factor, r.Low, r.High, r.Original
		if c.Rope.Type == "" {
			c.Rope.Type = r.OldType
		}
		if c.Rope.Type == "default" {
			c.Rope.Type = ""
		}
	}
	return c, c.validate()
}

// ggufConfig reads the metadata of a GGUF file of the llama layout.
func ggufConfig(f *gguf.File) (Config, error) {
	arch, err := gguf.Get[string](f, "general.architecture")
	if err != nil {
		return Config{}, err
	}
	if arch != "llama" {
		return Config{}, fmt.Errorf("architecture %q is not supported; known: llama", arch)
	}
	var errs []error
	num := func(key string) int {
		v, err := gguf.Get[int64](f, arch+"."+key)
		errs = append(errs, err)
		return int(v)
	}
	real := func(key string) float64 {
		v, err := gguf.Get[float64](f, arch+"."+key)
		errs = append(errs, err)
		return v
	}
	c := Config{
		Family: "llama", Width: num("embedding_length"), Inner: num("feed_forward_length"), Layers: num("block_count"),
		Heads: num("attention.head_count"), KVHeads: num("attention.head_count_kv"), Context: num("context_length"),
		Eps: real("attention.layer_norm_rms_epsilon"), Rope: Rope{Theta: real("rope.freq_base")},
	}
	if err := errors.Join(errs...); err != nil {
		return c, err
	}
	if c.Heads > 0 {
		c.HeadDim = c.Width / c.Heads
	}
	if embed, ok := f.Lookup("token_embd.weight"); ok && len(embed.Shape) == 2 {
		c.Vocab = embed.Shape[0]
	}
	has := func(name string) bool { _, ok := f.Lookup(name); return ok }
	c.Tied = !has("output.weight")
	c.QKVBias, c.OutBias, c.MLPBias = has("blk.0.attn_q.bias"), has("blk.0.attn_output.bias"), has("blk.0.ffn_gate.bias")
	if kind, ok := f.Meta[arch+".rope.scaling.type"]; has("rope_freqs.weight") || ok && kind != "none" {
		return c, errors.New("the file stretches its rotary frequencies (rope.scaling, rope_freqs): take the Hugging Face folder")
	}
	if c.QKVBias != c.OutBias {
		return c, errors.New("attention biases on some projections only are not the llama layout")
	}
	if id, err := gguf.Get[int64](f, "tokenizer.ggml.eos_token_id"); err == nil {
		c.EOS = []int32{int32(id)}
	}
	return c, c.validate()
}

func (c Config) validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"vocab_size", c.Vocab}, {"hidden_size", c.Width}, {"intermediate_size", c.Inner}, {"num_hidden_layers", c.Layers},
		{"num_attention_heads", c.Heads}, {"num_key_value_heads", c.KVHeads}, {"head_dim", c.HeadDim},
		{"max_position_embeddings", c.Context},
	} {
		if f.value <= 0 || f.value > 1<<30 {
			return fmt.Errorf("%s is missing or out of range (%d)", f.name, f.value)
		}
	}
	if c.Heads%c.KVHeads != 0 || c.HeadDim%2 != 0 {
		return fmt.Errorf("num_attention_heads (%d) must be a multiple of num_key_value_heads (%d), head_dim (%d) even", c.Heads, c.KVHeads,
			c.HeadDim)
	}
	if !(c.Eps > 0) {
		return fmt.Errorf("rms_norm_eps is missing or not positive (%v)", c.Eps)
	}
	return c.Rope.validate()
}
