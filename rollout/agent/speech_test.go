package agent

import (
	"encoding/json"
	"fmt"
	"regexp"
	"testing"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

// As Mistral's: one list of calls, whose ids must have nine letters and digits.
const listing = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}" +
	"{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}" +
	"{{ (c.function | tojson)[:-1] + ', \"id\": \"' + c.id + '\"}' + (']' if loop.last else ', ') }}{% endfor %}" +
	"{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

// hear has a speech take a text, as a reply that it is the rest of.
func hear(t *testing.T, chat *multimodal.Chat, opening, text string, id uint64) multimodal.Message {
	t.Helper()
	s := &speech{decoder: multimodal.NewStream(chat.Tokenizer()), offered: []string{"f"}, style: chat.Calls(), id: id}
	s.text.WriteString(opening)
	for _, token := range chat.Encode(text) {
		g, err := rollout.Mint(token, 0, 0, 1, true)
		if err != nil {
			t.Fatal(err)
		}
		if s.add(g); s.message(false).Content != "" {
			t.Fatalf("%q: shown as %q", text, s.message(false).Content)
		}
	}
	return s.message(true)
}

func TestCallsThatAReplyWasOpenedWithAreCalls(t *testing.T) {
	for _, template := range []string{chatML, calling, listing} {
		chat := byteChat(t, template)
		for opening, rest := range map[string]string{chat.Calls().Opening("f"): ` {"x": 1}}`, chat.Calls().Opening(""): `f", "arguments": {"x": 1}}`, "": ""} {
			if opening == "" {
				opening, rest = rest, chat.Calls().Opening("f")+` {"x": 1}}`
			}
			m := hear(t, chat, opening, rest, 0x1a2b)
			want := `[{"function":{"arguments":"{\"x\": 1}","name":"f"},"id":"000001a2b","index":0,"type":"function"}]`
			if m.Content != "" || string(m.ToolCalls) != want {
				t.Errorf("%q, %q: %+v", opening, rest, m)
			}
		}
	}
}

func TestIdsOfCallsSuitTheTemplate(t *testing.T) {
	chat, used := byteChat(t, listing), map[string]bool{}
	one := `{"name": "f", "arguments": {}}`
	for _, seed := range []uint64{0, 1<<64 - 1, 1<<36 - 2, 0x123456789abcdef} {
		m := hear(t, chat, "", fmt.Sprintf("[TOOL_CALLS] [%s, %s, %s]", one, one, one), seed)
		var calls []struct{ ID string }
		if err := json.Unmarshal(m.ToolCalls, &calls); err != nil || len(calls) != 3 {
			t.Fatalf("%v: %s", err, m.ToolCalls)
		}
		clear(used)
		for _, c := range calls {
			if used[c.ID] || !regexp.MustCompile("^[a-z0-9]{9}$").MatchString(c.ID) {
				t.Errorf("seed %d: %s", seed, m.ToolCalls)
			}
			used[c.ID] = true
		}
		if _, err := chat.Render([]multimodal.Message{{Role: "user", Content: "u"}, m}, multimodal.RenderOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// The template shows an id that the model did not write, and refuses one of another form.
func TestCallsInAListContinueTheConversation(t *testing.T) {
	call := `[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]`
	g := &saying{texts: []string{call + "<|im_end|>", "so<|im_end|>"}}
	s := newStand(t, listing, g, ServerConfig{})
	const tools = `"max_tokens":200,"tools":[{"type":"function","function":{"name":"f"}}]`
	first, _ := s.ask(s.v.token, `{"messages":[{"role":"user","content":"u"}],`+tools+`}`)
	calls := first.Choices[0].Message.ToolCalls
	second, _ := s.ask(s.v.token, fmt.Sprintf(`{"messages":[{"role":"user","content":"u"},{"role":"assistant","tool_calls":%s},
		{"role":"tool","tool_call_id":"1","content":"42"}],%s}`, calls, tools))
	want := s.chat.Decode(g.asked[0].IDs) + call + "<|im_end|>\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n"
	if got := s.chat.Decode(g.asked[1].IDs); second.text() != "so" || got != want {
		t.Errorf("%s: prompt %q, want %q", calls, got, want)
	}
}
