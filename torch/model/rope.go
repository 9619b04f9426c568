package model

import (
	"fmt"
	"math"
)

// Rope is a rotary position embedding: its base and, for long contexts, how frequencies were stretched.
type Rope struct {
	Theta    float64
	Type     string  // "" (as it is), "linear", "llama3"
	Factor   float64 // stretch
	Low      float64 // llama3: wavelengths above Original/Low are stretched by Factor
	High     float64 // llama3: wavelengths below Original/High are kept
	Original int     // llama3: the context before stretching
}

func (r Rope) validate() error {
	if !(r.Theta > 0) {
		return fmt.Errorf("rope_theta is missing or not positive (%v)", r.Theta)
	}
	switch r.Type {
	case "":
		return nil
	case "linear":
	case "llama3":
		if !(r.Low > 0) || !(r.High > r.Low) || r.Original <= 0 {
			return fmt.Errorf("rope_type llama3 needs 0 < low_freq_factor < high_freq_factor, original_max_position_embeddings; not %v", r)
		}
	default:
		return fmt.Errorf("rope_type %q is not supported; known: default, linear, llama3", r.Type)
	}
	if !(r.Factor > 0) {
		return fmt.Errorf("rope_type %q needs a positive factor, not %v", r.Type, r.Factor)
	}
	return nil
}

// frequencies are the d/2 angles per position, rounded to float32 where transformers rounds.
func (r Rope) frequencies(d int) []float32 {
	f := make([]float32, d/2)
	for i := range f {
		f[i] = 1 / float32(math.Pow(r.Theta, float64(float32(2*i)/float32(d))))
		switch r.Type {
		case "linear":
			f[i] /= float32(r.Factor)
		case "llama3":
			f[i] = r.llama3(f[i])
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

// angles gives cos and sin [len(positions), d/2] of position × frequency, the product in float32 as transformers has it.
func (r Rope) angles(positions []int32, d int) (cos, sin []float32) {
	f := r.frequencies(d)
	cos, sin = make([]float32, len(positions)*len(f)), make([]float32, len(positions)*len(f))
	for i, p := range positions {
		for j, w := range f {
			s, c := math.Sincos(float64(float32(p) * w))
			cos[i*len(f)+j], sin[i*len(f)+j] = float32(c), float32(s)
		}
	}
	return cos, sin
}
