package multimodal

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// OpenTokenizer reads the tokenizer of the model at path, a BPE: a .gguf file's, or a Hugging Face folder's tokenizer.json,
// with the end and beginning tokens from tokenizer_config.json and generation_config.json (or config.json) beside it, where
// they are.
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
	Merges       mergeList        `json:"merges"`        // by falling priority
	Unknown      string           `json:"unk_token"`     // for what has no token; "" drops it
	IgnoreMerges bool             `json:"ignore_merges"` // a word that is a token of the vocabulary is not merged
	Dropout      *float64         `json:"dropout"`
	Prefix       string           `json:"continuing_subword_prefix"`
	Suffix       string           `json:"end_of_word_suffix"`
	FuseUnknown  bool             `json:"fuse_unk"`
	ByteFallback bool             `json:"byte_fallback"`
}

// mergeList holds pairs of tokens, each written as "left right" or as ["left", "right"].
type mergeList []mergePair

type mergePair struct{ left, right string }

// UnmarshalJSON walks over JSON that encoding/json has found well-formed: its reflection takes a second for half a million merges.
func (l *mergeList) UnmarshalJSON(raw []byte) error {
	text := string(raw) // of which the merges are parts
	wrong := func() error {
		return fmt.Errorf("merge %d is neither two tokens in a string nor a list of two", len(*l))
	}
	*l = make(mergeList, 0, strings.Count(text, ","))
	var pair []string // of an inner list
	for i, depth := 0, 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '[' && depth < 2:
			depth, pair = depth+1, pair[:0]
		case c == ']':
			if depth--; depth == 1 && len(pair) != 2 {
				return wrong()
			} else if depth == 1 {
				*l = append(*l, mergePair{pair[0], pair[1]})
			}
		case c == '"' && depth > 0:
			s, n, err := quoted(text[i:])
			if err != nil {
				return err
			}
			i += n - 1
			if depth == 2 {
				pair = append(pair, s)
			} else if left, right, ok := strings.Cut(s, " "); ok {
				*l = append(*l, mergePair{left, right})
			} else {
				return wrong()
			}
		case !strings.ContainsRune(", \n\t\r", rune(c)):
			return wrong()
		}
	}
	return nil
}

// quoted is the JSON string that text begins with, and its length there.
func quoted(text string) (s string, n int, err error) {
	for n = 1; text[n] != '"'; n++ {
		if text[n] == '\\' {
			n++
		}
	}
	if s, n = text[1:n], n+1; strings.Contains(s, `\`) {
		err = json.Unmarshal([]byte(text[:n]), &s)
	}
	return s, n, err
}

func (m *bpeModel) check() error {
	for part, unsupported := range map[string]bool{
		fmt.Sprintf("model %q", m.Type): m.Type != "BPE" && m.Type != "",
		"a model without vocabulary":    len(m.Vocab) == 0,
		"dropout":                       m.Dropout != nil && *m.Dropout != 0,
		"continuing_subword_prefix":     m.Prefix != "",
		"end_of_word_suffix":            m.Suffix != "",
	} {
		if unsupported {
			return fmt.Errorf("%s is not supported: want a BPE model", part)
		}
	}
	return nil
}

func (f *tokenizerFile) tokenizer() (*Tokenizer, error) {
	t := &Tokenizer{ids: f.Model.Vocab, special: map[int32]bool{}, bos: noID}
	err := f.Model.check()
	for _, c := range []*component{f.Normalizer, f.PreTokenizer, f.PostProcessor, f.Decoder} {
		if n := len(c.steps()); n > maxSteps && err == nil {
			err = fmt.Errorf("a Sequence with %d steps: more than %d are not supported", n, maxSteps)
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
		t.lead, t.split, byteLevel, err = f.PreTokenizer.preTokenizer()
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
	if err == nil && !byteLevel && !f.Model.IgnoreMerges {
		t.split = chain(t.split, f.Model.atMarks())
	}
	return t, err
}

// maxSteps bounds what a hostile file can make of every text; the longest sequences in use have five.
const maxSteps = 32

// mark is what SentencePiece writes for a space.
const mark = "\u2581"

// atMarks splits before a mark where no token could reach across, which changes no id: short words merge faster than a text, and their
// results are kept.
func (m *bpeModel) atMarks() splitter {
	reach := map[rune]bool{} // characters that a token has before a mark
	for token := range m.Vocab {
		for at := 1; at < len(token); at++ {
			if strings.HasPrefix(token[at:], mark) {
				before, _ := utf8.DecodeLastRuneInString(token[:at])
				reach[before] = true
			}
		}
	}
	_, known := m.Vocab[mark]
	return func(text string, emit func(string)) {
		start := 0
		for at := 1; known && at < len(text); at++ {
			next := strings.Index(text[at:], mark)
			if next < 0 {
				break
			}
			at += next
			if before, _ := utf8.DecodeLastRuneInString(text[:at]); !reach[before] {
				emit(text[start:at])
				start = at
			}
		}
		emit(text[start:])
	}
}
