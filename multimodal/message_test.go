package multimodal

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMessagesAreReadAsTheAPIWritesThem(t *testing.T) {
	for raw, want := range map[string]Message{
		`{"role":"user","content":"hi"}`:                        {Role: "user", Content: "hi"},
		`{"role":"assistant"}`:                                  {Role: "assistant"},
		`{"role":"assistant","content":null,"tool_calls":null}`: {Role: "assistant"},
		`{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`: {
			Role: "user", Content: "ab"},
		`{"role":"tool","content":"1","tool_call_id":"c","name":"f"}`: {Role: "tool", Content: "1", ToolCallID: "c", Name: "f"},
		`{"role":"assistant","content":"x","reasoning_content":"y","tool_calls":[1]}`: {
			Role: "assistant", Content: "x", Reasoning: "y", ToolCalls: json.RawMessage(`[1]`)},
		`{"role":"user","content":"","weight":0.5}`: {Role: "user", Extra: map[string]json.RawMessage{"weight": json.RawMessage("0.5")}},
	} {
		var got Message
		if err := json.Unmarshal([]byte(raw), &got); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", raw, d)
		}
		out, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var again Message
		if err := json.Unmarshal(out, &again); err != nil || !cmp.Equal(got, again) {
			t.Errorf("%s was written as %s, %v", raw, out, err)
		}
	}
	for _, raw := range []string{`{"role":1}`, `{"content":{}}`, `{"content":[{"type":"image_url"}]}`, `{"content":["a"]}`, `[]`, `"a"`} {
		if err := json.Unmarshal([]byte(raw), new(Message)); err == nil {
			t.Errorf("%s was accepted", raw)
		}
	}
}

func TestTemplatesSeeToolCallArgumentsAsObjects(t *testing.T) {
	chat, _ := toyChat(t, "{% for c in messages[0].tool_calls %}{{ (c.function or c)|tojson }};{% endfor %}{{ messages[0].q }}", "", "")
	for _, c := range [][2]string{
		{`[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\": 1, \"a\": [2]}"}}]`,
			`{"name": "f", "arguments": {"b": 1, "a": [2]}};`},
		{`[{"function":{"name":"f","arguments":"{\"a\": \"b\" and c}"}}]`, `{"name": "f", "arguments": "{\"a\": \"b\" and c}"};`},
		{`[{"function":{"arguments":{"z":1,"y":2},"name":"f"}}]`, `{"arguments": {"z": 1, "y": 2}, "name": "f"};`},
		{`[{"name":"f","arguments":{"z":1}}]`, `{"name": "f", "arguments": {"z": 1}};`},
		{`[{"function":{"name":"f","arguments":"3"}}]`, `{"name": "f", "arguments": "3"};`},
	} {
		calls, want := c[0], c[1]
		m := Message{Role: "assistant", ToolCalls: json.RawMessage(calls), Extra: map[string]json.RawMessage{"q": json.RawMessage(`"<>"`)}}
		got, err := chat.Render([]Message{m}, RenderOptions{})
		if err != nil || got != want+"<>" {
			t.Errorf("%s: %q, %v; want %q", calls, got, err, want)
		}
	}
	bad := []Message{{Role: "assistant", ToolCalls: json.RawMessage(`{}`)}}
	if _, err := chat.Render(bad, RenderOptions{}); err == nil {
		t.Error("tool_calls that are no list were accepted")
	}
}
