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

// source gives the files that a Hugging Face folder has about text, by name: those of a folder, or made from a .gguf file's
// metadata. The error for a file that is not there is fs.ErrNotExist.
type source func(name string) ([]byte, error)

// maxFile bounds what a damaged or foreign file makes reading allocate; the largest tokenizers in use have half.
const maxFile = 64 << 20

func openSource(path string) (source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%w; the model must be a Hugging Face folder or a .gguf file", err)
	}
	if info.IsDir() {
		return folder(path), nil
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ggufSource(f.Meta)
}

func folder(dir string) source {
	return func(name string) ([]byte, error) {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		switch {
		case err == nil && !info.Mode().IsRegular():
			err = fmt.Errorf("%s is not a file", path)
		case err == nil && info.Size() > maxFile:
			err = fmt.Errorf("%s has %d bytes; at most %d are read", path, info.Size(), maxFile)
		}
		if err != nil {
			return nil, err
		}
		return os.ReadFile(path)
	}
}

// SaveText puts the tokenizer, the chat template and the image processor of the model at path, a Hugging Face folder or a .gguf file,
// into dir, as such a folder has them, so that a checkpoint can be opened by itself.
func SaveText(path, dir string) error {
	s, err := openSource(path)
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
		"special_tokens_map.json", "preprocessor.json", "preprocessor_config.json", "processor_config.json"} {
		if err != nil {
			break
		}
		var data []byte
		if data, err = s(name); err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
		}
		err = optional(err)
	}
	if err != nil {
		return fmt.Errorf("tokenizer of %s: %w", path, err)
	}
	return nil
}

func (s source) read(name string, into any) error {
	raw, err := s(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// optional is the error of reading a file that need not be there.
func optional(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// tokenizerConfig is what counts of tokenizer_config.json.
type tokenizerConfig struct {
	EOS      tokenName    `json:"eos_token"`
	BOS      tokenName    `json:"bos_token"`
	AddBOS   bool         `json:"add_bos_token"`
	Template chatTemplate `json:"chat_template"`
}

// tokenName is written as the token or as an object with its content.
type tokenName string

func (n *tokenName) UnmarshalJSON(raw []byte) error {
	return eitherForm(raw, (*string)(n), func(t addedToken) string { return t.Content })
}

// chatTemplate is written as the template or as a list of named ones; the one for chats is "default".
type chatTemplate string

func (t *chatTemplate) UnmarshalJSON(raw []byte) error {
	return eitherForm(raw, (*string)(t), func(named []struct{ Name, Template string }) (text string) {
		for _, n := range named {
			if n.Name == "default" {
				text = n.Template
			}
		}
		return text
	})
}

// endIDs are what counts of generation_config.json and config.json.
type endIDs struct {
	EOS idList `json:"eos_token_id"`
}

// idList is written as a list or as one id.
type idList []int32

func (l *idList) UnmarshalJSON(raw []byte) error {
	return eitherForm(raw, (*[]int32)(l), func(id int32) []int32 { return []int32{id} })
}

// eitherForm reads what is written as an A or as a B.
func eitherForm[A, B any](raw []byte, into *A, convert func(B) A) error {
	if json.Unmarshal(raw, into) == nil {
		return nil
	}
	var other B
	err := json.Unmarshal(raw, &other)
	*into = convert(other)
	return err
}
