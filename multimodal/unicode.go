package multimodal

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// The Unicode classes are tables of our own, made from what the reference's regex engine knows (gen_unicode.go): package
// unicode changes with the Go release, and a character that changes its class changes ids.

// class is a set of bits for a character.
type class uint8

const (
	letter    class = 1 << iota // \p{L}
	number                      // \p{N}
	space                       // \s
	numeric                     // \p{N} and the numeral ideographs: what a digits pre-tokenizer isolates
	unordered                   // no combining class in the reference's NFC, but one in x/text's
)

// classes maps every character to its class: 1 MB, made at first use.
var classes = sync.OnceValue(func() *[unicode.MaxRune + 1]class {
	table := new([unicode.MaxRune + 1]class)
	for bit, ranges := range map[class][]rune{
		letter: unicodeL, number: unicodeN, space: unicodeSpace, numeric: unicodeNumeric, unordered: unicodeUnordered,
	} {
		for i := 0; i < len(ranges); i += 2 {
			for r := ranges[i]; r <= ranges[i+1]; r++ {
				table[r] |= bit
			}
		}
	}
	return table
})

func isSpace(r rune) bool { return classes()[r]&space != 0 }

// regexClasses are the ranges (pairs of first and last) of the classes that patterns of tokenizer.json name.
var regexClasses = map[string][]rune{
	`\p{L}`: unicodeL, `\p{Lu}`: unicodeLu, `\p{Ll}`: unicodeLl, `\p{Lt}`: unicodeLt, `\p{Lm}`: unicodeLm, `\p{Lo}`: unicodeLo,
	`\p{M}`: unicodeM, `\p{N}`: unicodeN, `\p{P}`: unicodeP, `\p{S}`: unicodeS, `\s`: unicodeSpace,
}

// nfc is Unicode's canonical composition as the reference computes it. Its tables are older than x/text's: characters
// that have no combining class there stay where they are and end what may be reordered or composed.
func nfc(text string) string {
	var b strings.Builder
	table, start := classes(), 0
	for i, r := range text {
		if table[r]&unordered != 0 {
			end := i + utf8.RuneLen(r)
			b.WriteString(norm.NFC.String(text[start:i]))
			b.WriteString(text[i:end])
			start = end
		}
	}
	b.WriteString(norm.NFC.String(text[start:]))
	return b.String()
}
