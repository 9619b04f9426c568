package multimodal

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Templates in the manner of models that call tools: how they write calls is theirs, the rest is short.
const (
	likeQwen = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}" +
		"{% for c in m.tool_calls or [] %}{% if not loop.first or m.content %}{{ '\n' }}{% endif %}<tool_call>\n" +
		"{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}" +
		"<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
	likeMistral = "<s>{% for m in messages %}{% if m.role == 'user' %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS][INST] {{ m.content }}[/INST]" +
		"{% elif m.tool_calls is defined %}[TOOL_CALLS] [{% for c in m.tool_calls %}" +
		"{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}" +
		"{{ (c.function | tojson)[:-1] + ', \"id\": \"' + c.id + '\"}' + (']' if loop.last else ', ') }}{% endfor %}</s>" +
		"{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
	likeNewMistral = "<s>{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content }}" +
		"{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}" +
		"</s>{% endif %}{% endfor %}"
	likeLlama = "<s>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n" +
		"{% if loop.first and tools is not none %}{% for t in tools %}{{ t | tojson(indent=4) }}\n\n{% endfor %}{% endif %}{% if 'tool_calls' in m %}" +
		"{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at most') }}{% endif %}{% set c = m.tool_calls[0].function %}" +
		"{\"name\": \"{{ c.name }}\", \"parameters\": {{ c.arguments | tojson }}}{{ '<|eom_id|>' if builtin else '<|eot_id|>' }}" +
		"{% else %}{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}" +
		"{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
	// One list between two marks, as Phi 4.
	likePhi = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}<|tool_call|>[{% for c in m.tool_calls %}" +
		"{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}{{ '' if loop.last else ', ' }}{% endfor %}]" +
		"<|/tool_call|>{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
	// Arguments as the text that the API carries them in; another end of turn after calls.
	inText = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<|call|>" +
		"{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson | tojson }}}{% endfor %}" +
		"{{ '<|done|>' if m.tool_calls else '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

// called has what a template writes around an assistant's words, and what it opens a call of f with.
var called = map[string]struct {
	template, lead, tail, opening string
	one, speaks                   bool // it shows one call only; text beside calls
}{
	"Qwen":        {likeQwen, "</think>\n\n", "<|im_end|>\n", "<tool_call>\n{\"name\": \"f\", \"arguments\":", false, true},
	"Mistral":     {likeMistral, "[/INST]", "</s>", `[TOOL_CALLS] [{"name": "f", "arguments":`, false, false},
	"new Mistral": {likeNewMistral, "[/INST]", "</s>", `[TOOL_CALLS]f[ARGS]`, false, true},
	"Llama":       {likeLlama, "assistant<|end_header_id|>\n\n", "<|eot_id|>", `{"name": "f", "parameters":`, true, false},
	"Llama's eom": {"{% set builtin = true %}" + likeLlama, "assistant<|end_header_id|>\n\n", "<|eom_id|>", `{"name": "f", "parameters":`, true, false},
	"Phi":         {likePhi, "<|assistant|>", "<|end|>", `<|tool_call|>[{"name": "f", "arguments":`, false, true},
	"in text":     {inText, "assistant\n", "<|done|>", `<|call|>{"name": "f", "arguments": "`, false, true},
	"other marks": {strings.NewReplacer("<tool_call>", "<do>", "</tool_call>", "</do>").Replace(likeQwen), "</think>\n\n", "<|im_end|>\n",
		"<do>\n{\"name\": \"f\", \"arguments\":", false, true},
	"on a line of its own": {strings.NewReplacer("{% if not loop.first or m.content %}", "", "{% endif %}<tool_call>", "<do>", "</tool_call>", "</do>").Replace(likeQwen),
		"</think>\n\n", "<|im_end|>\n", "\n<do>\n{\"name\": \"f\", \"arguments\":", false, true},
}

var manyArguments = []string{`{}`, `{"a": 1}`, `{"a": {"b": [{"c": "}"}, null]}, "d": "{"}`, `{"é": "\"x\"\n😍 \\"}`,
	`{"t": "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call> [TOOL_CALLS] [ARGS] ]; </s>"}`}

func callsJSON(calls []ToolCall) []byte {
	var list []any
	for i, c := range calls {
		list = append(list, map[string]any{"id": fmt.Sprintf("abcdef%03d", i), "type": "function",
			"function": map[string]any{"name": c.Name, "arguments": c.Arguments}})
	}
	raw, _ := json.Marshal(list)
	return raw
}

// same tells whether calls are equal but for the white space in their arguments.
func same(a, b []ToolCall) bool {
	return slices.EqualFunc(a, b, func(a, b ToolCall) bool {
		var x, y map[string]any
		return a.Name == b.Name && json.Unmarshal([]byte(a.Arguments), &x) == nil && json.Unmarshal([]byte(b.Arguments), &y) == nil && cmp.Equal(x, y)
	})
}

// cutStreaming is Cut of a whole reply, after every part of it: what was shown must stay.
func cutStreaming(t *testing.T, s CallStyle, text string) (content string, calls []ToolCall) {
	t.Helper()
	var shown string
	for i := range text + "." { // no stream of text splits a character
		now, calls := s.Cut(text[:i], false)
		if calls != nil || !strings.HasPrefix(now, shown) {
			t.Fatalf("%q: %q after %q, %v", text[:i], now, shown, calls)
		}
		shown = now
	}
	if content, calls = s.Cut(text, true); !strings.HasPrefix(content, shown) {
		t.Fatalf("%q: %q in the end, after %q", text, content, shown)
	}
	return content, calls
}

func TestCallsComeBackFromTheTemplate(t *testing.T) {
	for name, c := range called {
		chat, _ := toyChat(t, c.template, "", "")
		for i, arguments := range manyArguments {
			calls := []ToolCall{{"f", arguments}, {"get_weather-2", manyArguments[(i+1)%len(manyArguments)]}, {"f", arguments}}
			for n := range calls {
				if n > 0 && c.one {
					break
				}
				for _, content := range []string{"", "Let me see 😍"} {
					if content != "" && !c.speaks {
						continue
					}
					said := shownReply(t, chat, c.lead, c.tail, content, calls[:n+1])
					if got, list := cutStreaming(t, chat.Calls(), said); got != content || !same(list, calls[:n+1]) {
						t.Errorf("%s: %q, %q of %q", name, got, list, said)
					}
				}
			}
		}
	}
}

// shownReply is what chat shows of a reply.
func shownReply(t *testing.T, chat *Chat, lead, tail, content string, calls []ToolCall) string {
	t.Helper()
	text, err := chat.Render([]Message{{Role: "user", Content: "u"}, {Role: "assistant", Content: content, ToolCalls: callsJSON(calls)}},
		RenderOptions{Tools: json.RawMessage(`[{"type":"function","function":{"name":"f"}}]`)})
	_, said, opened := strings.Cut(text, lead)
	said, closed := strings.CutSuffix(said, tail)
	if err != nil || !opened || !closed || !strings.Contains(said, calls[0].Name) {
		t.Fatalf("%q: %v", text, err)
	}
	return said
}

func TestAnOpeningCallsItsFunction(t *testing.T) {
	for name, c := range called {
		chat, _ := toyChat(t, c.template, "", "")
		s, want := chat.Calls(), []ToolCall{{"f", `{"x":"y"}`}}
		if s.Opening("f") != c.opening {
			t.Errorf("%s: %q, want %q", name, s.Opening("f"), c.opening)
		}
		said := shownReply(t, chat, c.lead, c.tail, "", want)
		for _, opening := range []string{s.Opening(""), s.Opening("f")} { // the rest is the model's
			if !strings.HasPrefix(said, opening) || opening == "" {
				t.Errorf("%s: %q does not start with %q", name, said, opening)
			}
			if content, calls := s.Cut(opening, true); calls != nil || content != opening { // cut off at once
				t.Errorf("%s: %q, %q", name, content, calls)
			}
		}
		rest := map[byte]string{':': ` {"x":"y"}}`, ']': `{"x":"y"}`, '"': `{\"x\":\"y\"}"}`}[c.opening[len(c.opening)-1]]
		if content, calls := cutStreaming(t, s, s.Opening("f")+rest); content != "" || !cmp.Equal(calls, want) {
			t.Errorf("%s: %q, %q", name, content, calls)
		}
	}
}

// What a template shows in no form that can be read, or not at all, is asked for as Hermes models write it.
func TestATemplateThatShowsNoCallsHasThoseOfHermes(t *testing.T) {
	doing := called["other marks"].template
	for name, template := range map[string]string{
		"none":              chatML,
		"an error":          strings.ReplaceAll(doing, "<do>", "{{ raise_exception('no') }}"),
		"as XML":            strings.NewReplacer("{\"name\": \"", "<function=", "\", \"arguments\": ", ">", "tojson }}}", "length }}").Replace(doing),
		"under another key": strings.ReplaceAll(doing, `"name"`, `"tool"`),
		"another name":      strings.ReplaceAll(doing, `"name"`, `"name": "call", "tool"`),
		"other arguments":   strings.ReplaceAll(doing, `"arguments"`, `"arguments": {}, "values"`),
		"arguments first":   strings.ReplaceAll(doing, `{"name"`, `{"arguments": {{ c.function.arguments | tojson }}, "name"`),
		"deeper":            strings.NewReplacer(`{"name"`, `{"function": {"name"`, "tojson }}}", "tojson }}}}").Replace(doing),
		"deeper, no end":    strings.NewReplacer(`{"name"`, `<do>{"function": {"name"`, "tojson }}}{{ '<|eom_id|>'", "tojson }}}}{{ ''").Replace(likeLlama),
		"without a mark":    strings.ReplaceAll(likeNewMistral, "[TOOL_CALLS]", ""),
		"named twice":       strings.ReplaceAll(likeNewMistral, "[ARGS]", "[{{ c.function.name }}]"),
		"another beginning": "{% if messages[-1].tool_calls %}To do:{% endif %}" + doing,
	} {
		chat, _ := toyChat(t, template, "", "")
		if got := chat.Calls().Opening("f"); got != "<tool_call>\n{\"name\": \"f\", \"arguments\":" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestCallsAreReadLeniently(t *testing.T) {
	f, g := ToolCall{"f", `{"x": 1}`}, ToolCall{"g", `{}`}
	const fText, gText = `{"name": "f", "arguments": {"x": 1}}`, `{"name": "g", "parameters": {}}`
	for _, c := range []struct {
		style, said, content string
		calls                []ToolCall
	}{
		{"Qwen", "<tool_call>" + fText, "", []ToolCall{f}},                                                            // the end of the turn closed it
		{"Qwen", "<tool_call>\n[" + fText + ", " + gText + "]\n</tool_call>", "", []ToolCall{f, g}},                   // a list
		{"Qwen", "a <tool_call>" + gText + "</tool_call>\n b <tool_call>" + fText + "\n", "a \n b", []ToolCall{g, f}}, // text between them
		{"Qwen", `<tool_call>{"arguments": "{\"x\": 1}", "name": "f", "id": 7}</tool_call>`, "", []ToolCall{f}},       // text that holds an object
		{"Qwen", "<tool_call>" + fText + "\n<tool_call>" + gText, "", []ToolCall{f, g}},                               // nor did the next one
		{"Qwen", "<tool_call>f</tool_call>\n<tool_call>" + gText + "</tool_call>", "<tool_call>f</tool_call>", []ToolCall{g}},
		{"on a line of its own", "<do>" + gText + "</do>", "", []ToolCall{g}},
		{"Mistral", "[TOOL_CALLS]" + fText + gText, "", []ToolCall{f, g}}, // no list
		{"Mistral", "[TOOL_CALLS] [" + fText, "", []ToolCall{f}},
		{"Mistral", "Well.\n[TOOL_CALLS] [" + fText + "]\n[TOOL_CALLS] [" + gText + "] [1]", "Well.\n[1]", []ToolCall{f, g}},
		{"new Mistral", "[TOOL_CALLS] f [ARGS] {\"x\": 1} [TOOL_CALLS]g{}", "", []ToolCall{f, g}},
		{"Llama", "\n<|python_tag|> " + fText + "; " + gText + "\n", "", []ToolCall{f, g}},
		{"Llama", fText + "\n" + gText, "", []ToolCall{f, g}},
		{"Llama", "[" + fText + ", " + gText + "]", "", []ToolCall{f, g}},
	} {
		chat, _ := toyChat(t, called[c.style].template, "", "")
		if content, calls := cutStreaming(t, chat.Calls(), c.said); content != c.content || !cmp.Equal(calls, c.calls) {
			t.Errorf("%q: %q, %q", c.said, content, calls)
		}
	}
}

// Case P2.
func TestWhatIsNoCallStaysText(t *testing.T) {
	for style, said := range map[string][]string{
		"Qwen": {"<tool_call>", "<tool_call></tool_call>", "<tool_call>{}</tool_call>", `<tool_call>{"name": "f"}</tool_call>`,
			`<tool_call>{"name": "", "arguments": {}}</tool_call>`, `<tool_call>{"name": 1, "arguments": {}}</tool_call>`,
			`<tool_call>{"name": "f", "arguments": {"a": "b" and c}}</tool_call>`, `<tool_call>{"name": "f", "arguments": [1]}</tool_call>`,
			`<tool_call>{"name": "f", "arguments": "x"}</tool_call>`, `<tool_call>{"name": "f", "arguments": "{x}"}</tool_call>`,
			`<tool_call>{"name": "f", "arguments": null}</tool_call>`, `<tool_call>{"name": "f", "arguments": "null"}</tool_call>`,
			`<tool_call>{"name": "f", "arguments": {}}}</tool_call>`, `a <tool_call>{"name": "f", "argu `, `{"name": "f", "arguments": {}} `,
			`<tool_call>{"name": "f", "arguments": {}} or so</tool_call>`, `<tool_call>f {"name": "f", "arguments": {}}</tool_call>`},
		"Mistral": {`[TOOL_CALLS] [{"name": "f", "arguments": {"a": `, `[TOOL_CALLS] [] `, `[{"name": "f", "arguments": {}}]`},
		"new Mistral": {`[TOOL_CALLS]f[ARGS]`, `[TOOL_CALLS][ARGS]{}`, `[TOOL_CALLS]f[ARGS]{x}`, `[TOOL_CALLS] I know {} `, `[TOOL_CALLS]f[ARGS][1]`,
			"[TOOL_CALLS]" + strings.Repeat("f", 2*maxName) + "[ARGS]{}"},
		"Llama": {"", " ", "<|python_tag|>", "<|python_tag|>print(1)", `{"a": 1}`, `{"name": "f", "parameters": {}} is the call`, "[1] says",
			`So: {"name": "f", "parameters": {}}`, `{"name": "f", "parameters": {}}; {"name": "g"}`, "; ", " {", "<|python_tag|>  {"},
	} {
		chat, _ := toyChat(t, called[style].template, "", "")
		for _, said := range said {
			if content, calls := cutStreaming(t, chat.Calls(), said); content != said || calls != nil {
				t.Errorf("%s: %q, %q of %q", style, content, calls, said)
			}
		}
	}
}

// Whatever a model says: calls have arguments, content is what is left, in its order, and nothing shown is taken back.
func TestCutLosesNoText(t *testing.T) {
	words := []string{"<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|tool_call|>", "<|call|>", "<", "[", "]", ",", ";", "{", "}", `"`, "f",
		`{"name":"f","arguments":{}}`, `{"x":[1]}`, `{"name": "f", "parameters": `, "\n", " ", "é", "\xff", "\\", "\u00a0"}
	for name, c := range called {
		chat, _ := toyChat(t, c.template, "", "")
		style, rng, numCalls := chat.Calls(), rand.New(rand.NewPCG(1, 2)), 0
		words := append(words, style.mark, style.mark, style.end, style.Opening(""), style.Opening("f"))
		for range 10000 {
			var said string
			for range rng.IntN(9) {
				said += words[rng.IntN(len(words))]
			}
			content, calls := cutStreaming(t, style, said)
			rest := said
			for _, b := range []byte(content) {
				i := strings.IndexByte(rest, b)
				if i < 0 {
					t.Fatalf("%s: %q of %q", name, content, said)
				}
				rest = rest[i+1:]
			}
			for _, call := range calls {
				if call.Name == "" || json.Unmarshal([]byte(call.Arguments), new(map[string]any)) != nil {
					t.Fatalf("%s: %q of %q", name, call, said)
				}
			}
			if numCalls += len(calls); calls == nil && content != said {
				t.Fatalf("%s: %q of %q", name, content, said)
			}
		}
		if numCalls < 20 {
			t.Errorf("%s: %d calls", name, numCalls)
		}
	}
}

func FuzzCut(f *testing.F) {
	f.Add("[TOOL_CALLS]f[ARGS]{}")
	f.Add("<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>")
	styles := map[string]CallStyle{}
	for name, c := range called {
		chat, _ := toyChat(f, c.template, "", "")
		styles[name] = chat.Calls()
	}
	f.Fuzz(func(t *testing.T, said string) {
		for _, s := range styles {
			cutStreaming(t, s, said)
		}
	})
}
