package multimodal

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// compareCorpus compares tok with the tokenizers library and the tokenizer.json of folder, on 100,000 strings that
// testdata/corpus.py makes.
func compareCorpus(t *testing.T, tok *Tokenizer, seed, folder string) {
	t.Helper()
	file := filepath.Join(folder, "tokenizer.json")
	python := exec.Command(cached(t, "testing/bin/python"), "testdata/corpus.py", seed, "100000", file)
	python.Stderr = os.Stderr
	out, err := python.StdoutPipe()
	if err == nil {
		err = python.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	n, wrong := 0, 0
	for d := json.NewDecoder(bufio.NewReaderSize(out, 1<<20)); d.More() && wrong < 20; n++ {
		var line struct {
			Text    string
			IDs     []int32
			Decoded *string
		}
		if err := d.Decode(&line); err != nil {
			t.Fatal(err)
		}
		if line.Decoded == nil {
			line.Decoded = &line.Text
		}
		if !compare(t, tok, line.Text, line.IDs, *line.Decoded) {
			wrong++
		}
	}
	if wrong > 0 {
		python.Process.Kill()
	}
	if err := python.Wait(); wrong == 0 && (err != nil || n != 100_000) {
		t.Fatalf("%d strings: %v", n, err)
	}
}

func TestSmolLMEqualsTheLibraryOnAdversarialStrings(t *testing.T) {
	folder := t.TempDir()
	if err := SaveText(smolLMFile(t), folder); err != nil {
		t.Fatal(err)
	}
	compareCorpus(t, smolLMTokenizer(t), "1", folder)
}
