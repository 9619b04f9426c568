package multimodal

import (
	"fmt"
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
	model, err := metaValue[string](meta, "tokenizer.ggml.model")
	if err != nil {
		return nil, err
	}
	if model != "gpt2" {
		return nil, fmt.Errorf("tokenizer: tokenizer.ggml.model %q is not supported: want gpt2", model)
	}
	name, err := metaValue[string](meta, "tokenizer.ggml.pre")
	if err != nil {
		return nil, err
	}
	pre, ok := preTokenizers[name]
	if !ok {
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

func (d *definition) readGGUF(meta map[string]any) error {
	tokens, err := metaValue[[]string](meta, "tokenizer.ggml.tokens")
	if err != nil {
		return err
	}
	types, err := metaValue[[]int64](meta, "tokenizer.ggml.token_type")
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
	merges, err := metaValue[[]string](meta, "tokenizer.ggml.merges")
	if err != nil {
		return err
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
			id, err := metaID(meta, key, len(tokens))
			if err != nil {
				return err
			}
			d.eos = append(d.eos, id)
		}
	}
	if key := "tokenizer.ggml.bos_token_id"; meta[key] != nil {
		d.bos, err = metaID(meta, key, len(tokens))
	}
	return err
}

func metaID(meta map[string]any, key string, size int) (int32, error) {
	id, err := metaValue[int64](meta, key)
	if err == nil && (id < 0 || id >= int64(size)) {
		err = fmt.Errorf("tokenizer: metadata %s is %d, the vocabulary has %d tokens", key, id, size)
	}
	return int32(id), err
}

func metaValue[T any](meta map[string]any, key string) (T, error) {
	value, ok := meta[key].(T)
	if !ok {
		return value, fmt.Errorf("tokenizer: metadata %s is missing or is a %T, want %T", key, meta[key], value)
	}
	return value, nil
}

func knownPreTokenizers() string {
	var names []string
	for name := range preTokenizers {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
