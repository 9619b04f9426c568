package multimodal

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// vocabulary has the letters a to e and the space as ids 0 to 5, and what the merges make of them.
const vocabulary = `{"a":0,"b":1,"c":2,"d":3,"e":4,"Ġ":5,"ab":6,"bc":7,"abc":8,"Ġa":9,"aa":10,"1":11,"2":12,"12":13}`

const merges = `["b c","a b",["a","bc"],"Ġ a",["a","a"],"1 2"]`

// file makes a tokenizer.json of the given parts, each "" for the simplest.
func file(normalizer, preTokenizer, added, model string) string {
	or := func(s, otherwise string) string {
		if s == "" {
			return otherwise
		}
		return s
	}
	return `{"added_tokens":[` + added + `],"normalizer":` + or(normalizer, "null") +
		`,"pre_tokenizer":` + or(preTokenizer, `{"type":"ByteLevel","add_prefix_space":false,"use_regex":true}`) +
		`,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":` + vocabulary + `,"merges":` + merges + model + `}}`
}

func load(t testing.TB, files map[string]string) (*Tokenizer, error) {
	t.Helper()
	return OpenTokenizer(write(t, files))
}

func TestTokenizerJSONEncodesAsItsComponentsSay(t *testing.T) {
	const (
		noRegex = `{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}`
		special = `{"id":20,"content":"<x>","special":true,"normalized":false}`
	)
	tests := []struct {
		claim, file, text string
		want              []int32
	}{
		{"the merge that comes first in the list goes first: bc before ab", file("", "", "", ""), "abc", []int32{8}},
		{"of two places the left one", file("", "", "", ""), "aaa", []int32{10, 0}},
		{"a space goes with the next word", file("", "", "", ""), "a a", []int32{0, 9}},
		{"bytes without a token vanish", file("", "", "", ""), "azb", []int32{6}},
		{"or become the unknown token", file("", "", "", `,"unk_token":"e"`), "azb", []int32{0, 4, 1}},
		{"ignore_merges takes a word of the vocabulary whole", file("", "", "", `,"ignore_merges":true,"merges":[]`), "abc", []int32{8}},
		{"digits join", file("", "", "", ""), "1212", []int32{13, 13}},
		{"individual digits do not", file("", `{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},`+noRegex+`]}`,
			"", ""), "a12", []int32{0, 11, 12}},
		{"a pattern isolates its matches", file("", `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{L}(?=b)"},`+
			`"behavior":"Isolated","invert":false},`+noRegex+`]}`, "", ""), "cabc", []int32{2, 0, 7}},
		{"NFC composes", file(`{"type":"Sequence","normalizers":[{"type":"NFC"}]}`, "", `{"id":20,"content":"ñ","normalized":true}`, ""),
			"an\u0303", []int32{0, 20}},
		{"an added token is cut out of a word", file("", "", special, ""), "ab<x>c", []int32{6, 20, 2}},
		{"an added token that the one before took as white space is gone", file("", "",
			`{"id":20,"content":"<x>","rstrip":true},{"id":21,"content":"\n\n","lstrip":true}`, ""), "<x>\n\na\n\n", []int32{20, 0, 21}},
		{"the longest of two added tokens", file("", "", special+`,{"id":21,"content":"<x><x>"}`, ""), "<x><x><x>", []int32{21, 20}},
		{"lstrip and rstrip take white space with them", file("", "", `{"id":20,"content":"<x>","lstrip":true,"rstrip":true}`, ""),
			"a \n<x>\t a", []int32{0, 20, 0}},
		{"empty text has no tokens", file("", "", special, ""), "", []int32{}},
	}
	for _, test := range tests {
		tok, err := load(t, map[string]string{"tokenizer.json": test.file})
		if err != nil {
			t.Errorf("%s: %v", test.claim, err)
			continue
		}
		if d := cmp.Diff(test.want, tok.Encode(test.text)); d != "" {
			t.Errorf("%s:\n%s", test.claim, d)
		}
	}
}

func TestEndTokensAreTheUnionOfTheTokenizersAndTheModels(t *testing.T) {
	const added = `{"id":20,"content":"<end>","special":true},{"id":21,"content":"<turn>","special":true},{"id":22,"content":"<s>"}`
	tests := []struct {
		config, generation, model string
		want                      []int32
	}{
		{`{"eos_token":"<turn>","bos_token":{"content":"<s>"}}`, `{"eos_token_id":20}`, `{"eos_token_id":22}`, []int32{21, 20}},
		{`{"eos_token":{"content":"<end>"},"bos_token":"<s>"}`, `{"eos_token_id":[20,21]}`, `{}`, []int32{20, 21}},
		{`{"eos_token":"<end>","bos_token":"<s>"}`, `{}`, `{"eos_token_id":21}`, []int32{20, 21}},
		{`{"eos_token":null,"bos_token":"<s>"}`, `{"eos_token_id":null}`, `{}`, nil},
	}
	for _, test := range tests {
		tok, err := load(t, map[string]string{"tokenizer.json": file("", "", added, ""), "tokenizer_config.json": test.config,
			"generation_config.json": test.generation, "config.json": test.model})
		if err != nil {
			t.Errorf("%+v: %v", test, err)
			continue
		}
		if !cmp.Equal(tok.EOS(), test.want) || tok.bos != 22 {
			t.Errorf("%+v: EOS %v, BOS %d", test, tok.EOS(), tok.bos)
		}
	}
	if tok, err := load(t, map[string]string{"tokenizer.json": file("", "", added, "")}); err != nil || tok.EOS() != nil {
		t.Error("without the files:", err)
	}
}

func TestTokensThatTokenizerJSONLacksComeFromItsConfig(t *testing.T) {
	tok, err := load(t, map[string]string{"tokenizer.json": file("", "", `{"id":14,"content":"<x>"}`, ""), "tokenizer_config.json": `{
		"added_tokens_decoder":{"14":{"content":"<x>","special":true},"15":{"content":"<y>","special":true,"lstrip":true}}}`})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]int32{14, 0, 15, 1}, tok.Encode("<x>a <y>b")); d != "" || tok.Special(14) || !tok.Special(15) {
		t.Error(d)
	}
}

func TestUnsupportedAndDamagedTokenizersAreErrorsThatNameThePart(t *testing.T) {
	split := func(pattern string) string {
		return file("", `{"type":"Split","behavior":"Isolated","pattern":`+pattern+`}`, "", "")
	}
	sequence := func(step string, n int) string {
		return `{"type":"Sequence","pretokenizers":[` + strings.Repeat(step+",", n) + step + `]}`
	}
	tests := map[string]string{
		`normalizer "Lowercase"`:      file(`{"type":"Lowercase"}`, "", "", ""),
		`pre-tokenizer "Punctuation"`: file("", `{"type":"Punctuation"}`, "", ""),
		"behind another":              file("", sequence(`{"type":"Metaspace","replacement":"▁"}`, 1), "", ""),
		`prepend_scheme "no"`:         file("", `{"type":"Metaspace","replacement":"▁","prepend_scheme":"no"}`, "", ""),
		`replacement ""`:              file("", `{"type":"Metaspace"}`, "", ""),
		`behavior "Joined"`:           file("", `{"type":"Split","pattern":{"Regex":"a"},"behavior":"Joined"}`, "", ""),
		`"Split": it has no pattern`:  split(`{"String":""}`),
		"Replace: it has no pattern":  file(`{"type":"Replace","content":"a"}`, "", "", ""),
		"of 33 steps":                 file("", sequence(`{"type":"WhitespaceSplit"}`, 32), "", ""),
		"lengthen a text 4097 times": file(`{"type":"Sequence","normalizers":[`+strings.Repeat(`{"type":"Replace","pattern":{"String":"a"},`+
			`"content":"aaaaaaaa"},`, 8)+`{"type":"NFC"}]}`, "", "", ""),
		`the class "\\p{Han}"`:           split(`{"Regex":"\\p{Han}"}`),
		`the class "\\d"`:                split(`{"Regex":"\\d"}`),
		`the class "\\"`:                 split(`{"Regex":"\\"}`),
		`"\\S" is not supported (in br`:  split(`{"Regex":"[\\S]"}`),
		`the class "[:"`:                 split(`{"Regex":"[[:alpha:]]"}`),
		`the class "&&"`:                 split(`{"Regex":"[a-c&&[b]]"}`),
		`pattern "(a"`:                   split(`{"Regex":"(a"}`),
		`"(a+)+$" takes too long`:        split(`{"Regex":"(a+)+$"}`),
		`"(?:aa|a)*b$" takes too long`:   split(`{"Regex":"(?:aa|a)*b$"}`),
		`p{M}]*!" takes too long`:        split(`{"Regex":"[\\s\\p{L}]*[\\s\\p{N}]*[\\s\\p{M}]*!"}`),
		"without dropout":                file("", "", "", `,"dropout":0.1`),
		"continuing_subword_prefix":      file("", "", "", `,"continuing_subword_prefix":"##"`),
		`model "WordPiece"`:              file("", "", "", `,"type":"WordPiece"`),
		`model "Unigram"`:                `{"model":{"type":"Unigram","vocab":[["a",-1.5]]}}`,
		`unknown token "zz"`:             file("", "", "", `,"unk_token":"zz"`),
		"byte_fallback with ByteLevel":   file("", "", "", `,"byte_fallback":true`),
		`merge 1 joins "a" and "d"`:      file("", "", "", `,"merges":["a b","a d"]`),
		`the tokens ["ab"]`:              file("", "", "", `,"merges":["a b","ab"]`),
		`the tokens ["a" "b" "c"]`:       file("", "", "", `,"merges":[["a","b","c"]]`),
		"cannot unmarshal array":         file("", "", "", `,"merges":["a b","b c",[["a","b"]]]`),
		"cannot unmarshal number":        file("", "", "", `,"merges":["a b","b c","a b",7]`),
		"the id 0 belongs to two tokens": file("", "", `{"id":0,"content":"x"}`, ""),
		`token "a" has two ids`:          file("", "", `{"id":20,"content":"a"}`, ""),
		"has the id 2000000000":          file("", "", `{"id":2000000000,"content":"x"}`, ""),
		"has the id -1":                  file("", "", `{"id":-1,"content":"x"}`, ""),
		"cannot unmarshal number 4e9":    file("", "", `{"id":4e9,"content":"x"}`, ""),
		"a BPE model with a vocabulary":  `{"model":{"type":"BPE"}}`,
		"there is no decoder":            strings.Replace(file("", "", "", ""), `{"type":"ByteLevel"},"model"`, `null,"model"`, 1),
		`decoder "CTC"`:                  strings.Replace(file("", "", "", ""), `"ByteLevel"},"model"`, `"CTC"},"model"`, 1),
		`decoder "ByteFallback"`: strings.Replace(file("", "", "", ""), `{"type":"ByteLevel"},"model"`,
			`{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"ByteFallback"}]},"model"`, 1),
		`post-processor "Bert"`: strings.Replace(file("", "", "", ""), `"decoder":`, `"post_processor":{"type":"Bert"},"decoder":`, 1),
		"adds the id 99": strings.Replace(file("", "", "", ""), `"decoder":`, `"post_processor":{"type":"TemplateProcessing",`+
			`"single":[{"Sequence":{"id":"A"}},{"SpecialToken":{"id":"x"}}],"special_tokens":{"x":{"ids":[99]}}},"decoder":`, 1),
		"unexpected end of JSON": file("", "", "", "")[:100],
		"exceeded max depth":     `{"normalizer":` + strings.Repeat(`{"type":"Sequence","normalizers":[`, 1_000_000),
	}
	for want, text := range tests {
		start := time.Now()
		if _, err := load(t, map[string]string{"tokenizer.json": text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
		if d := time.Since(start); d > 10*time.Second { // a few at most, on a machine with nothing else to do
			t.Errorf("%q took %v", want, d)
		}
	}
	if _, err := load(t, map[string]string{"tokenizer.model": "x"}); err == nil || !strings.Contains(err.Error(), "save_pretrained") {
		t.Error("no file:", err)
	}
	_, err := load(t, map[string]string{"tokenizer.json": file("", "", "", ""), "tokenizer_config.json": `{"eos_token":"<none>"}`})
	if err == nil || !strings.Contains(err.Error(), `"<none>"`) {
		t.Error("an end token that is no token:", err)
	}
}

func TestFilesBeyondTheLimitAreNotRead(t *testing.T) {
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"} {
		dir := write(t, map[string]string{name: "", "tokenizer.json": file("", "", "", "")})
		if err := os.Truncate(filepath.Join(dir, name), maxFile+1); err != nil { // takes no room
			t.Fatal(err)
		}
		_, err := OpenTokenizer(dir)
		if want := name + " has 67108865 bytes; at most 67108864 are read"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

func ggufTokenizer(meta map[string]any) (*Tokenizer, error) {
	s, err := ggufSource(meta)
	if err != nil {
		return nil, err
	}
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	return s.tokenizer(config)
}

func TestDamagedGGUFMetadataIsAnErrorThatNamesTheKey(t *testing.T) {
	good := func() map[string]any {
		return map[string]any{
			"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": []string{"a", "b", "ab", "<end>"},
			"tokenizer.ggml.token_type": []int64{1, 1, 1, 3}, "tokenizer.ggml.merges": []string{"a b"}, "tokenizer.ggml.eos_token_id": int64(3),
		}
	}
	tok, err := ggufTokenizer(good())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]int32{2, 3, 0}, tok.Encode("ab<end>a")); d != "" {
		t.Error(d)
	}
	bad := map[string]any{
		"tokenizer.ggml.model": "bert", "tokenizer.ggml.pre": "none", "tokenizer.ggml.tokens": []int64{1},
		"tokenizer.ggml.token_type": nil, "tokenizer.ggml.eos_token_id": int64(4), "tokenizer.ggml.bos_token_id": "a",
		"tokenizer.ggml.eot_token_id": int64(-1),
	}
	for key, value := range bad {
		meta := good()
		meta[key] = value
		if _, err := ggufTokenizer(meta); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s = %v: %v", key, value, err)
		}
	}
	for key, value := range map[string]any{
		"tokenizer.ggml.token_type": []int64{1}, "tokenizer.ggml.merges": []string{"a c"}, "tokenizer.ggml.tokens": []string{"a", "a", "b", "c"},
	} {
		meta := good()
		meta[key] = value
		if _, err := ggufTokenizer(meta); err == nil {
			t.Errorf("%s = %v: no error", key, value)
		}
	}
}

func FuzzTokenizerJSON(f *testing.F) {
	f.Add(file("", "", `{"id":20,"content":"<x>"}`, ""), "ab<x> 12")
	f.Add(file(`{"type":"NFC"}`, `{"type":"Split","pattern":{"Regex":"\\p{L}+|\\s+(?!\\S)"},"behavior":"Isolated"}`, "", ""), "e\u0301\xff")
	f.Add(marked(`{"type":"Prepend","prepend":"▁"}`, `{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"}`,
		`{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}`,
		`{"id":22,"content":"<x>","single_word":true,"lstrip":true,"rstrip":true}`, `,"byte_fallback":true,"fuse_unk":true`), "ab <x>é")
	f.Fuzz(func(t *testing.T, text, input string) {
		var parsed tokenizerFile
		if json.Unmarshal([]byte(text), &parsed) != nil {
			return
		}
		if tok, err := parsed.tokenizer(); err == nil {
			ids := tok.AddSpecial(tok.Encode(input))
			if got := streamed(tok, ids); got != tok.Decode(ids) {
				t.Errorf("%q in pieces", got)
			}
		}
	})
}
