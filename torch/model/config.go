package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
)

// Config is the shape of a decoder. It is what differs between families: the decoder itself is one.
type Config struct {
	Arch
	Family      string // model_type of config.json
	Prefix      string // of the decoder's parameter names, "model."
	Vocab       int
	Width       int // width of the residual stream
	Inner       int // width inside the MLP
	Layers      int
	Heads       int
	KVHeads     int
	HeadDim     int
	Context     int     // longest sequence that the positions were made for
	Eps         float64 // of the RMS norms
	Tied        bool    // the head is the embedding
	QKVBias     bool
	OutBias     bool // of the attention's output projection
	MLPBias     bool
	GELU        bool    // the MLP's activation is GELU (tanh), not SiLU
	QueryScalar int     // attention scores are divided by its root
	ClipQKV     float64 // bound of queries, keys and values; 0: none
	AttnCap     float64 // soft cap of attention scores; 0: none
	LogitCap    float64 // soft cap of logits; 0: none
	Rope        Rope
	LocalRope   Rope   // of local layers
	Window      int    // keys that a token of a local layer sees, its own among them
	Local       []bool // by layer; nil: none is local
	MoE         MoE
	EOS         []int32 // ids that end a text, as the model's own files say
	Vision      *Vision // the vision tower, if there is one
}

// MoE is the shape of sparse layers.
type MoE struct {
	Experts   int
	Chosen    int    // experts per token
	Inner     int    // width inside an expert
	Normalize bool   // the weights of the chosen experts add up to 1
	Layers    []bool // which layers are sparse; nil: none
}

// hfConfig is config.json with its defaults filled in. Pointers are for what may be null.
type hfConfig struct {
	ModelType     string    `json:"model_type"`
	Vocab         int       `json:"vocab_size"`
	Hidden        int       `json:"hidden_size"`
	Inner         int       `json:"intermediate_size"`
	Layers        int       `json:"num_hidden_layers"`
	Heads         int       `json:"num_attention_heads"`
	KVHeads       *int      `json:"num_key_value_heads"`
	HeadDim       *int      `json:"head_dim"`
	Context       int       `json:"max_position_embeddings"`
	Eps           float64   `json:"rms_norm_eps"`
	Act           string    `json:"hidden_act"`
	Activation    *string   `json:"hidden_activation"`
	Tied          bool      `json:"tie_word_embeddings"`
	AttentionBias bool      `json:"attention_bias"`
	MLPBias       bool      `json:"mlp_bias"`
	QueryScalar   *int      `json:"query_pre_attn_scalar"`
	ClipQKV       float64   `json:"clip_qkv"`
	AttnCap       float64   `json:"attn_logit_softcapping"`
	LogitCap      float64   `json:"final_logit_softcapping"`
	Bidirectional bool      `json:"use_bidirectional_attention"`
	Window        int       `json:"sliding_window"`
	UseWindow     *bool     `json:"use_sliding_window"`
	WindowFrom    int       `json:"max_window_layers"`
	WindowPattern int       `json:"sliding_window_pattern"`
	LayerTypes    *[]string `json:"layer_types"`
	Experts       int       `json:"num_local_experts"`
	Chosen        int       `json:"num_experts_per_tok"`
	ExpertInner   *int      `json:"moe_intermediate_size"`
	Normalize     bool      `json:"norm_topk_prob"`
	SparseStep    int       `json:"decoder_sparse_step"`
	DenseLayers   []int     `json:"mlp_only_layers"`
	EOS           idList    `json:"eos_token_id"`
	Partial       *float64  `json:"partial_rotary_factor"`
	Theta         float64   `json:"rope_theta"`
	LocalTheta    *float64  `json:"rope_local_base_freq"`
	RopeScaling   *hfRope   `json:"rope_scaling"`    // transformers 4
	Rope          *hfRope   `json:"rope_parameters"` // transformers 5
	hfImages
}

// idList is one id or a list of them.
type idList []int32

func (l *idList) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]int32)(l))
	}
	var id *int32
	err := json.Unmarshal(b, &id)
	if *l = nil; id != nil {
		*l = idList{*id}
	}
	return err
}

// ReadConfig reads a Hugging Face config.json, in the key style of transformers 4 or 5. Absent keys mean what they mean there.
func ReadConfig(path string) (c Config, err error) {
	var file map[string]json.RawMessage
	if err = readJSON(path, &file); err == nil {
		c, err = parse(file)
	}
	if err != nil {
		return Config{}, fmt.Errorf("model: %s: %w", path, err)
	}
	return c, nil
}

// readJSON reads a file of at most 4 MiB: those of real models have less than one.
func readJSON(path string, into any) error {
	const limit = 4 << 20
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Size() > limit:
		return fmt.Errorf("not a file, or larger than %d MiB", limit>>20)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// parse reads the keys of a config.json that its family knows.
func parse(file map[string]json.RawMessage) (Config, error) {
	var name string
	if err := json.Unmarshal(file["model_type"], &name); err != nil {
		return Config{}, fmt.Errorf("model_type must be a string: %w", err)
	}
	f, err := findFamily(name)
	if err != nil {
		return Config{}, err
	}
	if _, ok := visionKinds[name]; ok {
		if file, err = flatten(name, file); err != nil {
			return Config{}, err
		}
	}
	keys := f.keys()
	for k, v := range file {
		if _, ok := file["num_local_experts"]; k == "num_experts" && !ok { // transformers 4
			k = "num_local_experts"
		}
		if _, ok := keys[k]; ok {
			keys[k] = v
		}
	}
	data, err := json.Marshal(keys)
	if err != nil {
		return Config{}, err
	}
	var h hfConfig
	if err := json.Unmarshal(data, &h); err != nil {
		return Config{}, err
	}
	return h.config(f)
}

func (h hfConfig) config(f family) (Config, error) {
	c := Config{
		Arch: f.Arch, Family: h.ModelType, Prefix: "model.", Vocab: h.Vocab, Width: h.Hidden, Inner: h.Inner, Layers: h.Layers,
		Heads: h.Heads, KVHeads: or(h.KVHeads, h.Heads), Context: h.Context, Eps: h.Eps, Tied: h.Tied, EOS: h.EOS,
		QKVBias: h.AttentionBias || f.qkvBias, OutBias: h.AttentionBias, MLPBias: h.MLPBias,
		ClipQKV: h.ClipQKV, AttnCap: h.AttnCap, LogitCap: h.LogitCap,
	}
	c.HeadDim = or(h.HeadDim, h.Hidden/max(h.Heads, 1))
	c.QueryScalar = or(h.QueryScalar, c.HeadDim)
	act := or(h.Activation, h.Act)
	if c.GELU = act == "gelu_pytorch_tanh"; !c.GELU && act != "silu" {
		return c, fmt.Errorf("the activation %q is not supported; known: silu, gelu_pytorch_tanh", act)
	}
	if h.Bidirectional {
		return c, errors.New("use_bidirectional_attention is not supported: the decoder is causal")
	}
	if err := h.ropes(&c); err != nil {
		return c, err
	}
	if err := c.validate(); err != nil { // before anything is as long as there are layers
		return c, err
	}
	return c, errors.Join(h.local(&c), h.sparse(&c), h.vision(&c))
}

// local tells the layers whose attention has a window: those of layer_types, or what the family does without.
func (h hfConfig) local(c *Config) error {
	types := or(h.LayerTypes, make([]string, c.Layers))
	if len(types) != c.Layers {
		return fmt.Errorf("layer_types has %d entries for %d layers", len(types), c.Layers)
	}
	if h.Window < 0 || h.Window > 1<<30 {
		return fmt.Errorf("sliding_window is %d", h.Window)
	}
	if or(h.UseWindow, true) {
		c.Window = h.Window
	}
	for i, t := range types {
		local := t == "sliding_attention"
		switch {
		case t == "" && h.WindowPattern > 0:
			local = (i+1)%h.WindowPattern != 0
		case t == "":
			local = i >= h.WindowFrom && c.Window > 0
		case !local && t != "full_attention":
			return fmt.Errorf("layer type %q is not supported; known: full_attention, sliding_attention", t)
		}
		if local && c.Window == 0 {
			return fmt.Errorf("layer %d is local, but sliding_window is null or off", i)
		}
		if local && c.Local == nil {
			c.Local = make([]bool, c.Layers)
		}
		if local {
			c.Local[i] = true
		}
	}
	return nil
}

// sparse tells the layers that have experts, and what these are.
func (h hfConfig) sparse(c *Config) error {
	if h.Experts == 0 {
		return nil
	}
	c.MoE = MoE{Experts: h.Experts, Chosen: h.Chosen, Inner: or(h.ExpertInner, h.Inner), Normalize: h.Normalize}
	if h.Experts < 0 || h.Experts > 1<<15 || h.Chosen < 1 || h.Chosen > h.Experts {
		return fmt.Errorf("num_experts is %d, num_experts_per_tok %d", h.Experts, h.Chosen)
	}
	if c.MoE.Inner <= 0 || c.MoE.Inner > 1<<30 {
		return fmt.Errorf("moe_intermediate_size is %d", c.MoE.Inner)
	}
	for i := range c.Layers {
		c.MoE.Layers = append(c.MoE.Layers, !slices.Contains(h.DenseLayers, i) && (i+1)%max(h.SparseStep, 1) == 0)
	}
	return nil
}

// or is *p, or v where p is null.
func or[T any](p *T, v T) T {
	if p != nil {
		return *p
	}
	return v
}

func (c Config) validate() error {
	for _, f := range []struct {
		name       string
		value, top int
	}{
		{"vocab_size", c.Vocab, 1 << 30}, {"hidden_size", c.Width, 1 << 24}, {"intermediate_size", c.Inner, 1 << 24},
		{"num_hidden_layers", c.Layers, 1 << 12}, {"num_attention_heads", c.Heads, 1 << 16},
		{"num_key_value_heads", c.KVHeads, 1 << 16}, {"head_dim", c.HeadDim, 1 << 16}, {"query_pre_attn_scalar", c.QueryScalar, 1 << 30},
		{"max_position_embeddings", c.Context, 1 << 30},
	} {
		if f.value <= 0 || f.value > f.top {
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
	if c.ClipQKV < 0 || c.AttnCap < 0 || c.LogitCap < 0 {
		return fmt.Errorf("a cap is negative: clip_qkv %v, attn_logit_softcapping %v, final_logit_softcapping %v", c.ClipQKV, c.AttnCap,
			c.LogitCap)
	}
	return errors.Join(c.Rope.validate(), c.LocalRope.validate())
}
