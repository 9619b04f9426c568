package multimodal

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// preTokenizers are the pre-tokenizers that GGUF files name (tokenizer.ggml.pre), with what goes with the name.
var preTokenizers = map[string]struct {
	digits       bool // every digit alone, first
	pattern      string
	nfc          bool
	ignoreMerges bool
}{
	"gpt-2":  {pattern: gpt2Pattern},
	"smollm": {digits: true, pattern: gpt2Pattern},
	"llama-bpe": {ignoreMerges: true, pattern: `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|` +
		` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	"qwen2": {nfc: true, pattern: `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|` +
		` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
}

// GGUF token types (tokenizer.ggml.token_type) of tokens that are found in the text as they are.
const (
	controlToken = 3
	userToken    = 4
)

// FromGGUF makes the tokenizer that a GGUF file's metadata describes, given as package gguf reads it: integers are
// int64. Model gpt2, byte-level BPE, is supported; the pre-tokenizer is the one that the file names. The file's unknown
// token is ignored, as the models' own tokenizers have none.
func FromGGUF(meta map[string]any) (*Tokenizer, error) {
	var problem error
	model := metaValue[string](meta, "tokenizer.ggml.model", &problem)
	name := metaValue[string](meta, "tokenizer.ggml.pre", &problem)
	pre, ok := preTokenizers[name]
	switch {
	case problem != nil:
		return nil, problem
	case model != "gpt2":
		return nil, fmt.Errorf("tokenizer: tokenizer.ggml.model %q is not supported: want gpt2", model)
	case !ok:
		return nil, fmt.Errorf("tokenizer: tokenizer.ggml.pre %q is not supported: want one of %s", name, knownPreTokenizers())
	}
	d := definition{ignoreMerges: pre.ignoreMerges, bos: noID}
	if pre.nfc {
		d.normalize = append(d.normalize, nfc)
	}
	if pre.digits {
		d.split = append(d.split, splitDigits(true))
	}
	split, err := splitRegex(pre.pattern)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	d.split = append(d.split, split)
	if err := d.readGGUF(meta); err != nil {
		return nil, err
	}
	return newTokenizer(d)
}

func (d *definition) readGGUF(meta map[string]any) (err error) {
	tokens := metaValue[[]string](meta, "tokenizer.ggml.tokens", &err)
	types := metaValue[[]int64](meta, "tokenizer.ggml.token_type", &err)
	merges := metaValue[[]string](meta, "tokenizer.ggml.merges", &err)
	if err != nil {
		return err
	}
	if len(types) != len(tokens) || len(tokens) > maxID {
		return fmt.Errorf("tokenizer: %d tokens with %d types, want as many, at most %d", len(tokens), len(types), maxID)
	}
	d.vocab = make(map[string]int32, len(tokens))
	for id, token := range tokens {
		if old, ok := d.vocab[token]; ok {
			return fmt.Errorf("tokenizer: token %q has two ids, %d and %d", token, old, id)
		}
		d.vocab[token] = int32(id)
		if types[id] == controlToken || types[id] == userToken {
			d.added = append(d.added, addedToken{ID: int32(id), Content: token, Special: types[id] == controlToken})
		}
	}
	for _, m := range merges {
		pair, err := parseMerge(m)
		if err != nil {
			return fmt.Errorf("tokenizer: %w", err)
		}
		d.merges = append(d.merges, pair)
	}
	for _, role := range []string{"eos", "eot", "eom"} { // end of sequence, of turn, of message
		if key := "tokenizer.ggml." + role + "_token_id"; meta[key] != nil {
			d.eos = append(d.eos, metaID(meta, key, len(tokens), &err))
		}
	}
	if key := "tokenizer.ggml.bos_token_id"; meta[key] != nil {
		d.bos = metaID(meta, key, len(tokens), &err)
	}
	return err
}

func metaID(meta map[string]any, key string, size int, problem *error) int32 {
	id := metaValue[int64](meta, key, problem)
	if *problem == nil && (id < 0 || id >= int64(size)) {
		*problem = fmt.Errorf("tokenizer: metadata %s is %d, the vocabulary has %d tokens", key, id, size)
	}
	return int32(id)
}

// metaValue reads a key; the first problem of several calls is kept.
func metaValue[T any](meta map[string]any, key string, problem *error) T {
	value, ok := meta[key].(T)
	if !ok && *problem == nil {
		*problem = fmt.Errorf("tokenizer: metadata %s is missing or is a %T, want %T", key, meta[key], value)
	}
	return value
}

func knownPreTokenizers() string {
	return strings.Join(slices.Sorted(maps.Keys(preTokenizers)), ", ")
}
