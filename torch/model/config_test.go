package model_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/molt-go/molt/torch/model"
	"golang.org/x/sys/unix"
)

// readConfig reads text as a config.json.
func readConfig(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return ReadConfig(path)
}

// written reads what a save of c would write.
func written(t *testing.T, c Config) Config {
	t.Helper()
	text, err := json.Marshal(c.JSON())
	if err != nil {
		t.Fatal(err)
	}
	back, err := readConfig(t, string(text))
	if err != nil {
		t.Fatal(err)
	}
	return back
}

func TestBothConfigKeyStylesGiveTheSameModel(t *testing.T) {
	for _, f := range models(t) {
		v5, err := ReadConfig(filepath.Join(f.path, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		v4, err := ReadConfig(filepath.Join(f.path, "config_v4.json"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(v5, v4); diff != "" {
			t.Errorf("%s: %s", f.path, diff)
		}
		if diff := cmp.Diff(v5, written(t, v5)); diff != "" {
			t.Errorf("%s, saved and read: %s", f.path, diff)
		}
	}
}

// What a config of a few keys stands for, by the config classes of transformers; and it survives a save.
func TestAbsentAndNullKeysMeanWhatTheyDoInTransformers(t *testing.T) {
	layers := func(c Config, of []bool) string {
		marks := make([]byte, c.Layers)
		for i := range marks {
			if marks[i] = '.'; of != nil && of[i] {
				marks[i] = 'x'
			}
		}
		return string(marks)
	}
	yarn := 0.1*math.Log(4) + 1
	for _, c := range []struct {
		text string
		want any
		got  func(c Config) any
	}{
		{`{"model_type":"llama"}`, []int{32000, 4096, 11008, 32, 32, 128, 2048},
			func(c Config) any { return []int{c.Vocab, c.Width, c.Inner, c.Layers, c.KVHeads, c.HeadDim, c.Context} }},
		{`{"model_type":"qwen2","num_attention_heads":4,"num_key_value_heads":null}`, 4, func(c Config) any { return c.KVHeads }},
		{`{"model_type":"qwen2","attention_bias":true}`, []bool{true, false}, func(c Config) any { return []bool{c.QKVBias, c.OutBias} }},
		{`{"model_type":"mistral","num_hidden_layers":2}`, "4096 xx",
			func(c Config) any { return fmt.Sprint(c.Window, " ", layers(c, c.Local)) }},
		{`{"model_type":"mistral","num_hidden_layers":2,"sliding_window":null}`, "..", func(c Config) any { return layers(c, c.Local) }},
		{`{"model_type":"qwen2","num_hidden_layers":4,"sliding_window":8,"max_window_layers":1}`, "....",
			func(c Config) any { return layers(c, c.Local) }},
		{`{"model_type":"qwen3","num_hidden_layers":4,"sliding_window":8,"max_window_layers":1,"use_sliding_window":true}`, ".xxx",
			func(c Config) any { return layers(c, c.Local) }},
		{`{"model_type":"qwen3","num_hidden_layers":2,"use_sliding_window":true,"layer_types":["sliding_attention","full_attention"]}`,
			"x.", func(c Config) any { return layers(c, c.Local) }},
		{`{"model_type":"gemma2","num_hidden_layers":4}`, "50 30 x.x.",
			func(c Config) any { return fmt.Sprint(c.AttnCap, c.LogitCap, " ", layers(c, c.Local)) }},
		{`{"model_type":"gemma2","attn_logit_softcapping":null,"final_logit_softcapping":null}`, "0 0",
			func(c Config) any { return fmt.Sprint(c.AttnCap, c.LogitCap) }},
		{`{"model_type":"gemma3_text","num_hidden_layers":7,"attn_logit_softcapping":9}`, "0 xxxxx.x",
			func(c Config) any { return fmt.Sprint(c.AttnCap, " ", layers(c, c.Local)) }},
		{`{"model_type":"gemma3_text","num_hidden_layers":3,"sliding_window_pattern":3}`, "xx.",
			func(c Config) any { return layers(c, c.Local) }},
		{`{"model_type":"qwen3_moe","num_hidden_layers":6,"decoder_sparse_step":2,"mlp_only_layers":[3]}`, "128 8 768 .x...x",
			func(c Config) any {
				return fmt.Sprint(c.MoE.Experts, c.MoE.Chosen, c.MoE.Inner, " ", layers(c, c.MoE.Layers))
			}},
		{`{"model_type":"mixtral","num_experts":3}`, "3 2 14336 true", func(c Config) any {
			return fmt.Sprint(c.MoE.Experts, c.MoE.Chosen, c.MoE.Inner, c.MoE.Normalize)
		}},
		{`{"model_type":"olmoe"}`, []int32{50279}, func(c Config) any { return c.EOS }},
		{`{"model_type":"olmoe","eos_token_id":null}`, []int32(nil), func(c Config) any { return c.EOS }},
		{`{"model_type":"llama","eos_token_id":[5,6]}`, []int32{5, 6}, func(c Config) any { return c.EOS }},
		{`{"model_type":"mixtral"}`, Rope{Theta: 1e6}, func(c Config) any { return c.Rope }},
		{`{"model_type":"llama","rope_theta":5,"rope_scaling":{"type":"linear","factor":2}}`, Rope{Theta: 5, Type: "linear", Factor: 2},
			func(c Config) any { return c.Rope }},
		{`{"model_type":"llama","rope_theta":5,"rope_parameters":{"rope_type":"default","rope_theta":7}}`, Rope{Theta: 7},
			func(c Config) any { return c.Rope }},
		{`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":4}}`,
			Rope{Theta: 1e4, Type: "yarn", Factor: 4, Slow: 1, Fast: 32, Original: 2048, Scale: yarn}, func(c Config) any { return c.Rope }},
		{`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":4,"mscale":1,"mscale_all_dim":1,"truncate":false}}`,
			Rope{Theta: 1e4, Type: "yarn", Factor: 4, Slow: 1, Fast: 32, Original: 2048, Scale: 1, Truncate: new(bool)},
			func(c Config) any { return c.Rope }},
		{`{"model_type":"gemma3_text","rope_scaling":{"rope_type":"linear","factor":8}}`,
			[]Rope{{Theta: 1e6, Type: "linear", Factor: 8}, {Theta: 1e4}}, func(c Config) any { return []Rope{c.Rope, c.LocalRope} }},
		{`{"model_type":"gemma3_text","rope_parameters":{"sliding_attention":{"rope_type":"linear","factor":3,"rope_theta":50}}}`,
			[]Rope{{Theta: 1e6}, {Theta: 50, Type: "linear", Factor: 3}}, func(c Config) any { return []Rope{c.Rope, c.LocalRope} }},
	} {
		config, err := readConfig(t, c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if diff := cmp.Diff(c.want, c.got(config)); diff != "" {
			t.Errorf("%s: %s", c.text, diff)
		}
		if diff := cmp.Diff(config, written(t, config)); diff != "" {
			t.Errorf("%s, saved and read: %s", c.text, diff)
		}
	}
}

func TestABadConfigIsAnErrorThatNamesTheFault(t *testing.T) {
	llama := func(keys string) string { return `{"model_type":"llama",` + keys + `}` }
	for _, c := range []struct{ text, want string }{
		{``, "unexpected end of JSON"},
		{`{"model_type":"llama"`, "unexpected end of JSON"},
		{`[]`, "cannot unmarshal array"},
		{`{}`, "model_type must be a string"},
		{`{"model_type":7}`, "model_type must be a string"},
		{`{"model_type":null}`, `model_type "" is not supported`},
		{`{"model_type":"gemma3"}`, `model_type "gemma3" is not supported; known: gemma2, gemma3_text, llama`},
		{strings.Repeat(`{"a":`, 1e5), "exceeded max depth"},
		{llama(`"vision":` + strings.Repeat(`[`, 1e5) + strings.Repeat(`]`, 1e5)), "exceeded max depth"},
		{`{"model_type":"llama"}` + strings.Repeat(" ", 5<<20), "larger than 4 MiB"},
		{llama(`"hidden_size":null`), "hidden_size is missing or out of range (0)"},
		{llama(`"hidden_size":"64"`), "hidden_size"},
		{llama(`"hidden_size":1e30`), "hidden_size"},
		{llama(`"hidden_size":64.5`), "hidden_size"},
		{llama(`"hidden_size":-64`), "hidden_size is missing or out of range (-64)"},
		{llama(`"num_hidden_layers":1000000000`), "num_hidden_layers is missing or out of range"},
		{llama(`"num_attention_heads":0`), "num_attention_heads"},
		{llama(`"num_key_value_heads":5`), "must be a multiple of num_key_value_heads"},
		{llama(`"head_dim":7`), "head_dim (7) even"},
		{llama(`"rms_norm_eps":1e999`), "rms_norm_eps"},
		{llama(`"rms_norm_eps":0`), "rms_norm_eps"},
		{llama(`"hidden_act":"relu"`), `the activation "relu" is not supported; known: silu, gelu_pytorch_tanh`},
		{llama(`"hidden_act":null`), `the activation "" is not supported`},
		{llama(`"eos_token_id":"</s>"`), "int32"},
		{llama(`"rope_theta":-1`), "rope_theta is missing or not positive"},
		{llama(`"rope_scaling":{"rope_type":"dynamic","factor":2}`), `"dynamic" is not supported; known: default, linear, llama3, yarn`},
		{llama(`"rope_scaling":{"rope_type":"longrope"}`), `"longrope" is not supported`},
		{llama(`"rope_scaling":{"rope_type":"linear"}`), `"linear" needs a positive factor`},
		{llama(`"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":1}`), "0 < low_freq_factor"},
		{llama(`"rope_scaling":{"rope_type":"yarn","factor":2,"beta_fast":1,"beta_slow":32}`), "0 < beta_slow < beta_fast"},
		{llama(`"rope_scaling":{"rope_type":"yarn","factor":2,"attention_factor":-1}`), "a positive attention_factor"},
		{llama(`"rope_scaling":7`), "rope_scaling"},
		{llama(`"partial_rotary_factor":0.5`), "partial_rotary_factor is not supported"},
		{llama(`"rope_parameters":{"full_attention":{"rope_type":"default"}}`), "by layer type"},
		{`{"model_type":"gemma2","sliding_window":null}`, "layer 0 is local, but sliding_window is null"},
		{`{"model_type":"gemma2","sliding_window":-4}`, "sliding_window is -4"},
		{`{"model_type":"gemma2","final_logit_softcapping":-1}`, "final_logit_softcapping -1"},
		{`{"model_type":"gemma3_text","use_bidirectional_attention":true}`, "use_bidirectional_attention"},
		{`{"model_type":"gemma3_text","layer_types":["full_attention"]}`, "layer_types has 1 entries for 26 layers"},
		{`{"model_type":"qwen2","num_hidden_layers":1,"layer_types":["chunked_attention"]}`, `layer type "chunked_attention"`},
		{`{"model_type":"qwen2","num_hidden_layers":1,"layer_types":["sliding_attention"]}`, "sliding_window is null or off"},
		{`{"model_type":"mixtral","num_local_experts":-1}`, "num_experts is -1"},
		{`{"model_type":"mixtral","num_experts_per_tok":9}`, "num_experts_per_tok 9"},
		{`{"model_type":"olmoe","num_experts":1000000}`, "num_experts is 1000000"},
		{`{"model_type":"qwen3_moe","moe_intermediate_size":-1}`, "moe_intermediate_size is -1"},
	} {
		if _, err := readConfig(t, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.80s: %v, want %q", c.text, err, c.want)
		}
	}
	pipe := filepath.Join(t.TempDir(), "config.json")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadConfig(pipe); err == nil || !strings.Contains(err.Error(), "not a file") {
		t.Error(err)
	}
}
