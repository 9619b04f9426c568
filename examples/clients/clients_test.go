// Package clients tests that agents written with the official Go SDKs are served.
package clients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

const (
	end      = "<|im_end|>"
	call     = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>"
	rest     = "{\"a\": 2}}\n</tool_call>" + end
	think    = "<think>\nwhy\n</think>\n\n"
	template = "{% if false %}</think>{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}" +
		"{% for c in m.tool_calls or [] %}<tool_call>\n" +
		`{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}` + "\n</tool_call>{% endfor %}" +
		"<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

// play is an agent of one rollout, written with SDKs.
type play func(ctx context.Context, o openai.Client, a anthropic.Client) (saw []any, err error)

// scene is a play with what it must see.
type scene struct {
	name     string
	play     play
	saw      string                                                              // what fmt prints of it
	samples  int                                                                 // of the rollout
	says     []string                                                            // replies of the model in turn, all asked for, and trained on as they were said
	lose     bool                                                                // the first answer, which the server has given
	statuses []int                                                               // of all answers
	think    func(ctx context.Context, n int, r rollout.Request) (string, error) // in place of says
}

// cast plays a scene: it is the agent, the generator and the transport between them.
type cast struct {
	scene
	chat     *multimodal.Chat
	mu       sync.Mutex
	asked    int
	said     []string
	statuses []int
	seen     []any
}

func (c *cast) Run(ctx context.Context, to *agent.ChatContext) (agent.Result, error) {
	client := &http.Client{Transport: c}
	o := openai.NewClient(option.WithBaseURL(to.BaseURL), option.WithAPIKey(to.APIKey), option.WithHTTPClient(client))
	a := anthropic.NewClient(anthropicoption.WithBaseURL(strings.TrimSuffix(to.BaseURL, "/v1")), anthropicoption.WithAPIKey(to.APIKey),
		anthropicoption.WithHTTPClient(client))
	saw, err := c.play(ctx, o, a)
	c.seen = saw
	return agent.Result{Reward: 1}, err
}

func (c *cast) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	first := len(c.statuses) == 0
	c.statuses = append(c.statuses, res.StatusCode)
	c.mu.Unlock()
	if first && c.lose {
		_, err := io.Copy(io.Discard, res.Body)
		return nil, errors.Join(err, res.Body.Close(), errors.New("lost"))
	}
	return res, nil
}

func (c *cast) Generate(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
	c.mu.Lock()
	n := c.asked
	c.asked++
	c.mu.Unlock()
	text, err := "", error(nil)
	if c.think != nil {
		text, err = c.think(ctx, n, r)
	} else if n < len(c.says) {
		text = c.says[n]
	}
	if err != nil {
		return rollout.Completion{}, err
	}
	text, ended := strings.CutSuffix(text, end)
	var ids []int32
	for _, b := range []byte(text) {
		ids = append(ids, int32(b))
	}
	if ended {
		ids = append(ids, r.Sampling.StopIDs[0])
	}
	done, err := rollout.Script{Reply: func(rollout.Request) ([]int32, []float32, error) { return ids, nil, nil }}.Generate(ctx, r)
	for range done.Tokens {
		done.Top = append(done.Top, []rollout.TopLogP{{ID: 'x', LogP: -1}, {ID: 'y', LogP: -2}}[:min(2, r.Sampling.TopLogP)])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, c.chat.Decode(ids[:len(done.Tokens)]))
	return done, err
}

// trained are the replies that a sample is trained on.
func (c *cast) trained(t *rollout.Trajectory) (texts []string) {
	k, from := t.Tokens(), -1
	for i, m := range append(k.Mask, false) {
		if m && from < 0 {
			from = i
		} else if !m && from >= 0 {
			texts, from = append(texts, c.chat.Decode(k.IDs[from:i])), -1
		}
	}
	return texts
}

// byteChat is a chat over a tokenizer of bytes.
func byteChat(t *testing.T) *multimodal.Chat {
	vocab, added, dir := map[string]int{}, []map[string]any{}, t.TempDir()
	for b, next := 0, rune(256); b < 256; b++ { // the printable bytes stand for themselves, the others for runes from 256 on
		if b <= ' ' || b >= 127 && b <= 160 || b == 173 {
			vocab[string(next)] = b
			next++
		} else {
			vocab[string(rune(b))] = b
		}
	}
	for i, token := range []string{"<|im_start|>", "<|im_end|>"} {
		added = append(added, map[string]any{"id": 256 + i, "content": token, "special": true})
	}
	for name, v := range map[string]any{
		"tokenizer.json": map[string]any{"added_tokens": added, "decoder": map[string]any{"type": "ByteLevel"},
			"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
			"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}}},
		"tokenizer_config.json": map[string]any{"eos_token": "<|im_end|>", "chat_template": template}} {
		text, err := json.Marshal(v)
		if err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), text, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	chat, err := multimodal.OpenChat(dir)
	if err != nil {
		t.Fatal(err)
	}
	return chat
}

// The official Go SDKs play against the server: what they see is what their types promise, and what the model said is trained on once, as it
// was said. A lost answer is asked for and given again, one of status 5xx is asked for again, 4xx is not.
func TestAgentsWithTheOfficialGoSDKsAreServed(t *testing.T) {
	chat := byteChat(t)
	once := []string{"lost and found" + end}
	slow := func(ctx context.Context, _ int, _ rollout.Request) (string, error) { // longer than the SDKs of Python take to connect
		select {
		case <-time.After(5200 * time.Millisecond):
			return "slow" + end, nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	boom := func(_ context.Context, n int, _ rollout.Request) (string, error) {
		if n == 0 {
			return "", errors.New("boom")
		}
		return "back" + end, nil
	}
	for _, sc := range []scene{
		{name: "chat", play: chatTalk, says: []string{"hello é" + end, "one HALT", think + "so" + end}, samples: 1, statuses: []int{200, 200, 200},
			saw: `[hello é stop 9 one  stop so "why"]`},
		{name: "chat tools", play: chatTools, says: []string{"I add.\n" + call + end, "three" + end, "Two.\n" + call + "\n" + call + end}, samples: 1,
			statuses: []int{200, 200, 200}, saw: `[I add. add {"a": 1} three Two. Two. add {"a": 1} Two. add {"a": 1} tool_calls 2 true]`},
		{name: "chat choice", play: chatChoice, says: []string{`add", "arguments": ` + rest, rest}, samples: 2, statuses: []int{200, 200},
			saw: `[add {"a": 2} tool_calls sub {"a": 2} tool_calls]`},
		{name: "chat options", play: chatOptions, samples: 5, statuses: []int{200, 200, 200}, saw: `[3 4 2 true]`,
			think: func(_ context.Context, _ int, r rollout.Request) (string, error) {
				return fmt.Sprintf("%04d", r.Sampling.Seed%10000) + end, nil
			}},
		{name: "completions", play: completions, says: []string{"upon once", "a time" + end}, samples: 1, statuses: []int{200, 200, 200},
			saw: `[upon  length a time policy]`},
		{name: "responses", play: respond, says: []string{think + "I add.\n" + call + end, "three" + end, "😍 four" + end, rest}, samples: 2,
			statuses: []int{200, 200, 200, 200}, saw: `[reasoning message function_call I add. add {"a": 1} three 😍 four completed 😍 four sub {"a": 2}]`},
		{name: "messages", play: messages, says: []string{"hello é" + end, "one HALT", "two" + end}, samples: 1, statuses: []int{200, 200, 200, 200},
			saw: `[hello é end_turn 9 one  stop_sequence HALT two true]`},
		{name: "messages tools", play: messagesTools, says: []string{think + "I add.\n" + call + end, "three" + end, think + "Two.\n" + call + call + end, rest},
			samples: 2, statuses: []int{200, 200, 200, 200},
			saw: `[why I add. add {"a":1} tool_use three why Two. {"a": 1} {"a": 1} tool_use add {"a":2}]`},
		{name: "errors", play: failures, samples: 1, statuses: []int{401, 400, 400, 404, 401, 400, 400, 404},
			saw: `[invalid_api_key  context_length_exceeded  authentication_error invalid_request_error invalid_request_error not_found_error]`},
		{name: "fifty at once", play: together, samples: 100, saw: `[100]`, statuses: slices.Repeat([]int{200}, 100), think: hundred()},
		{name: "chat lost", play: chatOnce, lose: true, says: once, samples: 1, statuses: []int{200, 200}, saw: `[lost and found]`},
		{name: "chat stream lost", play: chatStream, lose: true, says: once, samples: 1, statuses: []int{200, 200}, saw: `[lost and found]`},
		{name: "messages lost", play: messagesOnce, lose: true, says: once, samples: 1, statuses: []int{200, 200}, saw: `[lost and found]`},
		{name: "messages stream lost", play: messagesStream, lose: true, says: once, samples: 1, statuses: []int{200, 200}, saw: `[lost and found]`},
		{name: "chat slow", play: chatOnce, think: slow, samples: 1, statuses: []int{200}, saw: `[slow]`},
		{name: "chat failed", play: chatOnce, think: boom, samples: 1, statuses: []int{500, 200}, saw: `[back]`},
		{name: "messages failed", play: messagesOnce, think: boom, samples: 1, statuses: []int{500, 200}, saw: `[back]`},
		{name: "messages slow", play: messagesOnce, think: slow, samples: 1, statuses: []int{200}, saw: `[slow]`},
	} {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			c := &cast{scene: sc, chat: chat}
			s, err := agent.NewServer(chat, c, agent.ServerConfig{Context: 4000, Sampling: "honour"})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			run, err := agent.NewChatRunner(s, func() agent.ChatAgent { return c })
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			out, err := run.Run(ctx, rollout.Spec{Seed: 3, Sampling: rollout.Sampling{Temperature: 1, MaxTokens: 200}})
			if err != nil {
				t.Fatal(err)
			}
			var trained []string
			for _, sample := range out.Samples {
				trained = append(trained, c.trained(sample)...)
			}
			slices.Sort(trained)
			slices.Sort(c.said)
			if saw := fmt.Sprint(c.seen); saw != c.saw {
				t.Errorf("saw  %s\nwant %s", saw, c.saw)
			}
			if !slices.Equal(trained, c.said) || len(out.Samples) != c.samples || c.think == nil && c.asked != len(c.says) {
				t.Errorf("%d samples of %d generations, said %q, trained on %q", len(out.Samples), c.asked, c.said, trained)
			}
			slices.Sort(c.statuses)
			slices.Sort(sc.statuses)
			if !slices.Equal(c.statuses, sc.statuses) {
				t.Errorf("statuses %v", c.statuses)
			}
		})
	}
}

// hundred answers when 100 calls are there, each by the number in its prompt.
func hundred() func(context.Context, int, rollout.Request) (string, error) {
	all, number := make(chan bool), regexp.MustCompile("<([0-9]{3})>")
	return func(ctx context.Context, n int, r rollout.Request) (string, error) {
		if n == 99 {
			close(all)
		}
		select {
		case <-all:
		case <-ctx.Done():
		}
		var prompt []byte
		for _, id := range r.IDs {
			prompt = append(prompt, byte(id)) // the digits, and what does not matter
		}
		return string(number.FindSubmatch(prompt)[1]) + end, ctx.Err()
	}
}
