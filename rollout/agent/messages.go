package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

// messages is Anthropic's API of messages. Thoughts are blocks of their own where the request enables thinking, else they are not shown.
type messages struct {
	*ask
	given    []anthropicMessage
	system   anthropicBlocks
	offers   []anthropicTool
	thinking struct{ Type string }
	thread   any // a conversation that the server is to keep
	output   struct{ Format any }
	flow
}

type anthropicMessage struct {
	Role    string
	Content anthropicBlocks
}

type anthropicTool struct {
	Type, Name, Description string
	Schema                  json.RawMessage `json:"input_schema"`
}

type anthropicBlock struct {
	Type, Text, Thinking, ID, Name string
	Input                          json.RawMessage
	Source                         struct {
		Type, URL, Data string
		Media           string `json:"media_type"`
	}
	Call    string          `json:"tool_use_id"`
	Content json.RawMessage // of a tool's result: read once it is known to be one, so that depth costs nothing
}

// anthropicBlocks are a text, or a list of blocks.
type anthropicBlocks []anthropicBlock

func (b *anthropicBlocks) UnmarshalJSON(text []byte) error {
	*b = anthropicBlocks{{Type: "text"}}
	if text[0] == '"' {
		return json.Unmarshal(text, &(*b)[0].Text)
	}
	return json.Unmarshal(text, (*[]anthropicBlock)(b))
}

func (q *messages) keys() map[string]any {
	return map[string]any{
		"model": &q.model, "messages": &q.given, "system": &q.system, "max_tokens": &q.MaxTokens, "temperature": &q.Temperature,
		"top_p": &q.TopP, "top_k": &q.TopK, "stop_sequences": &q.stop, "stream": &q.stream, "tools": &q.offers, "tool_choice": &q.calls,
		"thinking": &q.thinking, "thread": &q.thread, "output_config": &q.output,
	}
}

func (q *messages) read() error {
	if q.thread != nil {
		return errThread
	} else if q.output.Format != nil {
		return bad("output_config.format: is not supported: leave it out")
	}
	var tools []any
	for _, t := range q.offers {
		if t.Type != "" && t.Type != "custom" {
			return bad("tools: one of type %q cannot be had here", t.Type)
		}
		tools = append(tools, toolForm(t.Name, t.Description, t.Schema))
	}
	if tools != nil {
		q.tools, _ = json.Marshal(tools) // which has been read: cannot fail
	}
	if len(q.system) > 0 {
		q.given = slices.Insert(q.given, 0, anthropicMessage{"system", q.system})
	}
	for i, m := range q.given {
		if err := q.add(m); err != nil {
			return fmt.Errorf("messages: %d: %w", i, err)
		}
	}
	if last := len(q.messages) - 1; last >= 0 && q.messages[last].Role == "assistant" && q.messages[last].ToolCalls == nil {
		if q.messages[last].Reasoning != "" {
			return bad("messages: the last one, which the reply is to go on from, has thoughts: leave them out")
		}
		q.prefill, q.messages = q.messages[last].Content, q.messages[:last]
	}
	return nil
}

// add takes a message: the results in it become messages of their own, as chat templates have them.
func (q *messages) add(given anthropicMessage) error {
	m, calls := multimodal.Message{Role: given.Role}, []any(nil)
	parts, pictures, text := []any{}, false, strings.Builder{}
	for _, b := range given.Content {
		switch {
		case b.Type == "text":
			text.WriteString(b.Text)
			parts = append(parts, map[string]any{"type": "text", "text": b.Text})
		case b.Type == "image":
			url := b.Source.URL
			if b.Source.Type == "base64" {
				url = "data:" + b.Source.Media + ";base64," + b.Source.Data
			}
			pictures, parts = true, append(parts, map[string]any{"type": "image", "image": url})
		case b.Type == "tool_use" && m.Role == "assistant":
			calls = append(calls, callForm(b.ID, b.Name, cmp.Or(string(b.Input), "{}")))
		case b.Type == "tool_result" && m.Role == "user":
			result := anthropicMessage{Role: "tool"}
			if b.Content != nil {
				if err := json.Unmarshal(b.Content, &result.Content); err != nil {
					return bad("tool_result: content: %w", err)
				}
			}
			if err := q.add(result); err != nil {
				return err
			}
			q.messages[len(q.messages)-1].ToolCallID = b.Call
		case b.Type == "thinking" && m.Role == "assistant":
			m.Reasoning += b.Thinking
		case b.Type == "redacted_thinking" && m.Role == "assistant":
		default:
			return bad("a block of type %q is not supported in a message of role %q", b.Type, m.Role)
		}
	}
	if m.Content = text.String(); calls != nil {
		m.ToolCalls, _ = json.Marshal(calls) // of texts: cannot fail
	}
	if pictures {
		m.Parts, _ = json.Marshal(parts)
	}
	if len(parts) > 0 || calls != nil || m.Role != "user" { // what had only results is said
		q.messages = append(q.messages, m)
	}
	return nil
}

func (q *messages) show(_ int, m, _ multimodal.Message, r *Reply) {
	if m.Content = after(m.Content, q.prefill); !slices.Contains([]string{"enabled", "adaptive"}, q.thinking.Type) {
		m.Reasoning = ""
	}
	q.blocks, q.reply = blocks(m, r != nil), r
	for i := range q.blocks {
		if b := &q.blocks[i]; b.kind == "call" && (!strings.HasPrefix(b.text, "{") || !json.Valid([]byte(b.text))) {
			b.text = "{}" // an input is an object, and the SDKs read no other
		}
	}
	if !q.stream {
		return
	}
	if !q.started {
		q.started = true
		q.event("message_start", map[string]any{"message": q.form(nil, nil)})
	}
	q.to(func(what string, i int, b block, more string) {
		form := map[string]any{"index": i}
		switch what {
		case "start":
			form["content_block"] = messageBlock(block{kind: b.kind, id: b.id, name: b.name})
		case "delta":
			form["delta"] = map[string]any{"type": b.kind + "_delta", b.kind: more}
			if b.kind == "call" {
				form["delta"] = map[string]any{"type": "input_json_delta", "partial_json": more}
			}
		}
		q.event("content_block_"+what, form)
	})
}

func (q *messages) end(failed error) {
	if failed != nil {
		_, form := failure(failed, true)
		q.write("error", form)
		return
	}
	reason, stop := q.stopped()
	if q.stream {
		q.event("message_delta", map[string]any{"delta": map[string]any{"stop_reason": reason, "stop_sequence": stop}, "usage": q.usage()})
		q.event("message_stop", map[string]any{})
		return
	}
	q.write("", q.form(reason, stop))
}

// stopped is why the reply ended, and by which of the request's strings.
func (q *messages) stopped() (reason, stop any) {
	ids, first := q.reply.ids(), -1
	if n := len(ids); n > 0 && slices.Contains(q.s.chat.StopIDs(), ids[n-1]) {
		ids = ids[:n-1] // is no text
	}
	text := q.s.chat.Decode(ids)
	for _, s := range q.stop {
		if i := strings.Index(text, s); i >= 0 && (first < 0 || i < first) {
			first, stop = i, s
		}
	}
	switch {
	case q.reply.Finish == rollout.FinishLength:
		return "max_tokens", nil
	case stop != nil:
		return "stop_sequence", stop
	case q.blocks[len(q.blocks)-1].kind == "call":
		return "tool_use", nil
	}
	return "end_turn", nil
}

func (q *messages) form(reason, stop any) map[string]any {
	content := []any{}
	for _, b := range q.blocks {
		if !q.stream {
			content = append(content, messageBlock(b))
		}
	}
	return map[string]any{"id": q.answerID("msg_"), "type": "message", "role": "assistant", "model": cmp.Or(q.model, modelName),
		"content": content, "stop_reason": reason, "stop_sequence": stop, "usage": q.usage()}
}

func (q *messages) usage() any {
	return map[string]any{"input_tokens": q.numPrompt, "output_tokens": q.numNew}
}

func (q *messages) event(name string, form map[string]any) {
	form["type"] = name
	q.write(name, form)
}

func messageBlock(b block) map[string]any {
	switch b.kind {
	case "call":
		return map[string]any{"type": "tool_use", "id": b.id, "name": b.name, "input": json.RawMessage(cmp.Or(b.text, "{}"))}
	case "thinking":
		return map[string]any{"type": "thinking", "thinking": b.text, "signature": ""}
	}
	return map[string]any{"type": "text", "text": b.text}
}

// countTokens answers how many tokens the model would be shown.
func (s *Server) countTokens(v *visit, w http.ResponseWriter, r *http.Request) error {
	q := s.newAsk(v, w, func(q *ask) dialect { return &messages{ask: q} })
	if _, err := q.take(r); err != nil {
		return err
	}
	p, err := v.prompt(q.call())
	if err != nil {
		return fmt.Errorf("%w: %w", errPrompt, err)
	}
	return send(w, "", map[string]any{"input_tokens": len(p.IDs)})
}
