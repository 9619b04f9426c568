package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
)

// Vision is the shape of a vision tower, which turns the patches of images into rows that stand for tokens of the decoder.
type Vision struct {
	Width, Inner, Layers, Heads int

	Patch     int     // pixels on a side of a patch
	Frames    int     // pictures one behind the other in a patch; a still image is repeated
	Merge     int     // patches on a side of the square that becomes one embedding
	Side      int     // patches on a side of the learned position table, which is stretched over each image; 0: there is none
	Window    int     // pixels on a side of the squares that layers look at; 0: the whole image
	Whole     []int   // layers that look at the whole image although there are windows
	Deepstack []int   // layers after which features are taken for the decoder's first layers
	Theta     float64 // of the rotary: half of its pairs turn with a patch's row in the image, half with its column

	Image, Video, Start, End int32 // ids of the tokens that stand for rows of an image or a video, and of those around them
}

// visionKind is what differs between the families that see.
type visionKind struct {
	tower, decoder string    // how the names of their tensors begin
	biased         bool      // LayerNorm, with mean and bias, instead of RMSNorm, and a bias on the patches
	gated          bool      // a gated MLP instead of fc1, activation, fc2
	act            string    // the MLP's
	merger         [3]string // names in the merger: its norm, first and second matrix
	axes           [3]int    // of M-RoPE, where the configuration is silent, as transformers has it
	interlaced     bool
	defaults       string // of vision_config
}

var visionKinds = map[string]visionKind{
	"qwen2_5_vl": {"visual.", "model.", false, true, "silu", [3]string{"ln_q", "mlp.0", "mlp.2"}, [3]int{16, 24, 24}, false,
		`{"model_type":"qwen2_5_vl_vision","depth":32,"hidden_size":3584,"intermediate_size":3420,"num_heads":16,
		"out_hidden_size":3584,"hidden_act":"silu","in_channels":3,"patch_size":14,"temporal_patch_size":2,"spatial_merge_size":2,
		"window_size":112,"fullatt_block_indexes":[7,15,23,31],"rope_parameters":{"rope_type":"axial","rope_theta":10000}}`},
	"qwen3_vl": {"model.visual.", "model.language_model.", true, false, "gelu_pytorch_tanh",
		[3]string{"norm", "linear_fc1", "linear_fc2"}, [3]int{24, 20, 20}, true,
		`{"model_type":"qwen3_vl_vision","depth":27,"hidden_size":1152,"intermediate_size":4304,"num_heads":16,
		"out_hidden_size":3584,"hidden_act":"gelu_pytorch_tanh","in_channels":3,"patch_size":16,"temporal_patch_size":2,
		"spatial_merge_size":2,"num_position_embeddings":2304,"deepstack_visual_indexes":[8,16,24],
		"rope_parameters":{"rope_type":"axial","rope_theta":10000}}`},
}

const visionEps = 1e-6 // of every norm in a tower; no configuration says it

// hfImages are the keys of config.json that only the families that see have.
type hfImages struct {
	Tower json.RawMessage `json:"vision_config"`
	Image int32           `json:"image_token_id"`
	Video int32           `json:"video_token_id"`
	Start int32           `json:"vision_start_token_id"`
	End   int32           `json:"vision_end_token_id"`
}

// hfVision is the vision_config of config.json.
type hfVision struct {
	ModelType string `json:"model_type"`
	Layers    int    `json:"depth"`
	Width     int    `json:"hidden_size"`
	Inner     int    `json:"intermediate_size"`
	Heads     int    `json:"num_heads"`
	Out       int    `json:"out_hidden_size"`
	Act       string `json:"hidden_act"`
	Channels  int    `json:"in_channels"`
	Patch     int    `json:"patch_size"`
	Frames    int    `json:"temporal_patch_size"`
	Merge     int    `json:"spatial_merge_size"`
	Window    int    `json:"window_size,omitempty"`
	Whole     []int  `json:"fullatt_block_indexes,omitzero"`
	Table     int    `json:"num_position_embeddings,omitempty"`
	Deepstack []int  `json:"deepstack_visual_indexes,omitzero"`
	Rope      struct {
		Type  string  `json:"rope_type"`
		Theta float64 `json:"rope_theta"`
	} `json:"rope_parameters"`
}

// flatten puts the keys of text_config, where a config.json has one, beside the others.
func flatten(file map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	var text map[string]json.RawMessage
	if raw, ok := file["text_config"]; ok {
		if err := json.Unmarshal(raw, &text); err != nil {
			return nil, fmt.Errorf("text_config: %w", err)
		}
	}
	flat := maps.Clone(file)
	for k, v := range text {
		if k != "model_type" && (k != "tie_word_embeddings" || string(v) == "true") {
			flat[k] = v
		}
	}
	return flat, nil
}

// nest is flatten's inverse for a c that sees.
func (c Config) nest(flat map[string]any) map[string]any {
	v, k := c.Vision, visionKinds[c.Family]
	rope := c.Rope.keys()
	if rope["mrope_section"] = c.Rope.Axes; k.interlaced {
		rope["mrope_interleaved"] = true
	}
	h := hfVision{
		ModelType: c.Family + "_vision", Layers: v.Layers, Width: v.Width, Inner: v.Inner, Heads: v.Heads, Out: c.Width, Act: k.act, Channels: 3,
		Patch: v.Patch, Frames: v.Frames, Merge: v.Merge, Window: v.Window, Whole: v.Whole, Table: v.Side * v.Side, Deepstack: v.Deepstack,
	}
	h.Rope.Type, h.Rope.Theta = "axial", v.Theta
	root := map[string]any{
		"architectures": flat["architectures"], "model_type": c.Family, "torch_dtype": flat["torch_dtype"],
		"tie_word_embeddings": c.Tied, "text_config": flat, "vision_config": h,
		"image_token_id": v.Image, "video_token_id": v.Video, "vision_start_token_id": v.Start, "vision_end_token_id": v.End,
	}
	flat["model_type"], flat["rope_scaling"] = c.Family+"_text", rope
	delete(flat, "architectures")
	return root
}

// vision sets c's vision tower and what of the decoder goes with it.
func (h hfConfig) vision(c *Config) (err error) {
	k, ok := visionKinds[c.Family]
	if !ok {
		return nil
	}
	c.Prefix, c.Rope.Axes, c.Rope.Interlaced = k.decoder, k.axes, k.interlaced
	if axes := or(h.RopeScaling, or(h.Rope, hfRope{})).Axes; axes != nil {
		if len(axes) != 3 {
			return fmt.Errorf("mrope_section must be three numbers, not %v", axes)
		}
		c.Rope.Axes = [3]int(axes)
	}
	t, height, width := c.Rope.Axes[0], c.Rope.Axes[1], c.Rope.Axes[2]
	if min(t, height, width) < 0 || !c.Rope.Interlaced && t+height+width != c.HeadDim/2 {
		return fmt.Errorf("mrope_section (%v) must add up to half of head_dim (%d)", c.Rope.Axes, c.HeadDim)
	}
	c.LocalRope = c.Rope
	c.Vision, err = h.hfImages.read(k, c.Width)
	return err
}

// read takes what is not given from the family; width is the decoder's.
func (i hfImages) read(k visionKind, width int) (*Vision, error) {
	var h hfVision
	for _, text := range []string{k.defaults, string(i.Tower)} {
		if err := json.Unmarshal([]byte(text), &h); err != nil {
			return nil, fmt.Errorf("vision_config: %w", err)
		}
	}
	v := &Vision{
		Width: h.Width, Inner: h.Inner, Layers: h.Layers, Heads: h.Heads, Patch: h.Patch, Frames: h.Frames, Merge: h.Merge,
		Side: int(math.Sqrt(float64(h.Table))), Window: h.Window, Whole: h.Whole, Deepstack: h.Deepstack, Theta: h.Rope.Theta,
		Image: i.Image, Video: i.Video, Start: i.Start, End: i.End,
	}
	for _, f := range []struct {
		name       string
		value, top int
	}{
		{"hidden_size", v.Width, 1 << 16}, {"intermediate_size", v.Inner, 1 << 20}, {"depth", v.Layers, 1 << 12},
		{"num_heads", v.Heads, 1 << 16}, {"patch_size", v.Patch, 1 << 10}, {"temporal_patch_size", v.Frames, 1 << 10},
		{"spatial_merge_size", v.Merge, 1 << 10}, {"window_size + 1", v.Window + 1, 1 << 20},
		{"num_position_embeddings + 1", h.Table + 1, 1 << 24},
	} {
		if f.value <= 0 || f.value > f.top {
			return nil, fmt.Errorf("vision_config: %s is out of range (%d)", f.name, f.value)
		}
	}
	switch {
	case h.Act != k.act:
		return nil, fmt.Errorf("vision_config: hidden_act %q is not supported; known: %s", h.Act, k.act)
	case h.Channels != 3 || h.Rope.Type != "axial" || !(v.Theta > 0):
		return nil, fmt.Errorf("vision_config: in_channels must be 3, rope_type axial and rope_theta positive, not %d, %q, %v", h.Channels,
			h.Rope.Type, v.Theta)
	case h.Out != width:
		return nil, fmt.Errorf("vision_config: out_hidden_size is %d, the decoder's hidden_size %d", h.Out, width)
	case v.Width%(4*v.Heads) != 0:
		return nil, fmt.Errorf("vision_config: hidden_size (%d) must be a multiple of 4·num_heads (4·%d)", v.Width, v.Heads)
	case v.Side*v.Side != h.Table:
		return nil, fmt.Errorf("vision_config: num_position_embeddings (%d) must be a square", h.Table)
	case v.Window > 0 && v.Window < v.Patch*v.Merge:
		return nil, fmt.Errorf("vision_config: window_size (%d) must hold %d patches of %d pixels", v.Window, v.Merge, v.Patch)
	}
	for i, layer := range v.Deepstack {
		if layer < 0 || layer >= v.Layers || i > 0 && layer <= v.Deepstack[i-1] {
			return nil, fmt.Errorf("vision_config: deepstack_visual_indexes %v must be of %d layers, ascending", v.Deepstack, v.Layers)
		}
	}
	return v, nil
}
