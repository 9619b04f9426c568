package multimodal

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dlclark/regexp2/v2"
)

// The patterns of pre-tokenizers.
const (
	contractions = `'s|'t|'re|'ve|'m|'ll|'d`
	spaces       = `|\s+(?!\S)|\s+`
	lineEnds     = `|\s*[\r\n]+` + spaces
	wordsOfAny   = `[^\r\n\p{L}\p{N}]?\p{L}+|`
	upperLower   = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
	upperOnly    = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`
	symbols      = ` ?[^\s\p{L}\p{N}]+`

	gpt2Pattern   = contractions + `| ?\p{L}+| ?\p{N}+|` + symbols + spaces
	llama3Pattern = `(?i:` + contractions + `)|` + wordsOfAny + `\p{N}{1,3}|` + symbols + `[\r\n]*` + lineEnds
	qwen2Pattern  = `(?i:` + contractions + `)|` + wordsOfAny + `\p{N}|` + symbols + `[\r\n]*` + lineEnds
	o200kPattern  = upperLower + `(?i:` + contractions + `)?|` + upperOnly + `(?i:` + contractions + `)?|\p{N}{1,3}|` +
		symbols + `[\r\n/]*` + lineEnds
	deepseekPattern = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|" +
		`[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*` + lineEnds
)

// finder cuts text into the matches of a pattern and what is between them, which make up text again. A match may be empty.
type finder func(text string, found func(piece string, match bool))

// newFinder compiles a pattern of tokenizer.json, which may look ahead and so needs a backtracking engine. Classes are replaced
// by the ranges of our own tables. A pattern whose time grows with the third power of a text, or faster, is an error.
func newFinder(pattern string) (finder, error) {
	if pattern == "" {
		return nil, errors.New("it has no pattern: want a String or a Regex that is not empty")
	}
	pinned, err := pinClasses(pattern)
	if err != nil {
		return nil, err
	}
	re, err := regexp2.Compile(pinned, regexp2.Multiline) // ^ and $ are ends of lines in the reference
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	re.MatchTimeout = 2 * time.Second // the patterns in use take 5 ms for all runs, on a machine that does nothing else
	deadline := time.Now().Add(4 * time.Second)
	for _, text := range runs {
		err := re.FindRunesMatches([]rune(text), 0, func(regexp2.MatchView) bool { return time.Now().Before(deadline) })
		if err != nil || time.Now().After(deadline) {
			return nil, fmt.Errorf("pattern %q takes too long on a run of %q", pattern, text[:4])
		}
	}
	re.MatchTimeout = regexp2.DefaultMatchTimeout
	return func(text string, found func(string, bool)) {
		at := 0
		matches, _ := re.FindAllStringIndex(text, -1) // which can only fail by running out of time, and no limit is set
		for _, m := range matches {
			if at < m[0] {
				found(text[at:m[0]], false)
			}
			found(text[m[0]:m[1]], true)
			at = m[1]
		}
		if at < len(text) {
			found(text[at:], false)
		}
	}, nil
}

// runs are what patterns are tried on: long runs of one or two kinds of characters.
var runs = func() (all []string) {
	for _, unit := range []string{" ", "\n", "a", "A", "1", "!", "\u0301", "ab", "a ", "a1", "aA!", " \n\r", "a\u0301 1\n"} {
		all = append(all, strings.Repeat(unit, 1<<12/len(unit))+"\x00")
	}
	return all
}()

var classOrBracket = regexp.MustCompile(`(?s)\\[pP]\{[^}]*\}|\\.?|&&|\[:|[\[\]]`)

// pinClasses writes the Unicode classes of a pattern as explicit ranges.
func pinClasses(pattern string) (pinned string, err error) {
	inSet := false
	pinned = classOrBracket.ReplaceAllStringFunc(pattern, func(part string) string {
		ranges, isClass := regexClasses[part]
		switch {
		case part == "[" || part == "]":
			inSet = part == "["
		case isClass && inSet:
			return spell(ranges)
		case isClass:
			return "[" + spell(ranges) + "]"
		case part == `\S` && !inSet:
			return "[^" + spell(unicodeSpace) + "]"
		case part == `\` || part == "&&" && inSet || part == "[:" || strings.ContainsAny(part[1:2], "pPdDwWbBS"):
			err = fmt.Errorf("pattern %q: the class %q is not supported (in brackets: %v)", pattern, part, inSet)
		}
		return part
	})
	return pinned, err
}

// spell writes ranges as they stand within brackets. None begins or ends with a hyphen.
func spell(ranges []rune) string {
	var b strings.Builder
	for pair := range slices.Chunk(ranges, 2) {
		fmt.Fprintf(&b, "%s-%s", regexp.QuoteMeta(string(pair[:1])), regexp.QuoteMeta(string(pair[1:])))
	}
	return b.String()
}
