package multimodal

import (
	"fmt"
	"maps"
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

// splitter cuts text into pieces, none empty; first: it is where an input begins. It must be safe for concurrent use.
type splitter func(text string, first bool, emit func(piece string))

// chain applies splitters one after the other, each to the pieces of the one before.
func chain(splitters ...splitter) splitter {
	switch len(splitters) {
	case 0:
		return func(text string, _ bool, emit func(string)) { emit(text) }
	case 1:
		return splitters[0]
	}
	rest := chain(splitters[1:]...)
	return func(text string, first bool, emit func(string)) {
		splitters[0](text, first, func(piece string) { rest(piece, first, emit) })
	}
}

// split makes pieces of the matches of a pattern, as a behavior of tokenizer.json says; invert exchanges matches and the rest.
func split(pattern, behavior string, invert bool) (splitter, error) {
	find, err := newFinder(pattern)
	joins := map[string]func(before, match bool) bool{ // whether a piece goes to the one before it
		"Isolated":           func(bool, bool) bool { return false },
		"Removed":            func(bool, bool) bool { return false },
		"Contiguous":         func(before, match bool) bool { return match == before },
		"MergedWithPrevious": func(before, match bool) bool { return match && !before },
		"MergedWithNext":     func(before, match bool) bool { return before && !match },
	}
	join, ok := joins[behavior]
	if !ok && err == nil {
		err = fmt.Errorf("behavior %q is not supported: want one of %q", behavior, slices.Sorted(maps.Keys(joins)))
	}
	return func(text string, _ bool, emit func(string)) {
		start, end, before := 0, 0, false // of the piece that may go on, and whether it ends in a match
		find(text, func(piece string, match bool) {
			match = match != invert
			if start < end && !join(before, match) {
				emit(text[start:end])
				start = end
			}
			end += len(piece)
			if before = match; match && behavior == "Removed" {
				start = end
			}
		})
		if start < end {
			emit(text[start:end])
		}
	}, err
}
