package multimodal

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// splitter cuts text into pieces, none empty, that make up text again. It must be safe for concurrent use.
type splitter func(text string, emit func(piece string))

// chain applies splitters one after the other, each to the pieces of the one before.
func chain(splitters []splitter) splitter {
	if len(splitters) == 0 {
		return func(text string, emit func(string)) { emit(text) }
	}
	first, rest := splitters[0], chain(splitters[1:])
	if len(splitters) == 1 {
		return first
	}
	return func(text string, emit func(string)) {
		first(text, func(piece string) { rest(piece, emit) })
	}
}

// splitDigits isolates every numeric character, or runs of them where not individual.
func splitDigits(individual bool) splitter {
	table := classes()
	return func(text string, emit func(string)) {
		start, inRun := 0, false
		for i, r := range text {
			digit := table[r]&numeric != 0
			if i > start && (digit != inRun || digit && individual) {
				emit(text[start:i])
				start = i
			}
			inRun = digit
		}
		if start < len(text) {
			emit(text[start:])
		}
	}
}

// splitString isolates every occurrence of sep.
func splitString(sep string) splitter {
	return func(text string, emit func(string)) {
		for text != "" {
			i := strings.Index(text, sep)
			switch {
			case i < 0:
				emit(text)
				return
			case i > 0:
				emit(text[:i])
			}
			emit(sep)
			text = text[i+len(sep):]
		}
	}
}

// prefixSpace puts a space in front of text that does not start with one.
func prefixSpace(text string, emit func(string)) {
	if !strings.HasPrefix(text, " ") {
		text = " " + text
	}
	emit(text)
}

// gpt2Pattern is the pattern of the byte-level pre-tokenizer; splitGPT2 is the same, several times faster.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

func splitGPT2(text string, emit func(string)) {
	for table := classes(); text != ""; {
		n := contraction(text)
		if n == 0 {
			n = spacedRun(text, table[:])
		}
		if n == 0 {
			n = spaces(text, table[:])
		}
		emit(text[:n])
		text = text[n:]
	}
}

// contraction is the length of an English contraction at the start of text, 0 if there is none.
func contraction(text string) int {
	if text[0] != '\'' {
		return 0
	}
	for _, tail := range []string{"s", "t", "m", "d", "re", "ve", "ll"} {
		if strings.HasPrefix(text[1:], tail) {
			return 1 + len(tail)
		}
	}
	return 0
}

// spacedRun is the length of one optional space and a run of letters, of numbers or of neither, at the start of text;
// 0 if text starts with other white space.
func spacedRun(text string, table []class) int {
	const kinds = letter | number | space
	n := 0
	if text[0] == ' ' {
		n = 1
	}
	if n == len(text) {
		return 0
	}
	r, width := utf8.DecodeRuneInString(text[n:])
	kind := table[r] & kinds
	if kind == space {
		return 0
	}
	for n += width; n < len(text); n += width {
		if c := text[n]; c < utf8.RuneSelf {
			r, width = rune(c), 1
		} else {
			r, width = utf8.DecodeRuneInString(text[n:])
		}
		if table[r]&kinds != kind {
			break
		}
	}
	return n
}

// spaces is the length of the white space at the start of text, without its last character where something follows
// that the character can go with.
func spaces(text string, table []class) int {
	last, n := 0, 0
	for n < len(text) {
		r, width := utf8.DecodeRuneInString(text[n:])
		if table[r]&space == 0 {
			if last > 0 {
				return last
			}
			break
		}
		last, n = n, n+width
	}
	return n
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

// pinClasses writes the Unicode classes of a pattern as explicit ranges.
func pinClasses(pattern string) (string, error) {
	var b strings.Builder
	inSet := false
	for i := 0; i < len(pattern); {
		size := 1
		switch c := pattern[i]; {
		case c == '[':
			inSet = true
		case c == ']':
			inSet = false
		case c == '\\':
			size = min(2, len(pattern)-i)
			rest := pattern[i:]
			if strings.HasPrefix(rest, `\p`) {
				size = strings.IndexByte(rest, '}') + 1
			}
			if ranges, ok := regexClasses[rest[:size]]; ok {
				writeRanges(&b, ranges, inSet)
				i += size
				continue
			}
			if size != 2 || strings.ContainsAny(rest[1:2], "pPdDwWbB") {
				return "", fmt.Errorf("pattern %q: the class %.8q is not supported", pattern, rest)
			}
			if rest[1] == 'S' {
				if inSet {
					return "", fmt.Errorf(`pattern %q: \S inside brackets is not supported`, pattern)
				}
				b.WriteString("[^")
				writeRanges(&b, unicodeSpace, true)
				b.WriteByte(']')
				i += size
				continue
			}
		}
		b.WriteString(pattern[i : i+size])
		i += size
	}
	return b.String(), nil
}

func writeRanges(b *strings.Builder, ranges []rune, inSet bool) {
	if !inSet {
		b.WriteByte('[')
	}
	for i := 0; i < len(ranges); i += 2 {
		fmt.Fprintf(b, `%s-%s`, escape(ranges[i]), escape(ranges[i+1]))
	}
	if !inSet {
		b.WriteByte(']')
	}
}

func escape(r rune) string {
	if r < 0x80 {
		return fmt.Sprintf(`\x%02x`, r)
	}
	return string(r)
}
