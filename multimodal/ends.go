package multimodal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// readEnds adds the end and beginning tokens that the files beside tokenizer.json name.
func (d *definition) readEnds(dir string) error {
	var names struct {
		EOS tokenName `json:"eos_token"`
		BOS tokenName `json:"bos_token"`
	}
	if err := readOptional(filepath.Join(dir, "tokenizer_config.json"), &names); err != nil {
		return err
	}
	for role, token := range map[string]tokenName{"eos": names.EOS, "bos": names.BOS} {
		id, ok := d.find(string(token))
		switch {
		case token == "":
		case !ok:
			return fmt.Errorf("tokenizer_config.json names the token %q, which tokenizer.json does not have", token)
		case role == "bos":
			d.bos = id
		default:
			d.eos = append(d.eos, id)
		}
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

func (d *definition) find(token string) (int32, bool) {
	for _, a := range d.added {
		if a.Content == token {
			return a.ID, true
		}
	}
	id, ok := d.vocab[token]
	return id, ok
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
	if !bytes.HasPrefix(raw, []byte("[")) && string(raw) != "null" {
		raw = slices.Concat([]byte("["), raw, []byte("]"))
	}
	return json.Unmarshal(raw, (*[]int32)(l))
}

func readJSON(path string, into any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
