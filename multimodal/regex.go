package multimodal

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// findRegex finds a pattern of tokenizer.json, which may look ahead and so needs a backtracking engine. Classes are replaced
// by the ranges of our own tables. A pattern whose time grows with the third power of a text, or faster, is an error.
func findRegex(pattern string) (finder, error) {
	pinned, err := pinClasses(pattern)
	if err != nil {
		return nil, err
	}
	re, err := regexp2.Compile(pinned, regexp2.Multiline) // ^ and $ are ends of lines in the reference
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	re.MatchTimeout = time.Second / 2 // the patterns in use take 5 ms for all runs
	deadline := time.Now().Add(time.Second)
	for _, text := range runs {
		err := re.FindRunesMatches([]rune(text), 0, func(regexp2.MatchView) bool { return time.Now().Before(deadline) })
		if err != nil || time.Now().After(deadline) {
			return nil, fmt.Errorf("pattern %q takes too long on a run of %q", pattern, text[:4])
		}
	}
	re.MatchTimeout = regexp2.DefaultMatchTimeout
	return func(text string, found func(string, bool)) {
		runes, at, pos := []rune(text), 0, 0 // at in runes is pos in text
		skip := func(to int) string {
			from := pos
			for ; at < to; at++ {
				pos += utf8.RuneLen(runes[at])
			}
			return text[from:pos]
		}
		// Matching can only fail by running out of time, and no limit is set.
		_ = re.FindRunesMatches(runes, 0, func(m regexp2.MatchView) bool {
			start, n, _ := m.GroupRange(0)
			if start > at {
				found(skip(start), false)
			}
			found(skip(start+n), true)
			return true
		})
		if pos < len(text) {
			found(text[pos:], false)
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
		case part == `\` || part == "&&" || part == "[:" || strings.ContainsAny(part[1:2], "pPdDwWbBS"):
			err = fmt.Errorf("pattern %q: the class %q is not supported (in brackets: %v)", pattern, part, inSet)
		}
		return part
	})
	return pinned, err
}

// spell writes ranges as they stand within brackets.
func spell(ranges []rune) string {
	var b strings.Builder
	for i := 0; i < len(ranges); i += 2 {
		fmt.Fprintf(&b, `%s-%s`, escape(ranges[i]), escape(ranges[i+1]))
	}
	return b.String()
}

func escape(r rune) string {
	if r < 0x80 {
		return fmt.Sprintf(`\x%02x`, r)
	}
	return string(r)
}
