package model

import (
	"errors"
	"fmt"

	"github.com/molt-go/molt/torch/model/gguf"
)

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
		Arch: families["llama"].Arch, Family: "llama", Prefix: "model.", Width: num("embedding_length"), Inner: num("feed_forward_length"), Layers: num("block_count"),
		Heads: num("attention.head_count"), KVHeads: num("attention.head_count_kv"), Context: num("context_length"),
		Eps: real("attention.layer_norm_rms_epsilon"), Rope: Rope{Theta: real("rope.freq_base")},
	}
	if err := errors.Join(errs...); err != nil {
		return c, err
	}
	if c.Heads > 0 {
		c.HeadDim = c.Width / c.Heads
	}
	c.QueryScalar, c.LocalRope = c.HeadDim, c.Rope
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
