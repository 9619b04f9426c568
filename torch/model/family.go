package model

import (
	"encoding/json"
	"fmt"
)

// Arch is what a family's decoder has that not every decoder has; the rest of the differences are numbers in its config.json.
type Arch struct {
	Class      string // the family's name in transformers' "architectures"
	QKNorm     string // "head": queries and keys pass a norm head by head; "width": over all heads
	Sandwich   bool   // what attention and the MLP give passes a norm before it is added
	UnitNorm   bool   // norms multiply by 1 + w, in float32
	ScaleEmbed bool   // embeddings are multiplied by √hidden_size
	RoundGates bool   // the weights of the chosen experts are rounded to the model's dtype
	Sparse     sparseNames
}

// sparseNames are the parameters of a sparse layer; an expert's stand under its number.
type sparseNames struct{ Router, Experts, Gate, Up, Down string }

// family is a row of the table: what the code does, and config.json's keys with the values that transformers gives to absent ones.
// A key that is not there means nothing to the family.
type family struct {
	Arch
	qkvBias  bool // biases on these projections, whatever the config says
	defaults string
}

var (
	mlpExperts = sparseNames{"mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"}
	w123       = sparseNames{"block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"}
)

// families by model_type, with the defaults of transformers 5.24.
var families = map[string]family{
	"llama": {Arch{Class: "LlamaForCausalLM"}, false, `"vocab_size":32000,"hidden_size":4096,"intermediate_size":11008,
		"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":null,"max_position_embeddings":2048,
		"attention_bias":false,"mlp_bias":false,"eos_token_id":2`},
	"mistral": {Arch{Class: "MistralForCausalLM"}, false, `"vocab_size":32000,"hidden_size":4096,"intermediate_size":14336,
		"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"max_position_embeddings":131072,
		"sliding_window":4096,"eos_token_id":2`},
	"qwen2": {Arch{Class: "Qwen2ForCausalLM"}, true, qwen + `"use_sliding_window":false,"sliding_window":4096,"max_window_layers":28,
		"layer_types":null`},
	"qwen3": {Arch{Class: "Qwen3ForCausalLM", QKNorm: "head"}, false, qwen + `"head_dim":128,"attention_bias":false,
		"use_sliding_window":false,"sliding_window":4096,"max_window_layers":28,"layer_types":null`},
	"qwen3_moe": {Arch{Class: "Qwen3MoeForCausalLM", QKNorm: "head", RoundGates: true, Sparse: mlpExperts}, false,
		`"vocab_size":151936,"hidden_size":2048,"intermediate_size":6144,"num_hidden_layers":24,"num_attention_heads":32,
		"num_key_value_heads":4,"max_position_embeddings":32768,"attention_bias":false,"use_sliding_window":false,
		"sliding_window":4096,"num_local_experts":128,"num_experts_per_tok":8,"moe_intermediate_size":768,"norm_topk_prob":false,
		"decoder_sparse_step":1,"mlp_only_layers":null`},
	"mixtral": {Arch{Class: "MixtralForCausalLM", Sparse: w123}, false, `"vocab_size":32000,"hidden_size":4096,
		"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"rms_norm_eps":1e-5,
		"max_position_embeddings":131072,"rope_theta":1e6,"sliding_window":null,"num_local_experts":8,"num_experts_per_tok":2,
		"norm_topk_prob":true,"eos_token_id":2`},
	"olmoe": {Arch{Class: "OlmoeForCausalLM", QKNorm: "width", RoundGates: true, Sparse: mlpExperts}, false,
		`"vocab_size":50304,"hidden_size":2048,"intermediate_size":2048,"num_hidden_layers":16,"num_attention_heads":16,
		"num_key_value_heads":null,"max_position_embeddings":4096,"rms_norm_eps":1e-5,"attention_bias":false,"clip_qkv":null,
		"num_local_experts":64,"num_experts_per_tok":8,"norm_topk_prob":false,"eos_token_id":50279`},
	"gemma2": {Arch{Class: "Gemma2ForCausalLM", Sandwich: true, UnitNorm: true, ScaleEmbed: true}, false,
		`"attn_logit_softcapping":50,"final_logit_softcapping":30,"sliding_window_pattern":2,` + gemma + `"vocab_size":256000,
		"max_position_embeddings":8192`},
	"gemma3_text": {Arch{Class: "Gemma3ForCausalLM", QKNorm: "head", Sandwich: true, UnitNorm: true, ScaleEmbed: true}, false,
		`"final_logit_softcapping":null,"sliding_window_pattern":6,"rope_theta":1e6,"rope_local_base_freq":1e4,` + gemma +
			`"vocab_size":262208,"max_position_embeddings":131072`},
	"qwen2_5_vl": {Arch{Class: "Qwen2_5_VLForConditionalGeneration"}, true, `"vocab_size":152064,"hidden_size":8192,
		"intermediate_size":29568,"num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8,"rms_norm_eps":1e-5,
		"max_position_embeddings":32768,"rope_theta":1e6,"use_sliding_window":false,"sliding_window":4096,"max_window_layers":80,
		"layer_types":null,"eos_token_id":151645,` + images},
	"qwen3_vl": {Arch{Class: "Qwen3VLForConditionalGeneration", QKNorm: "head"}, false, qwen + `"head_dim":128,
		"max_position_embeddings":128000,"rope_theta":5e5,"attention_bias":false,` + images},
}

const images = `"vision_config":{},"image_token_id":151655,"video_token_id":151656,"vision_start_token_id":151652,
	"vision_end_token_id":151653`

const qwen = `"vocab_size":151936,"hidden_size":4096,"intermediate_size":22016,"num_hidden_layers":32,"num_attention_heads":32,
	"num_key_value_heads":32,"max_position_embeddings":32768,`

const gemma = `"hidden_size":2304,"intermediate_size":9216,"num_hidden_layers":26,"num_attention_heads":8,"num_key_value_heads":4,
	"head_dim":256,"hidden_act":null,"hidden_activation":"gelu_pytorch_tanh","tie_word_embeddings":true,"attention_bias":false,
	"query_pre_attn_scalar":256,"sliding_window":4096,"layer_types":null,"use_bidirectional_attention":false,"eos_token_id":1,`

// common are the keys of every family.
const common = `"model_type":null,"hidden_act":"silu","rms_norm_eps":1e-6,"tie_word_embeddings":false,"head_dim":null,
	"eos_token_id":null,"rope_theta":1e4,"rope_scaling":null,"rope_parameters":null,"partial_rotary_factor":null`

// keys are the family's, each with the value of an absent one: those that come later in the text count.
func (f family) keys() map[string]json.RawMessage {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal([]byte("{"+common+","+f.defaults+"}"), &keys); err != nil {
		panic(fmt.Sprintf("model: the defaults of %s: %v", f.Class, err))
	}
	return keys
}
