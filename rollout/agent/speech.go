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
	thinking bool // it starts within its thoughts
	thinks   bool // thoughts at the start are set apart, and
	calls    bool // tool calls in the model's
	style    multimodal.CallStyle
	id       uint64 // of which their ids are made
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
	m.Content = text[:s.given] + multimodal.Before(text[s.given:], done, s.stops...)
	if s.thinks {
		m.Reasoning, m.Content = s.thoughts(m.Content, done)
	}
	if s.calls {
		m.Content, m.ToolCalls = s.toolCalls(m.Content, done)
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

// toolCalls takes calls out of text and gives them as the chat API does, with ids that the templates of Mistral's models accept.
func (s *speech) toolCalls(text string, done bool) (content string, list json.RawMessage) {
	content, calls := s.style.Cut(text, done)
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
