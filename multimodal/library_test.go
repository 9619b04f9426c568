package multimodal

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// marked is a vocabulary with marks, as SentencePiece has them, and what tokenizer.json says of it.
func marked(normalizer, preTokenizer, decoder, added, model string) string {
	vocab := map[string]int{"<unk>": 0}
	for _, token := range strings.Fields("a b c d 1 2 . é 日 ▁ ▁▁ ▁▁▁▁ ab ▁a ▁ab abc ▁abc bc 11 .. a▁ <x>") {
		vocab[token] = len(vocab)
	}
	for b := range 256 {
		if b != '!' && b != 0xC3 { // these have no token: the unknown token stands for them
			vocab[fmt.Sprintf("<0x%02X>", b)] = len(vocab)
		}
	}
	text, _ := json.Marshal(vocab)
	return fmt.Sprintf(`{"version":"1.0","truncation":null,"padding":null,"added_tokens":[%s],"normalizer":%s,"pre_tokenizer":%s,
		"post_processor":{"type":"TemplateProcessing",
		"single":[{"SpecialToken":{"id":"<x>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
		"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],
		"special_tokens":{"<x>":{"id":"<x>","ids":[22],"tokens":["<x>"]}}},
		"decoder":%s,"model":{"type":"BPE","unk_token":"<unk>"%s,"vocab":%s,"merges":["▁ a","a b","▁a b","▁ ab","▁▁ ▁▁","▁ ▁","b c",
		"a bc","ab c","▁ab c","▁ abc","1 1",". .","a ▁"]}}`, added, normalizer, preTokenizer, decoder, model, text)
}

func TestComponentsDoAsTheLibrarys(t *testing.T) {
	const (
		none     = "null"
		gemma    = `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`
		llama    = `{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},` + gemma + `]}`
		replace  = `{"type":"Replace","pattern":{"String":"▁"},"content":" "}`
		strip    = `{"type":"Strip","content":" ","start":1,"stop":0}`
		fallback = `{"type":"Sequence","decoders":[` + replace + `,{"type":"ByteFallback"},{"type":"Fuse"},` + strip + `]}`
		level    = `{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`
		plain    = `{"type":"Fuse"}`
		special  = `{"id":22,"content":"<x>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`
		bytes    = `,"byte_fallback":true,"fuse_unk":true`
	)
	split := func(pattern, behavior string, invert bool) string {
		return fmt.Sprintf(`{"type":"Split","pattern":%s,"behavior":%q,"invert":%v}`, pattern, behavior, invert)
	}
	token := func(id int, content, flags string) string {
		all := map[string]any{"id": id, "content": content}
		for _, f := range []string{"single_word", "lstrip", "rstrip", "normalized", "special"} {
			all[f] = strings.Contains(flags, f)
		}
		text, _ := json.Marshal(all)
		return string(text)
	}
	files := []string{
		marked(llama, none, fallback, special, bytes), marked(gemma, none, fallback, special, bytes),
		marked(gemma, none, plain, special, ""), marked(gemma, none, plain, special, `,"byte_fallback":true`),
		marked(gemma, none, plain, special, `,"fuse_unk":true`),
		marked(llama, none, fallback, special, bytes+`,"ignore_merges":true`),
		marked(`{"type":"Replace","pattern":{"Regex":"[ab]+"},"content":"x"}`, none, plain, special, ""),
		marked(none, `{"type":"WhitespaceSplit"}`, plain, special, ""),
		marked(none, `{"type":"Digits","individual_digits":true}`, plain, special, ""),
		marked(none, `{"type":"Digits","individual_digits":false}`, plain, special, ""),
		marked(none, `{"type":"Sequence","pretokenizers":[`+level+`,{"type":"Digits","individual_digits":true}]}`, level, special, ""),
	}
	for _, scheme := range []string{"always", "first", "never"} {
		for _, apart := range []bool{false, true} {
			metaspace := fmt.Sprintf(`{"type":"Metaspace","replacement":"▁","prepend_scheme":%q,"split":%v}`, scheme, apart)
			files = append(files, marked(none, metaspace, metaspace, special, bytes))
		}
	}
	for _, behavior := range []string{"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"} {
		for _, invert := range []bool{false, true} {
			files = append(files, marked(none, split(`{"Regex":"[ab]|\\s+(?!\\S)"}`, behavior, invert), plain, special, ""),
				marked(none, split(`{"String":".."}`, behavior, invert), plain, special, ""),
				marked(none, split(`{"Regex":"c?|1&&"}`, behavior, invert), plain, special, ""))
		}
	}
	for _, flags := range []string{"", "single_word", "lstrip", "rstrip", "lstrip rstrip normalized", "single_word normalized special"} {
		files = append(files, marked(gemma, none, plain, token(22, "<x>", flags)+","+token(277, "c d", flags), ""))
	}
	texts := []string{"", " ", "a", " a", "<x>", "a <x> b", "<x> a", "ab<x>", "é<x>", "<x>é", "!é日!x", "ã!", "a\n\n b  ", "aaa  aa    a"}
	rng := rand.New(rand.NewPCG(1, 2))
	alphabet := []string{"a", "b", "c", "d", "1", "2", ".", "é", "日", " ", "  ", "\n", "▁", "!", "x", "<x>", "c d", "😀", "ab", "ß", "½",
		"_", "\u0301"}
	for range 300 {
		var b strings.Builder
		for range rng.IntN(12) {
			b.WriteString(alphabet[rng.IntN(len(alphabet))])
		}
		texts = append(texts, b.String())
	}
	for i, answers := range library(t, files, texts) {
		tok, err := load(t, map[string]string{"tokenizer.json": files[i]})
		if err != nil {
			t.Errorf("%s: %v", files[i], err)
			continue
		}
		for k, want := range answers {
			special := tok.AddSpecial(tok.Encode(texts[k]))
			if !slices.Equal(special, want.Special) || !compare(t, tok, texts[k], want.IDs, want.Decoded) {
				t.Errorf("%q: with special tokens %v, want %v; in %s", texts[k], special, want.Special, files[i])
				break
			}
		}
	}
}

type libraryAnswer struct {
	IDs, Special []int32
	Decoded      string
}

// library asks the tokenizers library about texts.
func library(t *testing.T, files, texts []string) (answers [][]libraryAnswer) {
	t.Helper()
	var in strings.Builder
	for _, f := range files {
		line, _ := json.Marshal(map[string]any{"file": f, "texts": texts})
		in.Write(append(line, '\n'))
	}
	python := exec.Command(cached(t, "testing/bin/python"), "testdata/library.py")
	python.Stdin = strings.NewReader(in.String())
	python.Stderr = os.Stderr
	out, err := python.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		var answer []libraryAnswer
		if err := json.Unmarshal([]byte(line), &answer); err != nil {
			t.Fatalf("%s: %s", files[len(answers)], line)
		}
		answers = append(answers, answer)
	}
	return answers
}

// What goes on from a text is encoded and decoded as within it: no space comes in between, and none is lost.
func TestATextGoesOnWithoutTheSpaceOfABeginning(t *testing.T) {
	const (
		spaces   = `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`
		back     = `{"type":"Replace","pattern":{"String":"▁"},"content":" "}`
		special  = `{"id":22,"content":"<x>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`
		fallback = `{"type":"Sequence","decoders":[` + back + `,{"type":"ByteFallback"},{"type":"Fuse"}%s]}`
		strip    = `,{"type":"Strip","content":" ","start":1,"stop":0}`
	)
	files := map[string]string{
		"Llama 2": marked(`{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},`+spaces+`]}`, "null", fmt.Sprintf(fallback, strip), special, `,"byte_fallback":true`),
		"Gemma":   marked(spaces, "null", fmt.Sprintf(fallback, ""), special, `,"byte_fallback":true`),
	}
	for _, scheme := range []string{"always", "first", "never"} {
		metaspace := fmt.Sprintf(`{"type":"Metaspace","replacement":"▁","prepend_scheme":%q,"split":true}`, scheme)
		files["metaspace "+scheme] = marked("null", metaspace, `{"type":"Sequence","decoders":[`+metaspace+`,{"type":"ByteFallback"},{"type":"Fuse"}]}`, special, `,"byte_fallback":true`)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	write := func() (text string) {
		for range rng.IntN(6) {
			text += []string{"a", "b", "abc", " ", "  ", " ab", "\n", "日", "1"}[rng.IntN(9)]
		}
		return text
	}
	for name, file := range files {
		tok, err := load(t, map[string]string{"tokenizer.json": file})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for range 500 {
			before, after := "a"+write(), write()
			ids := tok.EncodeAfter(after)
			stream, shown := NewStreamAfter(tok), ""
			for _, id := range ids {
				shown += stream.Next(id)
			}
			if shown += stream.Flush(); shown != after {
				t.Fatalf("%s: %q after %q is shown as %q", name, after, before, shown)
			}
			if all := tok.Decode(slices.Concat(tok.Encode(before), ids)); all != before+after {
				t.Fatalf("%s: %q and %q are %q", name, before, after, all)
			}
		}
	}
}

func TestTheBytesOfATokenAreThoseThatItStandsForWithinAText(t *testing.T) {
	tok, err := load(t, map[string]string{"tokenizer.json": marked(`{"type":"Replace","pattern":{"String":" "},"content":"▁"}`, "null",
		`{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}]}`,
		`{"id":22,"content":"<x>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`, `,"byte_fallback":true`)})
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]string{"▁a": " a", "<0xE6>": "\xe6", "<x>": "<x>"} {
		id, ok := tok.ID(token)
		if got := tok.Bytes(id); !ok || string(got) != want {
			t.Errorf("%q: %q, want %q", token, got, want)
		}
	}
	if got := tok.Bytes(1 << 20); got != nil {
		t.Errorf("of no token: %q", got)
	}
}
