package multimodal

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// addedToken is a token that is found in the text before any splitting. The fields are those of tokenizer.json.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	Special    bool   `json:"special"`
	Normalized bool   `json:"normalized"`  // looked for in the normalised text
	LStrip     bool   `json:"lstrip"`      // takes the white space on its left with it
	RStrip     bool   `json:"rstrip"`      // and on its right
	SingleWord bool   `json:"single_word"` // not inside a word; not supported
}

// addedTokens finds added tokens: leftmost first, the longest of those that start at one place. They lie by their first byte,
// the longest first.
type addedTokens [256][]addedToken

func (a *addedTokens) add(t addedToken) {
	if t.Content == "" {
		return
	}
	list := &a[t.Content[0]]
	at, _ := slices.BinarySearchFunc(*list, len(t.Content), func(x addedToken, n int) int { return n - len(x.Content) })
	*list = slices.Insert(*list, at, t)
}

// cut calls token for each added token of text and part for each stretch, never empty, between them, in order.
func (a *addedTokens) cut(text string, token func(int32), part func(string)) {
	start := 0
	for i := 0; i < len(text); {
		list := a[text[i]]
		found := slices.IndexFunc(list, func(t addedToken) bool { return strings.HasPrefix(text[i:], t.Content) })
		if found < 0 {
			i++
			continue
		}
		t := list[found]
		before, end := text[start:i], i+len(t.Content)
		if t.LStrip {
			before = strings.TrimRightFunc(before, isSpace)
		}
		if t.RStrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], isSpace))
		}
		if before != "" {
			part(before)
		}
		token(t.ID)
		i, start = end, end
	}
	if start < len(text) {
		part(text[start:])
	}
}

// splitter cuts text into pieces, none empty, that make up text again. It must be safe for concurrent use.
type splitter func(text string, emit func(piece string))

// chain applies splitters one after the other, each to the pieces of the one before.
func chain(splitters []splitter) splitter {
	if len(splitters) == 0 {
		return func(text string, emit func(string)) { emit(text) }
	}
	first, rest := splitters[0], chain(splitters[1:])
	return func(text string, emit func(string)) {
		first(text, func(piece string) { rest(piece, emit) })
	}
}

// splitDigits isolates every numeric character.
func splitDigits(text string, emit func(string)) {
	table, start := classes(), 0
	for i, r := range text {
		if table[r]&numeric == 0 {
			continue
		}
		if i > start {
			emit(text[start:i])
		}
		start = i + utf8.RuneLen(r)
		emit(text[i:start])
	}
	if start < len(text) {
		emit(text[start:])
	}
}

// gpt2Pattern is the pattern of the byte-level pre-tokenizer; splitGPT2 is the same, several times faster.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

func splitGPT2(text string, emit func(string)) {
	for table := classes(); text != ""; {
		n := contraction(text)
		if n == 0 {
			n = word(text, table[:])
		}
		emit(text[:n])
		text = text[n:]
	}
}

// contraction is the length of an English contraction at the start of text, 0 if there is none.
func contraction(text string) int {
	for _, c := range []string{"'s", "'t", "'m", "'d", "'re", "'ve", "'ll"} {
		if strings.HasPrefix(text, c) {
			return len(c)
		}
	}
	return 0
}

// word is the length of one optional space and a run of letters, of numbers or of neither, at the start of text; or else that
// of the white space there, without its last character where something follows that the character can go with.
func word(text string, table []class) int {
	start := 0
	if text[0] == ' ' {
		start = 1
	}
	if n, _, kind := run(text[start:], table); n > 0 && kind != space {
		return start + n
	}
	n, last, _ := run(text, table)
	if n < len(text) && last > 0 {
		return last
	}
	return n
}

// run is the length of the characters of one kind at the start of text, and where the last of them begins.
func run(text string, table []class) (n, last int, kind class) {
	for i, r := range text {
		k := table[r] & (letter | number | space)
		if i == 0 {
			kind = k
		} else if k != kind {
			return i, last, kind
		}
		last = i
	}
	return len(text), last, kind
}

// splitRegex isolates every match of a pattern of tokenizer.json, which may look ahead and so needs a backtracking
// engine. Classes are replaced by the ranges of our own tables.
func splitRegex(pattern string) (splitter, error) {
	if pattern == gpt2Pattern {
		return splitGPT2, nil
	}
	pinned, err := pinClasses(pattern)
	if err != nil {
		return nil, err
	}
	re, err := regexp2.Compile(pinned, regexp2.None)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	return func(text string, emit func(string)) {
		pos := 0
		// A match can only fail by running out of time, and no limit is set.
		for m, _ := re.FindStringMatch(text); m != nil; m, _ = re.FindNextMatch(m) {
			start, n := m.ByteRange()
			if start > pos {
				emit(text[pos:start])
			}
			if n > 0 {
				emit(text[start : start+n])
			}
			pos = start + n
		}
		if pos < len(text) {
			emit(text[pos:])
		}
	}, nil
}

var classOrBracket = regexp.MustCompile(`(?s)\\[pP]\{[^}]*\}|\\.?|[\[\]]`)

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
		case part == `\` || strings.ContainsAny(part[1:2], "pPdDwWbBS"):
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
