package multimodal

import (
	"strings"
	"unicode/utf8"
)

const replacement = "\uFFFD"

// lossy makes s valid UTF-8: each maximal invalid sequence, a start of a character that does not go on included, becomes
// one U+FFFD, as Unicode recommends and Hugging Face's decoders do; Go's own conversions replace byte by byte.
func lossy(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r != utf8.RuneError || n > 1 {
			b.WriteString(s[:n])
		} else {
			b.WriteString(replacement)
			for n < len(s) && !utf8.FullRuneInString(s[:n+1]) { // s[:n+1] could still have become a character
				n++
			}
		}
		s = s[n:]
	}
	return b.String()
}

// complete is the length of s without a start of a character at its end that the next bytes could complete.
func complete(s []byte) int {
	for i := len(s) - 1; i >= 0 && i > len(s)-utf8.UTFMax; i-- {
		if utf8.RuneStart(s[i]) {
			if !utf8.FullRune(s[i:]) {
				return i
			}
			break
		}
	}
	return len(s)
}
