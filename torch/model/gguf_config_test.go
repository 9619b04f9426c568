package model

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/molt-go/molt/torch/model/gguf"
)

// metadataOf is a file of JSON's values in the types that GGUF's have.
func metadataOf(text []byte) *gguf.File {
	f := &gguf.File{Meta: map[string]any{}}
	if json.Unmarshal(text, &f.Meta) != nil {
		return f
	}
	for key, v := range f.Meta {
		switch v := v.(type) {
		case float64:
			if v == math.Trunc(v) && math.Abs(v) < 1<<62 {
				f.Meta[key] = int64(v)
			}
		case []any:
			flags := make([]bool, len(v))
			for i := range v {
				flags[i], _ = v[i].(bool)
			}
			f.Meta[key] = flags
		}
	}
	return f
}

const smallGGUF = `{"general.architecture":"gemma3","gemma3.embedding_length":64,"gemma3.block_count":3,"gemma3.feed_forward_length":96,
	"gemma3.context_length":256,"gemma3.attention.head_count":4,"gemma3.attention.layer_norm_rms_epsilon":1e-6,
	"gemma3.attention.sliding_window":8}`

func TestHostileMetadataIsAnErrorThatNamesTheFault(t *testing.T) {
	if _, err := ggufConfig(metadataOf([]byte(smallGGUF))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to, want string }{
		{`"gemma3",`, `"dodo",`, `architecture "dodo" is not supported; known: gemma2, gemma3, llama, olmoe, qwen2, qwen3, qwen3moe`},
		{`"general.architecture"`, `"other"`, "general.architecture"},
		{`"gemma3.block_count"`, `"other"`, `no metadata "gemma3.block_count"`},
		{`block_count":3`, `block_count":-3`, "num_hidden_layers"},
		{`block_count":3`, `block_count":1000000000000`, "num_hidden_layers"},
		{`block_count":3`, `block_count":"3"`, "num_hidden_layers"},
		{`head_count":4`, `head_count":0`, "num_attention_heads"},
		{`head_count":4`, `head_count":[true,false]`, "num_attention_heads"},
		{`embedding_length":64`, `embedding_length":1e300`, "hidden_size"},
		{`epsilon":1e-6`, `epsilon":-1e-6`, "rms_norm_eps"},
		{`window":8`, `window":-8`, "sliding_window"},
		{`window":8`, `window":8,"gemma3.attention.sliding_window_pattern":[true]`, "layer_types has 1 entries for 3 layers"},
		{`window":8`, `window":8,"gemma3.rope.scaling.type":"longrope"`, `rope_type "longrope" is not supported`},
		{`window":8`, `window":8,"gemma3.rope.scaling.type":7`, `"gemma3.rope.scaling.type" is a int64`},
		{`window":8`, `window":8,"gemma3.rope.scaling.type":"linear"`, "factor"},
		{`window":8`, `window":8,"gemma3.rope.dimension_count":8`, "8 of a head's 16 dimensions"},
	} {
		text := strings.Replace(smallGGUF, c.from, c.to, 1)
		if _, err := ggufConfig(metadataOf([]byte(text))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.to, err, c.want)
		}
	}
}

func FuzzGGUFMetadata(f *testing.F) {
	f.Add([]byte(smallGGUF))
	f.Add([]byte(strings.ReplaceAll(smallGGUF, "gemma3", "llama")))
	f.Add([]byte(`{"general.architecture":"qwen3moe","qwen3moe.expert_count":8,"qwen3moe.rope.scaling.type":"yarn"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if c, err := ggufConfig(metadataOf(text)); err == nil {
			if err := c.validate(); err != nil {
				t.Error(err)
			}
		}
	})
}
