package multimodal

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// splitter cuts text into pieces, none empty; first: it is where an input begins. It must be safe for concurrent use.
type splitter func(text string, first bool, emit func(piece string))

// preTokenizer is a splitter; byteLevel: into words whose bytes are the symbols.
func (c *component) preTokenizer() (all splitter, byteLevel bool, err error) {
	var steps []splitter
	for i, c := range c.steps() {
		if byteLevel { // what follows sees the bytes in their alphabet, one character each
			steps = append(steps, func(text string, _ bool, emit func(string)) { emit(alphabetOf(text)) })
		}
		step, err := c.splitter()
		if c.Type == "Metaspace" && i > 0 {
			err = errors.New("behind another one it is not supported")
		}
		if err != nil {
			return nil, false, fmt.Errorf("pre-tokenizer %q: %w", c.Type, err)
		}
		steps, byteLevel = append(steps, step), c.Type == "ByteLevel"
	}
	return chain(steps...), byteLevel, nil
}

// splitter is a single step of a pre-tokenizer.
func (c *component) splitter() (_ splitter, err error) {
	switch words := chain(); c.Type {
	case "ByteLevel":
		if absentOr(c.UseRegex) {
			words, err = split(gpt2Pattern, "Isolated", false)
		}
		if c.PrefixSpace != nil && *c.PrefixSpace {
			space := func(text string, _ bool, emit func(string)) { emit(" " + strings.TrimPrefix(text, " ")) }
			words = chain(space, words)
		}
		return words, err
	case "Digits":
		return split("["+spell(unicodeNumeric)+"]", map[bool]string{true: "Isolated", false: "Contiguous"}[c.Individual], false)
	case "Metaspace":
		scheme, err := c.scheme()
		if err == nil && absentOr(c.Split) {
			words, err = split(regexp.QuoteMeta(c.Replacement), "MergedWithNext", false)
		}
		return func(text string, first bool, emit func(string)) {
			text = strings.ReplaceAll(text, " ", c.Replacement)
			if (scheme == "always" || scheme == "first" && first) && !strings.HasPrefix(text, c.Replacement) {
				text = c.Replacement + text
			}
			words(text, first, emit)
		}, err
	case "Split":
		return split(cmp.Or(regexp.QuoteMeta(c.Pattern.String), c.Pattern.Regex), c.Behavior, c.Invert)
	case "WhitespaceSplit":
		return split(`\s`, "Removed", false)
	}
	return nil, errors.New("it is not supported: want ByteLevel, Digits, Metaspace, Split or WhitespaceSplit")
}

// scheme is when Metaspace puts a space in front.
func (c *component) scheme() (string, error) {
	scheme := cmp.Or(c.Scheme, "always")
	if c.Scheme == "" && !absentOr(c.PrefixSpace) {
		scheme = "never"
	}
	if !slices.Contains([]string{"always", "first", "never"}, scheme) || c.Replacement == "" {
		return "", fmt.Errorf("prepend_scheme %q with replacement %q is not supported", scheme, c.Replacement)
	}
	return scheme, nil
}

// chain applies splitters one after the other, each to the pieces of the one before.
func chain(splitters ...splitter) splitter {
	if len(splitters) == 0 {
		return func(text string, _ bool, emit func(string)) { emit(text) }
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
