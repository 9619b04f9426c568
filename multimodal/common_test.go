package multimodal

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// cached is a path in the user's cache, which `make test` and `make test-text` fill.
func cached(t testing.TB, path string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	path = filepath.Join(cache, "molt", path)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v\nrun `make test`, for the tokenizers of other models `make test-text`, which fetches it", err)
	}
	return path
}

// smolLMFile is the model file that `make test` fetches.
func smolLMFile(t testing.TB) string { return cached(t, "models/SmolLM2-135M-Instruct.Q4_1.gguf") }

var smolLM struct {
	once sync.Once
	tok  *Tokenizer
	err  error
}

// smolLMTokenizer is that file's tokenizer, loaded once.
func smolLMTokenizer(t testing.TB) *Tokenizer {
	t.Helper()
	path := smolLMFile(t)
	smolLM.once.Do(func() { smolLM.tok, smolLM.err = OpenTokenizer(path) })
	if smolLM.err != nil {
		t.Fatal(smolLM.err)
	}
	return smolLM.tok
}

func readReference(t testing.TB, name string, into any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "testdata", "reference", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatal(name, err)
	}
}

// write makes a folder of files.
func write(t testing.TB, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// textCase is one line of text/strings.jsonl.gz.
type textCase struct {
	Text    string
	IDs     map[string][]int32
	Decoded map[string]string // only where it is not Text
}

func referenceStrings(t testing.TB) []textCase {
	t.Helper()
	f, err := os.Open("../testdata/reference/text/strings.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var cases []textCase
	for d := json.NewDecoder(bufio.NewReader(z)); d.More(); {
		var c textCase
		if err := d.Decode(&c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	if len(cases) == 0 {
		t.Fatal("no strings")
	}
	return cases
}

func compareStrings(t *testing.T, tok *Tokenizer, name string) {
	t.Helper()
	for _, c := range referenceStrings(t) {
		want, ok := c.IDs[name]
		if !ok {
			t.Fatalf("no ids of %s for %q", name, c.Text)
		}
		text, ok := c.Decoded[name]
		if !ok {
			text = c.Text
		}
		compare(t, tok, c.Text, want, text)
	}
}

// compare checks the ids of text, and what they decode to, at once and in a stream.
func compare(t *testing.T, tok *Tokenizer, text string, ids []int32, decoded string) (same bool) {
	t.Helper()
	if got := tok.Encode(text); !slices.Equal(got, ids) {
		t.Errorf("%q: %v, want %v", text, got, ids)
		return false
	}
	if got := tok.Decode(ids); got != decoded {
		t.Errorf("%v: %q, want %q", ids, got, decoded)
		return false
	}
	if got := streamed(tok, ids); got != decoded {
		t.Errorf("%v: %q in pieces, want %q", ids, got, decoded)
		return false
	}
	return true
}
