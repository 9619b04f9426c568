package multimodal

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Message is one turn of a conversation, in the JSON of the OpenAI chat API: content that is missing or null is the empty
// string, content in parts is the text of the parts, and keys not listed here are kept in Extra and reach the chat
// template. Messages that must reach it exactly as they were given go to Chat.RenderJSON instead.
type Message struct {
	Role       string          `json:"role"`
	Content    string          `json:"content"`
	Parts      json.RawMessage `json:"-"`                           // the content as given, where not all of it is text
	Reasoning  string          `json:"reasoning_content,omitempty"` // thoughts that the client keeps apart from the content
	Name       string          `json:"name,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
	ToolCalls  json.RawMessage `json:"tool_calls,omitempty"` // a list, as the API writes it

	Extra map[string]json.RawMessage `json:"-"`
}

// UnmarshalJSON reads a message as the type describes it.
func (m *Message) UnmarshalJSON(raw []byte) error {
	type plain Message
	var calls []json.RawMessage
	fields := struct {
		*plain
		Content json.RawMessage `json:"content"`
	}{plain: new(plain)}
	if err := errors.Join(json.Unmarshal(raw, &fields), json.Unmarshal(raw, &fields.Extra)); err != nil {
		return fmt.Errorf("message: %w", err)
	}
	*m = Message(*fields.plain)
	if fields.Content != nil && json.Unmarshal(fields.Content, &m.Content) != nil { // null leaves it empty
		parts, err := readParts(fields.Content)
		if err != nil {
			return fmt.Errorf("message: %w", err)
		}
		var text strings.Builder
		for _, p := range parts {
			text.WriteString(p.Text)
			if p.Type != "text" {
				m.Parts = fields.Content
			}
		}
		m.Content = text.String()
	}
	for _, key := range []string{"role", "content", "reasoning_content", "name", "tool_call_id", "tool_calls"} {
		delete(m.Extra, key) // it has a field
	}
	if len(m.Extra) == 0 {
		m.Extra = nil
	}
	if json.Unmarshal(m.ToolCalls, &calls) == nil && len(calls) == 0 { // null, or an empty list
		m.ToolCalls = nil
	}
	return nil
}

// MarshalJSON writes the fields in their order, then Extra by key.
func (m Message) MarshalJSON() ([]byte, error) {
	type plain Message
	var content any = m.Content
	if m.Parts != nil {
		content = m.Parts
	}
	out, err := json.Marshal(struct {
		Role    string `json:"role"`
		Content any    `json:"content"`
		plain
	}{m.Role, content, plain(m)})
	if err != nil || len(m.Extra) == 0 {
		return out, err
	}
	extra, err := json.Marshal(m.Extra)
	if err != nil {
		return nil, err
	}
	return slices.Concat(out[:len(out)-1], []byte(","), extra[1:]), nil
}

// part is an element of a message's content.
type part struct {
	Type, Text               string
	Image, URL, Path, Base64 string          // of type image
	ImageURL                 json.RawMessage `json:"image_url"` // of the type of that name: text or {"url": text}
}

func readParts(content json.RawMessage) ([]part, error) {
	var parts []part
	if err := json.Unmarshal(content, &parts); err != nil {
		return nil, fmt.Errorf("content: give text or a list of parts: %w", err)
	}
	for _, p := range parts {
		if !slices.Contains([]string{"text", "image", "image_url"}, p.Type) {
			return nil, fmt.Errorf("content: parts of type %q are not supported; send text, image or image_url", p.Type)
		}
	}
	return parts, nil
}

// Images lists where the images of a conversation are, in their order: paths, URLs, data URLs or base64; "" for a part
// that does not say it.
func Images(msgs []Message) ([]string, error) {
	var sources []string
	for _, m := range msgs {
		if m.Parts == nil {
			continue
		}
		parts, err := readParts(m.Parts)
		if err != nil {
			return nil, fmt.Errorf("message with role %q: %w", m.Role, err)
		}
		for _, p := range parts {
			if p.Type != "text" {
				sources = append(sources, cmp.Or(p.Image, p.URL, p.Path, p.Base64, p.imageURL()))
			}
		}
	}
	return sources, nil
}

// Illustrate gives the image parts of a conversation that do not say where their image is the sources in turn. Those that are left
// stand before the text of the last user message. msgs stay as they are.
func Illustrate(msgs []Message, sources ...string) ([]Message, error) {
	msgs = slices.Clone(msgs)
	type object = map[string]any
	image := func(source string) object { return object{"type": "image", "image": source} }
	for i := range msgs {
		var parts []object
		if msgs[i].Parts == nil || json.Unmarshal(msgs[i].Parts, &parts) != nil { // which Images then says
			continue
		}
		for k, p := range parts {
			if kind, _ := p["type"].(string); strings.HasPrefix(kind, "image") && len(p) == 1 && len(sources) > 0 {
				parts[k], sources = image(sources[0]), sources[1:]
			}
		}
		msgs[i].Parts, _ = json.Marshal(parts) // which were read: cannot fail
	}
	if len(sources) == 0 {
		return msgs, nil
	}
	i := len(msgs) - 1
	for i >= 0 && msgs[i].Role != "user" {
		i--
	}
	if i < 0 {
		return nil, fmt.Errorf("%d images have no place: there is no user message", len(sources))
	}
	parts := []any{}
	for _, source := range sources {
		parts = append(parts, image(source))
	}
	var own []any
	if json.Unmarshal(msgs[i].Parts, &own) != nil { // it is all text
		own = []any{object{"type": "text", "text": msgs[i].Content}}
	}
	msgs[i].Parts, _ = json.Marshal(append(parts, own...))
	return msgs, nil
}

func (p part) imageURL() (url string) {
	var object struct{ URL string }
	if json.Unmarshal(p.ImageURL, &url) != nil && json.Unmarshal(p.ImageURL, &object) == nil {
		url = object.URL
	}
	return url
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

// normalized is a message as apply_chat_template changes it: without keys whose value is null, and with its thoughts under
// reasoning_content and thinking whatever they were called. Keys keep their order; of equal ones the last counts.
func normalized(raw json.RawMessage) (json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, fmt.Errorf("a message must be a JSON object, not %.40s", raw)
	}
	var pairs []string
	fields := map[string]json.RawMessage{}
	add := func(key string, value json.RawMessage) {
		quoted, _ := json.Marshal(key) // of a text: cannot fail
		pairs, fields[key] = append(pairs, string(quoted)+":"+string(value)), value
	}
	for dec.More() {
		key, _ := dec.Token()
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		} else if string(value) != "null" {
			add(key.(string), value)
		}
	}
	for _, key := range []string{"reasoning_content", "thinking", "reasoning"} {
		if thoughts := fields[key]; thoughts != nil {
			pairs = slices.Insert(pairs, 0, `"thinking":`+string(thoughts))
			add("reasoning_content", thoughts)
			break
		}
	}
	return json.RawMessage("{" + strings.Join(pairs, ",") + "}"), nil
}
