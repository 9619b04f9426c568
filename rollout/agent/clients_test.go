package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/rollout"
)

// scene is what a client of testdata/clients.py plays in a session of its own.
type scene struct {
	name    string
	saw     string // what it must see, as JSON
	samples int
	says    []string // replies of the model in turn; all of them are asked for, and trained on as they were said
	// hop says what a hop between client and server does to the first answer: "" there is none, "count" nothing, "lose" keeps all of it,
	// "break" keeps its second half.
	hop      string
	statuses []int                                                               // of the answers, if there is a hop
	think    func(ctx context.Context, n int, r rollout.Request) (string, error) // in place of says: reply n
}

// cast plays a scene: it is the generator and remembers what was said.
type cast struct {
	scene
	*stand
	mu       sync.Mutex
	asked    int
	said     []string
	statuses []int
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
	if show, k := r.OnToken, 0; c.hop == "break" && n == 0 { // the first half is on its way, the client goes, and the reply is complete
		r.OnToken = func(g rollout.Generated) {
			if show(g); k == 9 {
				<-ctx.Done()
			}
			k++
		}
	}
	done, err := script(text, r).Generate(context.WithoutCancel(ctx), r)
	for range done.Tokens {
		done.Top = append(done.Top, []rollout.TopLogP{{ID: 'x', LogP: -1}, {ID: 'y', LogP: -2}}[:min(2, r.Sampling.TopLogP)])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, c.chat.Decode((&Reply{Completion: done}).ids()))
	return done, err
}

// between starts the hop and gives its address.
func (c *cast) between() string {
	to := must(url.Parse(c.url))
	proxy := &httputil.ReverseProxy{ErrorLog: c.http.ErrorLog}
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	proxy.Rewrite = func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		c.mu.Lock()
		again := len(c.statuses) > 0
		c.mu.Unlock()
		for gone, wait := false, time.Now(); c.hop == "break" && again && !gone && time.Since(wait) < 20*time.Second; { // the server has noticed
			time.Sleep(time.Millisecond)
			c.v.Session.mu.Lock()
			for _, r := range c.v.replies {
				gone = gone || r.held == 0
			}
			c.v.Session.mu.Unlock()
		}
	}
	proxy.ModifyResponse = func(r *http.Response) error {
		c.mu.Lock()
		first := len(c.statuses) == 0
		c.statuses = append(c.statuses, r.StatusCode)
		c.mu.Unlock()
		switch {
		case first && c.hop == "lose":
			_, err := io.Copy(io.Discard, r.Body)
			return errors.Join(err, errors.New("lost"))
		case first && c.hop == "break":
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.MultiReader(io.LimitReader(r.Body, 600), iotest.ErrReader(errors.New("broken"))), r.Body}
		}
		return nil
	}
	s := httptest.NewServer(proxy)
	s.Config.ErrorLog = c.http.ErrorLog
	c.Cleanup(s.Close)
	return s.URL
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

// fifty answers when 50 calls are there, each by the number in its prompt.
func fifty() func(context.Context, int, rollout.Request) (string, error) {
	all, number := make(chan bool), regexp.MustCompile("<([0-9]{2})>")
	return func(ctx context.Context, n int, r rollout.Request) (string, error) {
		if n == 49 {
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
		return string(number.FindSubmatch(prompt)[1]) + "<|im_end|>", ctx.Err()
	}
}

// The official SDKs of OpenAI and Anthropic and the OpenAI Agents SDK, which somebody else wrote, play against the server: what they see is
// what their types promise, and what the model said is trained on once, as it was said.
func TestOfficialClientsAndAFrameworkAreServed(t *testing.T) {
	const (
		end    = "<|im_end|>"
		call   = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>" + end
		rest   = "{\"a\": 2}}\n</tool_call>" + end
		rain   = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>" + end
		over   = "<tool_call>\n{\"name\": \"transfer_to_other\", \"arguments\": {}}\n</tool_call>" + end
		clerk  = "<tool_call>\n{\"name\": \"ask_clerk\", \"arguments\": {\"input\": \"work\"}}\n</tool_call>" + end
		think  = "<think>\nwhy\n</think>\n\n"
		called = `"ToolCallItem","ToolCallOutputItem","MessageOutputItem"`
		handed = `"HandoffCallItem","HandoffOutputItem","MessageOutputItem"`
	)
	var fiftySaw []any
	for i := range 50 {
		fiftySaw = append(fiftySaw, []any{i, fmt.Sprintf("%02d", i)})
	}
	once := []string{"lost and found" + end}
	slow := func(ctx context.Context, _ int, _ rollout.Request) (string, error) { // more than the 5 s in which a connection must be made
		select {
		case <-time.After(5200 * time.Millisecond):
			return "slow" + end, nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	dead := func(_ context.Context, n int, _ rollout.Request) (string, error) {
		if n == 0 {
			return "", fmt.Errorf("it is gone: %w", rollout.ErrDead)
		}
		return "back" + end, nil
	}
	scenes := []scene{
		{name: "chat_plain", says: []string{"hello é" + end}, samples: 1, saw: `["hello é", "stop", "gpt", 9]`},
		{name: "chat_stream", says: []string{"😍 one" + end, "two" + end}, samples: 2, saw: `["😍 one", 9, "two", "two", "stop", 4]`},
		{name: "chat_tools", says: []string{"I add.\n" + call, "three" + end, "Two.\n" + strings.TrimSuffix(call, end) + call}, samples: 1,
			saw: `[["I add.", "add", {"a": 1}], "three", [1, 1], "Two.", "tool_calls", [1, 1]]`},
		{name: "chat_choice", says: []string{`add", "arguments": ` + rest, rest}, samples: 2,
			saw: `[["add", "{\"a\": 2}", "tool_calls"], ["sub", "{\"a\": 2}", "tool_calls"]]`},
		{name: "chat_stop", says: []string{"one HALT", "two"}, samples: 1, saw: `["one ", "stop", "two", "length"]`},
		{name: "chat_thoughts", says: []string{think + "so" + end, think + "then" + end}, samples: 1, saw: `["why", "so", "why", "then"]`},
		{name: "chat_errors", samples: 1, saw: `[["AuthenticationError", 401, "invalid_api_key", "invalid_request_error"],
			["BadRequestError", 400, null, "invalid_request_error"], ["BadRequestError", 400, "context_length_exceeded"],
			["NotFoundError", 404], ["APIStatusError", 413]]`},
		{name: "chat_options", samples: 6, saw: `[3, [0, 1, 2], true, -0.25, 2, true, false, 15]`,
			think: func(_ context.Context, _ int, r rollout.Request) (string, error) {
				return fmt.Sprintf("%04d", r.Sampling.Seed%10000) + end, nil
			}},
		{name: "completions", says: []string{"upon once", "a time" + end, "x."}, samples: 2,
			saw: `["upon ", "length", ["u", "p", "o", "n", " "], "a time", "x", 4]`},
		{name: "models", saw: `["policy"]`},
		{name: "responses_plain", says: []string{"hello" + end, "cut"}, samples: 2, saw: `["hello", "completed", 6, "cut", "incomplete", "max_output_tokens"]`},
		{name: "responses_stream", says: []string{"😍 one" + end, think + "I add.\n" + call}, samples: 2,
			saw: `["😍 one", "why", "I add.", ["reasoning", "message", "function_call"], "{\"a\": 1}", 93]`},
		{name: "responses_tools", says: []string{think + "I add.\n" + call, "three" + end}, samples: 1,
			saw: `[["reasoning", "message", "function_call"], "why", "I add.", "add", {"a": 1}, "three"]`},
		{name: "responses_previous", says: []string{think + call, "three" + end, "four" + end}, samples: 1, saw: `["three", "four"]`},
		{name: "responses_choice", says: []string{`add", "arguments": ` + rest, rest}, samples: 2, saw: `[["add", "{\"a\": 2}"], ["sub", "{\"a\": 2}"]]`},
		{name: "responses_errors", samples: 1, saw: `[["AuthenticationError", 401, "invalid_api_key"], ["BadRequestError", 400, "invalid_request_error"],
			["BadRequestError", 400, "context_length_exceeded"], ["NotFoundError", 404]]`},
		{name: "chat_async", think: fifty(), samples: 50, saw: text(fiftySaw)},
		{name: "messages_async", think: fifty(), samples: 50, saw: text(fiftySaw)},
		{name: "messages_plain", says: []string{"hello" + end}, samples: 1, saw: `["hello", "end_turn", "any", "assistant", 6]`},
		{name: "messages_stream", says: []string{"😍 one" + end, "two" + end}, samples: 2, saw: `["😍 one", "😍 one", "end_turn", 9, "two"]`},
		{name: "messages_tools", says: []string{"I add.\n" + call, "three" + end, call}, samples: 1,
			saw: `["I add.", "add", {"a": 1}, "tool_use", "three", "end_turn", {"a": 1}, "tool_use"]`},
		{name: "messages_runner", says: []string{call, "three" + end}, samples: 1, saw: `["tool_use", "text", "three"]`},
		{name: "messages_choice", says: []string{`add", "arguments": ` + rest, rest}, samples: 2, saw: `[["add", {"a": 2}, "tool_use"], ["sub", {"a": 2}, "tool_use"]]`},
		{name: "messages_stop", says: []string{"one HALT", "two" + end}, samples: 1, saw: `["one ", "stop_sequence", "HALT", "two", null]`},
		{name: "messages_thoughts", says: []string{think + "so" + end, think + "then" + end}, samples: 1, saw: `["why", "so", "why", "why", "then"]`},
		{name: "messages_errors", samples: 1, saw: `[["AuthenticationError", 401, "authentication_error"], ["BadRequestError", 400, "invalid_request_error"],
			["BadRequestError", 400, "invalid_request_error"], ["NotFoundError", 404, "not_found_error"],
			["ContentTooLargeError", 413, "request_too_large"]]`},
		{name: "count_tokens", says: []string{"a" + end}, samples: 1, saw: `[true, true]`},
		{name: "agents_responses", says: []string{think + "I look.\n" + rain, "wet" + end}, samples: 1, saw: `["wet", "caller", ["ReasoningItem", "MessageOutputItem", ` + called + `], 110]`},
		{name: "agents_responses_stream", says: []string{rain, "wet" + end}, samples: 1, saw: `["wet", "caller", [` + called + `], "wet"]`},
		{name: "agents_responses_handoff", says: []string{over, "done" + end}, samples: 2, saw: `["done", "other", [` + handed + `], 77]`},
		{name: "agents_responses_as_tool", says: []string{clerk, "worked" + end, "done" + end}, samples: 2, saw: `["done", "boss", [` + called + `], 91]`},
		{name: "agents_chat", says: []string{rain, "wet" + end}, samples: 1, saw: `["wet", "caller", [` + called + `], 80]`},
		{name: "agents_chat_stream", says: []string{rain, "wet" + end}, samples: 1, saw: `["wet", "caller", [` + called + `], "wet"]`},
		{name: "agents_chat_handoff", says: []string{over, "done" + end}, samples: 2, saw: `["done", "other", [` + handed + `], 77]`},
		{name: "lost_chat", hop: "lose", says: once, samples: 1, saw: `"lost and found"`, statuses: []int{200, 200}},
		{name: "lost_chat_stream", hop: "lose", says: once, samples: 1, saw: `"lost and found"`, statuses: []int{200, 200}},
		{name: "lost_responses", hop: "lose", says: once, samples: 1, saw: `"lost and found"`, statuses: []int{200, 200}},
		{name: "lost_messages", hop: "lose", says: once, samples: 1, saw: `"lost and found"`, statuses: []int{200, 200}},
		{name: "lost_messages_stream", hop: "lose", says: once, samples: 1, saw: `"lost and found"`, statuses: []int{200, 200}},
		{name: "broken_chat_stream", hop: "break", says: once, samples: 1, saw: `["APIConnectionError", "lost and found"]`, statuses: []int{200, 200}},
		{name: "broken_messages_stream", hop: "break", says: once, samples: 1, saw: `["RemoteProtocolError", "lost and found"]`, statuses: []int{200, 200}},
		{name: "slow_chat", hop: "count", think: slow, samples: 1, saw: `"slow"`, statuses: []int{200}},
		{name: "slow_messages", hop: "count", think: slow, samples: 1, saw: `"slow"`, statuses: []int{200}},
		{name: "dead_chat", hop: "count", think: dead, samples: 1, saw: `"back"`, statuses: []int{503, 200}},
		{name: "dead_messages", hop: "count", think: dead, samples: 1, saw: `"back"`, statuses: []int{503, 200}},
		{name: "bad_chat", hop: "count", saw: `["BadRequestError", 400]`, statuses: []int{400}},
		{name: "bad_messages", hop: "count", saw: `["BadRequestError", 400]`, statuses: []int{400}},
	}
	given, casts := map[string]any{}, []*cast{}
	for _, sc := range scenes {
		c := &cast{scene: sc}
		c.stand = newStand(t, "{% if false %}</think>{% endif %}"+hermes, c, ServerConfig{})
		c.v.spec.Sampling.MaxTokens = 200
		to := c.url
		if sc.hop != "" {
			to = c.between()
		}
		given[sc.name], casts = map[string]any{"url": to, "key": c.v.token}, append(casts, c)
	}
	var saw map[string]any
	python(t, given, &saw)
	for _, c := range casts {
		if diff := cmp.Diff(jsonOf(t, c.saw), saw[c.name]); diff != "" {
			if trace, ok := saw[c.name].(string); ok {
				diff = trace
			}
			t.Errorf("%s: %s", c.name, diff)
		}
		samples, trained := c.v.close(), []string{}
		for _, s := range samples {
			trained = append(trained, c.trained(s)...)
		}
		slices.Sort(trained)
		slices.Sort(c.said)
		if diff := cmp.Diff(c.said, trained); diff != "" && len(c.said) > 0 {
			t.Errorf("%s: said and trained on: %s", c.name, diff)
		}
		if len(samples) != c.samples || c.think == nil && c.asked != len(c.says) {
			t.Errorf("%s: %d samples of %d generations", c.name, len(samples), c.asked)
		}
		if diff := cmp.Diff(c.scene.statuses, c.statuses); diff != "" {
			t.Errorf("%s: statuses %s", c.name, diff)
		}
	}
}

// python plays what is given in the environment that `make test` installs.
func python(t *testing.T, given, saw any) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	play := exec.CommandContext(ctx, filepath.Join(cache, "molt", "testing", "bin", "python"), "testdata/clients.py")
	play.Stdin = strings.NewReader(text(given))
	play.Stderr = new(bytes.Buffer)
	out, err := play.Output()
	if err == nil {
		err = json.Unmarshal(out, saw)
	}
	if err != nil {
		t.Fatalf("%v: `scripts/python testing` installs what it needs\n%s\n%s", err, out, play.Stderr)
	}
}

func TestCurlIsServed(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip(err)
	}
	s := newStand(t, chatML, &saying{texts: []string{"one" + "<|im_end|>"}}, ServerConfig{})
	for _, more := range []string{"", `,"stream":true`} {
		out, err := exec.CommandContext(t.Context(), "curl", "-sSN", s.url+"/v1/chat/completions", "-H", "Authorization: Bearer "+s.v.token,
			"-H", "Content-Type: application/json", "-d", talk(more, "u")).Output()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n\n")
		if more == "" {
			if a, _ := jsonOf(t, string(out)).(object); err != nil || at(a, "choices", 0, "message", "content") != "one" {
				t.Errorf("%v: %s", err, out)
			}
		} else if err != nil || len(lines) < 3 || lines[len(lines)-1] != "data: [DONE]" || !strings.Contains(lines[0], `"content":"o"`) {
			t.Errorf("%v: %s", err, out)
		}
	}
	if samples := s.v.close(); len(samples) != 2 {
		t.Errorf("%d samples", len(samples))
	}
}
