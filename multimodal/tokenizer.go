// Package multimodal turns messages into tokens and pixels, and tokens back into text: tokenizer, chat template,
// assistant spans, stop strings, images. It knows neither tensors nor reinforcement learning.
package multimodal

import (
	"fmt"
	"slices"
	"strings"
)

// Tokenizer is a BPE tokenizer, byte-level or with SentencePiece's byte tokens. Its ids and texts equal those of Hugging
// Face's tokenizers library. It is safe for concurrent use.
//
// Text becomes ids in five steps: added tokens are cut out; the rest is normalised; added tokens are cut out of the
// normalised text; pre-tokenizers split what is left into words; BPE merges the symbols of each word.
type Tokenizer struct {
	names   []string         // id → token as the vocabulary writes it, "" where there is none
	ids     map[string]int32 // token → id
	special map[int32]bool
	eos     []int32
	bos     int32 // −1: none

	raw, normalized addedTokens // found in the text as given, and after normalisation
	normalize       func(string) string
	split           splitter
	bpe             *bpe
	before, after   []int32 // special tokens around a text
	decoder
}

// Encode returns the ids of text. Added tokens in the text, special ones too, are recognised; no beginning or end token
// is put around it: see AddSpecial. What the vocabulary has neither a token nor an unknown token for vanishes. In text
// that is not UTF-8 each maximal invalid sequence counts as U+FFFD.
func (t *Tokenizer) Encode(text string) []int32 {
	text = lossy(text)
	ids, first := make([]int32, 0, len(text)/4+1), true
	token := func(id int32) { ids, first = append(ids, id), false }
	var room merging
	word := func(w string) { ids = t.bpe.encode(&room, ids, w) }
	t.raw.cut(text, token, func(part string) {
		t.normalized.cut(t.normalize(part), token, func(part string) {
			t.split(part, first, word)
			first = false
		})
	})
	return ids
}

// EncodeAfter is Encode of what follows other text: without the space that vocabularies like Llama 2's put in front of a text.
func (t *Tokenizer) EncodeAfter(text string) []int32 {
	if t.cuts > 0 || t.first != nil {
		const apart = "\n" // is merged with nothing in such vocabularies
		lead, ids := t.Encode(apart), t.Encode(apart+text)
		if len(ids) >= len(lead) && slices.Equal(ids[:len(lead)], lead) {
			return ids[len(lead):]
		}
	}
	return t.Encode(text)
}

// AddSpecial puts around the ids of a text the special tokens that the tokenizer's post-processor, or the add_bos_token and
// add_eos_token of a GGUF file, puts there: tokenizers' add_special_tokens=True. The result is a new slice.
func (t *Tokenizer) AddSpecial(ids []int32) []int32 { return slices.Concat(t.before, ids, t.after) }

// ID finds a token by the name that the vocabulary gives it: byte-level tokens in their alphabet ("Ġthe"), added tokens
// as they are ("<|im_end|>").
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// Token is the name of an id in the vocabulary, "" for an id that has none.
func (t *Tokenizer) Token(id int32) string {
	if id < 0 || int(id) >= len(t.names) {
		return ""
	}
	return t.names[id]
}

// Bytes are what an id stands for within a text, not always whole characters, and nothing for an id that has no token.
func (t *Tokenizer) Bytes(id int32) []byte {
	if t.Token(id) == "" {
		return nil
	}
	return []byte(t.text[id])
}

// Special reports whether id is a special token: control, not text.
func (t *Tokenizer) Special(id int32) bool { return t.special[id] }

// EOS lists the ids that end a reply, the tokenizer's own end-of-sequence token first, then those of the model's
// generation settings. The slice is the caller's.
func (t *Tokenizer) EOS() []int32 { return slices.Clone(t.eos) }

// Decode returns the text of ids, special tokens kept; ids out of the vocabulary are skipped. Bytes that are no character
// become U+FFFD: one for each maximal invalid sequence in a byte-level vocabulary, else one for each token of a run of byte tokens.
func (t *Tokenizer) Decode(ids []int32) string {
	var text strings.Builder
	s := NewStream(t)
	for _, id := range ids {
		text.WriteString(s.Next(id))
	}
	return text.String() + s.Flush()
}

const (
	noID = -1
	// maxID bounds what a damaged file can make a table of ids allocate; the largest vocabularies in use are an eighth.
	maxID = 1<<21 - 1
)

// add enters a token under its id. A token may be given twice with one id, as added tokens are that the vocabulary has.
func (t *Tokenizer) add(token string, id int32) error {
	if id < 0 || id > maxID {
		return fmt.Errorf("token %q has the id %d, want 0 to %d", token, id, maxID)
	}
	if old, ok := t.ids[token]; ok && old != id {
		return fmt.Errorf("token %q has two ids, %d and %d", token, old, id)
	}
	for int(id) >= len(t.names) {
		t.names = append(t.names, "")
	}
	if old := t.names[id]; old != "" && old != token {
		return fmt.Errorf("the id %d belongs to two tokens, %q and %q", id, old, token)
	}
	t.names[id], t.ids[token] = token, id
	return nil
}

func (t *Tokenizer) addAdded(a addedToken) error {
	t.special[a.ID] = t.special[a.ID] || a.Special
	err := t.add(a.Content, a.ID)
	if a.Normalized {
		a.Content = t.normalize(a.Content)
		t.normalized.add(a)
	} else {
		t.raw.add(a)
	}
	return err
}

// setEnds takes the beginning and end tokens, "" for none, and the ids of further end tokens.
func (t *Tokenizer) setEnds(bos, eos string, ids []int32) error {
	for role, token := range map[string]string{"bos": bos, "eos": eos} {
		id, ok := t.ids[token]
		switch {
		case token == "":
		case !ok:
			return fmt.Errorf("tokenizer_config.json names the %s token %q, which tokenizer.json does not have", role, token)
		case role == "bos":
			t.bos = id
		default:
			t.eos = append(t.eos, id)
		}
	}
	for _, id := range ids {
		if t.Token(id) == "" {
			return fmt.Errorf("the end-of-sequence id %d is not in the vocabulary", id)
		}
		if !slices.Contains(t.eos, id) {
			t.eos = append(t.eos, id)
		}
	}
	return nil
}

// The byte-level alphabet of GPT-2 writes every byte as a printable character: those that print as themselves, the
// others, in order, as U+0100 and up.
var byteRunes, byteOf = alphabet()

func alphabet() (runes [256]rune, bytes map[rune]byte) {
	bytes = map[rune]byte{}
	next := rune(0x100)
	for b := range runes {
		r := rune(b)
		if r < '!' || r > '~' && r < 0xA1 || r == 0xAD {
			r = next
			next++
		}
		runes[b], bytes[r] = r, byte(b)
	}
	return runes, bytes
}

// alphabetOf writes bytes in the byte-level alphabet.
func alphabetOf(bytes string) string {
	var b strings.Builder
	for i := range len(bytes) {
		b.WriteRune(byteRunes[bytes[i]])
	}
	return b.String()
}

// bytesOf is the inverse; a token with a character out of the alphabet has none.
func bytesOf(token string) (bytes string, ok bool) {
	b := make([]byte, 0, len(token))
	for _, r := range token {
		x, ok := byteOf[r]
		if !ok {
			return "", false
		}
		b = append(b, x)
	}
	return string(b), true
}
