package multimodal

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// byteTokenizer has one token for each byte, with the byte as its id, and special tokens from 256 on.
func byteTokenizer(t testing.TB, special ...string) *Tokenizer {
	t.Helper()
	vocab := map[string]int32{}
	for b, r := range byteRunes {
		vocab[string(r)] = int32(b)
	}
	var added []addedToken
	for i, s := range special {
		added = append(added, addedToken{ID: int32(256 + i), Content: s, Special: true})
	}
	return makeTokenizer(t, vocab, nil, added)
}

func makeTokenizer(t testing.TB, vocab map[string]int32, merges []mergePair, added []addedToken) *Tokenizer {
	t.Helper()
	byteLevel := &component{Type: "ByteLevel"}
	f := tokenizerFile{AddedTokens: added, PreTokenizer: byteLevel, Decoder: byteLevel, Model: bpeModel{Vocab: vocab, Merges: merges}}
	tok, err := f.tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func streamed(tok *Tokenizer, ids []int32) string {
	var b strings.Builder
	s := NewStream(tok)
	for _, id := range ids {
		b.WriteString(s.Next(id))
	}
	return b.String() + s.Flush()
}

// byteIDs gives the tokens of byteTokenizer for any bytes, UTF-8 or not.
func byteIDs(bytes string) []int32 {
	var ids []int32
	for i := range len(bytes) {
		ids = append(ids, int32(bytes[i]))
	}
	return ids
}

func TestStreamHoldsBackAnIncompleteCharacter(t *testing.T) {
	vocab := map[string]int32{}
	for i, bytes := range []string{"\xf0\x9f", "\x98\x8d", "ok"} {
		vocab[alphabetOf(bytes)] = int32(i)
	}
	tok := makeTokenizer(t, vocab, nil, nil)
	s := NewStream(tok)
	if a, b, c, end := s.Next(0), s.Next(1), s.Next(2), s.Flush(); a != "" || b != "😍" || c != "ok" || end != "" {
		t.Errorf("%q %q %q %q", a, b, c, end)
	}
	if a, end, again := s.Next(0), s.Flush(), s.Flush(); a != "" || end != "\uFFFD" || again != "" {
		t.Errorf("cut after the first token: %q %q %q", a, end, again)
	}
	if a, b, end := s.Next(0), s.Next(2), s.Flush(); a != "" || b != "\uFFFDok" || end != "" {
		t.Errorf("a start that does not go on: %q %q %q", a, b, end)
	}
}

func TestStreamedASCIIComesOutAtOnce(t *testing.T) {
	tok := byteTokenizer(t)
	s := NewStream(tok)
	for _, id := range byteIDs("plain ASCII, byte by byte\n") {
		if got := s.Next(id); got != string(rune(id)) {
			t.Errorf("%q: %q", rune(id), got)
		}
	}
}

func FuzzStreamEqualsDecode(f *testing.F) {
	f.Add("héllo 😍")
	f.Add("\xf0\x9f\x98\xe2\x82A\xed\xa0\x80\xc3")
	f.Add("\xf4\x90\x80\x80\xff\xfe\xc0\xaf")
	f.Fuzz(func(t *testing.T, bytes string) {
		tok := byteTokenizer(t)
		ids := byteIDs(bytes)
		if got, want := streamed(tok, ids), tok.Decode(ids); got != want {
			t.Errorf("%q: %q in pieces, %q at once", bytes, got, want)
		}
	})
}

func TestMatcherFindsStopStringsAcrossTokens(t *testing.T) {
	vocab := map[string]int32{}
	for i, s := range []string{"a", "END", "xEN", "D", "Dy", "\n", "\xf0\x9f", "\x98\x8d"} {
		vocab[alphabetOf(s)] = int32(i)
	}
	tok := makeTokenizer(t, vocab, nil, nil)
	tests := []struct {
		stops []string
		ids   []int32
		at    int // the token that completes the stop, −1: none
		num   int
	}{
		{[]string{"END"}, []int32{0, 0, 1, 0}, 2, 1},
		{[]string{"END"}, []int32{0, 2, 3, 0}, 2, 2},        // xEN D: the x is not of the stop, its token is
		{[]string{"END"}, []int32{2, 4}, 1, 2},              // text after the stop in its last token
		{[]string{"END", "\n"}, []int32{0, 5, 1}, 1, 1},     // any of several
		{[]string{"ND", "END"}, []int32{2, 3}, 1, 2},        // two at once: the one that starts first
		{[]string{"aa\n"}, []int32{0, 0, 0, 0, 5}, 4, 3},    // a prefix that fails and starts again
		{[]string{"😍"}, []int32{6, 7}, 1, 2},                // a character in two tokens
		{[]string{"END"}, []int32{2, 0, 3}, -1, 0},          // interrupted
		{[]string{""}, []int32{0, 1, 2}, -1, 0},             // empty: never
		{nil, []int32{0, 1, 2}, -1, 0},                      // none
		{[]string{"END"}, []int32{2, 99, 3}, 2, 3},          // an id without text does not interrupt
		{[]string{"a\na"}, []int32{0, 5, 5, 0, 5, 0}, 5, 3}, // found late
	}
	for _, test := range tests {
		m, at := NewMatcher(tok, test.stops), -1
		for i, id := range test.ids {
			if m.Next(id) {
				at = i
				break
			}
		}
		if at != test.at || m.Stops() != test.num {
			t.Errorf("%q in %v: token %d with %d, want %d with %d", test.stops, test.ids, at, m.Stops(), test.at, test.num)
		}
	}
}

func TestMatcherSeesTheTextOfSpecialTokens(t *testing.T) {
	tok := byteTokenizer(t, "<|im_end|>")
	m := NewMatcher(tok, []string{"<|im_end|>"})
	if m.Next('a') || !m.Next(256) || m.Stops() != 1 {
		t.Error(m.Stops())
	}
}

// llamaTokenizer decodes as Llama 2's: marks are spaces, the text's first one is cut off, byte tokens are <0x0A> and the like.
func llamaTokenizer(t *testing.T, tokens ...string) *Tokenizer {
	t.Helper()
	scores, types := make([]float64, len(tokens)), make([]int64, len(tokens))
	for id := range tokens {
		types[id], scores[id] = 1, float64(-id)
	}
	tok, err := ggufTokenizer(map[string]any{"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
		"tokenizer.ggml.token_type": types, "tokenizer.ggml.scores": scores})
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestStreamHoldsBackARunOfByteTokens(t *testing.T) {
	tok := llamaTokenizer(t, "▁a", "b", "▁", "<0xE2>", "<0x82>", "<0xAC>")
	tests := []struct {
		ids    []int32
		pieces []string // the last is what Flush gives
	}{
		{[]int32{0, 0, 1}, []string{"a", " a", "b", ""}},
		{[]int32{2, 0}, []string{"", " a", ""}},
		{[]int32{3, 4, 5, 1}, []string{"", "", "", "€b", ""}},
		{[]int32{1, 3, 4, 5}, []string{"b", "", "", "", "€"}},
		{[]int32{3, 4, 1}, []string{"", "", "\uFFFD\uFFFDb", ""}},
		{[]int32{3, 4, 5, 3}, []string{"", "", "", "", "\uFFFD\uFFFD\uFFFD\uFFFD"}}, // all of a run that is no UTF-8
		{[]int32{-1, 99, 0}, []string{"", "", "a", ""}},
	}
	for _, test := range tests {
		var got []string
		s := NewStream(tok)
		for _, id := range test.ids {
			got = append(got, s.Next(id))
		}
		got = append(got, s.Flush())
		if d := cmp.Diff(test.pieces, got); d != "" || tok.Decode(test.ids) != strings.Join(got, "") {
			t.Errorf("%v decodes to %q:\n%s", test.ids, tok.Decode(test.ids), d)
		}
	}
}

func TestMatcherSeesByteTokensAtOnce(t *testing.T) {
	tok := llamaTokenizer(t, "▁a", "b", "<0x0A>")
	m := NewMatcher(tok, []string{"\n"})
	if m.Next(0) || m.Next(1) || !m.Next(2) || m.Stops() != 1 {
		t.Error(m.Stops())
	}
	m = NewMatcher(tok, []string{"a a"})
	if m.Next(0) || !m.Next(0) || m.Stops() != 2 {
		t.Error("the first space is not of the text", m.Stops())
	}
}
