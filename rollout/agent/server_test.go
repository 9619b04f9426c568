package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

// answered is an answer of the API, or a chunk of one.
type answered struct {
	status  int
	ID      string
	Object  string
	Model   string
	Choices []struct {
		Index          int
		Message, Delta struct {
			Role      string
			Content   *string
			Reasoning string          `json:"reasoning_content"`
			ToolCalls json.RawMessage `json:"tool_calls"`
		}
		LogProbs *struct {
			Content []struct {
				Token   string
				LogProb float32
				Top     []struct{ Token string } `json:"top_logprobs"`
			}
		}
		Finish *string `json:"finish_reason"`
	}
	Usage map[string]int
	Error struct {
		Message, Type string
		Code          *string
	}
}

func (a answered) text() string {
	if len(a.Choices) == 0 || a.Choices[0].Message.Content == nil {
		return ""
	}
	return *a.Choices[0].Message.Content
}

// stand is a server with one visit.
type stand struct {
	*testing.T
	*Server
	v *visit
}

var allRun = rollout.Sampling{Temperature: 1, MaxTokens: 40}

func newStand(t *testing.T, template string, gen rollout.Generator, c ServerConfig) *stand {
	t.Helper()
	if c.Context == 0 {
		c.Context = 2000
	}
	if c.Sampling == "" {
		c.Sampling = "honour"
	}
	s, err := NewServer(byteChat(t, template), gen, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &stand{t, s, s.open(t.Context(), rollout.Spec{Seed: 5, Sampling: allRun})}
}

// ids are those of text with the special end of a turn, one a byte otherwise.
func (s *stand) ids(text string) (ids []int32) {
	return say(s.chat, text)
}

func say(chat *multimodal.Chat, text string) (ids []int32) {
	for i, part := range strings.Split(text, "<|im_end|>") {
		if i > 0 {
			ids = append(ids, chat.StopIDs()[0])
		}
		for _, b := range []byte(part) {
			ids = append(ids, int32(b))
		}
	}
	return ids
}

// saying is a generator of texts that bytes stand for, one for each call in turn, the last again and again.
type saying struct {
	texts []string
	mu    sync.Mutex
	asked []rollout.Request
}

func (g *saying) Generate(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
	g.mu.Lock()
	text := g.texts[min(len(g.asked), len(g.texts)-1)]
	g.asked = append(g.asked, r)
	g.mu.Unlock()
	return script(text, r).Generate(ctx, r)
}

// script says text as bytes; its end of a turn is the first stop id of the request.
func script(text string, r rollout.Request) rollout.Script {
	var ids []int32
	for i, part := range strings.Split(text, "<|im_end|>") {
		if i > 0 {
			ids = append(ids, r.Sampling.StopIDs[0])
		}
		for _, b := range []byte(part) {
			ids = append(ids, int32(b))
		}
	}
	logp := make([]float32, len(ids))
	for i := range logp {
		logp[i] = -float32(i+1) / 8
	}
	return rollout.Script{Reply: func(rollout.Request) ([]int32, []float32, error) { return ids, logp, nil }}
}

func (s *stand) request(ctx context.Context, token, method, path, body string, headers ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return http.DefaultClient.Do(r)
}

// ask gives the answer to a request for a chat; of a stream its chunks.
func (s *stand) ask(token, body string, headers ...string) (answered, []answered) {
	s.Helper()
	response, err := s.request(s.Context(), token, "POST", "/v1/chat/completions", body, headers...)
	if err != nil {
		s.Error(err)
		return answered{}, nil
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.Error(err)
	}
	a := answered{status: response.StatusCode}
	if response.Header.Get("Content-Type") == "application/json" {
		if err := json.Unmarshal(text, &a); err != nil {
			s.Errorf("%v: %s", err, text)
		}
		return a, nil
	}
	var chunks []answered
	events := strings.Split(strings.TrimSuffix(string(text), "\n\n"), "\n\n")
	for i, event := range events {
		var c answered
		if data, ok := strings.CutPrefix(event, "data: "); !ok {
			s.Errorf("event %q", event)
		} else if i == len(events)-1 && data == "[DONE]" {
		} else if err := json.Unmarshal([]byte(data), &c); err != nil {
			s.Errorf("%v: %s", err, data)
		} else {
			chunks = append(chunks, c)
		}
	}
	return a, chunks
}

// talk is the JSON of a request: messages alternate, the user's first; more is put into the object.
func talk(more string, texts ...string) string {
	var ms []map[string]string
	for i, text := range texts {
		ms = append(ms, map[string]string{"role": []string{"user", "assistant"}[i%2], "content": text})
	}
	b, _ := json.Marshal(ms)
	return fmt.Sprintf(`{"model":"any","messages":%s%s}`, b, more)
}

// Case T1 over HTTP: what is trained on is what was generated, although the client sends text, and the ids would be others if that were
// encoded again.
func TestChatCompletionsAreTrainedOnAsTheyWereGenerated(t *testing.T) {
	g := &saying{texts: []string{"thinking<|im_end|>", "hell<|im_end|>"}}
	s := newStand(t, chatML, g, ServerConfig{})
	first, _ := s.ask(s.v.token, talk("", "u1"))
	if first.status != 200 || first.text() != "thinking" || *first.Choices[0].Finish != "stop" || first.Model != "any" || first.Object != "chat.completion" {
		t.Fatalf("%+v", first)
	}
	second, _ := s.ask(s.v.token, talk("", "u1", first.text(), "u2"))
	if second.text() != "hell" {
		t.Errorf("%+v", second)
	}
	prompt, delta := s.chat.Encode("<|im_start|>user\nu1<|im_end|>\n<|im_start|>assistant\n"), s.chat.Encode("\n<|im_start|>user\nu2<|im_end|>\n<|im_start|>assistant\n")
	a, b := s.ids("thinking<|im_end|>"), s.ids("hell<|im_end|>")
	if again := s.chat.Encode("thinking"); len(again) >= len(a)-1 {
		t.Fatalf("the text has the ids that it is generated in: %v", again)
	}
	samples := s.v.close()
	if len(samples) != 1 {
		t.Fatalf("%d samples", len(samples))
	}
	k := samples[0].Tokens()
	if diff := cmp.Diff(slices.Concat(prompt, a, delta, b), k.IDs); diff != "" {
		t.Error(diff)
	}
	mask := slices.Concat(make([]bool, len(prompt)), slices.Repeat([]bool{true}, len(a)), make([]bool, len(delta)), slices.Repeat([]bool{true}, len(b)))
	if diff := cmp.Diff(mask, k.Mask); diff != "" {
		t.Error(diff)
	}
	if k.LogP[len(prompt)] != -0.125 || k.LogP[len(k.IDs)-1] != -float32(len(b))/8 {
		t.Errorf("log-probs %v", k.LogP)
	}
	usage := map[string]int{"prompt_tokens": len(prompt), "completion_tokens": len(a), "total_tokens": len(prompt) + len(a)}
	if diff := cmp.Diff(usage, first.Usage); diff != "" {
		t.Error(diff)
	}
}

// The model said the stop string, so it stays in the ids; but it is not the end of a turn, which the template still has to write.
func TestAReplyThatAStopStringEndedIsGoneOnFrom(t *testing.T) {
	g := &saying{texts: []string{"one STOP two", "b<|im_end|>"}}
	s := newStand(t, chatML, g, ServerConfig{})
	first, _ := s.ask(s.v.token, talk(`,"stop":"STOP"`, "u1"))
	second, _ := s.ask(s.v.token, talk("", "u1", first.text(), "u2"))
	want := s.chat.Decode(g.asked[0].IDs) + "one STOP<|im_end|>\n<|im_start|>user\nu2<|im_end|>\n<|im_start|>assistant\n"
	if got := s.chat.Decode(g.asked[1].IDs); got != want || first.text() != "one " || second.text() != "b" {
		t.Errorf("%q, %q; prompt %q, want %q", first.text(), second.text(), got, want)
	}
	if samples := s.v.close(); len(samples) != 1 || samples[0].NumTrained() != 8+2 {
		t.Errorf("%d samples", len(samples))
	}
}

// joined puts the deltas of a choice together.
func joined(chunks []answered, index int) (content, reasoning string, calls json.RawMessage, finish string) {
	for _, c := range chunks {
		for _, x := range c.Choices {
			if x.Index == index {
				if x.Delta.Content != nil {
					content += *x.Delta.Content
				}
				reasoning += x.Delta.Reasoning
				if x.Delta.ToolCalls != nil {
					calls = x.Delta.ToolCalls
				}
				if x.Finish != nil {
					finish += *x.Finish
				}
			}
		}
	}
	return content, reasoning, calls, finish
}

const thoughtful = "{% if false %}</think>{% endif %}" + calling

// Case P3 too: characters over several tokens, stop strings, thoughts and calls, cut off or not, and what is none of that.
func TestTheDeltasOfAStreamMakeTheWholeReply(t *testing.T) {
	const tools = `,"tools":[{"type":"function","function":{"name":"f"}}]`
	call := "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"
	for _, c := range []struct{ said, more, content, reasoning, args, finish string }{
		{"plain 😍 é<|im_end|>", "", "plain 😍 é", "", "", "stop"},
		{"cut \xf0\x9f", "", "cut \uFFFD", "", "", "stop"},
		{strings.Repeat("x", 50), "", strings.Repeat("x", 40), "", "", "length"},
		{"one STOP two", `,"stop":"STOP"`, "one ", "", "", "stop"},
		{"one ST two<|im_end|>", `,"stop":["STOP","TOP"]`, "one ST two", "", "", "stop"},
		{"<think>\nwhy < ok\n</think>\n\nso<|im_end|>", "", "so", "why < ok", "", "stop"},
		{"<think>never ending</th<|im_end|>", "", "", "never ending</th", "", "stop"},
		{"<thin<|im_end|>", "", "<thin", "", "", "stop"},
		{"a <think>b</think><|im_end|>", "", "a <think>b</think>", "", "", "stop"},
		{"I call \n" + call + "\n<|im_end|>", tools + `,"max_tokens":200`, "I call", "", `{"x": 1}`, "tool_calls"},
		{call + "<|im_end|>", tools + `,"max_tokens":200`, "", "", `{"x": 1}`, "tool_calls"},
		{call + "<|im_end|>", `,"max_tokens":200`, call, "", "", "stop"},
		{call + "<|im_end|>", tools + `,"tool_choice":"none","max_tokens":200`, call, "", "", "stop"},
		{"a <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b\" and c}}</tool_call> b <|im_end|>", tools + `,"max_tokens":200`,
			"a <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b\" and c}}</tool_call> b ", "", "", "stop"},
		{"<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call><|im_end|>", tools + `,"max_tokens":200`,
			"<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>", "", "", "stop"},
		{"a <tool_call>{\"name\": ", tools + `,"max_tokens":200`, "a <tool_call>{\"name\": ", "", "", "stop"},
	} {
		s := newStand(t, thoughtful, &saying{texts: []string{c.said}}, ServerConfig{})
		whole, _ := s.ask(s.v.token, talk(c.more, "u"))
		_, chunks := s.ask(s.v.token, talk(c.more+`,"stream":true,"stream_options":{"include_usage":true}`, "u"))
		if len(chunks) < 2 {
			t.Fatalf("%q: %+v, %d chunks", c.said, whole, len(chunks))
		}
		for _, chunk := range chunks[1:] {
			if len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Role != "" {
				t.Errorf("%q: the role comes twice", c.said)
			}
		}
		if _, plain := s.ask(s.v.token, talk(c.more+`,"stream":true`, "u")); len(plain[len(plain)-1].Choices) != 1 {
			t.Errorf("%q: usage that nobody asked for", c.said)
		}
		content, reasoning, calls, finish := joined(chunks, 0)
		m := whole.Choices[0].Message
		if content != c.content || reasoning != c.reasoning || finish != c.finish || whole.text() != c.content || m.Reasoning != c.reasoning ||
			*whole.Choices[0].Finish != c.finish || m.Role != "assistant" || chunks[0].Choices[0].Delta.Role != "assistant" {
			t.Errorf("%q: stream %q, %q, %q; whole %q, %q, %q", c.said, content, reasoning, finish, whole.text(), m.Reasoning, *whole.Choices[0].Finish)
		}
		for _, raw := range []json.RawMessage{calls, m.ToolCalls} {
			var list []struct {
				ID       string
				Function struct{ Name, Arguments string }
			}
			_ = json.Unmarshal(raw, &list)
			if c.args == "" && raw != nil || c.args != "" && (len(list) != 1 || list[0].Function.Arguments != c.args || list[0].Function.Name != "f" || list[0].ID == "") {
				t.Errorf("%q: calls %s", c.said, raw)
			}
		}
		if last := chunks[len(chunks)-1]; len(last.Choices) != 0 || cmp.Diff(whole.Usage, last.Usage) != "" || last.Object != "chat.completion.chunk" {
			t.Errorf("%q: usage %+v, %+v", c.said, whole.Usage, last)
		}
		if strings.HasPrefix(c.said, "plain") && len(chunks) < 8 {
			t.Errorf("only %d chunks", len(chunks))
		}
	}
}

// Whatever the model says and however its text falls into tokens, no delta has to be taken back.
func TestWhatIsHeldBackIsEnough(t *testing.T) {
	chat := byteChat(t, chatML)
	words := []string{"<think>", "</think>", "<tool_call>", "</tool_call>", `{"name":"f","arguments":{}}`, "\n", " ", "a", "é", "STOP", "ST", "<", "</"}
	for seed := range uint64(30000) {
		var text string
		for k := range uint64(6) {
			text += words[rollout.MixSeed(seed, k)%uint64(len(words))]
		}
		s := &speech{decoder: multimodal.NewStream(chat.Tokenizer()), stops: [][]string{nil, {"STOP"}}[seed%2], thinks: seed%3 > 0, thinking: seed%3 > 1, offered: [][]string{nil, {"f"}, {"f"}, {"f"}, {"f"}}[seed%5], style: chat.Calls()}
		var before multimodal.Message
		for i := range len(text) + 1 {
			if i < len(text) {
				g, err := rollout.Mint(int32(text[i]), 0, 0, 1, true)
				if err != nil {
					t.Fatal(err)
				}
				s.add(g)
			}
			m := s.message(i == len(text))
			if !strings.HasPrefix(m.Content, before.Content) || !strings.HasPrefix(m.Reasoning, before.Reasoning) {
				t.Fatalf("%q: %+v after %+v", text[:i], m, before)
			}
			before = m
		}
	}
}

func TestThoughtsAndCallsComeBackIntoTheTemplate(t *testing.T) {
	call := "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\":  1}}</tool_call>"
	g := &saying{texts: []string{"<think>why</think>" + call + "<|im_end|>", "so<|im_end|>"}}
	s := newStand(t, thoughtful, g, ServerConfig{})
	const tools = `"max_tokens":200,"tools":[{"type":"function","function":{"name":"f"}}]`
	first, _ := s.ask(s.v.token, `{"messages":[{"role":"user","content":"u"}],`+tools+`}`)
	m := first.Choices[0].Message
	for _, back := range []string{`"content":null,"reasoning_content":"why"`, `"content":""`, `"refusal":null`} { // all that clients send back
		second, _ := s.ask(s.v.token, fmt.Sprintf(`{"messages":[{"role":"user","content":"u"},{"role":"assistant",%s,"tool_calls":%s},
			{"role":"tool","tool_call_id":"1","content":"42"}],%s}`, back, m.ToolCalls, tools))
		if second.text() != "so" {
			t.Errorf("%+v", second)
		}
		want := s.chat.Decode(g.asked[0].IDs) + "<think>why</think>" + call + "<|im_end|>\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n"
		if got := s.chat.Decode(g.asked[len(g.asked)-1].IDs); got != want {
			t.Errorf("%s: prompt %q, want %q", back, got, want)
		}
	}
	if samples := s.v.close(); len(samples) != 3 || samples[1].Len() != samples[0].Len() {
		t.Errorf("%d samples", len(samples))
	}
}

// Case P2.
func TestBrokenArgumentsInTheHistoryAreNoError(t *testing.T) {
	g := &saying{texts: []string{"ok<|im_end|>"}}
	s := newStand(t, calling, g, ServerConfig{})
	a, _ := s.ask(s.v.token, `{"messages":[{"role":"user","content":"u"},{"role":"assistant","tool_calls":[{"id":"c","type":"function",
		"function":{"name":"f","arguments":"{\"a\": \"b\" and c}"}}]},{"role":"tool","tool_call_id":"c","content":"no JSON"}]}`)
	if prompt := s.chat.Decode(g.asked[0].IDs); a.status != 200 || !strings.Contains(prompt, `"{\"a\": \"b\" and c}"}</tool_call>`) || !strings.Contains(prompt, "no JSON") {
		t.Errorf("%+v; prompt %q", a, prompt)
	}
}

func TestDevelopersSpeakAsTheSystem(t *testing.T) {
	g := &saying{texts: []string{"ok<|im_end|>"}}
	s := newStand(t, chatML, g, ServerConfig{})
	s.ask(s.v.token, `{"messages":[{"role":"developer","content":"d"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`)
	want := "<|im_start|>system\nd<|im_end|>\n<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"
	if prompt := s.chat.Decode(g.asked[0].IDs); prompt != want {
		t.Errorf("prompt %q", prompt)
	}
}

// A template that opens the reply within its thoughts: there is no <think> in the reply.
func TestThoughtsMayBeOpenedByTheTemplate(t *testing.T) {
	open := strings.TrimSuffix(thoughtful, "{% endif %}") + "<think>\n{% endif %}"
	for said, want := range map[string][2]string{"why</think>so<|im_end|>": {"why", "so"}, "<think>why</think>so<|im_end|>": {"why", "so"},
		"why<|im_end|>": {"why", ""}} {
		s := newStand(t, open, &saying{texts: []string{said}}, ServerConfig{})
		_, chunks := s.ask(s.v.token, talk(`,"stream":true`, "u"))
		if content, reasoning, _, _ := joined(chunks, 0); reasoning != want[0] || content != want[1] {
			t.Errorf("%q: %q, %q", said, reasoning, content)
		}
	}
}

func TestNChoicesAreBranchesOfOneRollout(t *testing.T) {
	var seeds sync.Map
	gen := rollout.GeneratorFunc(func(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
		seeds.Store(r.Sampling.Seed, true)
		return script(fmt.Sprint(r.Sampling.Seed, "<|im_end|>"), r).Generate(ctx, r)
	})
	s := newStand(t, chatML, gen, ServerConfig{})
	first, _ := s.ask(s.v.token, talk("", "u"))
	history := []string{"u", first.text(), "v"}
	a, _ := s.ask(s.v.token, talk(`,"n":3`, history...))
	_, chunks := s.ask(s.v.token, talk(`,"n":3,"stream":true`, history...))
	texts := map[string]bool{}
	for i, c := range a.Choices {
		text, _, _, finish := joined(chunks, i)
		texts[*c.Message.Content], texts[text] = true, true
		if c.Index != i || finish != "stop" {
			t.Errorf("choice %d: %+v, %q", i, c, finish)
		}
	}
	samples := s.v.close()
	if len(a.Choices) != 3 || len(texts) != 6 || len(samples) != 6 {
		t.Errorf("%d choices, texts %v, %d samples", len(a.Choices), texts, len(samples))
	}
	trained := 0
	for _, tr := range samples {
		trained += tr.NumTrained()
	}
	if want := first.Usage["completion_tokens"] + 2*a.Usage["completion_tokens"]; trained < want-6 || trained > want+6 || a.Usage["prompt_tokens"] == 0 {
		t.Errorf("trained %d tokens, usage %v", trained, a.Usage)
	}
}

// The seed of a request does not depend on the order of others, and tells rollouts apart.
func TestSeedsAreAFunctionOfRolloutAndRequest(t *testing.T) {
	g := &saying{texts: []string{"a<|im_end|>"}}
	s := newStand(t, chatML, g, ServerConfig{})
	other := s.open(t.Context(), rollout.Spec{Seed: 6, Sampling: allRun})
	twin := s.open(t.Context(), rollout.Spec{Seed: 5, Sampling: allRun})
	for i, c := range []struct {
		v    *visit
		body string
	}{{s.v, talk("", "a")}, {s.v, talk("", "b")}, {twin, talk("", "b")}, {twin, talk("", "a")}, {other, talk("", "a")}, {s.v, talk("", "a")},
		{s.v, talk(`,"seed":1`, "a")}, {s.v, talk(`,"seed":1`, "a")}, {s.v, talk(`,"seed":2`, "a")}} {
		s.ask(c.v.token, c.body, "Idempotency-Key", fmt.Sprint(i))
	}
	var seeds []uint64
	for _, r := range g.asked {
		seeds = append(seeds, r.Sampling.Seed)
	}
	equal := [][2]int{{0, 3}, {1, 2}, {6, 7}}
	for i := range seeds {
		for j := range i {
			if want := slices.Contains(equal, [2]int{j, i}); (seeds[i] == seeds[j]) != want {
				t.Errorf("seeds %d and %d: %v", j, i, seeds)
			}
		}
	}
}

func TestClientSamplingIsHonouredOverriddenOrRefused(t *testing.T) {
	for _, c := range []struct {
		mode, more string
		greedy     bool
		status     int
		temp, topP float32
		trained    int
	}{
		{"honour", "", false, 200, 1, 1, 2},
		{"honour", `,"temperature":0.5,"seed":1`, false, 200, 0.5, 1, 2},
		{"honour", `,"temperature":0`, false, 200, 0, 1, 0},
		{"honour", `,"top_p":0.5`, false, 200, 1, 0.5, 0},
		{"honour", `,"logit_bias":{"65":5}`, false, 200, 1, 1, 0},
		{"honour", `,"temperature":0.5`, true, 200, 0, 1, 0},
		{"refuse", `,"temperature":0.5`, true, 200, 0, 0, 0},
		{"override", `,"temperature":0.5,"top_p":0.5,"logit_bias":{"65":5}`, false, 200, 1, 0, 2},
		{"refuse", `,"temperature":0.5`, false, 400, 0, 0, 0},
		{"refuse", `,"top_p":0.5`, false, 400, 0, 0, 0},
		{"refuse", `,"logit_bias":{"65":5}`, false, 400, 0, 0, 0},
		{"refuse", `,"temperature":1,"top_p":1,"logit_bias":{}`, false, 200, 1, 0, 2},
	} {
		g := &saying{texts: []string{"a<|im_end|>"}}
		s := newStand(t, chatML, g, ServerConfig{Sampling: c.mode})
		s.v.spec.Greedy = c.greedy
		a, _ := s.ask(s.v.token, talk(c.more+`,"max_tokens":7`, "u"))
		samples := s.v.close()
		if a.status != c.status || len(samples) != len(g.asked) || c.status == 400 && (len(samples) != 0 || !strings.Contains(a.Error.Message, "temperature")) {
			t.Fatalf("%+v: %+v, %d samples", c, a, len(samples))
		}
		if c.status == 200 {
			p := g.asked[0].Sampling
			if p.Temperature != c.temp || p.TopP != c.topP || p.MaxTokens != 7 || samples[0].NumTrained() != c.trained {
				t.Errorf("%+v: %+v, trained %d", c, p, samples[0].NumTrained())
			}
		}
	}
	if _, err := NewServer(byteChat(t, chatML), rollout.Script{}, ServerConfig{Context: 1, Sampling: "honor"}); err == nil || !strings.Contains(err.Error(), "honour") {
		t.Error(err)
	}
}

func TestLogProbsAreThoseOfTheTextsTokens(t *testing.T) {
	gen := rollout.GeneratorFunc(func(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
		c, err := script("ab<|im_end|>", r).Generate(ctx, r)
		for range c.Tokens {
			c.Top = append(c.Top, []rollout.TopLogP{{ID: 'x', LogP: -1}, {ID: 'y', LogP: -2}, {ID: 'z', LogP: -3}}[:r.Sampling.TopLogP])
		}
		return c, err
	})
	s := newStand(t, chatML, gen, ServerConfig{})
	a, _ := s.ask(s.v.token, talk(`,"logprobs":true,"top_logprobs":2`, "u"))
	_, chunks := s.ask(s.v.token, talk(`,"logprobs":true,"top_logprobs":2,"stream":true`, "u"))
	for _, l := range []any{a.Choices[0].LogProbs, chunks[0].Choices[0].LogProbs} {
		if got := fmt.Sprintf("%+v", must(json.Marshal(l))); got != fmt.Sprintf("%+v", must(json.Marshal(a.Choices[0].LogProbs))) {
			t.Errorf("log-probs %s", got)
		}
	}
	l := a.Choices[0].LogProbs.Content
	if len(l) != 2 || l[0].Token != "a" || l[1].LogProb != -0.25 || len(l[0].Top) != 2 || l[1].Top[1].Token != "y" {
		t.Errorf("%+v", l)
	}
	s.v.spec.Sampling.TopLogP = 3
	b, _ := s.ask(s.v.token, talk(`,"logprobs":true,"top_logprobs":1`, "u"))
	if l := b.Choices[0].LogProbs.Content; len(l[0].Top) != 1 {
		t.Errorf("%+v", l)
	}
	b, _ = s.ask(s.v.token, talk("", "u"))
	if b.Choices[0].LogProbs != nil {
		t.Error("log-probs that nobody asked for")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// The room that the context leaves bounds max_tokens; without any, the answer is OpenAI's for that (case P6).
func TestMaxTokensIsCutToTheRoom(t *testing.T) {
	g := &saying{texts: []string{"abcdefgh"}}
	s := newStand(t, chatML, g, ServerConfig{Context: 45})
	room := 45 - len(s.chat.Encode("<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"))
	for _, more := range []string{`,"max_tokens":1000`, `,"max_completion_tokens":1000`} {
		a, _ := s.ask(s.v.token, talk(more, "u"))
		if got := g.asked[len(g.asked)-1].Sampling.MaxTokens; got != room || a.status != 200 {
			t.Errorf("asked for %d of %d: %+v", got, room, a)
		}
	}
	a, _ := s.ask(s.v.token, talk("", strings.Repeat("u", 45)))
	if a.status != 400 || a.Error.Code == nil || *a.Error.Code != "context_length_exceeded" || a.Error.Type != "invalid_request_error" || !s.v.full {
		t.Errorf("%+v", a)
	}
}

func TestARequestThatCannotBeMetNamesItsKey(t *testing.T) {
	s := newStand(t, chatML, &saying{texts: []string{"a"}}, ServerConfig{})
	for more, want := range map[string]string{
		`,"response_format":{"type":"json_schema","json_schema":{}}`:           "response_format: must be text: it is json_schema",
		`,"presence_penalty, frequency_penalty: must be 0: it is [0.1 0]":0.1`: "presence_penalty, frequency_penalty: must be 0: it is [0.1 0]",
		`,"frequency_penalty: must be 0: it is [0 -1]":-1`:                     "frequency_penalty: must be 0: it is [0 -1]",
		`,"logit_bias":{"999999":1}`:                                           "logit_bias: must be for tokens of the vocabulary: it is map[999999:1]",
		`,"top_k":3`:                                                           `"top_k" is not supported`,
		`,"n":0`:                                                               "n: must be from 1 to 128: it is 0",
		`,"n":1000000`:                                                         "n: must be from 1 to 128: it is 1000000",
		`,"temperature":-1`:                                                    "temperature: must be from 0 to 100: it is -1",
		`,"temperature":"hot"`:                                                 "temperature: ",
		`,"top_p":0`:                                                           "top_p: must be above 0",
		`,"max_tokens":-4`:                                                     "max_tokens: must be at least 1: it is -4",
		`,"top_logprobs":21`:                                                   "top_logprobs: must be from 0 to 20: it is 21",
		`,"stop":""`:                                                           "stop: ",
		`,"tool_choice":"required"`:                                            "tool_choice: the request has no tools",
		`,"tools":3`:                                                           "tools: ",
		`,"messages":[]`:                                                       "messages: ",
		`,"messages":[{"role":"user","content":[{"type":"image_url","image_url":"data:x"}]}]`: "message 0 has an image",
		`,"messages":[{"role":"user","content":[{"type":"audio"}]}]`:                          "audio",
		`}{`: "no JSON object",
		`,"metadata":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000):                          "exceeded max depth",
		`,"messages":[{"role":"user","x":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}]`: "RecursionError",
	} {
		a, _ := s.ask(s.v.token, talk(more, "u"))
		if a.status != 400 || !strings.Contains(a.Error.Message, want) || a.Error.Type != "invalid_request_error" {
			t.Errorf("%.60s: %d %+v, want %q", more, a.status, a.Error, want)
		}
	}
	a, _ := s.ask(s.v.token, talk(`,"n":null,"stop":null,"temperature":null,"tools":null,"tool_choice":null,"response_format":{"type":"text"},
		"user":"me","store":false,"metadata":{"a":"b"},"presence_penalty":0,"parallel_tool_calls":true,"stream_options":null`, "u"))
	if a.status != 200 || a.text() != "a" {
		t.Errorf("%+v", a)
	}
	if samples := s.v.close(); len(samples) != 1 {
		t.Errorf("%d samples", len(samples))
	}
}

func TestATokenOpensItsOwnSessionWhileThatLasts(t *testing.T) {
	s := newStand(t, chatML, &saying{texts: []string{"a<|im_end|>"}}, ServerConfig{})
	other := s.open(t.Context(), rollout.Spec{Sampling: allRun})
	body := talk("", "u")
	for _, token := range []string{"", "x", s.v.token + "x", s.v.token[:len(s.v.token)-1], strings.ToUpper(s.v.token)} {
		if a, _ := s.ask(token, body); a.status != 401 || *a.Error.Code != "invalid_api_key" || a.Error.Type != "invalid_request_error" {
			t.Errorf("token %q: %+v", token, a)
		}
	}
	for _, other := range []string{"", "Bearer another service's"} { // which Anthropic's clients take from the environment
		if a, _ := s.ask("", body, "Authorization", other, "X-Api-Key", s.v.token); a.status != 200 {
			t.Errorf("x-api-key: %+v", a)
		}
	}
	s.ask(other.token, body)
	if n := len(s.v.close()); n != 2 {
		t.Errorf("%d samples, one is another session's", n)
	}
	if a, _ := s.ask(s.v.token, body); a.status != 401 {
		t.Errorf("closed session: %+v", a)
	}
	if a, _ := s.ask(other.token, body); a.status != 200 {
		t.Errorf("other session: %+v", a)
	}
	for path, status := range map[string]int{"/v1/models": 200, "/v1/nothing": 404, "/": 404} {
		response, err := s.request(t.Context(), other.token, "GET", path, "")
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != status || !json.Valid(text) || status == 200 && !bytes.Contains(text, []byte(`"id":"policy"`)) {
			t.Errorf("%s: %d %s", path, response.StatusCode, text)
		}
	}
}

func TestARetryGetsTheRecordedReply(t *testing.T) {
	n := atomic.Int32{}
	gen := rollout.GeneratorFunc(func(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
		return script(fmt.Sprint(n.Add(1), "<|im_end|>"), r).Generate(ctx, r)
	})
	s := newStand(t, chatML, gen, ServerConfig{})
	body, stream := talk("", "u"), talk(`,"stream":true,"n":2`, "u")
	for i, c := range []struct {
		want    string
		headers []string
	}{
		{"1", []string{"X-Stainless-Retry-Count", "0"}}, {"1", []string{"X-Stainless-Retry-Count", "1"}}, {"2", nil},
		{"3", []string{"Idempotency-Key", "k"}}, {"3", []string{"Idempotency-Key", "k"}}, {"4", []string{"Idempotency-Key", "l"}},
	} {
		if a, _ := s.ask(s.v.token, body, c.headers...); a.text() != c.want {
			t.Errorf("request %d: %q, want %q", i, a.text(), c.want)
		}
	}
	_, a := s.ask(s.v.token, stream)
	_, b := s.ask(s.v.token, stream, "X-Stainless-Retry-Count", "2")
	for i := range 2 {
		x, _, _, _ := joined(a, i)
		y, _, _, finish := joined(b, i)
		if x != y || x == "" || finish != "stop" {
			t.Errorf("choice %d: %q, then %q", i, x, y)
		}
	}
	if samples := s.v.close(); len(samples) != 6 || n.Load() != 6 {
		t.Errorf("%d samples of %d generations", len(samples), n.Load())
	}
}

func TestALostReplyIsGivenAgain(t *testing.T) {
	for _, more := range []string{"", `,"stream":true`} {
		started := make(chan bool, 1)
		n := 0
		gen := rollout.GeneratorFunc(func(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
			if n++; n == 1 {
				started <- true
				<-ctx.Done() // the reply is complete when its client is gone
			}
			return script(fmt.Sprint(n, "<|im_end|>"), r).Generate(context.WithoutCancel(ctx), r)
		})
		s := newStand(t, chatML, gen, ServerConfig{})
		ctx, hangUp := context.WithCancel(t.Context())
		go func() { <-started; hangUp() }()
		if response, err := s.request(ctx, s.v.token, "POST", "/v1/chat/completions", talk(more, "u")); err == nil {
			response.Body.Close()
			t.Fatal("an answer before the reply")
		}
		for lost, wait := false, time.Now(); !lost && time.Since(wait) < 20*time.Second; { // until the server has noticed
			s.v.Session.mu.Lock()
			for _, r := range s.v.replies {
				lost = r.held == 0
			}
			s.v.Session.mu.Unlock()
			time.Sleep(time.Millisecond)
		}
		for i, want := range []string{"1", "2"} { // then the client has it, and an equal request is a branch
			a, chunks := s.ask(s.v.token, talk(more, "u"))
			text, _, _, _ := joined(chunks, 0)
			if text+a.text() != want {
				t.Errorf("request %d: %q", i, text+a.text())
			}
		}
		if samples := s.v.close(); len(samples) != 2 || n != 2 {
			t.Errorf("%d samples of %d generations", len(samples), n)
		}
	}
}

func TestAGenerationEndsWithItsRequestOrSession(t *testing.T) {
	started, ended := make(chan bool), make(chan error)
	gen := rollout.GeneratorFunc(func(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
		started <- true
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return rollout.Completion{}, ctx.Err()
	})
	s := newStand(t, chatML, gen, ServerConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := s.request(ctx, s.v.token, "POST", "/v1/chat/completions", talk("", "u"))
		gone <- err
	}()
	<-started
	cancel()
	<-ended
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	go func() {
		response, err := s.request(t.Context(), s.v.token, "POST", "/v1/chat/completions", talk("", "u"))
		if err == nil {
			response.Body.Close()
		}
		gone <- nil
	}()
	<-started
	samples := s.v.close()
	if err := <-ended; !errors.Is(err, errKey) {
		t.Error(err)
	}
	<-gone
	if len(samples) != 0 {
		t.Errorf("%d samples", len(samples))
	}
}

func TestErrorsOfTheGeneratorAreTheServers(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
	}{{errors.New("boom"), 500}, {fmt.Errorf("gone: %w", rollout.ErrDead), 503}} {
		gen := rollout.GeneratorFunc(func(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
			if r.OnToken == nil {
				panic("no listener")
			}
			return rollout.Completion{}, c.err
		})
		s := newStand(t, chatML, gen, ServerConfig{})
		for _, more := range []string{"", `,"stream":true`, `,"n":3`} {
			if a, _ := s.ask(s.v.token, talk(more, "u")); a.status != c.status || a.Error.Type != "server_error" || !strings.Contains(a.Error.Message, c.err.Error()) {
				t.Errorf("%+v", a)
			}
		}
	}
	panics := newStand(t, chatML, rollout.GeneratorFunc(func(_ context.Context, r rollout.Request) (rollout.Completion, error) {
		script("ab", r).Generate(t.Context(), r)
		panic("bug")
	}), ServerConfig{})
	if a, _ := panics.ask(panics.v.token, talk("", "u")); a.status != 500 || !strings.Contains(a.Error.Message, "bug") {
		t.Errorf("%+v", a)
	}
	if a, chunks := panics.ask(panics.v.token, talk(`,"stream":true`, "u")); a.status != 200 || !strings.Contains(chunks[len(chunks)-1].Error.Message, "bug") {
		t.Errorf("%+v, %+v", a, chunks)
	}
}

func TestOneFailedChoiceEndsTheOthers(t *testing.T) {
	var n atomic.Int32
	gen := rollout.GeneratorFunc(func(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
		if n.Add(1) == 1 {
			return rollout.Completion{}, errors.New("boom")
		}
		<-ctx.Done()
		return rollout.Completion{}, context.Cause(ctx)
	})
	s := newStand(t, chatML, gen, ServerConfig{})
	if a, _ := s.ask(s.v.token, talk(`,"n":4`, "u")); a.status != 500 || a.Error.Message != "boom" || len(s.v.close()) != 0 {
		t.Errorf("%+v", a)
	}
}

func TestALargeBodyIsRefused(t *testing.T) {
	s := newStand(t, chatML, &saying{texts: []string{"a"}}, ServerConfig{})
	for _, length := range []int64{64 << 20, -1} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/v1/chat/completions", io.LimitReader(zeros{}, 64<<20))
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = length
		r.Header.Set("Authorization", "Bearer "+s.v.token)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != 413 {
			t.Errorf("status %d", response.StatusCode)
		}
	}
	if a, _ := s.ask(s.v.token, talk("", "u")); a.status != 200 {
		t.Errorf("%+v", a)
	}
	if err := s.http.Shutdown(t.Context()); err != nil { // waits for the connections, which linger
		t.Error(err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// A client that sends half a body, and one that never reads its stream, hold nobody up and are gone with their session.
func TestSlowClientsHoldUpNobody(t *testing.T) {
	if h := &newStand(t, chatML, rollout.Script{}, ServerConfig{}).http; h.ReadHeaderTimeout == 0 || h.ReadTimeout+h.WriteTimeout != 0 {
		t.Error("headers must have a time limit, replies none but the rollout's")
	}
	var long atomic.Bool
	gen := rollout.GeneratorFunc(func(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
		if r.Sampling.MaxTokens > 1000 {
			for range 200_000 { // more than the buffers of a connection hold
				g, _ := rollout.Mint('x', 0, 0, 1, true)
				r.OnToken(g)
				if ctx.Err() != nil {
					long.Store(true)
					return rollout.Completion{}, ctx.Err()
				}
			}
		}
		return script("a<|im_end|>", r).Generate(ctx, r)
	})
	s := newStand(t, chatML, gen, ServerConfig{Context: 1 << 20})
	slow := s.open(t.Context(), rollout.Spec{Sampling: allRun})
	var conns []net.Conn
	for _, c := range []struct {
		body   string
		length int
	}{{`{"messages":`, 1000}, {talk(`,"stream":true,"max_tokens":300000`, "u"), 0}} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", slow.token,
			max(c.length, len(c.body)), c.body)
	}
	if line, err := bufio.NewReader(conns[1]).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatalf("%q, %v", line, err)
	}
	if a, _ := s.ask(s.v.token, talk("", "u")); a.text() != "a" {
		t.Errorf("%+v", a)
	}
	slow.close()
	if err := s.http.Shutdown(t.Context()); err != nil { // waits for the handlers
		t.Error(err)
	}
	if !long.Load() {
		t.Error("the long reply was not ended")
	}
}
