package multimodal

import (
	"strings"
	"unicode/utf8"
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
	if text[0] == '\'' && len(text) > 1 {
		switch text[1] {
		case 's', 't', 'm', 'd':
			return 2
		}
		if len(text) > 2 {
			switch text[1:3] {
			case "re", "ve", "ll":
				return 3
			}
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
