package multimodal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

type object = map[string]any

// mark is what SentencePiece writes for a space.
const mark = "\u2581"

// isolated splits at patterns, then into bytes.
func isolated(patterns ...string) (steps []object) {
	for _, p := range patterns {
		steps = append(steps, object{"type": "Split", "pattern": object{"Regex": p}, "behavior": "Isolated", "invert": false})
	}
	return append(steps, object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})
}

// preTokenizers are the pre-tokenizers that GGUF files name (tokenizer.ggml.pre), which do what the models' own tokenizer.json
// say; "default" belongs to no model and is as in llama.cpp.
var preTokenizers = map[string]struct {
	steps                  []object
	nfc, ignoreMerges, bos bool // bos: where the file does not say
}{
	"default":     {steps: isolated(`[\p{P}\$\+<=>\^~\|]+`, strings.TrimSuffix(gpt2Pattern, `|\s+`), `\p{N}+`, `[0-9][0-9][0-9]`)},
	"gpt-2":       {steps: isolated(gpt2Pattern)},
	"olmo":        {steps: isolated(gpt2Pattern), nfc: true},
	"smollm":      {steps: append([]object{{"type": "Digits", "individual_digits": true}}, isolated(gpt2Pattern)...)},
	"llama-bpe":   {steps: isolated(llama3Pattern), ignoreMerges: true, bos: true},
	"qwen2":       {steps: isolated(qwen2Pattern), nfc: true},
	"deepseek-v3": {steps: isolated(`\p{N}{1,3}`, "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", deepseekPattern)},
	"gpt-4o":      {steps: isolated(o200kPattern), ignoreMerges: true},
}

// The types of tokens that count, in tokenizer.ggml.token_type.
const unknownType, controlType, userType = 2, 3, 4

// ggufSource makes the files from a GGUF file's metadata, given as package gguf reads it: integers are int64, other numbers
// float64. Its model is gpt2, byte-level BPE, whose unknown token is ignored because the models' own tokenizers have none, or
// llama, SentencePiece's BPE.
func ggufSource(meta map[string]any) (source, error) {
	if name, ok := meta["tokenizer.ggml.model"]; !ok || name == "no_vocab" {
		return nil, fmt.Errorf("metadata tokenizer.ggml.model is missing: the file has no tokenizer: %w", fs.ErrNotExist)
	}
	var err error
	kind := metaValue[string](meta, "model", &err)
	tokens := slices.Clone(metaValue[[]string](meta, "tokens", &err))
	types := metaValue[[]int64](meta, "token_type", &err)
	switch {
	case err != nil:
		return nil, err
	case kind != "gpt2" && kind != "llama":
		return nil, fmt.Errorf("tokenizer.ggml.model %q is not supported: want gpt2 or llama", kind)
	case len(types) != len(tokens) || len(tokens) > maxID:
		return nil, fmt.Errorf("%d tokens with %d types, want as many, at most %d", len(tokens), len(types), maxID)
	}
	vocab, added := make(map[string]int32, len(tokens)), []addedToken{}
	for id, token := range tokens {
		if kind == "llama" && types[id] == userType { // llama.cpp's converter writes marks as spaces there
			token = strings.ReplaceAll(token, " ", mark)
			tokens[id] = token
		}
		if old, ok := vocab[token]; ok {
			return nil, fmt.Errorf("token %q has two ids, %d and %d", token, old, id)
		}
		vocab[token] = int32(id)
		if t := types[id]; t == controlType || t == userType || t == unknownType && kind == "llama" { // found in the text as they are
			added = append(added, addedToken{ID: int32(id), Content: token, Special: t != userType})
		}
	}
	file, addsBOS, err := ggufBytes(meta, vocab)
	if kind == "llama" {
		file, addsBOS, err = ggufSentencePiece(meta, tokens, types, vocab)
	}
	if err != nil {
		return nil, err
	}
	bos, eos, ends, err := ggufEnds(meta, tokens)
	if err != nil {
		return nil, err
	}
	addBOS, addEOS := metaOr(meta, "add_bos_token", addsBOS), metaOr(meta, "add_eos_token", false)
	config := object{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false, "add_bos_token": addBOS,
		"bos_token": bos, "eos_token": eos, "chat_template": meta["tokenizer.chat_template"]}
	file["version"], file["added_tokens"], file["post_processor"] = "1.0", added, ggufTemplate(addBOS, bos, addEOS, eos, vocab)
	files := object{"tokenizer_config.json": config, "generation_config.json": object{"eos_token_id": ends}, "tokenizer.json": file}
	return func(name string) ([]byte, error) {
		if files[name] == nil {
			return nil, fs.ErrNotExist
		}
		return json.Marshal(files[name])
	}, nil
}

// ggufBytes gives the parts of tokenizer.json that byte-level BPE has; bos: a text gets the beginning token unless the file
// says otherwise.
func ggufBytes(meta map[string]any, vocab map[string]int32) (file object, bos bool, err error) {
	name := metaValue[string](meta, "pre", &err)
	merges := metaValue[[]string](meta, "merges", &err)
	pre, known := preTokenizers[name]
	if !known && err == nil {
		names := slices.Sorted(maps.Keys(preTokenizers))
		err = fmt.Errorf("tokenizer.ggml.pre %q is not supported: want one of %s", name, strings.Join(names, ", "))
	}
	file = object{
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": pre.steps},
		"decoder":       object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model":         object{"type": "BPE", "ignore_merges": pre.ignoreMerges, "vocab": vocab, "merges": merges},
	}
	if pre.nfc {
		file["normalizer"] = object{"type": "NFC"}
	}
	return file, pre.bos, err
}

// ggufSentencePiece is the same for SentencePiece, which has scores for merges: as in transformers' conversion, all ways to
// make a token of two are merges, the best score first, user-defined tokens above all, then the longest left part.
func ggufSentencePiece(meta map[string]any, tokens []string, types []int64, vocab map[string]int32) (file object, bos bool, err error) {
	scores := metaValue[[]float64](meta, "scores", &err)
	if err == nil && len(scores) != len(tokens) {
		err = fmt.Errorf("%d tokens with %d scores, want as many", len(tokens), len(scores))
	}
	if err != nil {
		return nil, false, err
	}
	type scored struct {
		pair  [2]string
		score float64
	}
	const longest = 1 << 10 // bytes of a token; SentencePiece's have 100
	var all []scored
	for id, token := range tokens {
		if len(token) > longest {
			return nil, false, fmt.Errorf("token %d has %d bytes, at most %d are supported", id, len(token), longest)
		}
		score := scores[id]
		if types[id] == userType {
			score = 0
		}
		for at := range token {
			_, left := vocab[token[:at]]
			if _, right := vocab[token[at:]]; left && right {
				all = append(all, scored{[2]string{token[:at], token[at:]}, score})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b scored) int {
		return cmp.Or(cmp.Compare(b.score, a.score), len(b.pair[0])-len(a.pair[0]), len(b.pair[1])-len(a.pair[1]))
	})
	merges := make([][2]string, len(all))
	for i := range all {
		merges[i] = all[i].pair
	}
	normalizers := []object{{"type": "Replace", "pattern": object{"String": " "}, "content": mark}}
	decoders := []object{{"type": "Replace", "pattern": object{"String": mark}, "content": " "},
		{"type": "ByteFallback"}, {"type": "Fuse"}}
	if metaOr(meta, "add_space_prefix", true) {
		normalizers = append([]object{{"type": "Prepend", "prepend": mark}}, normalizers...)
		decoders = append(decoders, object{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	model := object{"type": "BPE", "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": merges}
	if id := slices.Index(types, unknownType); id >= 0 {
		model["unk_token"] = tokens[id]
	}
	return object{"normalizer": object{"type": "Sequence", "normalizers": normalizers},
		"decoder": object{"type": "Sequence", "decoders": decoders}, "model": model}, true, nil
}

// ggufTemplate is the post-processor that puts the beginning and end tokens around a text, those that are wanted and there.
func ggufTemplate(addBOS bool, bos any, addEOS bool, eos any, vocab map[string]int32) object {
	special := object{}
	part := func(wanted bool, token any) (list []object) {
		if name, ok := token.(string); ok && wanted {
			special[name] = object{"id": name, "ids": []int32{vocab[name]}, "tokens": []string{name}}
			list = []object{{"SpecialToken": object{"id": name, "type_id": 0}}}
		}
		return list
	}
	text := func(name string) []object {
		return slices.Concat(part(addBOS, bos), []object{{"Sequence": object{"id": name, "type_id": 0}}}, part(addEOS, eos))
	}
	pair := slices.Concat(text("A"), text("B"))
	return object{"type": "TemplateProcessing", "single": text("A"), "pair": pair, "special_tokens": special}
}

// ggufEnds gives the beginning and end tokens, nil where there is none, and the ids of all end tokens.
func ggufEnds(meta map[string]any, tokens []string) (bos, eos any, ends []int64, err error) {
	found := object{}
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
			return nil, nil, nil, err
		}
		if found[role] = tokens[id]; role != "bos" {
			ends = append(ends, id)
		}
	}
	return found["bos"], found["eos"], ends, nil
}

// metaValue reads a key of the tokenizer; the first problem of several calls is kept.
func metaValue[T any](meta map[string]any, key string, problem *error) T {
	value, ok := meta["tokenizer.ggml."+key].(T)
	if !ok && *problem == nil {
		*problem = fmt.Errorf("metadata tokenizer.ggml.%s is missing or is a %T, want %T", key, meta["tokenizer.ggml."+key], value)
	}
	return value
}

// metaOr reads a switch of the tokenizer; otherwise is its default.
func metaOr(meta map[string]any, key string, otherwise bool) bool {
	if v, ok := meta["tokenizer.ggml."+key].(bool); ok {
		return v
	}
	return otherwise
}
