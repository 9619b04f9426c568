package agent

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

// ErrNoRoom says that a prompt leaves no token of the context to reply with.
var ErrNoRoom = errors.New("the conversation fills the model's context")

// errPrompt says that the conversation is at fault, not the generator.
var errPrompt = errors.New("the conversation cannot be shown to the model")

// Session stitches the model calls of one rollout into trajectories. Each call brings a whole conversation. Where that goes on from a
// recorded reply, the prompt is the ids up to there, as the model was shown them and said them, and the ids of the template's delta; the
// segment grows. Where the reply has been gone on from already, the call is a branch. Where the client has edited, dropped or summarised
// what was said, or the template shows it otherwise, a new segment starts from the full render. Calls may run at the same time; one that
// fails leaves the session as it was.
type Session struct {
	chat    Chat
	gen     rollout.Generator
	context int // positions that the model has

	mu      sync.Mutex
	turns   map[digest]*turn // by the conversation that ends with the reply
	texts   []*turn          // without a template
	replies map[digest]*Reply
	running map[digest]chan struct{} // closed when the call with that key ends
	samples []*rollout.Trajectory
	closed  bool
}

type digest [sha256.Size]byte

// turn is a recorded reply.
type turn struct {
	segment *rollout.Trajectory
	length  int                  // of the segment up to the reply's end; without a template, up to its stop
	history []multimodal.Message // that it answers, or
	text    string               // that a client goes on from without a template
	reply   *Reply
}

// Call is one request to the model.
type Call struct {
	Messages []multimodal.Message
	Options  multimodal.RenderOptions
	// IDs are a prompt without a template, in place of Messages. Text is what they stand for, where the client gave text; Encode then
	// encodes what follows other text.
	IDs      []int32
	Text     string
	Encode   func(text string) []int32
	Sampling rollout.Sampling // MaxTokens is cut to the room that the context leaves; 0: all of it
	Opening  []int32          // ids that the reply is made to start with; not trained on
	Stop     rollout.Matcher
	OnPrompt func(tokens int) // that the model sees, before it replies
	OnToken  func(rollout.Generated)
	// Message is the reply as the client gets it, who will send it back as part of a later conversation; nil: its text as content.
	Message func(text string) multimodal.Message
	// Key stands for all that the client asked for; Again says that it asks once more for what it may not have got. Then, and where a reply
	// was marked as Lost, the recorded reply is given again and nothing is generated. The zero Key is never the same.
	Key   [sha256.Size]byte
	Again bool
}

// Reply is what came of a Call.
type Reply struct {
	rollout.Completion
	Text    string // what the model said, from the opening on, without the tokens of its stop
	Message multimodal.Message
	Prompt  int // tokens before the reply, the opening included
	session *Session
	lost    bool
}

// NewSession starts the record of a rollout.
func NewSession(chat Chat, gen rollout.Generator, context int) *Session {
	return &Session{chat: chat, gen: gen, context: context, turns: map[digest]*turn{}, replies: map[digest]*Reply{},
		running: map[digest]chan struct{}{}}
}

// Call asks the model for a reply and records it.
func (s *Session) Call(ctx context.Context, c Call) (*Reply, error) {
	keyed := c.Key != digest{}
	s.mu.Lock()
	for keyed && s.running[c.Key] != nil && c.Again {
		wait := s.running[c.Key]
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		s.mu.Lock()
	}
	if s.closed {
		s.mu.Unlock()
		return nil, fmt.Errorf("%w: the session is closed: its rollout has ended", errPrompt)
	}
	if r := s.replies[c.Key]; keyed && r != nil && (c.Again || r.lost) {
		r.lost = false
		s.mu.Unlock()
		return r, nil
	}
	if done := make(chan struct{}); keyed && s.running[c.Key] == nil {
		s.running[c.Key] = done
		defer func() {
			s.mu.Lock()
			delete(s.running, c.Key)
			s.mu.Unlock()
			close(done)
		}()
	}
	s.mu.Unlock()
	at, ids, err := s.prompt(c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPrompt, err)
	}
	room := s.context - len(ids)
	if room <= 0 {
		s.showOnly(ids)
		return nil, fmt.Errorf("%w of %d tokens: the prompt has %d", ErrNoRoom, s.context, len(ids))
	}
	if c.Sampling.MaxTokens <= 0 || c.Sampling.MaxTokens > room {
		c.Sampling.MaxTokens = room
	}
	c.Sampling.StopIDs = slices.Concat(c.Sampling.StopIDs, s.chat.StopIDs())
	if c.OnPrompt != nil {
		c.OnPrompt(len(ids))
	}
	done, err := s.gen.Generate(ctx, rollout.Request{IDs: ids, Sampling: c.Sampling, Stop: c.Stop, OnToken: c.OnToken})
	if err == nil && done.Finish == rollout.FinishCancelled {
		err = errors.Join(errors.New("generation was cancelled"), context.Cause(ctx))
	}
	if err != nil {
		return nil, err
	}
	return s.record(c, at, ids, done)
}

// prompt is the turn that c goes on from, nil if none, and the ids that the model sees. Templates are rendered without the lock.
func (s *Session) prompt(c Call) (*turn, []int32, error) {
	if c.IDs != nil {
		at, ids := s.findText(c)
		return at, slices.Concat(ids, c.Opening), nil
	}
	sums, err := conversation(c.Messages, c.Options)
	if err != nil {
		return nil, nil, err
	}
	if at, ids, last := s.find(c.Messages, sums); at != nil && last < len(c.Messages) {
		said := at.reply.Tokens
		stopped := len(said) > 0 && slices.Contains(s.chat.StopIDs(), said[len(said)-1].ID()) // a stop string does not end a turn
		delta, err := s.chat.Delta(at.history, at.reply.Text, stopped, c.Messages[last:], c.Options)
		if err == nil {
			return at, slices.Concat(ids, delta, c.Opening), nil
		}
	}
	ids, err := s.chat.Prompt(c.Messages, c.Options)
	return nil, slices.Concat(ids, c.Opening), err
}

// find is the last recorded reply in a conversation, nil if none, the ids up to its end, and the number of messages up to it.
func (s *Session) find(messages []multimodal.Message, sums []digest) (at *turn, ids []int32, last int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, m := range slices.Backward(messages) {
		if t := s.turns[sums[i+1]]; t != nil && m.Role == "assistant" {
			return t, t.segment.Request(rollout.Sampling{}, nil).IDs[:t.length], i + 1
		}
	}
	return nil, nil, 0
}

// findText is the longest recorded text or list of ids that c's prompt starts with, nil if none, and the prompt's ids.
func (s *Session) findText(c Call) (at *turn, ids []int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids = c.IDs
	for _, t := range s.texts {
		if at != nil && t.length <= at.length {
			continue
		}
		known := t.segment.Request(rollout.Sampling{}, nil).IDs[:t.length]
		if rest, ok := strings.CutPrefix(c.Text, t.text); c.Text != "" && t.text != "" && ok {
			at, ids = t, slices.Concat(known, c.Encode(rest))
		} else if c.Text == "" && len(c.IDs) >= t.length && slices.Equal(c.IDs[:t.length], known) {
			at, ids = t, c.IDs
		}
	}
	return at, ids
}

// showOnly records a prompt that got no reply, if there is nothing else: a rollout has a sample.
func (s *Session) showOnly(ids []int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := (&rollout.Trajectory{}); len(s.samples) == 0 && t.Context(ids) == nil {
		s.samples = append(s.samples, t)
	}
}

// record appends what c generated.
func (s *Session) record(c Call, at *turn, ids []int32, done rollout.Completion) (*Reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the session was closed while the model replied: the reply does not count")
	}
	r := &Reply{Completion: done, Prompt: len(ids), session: s}
	r.Text = s.chat.Decode(slices.Concat(c.Opening, r.ids()[:len(done.Tokens)-done.NumStop]))
	if r.Message = (multimodal.Message{Role: "assistant", Content: r.Text}); c.Message != nil {
		r.Message = c.Message(r.Text)
	}
	sums, err := conversation(append(slices.Clip(c.Messages), r.Message), c.Options)
	segment, start := &rollout.Trajectory{}, 0
	if at != nil {
		segment, start = at.segment, at.length
	}
	if err == nil && segment.Len() != start { // gone on from already
		segment, err = segment.Fork(start)
	}
	if err == nil {
		err = errors.Join(segment.Context(ids[start:]), segment.Append(done))
	}
	if err != nil {
		return nil, err
	}
	if !slices.Contains(s.samples, segment) {
		s.samples = append(s.samples, segment)
	}
	t := &turn{segment: segment, length: segment.Len(), history: slices.Clone(c.Messages), reply: r}
	if c.IDs == nil {
		s.turns[sums[len(sums)-1]] = t
	} else if t.length -= done.NumStop; c.Text == "" || r.Text == r.Message.Content { // else the stop begins within a token
		if c.Text != "" {
			t.text = c.Text + r.Text
		}
		s.texts = append(s.texts, t)
	}
	if c.Key != (digest{}) {
		s.replies[c.Key] = r
	}
	return r, nil
}

// Lost says that the client cannot have got the reply: who asks for the same again gets this one.
func (r *Reply) Lost() {
	r.session.mu.Lock()
	defer r.session.mu.Unlock()
	r.lost = true
}

// ids are those of what the model said, its stop included.
func (r *Reply) ids() []int32 {
	ids := make([]int32, len(r.Tokens))
	for i, g := range r.Tokens {
		ids[i] = g.ID()
	}
	return ids
}

// Close ends the session and gives its samples, sealed. A reply that is still being generated does not count.
func (s *Session) Close() []*rollout.Trajectory {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, t := range s.samples {
		t.Seal()
	}
	return s.samples
}

// conversation gives the digest of what the template is given before the first message and after each.
func conversation(messages []multimodal.Message, opts multimodal.RenderOptions) ([]digest, error) {
	head, err := json.Marshal([]any{opts.Tools, opts.Extra})
	sums := []digest{sha256.Sum256(head)}
	for i, m := range messages {
		if m.Role == "assistant" { // of what it said a client may leave out the thoughts and how it writes the arguments
			m.Reasoning, m.Extra, m.ToolCalls = "", nil, normal(m.ToolCalls)
		}
		text, bad := json.Marshal(m)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("message %d: %w", i, bad))
		}
		sums = append(sums, sha256.Sum256(append(sums[len(sums)-1][:], text...)))
	}
	return sums, err
}

// normal is a list of tool calls with one way to write the same.
func normal(calls json.RawMessage) json.RawMessage {
	var list []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"function"`
	}
	if len(calls) == 0 || json.Unmarshal(calls, &list) != nil {
		return calls
	}
	for i := range list {
		args := &list[i].Function.Arguments
		var text string
		if json.Unmarshal(*args, &text) == nil && json.Valid([]byte(text)) {
			*args = json.RawMessage(text)
		}
		var value any
		if json.Unmarshal(*args, &value) == nil {
			*args, _ = json.Marshal(value) // keys in order, and 1.0 is 1
		}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return calls
	}
	return text
}
