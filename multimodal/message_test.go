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
		`{"role":"user","content":[{"type":"image","path":"a.png"},{"type":"text","text":"b"}]}`: {
			Role: "user", Content: "b", Parts: json.RawMessage(`[{"type":"image","path":"a.png"},{"type":"text","text":"b"}]`)},
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
	for _, raw := range []string{`{"role":1}`, `{"content":{}}`, `{"content":[{"type":"video"}]}`, `{"content":["a"]}`, `[]`, `"a"`} {
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

func TestImagesAreListedInTheOrderOfTheConversation(t *testing.T) {
	var msgs []Message
	if err := json.Unmarshal([]byte(`[{"role":"system","content":"x"},
		{"role":"user","content":[{"type":"image","image":"a.png"},{"type":"text","text":"?"},
			{"type":"image_url","image_url":{"url":"data:b"}}]},
		{"role":"user","content":[{"type":"text","text":"!"},{"type":"image_url","image_url":"c.png"},{"type":"image"}]},
		{"role":"user","content":[{"type":"image","url":"d"},{"type":"image","path":"e"},{"type":"image","base64":"f"}]}]`),
		&msgs); err != nil {
		t.Fatal(err)
	}
	got, err := Images(msgs)
	if d := cmp.Diff([]string{"a.png", "data:b", "c.png", "", "d", "e", "f"}, got); d != "" || err != nil {
		t.Error(d, err)
	}
	chat, _ := toyChat(t, "{% for m in messages %}{{ m.content|tojson }}{% endfor %}", "", "")
	if text, err := chat.Render(msgs[1:2], RenderOptions{}); err != nil ||
		text != `[{"type": "image", "image": "a.png"}, {"type": "text", "text": "?"}, `+
			`{"type": "image_url", "image_url": {"url": "data:b"}}]` {
		t.Errorf("the template got %s, %v", text, err)
	}
	if _, err := Images([]Message{{Parts: json.RawMessage(`{}`)}}); err == nil {
		t.Error("parts that are no list were accepted")
	}
}

func TestMessagesInJSONReachTheTemplateAsApplyChatTemplatePassesThem(t *testing.T) {
	chat, _ := toyChat(t, "{{ messages|tojson }}", "", "")
	for given, want := range map[string]string{
		`[{"content":null,"role":"a","tool_calls":[{"function":{"arguments":"{\"a\":1}","name":null}}]}]`: `[{"role": "a", ` +
			`"tool_calls": [{"function": {"arguments": "{\"a\":1}", "name": null}}]}]`,
		`[{"role":"a","name":"","reasoning":"r","content":"<c>"}]`: `[{"thinking": "r", "role": "a", "name": "", "reasoning": "r", ` +
			`"content": "<c>", "reasoning_content": "r"}]`,
		`[{"reasoning_content":"r","thinking":"t"}]`: `[{"thinking": "t", "reasoning_content": "r"}]`,
		`[{"role":"a","role":"b"}]`:                  `[{"role": "b"}]`,
		`[{"content":[{"type":"image_url","image_url":"u"},{"z":1,"y":2}]}]`: `[{"content": [{"type": "image_url", ` +
			`"image_url": "u"}, {"z": 1, "y": 2}]}]`,
	} {
		if got, err := chat.RenderJSON(json.RawMessage(given), RenderOptions{}); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", given, got, err, want)
		}
	}
	for _, bad := range []string{``, `{}`, `[]`, `null`, `["a"]`, `[null]`, `[{]`} {
		if got, err := chat.RenderJSON(json.RawMessage(bad), RenderOptions{}); err == nil {
			t.Errorf("%s was rendered as %s", bad, got)
		}
	}
}
