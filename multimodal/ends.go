package multimodal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// readEnds adds the end and beginning tokens that the files beside tokenizer.json name.
func (d *definition) readEnds(dir string) (err error) {
	var names struct {
		EOS tokenName `json:"eos_token"`
		BOS tokenName `json:"bos_token"`
	}
	if err := readOptional(filepath.Join(dir, "tokenizer_config.json"), &names); err != nil {
		return err
	}
	if names.BOS != "" {
		if d.bos, err = d.find(string(names.BOS)); err != nil {
			return err
		}
	}
	if names.EOS != "" {
		id, err := d.find(string(names.EOS))
		if err != nil {
			return err
		}
		d.eos = append(d.eos, id)
	}
	var settings struct {
		EOS idList `json:"eos_token_id"`
	}
	if err := readOptional(filepath.Join(dir, "generation_config.json"), &settings); err != nil {
		return err
	}
	if settings.EOS == nil {
		if err := readOptional(filepath.Join(dir, "config.json"), &settings); err != nil {
			return err
		}
	}
	d.eos = append(d.eos, settings.EOS...)
	return nil
}

func readOptional(path string, into any) error {
	if err := readJSON(path, into); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d *definition) find(token string) (int32, error) {
	for _, a := range d.added {
		if a.Content == token {
			return a.ID, nil
		}
	}
	if id, ok := d.vocab[token]; ok {
		return id, nil
	}
	return 0, fmt.Errorf("tokenizer_config.json names the token %q, which tokenizer.json does not have", token)
}

// tokenName is written as the token or as an object with its content.
type tokenName string

func (n *tokenName) UnmarshalJSON(raw []byte) error {
	if bytes.HasPrefix(raw, []byte("{")) {
		var token addedToken
		err := json.Unmarshal(raw, &token)
		*n = tokenName(token.Content)
		return err
	}
	return json.Unmarshal(raw, (*string)(n))
}

// idList is written as one id or as a list.
type idList []int32

func (l *idList) UnmarshalJSON(raw []byte) error {
	if bytes.HasPrefix(raw, []byte("[")) {
		return json.Unmarshal(raw, (*[]int32)(l))
	}
	if string(raw) == "null" {
		return nil
	}
	var id int32
	err := json.Unmarshal(raw, &id)
	*l = idList{id}
	return err
}

// maxFile bounds the JSON files that are read, in bytes; the largest tokenizers in use have a tenth.
const maxFile = 400 << 20

func readJSON(path string, into any) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return fmt.Errorf("%s: not a regular file of at most %d bytes", path, maxFile)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
