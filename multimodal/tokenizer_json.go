package multimodal

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// LoadTokenizer reads a folder's tokenizer.json with a byte-level BPE model, and the end and beginning tokens from
// tokenizer_config.json and generation_config.json (or config.json) beside it, where they are. The post-processor is not applied.
func LoadTokenizer(dir string) (*Tokenizer, error) {
	tok, _, err := folder(dir).tokenizer()
	return tok, err
}

func (s source) tokenizer() (*Tokenizer, tokenizerConfig, error) {
	var file tokenizerFile
	var config tokenizerConfig
	var generation, model endIDs
	var d definition
	err := errors.Join(s.read("tokenizer.json", &file), optional(s.read("tokenizer_config.json", &config)),
		optional(s.read("generation_config.json", &generation)), optional(s.read("config.json", &model)))
	if err == nil {
		d, err = file.definition()
	}
	for _, name := range []tokenName{config.EOS, config.BOS} {
		if _, ok := d.find(name); err == nil && name != "" && !ok {
			err = fmt.Errorf("tokenizer_config.json names the token %q, which tokenizer.json does not have", name)
		}
	}
	if err != nil {
		return nil, config, fmt.Errorf("tokenizer: %w", err)
	}
	if generation.EOS == nil {
		generation = model
	}
	d.bos, _ = d.find(config.BOS)
	if id, ok := d.find(config.EOS); ok {
		d.eos = append(d.eos, id)
	}
	d.eos = append(d.eos, generation.EOS...)
	tok, err := newTokenizer(d)
	return tok, config, err
}

// find gives the id of a token; noID where there is none.
func (d *definition) find(token tokenName) (int32, bool) {
	for _, a := range d.added {
		if a.Content == string(token) {
			return a.ID, true
		}
	}
	if id, ok := d.vocab[string(token)]; ok {
		return id, true
	}
	return noID, false
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
	for _, c := range f.Normalizer.steps() {
		if c.Type != "NFC" {
			return d, fmt.Errorf("normalizer %q is not supported", c.Type)
		}
		d.nfc = true
	}
	byteLevel := false
	for _, c := range f.PreTokenizer.steps() {
		if byteLevel {
			return d, fmt.Errorf("pre-tokenizer %q behind ByteLevel is not supported", c.Type)
		}
		if err := c.preTokenizer(&d); err != nil {
			return d, err
		}
		byteLevel = c.Type == "ByteLevel"
	}
	decoders := f.Decoder.steps()
	switch {
	case !byteLevel:
		return d, errors.New("there is no ByteLevel pre-tokenizer: only byte-level BPE is supported")
	case len(decoders) != 1 || decoders[0].Type != "ByteLevel":
		return d, fmt.Errorf("%d decoders, want one: ByteLevel", len(decoders))
	}
	return d, nil
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

// preTokenizer appends the splitters of c.
func (c *component) preTokenizer(d *definition) error {
	switch {
	case c.Type == "Digits" && c.Individual:
		d.split = append(d.split, splitDigits)
	case c.Type == "ByteLevel" && !c.PrefixSpace:
		if c.UseRegex == nil || *c.UseRegex {
			d.split = append(d.split, splitGPT2)
		}
	case c.Type == "Split" && c.Behavior == "Isolated" && !c.Invert && c.Pattern.Regex != "":
		s, err := splitRegex(c.Pattern.Regex)
		d.split = append(d.split, s)
		return err
	default:
		return fmt.Errorf("pre-tokenizer %q is not supported or not with these settings: want ByteLevel without add_prefix_space, "+
			"Digits with individual_digits, or Split by a Regex with behavior Isolated", c.Type)
	}
	return nil
}
