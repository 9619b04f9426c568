package multimodal

import (
	"strings"
	"testing"

	"github.com/dlclark/regexp2/v2"
	"github.com/google/go-cmp/cmp"
)

func pieces(split splitter, text string) []string {
	var list []string
	split(text, func(p string) { list = append(list, p) })
	return list
}

func TestGPT2SplitterByHand(t *testing.T) {
	for text, want := range map[string]string{
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
	} {
		if d := cmp.Diff(strings.Split(want, "|"), pieces(splitGPT2, text)); d != "" {
			t.Errorf("%q:\n%s", text, d)
		}
	}
}

func TestGPT2SplitterEqualsItsPattern(t *testing.T) {
	pinned, err := pinClasses(gpt2Pattern)
	if err != nil {
		t.Fatal(err)
	}
	re := regexp2.MustCompile(pinned, regexp2.None)
	for _, c := range referenceStrings(t) {
		var want []string
		for m, err := re.FindStringMatch(c.Text); m != nil; m, err = re.FindNextMatch(m) {
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, m.String())
		}
		if d := cmp.Diff(want, pieces(splitGPT2, c.Text)); d != "" {
			t.Errorf("%q:\n%s", c.Text, d)
		}
	}
}

func TestPatternsOfLlama3AndQwen2ByHand(t *testing.T) {
	for pattern, tests := range map[string]map[string]string{
		llama3Pattern: {"It'S 12345!\r\n\n x": "It|'S| |123|45|!\r\n\n| x", "(a": "(a", "a'\u017f": "a|'\u017f", "  \n  b": "  \n| | b"},
		qwen2Pattern:  {"v123 ...\n": "v|1|2|3| ...\n"},
	} {
		split, err := splitRegex(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range tests {
			if d := cmp.Diff(strings.Split(want, "|"), pieces(split, text)); d != "" {
				t.Errorf("%s, %q:\n%s", pattern, text, d)
			}
		}
	}
}
