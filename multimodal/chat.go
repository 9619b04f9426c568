package multimodal

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/molt-go/molt/multimodal/jinja"
)

// ErrRewritten reports that a chat template shows earlier turns differently once later ones follow (it drops thoughts,
// say), so that no delta continues the ids generated so far: seal the segment and open a new one from Prompt.
var ErrRewritten = errors.New("the chat template rewrites earlier turns")

// Chat is a model's chat template with its tokenizer. It is safe for concurrent use.
type Chat struct {
	tok      *Tokenizer
	template *jinja.Template
	toolUse  *jinja.Template // for conversations with tools; nil: template
	vars     map[string]any  // for the template, whatever the conversation
	bos      int32           // in front of every prompt; noID: none
	end      int32           // the special token that the template puts after an assistant's message; noID: none
	stops    []int32
	thinks   bool
	markers  func() (markers, error)
	calls    func() CallStyle
}

// RenderOptions are what a template gets beside the messages.
type RenderOptions struct {
	AddGenerationPrompt bool            // end with the header of the next assistant message
	Tools               json.RawMessage // a list of tools as the OpenAI chat API has it; nil: none
	Extra               map[string]any  // further variables, such as enable_thinking; types: see package jinja
}

// NewChat parses a chat template. tokens are the texts of special tokens by the names that the template knows, such as
// bos_token; eos_token ends replies. With addBOS every prompt starts with bos_token exactly once, where there is one.
func NewChat(tok *Tokenizer, template string, tokens map[string]string, addBOS bool) (*Chat, error) {
	parsed, err := jinja.Parse(template)
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	c := &Chat{tok: tok, template: parsed, vars: map[string]any{"tools": nil, "documents": nil}, bos: noID, end: noID, stops: tok.EOS(),
		thinks: strings.Contains(template, "</think>")}
	for name, token := range tokens {
		c.vars[name] = token
		id, ok := tok.ID(token)
		switch {
		case name != "bos_token" && name != "eos_token":
		case !ok:
			return nil, fmt.Errorf("the vocabulary lacks the %s %q; give its text or none", name, token)
		case name == "eos_token":
			c.addStop(id)
		case addBOS:
			c.bos = id
		}
	}
	c.findEnd()
	c.markers, c.calls = sync.OnceValues(c.findMarkers), sync.OnceValue(c.findCalls)
	return c, nil
}

func (c *Chat) addStop(id int32) {
	if !slices.Contains(c.stops, id) {
		c.stops = append(c.stops, id)
	}
}

// findEnd looks at what the template writes after an assistant's message. A template that cannot render so plain a
// conversation has no end of turn of its own.
func (c *Chat) findEnd() {
	const reply = "@reply@"
	text, err := c.Render([]Message{{Role: "user", Content: "?"}, {Role: "assistant", Content: reply}}, RenderOptions{})
	if err != nil {
		return
	}
	_, tail, ok := strings.Cut(text, reply)
	if ids := c.tok.Encode(strings.TrimSpace(tail)); ok && len(ids) > 0 && c.endsTurn(ids[0]) {
		c.end = ids[0]
		c.addStop(c.end)
	}
}

func (c *Chat) endsTurn(id int32) bool { return c.tok.Special(id) || slices.Contains(c.stops, id) }

// Render is the text of a conversation. Arguments of tool calls, which clients of the chat API send as text, become the
// objects that templates expect.
func (c *Chat) Render(msgs []Message, opts RenderOptions) (string, error) {
	list := make([]json.RawMessage, len(msgs))
	for i, m := range msgs {
		var err error
		if list[i], err = m.forTemplate(); err != nil {
			return "", err
		}
	}
	return c.render(list, opts)
}

// RenderJSON is the text that transformers' apply_chat_template makes of a list of messages: they reach the template as they
// are given, with keys in their order and arguments that are text as text.
func (c *Chat) RenderJSON(messages json.RawMessage, opts RenderOptions) (string, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(messages, &list); err != nil {
		return "", fmt.Errorf("messages: give a list of messages: %w", err)
	}
	return c.render(list, opts)
}

func (c *Chat) render(list []json.RawMessage, opts RenderOptions) (string, error) {
	if len(list) == 0 {
		return "", errors.New("messages: there are none; give at least one")
	}
	for i, raw := range list {
		var err error
		if list[i], err = normalized(raw); err != nil {
			return "", fmt.Errorf("message %d: %w", i, err)
		}
	}
	messages, err := json.Marshal(list)
	if err != nil {
		return "", fmt.Errorf("messages: %w", err)
	}
	vars := maps.Clone(c.vars)
	vars["messages"], vars["add_generation_prompt"] = json.RawMessage(messages), opts.AddGenerationPrompt
	template := c.template
	if len(opts.Tools) > 0 {
		if err := json.Unmarshal(opts.Tools, new([]map[string]json.RawMessage)); err != nil {
			return "", fmt.Errorf("tools: give a list of objects: %w", err)
		}
		vars["tools"], template = opts.Tools, cmp.Or(c.toolUse, template)
	}
	maps.Copy(vars, opts.Extra)
	text, err := template.Render(vars)
	if err != nil {
		return "", fmt.Errorf("chat template: %w", err)
	}
	return text, nil
}

// Prompt gives the ids of a conversation up to and including the header of the next assistant message, whatever
// opts.AddGenerationPrompt says.
func (c *Chat) Prompt(msgs []Message, opts RenderOptions) ([]int32, error) {
	opts.AddGenerationPrompt = true
	text, err := c.Render(msgs, opts)
	if err != nil {
		return nil, err
	}
	return c.Encode(text), nil
}

// Encode gives the ids of a rendered conversation: no special tokens but those in it, and exactly one BOS in front where the
// tokenizer adds one.
func (c *Chat) Encode(text string) []int32 {
	ids := c.tok.Encode(text)
	if c.bos == noID {
		return ids
	}
	for len(ids) > 0 && ids[0] == c.bos {
		ids = ids[1:]
	}
	return slices.Concat([]int32{c.bos}, ids)
}

// Delta gives the ids that continue a generated reply: what the template writes after it, the next messages, and the
// header of the next assistant message. history is the conversation that the reply's prompt came from, with the same
// opts. stopped says that the reply's ids end with a stop token: the template's own is then left out. The error is
// ErrRewritten where the whole conversation does not start with the prompt and the reply.
func (c *Chat) Delta(history []Message, reply string, stopped bool, next []Message, opts RenderOptions) ([]int32, error) {
	opts.AddGenerationPrompt = true
	if stopped && c.end != noID {
		reply = strings.TrimSuffix(reply, c.tok.Token(c.end))
	}
	var err error
	show := func(msgs ...[]Message) (text string) {
		if err == nil {
			text, err = c.Render(slices.Concat(msgs...), opts)
		}
		return text
	}
	prompt, whole := show(history), show(history, []Message{{Role: "assistant", Content: reply}}, next)
	mark := "@reply@"
	for n := 0; strings.Contains(whole, mark); n++ {
		mark = "@reply" + strconv.Itoa(n) + "@"
	}
	marked := show(history, []Message{{Role: "assistant", Content: mark}}, next)
	if err != nil {
		return nil, err
	}
	_, tail, ok := strings.Cut(marked, mark)
	shown, started := strings.CutPrefix(whole, prompt)
	shown, ended := strings.CutSuffix(shown, tail)
	if !ok || !started || !ended || strings.TrimSpace(shown) != strings.TrimSpace(reply) {
		return nil, ErrRewritten
	}
	ids := c.tok.EncodeAfter(tail)
	if !stopped || c.end == noID {
		return ids, nil
	}
	closing := slices.IndexFunc(ids, c.endsTurn) // may stand behind white space
	if closing >= 0 && strings.TrimSpace(c.tok.Decode(ids[:closing])) == "" {
		ids = ids[closing+1:]
	}
	return ids, nil
}

// StopIDs are the ids that end a reply: end-of-sequence tokens and what the template puts after one. The slice is the caller's.
func (c *Chat) StopIDs() []int32 { return slices.Clone(c.stops) }

// OpenChat reads the tokenizer and the chat template of the model at path: a .gguf file or a Hugging Face folder.
func OpenChat(path string) (c *Chat, err error) {
	s, err := openSource(path)
	if err == nil {
		c, err = s.chat()
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", path, err)
	}
	return c, nil
}

func (s source) chat() (*Chat, error) {
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	templates := map[string]string{}
	for _, t := range config.Templates {
		templates[t.Name] = t.Template
	}
	for name, file := range templateFiles {
		if text, err := s(file); err == nil {
			templates[name] = string(text)
		} else if optional(err) != nil {
			return nil, err
		}
	}
	if templates["default"] == "" {
		if _, err := s("tokenizer.json"); err != nil { // the greater fault, which costs nothing to find
			_, err = s.tokenizer(config)
			return nil, err
		}
		return nil, errors.New("it has no chat template: take an instruction-tuned model")
	}
	tok, err := s.tokenizer(config)
	if err != nil {
		return nil, err
	}
	c, err := NewChat(tok, templates["default"], config.Tokens, config.AddBOS || slices.Contains(tok.before, tok.bos))
	if text := templates["tool_use"]; text != "" && err == nil {
		c.toolUse, err = jinja.Parse(text)
	}
	return c, err
}

// Thinks tells whether the template knows thoughts, between <think> and </think> at the start of a reply.
func (c *Chat) Thinks() bool { return c.thinks }

// Tokenizer is the chat's.
func (c *Chat) Tokenizer() *Tokenizer { return c.tok }

// Decode is the text of ids, special tokens included.
func (c *Chat) Decode(ids []int32) string { return c.tok.Decode(ids) }
