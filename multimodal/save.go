package multimodal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/molt-go/molt/torch/model/gguf"
)

// SaveText puts the tokenizer and the chat template of the model at path into dir, as a Hugging Face folder has them, so that a
// checkpoint can be opened by itself: files of a folder are copied, those of a .gguf file are written from its metadata.
func SaveText(path, dir string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if !info.IsDir() {
		err = writeText(path, dir)
	} else {
		err = copyText(path, dir)
	}
	if err != nil {
		return fmt.Errorf("tokenizer of %s: %w", path, err)
	}
	return nil
}

func copyText(from, to string) error {
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
		"special_tokens_map.json"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func writeText(path, dir string) error {
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	tok, err := FromGGUF(f.Meta)
	if err != nil {
		return err
	}
	name, _ := f.Meta["tokenizer.ggml.pre"].(string) // FromGGUF has checked both
	merges, _ := f.Meta["tokenizer.ggml.merges"].([]string)
	vocab, added := map[string]int32{}, []addedToken{}
	for id, token := range tok.names {
		if token == "" {
			continue
		}
		vocab[token] = int32(id)
		if special, ok := tok.special[int32(id)]; ok {
			added = append(added, addedToken{ID: int32(id), Content: token, Special: special})
		}
	}
	type object = map[string]any
	pre := preTokenizers[name]
	steps := []object{}
	if pre.digits {
		steps = append(steps, object{"type": "Digits", "individual_digits": true})
	}
	plain := pre.pattern == gpt2Pattern // which ByteLevel has built in
	if !plain {
		steps = append(steps, object{"type": "Split", "pattern": object{"Regex": pre.pattern}, "behavior": "Isolated", "invert": false})
	}
	level := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": plain}
	all := object{
		"version": "1.0", "added_tokens": added, "pre_tokenizer": object{"type": "Sequence", "pretokenizers": append(steps, level)},
		"post_processor": nil, "decoder": object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model": object{"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": pre.ignoreMerges, "byte_fallback": false,
			"fuse_unk": false, "unk_token": nil},
	}
	if pre.nfc {
		all["normalizer"] = object{"type": "NFC"}
	}
	config := object{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}
	if id, ok := tok.BOS(); ok {
		config["bos_token"] = tok.Token(id)
	}
	if ids := tok.EOS(); len(ids) > 0 {
		config["eos_token"] = tok.Token(ids[0])
	}
	if template, ok := f.Meta["tokenizer.chat_template"].(string); ok {
		config["chat_template"] = template
	}
	if adds, ok := f.Meta["tokenizer.ggml.add_bos_token"].(bool); ok {
		config["add_bos_token"] = adds
	}
	for file, v := range map[string]any{"tokenizer.json": all, "tokenizer_config.json": config} {
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
