package multimodal

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// preTokenizer is what a pre-tokenizer's name stands for, in the form of tokenizer.json.
type preTokenizer struct {
	normalizer, steps string
	ignoreMerges      bool
}

const (
	gpt2Level     = `{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}` // has gpt2Pattern built in
	plainLevel    = `{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}`
	isolated      = `{"type": "Split", "pattern": {"Regex": %q}, "behavior": "Isolated", "invert": false}, `
	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Pattern  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// preTokenizers are the pre-tokenizers that GGUF files name (tokenizer.ggml.pre).
var preTokenizers = map[string]preTokenizer{
	"gpt-2":     {normalizer: "null", steps: gpt2Level},
	"smollm":    {normalizer: "null", steps: `{"type": "Digits", "individual_digits": true}, ` + gpt2Level},
	"llama-bpe": {normalizer: "null", steps: fmt.Sprintf(isolated, llama3Pattern) + plainLevel, ignoreMerges: true},
	"qwen2":     {normalizer: `{"type": "NFC"}`, steps: fmt.Sprintf(isolated, qwen2Pattern) + plainLevel},
}

// file is p as a tokenizer.json without its tokens.
func (p preTokenizer) file() []byte {
	return fmt.Appendf(nil, `{"version": "1.0", "normalizer": %s, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [%s]},
		"post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model": {"type": "BPE", "ignore_merges": %t, "byte_fallback": false, "fuse_unk": false, "unk_token": null}}`,
		p.normalizer, p.steps, p.ignoreMerges)
}

// FromGGUF makes the tokenizer that a GGUF file's metadata describes, given as package gguf reads it: integers are
// int64. Model gpt2, byte-level BPE, is supported. The file's unknown token is ignored: the models' own tokenizers have none.
func FromGGUF(meta map[string]any) (*Tokenizer, error) {
	var d definition
	file, err := ggufFile(meta)
	if err == nil {
		d, err = file.definition()
	}
	for _, role := range []string{"eos", "eot", "eom"} { // end of sequence, of turn, of message
		if id := metaID(meta, role, len(d.vocab), &err); id != noID {
			d.eos = append(d.eos, id)
		}
	}
	if d.bos = metaID(meta, "bos", len(d.vocab), &err); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return newTokenizer(d)
}

// ggufFile is the tokenizer.json that the metadata stands for.
func ggufFile(meta map[string]any) (f tokenizerFile, err error) {
	model := metaValue[string](meta, "tokenizer.ggml.model", &err)
	name := metaValue[string](meta, "tokenizer.ggml.pre", &err)
	tokens := metaValue[[]string](meta, "tokenizer.ggml.tokens", &err)
	types := metaValue[[]int64](meta, "tokenizer.ggml.token_type", &err)
	merges := metaValue[[]string](meta, "tokenizer.ggml.merges", &err)
	pre, known := preTokenizers[name]
	switch {
	case err != nil:
		return f, err
	case model != "gpt2":
		return f, fmt.Errorf("tokenizer.ggml.model %q is not supported: want gpt2", model)
	case !known:
		names := slices.Sorted(maps.Keys(preTokenizers))
		return f, fmt.Errorf("tokenizer.ggml.pre %q is not supported: want one of %s", name, strings.Join(names, ", "))
	case len(types) != len(tokens) || len(tokens) > maxID:
		return f, fmt.Errorf("%d tokens with %d types, want as many, at most %d", len(tokens), len(types), maxID)
	}
	if err := json.Unmarshal(pre.file(), &f); err != nil {
		return f, err
	}
	f.Model.Vocab = make(map[string]int32, len(tokens))
	for id, token := range tokens {
		if old, ok := f.Model.Vocab[token]; ok {
			return f, fmt.Errorf("token %q has two ids, %d and %d", token, old, id)
		}
		f.Model.Vocab[token] = int32(id)
		if kind := types[id]; kind == 3 || kind == 4 { // control and user-defined tokens are found in the text as they are
			f.AddedTokens = append(f.AddedTokens, addedToken{ID: int32(id), Content: token, Special: kind == 3})
		}
	}
	for _, m := range merges {
		f.Model.Merges = append(f.Model.Merges, mergePair(strings.SplitN(m, " ", 2)))
	}
	return f, nil
}

// metaID reads the id of a special token; noID where the metadata names none.
func metaID(meta map[string]any, role string, size int, problem *error) int32 {
	key := "tokenizer.ggml." + role + "_token_id"
	if meta[key] == nil {
		return noID
	}
	id := metaValue[int64](meta, key, problem)
	if *problem == nil && (id < 0 || id >= int64(size)) {
		*problem = fmt.Errorf("metadata %s is %d, the vocabulary has %d tokens", key, id, size)
	}
	return int32(id)
}

// metaValue reads a key; the first problem of several calls is kept.
func metaValue[T any](meta map[string]any, key string, problem *error) T {
	value, ok := meta[key].(T)
	if !ok && *problem == nil {
		*problem = fmt.Errorf("metadata %s is missing or is a %T, want %T", key, meta[key], value)
	}
	return value
}
