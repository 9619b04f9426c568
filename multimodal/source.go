package multimodal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

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
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", templateFiles["default"], templateFiles["tool_use"],
		"generation_config.json", "special_tokens_map.json", "preprocessor.json", "preprocessor_config.json", "processor_config.json"} {
		if err != nil {
			break
		}
		var data []byte
		path := filepath.Join(dir, name)
		if data, err = s(name); err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, data, 0o644))
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
	AddBOS    bool                 `json:"add_bos_token"`
	Templates chatTemplates        `json:"chat_template"`
	Added     map[int32]addedToken `json:"added_tokens_decoder"`

	Tokens map[string]string `json:"-"` // special tokens by the names that templates know, such as bos_token
}

func (c *tokenizerConfig) UnmarshalJSON(raw []byte) error {
	type plain tokenizerConfig
	if err := json.Unmarshal(raw, (*plain)(c)); err != nil {
		return err
	}
	var keys, more map[string]json.RawMessage
	_ = json.Unmarshal(raw, &keys)                          // cannot fail: it has just been read
	_ = json.Unmarshal(keys["extra_special_tokens"], &more) // or a list, whose tokens have no names
	maps.DeleteFunc(keys, func(key string, _ json.RawMessage) bool { return !strings.HasSuffix(key, "_token") })
	maps.Copy(keys, more)
	if c.Tokens == nil {
		c.Tokens = map[string]string{}
	}
	for key, value := range keys {
		var token addedToken // written as such, or as its content
		err := eitherForm(value, &token, func(text string) addedToken { return addedToken{Content: text} })
		if err == nil && token.Content != "" {
			c.Tokens[key] = token.Content
		}
	}
	return nil
}

// chatTemplates are written as one template or as a list of named ones: "default", and perhaps "tool_use" for chats with tools.
type chatTemplates []struct{ Name, Template string }

func (t *chatTemplates) UnmarshalJSON(raw []byte) error {
	type list chatTemplates
	return eitherForm(raw, (*list)(t), func(text string) list { return list{{"default", text}} })
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

// templateFiles are where folders keep templates that do not stand in tokenizer_config.json.
var templateFiles = map[string]string{"default": "chat_template.jinja", "tool_use": "additional_chat_templates/tool_use.jinja"}

// eitherForm reads what is written as a list or an object, or else as one B; null leaves it as it is.
func eitherForm[A, B any](raw []byte, into *A, convert func(B) A) error {
	if strings.Contains("[{n", string(raw[:1])) {
		return json.Unmarshal(raw, into)
	}
	var one B
	err := json.Unmarshal(raw, &one)
	*into = convert(one)
	return err
}
