package multimodal

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func pieces(t *testing.T, pattern, text string) (list []string) {
	t.Helper()
	split, err := split(pattern, "Isolated", false)
	if err != nil {
		t.Fatal(err)
	}
	split(text, true, func(p string) { list = append(list, p) })
	return list
}

func TestPatternsByHand(t *testing.T) {
	for pattern, tests := range map[string]map[string]string{
		gpt2Pattern: {
			"it's we'll I've 'S":  "it|'s| we|'ll| I|'ve| '|S",
			"a  b":                "a| | b",
			"a\n\nb":              "a|\n|\n|b",
			"end  ":               "end|  ",
			" 12a3 !?":            " 12|a|3| !?",
			"x\u00a0y":            "x|\u00a0|y", // not a space that goes with a word
			"  \u3000z":           "  |\u3000|z",
			"naïve ½Ⅷ日本":          "naïve| ½Ⅷ|日本",
			"e\u0301":             "e|\u0301", // a combining mark is neither letter nor number
			"'":                   "'",
			" ":                   " ",
			"don't stop 'reading": "don|'t| stop| '|reading",
		},
		llama3Pattern: {"It'S 12345!\r\n\n x": "It|'S| |123|45|!\r\n\n| x", "(a": "(a", "a'\u017f": "a|'\u017f", "  \n  b": "  \n| | b"},
		qwen2Pattern:  {"v123 ...\n": "v|1|2|3| ...\n"},
		o200kPattern: {"HTTPServer's camelCase/\n": "HTTPServer's| camel|Case|/\n", "ABC": "ABC", "\u0301\u0301a": "\u0301\u0301a",
			"\u05d0A": "\u05d0|A"},
	} {
		for text, want := range tests {
			if d := cmp.Diff(strings.Split(want, "|"), pieces(t, pattern, text)); d != "" {
				t.Errorf("%s, %q:\n%s", pattern, text, d)
			}
		}
	}
}
