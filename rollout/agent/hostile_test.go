package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/molt-go/molt/rollout"
)

const (
	asked   = `"messages":[{"role":"user","content":"u"}]`
	toolF   = `"tools":[{"type":"function","function":{"name":"f"}}]`
	tooling = `{` + asked + `,` + toolF + `,"tool_choice":`
)

func deep(open, close string, depth int) string {
	return strings.Repeat(open, depth) + "1" + strings.Repeat(close, depth)
}

// named offers a tool of a name in a dialect's form and has it called.
func named(path, name string) string {
	quoted := text(name)
	switch path {
	case "messages":
		return `{` + asked + `,"max_tokens":9,"tools":[{"name":` + quoted + `,"input_schema":{}}],"tool_choice":{"type":"any"}}`
	case "responses":
		return `{"input":"u","tools":[{"type":"function","name":` + quoted + `}],"tool_choice":"required"}`
	}
	return `{` + asked + `,"tools":[{"type":"function","function":{"name":` + quoted + `}}],"tool_choice":"required"}`
}

// What a client gets wrong is answered with 400 in its vendor's form, in few words that name it and tell nothing of the server's insides,
// and the session is as it was.
func TestAFaultOfTheClientIsNamed(t *testing.T) {
	s := newStand(t, hermes, &saying{texts: []string{"ok<|im_end|>"}}, ServerConfig{Context: 100_000})
	chat, anthropic := "chat/completions", "messages"
	cases := []struct{ path, body, want string }{
		{chat, `{"messages":[null]}`, "number 0 has no role"},
		{chat, `{"messages":[{"role":"user","content":"u"},{"content":"x"}]}`, "number 1 has no role"},
		{chat, `{"messages":[{"role":"user","content":5}]}`, "content: give text or a list of parts"},
		{chat, `{"messages":[{"role":5,"content":"x"}]}`, "role cannot be a number"},
		{chat, `{"messages":{}}`, "messages: cannot be a object"},
		{chat, `{"messages":[{"role":"assistant","tool_calls":3}]}`, "tool_calls: cannot be a number"},
		{chat, `{"messages":[{"role":"assistant","tool_calls":[{}]}]}`, "chat template"},
		{chat, `{` + asked + `,"tools":3}`, "tools: give a list of objects"}, {chat, `{` + asked + `,"tools":[3]}`, `the name "" of number 0`},
		{chat, `{` + asked + `,"n":9000000000000000000}`, "n: must be from 1 to 128"},
		{chat, `{` + asked + `,"n":100000000000}`, "n: must be from 1 to 128"},
		{chat, `{` + asked + `,"n":1.5}`, "n: cannot be a number 1.5"},
		{chat, `{` + asked + `,"temperature":1e999}`, "temperature: cannot be a number 1e999"},
		{chat, `{` + asked + `,"temperature":NaN}`, "no JSON object"},
		{chat, `{` + asked + `,"stop":` + text(strings.Split(strings.Repeat("x", 100_000), "")) + `}`, "stop: must be at most 64"},
		{chat, `{` + asked + `,"logit_bias":{"-1":1}}`, "logit_bias: must be for tokens"},
		{chat, `{` + asked + `,"` + strings.Repeat("k", 100_000) + `":1}`, "is not supported"},
		{chat, tooling + `[]}`, "tool_choice: [] is not supported"},
		{chat, tooling + `{"type":5}}`, "tool_choice: "}, {chat, tooling + `{"type":"function","function":"f"}}`, "tool_choice: "},
		{chat, tooling + `{"function":{"name":"f"}}}`, "tool_choice: "}, {chat, tooling + `5}`, "tool_choice: 5 is not supported"},
		{chat, tooling + deep("[", "]", 9000) + `}`, "tool_choice: "},
		{chat, `{` + asked + `,"tools":[` + deep(`{"a":`, `}`, 20_000) + `]}`, "exceeded max depth"},
		{chat, "", "no JSON object"}, {chat, "null", "messages: there are none"}, {chat, "\xff\xfe{}", "no JSON object"},
		{chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\x00\"}]}", "no JSON object"},
		{anthropic, `{"max_tokens":9,"messages":[{"content":"x"}]}`, "number 0 has no role"},
		{anthropic, `{"max_tokens":9,"messages":[{"role":"user","content":[5]}]}`, "content cannot be a number"},
		{anthropic, `{"max_tokens":9,` + asked + `,"system":5}`, "system: cannot be a number"},
		{anthropic, `{"max_tokens":9,"messages":[{"role":"user","content":[{"type":"tool_result","content":5}]}]}`, "tool_result: content: cannot be a number"},
		{anthropic, `{"max_tokens":9,"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"tool_result"}]}]}]}`, `"tool_result" is not supported`},
		{"responses", `{"input":null}`, "input: must be a text or a list"}, {"responses", `{"input":5}`, "input: must be a text or a list"},
		{"responses", `{"input":[null]}`, "number 0 has no role"}, {"responses", `{"input":[{"role":"user","content":5}]}`, "content cannot be a number"},
		{"responses", `{"input":"u","previous_response_id":"` + strings.Repeat("x", 100_000) + `"}`, "previous_response_id: there is no"},
		{"completions", `{"prompt":[-1]}`, "prompt: must be of tokens"}, {"completions", `{"prompt":[1.5]}`, "prompt: must be a text or a list"},
		{"completions", `{"prompt":[4294967297]}`, "prompt: must be a text or a list"}, {"completions", `{"prompt":"a","n":100000000000}`, "n: must be"},
		{"completions", `{"prompt":[` + strings.Repeat("1,", 100_000) + `99999]}`, "prompt: must be of tokens"},
	}
	for _, path := range []string{chat, anthropic, "responses"} {
		for _, name := range []string{"", "a b", "a\"b", "a\nb", "<|im_end|>", "{{x}}", "f\x00", strings.Repeat("f", 200)} {
			cases = append(cases, struct{ path, body, want string }{path, named(path, name), "tools: the name"})
		}
		for _, name := range []string{"f", "mcp__server-1.get/x:y", "грузить"} {
			if status, a, _ := s.post(path, named(path, name)); status != 200 {
				t.Errorf("%s: tool %q: %d %v", path, name, status, a)
			}
		}
	}
	before := len(s.v.samples)
	for _, c := range cases {
		status, a, _ := s.post(c.path, c.body)
		message, _ := at(a, "error", "message").(string)
		if status != 400 || !strings.Contains(message, c.want) || len(message) > 1100 || at(a, "error", "type") != "invalid_request_error" {
			t.Errorf("%s %.80s: %d %.300s, want %q", c.path, c.body, status, text(a), c.want)
		}
		for _, inside := range []string{"Go ", "struct", "goroutine", "[]agent", ".go:"} {
			if strings.Contains(message, inside) {
				t.Errorf("%s %.80s: %.300s", c.path, c.body, message)
			}
		}
	}
	if after := s.v.close(); len(after) != before {
		t.Errorf("%d samples, then %d", before, len(after))
	}
}

// Strange but meant: these are answered like any other.
func TestStrangeRequestsAreServed(t *testing.T) {
	g := &saying{texts: []string{"ok<|im_end|>"}}
	s := newStand(t, hermes, g, ServerConfig{Context: 1 << 20})
	for _, body := range []string{
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\xff\\u0000\\ud800\"}]}", // becomes U+FFFD
		`{` + asked + `,` + asked + `}`,                                            // of equal keys the last counts
		`{"messages":[{"role":"user","content":"u"},{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}},
			{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":null},{"role":"tool","tool_call_id":"c"}]}`,
		`{` + asked + `,"metadata":` + deep("[", "]", 9000) + `,"seed":[1]}`,
		`{"messages":[` + strings.Repeat(`{"role":"user","content":"x"},{"role":"assistant","content":"y"},`, 2000) + `{"role":"user","content":"x"}]}`,
	} {
		if status, a, _ := s.post("chat/completions", body, "Content-Type", "text/plain"); status != 200 || at(a, "choices", 0, "message", "content") != "ok" {
			t.Errorf("%.80s: %d %.300s", body, status, text(a))
		}
	}
}

// A special token's text in a message is that token, as in transformers' apply_chat_template and in vLLM: what the model is trained with
// here it will meet there. None of it is trained on.
func TestASpecialTokenInAMessageIsShownAsOne(t *testing.T) {
	g := &saying{texts: []string{"ok<|im_end|>"}}
	s := newStand(t, hermes, g, ServerConfig{})
	s.post("chat/completions", talk("", "a<|im_end|>b"))
	samples, n := s.v.close(), 0
	for _, id := range g.asked[0].IDs {
		if id == s.chat.StopIDs()[0] {
			n++
		}
	}
	if n != 2 || len(samples) != 1 || samples[0].NumTrained() != 3 {
		t.Errorf("%d ends of turns, %d samples", n, len(samples))
	}
}

// Work is in proportion to the body: of what these take milliseconds for, a square would take minutes.
func TestNoBodyCostsTheSquareOfItsLength(t *testing.T) {
	s := newStand(t, hermes, &saying{texts: []string{"ok<|im_end|>"}}, ServerConfig{})
	parts := func(part string, n int) string { return strings.Repeat(part+",", n) + part }
	const n = 100_000
	for _, c := range []struct{ path, body string }{
		{"messages/count_tokens", `{"messages":[{"role":"bad role","content":[` + parts(`{"type":"text","text":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`, n) + `,{"type":"no"}]}]}`},
		{"messages/count_tokens", `{"messages":[{"role":"user","content":` + strings.Repeat(`[{"type":"tool_result","content":`, 2500) + `"` +
			strings.Repeat("x", 1<<20) + `"` + strings.Repeat(`}]`, 2500) + `}]}`},
		{"chat/completions", `{"n":0,"messages":[{"role":"user","content":[` + parts(`{"type":"text","text":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`, n) + `]}]}`},
		{"responses", `{"max_output_tokens":-1,"input":[{"role":"user","content":[` + parts(`{"type":"input_text","text":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`, n) + `]}]}`},
		{"responses", `{"max_output_tokens":-1,"input":[` + parts(`{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}`, 10_000) + `]}`},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		response, err := s.request(ctx, s.v.token, "POST", "/v1/"+c.path, c.body)
		if err != nil {
			t.Fatalf("%s: %v", c.path, err)
		}
		response.Body.Close()
		if cancel(); response.StatusCode != 400 {
			t.Errorf("%s: %d", c.path, response.StatusCode)
		}
	}
}

// Where the generator panics its client gets no stack, in no dialect, streaming or not; the rollout's error has it.
func TestAPanicsStackStaysWithTheRollout(t *testing.T) {
	gen := rollout.GeneratorFunc(func(_ context.Context, r rollout.Request) (rollout.Completion, error) {
		if g, err := rollout.Mint('x', 0, 0, 1, true); err == nil {
			r.OnToken(g)
		}
		panic("a bug")
	})
	s := newStand(t, hermes, gen, ServerConfig{})
	run := must(NewChatRunner(s.Server, func() ChatAgent {
		return agentFunc(func(ctx context.Context, c *ChatContext) (Result, error) {
			for n := range 4 {
				path, body, _ := dialectOf(n)
				for _, stream := range []bool{false, true} {
					request := body([]string{"u"}).(object)
					request["stream"] = stream
					response, err := s.request(ctx, c.APIKey, "POST", "/v1/"+path, text(request))
					if err != nil {
						return Result{}, err
					}
					answer, _ := io.ReadAll(response.Body)
					response.Body.Close()
					if !stream && response.StatusCode != 500 || !strings.Contains(string(answer), "panic: a bug") || strings.Contains(string(answer), "goroutine") {
						t.Errorf("%s: %d %s", path, response.StatusCode, answer)
					}
				}
			}
			return Result{}, errors.New("I give up")
		})
	}))
	_, err := run.Run(t.Context(), rollout.Spec{Sampling: allRun})
	var fault *rollout.Failure
	if err == nil || !strings.Contains(err.Error(), "hostile_test.go") || !errors.As(err, &fault) || fault.Kind != "generator" {
		t.Error(err)
	}
}

type agentFunc func(context.Context, *ChatContext) (Result, error)

func (f agentFunc) Run(ctx context.Context, c *ChatContext) (Result, error) { return f(ctx, c) }

// Ways to hold a connection: others are served meanwhile, and afterwards nothing is left.
func TestOddConnectionsHarmNobody(t *testing.T) {
	s := newStand(t, hermes, &saying{texts: []string{"ok<|im_end|>"}}, ServerConfig{})
	other := s.open(t.Context(), rollout.Spec{Sampling: allRun})
	before := runtime.NumGoroutine()
	body := talk("", "u")
	post := func(version, token, body string, length int) string {
		return fmt.Sprintf("POST /v1/chat/completions HTTP/%s\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", version, token, length, body)
	}
	one := post("1.1", s.v.token, body, len(body))
	for name, c := range map[string]struct {
		send string
		want []int
	}{
		"HTTP/1.0":             {post("1.0", s.v.token, body, len(body)), []int{200}},
		"pipelined":            {one + one + post("1.1", "wrong", body, len(body)) + one, []int{200, 200, 401, 200}},
		"a gigabyte":           {post("1.1", s.v.token, body, 1<<30), nil}, // of which no more comes
		"a gigabyte of no one": {post("1.1", "wrong", body, 1<<30), []int{401}},
		"another session's":    {post("1.1", other.token, body, len(body)), []int{200}},
		"no HTTP":              {"\x00\x01\r\n\r\n", []int{400}},
		"a trickle of headers": {"POST /v1/chat", nil},
		"another method":       {"DELETE /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + s.v.token + "\r\n\r\n", []int{404}},
	} {
		conn := must(net.Dial("tcp", strings.TrimPrefix(s.url, "http://")))
		must(io.WriteString(conn, c.send))
		r := bufio.NewReader(conn)
		for i, want := range c.want {
			response, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Errorf("%s: answer %d: %v", name, i, err)
				break
			}
			answer := must(io.ReadAll(response.Body))
			if response.StatusCode != want || want != 400 && !json.Valid(answer) {
				t.Errorf("%s: answer %d: %d %s", name, i, response.StatusCode, answer)
			}
		}
		if half := conn.(*net.TCPConn); name == "a gigabyte" {
			must(0, half.CloseWrite()) // half closed: the body has ended too early
			if response, err := http.ReadResponse(r, nil); err != nil || response.StatusCode != 400 {
				t.Errorf("half closed: %v, %v", response, err)
			}
		}
		conn.Close()
	}
	if n := len(other.close()); n != 1 {
		t.Errorf("the other session has %d samples", n)
	}
	if a, _ := s.ask(s.v.token, body); a.status != 200 {
		t.Errorf("%+v", a)
	}
	http.DefaultClient.CloseIdleConnections()
	for wait := time.Now(); runtime.NumGoroutine() > before && time.Since(wait) < 10*time.Second; {
		time.Sleep(5 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines, then %d", before, n)
	}
}

// Calls that a client adds to an earlier response's are shown in their order, and only to its own request.
func TestCallsAddedToAResponseStayWithTheRequest(t *testing.T) {
	g := &saying{texts: []string{callOfF + " {\"x\": 0}" + callEnd + "<|im_end|>", "ok<|im_end|>"}}
	s := newStand(t, hermes, g, ServerConfig{})
	s.v.spec.Sampling.MaxTokens = 200
	_, first, _ := s.post("responses", `{"input":"u","tools":[{"type":"function","name":"f"}]}`)
	for _, names := range [][]string{{"g", "h"}, {"i"}, nil} {
		input := []any{}
		want := "u<|im_end|>\n<|im_start|>assistant\n" + callOfF + " {\"x\": 0}" + callEnd
		for _, name := range names {
			input = append(input, object{"type": "function_call", "call_id": name, "name": name, "arguments": "{}"})
			want += anyCall + name + "\", \"arguments\": {}" + callEnd
		}
		s.post("responses", text(object{"previous_response_id": first["id"], "input": append(input, object{"role": "user", "content": "v"})}))
		if shown := s.chat.Decode(g.asked[len(g.asked)-1].IDs); !strings.Contains(shown, want+"<|im_end|>") {
			t.Errorf("%v: the model was shown %q, want %q", names, shown, want)
		}
	}
}
