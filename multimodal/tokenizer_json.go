package multimodal

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// OpenTokenizer reads the tokenizer of the model at path, a BPE: a .gguf file's, or a Hugging Face folder's tokenizer.json,
// with the end and beginning tokens from tokenizer_config.json and generation_config.json (or config.json) beside it, where
// they are.
func OpenTokenizer(path string) (tok *Tokenizer, err error) {
	s, err := openSource(path)
	var config tokenizerConfig
	if err == nil {
		config, err = s.config()
	}
	if err == nil {
		tok, err = s.tokenizer(config)
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", path, err)
	}
	return tok, nil
}

// config is what a folder says beside tokenizer.json, which takes far longer to read.
func (s source) config() (c tokenizerConfig, err error) {
	err = optional(s.read("tokenizer_config.json", &c))
	if c.Added == nil && err == nil { // an older folder
		err = optional(s.read("special_tokens_map.json", &c))
	}
	return c, err
}

func (s source) tokenizer(config tokenizerConfig) (*Tokenizer, error) {
	var file tokenizerFile
	var generation, model endIDs
	err := errors.Join(s.read("tokenizer.json", &file), optional(s.read("generation_config.json", &generation)),
		optional(s.read("config.json", &model)))
	switch kind := file.Model.Type; {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%w; transformers makes one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)", err)
	case kind != "BPE" && kind != "": // and its vocabulary is written in other ways
		err = fmt.Errorf("tokenizer: model %q is not supported: want a BPE model", kind)
	}
	if err != nil {
		return nil, err
	}
	if generation.EOS == nil {
		generation = model
	}
	file.add(config.Added)
	t, err := file.tokenizer()
	if err == nil {
		err = t.setEnds(config.Tokens["bos_token"], config.Tokens["eos_token"], generation.EOS)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return t, nil
}

type tokenizerFile struct {
	AddedTokens   []addedToken `json:"added_tokens"`
	Normalizer    *component   `json:"normalizer"`
	PreTokenizer  *component   `json:"pre_tokenizer"`
	PostProcessor *component   `json:"post_processor"`
	Decoder       *component   `json:"decoder"`
	Model         bpeModel     `json:"model"`
}

type bpeModel struct {
	Type         string           `json:"type"`
	Vocab        map[string]int32 `json:"vocab"`
	Merges       []mergePair      `json:"merges"`        // by falling priority
	Unknown      string           `json:"unk_token"`     // for what has no token; "" drops it
	IgnoreMerges bool             `json:"ignore_merges"` // a word that is a token of the vocabulary is not merged
	Dropout      *float64         `json:"dropout"`
	Prefix       string           `json:"continuing_subword_prefix"`
	Suffix       string           `json:"end_of_word_suffix"`
	FuseUnknown  bool             `json:"fuse_unk"`
	ByteFallback bool             `json:"byte_fallback"`
}

// mergePair is two tokens, written as "left right" or as ["left", "right"].
type mergePair struct{ left, right string }

func (m *mergePair) UnmarshalJSON(raw []byte) error {
	var tokens []string
	err := eitherForm(raw, &tokens, func(text string) []string { return strings.SplitN(text, " ", 2) })
	if err == nil && len(tokens) != 2 {
		err = fmt.Errorf("a merge has the tokens %q, want two", tokens)
	}
	if err != nil {
		return err
	}
	m.left, m.right = tokens[0], tokens[1]
	return nil
}

// add adds the tokens of tokenizer_config.json that tokenizer.json lacks.
func (f *tokenizerFile) add(more map[int32]addedToken) {
	known := map[string]bool{}
	for _, a := range f.AddedTokens {
		known[a.Content] = true
	}
	for id, a := range more {
		if a.ID = id; !known[a.Content] {
			f.AddedTokens = append(f.AddedTokens, a)
		}
	}
}

func (f *tokenizerFile) tokenizer() (*Tokenizer, error) {
	const maxSteps, maxGrowth = 32, 1 << 12 // what a hostile file can make of every text; sequences in use have five steps
	t := &Tokenizer{ids: f.Model.Vocab, special: map[int32]bool{}, bos: noID}
	var err error
	if m := f.Model; len(m.Vocab) == 0 || m.Dropout != nil && *m.Dropout != 0 || m.Prefix+m.Suffix != "" {
		err = errors.New("want a BPE model with a vocabulary, without dropout, continuing_subword_prefix and end_of_word_suffix")
	}
	for _, c := range []*component{f.Normalizer, f.PreTokenizer, f.PostProcessor, f.Decoder} {
		steps, growth := c.steps(), 1
		for _, step := range steps {
			growth = min(growth*max(1, len(step.Content)+len(step.Prepend)+len(step.Replacement)), maxGrowth+1)
		}
		if err == nil && (len(steps) > maxSteps || growth > maxGrowth) {
			err = fmt.Errorf("a Sequence of %d steps that lengthen a text %d times or more: at most %d and %d are supported",
				len(steps), growth, maxSteps, maxGrowth)
		}
	}
	for token, id := range f.Model.Vocab {
		if err == nil {
			err = t.add(token, id)
		}
	}
	byteLevel := false
	if err == nil {
		t.normalize, err = f.Normalizer.normalizer()
	}
	if err == nil {
		t.split, byteLevel, err = f.PreTokenizer.preTokenizer()
	}
	if byteLevel && f.Model.ByteFallback && err == nil {
		err = errors.New("byte_fallback with ByteLevel is not supported")
	}
	if err == nil {
		t.bpe, err = newBPE(&f.Model, byteLevel)
	}
	for _, a := range f.AddedTokens {
		if err == nil {
			err = t.addAdded(a)
		}
	}
	if err == nil {
		t.before, t.after, err = f.PostProcessor.specials(len(t.names))
	}
	written := slices.Clone(t.names)
	for _, a := range f.AddedTokens {
		if a.Normalized && err == nil { // the reference writes these as it looks for them
			written[a.ID] = t.normalize(a.Content)
		}
	}
	if err == nil {
		t.decoder, err = f.Decoder.decoder(written)
	}
	return t, err
}
