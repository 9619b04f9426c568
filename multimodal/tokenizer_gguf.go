package multimodal

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

const (
	gpt2Level     = `{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}` // has gpt2Pattern built in
	plainLevel    = `{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}`
	isolated      = `{"type": "Split", "pattern": {"Regex": %q}, "behavior": "Isolated", "invert": false}, `
	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Pattern  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// preTokenizers are the pre-tokenizers that GGUF files name (tokenizer.ggml.pre), in the form of tokenizer.json.
var preTokenizers = map[string]struct {
	normalizer, steps string
	ignoreMerges      bool
}{
	"gpt-2":     {"null", gpt2Level, false},
	"smollm":    {"null", `{"type": "Digits", "individual_digits": true}, ` + gpt2Level, false},
	"llama-bpe": {"null", fmt.Sprintf(isolated, llama3Pattern) + plainLevel, true},
	"qwen2":     {`{"type": "NFC"}`, fmt.Sprintf(isolated, qwen2Pattern) + plainLevel, false},
}

// ggufSource makes the files from a GGUF file's metadata, given as package gguf reads it: integers are int64. Model gpt2,
// byte-level BPE, is supported. The file's unknown token is ignored: the models' own tokenizers have none.
func ggufSource(meta map[string]any) (source, error) {
	type object = map[string]any
	var err error
	model := metaValue[string](meta, "model", &err)
	name := metaValue[string](meta, "pre", &err)
	tokens := metaValue[[]string](meta, "tokens", &err)
	types := metaValue[[]int64](meta, "token_type", &err)
	merges := metaValue[[]string](meta, "merges", &err)
	pre, known := preTokenizers[name]
	switch {
	case err != nil:
		return nil, err
	case model != "gpt2":
		return nil, fmt.Errorf("tokenizer.ggml.model %q is not supported: want gpt2", model)
	case !known:
		names := slices.Sorted(maps.Keys(preTokenizers))
		return nil, fmt.Errorf("tokenizer.ggml.pre %q is not supported: want one of %s", name, strings.Join(names, ", "))
	case len(types) != len(tokens) || len(tokens) > maxID:
		return nil, fmt.Errorf("%d tokens with %d types, want as many, at most %d", len(tokens), len(types), maxID)
	}
	vocab, added := make(map[string]int32, len(tokens)), []addedToken{}
	for id, token := range tokens {
		if old, ok := vocab[token]; ok {
			return nil, fmt.Errorf("token %q has two ids, %d and %d", token, old, id)
		}
		vocab[token] = int32(id)
		if kind := types[id]; kind == 3 || kind == 4 { // control and user-defined tokens are found in the text as they are
			added = append(added, addedToken{ID: int32(id), Content: token, Special: kind == 3})
		}
	}
	config := object{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}
	ends, err := ggufEnds(meta, tokens, config)
	if err != nil {
		return nil, err
	}
	for key, name := range map[string]string{"tokenizer.chat_template": "chat_template", "tokenizer.ggml.add_bos_token": "add_bos_token"} {
		if v, ok := meta[key]; ok {
			config[name] = v
		}
	}
	files := object{
		"tokenizer_config.json": config, "generation_config.json": object{"eos_token_id": ends},
		"tokenizer.json": object{"version": "1.0", "added_tokens": added, "normalizer": json.RawMessage(pre.normalizer),
			"pre_tokenizer":  object{"type": "Sequence", "pretokenizers": json.RawMessage("[" + pre.steps + "]")},
			"post_processor": nil,
			"decoder":        object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
			"model": object{"type": "BPE", "ignore_merges": pre.ignoreMerges, "byte_fallback": false, "fuse_unk": false, "unk_token": nil,
				"vocab": vocab, "merges": merges}},
	}
	return func(name string) ([]byte, error) {
		if files[name] == nil {
			return nil, fs.ErrNotExist
		}
		return json.Marshal(files[name])
	}, nil
}

// ggufEnds enters the beginning and end tokens into config and gives the ids of all end tokens.
func ggufEnds(meta map[string]any, tokens []string, config map[string]any) (ends []int64, err error) {
	for _, role := range []string{"bos", "eos", "eot", "eom"} { // beginning; end of sequence, of turn, of message
		key := role + "_token_id"
		if meta["tokenizer.ggml."+key] == nil {
			continue
		}
		id := metaValue[int64](meta, key, &err)
		if err == nil && (id < 0 || id >= int64(len(tokens))) {
			err = fmt.Errorf("metadata tokenizer.ggml.%s is %d, the vocabulary has %d tokens", key, id, len(tokens))
		}
		if err != nil {
			return nil, err
		}
		if role == "bos" || role == "eos" {
			config[role+"_token"] = tokens[id]
		}
		if role != "bos" {
			ends = append(ends, id)
		}
	}
	return ends, nil
}

// metaValue reads a key of the tokenizer; the first problem of several calls is kept.
func metaValue[T any](meta map[string]any, key string, problem *error) T {
	value, ok := meta["tokenizer.ggml."+key].(T)
	if !ok && *problem == nil {
		*problem = fmt.Errorf("metadata tokenizer.ggml.%s is missing or is a %T, want %T", key, meta["tokenizer.ggml."+key], value)
	}
	return value
}
