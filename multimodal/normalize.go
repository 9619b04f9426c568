package multimodal

import (
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// nfc is Unicode's canonical composition as the reference computes it. Its tables are older than x/text's: characters
// that have no combining class there stay where they are and end what may be reordered or composed.
func nfc(text string) string {
	ascii := true
	for i := 0; ascii && i < len(text); i++ {
		ascii = text[i] < utf8.RuneSelf
	}
	if ascii {
		return text
	}
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
