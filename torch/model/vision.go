package model

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
)

// Vision is the shape of a vision tower, which turns the patches of images into rows that stand for tokens of the decoder: the
// vision_config of a config.json.
type Vision struct {
	Kind      string `json:"model_type"`
	Width     int    `json:"hidden_size"`
	Inner     int    `json:"intermediate_size"`
	Layers    int    `json:"depth"`
	Heads     int    `json:"num_heads"`
	Out       int    `json:"out_hidden_size"` // the decoder's width
	Act       string `json:"hidden_act"`      // of the layers; the merger's is GELU
	Channels  int    `json:"in_channels"`
	Patch     int    `json:"patch_size"`                        // pixels on a side of a patch
	Frames    int    `json:"temporal_patch_size"`               // pictures one behind the other in a patch; a still image is repeated
	Merge     int    `json:"spatial_merge_size"`                // patches on a side of the square that becomes one embedding
	Window    int    `json:"window_size,omitempty"`             // pixels on a side of what layers look at; 0: the whole image
	Whole     []int  `json:"fullatt_block_indexes,omitzero"`    // layers that look at the whole image although there are windows
	Table     int    `json:"num_position_embeddings,omitempty"` // learned positions, a square that is stretched over each image
	Deepstack []int  `json:"deepstack_visual_indexes,omitzero"` // layers after which features are taken for the decoder's first layers
	Rope      struct {
		Type  string  `json:"rope_type"` // axial: half of the pairs turn with a patch's row in the image, half with its column
		Theta float64 `json:"rope_theta"`
	} `json:"rope_parameters"`
	Markers `json:"-"`
}

// Markers are ids that config.json has beside its vision_config.
type Markers struct {
	Image int32 `json:"image_token_id"` // stands for rows of an image
	Video int32 `json:"video_token_id"` // or a video
	Start int32 `json:"vision_start_token_id"`
	End   int32 `json:"vision_end_token_id"`
}

// visionKind is what differs between the families that see.
type visionKind struct {
	prefix, decoder string    // how the names of the tower's tensors begin, and of the decoder's
	biased          bool      // LayerNorm, with mean and bias, instead of RMSNorm, and a bias on the patches
	gated           bool      // a gated MLP instead of fc1, activation, fc2
	act             string    // the MLP's
	mergers         [3]string // names in a merger: its norm, first and second matrix
	axes            [3]int    // of M-RoPE, where the configuration is silent, as transformers has it
	turns           bool
	defaults        string // of vision_config
}

var visionKinds = map[string]visionKind{
	"qwen2_5_vl": {"visual.", "model.", false, true, "silu", [3]string{"ln_q", "mlp.0", "mlp.2"}, [3]int{16, 24, 24}, false,
		`{"depth":32,"hidden_size":3584,"intermediate_size":3420,"num_heads":16,
		"out_hidden_size":3584,"hidden_act":"silu","in_channels":3,"patch_size":14,"temporal_patch_size":2,"spatial_merge_size":2,
		"window_size":112,"fullatt_block_indexes":[7,15,23,31],"rope_parameters":{"rope_type":"axial","rope_theta":10000}}`},
	"qwen3_vl": {"model.visual.", "model.language_model.", true, false, "gelu_pytorch_tanh",
		[3]string{"norm", "linear_fc1", "linear_fc2"}, [3]int{24, 20, 20}, true,
		`{"depth":27,"hidden_size":1152,"intermediate_size":4304,"num_heads":16,
		"out_hidden_size":3584,"hidden_act":"gelu_pytorch_tanh","in_channels":3,"patch_size":16,"temporal_patch_size":2,
		"spatial_merge_size":2,"num_position_embeddings":2304,"deepstack_visual_indexes":[8,16,24],
		"rope_parameters":{"rope_type":"axial","rope_theta":10000}}`},
}

const visionEps = 1e-6 // of every norm in a tower; no configuration says it

// flatten puts the keys of text_config, where a family's config.json has one, beside the others. Whether the head is tied the others
// say, but the older family's files have it in either place.
func flatten(family string, file map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	var text map[string]json.RawMessage
	if raw, ok := file["text_config"]; ok {
		if err := json.Unmarshal(raw, &text); err != nil {
			return nil, fmt.Errorf("text_config: %w", err)
		}
	}
	flat := maps.Clone(file)
	for k, v := range text {
		_, said := file[k]
		if k != "model_type" && (k != "tie_word_embeddings" || !said || family == "qwen2_5_vl" && string(v) == "true") {
			flat[k] = v
		}
	}
	return flat, nil
}

// nest is flatten's inverse for a c that sees.
func (c Config) nest(flat map[string]any) map[string]any {
	v, rope := c.Vision, c.Rope
	rope.Type = cmp.Or(rope.Type, "default")
	root := map[string]any{
		"architectures": flat["architectures"], "model_type": c.Family, "torch_dtype": flat["torch_dtype"],
		"tie_word_embeddings": c.Tied, "text_config": flat, "vision_config": v,
		"image_token_id": v.Image, "video_token_id": v.Video, "vision_start_token_id": v.Start, "vision_end_token_id": v.End,
	}
	flat["model_type"], flat["rope_scaling"] = c.Family+"_text", rope
	delete(flat, "architectures")
	return root
}

// vision sets c's vision tower and what of the decoder goes with it.
func (h hfConfig) vision(c *Config) error {
	k, ok := visionKinds[c.Family]
	if !ok {
		return nil
	}
	if c.Prefix, c.Rope.Turns = k.decoder, k.turns; c.Rope.Axes == [3]int{} {
		c.Rope.Axes = k.axes
	}
	t, height, width := c.Rope.Axes[0], c.Rope.Axes[1], c.Rope.Axes[2]
	if min(t, height, width) < 0 || !c.Rope.Turns && t+height+width != c.HeadDim/2 {
		return fmt.Errorf("mrope_section (%v) must add up to half of head_dim (%d)", c.Rope.Axes, c.HeadDim)
	}
	c.LocalRope = c.Rope
	v := &Vision{Markers: h.Markers}
	for _, text := range []string{k.defaults, string(h.Tower)} {
		if err := json.Unmarshal([]byte(text), v); err != nil {
			return fmt.Errorf("vision_config: %w", err)
		}
	}
	v.Kind, c.Vision = c.Family+"_vision", v
	if err := v.validate(k, c.Width); err != nil {
		return fmt.Errorf("vision_config: %w", err)
	}
	return nil
}

// validate takes the width of the decoder.
func (v *Vision) validate(k visionKind, width int) error {
	switch {
	case min(v.Width, v.Inner, v.Layers, v.Heads, v.Patch, v.Frames, v.Merge, v.Window+1, v.Table+1) < 1 || v.Layers > 1<<12 ||
		max(v.Width, v.Inner, v.Heads, v.Window, v.Table) > 1<<20 || max(v.Patch, v.Frames, v.Merge) > 1<<10:
		return fmt.Errorf("a size is out of range: %+v", *v)
	case v.Act != k.act:
		return fmt.Errorf("hidden_act %q is not supported; known: %s", v.Act, k.act)
	case v.Channels != 3 || v.Rope.Type != "axial" || !(v.Rope.Theta > 0):
		return fmt.Errorf("in_channels must be 3, rope_type axial and rope_theta positive, not %d, %+v", v.Channels, v.Rope)
	case v.Out != width:
		return fmt.Errorf("out_hidden_size is %d, the decoder's hidden_size %d", v.Out, width)
	case v.Width%(4*v.Heads) != 0:
		return fmt.Errorf("hidden_size (%d) must be a multiple of 4·num_heads (4·%d)", v.Width, v.Heads)
	case v.side()*v.side() != v.Table:
		return fmt.Errorf("num_position_embeddings (%d) must be a square", v.Table)
	case v.Window > 0 && v.Window < v.Patch*v.Merge:
		return fmt.Errorf("window_size (%d) must hold %d patches of %d pixels", v.Window, v.Merge, v.Patch)
	}
	for i, layer := range v.Deepstack {
		if layer < 0 || layer >= v.Layers || i > 0 && layer <= v.Deepstack[i-1] {
			return fmt.Errorf("deepstack_visual_indexes %v must be of %d layers, ascending", v.Deepstack, v.Layers)
		}
	}
	return nil
}

// side is how many learned positions there are on a side of their square.
func (v *Vision) side() int { return int(math.Sqrt(float64(v.Table))) }
