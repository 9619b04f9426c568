package multimodal

import (
	"bytes"
	"sort"
)

// Matcher watches a reply for stop strings, whether they lie in one token or across several. Text is compared byte for
// byte, that of special tokens included. A Matcher belongs to one reply.
type Matcher struct {
	t       *Tokenizer
	stops   [][]byte
	longest int
	text    []byte
	ends    []int // of each token in text
	matched int
}

// NewMatcher watches for any of the stop strings; empty ones never match.
func NewMatcher(t *Tokenizer, stops []string) *Matcher {
	m := &Matcher{t: t}
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
	m.text = append(m.text, m.t.bytes(id)...)
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
