package multimodal

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type tokenizerReference struct {
	AddedTokens []addedToken `json:"added_tokens"`
	VocabSize   int          `json:"vocab_size"`
	Strings     []struct {
		Text, Decoded string
		IDs           []int32
		NoSpecial     string `json:"decoded_skip_special"`
	}
	Chat []struct {
		Rendered string
		IDs      []int32
		Prompt   string  `json:"rendered_generation_prompt"`
		IDsAgain []int32 `json:"ids_generation_prompt"`
	}
}

func TestSmolLMEqualsTheReference(t *testing.T) {
	tok := smolLMTokenizer(t)
	var reference tokenizerReference
	readReference(t, "smollm_tokenizer.json", &reference)
	if len(reference.Strings) == 0 || len(reference.Chat) == 0 || len(tok.names) != reference.VocabSize {
		t.Fatalf("%d strings, %d chats, vocabulary %d", len(reference.Strings), len(reference.Chat), len(tok.names))
	}
	for _, s := range reference.Strings {
		if got := tok.Encode(s.Text); !cmp.Equal(got, s.IDs) {
			t.Errorf("%q: %v, want %v", s.Text, got, s.IDs)
		}
		if got := tok.Decode(s.IDs); got != s.Decoded {
			t.Errorf("%v: %q, want %q", s.IDs, got, s.Decoded)
		}
		var plain []int32
		for _, id := range s.IDs {
			if !tok.Special(id) {
				plain = append(plain, id)
			}
		}
		if got := tok.Decode(plain); got != s.NoSpecial {
			t.Errorf("without special tokens: %q, want %q", got, s.NoSpecial)
		}
	}
	for _, c := range reference.Chat {
		if d := cmp.Diff(c.IDs, tok.Encode(c.Rendered)) + cmp.Diff(c.IDsAgain, tok.Encode(c.Prompt)); d != "" {
			t.Errorf("%q:\n%s", c.Rendered, d)
		}
	}
	for _, a := range reference.AddedTokens {
		id, ok := tok.ID(a.Content)
		if !ok || id != a.ID || tok.Token(id) != a.Content || tok.Special(id) != a.Special {
			t.Errorf("%+v: id %d (%v), special %v", a, id, ok, tok.Special(id))
		}
	}
}

func TestSmolLMKnowsItsEnds(t *testing.T) {
	tok := smolLMTokenizer(t)
	if d := cmp.Diff([]int32{2}, tok.EOS()); d != "" {
		t.Error(d)
	}
	if tok.bos != 1 {
		t.Error(tok.bos)
	}
	if id, ok := tok.ID("Ġthe"); !ok || tok.Special(id) || tok.text[id] != " the" {
		t.Error(id, ok)
	}
}

func TestSmolLMEqualsTheReferenceOnEveryScript(t *testing.T) {
	compareStrings(t, smolLMTokenizer(t), "smollm2")
}

func TestWhatIsNotUTF8CountsAsReplacementCharacters(t *testing.T) {
	tok := smolLMTokenizer(t)
	for text, same := range map[string]string{
		"a\xffb": "a\uFFFDb", "\xf0\x9f\x98": "\uFFFD", "\xe2\x82A\xed\xa0\x80": "\uFFFDA\uFFFD\uFFFD\uFFFD", "\xc0\xaf": "\uFFFD\uFFFD",
	} {
		if lossy(text) != same || !cmp.Equal(tok.Encode(text), tok.Encode(same)) {
			t.Errorf("%q: %q", text, lossy(text))
		}
	}
}

func TestIDsOutOfTheVocabularyAreNoText(t *testing.T) {
	tok := smolLMTokenizer(t)
	for _, id := range []int32{-1, int32(len(tok.names)), 1 << 30} {
		if tok.Token(id) != "" || tok.Special(id) || tok.Decode([]int32{id, 28}) != tok.Decode([]int32{28}) {
			t.Error(id)
		}
	}
}

func TestManyGoroutinesGetTheSameIDs(t *testing.T) {
	tok := smolLMTokenizer(t)
	cases := referenceStrings(t)[:300]
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := range cases {
				c := cases[(i+g*40)%len(cases)]
				if got := tok.Encode(c.Text); !cmp.Equal(got, c.IDs["smollm2"]) {
					t.Errorf("%q: %v", c.Text, got)
				}
			}
		})
	}
	group.Wait()
}

func TestALongWordIsMergedInLittleTime(t *testing.T) {
	tok := smolLMTokenizer(t)
	start := time.Now()
	text := strings.Repeat("abcde", 200_000)
	if ids := tok.Encode(text); tok.Decode(ids) != text {
		t.Error("does not decode to itself")
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Error("a million letters took", d)
	}
}

func BenchmarkEncode(b *testing.B) {
	tok := smolLMTokenizer(b)
	var text strings.Builder
	for _, c := range referenceStrings(b) {
		text.WriteString(c.Text)
		text.WriteByte('\n')
	}
	english := strings.Repeat("The quick brown fox jumps over the lazy dog, and 3 of its 12 friends watch it.\n", 100)
	for name, s := range map[string]string{"english": english, "scripts": text.String()} {
		b.Run(name, func(b *testing.B) {
			n := 0
			for b.Loop() {
				n += len(tok.Encode(s))
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds()/1e6, "Mtok/s")
		})
	}
}
