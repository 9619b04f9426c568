package multimodal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// ToolCall is a call of a function as a model wrote it. Arguments is the text of a JSON object.
type ToolCall struct{ Name, Arguments string }

// CallStyle is how a model writes tool calls: a mark, JSON objects with a name and arguments, one by one or in a list, and what ends them.
// With no mark, a reply is nothing but calls. Some models write the name between the mark and an object that is the arguments.
type CallStyle struct {
	open, link string // all that stands before the name, and between it and the arguments
	mark, end  string // around the calls
	named      bool   // the name stands before the object
}

const (
	blank     = " \t\r\n"
	between   = blank + ",;[]"   // calls
	maxName   = 1 << 10          // bytes; no brace is looked for behind it
	pythonTag = "<|python_tag|>" // which Llama 3 may put before a call, whatever its template says
)

// hermes is the style of Hermes and Qwen models, which many others know too.
var hermes = newCallStyle("<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "\n</tool_call>")

// newCallStyle makes a style of the text before and after a name, up to the arguments, and after the last brace.
func newCallStyle(open, link, tail string) CallStyle {
	mark, inObject := open, strings.LastIndex(open, "{")
	if inObject >= 0 {
		mark = open[:inObject]
	}
	mark = strings.TrimLeft(strings.TrimRight(mark, blank+"["), blank)
	return CallStyle{open, link, mark, strings.TrimRight(strings.TrimLeft(tail, blank+"]"), blank), inObject < 0}
}

// Calls is the style in which the template shows calls. Where it shows none, or none that could be read again, it is that of Hermes.
func (c *Chat) Calls() CallStyle { return c.calls() }

// findCalls compares renderings of small conversations, so that nothing is known of any model: a reply that calls a function, one of plain
// text, and none yet. What the template writes around plain text is no part of a call.
func (c *Chat) findCalls() CallStyle {
	const reply, name, key, tools = "areply", "afunction", "akey",
		`[{"type":"function","function":{"name":"f","description":"f","parameters":{"type":"object","properties":{}}}}]`
	var err error
	show := func(prompt bool, said ...Message) (text string) {
		if err == nil { // a template that loops does so once
			said = append([]Message{{Role: "user", Content: "x"}}, said...)
			text, err = c.Render(said, RenderOptions{AddGenerationPrompt: prompt, Tools: json.RawMessage(tools)})
		}
		return text
	}
	// Templates of Mistral's models want ids of nine letters and digits.
	call := fmt.Appendf(nil, `[{"id":"abcdefgh1","type":"function","function":{"name":%q,"arguments":{%q:"a"}}}]`, name, key)
	prompt, plain := show(true), show(false, Message{Role: "assistant", Content: reply})
	said := show(false, Message{Role: "assistant", ToolCalls: call})
	lead, tail, _ := strings.Cut(plain, reply)
	said, ok := strings.CutPrefix(strings.TrimSuffix(said, tail), lead)
	if !ok {
		said, ok = strings.CutPrefix(said, prompt)
	}
	open, after, _ := strings.Cut(said, name)
	link, _, _ := strings.Cut(after, "{")
	s := newCallStyle(open, link, after[strings.LastIndex(after, "}")+1:])
	content, calls := s.Cut(said, true)
	if !ok || strings.Contains(link, name) || s.named && s.mark == "" || content != "" || len(calls) != 1 ||
		calls[0].Name != name || !strings.Contains(calls[0].Arguments, key) {
		return hermes
	}
	return s
}

// Bare tells whether no mark shows a call, so that other JSON may look like one.
func (s CallStyle) Bare() bool { return s.mark == "" }

// Opening is what a reply starts with that calls the function of that name, up to the arguments, or any function, up to the name.
func (s CallStyle) Opening(name string) string {
	if name == "" {
		return s.open
	}
	return s.open + name + strings.TrimRight(s.link, " ") // models write this space and the brace as one token
}

// Cut takes the calls out of a reply, with the white space before them. What is no call with a name and an object of arguments stays text.
// Until done, there are no calls, and content is what stays text come what may.
func (s CallStyle) Cut(text string, done bool) (content string, calls []ToolCall) {
	switch {
	case s.mark == "":
		return s.cutBare(text, done)
	case !done:
		return strings.TrimRightFunc(Before(text, false, s.mark), unicode.IsSpace), nil
	}
	var kept strings.Builder
	for rest, marked := text, true; marked; {
		content, rest, marked = strings.Cut(rest, s.mark)
		kept.WriteString(content)
		list, after := s.read(rest)
		if after, ended := strings.CutPrefix(after, s.end); list != nil && (ended || after == "" || strings.HasPrefix(after, s.mark)) {
			calls, rest = append(calls, list...), after
		} else if marked {
			kept.WriteString(s.mark)
		}
	}
	if calls == nil {
		return text, nil
	}
	return strings.TrimRightFunc(kept.String(), unicode.IsSpace), calls
}

// cutBare is Cut where no mark shows a call: a reply is nothing but calls, or has none.
func (s CallStyle) cutBare(text string, done bool) (content string, calls []ToolCall) {
	bare := strings.TrimPrefix(strings.TrimSpace(text), pythonTag)
	if !done && (strings.HasPrefix(pythonTag, bare) || strings.Trim(bare[:1], between+"{") == "") {
		return "", nil
	} else if calls, rest := s.read(bare); strings.TrimPrefix(rest, s.end) == "" && calls != nil {
		return "", calls
	}
	return text, nil
}

// read takes calls off the start of text.
func (s CallStyle) read(text string) (calls []ToolCall, rest string) {
	for calls == nil || !s.named {
		var call struct {
			Name                  string
			Arguments, Parameters json.RawMessage
		}
		object, into := strings.TrimLeft(text, between), any(&call)
		if s.named {
			lead, _, _ := strings.Cut(text[:min(len(text), maxName)], "{")
			object, into = text[len(lead):], &call.Arguments
			call.Name = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(lead), strings.TrimSpace(s.link)))
		}
		dec := json.NewDecoder(strings.NewReader(object))
		if dec.Decode(into) != nil {
			break
		}
		arguments := cmp.Or(string(call.Arguments), string(call.Parameters))
		_ = json.Unmarshal([]byte(arguments), &arguments) // text that holds the object
		arguments = strings.TrimSpace(arguments)
		if len(strings.Fields(call.Name)) != 1 || !strings.HasPrefix(arguments, "{") || !json.Valid([]byte(arguments)) {
			break
		}
		calls, text = append(calls, ToolCall{call.Name, arguments}), object[dec.InputOffset():]
	}
	return calls, strings.TrimLeft(text, blank+";]")
}
