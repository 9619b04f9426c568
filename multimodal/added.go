package multimodal

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// addedToken is a token that is found in the text before any splitting. The fields are those of tokenizer.json.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	Special    bool   `json:"special"`
	Normalized bool   `json:"normalized"`  // looked for in the normalised text
	LStrip     bool   `json:"lstrip"`      // takes the white space on its left with it
	RStrip     bool   `json:"rstrip"`      // and on its right
	SingleWord bool   `json:"single_word"` // not inside a word
}

// addedTokens finds added tokens: leftmost first, the longest of those that start at one place.
type addedTokens struct {
	lengths [256][]int // of the tokens that start with a byte, falling
	tokens  map[string]addedToken
}

func (a *addedTokens) add(t addedToken) {
	if t.Content == "" {
		return
	}
	if a.tokens == nil {
		a.tokens = map[string]addedToken{}
	}
	a.tokens[t.Content] = t
	list := &a.lengths[t.Content[0]]
	at, found := slices.BinarySearchFunc(*list, len(t.Content), func(x, n int) int { return n - x })
	if !found {
		*list = slices.Insert(*list, at, len(t.Content))
	}
}

// at is the token that text begins with.
func (a *addedTokens) at(text string) (t addedToken, ok bool) {
	for _, n := range a.lengths[text[0]] {
		if n <= len(text) {
			if t, ok = a.tokens[text[:n]]; ok {
				break
			}
		}
	}
	return t, ok
}

// cut calls token for each added token of text and part for each stretch, never empty, between them, in order.
func (a *addedTokens) cut(text string, token func(int32), part func(string)) {
	start := 0 // of what is not given out; white space that one token took with it may be before the next one's match
	for i := 0; i < len(text); {
		t, ok := a.at(text[i:])
		if !ok {
			i++
			continue
		}
		from, to := i, i+len(t.Content)
		i = to
		if before, _ := utf8.DecodeLastRuneInString(text[:from]); t.SingleWord && from > 0 && inWord(before) {
			continue
		}
		if after, _ := utf8.DecodeRuneInString(text[to:]); t.SingleWord && to < len(text) && inWord(after) {
			continue
		}
		if t.LStrip {
			from = max(start, len(strings.TrimRightFunc(text[:from], isSpace)))
		}
		if t.RStrip {
			to = len(text) - len(strings.TrimLeftFunc(text[to:], isSpace))
		}
		if from >= to { // nothing is left of it
			continue
		}
		if start < from {
			part(text[start:from])
		}
		token(t.ID)
		start = to
	}
	if start < len(text) {
		part(text[start:])
	}
}
