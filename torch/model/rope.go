package model

import (
	"errors"
	"fmt"
	"math"
)

// Rope is a rotary position embedding: its base and, for long contexts, how frequencies were stretched.
type Rope struct {
	Theta      float64
	Type       string  // "" (as it is), "linear", "llama3", "yarn"
	Factor     float64 // stretch
	Low        float64 // llama3: wavelengths above Original/Low are stretched by Factor; yarn: beta_slow, the same in turns
	High       float64 // llama3: wavelengths below Original/High are kept; yarn: beta_fast
	Original   int     // llama3, yarn: the context before stretching
	Scale      float64 // yarn: of cos and sin
	Continuous bool    // yarn: the ramp between kept and stretched begins and ends between two frequencies
	Axes       [3]int  // M-RoPE: how many pairs turn with a row's time, height and width; all 0: with its one position
	Interlaced bool    // M-RoPE: the axes take turns, instead of following one another
}

// hfRope is rope_parameters or rope_scaling; where the two kinds of layers differ, it holds one of each.
type hfRope struct {
	Type      string   `json:"rope_type"`
	OldType   string   `json:"type"`
	Theta     *float64 `json:"rope_theta"`
	Partial   *float64 `json:"partial_rotary_factor"`
	Factor    float64  `json:"factor"`
	Low       float64  `json:"low_freq_factor"`
	High      float64  `json:"high_freq_factor"`
	Original  int      `json:"original_max_position_embeddings"`
	Fast      float64  `json:"beta_fast"`
	Slow      float64  `json:"beta_slow"`
	Attention *float64 `json:"attention_factor"`
	MScale    float64  `json:"mscale"`
	MScaleAll float64  `json:"mscale_all_dim"`
	Truncate  *bool    `json:"truncate"`
	Axes      []int    `json:"mrope_section"`
	Full      *hfRope  `json:"full_attention"`
	Sliding   *hfRope  `json:"sliding_attention"`
}

// ropes sets c's rotary embeddings from either key style.
func (h hfConfig) ropes(c *Config) (err error) {
	all := or(h.Rope, hfRope{})
	if h.LocalTheta == nil { // the family has one for all layers
		if all.Full != nil || all.Sliding != nil {
			return fmt.Errorf("rope_parameters by layer type are not supported for model_type %q", c.Family)
		}
		c.Rope, err = or(h.RopeScaling, all).rope(h.Theta, h.Partial, c.Context)
		c.LocalRope = c.Rope
		return err
	}
	full, sliding := or(all.Full, hfRope{}), or(all.Sliding, hfRope{})
	theta := or(full.Theta, h.Theta)
	if c.Rope, err = or(h.RopeScaling, full).rope(theta, h.Partial, c.Context); err == nil {
		c.LocalRope, err = sliding.rope(*h.LocalTheta, h.Partial, c.Context)
	}
	return err
}

// rope takes theta where r has none.
func (r hfRope) rope(theta float64, partial *float64, context int) (Rope, error) {
	out := Rope{Theta: or(r.Theta, theta), Type: r.Type}
	if out.Type == "" {
		out.Type = r.OldType
	}
	if or(r.Partial, or(partial, 1)) != 1 {
		return out, errors.New("partial_rotary_factor is not supported")
	}
	switch out.Type {
	case "default", "mrope":
		out.Type = ""
	case "linear":
		out.Factor = r.Factor
	case "llama3":
		out.Factor, out.Low, out.High, out.Original = r.Factor, r.Low, r.High, r.Original
	case "yarn":
		out.Factor, out.Low, out.High, out.Original = r.Factor, r.Slow, r.Fast, r.Original
		out.Continuous = !or(r.Truncate, true)
		if out.Low == 0 {
			out.Low = 1
		}
		if out.High == 0 {
			out.High = 32
		}
		if out.Scale = yarnScale(r.Factor, 1); r.MScale != 0 && r.MScaleAll != 0 {
			out.Scale = yarnScale(r.Factor, r.MScale) / yarnScale(r.Factor, r.MScaleAll)
		}
		out.Scale = or(r.Attention, out.Scale)
	}
	if out.Original == 0 && (out.Type == "llama3" || out.Type == "yarn") {
		out.Original = context
	}
	return out, nil
}

// yarnScale grows with the logarithm of the stretch (YaRN, equation 22).
func yarnScale(factor, weight float64) float64 {
	if factor <= 1 {
		return 1
	}
	return 0.1*weight*math.Log(factor) + 1
}

// keys are r as a rope_scaling or an entry of rope_parameters.
func (r Rope) keys() map[string]any {
	keys := map[string]any{"rope_type": r.Type, "rope_theta": real(r.Theta), "factor": real(r.Factor)}
	switch r.Type {
	case "":
		return map[string]any{"rope_type": "default", "rope_theta": real(r.Theta)}
	case "llama3":
		keys["low_freq_factor"], keys["high_freq_factor"], keys["original_max_position_embeddings"] = real(r.Low), real(r.High), r.Original
	case "yarn":
		keys["beta_slow"], keys["beta_fast"], keys["original_max_position_embeddings"] = real(r.Low), real(r.High), r.Original
		keys["attention_factor"], keys["truncate"] = real(r.Scale), !r.Continuous
	}
	return keys
}

func (r Rope) validate() error {
	if !(r.Theta > 0) {
		return fmt.Errorf("rope_theta is missing or not positive (%v)", r.Theta)
	}
	switch r.Type {
	case "":
		return nil
	case "linear":
	case "llama3", "yarn":
		if !(r.Low > 0) || !(r.High > r.Low) || r.Original <= 0 {
			return fmt.Errorf("rope_type %q needs 0 < low_freq_factor < high_freq_factor (beta_slow < beta_fast) and "+
				"original_max_position_embeddings; not %+v", r.Type, r)
		}
		if r.Type == "yarn" && !(r.Scale > 0) {
			return fmt.Errorf("rope_type yarn needs a positive attention_factor, not %v", r.Scale)
		}
	default:
		return fmt.Errorf("rope_type %q is not supported; known: default, linear, llama3, yarn", r.Type)
	}
	if !(r.Factor > 0) {
		return fmt.Errorf("rope_type %q needs a positive factor, not %v", r.Type, r.Factor)
	}
	return nil
}

// frequencies are the d/2 angles per position, rounded to float32 where transformers rounds.
func (r Rope) frequencies(d int) []float32 {
	f := make([]float32, d/2)
	from, width := r.ramp(d)
	for i := range f {
		power := float32(math.Pow(r.Theta, float64(float32(2*i)/float32(d))))
		f[i] = 1 / power
		switch r.Type {
		case "linear":
			f[i] /= float32(r.Factor)
		case "llama3":
			f[i] = r.llama3(f[i])
		case "yarn":
			stretched := min(max((float32(i)-from)/width, 0), 1)
			f[i] = 1/(float32(r.Factor)*power)*stretched + f[i]*(1-stretched)
		}
	}
	return f
}

// llama3 keeps short wavelengths, stretches long ones and blends in between (Llama 3.1's scaling).
func (r Rope) llama3(f float32) float32 {
	wavelength := 2 * math.Pi / float64(f)
	original := float64(r.Original)
	switch {
	case wavelength < original/r.High:
		return f
	case wavelength > original/r.Low:
		return f / float32(r.Factor)
	}
	smooth := float32((original/wavelength - r.Low) / (r.High - r.Low))
	return (1-smooth)*f/float32(r.Factor) + smooth*f
}

// ramp is where yarn begins to stretch, at the frequency that turns High times within the original context, and how far it is from
// there to the one that turns Low times, from where on it stretches in full.
func (r Rope) ramp(d int) (from, width float32) {
	if r.Type != "yarn" {
		return 0, 0
	}
	at := func(turns float64) float64 {
		return float64(d) * math.Log(float64(r.Original)/(turns*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	low, high := at(r.High), at(r.Low)
	if !r.Continuous {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(d-1))
	if low == high {
		high += 0.001
	}
	return float32(low), float32(high - low)
}

// angles gives cos and sin [b.Len(), d/2] of position × frequency, the product in float32 as transformers has it.
func (r Rope) angles(b *Batch, d int) (cos, sin []float32) {
	f := r.frequencies(d)
	scale := 1.0
	if r.Type == "yarn" {
		scale = r.Scale
	}
	cos, sin = make([]float32, b.Len()*len(f)), make([]float32, b.Len()*len(f))
	images := b.Images
	for i, p := range b.Positions {
		at := [3]int32{p, p, p}
		if len(images) > 0 && int(images[0].Row) == i {
			at, images = images[0].At, images[1:]
		}
		for j, w := range f {
			s, c := math.Sincos(float64(float32(at[r.axis(j)]) * w))
			cos[i*len(f)+j], sin[i*len(f)+j] = float32(scale*c), float32(scale*s)
		}
	}
	return cos, sin
}

// axis is the one that pair j turns with.
func (r Rope) axis(j int) int {
	switch k := j % 3; {
	case r.Interlaced && j < 3*r.Axes[k]:
		return k
	case r.Interlaced || j < r.Axes[0]:
		return 0
	case j < r.Axes[0]+r.Axes[1]:
		return 1
	}
	return 2
}
