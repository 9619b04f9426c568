package multimodal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// LoadTokenizer reads a tokenizer.json with a byte-level BPE model, and the end and beginning tokens from
// tokenizer_config.json and generation_config.json (or config.json) beside it, where they are. The post-processor is not
// applied: Encode adds no tokens. A component that is not supported is an error that names it.
func LoadTokenizer(path string) (*Tokenizer, error) {
	var file tokenizerFile
	if err := readJSON(path, &file); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	d, err := file.definition()
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	if err := d.readEnds(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	t, err := newTokenizer(d)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

type tokenizerFile struct {
	AddedTokens  []addedToken `json:"added_tokens"`
	Normalizer   *component   `json:"normalizer"`
	PreTokenizer *component   `json:"pre_tokenizer"`
	Decoder      *component   `json:"decoder"`
	Model        struct {
		Type         string           `json:"type"`
		Vocab        map[string]int32 `json:"vocab"`
		Merges       []mergePair      `json:"merges"`
		Unknown      string           `json:"unk_token"`
		Dropout      *float64         `json:"dropout"`
		Prefix       string           `json:"continuing_subword_prefix"`
		Suffix       string           `json:"end_of_word_suffix"`
		FuseUnknown  bool             `json:"fuse_unk"`
		ByteFallback bool             `json:"byte_fallback"`
		IgnoreMerges bool             `json:"ignore_merges"`
	} `json:"model"`
}

// component is a normalizer, pre-tokenizer or decoder with the fields of all of them.
type component struct {
	Type          string      `json:"type"`
	Normalizers   []component `json:"normalizers"`
	Pretokenizers []component `json:"pretokenizers"`
	Decoders      []component `json:"decoders"`
	Pattern       struct{ String, Regex *string }
	Behavior      string `json:"behavior"`
	Invert        bool   `json:"invert"`
	Individual    bool   `json:"individual_digits"`
	PrefixSpace   bool   `json:"add_prefix_space"`
	UseRegex      *bool  `json:"use_regex"` // absent: true
}

// mergePair is written as "left right" or as ["left", "right"].
type mergePair [2]string

func (m *mergePair) UnmarshalJSON(raw []byte) error {
	if bytes.HasPrefix(raw, []byte("[")) {
		var pair []string
		if err := json.Unmarshal(raw, &pair); err != nil {
			return err
		}
		if len(pair) != 2 {
			return fmt.Errorf("a merge of %d tokens, want 2", len(pair))
		}
		*m = mergePair(pair)
		return nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	var err error
	*m, err = parseMerge(s)
	return err
}

func parseMerge(s string) (mergePair, error) {
	left, right, ok := strings.Cut(s, " ")
	if !ok {
		return mergePair{}, fmt.Errorf("merge %q: want two tokens with a space between", s)
	}
	return mergePair{left, right}, nil
}

func (f *tokenizerFile) definition() (definition, error) {
	m := &f.Model
	d := definition{
		vocab: m.Vocab, merges: m.Merges, unknown: m.Unknown, ignoreMerges: m.IgnoreMerges, added: f.AddedTokens, bos: noID,
	}
	switch {
	case m.Type != "BPE" && m.Type != "":
		return d, fmt.Errorf("model %q is not supported: want BPE", m.Type)
	case len(m.Vocab) == 0:
		return d, errors.New("the model has no vocabulary")
	case m.Dropout != nil && *m.Dropout != 0:
		return d, errors.New("the model's dropout is not supported")
	case m.Prefix != "" || m.Suffix != "":
		return d, errors.New("continuing_subword_prefix and end_of_word_suffix are not supported")
	case m.ByteFallback:
		return d, errors.New("byte_fallback is not supported: want a byte-level model")
	case m.FuseUnknown && m.Unknown != "":
		return d, errors.New("fuse_unk is not supported")
	}
	for _, a := range f.AddedTokens {
		if a.SingleWord {
			return d, fmt.Errorf("added token %q: single_word is not supported", a.Content)
		}
	}
	if err := f.Normalizer.normalizer(&d); err != nil {
		return d, err
	}
	byteLevel, err := f.PreTokenizer.preTokenizer(&d)
	if err != nil {
		return d, err
	}
	if !byteLevel {
		return d, errors.New("there is no ByteLevel pre-tokenizer: only byte-level BPE is supported")
	}
	return d, f.Decoder.decoder()
}

func (c *component) normalizer(d *definition) error {
	switch {
	case c == nil:
		return nil
	case c.Type == "NFC":
		d.normalize = append(d.normalize, nfc)
		return nil
	case c.Type == "Sequence":
		for i := range c.Normalizers {
			if err := c.Normalizers[i].normalizer(d); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("normalizer %q is not supported", c.Type)
}

// preTokenizer appends the splitters of c and reports whether the byte-level one is among them; it comes last.
func (c *component) preTokenizer(d *definition) (byteLevel bool, err error) {
	if c == nil {
		return false, nil
	}
	switch c.Type {
	case "Sequence":
		for i := range c.Pretokenizers {
			if byteLevel {
				return false, fmt.Errorf("pre-tokenizer %q behind ByteLevel is not supported", c.Pretokenizers[i].Type)
			}
			if byteLevel, err = c.Pretokenizers[i].preTokenizer(d); err != nil {
				return false, err
			}
		}
		return byteLevel, nil
	case "Digits":
		d.split = append(d.split, splitDigits(c.Individual))
		return false, nil
	case "Split":
		s, err := c.splitPattern()
		d.split = append(d.split, s)
		return false, err
	case "ByteLevel":
		if c.PrefixSpace {
			d.split = append(d.split, prefixSpace)
		}
		if c.UseRegex == nil || *c.UseRegex {
			d.split = append(d.split, splitGPT2)
		}
		return true, nil
	}
	return false, fmt.Errorf("pre-tokenizer %q is not supported", c.Type)
}

func (c *component) splitPattern() (splitter, error) {
	switch {
	case c.Behavior != "Isolated" || c.Invert:
		return nil, fmt.Errorf("pre-tokenizer Split with behavior %q (inverted: %v) is not supported: want Isolated", c.Behavior, c.Invert)
	case c.Pattern.Regex != nil:
		return splitRegex(*c.Pattern.Regex)
	case c.Pattern.String != nil && *c.Pattern.String != "":
		return splitString(*c.Pattern.String), nil
	}
	return nil, errors.New("pre-tokenizer Split has no pattern")
}

func (c *component) decoder() error {
	if c == nil {
		return errors.New("there is no decoder: want ByteLevel")
	}
	if c.Type == "Sequence" && len(c.Decoders) == 1 {
		return c.Decoders[0].decoder()
	}
	if c.Type != "ByteLevel" {
		return fmt.Errorf("decoder %q is not supported: want ByteLevel", c.Type)
	}
	return nil
}
