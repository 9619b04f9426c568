package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

const openThought, closeThought, openCall = "<think>", "</think>", "<tool_call>"

// speech is the text of a reply as it grows, and its form as a message.
type speech struct {
	text     strings.Builder
	decoder  *multimodal.Stream
	ends     []int32 // tokens that end a reply, which are no text
	stops    []string
	thinking bool // it starts within its thoughts
	thinks   bool // thoughts at the start are set apart, and
	calls    bool // tool calls, whose ids start with
	id       uint64
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
	m.Content = before(s.text.String(), done, s.stops...)
	if s.thinks {
		m.Reasoning, m.Content = s.thoughts(m.Content, done)
	}
	if s.calls {
		m.Content, m.ToolCalls = s.toolCalls(m.Content, done)
	}
	return m
}

// before is text up to the first of the marks. While more may come, it lacks an end that could be the start of one.
func before(text string, done bool, marks ...string) string {
	end := len(text)
	for _, mark := range marks {
		if i := strings.Index(text, mark); i >= 0 {
			end, done = min(end, i), true
		}
	}
	for _, mark := range marks {
		for n := min(len(mark)-1, len(text)); n > 0 && !done; n-- {
			if strings.HasSuffix(text, mark[:n]) {
				end = min(end, len(text)-n)
			}
		}
	}
	return text[:end]
}

// thoughts takes those apart that text starts with. Line breaks around them belong to neither, as in chat templates.
func (s *speech) thoughts(text string, done bool) (reasoning, content string) {
	thought, opened := strings.CutPrefix(strings.TrimLeft(text, " \n"), openThought)
	switch {
	case !done && !opened && strings.HasPrefix(openThought, thought):
		return "", ""
	case opened || s.thinking:
		_, content, _ = strings.Cut(thought, closeThought)
		return strings.Trim(before(thought, done, closeThought), "\n"), strings.TrimLeft(content, "\n")
	}
	return "", text
}

var toolCall = regexp.MustCompile("(?s)" + openCall + "(.*?)</tool_call>")

// toolCalls takes calls as Hermes and Qwen models write them out of text, with the space before them. What is no call with a name and an
// object of arguments stays text.
func (s *speech) toolCalls(text string, done bool) (content string, calls json.RawMessage) {
	if !done {
		return strings.TrimRightFunc(before(text, false, openCall), unicode.IsSpace), nil
	}
	var list []any
	content = toolCall.ReplaceAllStringFunc(text, func(block string) string {
		var call struct {
			Name      string
			Arguments json.RawMessage
		}
		object := []byte(toolCall.FindStringSubmatch(block)[1])
		if json.Unmarshal(object, &call) != nil || call.Name == "" || !bytes.HasPrefix(call.Arguments, []byte("{")) {
			return block
		}
		list = append(list, map[string]any{"index": len(list), "id": fmt.Sprintf("call_%016x_%d", s.id, len(list)), "type": "function",
			"function": map[string]any{"name": call.Name, "arguments": string(call.Arguments)}})
		return ""
	})
	if list == nil {
		return text, nil
	}
	calls, _ = json.Marshal(list) // cannot fail
	return strings.TrimRightFunc(content, unicode.IsSpace), calls
}
