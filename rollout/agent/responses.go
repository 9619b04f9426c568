package agent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

// responses is OpenAI's API of responses. A response is known by its id until the rollout ends.
type responses struct {
	*ask
	input        json.RawMessage
	items        []responseItem
	instructions string
	previous     string
	offers       []responseTool
	format       struct{ Format map[string]any }
	flags        struct{ background, conversation any }
	include      []string
	number       int // of events
	created      int64
	said         multimodal.Message
	flow
}

type responseTool struct {
	Type, Name, Description string
	Parameters              json.RawMessage
}

// responseItem is a message, a call, what came of one, or thoughts.
type responseItem struct {
	ID, Type, Role, Name, Arguments string
	CallID                          string `json:"call_id"`
	Content, Output                 responseParts
}

// responseParts are a text, or a list of parts.
type responseParts []struct {
	Type, Text, Refusal string
	ImageURL            string `json:"image_url"`
}

func (p *responseParts) UnmarshalJSON(text []byte) error {
	type list responseParts
	if text[0] != '"' {
		return json.Unmarshal(text, (*list)(p))
	}
	*p = make(responseParts, 1)
	(*p)[0].Type = "input_text"
	return json.Unmarshal(text, &(*p)[0].Text)
}

// content are the parts as the chat template's messages have them; image says that not all are text.
func (p responseParts) content() (text string, parts json.RawMessage, err error) {
	var list []any
	var all strings.Builder
	image := false
	for _, part := range p {
		switch part.Type {
		case "input_text", "output_text", "reasoning_text", "text", "refusal":
			all.WriteString(part.Text + part.Refusal)
			list = append(list, map[string]any{"type": "text", "text": part.Text + part.Refusal})
		case "input_image":
			image, list = true, append(list, map[string]any{"type": "image", "image": part.ImageURL})
		default:
			return "", nil, bad("a part of type %q is not supported", part.Type)
		}
	}
	if image {
		parts, _ = json.Marshal(list) // of texts: cannot fail
	}
	return all.String(), parts, nil
}

func (q *responses) keys() map[string]any {
	return map[string]any{
		"model": &q.model, "input": &q.input, "instructions": &q.instructions, "previous_response_id": &q.previous, "tools": &q.offers,
		"tool_choice": &q.calls, "max_output_tokens": &q.MaxTokens, "temperature": &q.Temperature, "top_p": &q.TopP, "stream": &q.stream,
		"text": &q.format, "background": &q.flags.background, "conversation": &q.flags.conversation, "top_logprobs": &q.top,
		"parallel_tool_calls": &q.parallel, "include": &q.include,
	}
}

func (q *responses) read() error {
	q.created = time.Now().Unix()
	q.logprobs = q.top > 0 || slices.Contains(q.include, "message.output_text.logprobs")
	switch kind := q.format.Format["type"]; {
	case kind != nil && kind != "text":
		return bad("text.format: must be text: it is %v", kind)
	case q.flags.conversation != nil || q.flags.background == true:
		return bad("conversation, background: are not supported: leave them out")
	}
	var tools []any
	for _, t := range q.offers {
		if t.Type != "function" {
			return bad("tools: one of type %q cannot be had here", t.Type)
		}
		tools = append(tools, toolForm(t.Name, t.Description, t.Parameters))
	}
	if tools != nil {
		q.tools, _ = json.Marshal(tools) // which has been read: cannot fail
	}
	var text string
	if json.Unmarshal(q.input, &text) == nil && string(q.input) != "null" {
		q.items = []responseItem{{Role: "user", Content: responseParts{{Type: "input_text", Text: text}}}}
	} else if err := json.Unmarshal(q.input, &q.items); err != nil || q.items == nil {
		return bad("input: must be a text or a list of items: %w", cmp.Or(err, errors.New("there is none")))
	}
	if q.previous != "" {
		q.v.mu.Lock()
		earlier, ok := q.v.responses[q.previous]
		q.v.mu.Unlock()
		if !ok {
			return bad("previous_response_id: there is no %q in this rollout", q.previous)
		}
		q.messages = slices.Clone(earlier)
		last := &q.messages[len(earlier)-1]
		last.ToolCalls = slices.Clone(last.ToolCalls) // which may get more
	}
	for i, item := range q.items {
		if err := q.add(item); err != nil {
			return fmt.Errorf("input: %d: %w", i, err)
		}
	}
	if q.instructions != "" {
		q.messages = slices.Insert(q.messages, 0, multimodal.Message{Role: "system", Content: q.instructions})
	}
	return nil
}

// add takes an item. Those that came of one reply become one message again.
func (q *responses) add(item responseItem) error {
	text, parts, err := item.Content.content()
	last := &multimodal.Message{}
	if n := len(q.messages); n > 0 {
		last = &q.messages[n-1]
	}
	add := func(m multimodal.Message) { q.messages = append(q.messages, m) }
	bare := last.Role == "assistant" && last.Content == "" && last.ToolCalls == nil // thoughts alone
	switch kind := cmp.Or(item.Type, "message"); {
	case kind == "message" && item.Role == "assistant" && bare:
		last.Content = text
	case kind == "message":
		add(multimodal.Message{Role: item.Role, Content: text, Parts: parts})
	case kind == "item_reference":
		q.v.mu.Lock()
		known, ok := q.v.items[item.ID]
		q.v.mu.Unlock()
		if !ok {
			return bad("there is no item %.64q in this rollout", item.ID)
		}
		return q.add(known)
	case kind == "reasoning" && text == "": // a summary, or secret
	case kind == "reasoning":
		add(multimodal.Message{Role: "assistant", Reasoning: text})
	case kind == "function_call_output":
		if text, parts, err = item.Output.content(); err == nil {
			add(multimodal.Message{Role: "tool", ToolCallID: item.CallID, Content: text, Parts: parts})
		}
	case kind == "function_call":
		if last.Role != "assistant" {
			add(multimodal.Message{Role: "assistant"})
			last = &q.messages[len(q.messages)-1]
		}
		form, _ := json.Marshal(callForm(item.CallID, item.Name, item.Arguments)) // of texts: cannot fail
		if list, _ := bytes.CutSuffix(last.ToolCalls, []byte("]")); len(list) > 1 {
			last.ToolCalls = append(append(append(list, ','), form...), ']') // in place: there may be many
		} else {
			last.ToolCalls = slices.Concat([]byte("["), form, []byte("]"))
		}
	default:
		return bad("an item of type %q is not supported", kind)
	}
	return err
}

func (q *responses) show(_ int, m, _ multimodal.Message, r *Reply) {
	if q.blocks, q.reply, q.said = blocks(m, r != nil), r, m; !q.stream {
		return
	}
	if !q.started {
		q.started = true
		for _, name := range []string{"created", "in_progress"} {
			q.event(name, map[string]any{"response": q.form("in_progress", nil)})
		}
	}
	q.to(q.tell)
}

// tell is the event of what block i does.
func (q *responses) tell(what string, i int, b block, more string) {
	id, empty := q.itemID(i, b), block{b.kind, "", b.id, b.name}
	event := func(name string, fields map[string]any) {
		maps.Copy(fields, map[string]any{"output_index": i, "item_id": id})
		if b.kind != "call" {
			fields["content_index"] = 0
		}
		q.event(name, fields)
	}
	kind := map[string]string{"text": "output_text", "thinking": "reasoning_text", "call": "function_call_arguments"}[b.kind]
	switch what {
	case "start":
		item := q.item(i, empty)
		item["status"] = "in_progress"
		if b.kind == "text" {
			item["content"] = []any{} // the part comes by itself
		}
		q.event("output_item.added", map[string]any{"output_index": i, "item": item})
		if b.kind == "text" {
			event("content_part.added", map[string]any{"part": q.textPart("")})
		}
	case "delta":
		event(kind+".delta", map[string]any{"delta": more, "logprobs": []any{}})
	case "stop":
		part := q.textPart(b.text)
		event(kind+".done", map[string]any{"text": b.text, "arguments": b.text, "name": b.name, "logprobs": part["logprobs"]})
		if b.kind == "text" {
			event("content_part.done", map[string]any{"part": part})
		}
		q.event("output_item.done", map[string]any{"output_index": i, "item": q.item(i, b)})
	}
}

func (q *responses) end(failed error) {
	status, reason := "completed", any(nil)
	switch {
	case failed != nil:
		response := q.form("failed", nil)
		response["error"] = map[string]any{"code": "server_error", "message": brief(failed).Error()}
		q.event("failed", map[string]any{"response": response})
		return
	case q.reply.Finish == rollout.FinishLength:
		status, reason = "incomplete", map[string]any{"reason": "max_output_tokens"}
	}
	earlier := q.messages
	if q.instructions != "" {
		earlier = earlier[1:]
	}
	q.v.mu.Lock()
	q.v.responses[q.answerID("resp_")] = append(slices.Clip(earlier), q.said)
	for i, b := range q.blocks {
		item := responseItem{Type: "function_call", CallID: b.id, Name: b.name, Arguments: b.text}
		if b.kind == "text" {
			item = responseItem{Role: "assistant", Content: responseParts{{Type: "output_text", Text: b.text}}}
		} else if b.kind == "thinking" {
			item = responseItem{Type: "reasoning", Content: responseParts{{Type: "reasoning_text", Text: b.text}}}
		}
		q.v.items[q.itemID(i, b)] = item
	}
	q.v.mu.Unlock()
	if form := q.form(status, reason); q.stream {
		q.event(status, map[string]any{"response": form})
	} else {
		q.write("", form)
	}
}

// form is the response so far.
func (q *responses) form(status string, reason any) map[string]any {
	output, usage, previous := []any{}, any(nil), any(nil)
	if q.previous != "" {
		previous = q.previous
	}
	if status != "in_progress" {
		for i, b := range q.blocks {
			output = append(output, q.item(i, b))
		}
		usage = map[string]any{"input_tokens": q.numPrompt, "output_tokens": q.numNew, "total_tokens": q.numPrompt + q.numNew,
			"input_tokens_details":  map[string]any{"cached_tokens": 0, "cache_write_tokens": 0},
			"output_tokens_details": map[string]any{"reasoning_tokens": 0}}
	}
	return map[string]any{"id": q.answerID("resp_"), "object": "response", "created_at": q.created, "status": status, "error": nil,
		"incomplete_details": reason, "model": cmp.Or(q.model, modelName), "output": output, "usage": usage,
		"previous_response_id": previous, "parallel_tool_calls": q.parallel == nil || *q.parallel, "instructions": nil,
		"metadata": map[string]any{}, "temperature": q.Temperature, "top_p": q.TopP, "tools": []any{}, "tool_choice": "auto",
		"text": map[string]any{"format": map[string]any{"type": "text"}}}
}

func (q *responses) itemID(i int, b block) string {
	return q.answerID(map[string]string{"text": "msg_", "thinking": "rs_", "call": "fc_"}[b.kind]) + fmt.Sprint(i)
}

// item is block i as an item of the output.
func (q *responses) item(i int, b block) map[string]any {
	item := map[string]any{"id": q.itemID(i, b), "status": "completed"}
	if last := i == len(q.blocks)-1; last && (q.reply == nil || q.reply.Finish == rollout.FinishLength) {
		item["status"] = "incomplete"
	}
	switch b.kind {
	case "text":
		item["type"], item["role"], item["content"] = "message", "assistant", []any{q.textPart(b.text)}
	case "thinking":
		item["content"] = []any{map[string]any{"type": "reasoning_text", "text": b.text}}
		item["type"], item["summary"] = "reasoning", []any{}
	case "call":
		item["type"], item["call_id"], item["name"], item["arguments"] = "function_call", b.id, b.name, b.text
	}
	return item
}

func (q *responses) textPart(text string) map[string]any {
	part := map[string]any{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
	if q.logprobs && q.reply != nil && text != "" {
		part["logprobs"] = q.logProbs(q.reply)
	}
	return part
}

// event sends an event of a response; all have a number.
func (q *responses) event(name string, form map[string]any) {
	form["type"], form["sequence_number"] = "response."+name, q.number
	q.number++
	q.write("response."+name, form)
}
