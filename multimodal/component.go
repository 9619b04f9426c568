package multimodal

import (
	"fmt"
	"slices"
	"strings"
)

// component is a normalizer, pre-tokenizer, post-processor or decoder with the fields of all of them.
type component struct {
	Type          string      `json:"type"`
	Normalizers   []component `json:"normalizers"`
	Pretokenizers []component `json:"pretokenizers"`
	Processors    []component `json:"processors"`
	Decoders      []component `json:"decoders"`
	Pattern       struct{ String, Regex string }
	Content       string `json:"content"`
	Prepend       string `json:"prepend"`
	Behavior      string `json:"behavior"`
	Invert        bool   `json:"invert"`
	Individual    bool   `json:"individual_digits"`
	PrefixSpace   *bool  `json:"add_prefix_space"` // absent: not in ByteLevel
	UseRegex      *bool  `json:"use_regex"`        // absent: true
	Replacement   string `json:"replacement"`
	Scheme        string `json:"prepend_scheme"`
	Split         *bool  `json:"split"` // absent: true
	Start         int    `json:"start"`
	Stop          int    `json:"stop"`
	Single        []struct {
		SpecialToken, Sequence *struct{ ID string }
	} `json:"single"`
	SpecialTokens map[string]struct{ IDs []int32 } `json:"special_tokens"`
}

// steps are what a Sequence consists of, or c alone; none where it is absent.
func (c *component) steps() (all []component) {
	if c == nil {
		return nil
	} else if c.Type != "Sequence" {
		return []component{*c}
	}
	for _, part := range slices.Concat(c.Normalizers, c.Pretokenizers, c.Processors, c.Decoders) {
		all = append(all, part.steps()...)
	}
	return all
}

func absentOr(b *bool) bool { return b == nil || *b }

func (c *component) normalizer() (func(string) string, error) {
	all := func(text string) string { return text }
	for _, c := range c.steps() {
		before, step := all, nfc
		switch c.Type {
		case "NFC":
		case "Prepend":
			step = func(text string) string {
				if text == "" {
					return ""
				}
				return c.Prepend + text
			}
		case "Replace":
			replace, err := c.replace()
			if err != nil {
				return nil, fmt.Errorf("normalizer Replace: %w", err)
			}
			step = replace
		default:
			return nil, fmt.Errorf("normalizer %q is not supported: want NFC, Prepend, Replace or a Sequence of them", c.Type)
		}
		all = func(text string) string { return step(before(text)) }
	}
	return all, nil
}

// replace puts Content in the place of every match of Pattern.
func (c *component) replace() (func(string) string, error) {
	if c.Pattern.String != "" {
		return func(text string) string { return strings.ReplaceAll(text, c.Pattern.String, c.Content) }, nil
	}
	find, err := newFinder(c.Pattern.Regex)
	return func(text string) string {
		var b strings.Builder
		find(text, func(piece string, match bool) {
			if match {
				piece = c.Content
			}
			b.WriteString(piece)
		})
		return b.String()
	}, err
}

// specials are the tokens that a post-processor puts before and after a text, whose tokenizer has so many ids.
func (c *component) specials(numIDs int) (before, after []int32, err error) {
	for _, c := range c.steps() {
		if c.Type == "ByteLevel" { // changes offsets only
			continue
		}
		var sides [2][]int32
		side := 0
		for _, piece := range c.Single {
			if piece.Sequence != nil {
				side++
			} else if piece.SpecialToken != nil && side < 2 {
				sides[side] = append(sides[side], c.SpecialTokens[piece.SpecialToken.ID].IDs...)
			}
		}
		if c.Type != "TemplateProcessing" || side != 1 {
			return nil, nil, fmt.Errorf("post-processor %q is not supported: want ByteLevel, or TemplateProcessing of one text", c.Type)
		}
		before, after = slices.Concat(sides[0], before), slices.Concat(after, sides[1])
	}
	for _, id := range slices.Concat(before, after) {
		if id < 0 || int(id) >= numIDs {
			return nil, nil, fmt.Errorf("the post-processor adds the id %d; the vocabulary has %d", id, numIDs)
		}
	}
	return before, after, nil
}
