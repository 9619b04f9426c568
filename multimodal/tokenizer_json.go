package multimodal

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// OpenTokenizer reads the tokenizer of the model at path, a byte-level BPE: a .gguf file's, or a Hugging Face folder's
// tokenizer.json, with the end and beginning tokens from tokenizer_config.json and generation_config.json (or config.json)
// beside it, where they are. The post-processor is not applied.
func OpenTokenizer(path string) (tok *Tokenizer, err error) {
	s, err := openSource(path)
	if err == nil {
		tok, _, err = s.tokenizer()
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", path, err)
	}
	return tok, nil
}

func (s source) tokenizer() (*Tokenizer, tokenizerConfig, error) {
	var file tokenizerFile
	var config tokenizerConfig
	var generation, model endIDs
	err := errors.Join(s.read("tokenizer.json", &file), optional(s.read("tokenizer_config.json", &config)),
		optional(s.read("generation_config.json", &generation)), optional(s.read("config.json", &model)))
	if err != nil {
		return nil, config, err
	}
	if generation.EOS == nil {
		generation = model
	}
	t, err := file.tokenizer()
	if err == nil {
		err = t.setEnds(string(config.BOS), string(config.EOS), generation.EOS)
	}
	if err != nil {
		return nil, config, fmt.Errorf("tokenizer: %w", err)
	}
	return t, config, nil
}

type tokenizerFile struct {
	AddedTokens  []addedToken `json:"added_tokens"`
	Normalizer   *component   `json:"normalizer"`
	PreTokenizer *component   `json:"pre_tokenizer"`
	Decoder      *component   `json:"decoder"`
	Model        bpeModel     `json:"model"`
}

type bpeModel struct {
	Type         string           `json:"type"`
	Vocab        map[string]int32 `json:"vocab"`         // tokens in the byte-level alphabet
	Merges       []mergePair      `json:"merges"`        // by falling priority
	Unknown      string           `json:"unk_token"`     // for bytes that have no token; "" drops them
	IgnoreMerges bool             `json:"ignore_merges"` // a word that is a token of the vocabulary is not merged
	Dropout      *float64         `json:"dropout"`
	Prefix       string           `json:"continuing_subword_prefix"`
	Suffix       string           `json:"end_of_word_suffix"`
	FuseUnknown  bool             `json:"fuse_unk"`
	ByteFallback bool             `json:"byte_fallback"`
}

// component is a normalizer, pre-tokenizer or decoder with the fields of all of them.
type component struct {
	Type          string      `json:"type"`
	Normalizers   []component `json:"normalizers"`
	Pretokenizers []component `json:"pretokenizers"`
	Decoders      []component `json:"decoders"`
	Pattern       struct{ Regex string }
	Behavior      string `json:"behavior"`
	Invert        bool   `json:"invert"`
	Individual    bool   `json:"individual_digits"`
	PrefixSpace   bool   `json:"add_prefix_space"`
	UseRegex      *bool  `json:"use_regex"` // absent: true
}

// mergePair is two tokens, written as "left right" or as ["left", "right"].
type mergePair []string

func (m *mergePair) UnmarshalJSON(raw []byte) error {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return json.Unmarshal(raw, (*[]string)(m))
	}
	*m = strings.SplitN(s, " ", 2)
	return nil
}

func (m *bpeModel) check() error {
	for part, unsupported := range map[string]bool{
		fmt.Sprintf("model %q", m.Type):  m.Type != "BPE" && m.Type != "",
		"a model without vocabulary":     len(m.Vocab) == 0,
		"dropout":                        m.Dropout != nil && *m.Dropout != 0,
		"continuing_subword_prefix":      m.Prefix != "",
		"end_of_word_suffix":             m.Suffix != "",
		"byte_fallback":                  m.ByteFallback,
		"fuse_unk with an unknown token": m.FuseUnknown && m.Unknown != "",
	} {
		if unsupported {
			return fmt.Errorf("%s is not supported: want a byte-level BPE model", part)
		}
	}
	return nil
}

func (f *tokenizerFile) tokenizer() (*Tokenizer, error) {
	t := &Tokenizer{ids: map[string]int32{}, special: map[int32]bool{}, bos: noID}
	err := f.Model.check()
	if err == nil {
		err = f.components(t)
	}
	for token, id := range f.Model.Vocab {
		if err == nil {
			err = t.add(token, id)
		}
	}
	for _, a := range f.AddedTokens {
		if err == nil {
			err = t.addAdded(a)
		}
	}
	if err != nil {
		return nil, err
	}
	t.text = make([]string, len(t.names))
	for id, name := range t.names {
		t.text[id] = bytesOf(name)
	}
	t.bpe, err = newBPE(f.Model)
	return t, err
}

// components sets what t does to text before the merges.
func (f *tokenizerFile) components(t *Tokenizer) error {
	t.normalize = func(s string) string { return s }
	for _, c := range f.Normalizer.steps() {
		if c.Type != "NFC" {
			return fmt.Errorf("normalizer %q is not supported", c.Type)
		}
		t.normalize = nfc
	}
	var splitters []splitter
	byteLevel := false
	for _, c := range f.PreTokenizer.steps() {
		if byteLevel {
			return fmt.Errorf("pre-tokenizer %q behind ByteLevel is not supported", c.Type)
		}
		s, err := c.splitter()
		if err != nil {
			return err
		}
		splitters = append(splitters, s)
		byteLevel = c.Type == "ByteLevel"
	}
	t.split = chain(splitters)
	decoders := f.Decoder.steps()
	switch {
	case !byteLevel:
		return errors.New("there is no ByteLevel pre-tokenizer: only byte-level BPE is supported")
	case len(decoders) != 1 || decoders[0].Type != "ByteLevel":
		return fmt.Errorf("%d decoders, want one: ByteLevel", len(decoders))
	}
	return nil
}

// steps are what a Sequence consists of, or c alone; none where it is absent.
func (c *component) steps() (all []component) {
	if c == nil {
		return nil
	} else if c.Type != "Sequence" {
		return []component{*c}
	}
	for _, part := range slices.Concat(c.Normalizers, c.Pretokenizers, c.Decoders) {
		all = append(all, part.steps()...)
	}
	return all
}

// splitter is c as a pre-tokenizer.
func (c *component) splitter() (splitter, error) {
	switch {
	case c.Type == "Digits" && c.Individual:
		return splitDigits, nil
	case c.Type == "ByteLevel" && !c.PrefixSpace && c.UseRegex != nil && !*c.UseRegex:
		return chain(nil), nil
	case c.Type == "ByteLevel" && !c.PrefixSpace:
		return splitGPT2, nil
	case c.Type == "Split" && c.Behavior == "Isolated" && !c.Invert && c.Pattern.Regex != "":
		return splitRegex(c.Pattern.Regex)
	}
	return nil, fmt.Errorf("pre-tokenizer %q is not supported or not with these settings: want ByteLevel without add_prefix_space, "+
		"Digits with individual_digits, or Split by a Regex with behavior Isolated", c.Type)
}
