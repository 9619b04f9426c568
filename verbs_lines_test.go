package molt

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestABadLineIsAnErrorThatNamesItsFault(t *testing.T) {
	common := [][2]string{
		{`garbage`, "not a JSON object"}, {``, "not a JSON object"}, {`[1]`, "not a JSON object"}, {`null`, "exactly one of"},
		{`{}`, "exactly one of"}, {`{"ids":[1],"messages":[]}`, "exactly one of"}, {`{"ids":null}`, "exactly one of"},
		{`{"ids":"1"}`, "ids: "}, {`{"ids":[1.5]}`, "ids: "}, {`{"ids":[1,null]}`, "ids: an id is negative or null"}, {`{"ids":[3000000000]}`, "ids: "}, {`{"ids":[1,-1]}`, "ids: an id is negative or null"},
		{`{"idz":[1]}`, `unknown key "idz"; the nearest known key is "ids"`}, {`{"ids":[1],"IDs":[1]}`, `unknown key "IDs"`},
		{`{"messages":[]}`, "messages: "}, {`{"messages":{}}`, "messages: "}, {`{"messages":["a"]}`, "message 0"},
		{`{"messages":[{"role":"user","content":"a"}],"add_generation_prompt":"yes"}`, "add_generation_prompt: "},
	}
	model := [][2]string{
		{`{"ids":[]}`, "0 tokens"}, {`{"ids":[49152]}`, "vocabulary of 49152"},
		{`{"ids":[` + strings.Repeat("1,", 8192) + `1]}`, "8193 tokens: must be from 1 to 8192"}, {`{"ids":[1],"images":["a.png"]}`,
			"images: "},
		{`{"ids":[1],"text":"a"}`, `unknown key "text"`},
	}
	for verb, more := range map[string][][2]string{
		"tokens": {{`{"text":"a","ids":[1]}`, "exactly one of"}, {`{"text":1}`, "text: "}, {`{"text":"a","add_special_token":true}`,
			`"add_special_tokens"`}},
		"score": model,
		"generate": append(model, [][2]string{
			{`{"ids":[1],"max_tokens":0}`, "max_tokens"}, {`{"ids":[1],"max_token":3}`, `the nearest known key is "max_tokens"`},
			{`{"ids":[1],"temperature":-1}`, "temperature"}, {`{"ids":[1],"temperature":1e-40}`, "temperature"},
			{`{"ids":[1],"top_p":0}`, "top_p"},
			{`{"ids":[1],"top_p":1.5}`, "top_p"}, {`{"ids":[1],"top_k":-1}`, "top_k"}, {`{"ids":[1],"min_p":2}`, "min_p"},
			{`{"ids":[1],"seed":-1}`, "seed: "},
			{`{"ids":[1],"stop":3}`, "stop: "}, {`{"ids":[1],"stop":["a",""]}`, "stop: "}, {`{"ids":[1],"ignore_eos":1}`, "ignore_eos: "},
		}...),
	} {
		cases := slices.Concat(common, more)
		lines := []string{`{"ids":[1,2]}`}
		for _, c := range cases {
			lines = append(lines, c[0])
		}
		if verb == "generate" {
			lines[0] = `{"ids":[1,2],"max_tokens":1}`
		}
		lines = append(lines, lines[0]+"\r")
		got := ask(t, verb, smolLM(t), len(cases), lines)
		for i, c := range cases {
			if !strings.Contains(got[i+1].Error, c[1]) {
				t.Errorf("molt %s: %.80s gave %q, want %q", verb, c[0], got[i+1].Error, c[1])
			}
		}
		if last := len(lines) - 1; got[0].Error != "" || !cmp.Equal(got[0], got[last]) {
			t.Errorf("molt %s: the good lines around them gave %v and %v", verb, got[0], got[last])
		}
	}
}

func TestVerbsRefuseBadFlagsAndModels(t *testing.T) {
	unknown := write(t, "config.json", `{"model_type": "mamba"}`)
	truncated := write(t, "short.gguf", "GGUF\x03\x00")
	for _, verb := range []string{"tokens", "score", "generate"} {
		for args, want := range map[string]string{
			"": "-model is required", "-model x y": `unexpected argument "y"`, "-model x -dtype int8": `-dtype is "int8"`,
			"-model x -threads 0": "-threads is 0",
			"-modle x":            "not defined: -modle", "-model /nowhere/model": "/nowhere/model", "-model " + truncated: "short.gguf",
			"-model " + t.TempDir(): ".json",
		} {
			if err := run(t.Context(), append([]string{verb}, strings.Fields(args)...), strings.NewReader(""), io.Discard,
				io.Discard); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("molt %s %s: %v, want %q", verb, args, err, want)
			}
		}
	}
	for args, want := range map[string]string{
		"score -model " + filepath.Dir(unknown):    `model_type "mamba" is not supported`,
		"generate -model " + filepath.Dir(unknown): `"mamba"`,
		"score -model x -top -1":                   "-top -1", "generate -model " + tinyModel + " -cache 0": "cache_mb = 0",
		"tokens -model " + tinyModel: "tokenizer.json",
		"tokens -model x -top 1":     "not defined: -top",
	} {
		if err := run(t.Context(), strings.Fields(args), strings.NewReader(""), io.Discard, io.Discard); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("molt %s: %v, want %q", args, err, want)
		}
	}
}

// manyLines are of lengths from 1 to 90 tokens.
func manyLines(more string) (lines []string) {
	for i := range 60 {
		var ids []int32
		for j := range 1 + i*i%90 {
			ids = append(ids, int32((i*31+j*17)%320))
		}
		lines = append(lines, fmt.Sprintf(`{"ids":%s%s}`, line(ids), strings.ReplaceAll(more, "#", fmt.Sprint(i))))
	}
	return lines
}

func TestAnswersAreTheSameBitsAloneAndAmongOthersAndOnAnyNumberOfThreads(t *testing.T) {
	for _, dtype := range []string{"float32", "bfloat16"} {
		for verb, flags := range map[string][]string{"score": {"-top", "5"}, "generate": {"-cache", "16"}} {
			var lines []string
			switch verb {
			case "score":
				lines = manyLines("")
			default:
				lines = manyLines(`,"max_tokens":12,"temperature":0.8,"top_p":0.9,"seed":#`)
			}
			flags = append(flags, "-dtype", dtype)
			all := output(t, verb, tinyModel, 0, lines, append(flags, "-threads", "2")...)
			if one := output(t, verb, tinyModel, 0, lines, append(flags, "-threads", "1")...); one != all {
				t.Errorf("molt %s, %s: one thread gives other bits than two", verb, dtype)
			}
			for i, text := range strings.SplitAfterN(all, "\n", len(lines)) {
				if i%13 == 0 && output(t, verb, tinyModel, 0, lines[i:i+1], flags...) != text {
					t.Errorf("molt %s, %s: line %d gives other bits alone", verb, dtype, i)
				}
			}
		}
	}
}

func TestScoresOfOneTokenAndOfManyLikelyOnes(t *testing.T) {
	got := ask(t, "score", tinyModel, 0, []string{`{"ids":[7]}`, `{"ids":[7,8]}`}, "-top", "255")
	if got[0].LogProbs == nil || len(got[0].LogProbs) != 0 || len(got[0].Entropy) != 1 || len(got[0].Top) != 1 ||
		len(got[0].Top[0]) != 255 {
		t.Errorf("one token: %v", got[0])
	}
	for i, pair := range got[1].Top[0] {
		if i > 0 && pair[1] > got[1].Top[0][i-1][1] {
			t.Error("the likeliest do not fall at", i)
		}
		if pair[0] == 8 && float32(pair[1]) != got[1].LogProbs[0] {
			t.Errorf("token 8 has the log-prob %v among the likeliest, and %v by itself", pair[1], got[1].LogProbs[0])
		}
	}
}

func TestAChatIsAnsweredInTurnsWhileTheInputIsOpen(t *testing.T) {
	in, ask := io.Pipe()
	answers, out := io.Pipe()
	ended := make(chan error)
	go func() { ended <- run(t.Context(), []string{"generate", "-model", smolLM(t)}, in, out, io.Discard) }()
	history := []object{{"role": "user", "content": "What is the capital of France?"}}
	r := bufio.NewReader(answers)
	for _, question := range []string{"And of Italy?", ""} {
		fmt.Fprintln(ask, line(object{"messages": history, "max_tokens": 40}))
		text, err := r.ReadString('\n')
		var a answered
		if err == nil {
			err = json.Unmarshal([]byte(text), &a)
		}
		if err != nil || a.Finish != "stop" || a.IDs[len(a.IDs)-1] != 2 || strings.Contains(*a.Text, "<|im_end|>") ||
			len(a.LogProbs) != len(a.IDs) {
			t.Fatal(err, text)
		}
		if question != "" && !strings.Contains(*a.Text, "Paris") {
			t.Error(*a.Text)
		}
		history = append(history, object{"role": "assistant", "content": *a.Text}, object{"role": "user", "content": question})
	}
	ask.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestStopsCutTheTextAndKeepTheTokens(t *testing.T) {
	prompt := object{"messages": []object{{"role": "user", "content": "Hi"}}} // Hello! How can I assist you today?<|im_end|>
	with := func(more object) string {
		all := object{"max_tokens": 12}
		for _, o := range []object{prompt, more} {
			for k, v := range o {
				all[k] = v
			}
		}
		return line(all)
	}
	got := ask(t, "generate", smolLM(t), 0, []string{with(nil), with(object{"stop": "can"}), with(object{"stop": []string{"zzz", "w c",
		"day"}}),
		with(object{"ignore_eos": true}), with(object{"max_tokens": 3}), with(object{"stop": "<|im_end|>", "ignore_eos": true}),
		with(object{"temperature": 0.9, "seed": 1}), with(object{"temperature": 0.9, "seed": 2}), with(object{"temperature": 0.9,
			"top_k": 1, "seed": 3}),
		with(object{"add_generation_prompt": false, "max_tokens": 1})})
	text, full := "Hello! How can I assist you today?", got[0].IDs
	for i, want := range []struct {
		text, finish string
		tokens       int
	}{{text, "stop", len(full)}, {"Hello! How ", "stop", 4}, {"Hello! Ho", "stop", 4}, {text + "<|im_end|>", "length", 12},
		{"Hello! How", "length", 3},
		{text, "stop", len(full)}} {
		if a := got[i]; *a.Text != want.text && !(i == 3 && strings.HasPrefix(*a.Text, want.text)) || a.Finish != want.finish ||
			len(a.IDs) != want.tokens ||
			!slices.Equal(a.IDs[:min(want.tokens, len(full))], full[:min(want.tokens, len(full))]) {
			t.Errorf("case %d: %q, %v, %s; want %q, %d tokens of %v, %s", i, *a.Text, a.IDs, a.Finish, want.text, want.tokens, full,
				want.finish)
		}
	}
	if slices.Equal(got[6].IDs, got[7].IDs) || !slices.Equal(got[8].IDs, full) || got[9].IDs[0] == full[0] {
		t.Errorf("sampling: %v %v; top_k 1: %v; without a generation prompt: %v", got[6].IDs, got[7].IDs, got[8].IDs, got[9].IDs)
	}
}

func TestAnEndedReaderEndsAVerbQuietly(t *testing.T) {
	for _, verb := range []string{"tokens", "score", "generate"} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		if err := run(t.Context(), []string{verb, "-model", smolLM(t)}, strings.NewReader("garbage\n"), w, io.Discard); err != nil {
			t.Errorf("molt %s: %v", verb, err)
		}
		w.Close()
	}
}

func TestAFolderWithoutATokenizerContinuesIDs(t *testing.T) {
	got := ask(t, "generate", tinyModel, 2, []string{`{"ids":[5],"max_tokens":2}`, `{"ids":[5],"stop":"a"}`,
		`{"messages":[{"role":"user"}]}`}, "-cache", "16")
	if len(got[0].IDs) != 2 || *got[0].Text != "" || !strings.Contains(got[1].Error, "no tokenizer") || !strings.Contains(got[2].Error,
		"tokenizer.json") {
		t.Error(got)
	}
	dir, end := t.TempDir(), got[0].IDs[0]
	err := errors.Join(os.CopyFS(dir, os.DirFS(tinyModel)),
		os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(fmt.Sprintf(`{"eos_token_id":[0,%d]}`, end)), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	got = ask(t, "generate", dir, 0, []string{`{"ids":[5],"max_tokens":2}`, `{"ids":[5],"max_tokens":2,"ignore_eos":true}`}, "-cache", "16")
	if len(got[0].IDs) != 1 || got[0].Finish != "stop" || len(got[1].IDs) != 2 || got[1].Finish != "length" {
		t.Errorf("with %d as an end: %+v", end, got)
	}
}

func TestSpecialTokensAndBOSAreThereOnceWhereTheyBelong(t *testing.T) {
	for _, c := range []struct {
		template, text string
		ids            []int32
	}{
		{"{{ bos_token }}{{ messages[0].content }}", "<|im_start|>a", []int32{1, 81}}, // the template writes it
		{"{{ messages[0].content }}", "a", []int32{1, 81}},                            // the tokenizer adds it
	} {
		dir := withTemplate(t, c.template)
		edit(t, filepath.Join(dir, "tokenizer_config.json"), object{"add_bos_token": true, "bos_token": "<|im_start|>"})
		edit(t, filepath.Join(dir, "tokenizer.json"), object{"post_processor": object{
			"type": "TemplateProcessing", "pair": []any{},
			"single": []object{{"SpecialToken": object{"id": "<|im_start|>", "type_id": 0}}, {"Sequence": object{"id": "A",
				"type_id": 0}}},
			"special_tokens": object{"<|im_start|>": object{"id": "<|im_start|>", "ids": []int{1}, "tokens": []string{"<|im_start|>"}}},
		}})
		want := []answered{{IDs: []int32{81}}, {IDs: []int32{1, 81}}, {Text: &c.text, IDs: c.ids}}
		got := ask(t, "tokens", dir, 0, []string{`{"text":"a"}`, `{"text":"a","add_special_tokens":true}`,
			`{"messages":[{"role":"user","content":"a"}]}`})
		if d := cmp.Diff(want, got); d != "" { // no spans: the template shows no ends of replies
			t.Errorf("%s (-want +got):\n%s", c.template, d)
		}
	}
}

// edit sets keys of a JSON file.
func edit(t *testing.T, path string, keys object) {
	t.Helper()
	file := object{}
	readJSON(t, path, &file)
	maps.Copy(file, keys)
	if err := os.WriteFile(path, []byte(line(file)), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestNothingIsAnEmptyListOrText(t *testing.T) {
	lines := []string{`{"text":""}`, `{"text":"","add_special_tokens":true}`, `{"ids":[]}`}
	if got, want := output(t, "tokens", smolLM(t), 0, lines), "{\"ids\":[]}\n{\"ids\":[]}\n{\"text\":\"\"}\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestOtherKeysBesideMessagesAreVariablesOfTheTemplate(t *testing.T) {
	dir := withTemplate(t, "{{ tools|tojson }} {{ enable_thinking }} {{ n }} {{ none is none }} {{ add_generation_prompt }}{{ text }}")
	got := ask(t, "tokens", dir, 0, []string{
		`{"messages":[{"role":"user"}],"tools":[{"b":1,"a":2}],"enable_thinking":false,"n":{"z":1,"y":null},"none":null}`,
	})
	if want := `[{"b": 1, "a": 2}] False {'z': 1, 'y': None} True False`; *got[0].Text != want {
		t.Errorf("%q, want %q", *got[0].Text, want)
	}
}

// seeing is a folder with a reference model that sees, and a tokenizer and a template of the test's own.
func seeing(t *testing.T, path string, placeholder int64) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(path)); err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]any{
		"tokenizer.json": object{"model": object{"type": "BPE", "vocab": object{"a": 0, "b": 1, "c": 2}, "merges": []string{}},
			"added_tokens": []object{{"id": placeholder, "content": "<image>", "special": true}}, "decoder": object{"type": "ByteLevel"},
			"pre_tokenizer": object{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}},
		"tokenizer_config.json": object{"chat_template": "{% for p in messages[0].content %}{{ p.text or '<image>' }}{% endfor %}"},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(line(v)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestImagesOfMessagesFillThePlaceholders(t *testing.T) {
	seen := 0
	models(t, func(t *testing.T, path string, ref tensors) {
		rows, _ := unpadded(ref, "gen")
		files := pictures(ref, path, rows)
		i := slices.IndexFunc(files, func(f []string) bool { return len(f) == 2 })
		if i < 0 {
			return
		}
		seen++
		images := files[i]
		var config struct {
			Image int64 `json:"image_token_id"`
		}
		readJSON(t, filepath.Join(path, "config.json"), &config)
		first := slices.Index(rows[i], config.Image)
		second := slices.IndexFunc(rows[i][first:], func(id int64) bool { return id != config.Image }) // tokens of the first image
		all := len(slices.DeleteFunc(slices.Clone(rows[i]), func(id int64) bool { return id != config.Image }))
		ids := slices.Concat([]int64{0, 1}, slices.Repeat([]int64{config.Image}, second), []int64{0},
			slices.Repeat([]int64{config.Image}, all-second))
		messages := []object{{"role": "user", "content": []object{{"type": "text", "text": "ab"}, {"type": "image", "path": images[0]},
			{"type": "text", "text": "a"}, {"type": "image"}}}}
		dir := seeing(t, path, config.Image)
		for verb, flags := range map[string][]string{"score": nil, "generate": {"-cache", "16", "-threads", "1"}} {
			var lines []string
			for _, o := range []object{
				{"ids": ids, "images": images}, {"messages": messages, "images": images[1]}, {"messages": messages,
					"images": []string{images[1], images[1]}},
				{"messages": messages}, {"messages": messages, "images": "/nowhere.png"}, {"ids": ids}, {"ids": ids[:3],
					"images": images[:1]},
			} {
				if verb == "generate" {
					o["max_tokens"] = 8
				}
				lines = append(lines, line(o))
			}
			got := ask(t, verb, dir, len(lines)-2, lines, flags...)
			if d := cmp.Diff(got[0], got[1]); d != "" || got[0].LogProbs == nil {
				t.Errorf("molt %s: ids that are expanded give other numbers (-ids +messages):\n%s", verb, d)
			}
			for j, want := range []string{"3 images, and 2", "image 1", "nowhere.png", "belongs to none",
				fmt.Sprintf("stands for %d tokens", second)} {
				if !strings.Contains(got[j+2].Error, want) {
					t.Errorf("molt %s: %s gave %q, want %q", verb, lines[j+2], got[j+2].Error, want)
				}
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "preprocessor.json"), []byte(`{"patch_size":5}`), 0o644); err != nil {
			t.Fatal(err)
		}
		got := ask(t, "score", dir, 1, []string{`{"ids":[0]}`, line(object{"ids": ids, "images": images})})
		if want := "other patches than the vision tower: 5 pixels"; got[0].Entropy == nil || !strings.Contains(got[1].Error, want) {
			t.Errorf("%+v, want an error with %q", got[1], want)
		}
	})
	if seen == 0 {
		t.Error("no model saw two images in a row")
	}
}
