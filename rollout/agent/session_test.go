package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

const (
	chatML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}" +
		"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
	// Thoughts are shown in the last message only.
	forgetful = "{% for m in messages %}<|im_start|>{{ m.role }}\n" +
		"{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}" +
		"<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
	// Calls are shown in the model's own words, with spaces that it may not have used.
	calling = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}" +
		"{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": " +
		"{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}" +
		"<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

// byteChat is a chat over a byte-level tokenizer that knows a few merges, so that a text has many sequences of ids.
func byteChat(t *testing.T, template string, more ...map[string]any) *multimodal.Chat {
	t.Helper()
	vocab, added := map[string]int{}, []map[string]any{}
	for b := range 256 { // the printable bytes stand for themselves, the others for runes from 256 on
		r := rune(b)
		if b <= ' ' || b >= 127 && b <= 160 || b == 173 {
			r = 256
			for k := range b {
				if k <= ' ' || k >= 127 && k <= 160 || k == 173 {
					r++
				}
			}
		}
		vocab[string(r)] = b
	}
	for _, token := range []string{"th", "in", "ink", "ll", "he"} {
		vocab[token] = len(vocab)
	}
	for _, token := range []string{"<|im_start|>", "<|im_end|>", "<|image|>"} {
		added = append(added, map[string]any{"id": len(vocab) + len(added), "content": token, "special": true})
	}
	file := map[string]any{
		"added_tokens":  added,
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
		"decoder":       map[string]any{"type": "ByteLevel"},
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{"t h", "i n", "in k", "l l", "h e"}},
	}
	dir, config := t.TempDir(), map[string]any{"eos_token": "<|im_end|>", "chat_template": template}
	for _, m := range more {
		maps.Copy(config, m)
	}
	for name, v := range map[string]any{"tokenizer.json": file, "tokenizer_config.json": config} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	chat, err := multimodal.OpenChat(dir)
	if err != nil {
		t.Fatal(err)
	}
	return chat
}

// babble generates what comes to mind and remembers it.
type babble struct {
	end  int32
	mu   sync.Mutex
	rng  *rand.Rand
	said map[string][][]int32 // replies by the ids before them
}

func key(ids []int32) string { return fmt.Sprint(ids) }

func (g *babble) Generate(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	words := []string{"think", "hello", "é", "😍", " ", "\n", "</think>", "<think>", "\xf0\x9f"}
	var ids []int32
	for range g.rng.IntN(6) {
		for _, b := range []byte(words[g.rng.IntN(len(words))]) {
			ids = append(ids, int32(b))
		}
	}
	switch g.rng.IntN(12) {
	case 0:
		return rollout.Completion{}, errors.New("out of luck")
	case 1:
		c, err := rollout.Script{Reply: func(rollout.Request) ([]int32, []float32, error) { return ids, nil, nil }}.Generate(ctx, r)
		c.Finish = rollout.FinishCancelled
		return c, err
	case 2, 3: // cut off, perhaps inside a character
	default:
		ids = append(ids, g.end)
	}
	if len(ids) == 0 {
		ids = []int32{'x'}
	}
	c, err := rollout.Script{Reply: func(rollout.Request) ([]int32, []float32, error) { return ids, nil, nil }}.Generate(ctx, r)
	if err == nil {
		g.said[key(r.IDs)] = append(g.said[key(r.IDs)], ids[:len(c.Tokens)])
	}
	return c, err
}

// client plays random conversations in one session: it goes on, goes back, edits, summarises, asks twice, asks at the same time, sends
// back less than it got, and repeats itself because it lost a reply.
type client struct {
	t       *testing.T
	rng     *rand.Rand
	session *Session
	tools   bool

	mu    sync.Mutex
	talks [][]multimodal.Message
	got   int // tokens of all replies, each counted once
}

func (c *client) call(messages []multimodal.Message, again bool, id byte) {
	call := Call{Messages: messages, Options: multimodal.RenderOptions{AddGenerationPrompt: true}, Again: again,
		Sampling: rollout.Sampling{Temperature: 1, MaxTokens: 12}, Key: [32]byte{id, 1}}
	if c.tools {
		call.Message = func(text string) multimodal.Message {
			args, _ := json.Marshal(map[string]any{"text": text, "n": 1})
			quoted, _ := json.Marshal(string(args))
			return multimodal.Message{Role: "assistant", Content: text, ToolCalls: json.RawMessage(fmt.Sprintf(
				`[{"id":"c1","type":"function","function":{"name":"f","arguments":%s}}]`, quoted))}
		}
	}
	before := len(messages)
	r, err := c.session.Call(c.t.Context(), call)
	if err != nil {
		return
	}
	if again2, err := c.session.Call(c.t.Context(), Call{Messages: messages, Options: call.Options, Again: true, Key: call.Key}); err != nil ||
		again2 != r {
		c.t.Errorf("asked again: %v, %v", again2, err)
	}
	reply := r.Message
	reply.Reasoning = "something that the client made up"
	if c.tools {
		reply.ToolCalls = json.RawMessage(strings.ReplaceAll(string(reply.ToolCalls), `,`, ` , `)) // written in another way
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got += len(r.Tokens)
	c.talks = append(c.talks, append(messages[:before:before], reply))
}

func (c *client) play(steps int) {
	say := func(role, text string) multimodal.Message { return multimodal.Message{Role: role, Content: text} }
	for step := range steps {
		talk := []multimodal.Message{say("user", fmt.Sprint("hello ", c.rng.IntN(2)))}
		if len(c.talks) > 0 && c.rng.IntN(8) > 0 {
			talk = slices.Clone(c.talks[max(0, len(c.talks)-1-c.rng.IntN(3))])
			switch c.rng.IntN(10) {
			case 0: // edit
				talk[c.rng.IntN(len(talk))].Content += "!"
			case 1: // drop
				i := c.rng.IntN(len(talk))
				talk = slices.Delete(talk, i, i+1)
			case 2: // summarise
				talk = []multimodal.Message{say("system", "so far: all well"), talk[len(talk)-1]}
			}
			talk = append(talk, say([]string{"user", "tool"}[c.rng.IntN(2)], "😍 go on"))
		}
		var all sync.WaitGroup
		for k := range 1 + c.rng.IntN(3)/2 { // sometimes twice at once
			all.Go(func() { c.call(talk, false, byte(2*step+k)) })
		}
		all.Wait()
	}
}

// Every trained id was generated at that position after exactly the ids before it, and every reply that a client got is trained once.
func TestEveryTrainedTokenWasGeneratedWhereItStands(t *testing.T) {
	for name, template := range map[string]string{"ChatML": chatML, "forgetful": forgetful, "calling": calling} {
		chat := byteChat(t, template)
		end := chat.StopIDs()[0]
		segments, branches := 0, 0
		for seed := range uint64(20) {
			rng := rand.New(rand.NewPCG(seed, 7))
			g := &babble{end: end, rng: rand.New(rand.NewPCG(seed, 8)), said: map[string][][]int32{}}
			c := &client{t: t, rng: rng, session: NewSession(chat, g, nil, 600), tools: template == calling}
			c.play(25)
			samples, trained := c.session.Close(), 0
			for n, tr := range samples {
				k := tr.Tokens()
				if parent, shared := tr.Parent(); parent != nil {
					branches++
					if !slices.Contains(samples, parent) || shared == 0 {
						t.Errorf("%s, seed %d: sample %d branches off at %d of what is no sample", name, seed, n, shared)
					}
				}
				segments++
				for i := 0; i < len(k.IDs); i++ {
					if !k.Mask[i] {
						continue
					}
					length := 0
					for _, said := range g.said[key(k.IDs[:i])] {
						if end := i + len(said); len(said) > length && end <= len(k.IDs) && slices.Equal(said, k.IDs[i:end]) &&
							!slices.Contains(k.Mask[i:end], false) {
							length = len(said)
						}
					}
					if length == 0 {
						t.Fatalf("%s, seed %d: sample %d trains token %d, which was not generated there:\n%s", name, seed, n, i, chat.Decode(k.IDs))
					}
					trained += length
					i += length - 1
				}
			}
			if trained != c.got {
				t.Errorf("%s, seed %d: %d tokens are trained, clients got %d", name, seed, trained, c.got)
			}
			if _, err := c.session.Call(t.Context(), Call{Messages: c.talks[0]}); err == nil {
				t.Errorf("%s: a closed session answers", name)
			}
		}
		if segments < 150 || branches < 50 {
			t.Errorf("%s: only %d segments and %d branches: the play is too tame", name, segments, branches)
		}
		t.Logf("%s: %d segments, %d branches", name, segments, branches)
	}
}

// A reply that one client has taken again is not lost because the first one, who waited for it, is gone.
func TestAReplyThatWasTakenAgainIsNotLost(t *testing.T) {
	chat, made := byteChat(t, chatML), 0
	started, finish := make(chan bool), make(chan bool)
	gen := rollout.GeneratorFunc(func(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
		if made++; made == 1 {
			started <- true
			<-finish
		}
		return script(fmt.Sprint(made, "<|im_end|>"), r).Generate(ctx, r)
	})
	s := NewSession(chat, gen, nil, 600)
	ask := func(again bool) *Reply {
		r, err := s.Call(t.Context(), Call{Messages: User("u"), Key: [32]byte{1}, Again: again, Sampling: rollout.Sampling{Temperature: 1}})
		if err != nil {
			t.Error(err)
			return nil
		}
		return r
	}
	first, second := make(chan *Reply), make(chan *Reply)
	go func() { first <- ask(false) }()
	<-started
	go func() { second <- ask(true) }() // waits for the first one's
	close(finish)
	a, b := <-first, <-second
	if a.Lost(); a != b || ask(false) == a || made != 2 {
		t.Errorf("%q, then %q, %d replies", a.Text, b.Text, made)
	}
	b.Lost()
	if ask(true) == nil || made != 2 {
		t.Errorf("%d replies", made)
	}
}

// What a client says that the model has said is no less than what others say: an edit of it starts a new segment.
func TestAnEditOfAReplyThatTheClientMadeUpIsSeen(t *testing.T) {
	const shows = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content or '' }}{{ m.k or '' }}{{ m.content }}" +
		"{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
	chat := byteChat(t, shows)
	said := func(m multimodal.Message) multimodal.Message { m.Role = "assistant"; return m }
	calls := func(text string) json.RawMessage { return json.RawMessage(text) }
	for name, c := range map[string]struct {
		before, after multimodal.Message
		samples       int
	}{
		"nothing":       {said(multimodal.Message{Content: "a"}), said(multimodal.Message{Content: "a"}), 1},
		"thoughts":      {said(multimodal.Message{Content: "a", Reasoning: "x"}), said(multimodal.Message{Content: "a", Reasoning: "y"}), 2},
		"another field": {said(multimodal.Message{Extra: map[string]json.RawMessage{"k": calls("1")}}), said(multimodal.Message{Extra: map[string]json.RawMessage{"k": calls("2")}}), 2},
		"custom calls":  {said(multimodal.Message{ToolCalls: calls(`[{"type":"custom","custom":"a"}]`)}), said(multimodal.Message{ToolCalls: calls(`[{"type":"custom","custom":"b"}]`)}), 2},
	} {
		s := NewSession(chat, &saying{texts: []string{"r<|im_end|>"}}, nil, 900)
		ask := func(messages ...multimodal.Message) *Reply {
			r, err := s.Call(t.Context(), Call{Messages: messages, Sampling: rollout.Sampling{Temperature: 1}})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		u := User("u")[0]
		r := ask(u, c.before, u)
		ask(u, c.after, u, r.Message, u)
		if samples := s.Close(); len(samples) != c.samples {
			t.Errorf("%s: %d samples, want %d", name, len(samples), c.samples)
		}
	}
}
