package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

const openThought, closeThought = "<think>", "</think>"

// speech is the text of a reply as it grows, and its form as a message.
type speech struct {
	text     strings.Builder
	decoder  *multimodal.Stream
	ends     []int32 // tokens that end a reply, which are no text
	given    int     // bytes of text that the reply was made to start with: no stop strings are looked for in these
	stops    []string
	thinking bool     // it starts within its thoughts
	thinks   bool     // thoughts at the start are set apart
	offered  []string // tools, calls of which are set apart where there are any
	forced   string   // the tool that the reply was made to call, whose name was given; "": none
	single   bool     // only the first call is shown
	style    multimodal.CallStyle
	id       uint64 // of which the ids of calls are made
}

// add takes the next token.
func (s *speech) add(g rollout.Generated) {
	if !slices.Contains(s.ends, g.ID()) {
		s.text.WriteString(s.decoder.Next(g.ID()))
	}
}

// message is the reply so far: of content and reasoning what will stay, come what may, until done says that the reply has ended.
func (s *speech) message(done bool) multimodal.Message {
	m := multimodal.Message{Role: "assistant"}
	if done {
		s.text.WriteString(s.decoder.Flush())
	}
	text := s.text.String()
	own := multimodal.Before(text[s.given:], done, s.stops...)
	m.Content = text[:s.given] + own
	if s.thinks {
		m.Reasoning, m.Content = s.thoughts(m.Content, done)
	}
	if s.offered != nil {
		m.Content, m.ToolCalls = s.toolCalls(m.Content, own, done)
	}
	return m
}

// thoughts takes those apart that text starts with. Line breaks around them belong to neither, as in chat templates.
func (s *speech) thoughts(text string, done bool) (reasoning, content string) {
	thought, opened := strings.CutPrefix(strings.TrimLeft(text, " \n"), openThought)
	switch {
	case !done && !opened && strings.HasPrefix(openThought, thought):
		return "", ""
	case opened || s.thinking:
		_, content, _ = strings.Cut(thought, closeThought)
		return strings.Trim(multimodal.Before(thought, done, closeThought), "\n"), strings.TrimLeft(content, "\n")
	}
	return "", text
}

// toolCalls takes calls out of text and gives them as the chat API does, with ids that the templates of Mistral's models accept. What the
// model said itself are the arguments of a call that was begun for it, also where they are cut off or no JSON.
func (s *speech) toolCalls(text, own string, done bool) (content string, list json.RawMessage) {
	content, calls := s.style.Cut(text, done)
	strange := func(c multimodal.ToolCall) bool { return !slices.Contains(s.offered, c.Name) }
	if s.style.Bare() && s.forced == "" && slices.ContainsFunc(calls, strange) { // JSON that is an answer
		return text, nil
	}
	if done && calls == nil && s.forced != "" {
		content, calls = "", []multimodal.ToolCall{{Name: s.forced, Arguments: strings.TrimSpace(own)}}
	}
	if s.single && len(calls) > 1 {
		calls = calls[:1]
	}
	forms := make([]any, len(calls))
	for i, c := range calls {
		form := callForm(fmt.Sprintf("%09x", (s.id+uint64(i))&(1<<36-1)), c.Name, c.Arguments)
		form["index"], forms[i] = i, form
	}
	if calls != nil {
		list, _ = json.Marshal(forms) // cannot fail
	}
	return content, list
}

// callForm is a call as OpenAI's chat completions have it.
func callForm(id, name, arguments string) map[string]any {
	return map[string]any{"id": id, "type": "function", "function": map[string]any{"name": name, "arguments": arguments}}
}

// block is a part of a reply for APIs that have it in parts: "thinking", "text" or a "call" of a tool.
type block struct{ kind, text, id, name string }

// blocks are the parts of m.
func blocks(m multimodal.Message, done bool) (list []block) {
	if m.Reasoning != "" {
		list = append(list, block{kind: "thinking", text: m.Reasoning})
	}
	if m.Content != "" {
		list = append(list, block{kind: "text", text: m.Content})
	}
	var calls []struct {
		ID       string
		Function struct{ Name, Arguments string }
	}
	_ = json.Unmarshal(m.ToolCalls, &calls) // which speech has made
	for _, c := range calls {
		list = append(list, block{"call", c.Function.Arguments, c.ID, c.Function.Name})
	}
	if list == nil && done {
		list = []block{{kind: "text"}}
	}
	return list
}

// flow is a reply in blocks, and turns their growth into events: block i does "start", "delta" by more text, or "stop".
type flow struct {
	blocks  []block
	reply   *Reply // nil until it is complete
	started bool   // a stream
	known   []block
	ended   int
}

// to makes events of what blocks have beyond those that are known.
func (f *flow) to(event func(what string, i int, b block, more string)) {
	for i, b := range f.blocks {
		if i == len(f.known) {
			f.known = append(f.known, block{})
			event("start", i, b, "")
		}
		if more := after(b.text, f.known[i].text); more != "" {
			event("delta", i, b, more)
		}
		if f.known[i] = b; f.ended == i && (f.reply != nil || i < len(f.blocks)-1) {
			f.ended++
			event("stop", i, b, "")
		}
	}
}

// logProb is a token's, as OpenAI's APIs have it.
type logProb struct {
	Token   string  `json:"token"`
	LogProb float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// logProbs are those of what r says, each with the likeliest tokens there, where they are known.
func (q *ask) logProbs(r *Reply) []chosen {
	form := func(id int32, logp float32) (p logProb) {
		text := q.s.chat.Tokenizer().Bytes(id)
		p.Token, p.LogProb = strings.ToValidUTF8(string(text), "\uFFFD"), logp
		for _, b := range text {
			p.Bytes = append(p.Bytes, int(b))
		}
		return p
	}
	list := make([]chosen, len(r.Tokens)-r.NumStop)
	for i := range list {
		g, top := r.Tokens[i], []logProb{}
		if r.Top != nil {
			for _, t := range r.Top[i][:min(q.top, len(r.Top[i]))] {
				top = append(top, form(t.ID, t.LogP))
			}
		}
		list[i] = chosen{form(g.ID(), g.LogP()), top}
	}
	return list
}

// chosen is a token's log-prob, and those of others.
type chosen struct {
	logProb
	Top []logProb `json:"top_logprobs"`
}
