package multimodal

import (
	"slices"
	"strings"
)

// addedToken is a token that is found in the text before any splitting. The fields are those of tokenizer.json.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	Special    bool   `json:"special"`
	Normalized bool   `json:"normalized"`  // looked for in the normalised text
	LStrip     bool   `json:"lstrip"`      // takes the white space on its left with it
	RStrip     bool   `json:"rstrip"`      // and on its right
	SingleWord bool   `json:"single_word"` // not inside a word; not supported
}

// addedTokens finds added tokens: leftmost first, the longest of those that start at one place.
type addedTokens struct {
	tokens  map[string]addedToken
	lengths [256][]int // by first byte: the lengths of the tokens that start with it, longest first
}

func (a *addedTokens) add(t addedToken) {
	if t.Content == "" {
		return
	}
	if a.tokens == nil {
		a.tokens = map[string]addedToken{}
	}
	a.tokens[t.Content] = t
	l := &a.lengths[t.Content[0]]
	if !slices.Contains(*l, len(t.Content)) {
		*l = append(*l, len(t.Content))
		slices.SortFunc(*l, func(x, y int) int { return y - x })
	}
}

// cut calls token for each added token of text and part for each stretch, never empty, between them, in order.
func (a *addedTokens) cut(text string, token func(int32), part func(string)) {
	start := 0
	for i := 0; i < len(text); {
		t, ok := a.at(text[i:])
		if !ok {
			i++
			continue
		}
		before, end := text[start:i], i+len(t.Content)
		if t.LStrip {
			before = strings.TrimRightFunc(before, isSpace)
		}
		if t.RStrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], isSpace))
		}
		if before != "" {
			part(before)
		}
		token(t.ID)
		i, start = end, end
	}
	if start < len(text) {
		part(text[start:])
	}
}

func (a *addedTokens) at(text string) (addedToken, bool) {
	for _, n := range a.lengths[text[0]] {
		if n <= len(text) {
			if t, ok := a.tokens[text[:n]]; ok {
				return t, true
			}
		}
	}
	return addedToken{}, false
}
