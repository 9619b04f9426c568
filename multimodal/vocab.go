package multimodal

import (
	"fmt"
	"strings"
)

const (
	noID = -1
	// maxID bounds what a damaged file can make a table of ids allocate; the largest vocabularies in use are an eighth.
	maxID = 1<<21 - 1
)

// add enters a token under its id. A token may be given twice with one id, as added tokens are that the vocabulary has.
func (t *Tokenizer) add(token string, id int32) error {
	if id < 0 || id > maxID {
		return fmt.Errorf("tokenizer: token %q has the id %d, want 0 to %d", token, id, maxID)
	}
	if old, ok := t.ids[token]; ok && old != id {
		return fmt.Errorf("tokenizer: token %q has two ids, %d and %d", token, old, id)
	}
	for int(id) >= len(t.names) {
		t.names = append(t.names, "")
	}
	if old := t.names[id]; old != "" && old != token {
		return fmt.Errorf("tokenizer: the id %d belongs to two tokens, %q and %q", id, old, token)
	}
	t.names[id], t.ids[token] = token, id
	return nil
}

func (t *Tokenizer) check(role string, id int32) error {
	if t.Token(id) == "" {
		return fmt.Errorf("tokenizer: the %s id %d is not in the vocabulary", role, id)
	}
	return nil
}

// The byte-level alphabet of GPT-2 writes every byte as a printable character: those that print as themselves, the
// others, in order, as U+0100 and up.
var (
	byteRunes = makeByteRunes()
	runeBytes = invert(byteRunes)
)

func makeByteRunes() (runes [256]rune) {
	next := rune(0x100)
	for b := range runes {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			runes[b] = rune(b)
		} else {
			runes[b] = next
			next++
		}
	}
	return runes
}

func invert(runes [256]rune) map[rune]byte {
	bytes := make(map[rune]byte, len(runes))
	for b, r := range runes {
		bytes[r] = byte(b)
	}
	return bytes
}

// alphabetOf writes bytes in the byte-level alphabet.
func alphabetOf(bytes string) string {
	var b strings.Builder
	for i := range len(bytes) {
		b.WriteRune(byteRunes[bytes[i]])
	}
	return b.String()
}

// bytesOf is the inverse. A token with a character out of the alphabet, which only added tokens can have, is itself.
func bytesOf(token string) string {
	b := make([]byte, 0, len(token))
	for _, r := range token {
		x, ok := runeBytes[r]
		if !ok {
			return token
		}
		b = append(b, x)
	}
	return string(b)
}
