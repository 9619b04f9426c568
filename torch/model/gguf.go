package model

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model/gguf"
)

// ggufNames maps the parts of a plain name to those that llama.cpp gives them.
var ggufNames = strings.NewReplacer("model.embed_tokens", "token_embd", "model.norm", "output_norm", "lm_head", "output",
	"model.layers.", "blk.", "input_layernorm", "attn_norm", "self_attn.q_norm", "attn_q_norm", "self_attn.k_norm", "attn_k_norm",
	"self_attn.q_proj", "attn_q", "self_attn.k_proj", "attn_k", "self_attn.v_proj", "attn_v", "self_attn.o_proj", "attn_output",
	"post_attention_layernorm", "ffn_norm", "mlp.gate.", "ffn_gate_inp.",
	"mlp.gate_proj", "ffn_gate", "mlp.up_proj", "ffn_up", "mlp.down_proj", "ffn_down")

// sandwichNames comes before it where what attention and the MLP give passes a norm.
var sandwichNames = strings.NewReplacer("post_attention_layernorm", "post_attention_norm", "pre_feedforward_layernorm", "ffn_norm",
	"post_feedforward_layernorm", "post_ffw_norm")

func openGGUF(path string) (*weights, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	c, err := ggufConfig(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("model %s: %w", path, err), f.Close())
	}
	w := &weights{Config: c, Closer: f, shapes: map[string][]int{}}
	for _, t := range f.Tensors {
		if t.Name != "rope_freqs.weight" { // the config has it
			w.shapes[t.Name] = t.Shape
		}
	}
	w.find = func(p Param) stored {
		name := plainNames.Replace(p.Name)
		if c.Sandwich {
			name = sandwichNames.Replace(name)
		}
		if e := expert.FindStringSubmatch(name); e != nil {
			name = strings.TrimSuffix(e[1], "experts") + e[3] + "_proj_exps.weight"
			return c.together(p, e[2], ggufNames.Replace(name), 0, 1)
		}
		return stored{ggufNames.Replace(name), p.Tensor.Shape(), 0}
	}
	permuted := f.Meta["general.architecture"] == "llama"
	var buffer []float32
	w.read = func(p Param, rows torch.Tensor, name string, at int) error {
		t, _ := f.Lookup(name)
		n := rows.Numel()
		buffer = slices.Grow(buffer[:0], n)[:n]
		if err := f.Dequantize(t, at, buffer); err != nil {
			return err
		}
		switch num := rows.Dim(0); {
		case permuted && (strings.Contains(p.Name, ".q_proj.") || strings.Contains(p.Name, ".k_proj.")):
			if err := gguf.UnpermuteRotary(buffer, num/c.HeadDim, num, n/num); err != nil {
				return err
			}
		case c.UnitNorm && strings.HasSuffix(p.Name, "norm.weight"): // llama.cpp stores 1 + w
			for i := range buffer {
				buffer[i]--
			}
		}
		torch.Write(rows, buffer)
		return nil
	}
	return w, nil
}
