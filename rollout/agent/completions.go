package agent

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

// completions is OpenAI's API of chat completions and, where text is, the older one that continues a text. In a stream a choice with
// logprobs comes whole.
type completions struct {
	*ask
	text      bool
	given     json.RawMessage // prompt
	most      *int            // new name of max_tokens
	best      int             // of so many choices, n are given
	sounds    []string        // what the reply is to be in
	likeliest *int            // logprobs of the older API
	echo      bool
	suffix    string
	options   map[string]any
	format    map[string]any
	penalties [2]float64 // presence and frequency
	form      map[string]any
	forms     []any // of the choices
}

func (q *completions) keys() map[string]any {
	known := map[string]any{
		"model": &q.model, "max_tokens": &q.MaxTokens, "temperature": &q.Temperature, "top_p": &q.TopP, "logit_bias": &q.Bias, "n": &q.n,
		"stop": &q.stop, "seed": &q.seed, "stream": &q.stream, "stream_options": &q.options, "presence_penalty": &q.penalties[0],
		"frequency_penalty": &q.penalties[1],
	}
	if q.text {
		maps.Copy(known, map[string]any{"prompt": &q.given, "logprobs": &q.likeliest, "echo": &q.echo, "suffix": &q.suffix,
			"best_of": &q.best})
		return known
	}
	maps.Copy(known, map[string]any{
		"messages": &q.messages, "tools": &q.tools, "tool_choice": &q.calls, "max_completion_tokens": &q.most,
		"parallel_tool_calls": &q.parallel, "modalities": &q.sounds, "logprobs": &q.logprobs, "top_logprobs": &q.top,
		"response_format": &q.format,
	})
	return known
}

func (q *completions) read() error {
	q.MaxTokens = *cmp.Or(q.most, &q.MaxTokens)
	switch {
	case q.best > q.n:
		return bad("best_of: must not be above n: it is %d", q.best)
	case slices.ContainsFunc(q.sounds, func(s string) bool { return s != "text" }):
		return bad("modalities: must be text: it is %q", q.sounds)
	case q.penalties != [2]float64{}:
		return bad("presence_penalty, frequency_penalty: must be 0: it is %v", q.penalties)
	case q.format != nil && q.format["type"] != "text":
		return bad("response_format: must be text: it is %v", q.format["type"])
	case q.echo || q.suffix != "":
		return bad("echo, suffix: are not supported: leave them out")
	case !q.text:
		return nil
	}
	if q.logprobs = q.likeliest != nil; q.logprobs {
		q.top = *q.likeliest
	}
	var list []json.RawMessage
	if json.Unmarshal(q.given, &list) == nil && len(list) == 1 && strings.Trim(string(list[0][:1]), `"[`) == "" {
		q.given = list[0] // the only one
	}
	if json.Unmarshal(q.given, &q.prompt) == nil && q.prompt != "" {
		q.ids = q.s.chat.Encode(q.prompt)
	} else if err := json.Unmarshal(q.given, &q.ids); err != nil || len(q.ids) == 0 {
		return bad("prompt: must be a text or a list of token ids, one a request, and not empty")
	}
	return nil
}

func (q *completions) show(i int, m, sent multimodal.Message, r *Reply) {
	content := after(m.Content, sent.Content)
	fields := map[string]any{"content": content}
	if sent.Role == "" {
		fields["role"] = m.Role
	}
	if m.ToolCalls != nil {
		fields["tool_calls"] = m.ToolCalls
	}
	if text := after(m.Reasoning, sent.Reasoning); text != "" {
		fields["reasoning_content"] = text
	}
	form := map[string]any{"index": i, "logprobs": nil, "finish_reason": nil}
	if r != nil {
		if form["finish_reason"] = r.Finish; m.ToolCalls != nil && r.Finish == rollout.FinishStop {
			form["finish_reason"] = "tool_calls"
		}
		if q.logprobs {
			form["logprobs"] = q.logProbs(r)
		}
	}
	switch {
	case q.text:
		form["text"] = content
	case !q.stream:
		form["message"] = fields
	default:
		if form["delta"] = fields; m.ToolCalls != nil { // clients take a call for complete when the end, or another one, comes after it
			form["delta"] = map[string]any{}
			q.parts(i, fields, m.ToolCalls)
		}
	}
	if q.forms == nil {
		q.forms = make([]any, q.n)
	}
	if q.forms[i] = form; q.stream {
		q.send([]any{form}, nil)
	}
}

// parts sends what is left of choice i before its end, and each of the calls.
func (q *completions) parts(i int, fields map[string]any, list json.RawMessage) {
	var calls []any
	_ = json.Unmarshal(list, &calls) // which speech has made
	delete(fields, "tool_calls")
	deltas := []any{fields}
	for _, call := range calls {
		deltas = append(deltas, map[string]any{"tool_calls": []any{call}})
	}
	for _, delta := range deltas {
		q.send([]any{map[string]any{"index": i, "delta": delta, "finish_reason": nil}}, nil)
	}
}

// send writes an answer, or a chunk of one.
func (q *completions) send(choices []any, usage any) {
	if q.form == nil {
		id, object := "chatcmpl", "chat.completion"
		if q.text {
			id, object = "cmpl", "text_completion"
		} else if q.stream {
			object = "chat.completion.chunk"
		}
		q.form = map[string]any{"id": q.answerID(id + "-"), "object": object, "created": time.Now().Unix(),
			"model": cmp.Or(q.model, modelName)}
	}
	if q.form["choices"] = choices; usage != nil {
		q.form["usage"] = usage
	}
	event := ""
	if q.stream {
		event = "data"
	}
	q.write(event, q.form)
}

func (q *completions) end(failed error) {
	usage := map[string]any{"prompt_tokens": q.numPrompt, "completion_tokens": q.numNew, "total_tokens": q.numPrompt + q.numNew}
	switch {
	case failed != nil:
		_, form := failure(failed, false)
		q.write("data", form)
	case !q.stream:
		q.send(q.forms, usage)
	default:
		if q.options["include_usage"] == true {
			q.send([]any{}, usage)
		}
		q.write("data", json.RawMessage("[DONE]"))
	}
}

// logProbs are those of r's text, with the likeliest tokens where there are.
func (q *completions) logProbs(r *Reply) any {
	if !q.text {
		return map[string]any{"content": q.ask.logProbs(r), "refusal": nil}
	}
	tokens, logps, tops := []string{}, []float32{}, []any{}
	for _, p := range q.ask.logProbs(r) {
		top := map[string]float32{p.Token: p.LogProb}
		for _, t := range p.Top {
			top[t.Token] = t.LogProb
		}
		tokens, logps, tops = append(tokens, p.Token), append(logps, p.LogProb), append(tops, top)
	}
	return map[string]any{"tokens": tokens, "token_logprobs": logps, "top_logprobs": tops, "text_offset": nil}
}
