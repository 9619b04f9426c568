package multimodal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/molt-go/molt/torch/model/gguf"
)

// OpenChat reads the tokenizer and the chat template of the model at path: a .gguf file, or a Hugging Face folder with tokenizer.json
// and a template in chat_template.jinja or tokenizer_config.json. A beginning-of-sequence token is used where the tokenizer adds
// one by itself or the template writes one.
func OpenChat(path string) (*Chat, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("model: %w; the model must be a Hugging Face folder or a .gguf file", err)
	}
	open := chatOfGGUF
	if info.IsDir() {
		open = chatOfFolder
	}
	tok, template, addsBOS, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", path, err)
	}
	if template == "" {
		return nil, fmt.Errorf("model %s has no chat template: take an instruction-tuned model", path)
	}
	bos, eos := "", ""
	if id, ok := tok.BOS(); ok && (addsBOS || strings.Contains(template, "bos_token")) {
		bos = tok.Token(id)
	}
	if ids := tok.EOS(); len(ids) > 0 {
		eos = tok.Token(ids[0])
	}
	c, err := NewChat(tok, template, bos, eos)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", path, err)
	}
	return c, nil
}

func chatOfGGUF(path string) (tok *Tokenizer, template string, addsBOS bool, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, "", false, err
	}
	defer f.Close()
	template, _ = f.Meta["tokenizer.chat_template"].(string)
	addsBOS, _ = f.Meta["tokenizer.ggml.add_bos_token"].(bool)
	tok, err = FromGGUF(f.Meta)
	return tok, template, addsBOS, err
}

func chatOfFolder(dir string) (tok *Tokenizer, template string, addsBOS bool, err error) {
	if tok, err = LoadTokenizer(filepath.Join(dir, "tokenizer.json")); err != nil {
		return nil, "", false, err
	}
	var config struct {
		Template json.RawMessage `json:"chat_template"`
		AddBOS   bool            `json:"add_bos_token"`
	}
	if err := readOptional(filepath.Join(dir, "tokenizer_config.json"), &config); err != nil {
		return nil, "", false, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "chat_template.jinja"))
	switch {
	case err == nil:
		return tok, string(text), config.AddBOS, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, "", false, err
	case len(config.Template) == 0:
		return tok, "", config.AddBOS, nil
	}
	if json.Unmarshal(config.Template, &template) == nil {
		return tok, template, config.AddBOS, nil
	}
	var named []struct{ Name, Template string } // several templates: the one for chats is "default"
	if err := json.Unmarshal(config.Template, &named); err != nil {
		return nil, "", false, fmt.Errorf("tokenizer_config.json: chat_template is neither a text nor a list of named ones")
	}
	for _, n := range named {
		if n.Name == "default" {
			template = n.Template
		}
	}
	return tok, template, config.AddBOS, nil
}

// Decode is the text of ids, special tokens included.
func (c *Chat) Decode(ids []int32) string { return c.tok.Decode(ids) }
