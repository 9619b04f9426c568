package multimodal

import (
	"fmt"
	"strings"

	"github.com/dlclark/regexp2/v2"
)

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
