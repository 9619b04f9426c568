package multimodal

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A checkpoint of a model that came as GGUF has a tokenizer.json that gives the same ids, and so does a copy of that folder.
func TestSavedTextGivesTheSameIDs(t *testing.T) {
	want := smolLMTokenizer(t)
	first, second := t.TempDir(), t.TempDir()
	if err := SaveText(smolLMFile(t), first); err != nil {
		t.Fatal(err)
	}
	if err := SaveText(first, second); err != nil {
		t.Fatal(err)
	}
	tok, err := OpenTokenizer(second)
	if err != nil {
		t.Fatal(err)
	}
	var reference tokenizerReference
	readReference(t, "smollm_tokenizer.json", &reference)
	for _, s := range reference.Strings {
		if diff := cmp.Diff(s.IDs, tok.Encode(s.Text)); diff != "" {
			t.Errorf("%q: %s", s.Text, diff)
		}
	}
	if diff := cmp.Diff(want.EOS(), tok.EOS()); diff != "" || len(tok.names) != len(want.names) {
		t.Error(diff, len(tok.names))
	}
	chat, err := OpenChat(second)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range reference.Chat[:1] {
		if diff := cmp.Diff(c.IDsAgain, chat.tok.Encode(c.Prompt)); diff != "" {
			t.Error(diff)
		}
	}
}
