package multimodal

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Message is one turn of a conversation. Its JSON is that of the OpenAI chat API: content that is missing or null is
// the empty string, content in parts is the text of the parts (a part of another type than text is an error), and keys
// not listed here are kept in Extra and reach the chat template.
type Message struct {
	Role       string          `json:"role"`
	Content    string          `json:"content"`
	Reasoning  string          `json:"reasoning_content,omitempty"` // thoughts that the client keeps apart from the content
	Name       string          `json:"name,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
	ToolCalls  json.RawMessage `json:"tool_calls,omitempty"` // a list, as the API writes it

	Extra map[string]json.RawMessage `json:"-"`
}

// messageFields are the keys that Message has fields for.
var messageFields = []string{"role", "content", "reasoning_content", "name", "tool_call_id", "tool_calls"}

// UnmarshalJSON reads a message as the type describes it.
func (m *Message) UnmarshalJSON(raw []byte) error {
	type plain Message
	fields := struct {
		*plain
		Content content `json:"content"`
	}{plain: new(plain)}
	if err := errors.Join(json.Unmarshal(raw, &fields), json.Unmarshal(raw, &fields.Extra)); err != nil {
		return fmt.Errorf("message: %w", err)
	}
	*m = Message(*fields.plain)
	m.Content = string(fields.Content)
	maps.DeleteFunc(m.Extra, func(k string, _ json.RawMessage) bool { return slices.Contains(messageFields, k) })
	if len(m.Extra) == 0 {
		m.Extra = nil
	}
	if string(m.ToolCalls) == "null" {
		m.ToolCalls = nil
	}
	return nil
}

// MarshalJSON writes the fields in their order, then Extra by key.
func (m Message) MarshalJSON() ([]byte, error) {
	type plain Message
	out, err := json.Marshal(plain(m))
	if err != nil || len(m.Extra) == 0 {
		return out, err
	}
	extra, err := json.Marshal(m.Extra)
	if err != nil {
		return nil, err
	}
	return slices.Concat(out[:len(out)-1], []byte(","), extra[1:]), nil
}

// content is written as the API allows it: nothing, text, or parts of type text.
type content string

func (c *content) UnmarshalJSON(raw []byte) error {
	if json.Unmarshal(raw, (*string)(c)) == nil { // null leaves it empty
		return nil
	}
	var parts []struct{ Type, Text string }
	if err := json.Unmarshal(raw, &parts); err != nil {
		return fmt.Errorf("content: %w", err)
	}
	for _, p := range parts {
		if p.Type != "text" {
			return fmt.Errorf("content: parts of type %q are not supported; send parts of type \"text\"", p.Type)
		}
		*c += content(p.Text)
	}
	return nil
}

// toolCall is a tool call whose arguments are an object.
type toolCall struct {
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// forTemplate is the message as chat templates expect it: arguments of tool calls, which the API carries as text, are
// objects. Text that is no JSON object, which models do produce, stays text.
func (m Message) forTemplate() (json.RawMessage, error) {
	if m.ToolCalls == nil {
		return m.MarshalJSON()
	}
	var calls []json.RawMessage
	if err := json.Unmarshal(m.ToolCalls, &calls); err != nil {
		return nil, fmt.Errorf("message with role %q: tool_calls: %w", m.Role, err)
	}
	for i, raw := range calls {
		var call toolCall
		var arguments string
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &call) != nil || json.Unmarshal(call.Function.Arguments, &arguments) != nil ||
			json.Unmarshal([]byte(arguments), &object) != nil || object == nil {
			continue // not the API's form: as it is
		}
		call.Function.Arguments = []byte(arguments)
		calls[i], _ = json.Marshal(call) // cannot fail: the parts have just been read
	}
	m.ToolCalls, _ = json.Marshal(calls)
	return m.MarshalJSON()
}
