package agent

import (
	"context"
	"crypto/sha256"
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
	images  *multimodal.ImageProcessor // nil: the model reads text only
	context int                        // positions that the model has

	mu      sync.Mutex
	turns   map[digest]*turn // by the conversation that ends with the reply
	texts   []*turn          // without a template
	replies map[digest]*Reply
	running map[digest]chan struct{} // closed when the call with that key ends
	samples []*rollout.Trajectory
	fault   error // why the last call got no reply of the generator
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
	Hold     func() error // waits, once there is a reply, for what must succeed with it, or it does not count; may be nil
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
	held    int // how many of those that it was given to may have got it
}

// NewSession starts the record of a rollout. images may be nil.
func NewSession(chat Chat, gen rollout.Generator, images *multimodal.ImageProcessor, context int) *Session {
	return &Session{chat: chat, gen: gen, images: images, context: context, turns: map[digest]*turn{}, replies: map[digest]*Reply{},
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
	if r := s.replies[c.Key]; keyed && r != nil && (c.Again || r.held == 0) {
		r.held++
		s.mu.Unlock()
		if err := c.hold(); err != nil {
			r.Lost()
			return nil, err
		}
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
	p, err := s.prompt(c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPrompt, err)
	}
	room := s.context - len(p.IDs)
	if room <= 0 {
		s.showOnly(p)
		return nil, fmt.Errorf("%w of %d tokens: the prompt has %d", ErrNoRoom, s.context, len(p.IDs))
	}
	if c.Sampling.MaxTokens <= 0 || c.Sampling.MaxTokens > room {
		c.Sampling.MaxTokens = room
	}
	c.Sampling.StopIDs = slices.Concat(c.Sampling.StopIDs, s.chat.StopIDs())
	if c.OnPrompt != nil {
		c.OnPrompt(len(p.IDs))
	}
	p.Sampling, p.Stop, p.OnToken = c.Sampling, c.Stop, c.OnToken
	var done rollout.Completion
	err = contain(func() (err error) { done, err = s.gen.Generate(ctx, p.Request); return err })
	if err == nil && done.Finish == rollout.FinishCancelled {
		err = errors.Join(errors.New("generation was cancelled"), context.Cause(ctx))
	}
	if err != nil && ctx.Err() == nil {
		err = &rollout.Failure{Kind: "generator", Err: err}
	}
	s.mu.Lock()
	if !s.closed {
		s.fault = err
	}
	s.mu.Unlock()
	if err == nil {
		err = c.hold()
	}
	if err != nil {
		return nil, err
	}
	return s.record(c, p, done)
}

func (c Call) hold() error {
	if c.Hold == nil {
		return nil
	}
	return c.Hold()
}

// prompt is what the model is to continue: the ids and images of the recorded turn that a call goes on from, nil if none, and more.
type prompt struct {
	rollout.Request
	at     *turn
	images int    // of the turn's
	sum    digest // of the conversation
}

// grow is p with more ids behind it, and the images of messages at their placeholders in these.
func (s *Session) grow(p prompt, ids []int32, messages ...multimodal.Message) (prompt, error) {
	sources, err := multimodal.Images(messages)
	if err != nil {
		return p, err
	}
	if len(sources) > 0 {
		opened, err := s.images.Open(sources...)
		if err != nil {
			return p, err
		}
		shown, err := s.images.Expand(ids, opened)
		if err != nil {
			return p, err
		}
		ids = shown.IDs
		for _, m := range rollout.Images(shown) {
			m.Start += len(p.IDs)
			p.Images = append(p.Images, m)
		}
	}
	p.IDs = slices.Concat(p.IDs, ids)
	return p, nil
}

// prompt is what c wants continued, its opening included. Templates are rendered without the lock.
func (s *Session) prompt(c Call) (prompt, error) {
	if c.IDs != nil {
		p, ids := s.findText(c)
		return s.grow(p, slices.Concat(ids, c.Opening))
	}
	sums, err := s.conversation(c.Messages, c.Options)
	if i := slices.IndexFunc(c.Messages, func(m multimodal.Message) bool { return m.Parts != nil }); i >= 0 && s.images == nil {
		err = fmt.Errorf("message %d has an image, but the model reads only text", i)
	}
	if err != nil {
		return prompt{}, err
	}
	sum := sums[len(sums)-1]
	if p, last := s.find(c.Messages, sums); p.at != nil && last < len(c.Messages) {
		said := p.at.reply.Tokens
		stopped := len(said) > 0 && slices.Contains(s.chat.StopIDs(), said[len(said)-1].ID()) // a stop string does not end a turn
		delta, err := s.chat.Delta(p.at.history, p.at.reply.Text, stopped, c.Messages[last:], c.Options)
		if p.sum = sum; err == nil {
			return s.grow(p, slices.Concat(delta, c.Opening), c.Messages[last:]...)
		}
	}
	ids, err := s.chat.Prompt(c.Messages, c.Options)
	if err != nil {
		return prompt{}, err
	}
	return s.grow(prompt{sum: sum}, slices.Concat(ids, c.Opening), c.Messages...)
}

// upTo is the prompt that ends with a recorded reply.
func (t *turn) upTo() prompt {
	r := t.segment.Request(rollout.Sampling{}, nil)
	r.IDs, r.Images = r.IDs[:t.length], slices.DeleteFunc(r.Images, func(m rollout.Image) bool { return m.Start >= t.length })
	return prompt{Request: r, at: t, images: len(r.Images)}
}

// find is the prompt up to the last recorded reply in a conversation, empty if there is none, and the number of messages up to it.
func (s *Session) find(messages []multimodal.Message, sums []digest) (p prompt, last int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, m := range slices.Backward(messages) {
		if t := s.turns[sums[i+1]]; t != nil && m.Role == "assistant" {
			return t.upTo(), i + 1
		}
	}
	return prompt{}, 0
}

// findText is the longest recorded text or list of ids that c's prompt starts with, empty if there is none, and the ids after it.
func (s *Session) findText(c Call) (p prompt, rest []int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.texts {
		if t.length <= len(p.IDs) || c.Text != "" && (t.text == "" || !strings.HasPrefix(c.Text, t.text)) {
			continue
		}
		if known := t.upTo(); c.Text != "" || slices.Equal(c.IDs[:min(len(c.IDs), t.length)], known.IDs) {
			p = known
		}
	}
	if p.at != nil && c.Text != "" {
		return p, c.Encode(c.Text[len(p.at.text):])
	}
	return p, c.IDs[len(p.IDs):]
}

// showOnly records a prompt that got no reply, if there is nothing else: a rollout has a sample.
func (s *Session) showOnly(p prompt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := (&rollout.Trajectory{}); len(s.samples) == 0 && t.Context(p.IDs, p.Images...) == nil {
		s.samples = append(s.samples, t)
	}
}

// record appends what c generated.
func (s *Session) record(c Call, p prompt, done rollout.Completion) (*Reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the session was closed while the model replied: the reply does not count")
	}
	r := &Reply{Completion: done, Prompt: len(p.IDs), session: s, held: 1}
	said := r.ids()[:len(done.Tokens)-done.NumStop]
	if r.Text = s.chat.Decode(slices.Concat(c.Opening, said)); c.IDs != nil { // it goes on from text
		last := p.IDs[len(p.IDs)-1:]
		if text, ok := strings.CutPrefix(s.chat.Decode(slices.Concat(last, said)), s.chat.Decode(last)); ok {
			r.Text = text
		}
	}
	if r.Message = (multimodal.Message{Role: "assistant", Content: r.Text}); c.Message != nil {
		r.Message = c.Message(r.Text)
	}
	sum, err := follow(p.sum, r.Message, true)
	segment, start := &rollout.Trajectory{}, 0
	if p.at != nil {
		segment, start = p.at.segment, p.at.length
	}
	if err == nil && segment.Len() != start { // gone on from already
		segment, err = segment.Fork(start)
	}
	more := slices.Clone(p.Images[p.images:])
	for i := range more {
		more[i].Start -= start
	}
	if err == nil {
		err = errors.Join(segment.Context(p.IDs[start:], more...), segment.Append(done))
	}
	if err != nil {
		return nil, err
	}
	if !slices.Contains(s.samples, segment) {
		s.samples = append(s.samples, segment)
	}
	t := &turn{segment: segment, length: segment.Len(), history: slices.Clone(c.Messages), reply: r}
	if c.IDs == nil {
		s.turns[sum] = t
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
	r.held--
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
