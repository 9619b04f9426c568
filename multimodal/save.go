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
	write := writeText
	if info.IsDir() {
		write = copyText
	}
	if err := write(path, dir); err != nil {
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
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), data, 0o644)
		}
		if err != nil {
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
	file, err := ggufFile(f.Meta)
	if err != nil {
		return err
	}
	type object = map[string]any
	name, _ := f.Meta["tokenizer.ggml.pre"].(string) // ggufFile has checked both
	var all object
	if err := json.Unmarshal(preTokenizers[name].file(), &all); err != nil {
		return err
	}
	all["added_tokens"] = file.AddedTokens
	model, _ := all["model"].(object)
	model["vocab"], model["merges"] = file.Model.Vocab, f.Meta["tokenizer.ggml.merges"]
	config := object{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}
	if id, ok := tok.BOS(); ok {
		config["bos_token"] = tok.Token(id)
	}
	if ids := tok.EOS(); len(ids) > 0 {
		config["eos_token"] = tok.Token(ids[0])
	}
	for key, name := range map[string]string{"tokenizer.chat_template": "chat_template", "tokenizer.ggml.add_bos_token": "add_bos_token"} {
		if v, ok := f.Meta[key]; ok {
			config[name] = v
		}
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
