package multimodal

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	chatML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}" +
		"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
	// As Qwen3's: thoughts are shown in the last message only.
	forgetful = "{% for m in messages %}<|im_start|>{{ m.role }}\n" +
		"{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}" +
		"<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

func toyChat(t testing.TB, template, bos, eos string) (*Chat, *Tokenizer) {
	t.Helper()
	tok := byteTokenizer(t, "<|im_start|>", "<|im_end|>", "<s>", "<|endoftext|>")
	c, err := NewChat(tok, template, named(bos, eos), true)
	if err != nil {
		t.Fatal(err)
	}
	return c, tok
}

func named(bos, eos string) map[string]string {
	tokens := map[string]string{"bos_token": bos, "eos_token": eos}
	maps.DeleteFunc(tokens, func(_, token string) bool { return token == "" })
	return tokens
}

func user(text string) []Message { return []Message{{Role: "user", Content: text}} }

// smolLMChat has the model's own template, or another one.
func smolLMChat(t testing.TB, template string) *Chat {
	t.Helper()
	if template == "" {
		c, err := OpenChat(smolLMFile(t))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c, err := NewChat(smolLMTokenizer(t), template, named("<|im_start|>", "<|im_end|>"), false)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSmolLMChatEqualsTheReference(t *testing.T) {
	c := smolLMChat(t, "")
	var reference struct {
		Chat []struct {
			Messages  []Message
			Rendered  string
			Prompt    string `json:"rendered_generation_prompt"`
			IDs       []int32
			PromptIDs []int32 `json:"ids_generation_prompt"`
		}
	}
	readReference(t, "smollm_tokenizer.json", &reference)
	if len(reference.Chat) == 0 {
		t.Fatal("no cases")
	}
	for i, want := range reference.Chat {
		rendered, err := c.Render(want.Messages, RenderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		prompt, err := c.Render(want.Messages, RenderOptions{AddGenerationPrompt: true})
		if err != nil {
			t.Fatal(err)
		}
		ids, err := c.Prompt(want.Messages, RenderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		d := cmp.Diff(want.Rendered, rendered) + cmp.Diff(want.Prompt, prompt) + cmp.Diff(want.PromptIDs, ids)
		if d += cmp.Diff(want.IDs, c.tok.Encode(rendered)); d != "" {
			t.Errorf("case %d (-want +got):\n%s", i, d)
		}
	}
	if d := cmp.Diff([]int32{2}, c.StopIDs()); d != "" {
		t.Error(d)
	}
	delta, err := c.Delta(user("Hi"), "Hello", true, user("Bye"), RenderOptions{})
	if want := "\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"; err != nil || c.tok.Decode(delta) != want {
		t.Errorf("%q, %v; want %q", c.tok.Decode(delta), err, want)
	}
}

func TestSampledTokensAreNotEncodedAgain(t *testing.T) {
	vocab := map[string]int32{}
	for i, token := range []string{"he", "llo", "hello", "h", "e", "l", "o", "ll"} {
		vocab[token] = int32(i)
	}
	merges := []mergePair{{"h", "e"}, {"l", "l"}, {"ll", "o"}, {"he", "llo"}}
	tok := makeTokenizer(t, vocab, merges, []addedToken{
		{ID: 8, Content: "<u>", Special: true}, {ID: 9, Content: "<a>", Special: true}, {ID: 10, Content: "<e>", Special: true}})
	const template = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}<e>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
	c, err := NewChat(tok, template, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("hello"); !cmp.Equal(got, []int32{2}) {
		t.Fatal(got) // the encoder is greedy; the model sampled 0, 1
	}
	history := []Message{{Role: "u", Content: "he"}}
	ids, err := c.Prompt(history, RenderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	delta, err := c.Delta(history, tok.Decode([]int32{0, 1}), false, []Message{{Role: "u", Content: "hello"}}, RenderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := append(append(ids, 0, 1), delta...)
	if d := cmp.Diff([]int32{8, 0, 10, 9, 0, 1, 10, 8, 2, 10, 9}, all); d != "" {
		t.Error(d)
	}
}

func TestDeltaIsTheTextBetweenTwoReplies(t *testing.T) {
	for _, c := range []struct {
		name, template, reply string
		stopped               bool
		want                  string
	}{
		{"end of turn was sampled", chatML, "ok", true, "\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
		{"and is in the reply's text", chatML, "ok<|im_end|>", true, "\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
		{"reply was cut", chatML, "ok", false, "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
		{"empty reply", chatML, "", true, "\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
		{"reply holds the mark", chatML, "@reply@ @reply0@", true, "\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
		{"reply ends like the delta", chatML, "\n", true, "\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
		{"template trims", strings.Replace(chatML, "m.content", "m.content|trim", 1), " ok\n", true,
			"\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
		{"white space before the end of turn", strings.Replace(chatML, "'<|im_end|>", "'\n<|im_end|>", 1), "ok", true,
			"\n<|im_start|>user\nhi\n<|im_end|>\n<|im_start|>assistant\n"},
		{"no special tokens", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}" +
			"{% if add_generation_prompt %}assistant:{{ ' ' }}{% endif %}", "ok", true, "\nuser: hi\nassistant: "},
		{"nothing closes a turn", "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}{% endfor %}" +
			"{% if add_generation_prompt %}<|im_start|>assistant {% endif %}", "ok", true, "<|im_start|>user hi<|im_start|>assistant "},
	} {
		chat, tok := toyChat(t, c.template, "", "")
		ids, err := chat.Delta(user("go"), c.reply, c.stopped, user("hi"), RenderOptions{})
		if got := tok.Decode(ids); err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func TestRewrittenTurnsAreReported(t *testing.T) {
	chat, tok := toyChat(t, forgetful, "", "")
	reply := "<think>x</think>y"
	if _, err := chat.Delta(user("u1"), reply, true, user("u2"), RenderOptions{}); !errors.Is(err, ErrRewritten) {
		t.Fatalf("error %v", err)
	}
	whole := []Message{{Role: "user", Content: "u1"}, {Role: "assistant", Content: reply}, {Role: "user", Content: "u2"}}
	ids, err := chat.Prompt(whole, RenderOptions{}) // the new segment
	if err != nil {
		t.Fatal(err)
	}
	want := "<|im_start|>user\nu1<|im_end|>\n<|im_start|>assistant\ny<|im_end|>\n<|im_start|>user\nu2<|im_end|>\n<|im_start|>assistant\n"
	if d := cmp.Diff(want, tok.Decode(ids)); d != "" {
		t.Error(d)
	}
	if _, err := chat.Delta(user("u1"), "y", true, user("u2"), RenderOptions{}); err != nil {
		t.Errorf("without thoughts nothing is rewritten: %v", err)
	}
	counting, _ := toyChat(t, "{{ messages|length }}"+chatML, "", "") // changes the past itself
	if _, err := counting.Delta(user("u1"), "y", true, user("u2"), RenderOptions{}); !errors.Is(err, ErrRewritten) {
		t.Errorf("error %v", err)
	}
}

func TestPromptsStartWithExactlyOneBOS(t *testing.T) {
	for name, template := range map[string]string{
		"template writes it": "{{ bos_token }}" + chatML, "and twice": "<s>{{ bos_token }}" + chatML, "it does not": chatML,
	} {
		chat, tok := toyChat(t, template, "<s>", "")
		ids, err := chat.Prompt(user("a"), RenderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		bos, _ := tok.ID("<s>")
		text := tok.Decode(ids)
		if ids[0] != bos || strings.Count(text, "<s>") != 1 || !strings.HasSuffix(text, "<|im_start|>assistant\n") {
			t.Errorf("%s: %q", name, text)
		}
	}
	chat, tok := toyChat(t, chatML, "", "")
	if ids, err := chat.Prompt(user("a"), RenderOptions{}); err != nil || strings.Contains(tok.Decode(ids), "<s>") {
		t.Error("a model without BOS got one", err)
	}
}

func TestTemplatesGetTheTokensThatAFolderNames(t *testing.T) {
	const template = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ image_token }}|{{ box_token }}"
	const added = `{"id":20,"content":"<s>"},{"id":21,"content":"</s>"},{"id":22,"content":"<pad>"}`
	const older = `{"bos_token":"<pad>","pad_token":{"content":"</s>"}}`
	for _, c := range []struct{ config, want string }{
		{`{"bos_token":"<s>","eos_token":{"content":"</s>"},"pad_token":null,"add_bos_token":false}`, "<pad>|</s>|</s>||"},
		{`{"bos_token":"<s>","added_tokens_decoder":{},"image_token":"a","extra_special_tokens":{"box_token":"b"}}`, "<s>|||a|b"},
		{`{"pad_token":"<pad>","extra_special_tokens":["a"]}`, "<pad>||</s>||"},
	} {
		chat, err := OpenChat(write(t, map[string]string{"tokenizer.json": file("", "", added, ""), "chat_template.jinja": template,
			"tokenizer_config.json": c.config, "special_tokens_map.json": older}))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := chat.Render(user("a"), RenderOptions{}); err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.config, got, err, c.want)
		}
	}
}

func TestATokenizerThatAddsNoBOSLeavesItToTheTemplate(t *testing.T) {
	const adds = `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],` +
		`"special_tokens":{"<s>":{"ids":[20]}}}`
	const template = "{% if messages[0].content == 'a' %}{{ bos_token }}{% endif %}{{ messages[0].content }}"
	for _, c := range []struct {
		config, processor string
		a, b              []int32
	}{
		{`{"bos_token":"<s>"}`, "null", []int32{20, 0}, []int32{1}},
		{`{"bos_token":"<s>"}`, adds, []int32{20, 0}, []int32{20, 1}},
		{`{"bos_token":"<s>","add_bos_token":true}`, "null", []int32{20, 0}, []int32{20, 1}},
	} {
		tokenizer := strings.Replace(file("", "", `{"id":20,"content":"<s>"}`, ""), `"decoder"`, `"post_processor":`+c.processor+`,"decoder"`, 1)
		chat, err := OpenChat(write(t, map[string]string{"tokenizer.json": tokenizer, "tokenizer_config.json": c.config,
			"chat_template.jinja": template}))
		if err != nil {
			t.Fatal(err)
		}
		a, _ := chat.Prompt(user("a"), RenderOptions{})
		b, _ := chat.Prompt(user("b"), RenderOptions{})
		if d := cmp.Diff([][]int32{c.a, c.b}, [][]int32{a, b}); d != "" {
			t.Errorf("%s, %s (-want +got):\n%s", c.config, c.processor, d)
		}
	}
}

func TestConversationsWithToolsUseTheTemplateForThem(t *testing.T) {
	list := `{"chat_template":[{"name":"rag","template":"c"},{"name":"tool_use","template":"b"},{"name":"default","template":"a"}]}`
	for _, files := range []map[string]string{
		{"tokenizer_config.json": list}, {"chat_template.jinja": "a", "additional_chat_templates/tool_use.jinja": "b"},
	} {
		files["tokenizer.json"] = file("", "", "", "")
		copied := t.TempDir()
		if err := SaveText(write(t, files), copied); err != nil {
			t.Fatal(err)
		}
		chat, err := OpenChat(copied)
		if err != nil {
			t.Fatal(err)
		}
		for tools, want := range map[string]string{"": "a", "[]": "b", `[{"type":"function"}]`: "b"} {
			if got, err := chat.Render(user(""), RenderOptions{Tools: json.RawMessage(tools)}); err != nil || got != want {
				t.Errorf("tools %q: %q, %v; want %q", tools, got, err, want)
			}
		}
		for _, tools := range []string{"5", `{"a":1}`, `["a"]`} {
			if _, err := chat.Render(user(""), RenderOptions{Tools: json.RawMessage(tools)}); err == nil || !strings.HasPrefix(err.Error(), "tools: ") {
				t.Errorf("tools %s: %v", tools, err)
			}
		}
	}
}

func TestStopsAreTheUnionOfConfiguredAndTemplateEnds(t *testing.T) {
	for _, eos := range []string{"<|endoftext|>", "<|im_end|>"} {
		chat, tok := toyChat(t, chatML, "", eos)
		end, _ := tok.ID("<|im_end|>")
		configured, _ := tok.ID(eos)
		want := []int32{configured, end}
		if configured == end {
			want = want[:1]
		}
		if d := cmp.Diff(want, chat.StopIDs()); d != "" {
			t.Error(eos, d)
		}
	}
}

func TestTemplatesGetToolsAndExtraVariables(t *testing.T) {
	chat, _ := toyChat(t, "{{ tools|tojson }}{{ enable_thinking }}{{ documents is none }}{{ eos_token }}", "", "<|im_end|>")
	opts := RenderOptions{Tools: json.RawMessage(`[{"b":1,"a":2}]`), Extra: map[string]any{"enable_thinking": false}}
	got, err := chat.Render(user(""), opts)
	if want := `[{"b": 1, "a": 2}]FalseTrue<|im_end|>`; err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

func TestChatErrorsNameTheirCause(t *testing.T) {
	tok := byteTokenizer(t, "<|im_end|>")
	for _, c := range []struct{ template, bos, eos, want string }{
		{"a\n{% include 'x' %}", "", "", "chat template: line 2: TemplateSyntaxError: unknown or unsupported tag 'include'"},
		{chatML, "<bos>", "", `the vocabulary lacks the bos_token "<bos>"`},
		{chatML, "", "<eos>", `the vocabulary lacks the eos_token "<eos>"`},
	} {
		if _, err := NewChat(tok, c.template, named(c.bos, c.eos), true); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v; want %q", err, c.want)
		}
	}
	chat, _ := toyChat(t, "{{ raise_exception('no ' + messages[0].role) }}", "", "")
	if _, err := chat.Prompt(user("a"), RenderOptions{}); err == nil || !strings.Contains(err.Error(), "TemplateError: no user") {
		t.Error(err)
	}
	if _, err := chat.Delta(user("a"), "b", true, user("c"), RenderOptions{}); err == nil || errors.Is(err, ErrRewritten) {
		t.Error(err)
	}
}
