//go:build text

package multimodal

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// openAll gives the tokenizers that scripts/tokenizers fetches: the names are those of the reference strings.
func openAll(t *testing.T) map[string]*Tokenizer {
	t.Helper()
	entries, err := os.ReadDir(cached(t, "tokenizers"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*Tokenizer{}
	for _, e := range entries {
		if e.IsDir() {
			if all[e.Name()], err = OpenTokenizer(cached(t, "tokenizers/"+e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(all) < 6 {
		t.Fatalf("%d tokenizers", len(all))
	}
	return all
}

func TestTextOfEveryTokenizerEqualsTheReference(t *testing.T) {
	for name, tok := range openAll(t) {
		t.Run(name, func(t *testing.T) { compareStrings(t, tok, name) })
	}
}

func TestTextOfEveryTokenizerEqualsTheLibraryOnAdversarialStrings(t *testing.T) {
	for name, tok := range openAll(t) {
		t.Run(name, func(t *testing.T) { compareCorpus(t, tok, "2", cached(t, "tokenizers/"+name)) })
	}
}

// A GGUF file of the model has the vocabulary, and scores or merges, of its tokenizer.json.
func TestTextOfEveryTokenizerAsGGUFMetadataEqualsTheReference(t *testing.T) {
	names := map[string]string{"qwen3": "qwen2", "llama3_1": "llama-bpe", "deepseek_v3": "deepseek-v3", "gptoss": "gpt-4o"}
	for name, own := range openAll(t) {
		t.Run(name, func(t *testing.T) {
			var file tokenizerFile
			if err := folder(cached(t, "tokenizers/"+name)).read("tokenizer.json", &file); err != nil {
				t.Fatal(err)
			}
			meta := map[string]any{"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": names[name]}
			if names[name] == "" {
				meta = map[string]any{"tokenizer.ggml.model": "llama", "tokenizer.ggml.add_space_prefix": len(file.Normalizer.steps()) == 2}
			}
			fillMetadata(meta, &file, own)
			tok, err := ggufTokenizer(meta)
			if err != nil {
				t.Fatal(err)
			}
			compareStrings(t, tok, name)
			if got, want := tok.AddSpecial(nil), own.AddSpecial(nil); !slices.Equal(got, want) {
				t.Errorf("special tokens around a text: %v, want %v", got, want)
			}
		})
	}
}

// fillMetadata writes a vocabulary as llama.cpp's converter does: a score is the negative place of a token's first merge.
func fillMetadata(meta map[string]any, file *tokenizerFile, own *Tokenizer) {
	types, scores, merges := make([]int64, len(own.names)), make([]float64, len(own.names)), []string{}
	for id, name := range own.names {
		types[id], scores[id] = 1, -1e9
		if strings.HasPrefix(name, "<0x") {
			types[id] = 6
		}
	}
	for rank, m := range file.Model.Merges {
		merges = append(merges, m.left+" "+m.right)
		id := own.ids[m.left+m.right]
		scores[id] = max(scores[id], float64(-rank))
	}
	tokens := slices.Clone(own.names)
	for _, a := range file.AddedTokens {
		types[a.ID] = userType
		if a.Special {
			types[a.ID] = controlType
		} else if meta["tokenizer.ggml.model"] == "llama" {
			tokens[a.ID], scores[a.ID] = strings.ReplaceAll(a.Content, mark, " "), -1000
		}
	}
	if id, ok := own.ids[file.Model.Unknown]; ok {
		types[id] = unknownType
	}
	for id, token := range tokens {
		if token == "" { // an id that the model has and its tokenizer has not
			tokens[id] = fmt.Sprintf("[PAD%d]", id)
		}
	}
	before := own.AddSpecial(nil)
	if meta["tokenizer.ggml.add_bos_token"] = len(before) > 0; len(before) > 0 {
		meta["tokenizer.ggml.bos_token_id"] = int64(before[0])
	}
	meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"] = tokens, types
	meta["tokenizer.ggml.scores"], meta["tokenizer.ggml.merges"] = scores, merges
}

// Qwen 3's template shows calls; the others, which show none, have those of Hermes.
func TestCallsOfRealTemplatesComeBack(t *testing.T) {
	for _, name := range []string{"qwen3", "llama3_1", "gemma3", "deepseek_v3"} {
		chat, err := OpenChat(cached(t, "tokenizers/"+name))
		if err != nil {
			t.Fatal(err)
		}
		if got := chat.Calls().Opening("f"); got != "<tool_call>\n{\"name\": \"f\", \"arguments\":" {
			t.Errorf("%s: %q", name, got)
		}
		for i, arguments := range manyArguments {
			calls := []ToolCall{{"f", arguments}, {"g", manyArguments[len(manyArguments)-1-i]}}
			if name != "qwen3" {
				break
			}
			said := shownReply(t, chat, "</think>\n\n", "<|im_end|>\n", "Let me see", calls)
			if content, list := cutStreaming(t, chat.Calls(), said); content != "Let me see" || !same(list, calls) {
				t.Errorf("%q, %q of %q", content, list, said)
			}
			for _, opening := range []string{chat.Calls().Opening(""), chat.Calls().Opening("f")} { // in the tokens that the model would take
				opened, ids := chat.Encode("Let me see\n"+opening), chat.Encode(said)
				if !slices.Equal(opened, ids[:len(opened)]) {
					t.Errorf("%q opens %q with other tokens", opening, said)
				}
			}
		}
	}
}
