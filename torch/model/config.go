package model

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// Config is the shape of a decoder. It is what differs between families: the decoder itself is one. Fields with a key are those of
// config.json.
type Config struct {
	Arch
	Family      string  `json:"model_type"`
	Prefix      string  // of the decoder's parameter names, "model."
	Vocab       int     `json:"vocab_size"`
	Width       int     `json:"hidden_size"`       // of the residual stream
	Inner       int     `json:"intermediate_size"` // inside the MLP
	Layers      int     `json:"num_hidden_layers"`
	Heads       int     `json:"num_attention_heads"`
	KVHeads     int     `json:"num_key_value_heads"`
	HeadDim     int     `json:"head_dim"`
	Context     int     `json:"max_position_embeddings"` // longest sequence that the positions were made for
	Eps         float64 `json:"rms_norm_eps"`
	Tied        bool    `json:"tie_word_embeddings"` // the head is the embedding
	QKVBias     bool
	OutBias     bool    `json:"attention_bias"` // of the attention's output projection
	MLPBias     bool    `json:"mlp_bias"`
	GELU        bool    // the MLP's activation is GELU (tanh), not SiLU
	QueryScalar int     `json:"query_pre_attn_scalar"`   // attention scores are divided by its root
	ClipQKV     float64 `json:"clip_qkv"`                // bound of queries, keys and values; 0: none
	AttnCap     float64 `json:"attn_logit_softcapping"`  // soft cap of attention scores; 0: none
	LogitCap    float64 `json:"final_logit_softcapping"` // soft cap of logits; 0: none
	Rope        Rope
	LocalRope   Rope   // of local layers
	Window      int    `json:"sliding_window"` // keys that a token of a local layer sees, its own among them
	Local       []bool // by layer; nil: none is local
	MoE
	EOS    []int32 // ids that end a text, as the model's own files say
	Vision *Vision // the vision tower, if there is one
}

// MoE is the shape of sparse layers.
type MoE struct {
	Experts   int    `json:"num_local_experts"`
	Chosen    int    `json:"num_experts_per_tok"`
	Inner     int    `json:"moe_intermediate_size"` // inside an expert
	Normalize bool   `json:"norm_topk_prob"`        // the weights of the chosen experts add up to 1
	Layers    []bool // which layers are sparse; nil: none
}

// hfConfig is a config.json with its defaults filled in: a Config, and what the rest of that follows from.
type hfConfig struct {
	Config
	EOS           idList          `json:"eos_token_id"`
	Act           string          `json:"hidden_act"`
	Activation    string          `json:"hidden_activation"`
	Bidirectional bool            `json:"use_bidirectional_attention"`
	UseWindow     *bool           `json:"use_sliding_window"`
	WindowFrom    int             `json:"max_window_layers"`
	WindowPattern int             `json:"sliding_window_pattern"`
	LayerTypes    []string        `json:"layer_types"`
	SparseStep    int             `json:"decoder_sparse_step"`
	DenseLayers   []int           `json:"mlp_only_layers"`
	Partial       *float64        `json:"partial_rotary_factor"`
	Theta         float64         `json:"rope_theta"`
	LocalTheta    *float64        `json:"rope_local_base_freq"`
	RopeScaling   *hfRope         `json:"rope_scaling"`    // transformers 4
	Rope          *hfRope         `json:"rope_parameters"` // transformers 5
	Tower         json.RawMessage `json:"vision_config"`
	Markers
}

// idList is one id or a list of them.
type idList []int32

func (l *idList) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] != '[' && b[0] != 'n' { // null
		b = slices.Concat([]byte("["), b, []byte("]"))
	}
	return json.Unmarshal(b, (*[]int32)(l))
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
	case !info.Mode().IsRegular(): // a pipe would block
		return errors.New("not a file")
	case info.Size() > limit:
		return fmt.Errorf("larger than %d MiB", limit>>20)
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
	f, ok := families[name]
	if !ok {
		known := strings.Join(slices.Sorted(maps.Keys(families)), ", ")
		return Config{}, fmt.Errorf("model_type %.200q is not supported; known: %s", name, known)
	}
	if _, ok := visionKinds[name]; ok {
		var err error
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
	c := h.Config // where null is 0
	c.Arch, c.Prefix, c.EOS, c.QKVBias = f.Arch, "model.", h.EOS, c.OutBias || f.qkvBias
	c.KVHeads, c.HeadDim = cmp.Or(c.KVHeads, c.Heads), cmp.Or(c.HeadDim, c.Width/max(c.Heads, 1))
	c.QueryScalar = cmp.Or(c.QueryScalar, c.HeadDim)
	act := cmp.Or(h.Activation, h.Act)
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
	types := h.LayerTypes
	if types == nil {
		types = make([]string, c.Layers)
	}
	if len(types) != c.Layers {
		return fmt.Errorf("layer_types has %d entries for %d layers", len(types), c.Layers)
	}
	if c.Window < 0 || c.Window > 1<<30 {
		return fmt.Errorf("sliding_window is %d", c.Window)
	}
	if !or(h.UseWindow, true) {
		c.Window = 0
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
	if c.Experts == 0 {
		return nil
	}
	if c.Experts < 0 || c.Experts > 1<<15 || c.Chosen < 1 || c.Chosen > c.Experts {
		return fmt.Errorf("num_experts is %d, num_experts_per_tok %d", c.Experts, c.Chosen)
	}
	if c.MoE.Inner = cmp.Or(c.MoE.Inner, c.Inner); c.MoE.Inner < 0 || c.MoE.Inner > 1<<30 {
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
