//go:build text

package multimodal

import (
	"os"
	"testing"
)

// openAll gives the tokenizers that scripts/tokenizers fetches: the names are those of the reference strings.
func openAll(t *testing.T) map[string]*Tokenizer {
	t.Helper()
	entries, err := os.ReadDir(cached(t, "tokenizers"))
	if err != nil {
		t.Fatalf("%v\nrun `make test-text`, which fetches them", err)
	}
	all := map[string]*Tokenizer{}
	for _, e := range entries {
		if e.IsDir() {
			if all[e.Name()], err = OpenTokenizer(cached(t, "tokenizers/"+e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(all) < 6 {
		t.Fatalf("%d tokenizers", len(all))
	}
	return all
}

func TestTextOfEveryTokenizerEqualsTheReference(t *testing.T) {
	for name, tok := range openAll(t) {
		t.Run(name, func(t *testing.T) { compareStrings(t, tok, name) })
	}
}

func TestTextOfEveryTokenizerEqualsTheLibraryOnAdversarialStrings(t *testing.T) {
	for name, tok := range openAll(t) {
		t.Run(name, func(t *testing.T) { compareCorpus(t, tok, "2", cached(t, "tokenizers/"+name)) })
	}
}
