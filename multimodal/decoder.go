package multimodal

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// decoder is what turns tokens back into text.
type decoder struct {
	text      []string              // id → what it stands for within a text
	first     func(id int32) string // what it stands for at the beginning; nil: the same
	byteLevel bool                  // text is bytes, of characters that may go on in the next token
	loneBytes map[int32]bool        // tokens that are one byte, as <0x0A> is
	cutChar   string                // is cut off the beginning of a text,
	cuts      int                   // at most as often
}

// decoder makes a file's decoder: steps that change single tokens, then one that joins bytes, then one that cuts the text.
func (c *component) decoder(names []string) (d decoder, err error) {
	var each []func(token string, first bool) string
	token := func(id int32, first bool) string {
		text := names[id]
		for _, step := range each {
			text = step(text, first)
		}
		return text
	}
	d.text, d.loneBytes = make([]string, len(names)), map[int32]bool{}
	fallback, fused := false, false
	for _, c := range c.steps() {
		switch single := !fallback && !fused; {
		case c.Type == "Replace" && single:
			replace, err := c.replace()
			if err != nil {
				return d, fmt.Errorf("decoder Replace: %w", err)
			}
			each = append(each, func(token string, _ bool) string { return replace(token) })
		case c.Type == "Metaspace" && single:
			scheme, err := c.scheme()
			if err != nil {
				return d, fmt.Errorf("decoder Metaspace: %w", err)
			}
			each = append(each, func(token string, first bool) string {
				space := " "
				if first && scheme != "never" {
					space = ""
				}
				return strings.ReplaceAll(token, c.Replacement, space)
			})
			d.first = func(id int32) string { return token(id, true) }
		case c.Type == "ByteFallback" && single:
			fallback = true
		case c.Type == "ByteLevel" && single && d.first == nil:
			d.byteLevel, fused = true, true
		case c.Type == "Fuse":
			fused = true
		case c.Type == "Strip" && fused && c.Stop == 0 && d.cuts == 0 && c.Content != "":
			d.cuts, d.cutChar = c.Start, c.Content
		default:
			return d, fmt.Errorf("decoder %q is not supported, or not with these settings or at this place of a sequence", c.Type)
		}
	}
	if c == nil {
		return d, errors.New("there is no decoder")
	}
	for id := range names {
		text := token(int32(id), false)
		if bytes, ok := bytesOf(text); ok && d.byteLevel {
			text = bytes
		} else if fallback && len(text) == 6 && strings.HasPrefix(text, "<0x") && text[5] == '>' {
			if b, err := strconv.ParseUint(text[3:5], 16, 8); err == nil {
				text, d.loneBytes[int32(id)] = string([]byte{byte(b)}), true
			}
		}
		d.text[id] = text
	}
	return d, nil
}

// opening is how far the beginning of one text is decoded.
type opening struct {
	t       *Tokenizer
	started bool
	cuts    int // that may still follow
}

// bytes are what id stands for: not always whole characters, none for an id out of the vocabulary.
func (o *opening) bytes(id int32) string {
	if o.t.Token(id) == "" {
		return ""
	}
	first := !o.started
	o.started = true
	if first && o.t.first != nil && !o.t.loneBytes[id] {
		return o.t.first(id)
	}
	return o.t.text[id]
}

// cut takes off what the decoder cuts at the beginning.
func (o *opening) cut(text string) string {
	for o.cuts > 0 && text != "" {
		rest, ok := strings.CutPrefix(text, o.t.cutChar)
		if o.cuts--; !ok {
			o.cuts = 0
		}
		text = rest
	}
	return text
}
