package multimodal

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// The Unicode classes are tables of our own, made from what the reference's regex engine knows (gen_unicode.go): package
// unicode changes with the Go release, and a character that changes its class changes ids.

// contains reports whether r is in one of the ranges, pairs of first and last.
func contains(ranges []rune, r rune) bool {
	i, found := slices.BinarySearch(ranges, r)
	return found || i%2 == 1
}

// inWord reports whether a single_word token cannot stand beside r: \w of the reference.
func inWord(r rune) bool {
	return contains(unicodeL, r) ||
		unicode.In(r, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}

func isSpace(r rune) bool { return contains(unicodeSpace, r) }

// regexClasses are the ranges (pairs of first and last) of the classes that patterns of tokenizer.json name.
var regexClasses = map[string][]rune{
	`\p{L}`: unicodeL, `\p{Lu}`: unicodeLu, `\p{Ll}`: unicodeLl, `\p{Lt}`: unicodeLt, `\p{Lm}`: unicodeLm, `\p{Lo}`: unicodeLo,
	`\p{M}`: unicodeM, `\p{N}`: unicodeN, `\p{P}`: unicodeP, `\p{S}`: unicodeS, `\s`: unicodeSpace,
}

// nfc is Unicode's canonical composition as the reference computes it. Its tables are older than x/text's: characters
// that have no combining class there stay where they are and end what may be reordered or composed.
func nfc(text string) string {
	var b strings.Builder
	start := 0
	for i, r := range text {
		if r > 0x7F && contains(unicodeUnordered, r) {
			end := i + utf8.RuneLen(r)
			b.WriteString(compose(text[start:i]))
			b.WriteString(text[i:end])
			start = end
		}
	}
	if start == 0 {
		return compose(text)
	}
	b.WriteString(compose(text[start:]))
	return b.String()
}

// compose is norm.NFC without the joiner that x/text puts after 30 marks (Stream-Safe Text).
func compose(text string) string {
	const joiner = "\u034f"
	short := norm.NFC.String(text)
	if strings.Count(short, joiner) == strings.Count(text, joiner) {
		return short
	}
	ccc := func(r rune) uint8 { return norm.NFD.PropertiesString(string(r)).CCC() }
	var all []rune
	for _, r := range text {
		all = append(all, []rune(norm.NFD.String(string(r)))...)
	}
	for i := 0; i < len(all); i++ {
		from := i
		for i < len(all) && ccc(all[i]) > 0 {
			i++
		}
		slices.SortStableFunc(all[from:i], func(a, b rune) int { return int(ccc(a)) - int(ccc(b)) })
	}
	done, starter, last := all[:0], -1, uint8(0)
	for _, r := range all {
		class := ccc(r)
		if starter >= 0 && (len(done) == starter+1 || last < class) {
			if pair := []rune(norm.NFC.String(string([]rune{done[starter], r}))); len(pair) == 1 {
				done[starter] = pair[0]
				continue
			}
		}
		if done, last = append(done, r), class; class == 0 {
			starter = len(done) - 1
		}
	}
	return string(done)
}
