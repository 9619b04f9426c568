package multimodal

import (
	"bytes"
	"sort"
	"strings"
	"unicode/utf8"
)

// Stream decodes a reply token by token. The pieces, put together, equal Decode of all ids: a character whose bytes lie
// in several tokens comes out with the last of them, byte tokens of a vocabulary like Llama 2's with the next token of
// another kind, because one that is no UTF-8 makes all bytes of its run U+FFFD. A Stream belongs to one goroutine.
type Stream struct {
	opening
	tail []byte // not complete: the start of a character, or a run of byte tokens
}

// NewStream starts the text of one reply.
func NewStream(t *Tokenizer) *Stream { return &Stream{opening: opening{t: t, cuts: t.cuts}} }

// NewStreamAfter starts the text of a reply that goes on from other text.
func NewStreamAfter(t *Tokenizer) *Stream { return &Stream{opening: opening{t: t, started: true}} }

// Next returns the text that id completes, which may be empty.
func (s *Stream) Next(id int32) (text string) {
	switch bytes := s.bytes(id); {
	case s.t.byteLevel:
		s.tail = append(s.tail, bytes...)
		n := complete(s.tail)
		text = s.cut(lossy(string(s.tail[:n])))
		s.tail = append(s.tail[:0], s.tail[n:]...)
	case s.t.loneBytes[id]:
		s.tail = append(s.tail, bytes...)
	case bytes != "":
		text = s.Flush() + s.cut(bytes)
	}
	return text
}

// Flush ends the text: what was left incomplete becomes U+FFFD.
func (s *Stream) Flush() (text string) {
	switch {
	case len(s.tail) == 0:
	case s.t.byteLevel:
		text = replacement
	case utf8.Valid(s.tail):
		text = s.cut(string(s.tail))
	default:
		text = s.cut(strings.Repeat(replacement, len(s.tail)))
	}
	s.tail = s.tail[:0]
	return text
}

// Matcher watches a reply for stop strings, whether they lie in one token or across several. Text is compared byte for
// byte, that of special tokens included. A Matcher belongs to one reply.
type Matcher struct {
	opening
	stops   [][]byte
	longest int
	text    []byte
	ends    []int // of each token in text
	matched int
}

// NewMatcher watches for any of the stop strings; empty ones never match.
func NewMatcher(t *Tokenizer, stops []string) *Matcher {
	m := &Matcher{opening: opening{t: t, cuts: t.cuts}}
	for _, s := range stops {
		if s != "" {
			m.stops = append(m.stops, []byte(s))
			m.longest = max(m.longest, len(s))
		}
	}
	return m
}

// Next takes the reply's next token and reports whether a stop string is complete with it. After true the reply is over.
func (m *Matcher) Next(id int32) bool {
	from := max(0, len(m.text)-m.longest+1) // no match can start earlier and end in this token
	m.text = append(m.text, m.cut(m.bytes(id))...)
	m.ends = append(m.ends, len(m.text))
	first := len(m.text)
	for _, stop := range m.stops {
		if i := bytes.Index(m.text[from:], stop); i >= 0 {
			first = min(first, from+i)
		}
	}
	if first == len(m.text) {
		return false
	}
	m.matched = len(m.ends) - sort.SearchInts(m.ends, first+1)
	return true
}

// Stops is the number of last tokens that belong to the stop string that was found: those with at least one of its
// bytes or after it. The first of them may also hold text from before it. It is 0 while Next gave false.
func (m *Matcher) Stops() int { return m.matched }

// Before is text up to the first of the marks. While more may come, it lacks an end that could be the start of one.
func Before(text string, done bool, marks ...string) string {
	end := len(text)
	for _, mark := range marks {
		if i := strings.Index(text, mark); i >= 0 {
			end, done = min(end, i), true
		}
	}
	for _, mark := range marks {
		for n := min(len(mark)-1, len(text)); n > 0 && !done; n-- {
			if strings.HasSuffix(text, mark[:n]) {
				end = min(end, len(text)-n)
			}
		}
	}
	return text[:end]
}

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
	for i := max(0, len(s)-utf8.UTFMax+1); i < len(s); i++ {
		if utf8.RuneStart(s[i]) && !utf8.FullRune(s[i:]) {
			return i
		}
	}
	return len(s)
}
