package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

const (
	anyCall    = "<tool_call>\n{\"name\": \""
	callOfF    = anyCall + "f\", \"arguments\":"
	callEnd    = "}\n</tool_call>"
	playedCall = anyCall + "f\", \"arguments\": {\"x\": 1}" + callEnd
)

// spoken is one generation. The seed of its request tells it from all others.
type spoken struct {
	prompt, ids []int32
	got         bool // by a client, completely
	trained     int  // times
}

// actor says what comes to mind in tokens of all sizes: thoughts, calls well and badly formed, halves of characters, special tokens.
type actor struct {
	chat   *multimodal.Chat
	leave  func() // hangs up in the middle of the next reply
	mu     sync.Mutex
	rng    *rand.Rand
	said   map[uint64]*spoken
	failed int
}

func (a *actor) Generate(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	words := []string{"think", "hello ", "é", "😍", " ", "\n", "</think>", "\xf0\x9f", "\xa9", "<|im_start|>", "ink h", playedCall,
		"<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b\" and c}}\n</tool_call>"}
	var text []string
	if shown := a.chat.Decode(r.IDs); strings.HasSuffix(shown, callOfF) && a.rng.IntN(4) > 0 {
		text = []string{" {\"x\": 1}" + callEnd}
	} else if strings.HasSuffix(shown, anyCall) && a.rng.IntN(4) > 0 {
		text = []string{"g\", \"arguments\": {\"é\": [2]}" + callEnd}
	} else if a.rng.IntN(3) == 0 {
		text = []string{"<think>", "why", []string{"</think>", "</think>\n\n", ""}[a.rng.IntN(3)]}
	}
	for range a.rng.IntN(6) {
		text = append(text, words[a.rng.IntN(len(words))])
	}
	var ids []int32
	for _, word := range append(text, ".") {
		if bytes := say(a.chat, word); a.rng.IntN(2) == 0 && utf8.ValidString(word) || strings.HasPrefix(word, "<|") {
			ids = append(ids, a.chat.Encode(word)...)
		} else {
			ids = append(ids, bytes...)
		}
	}
	if a.rng.IntN(5) > 0 {
		ids = append(ids, r.Sampling.StopIDs[0])
	}
	luck := a.rng.IntN(12)
	if leave := a.leave; leave != nil {
		a.leave, luck = nil, luck%4
		leave()
		<-ctx.Done()
		ctx = context.WithoutCancel(ctx) // the reply may be complete although nobody listens
	}
	c, err := rollout.Script{Reply: func(rollout.Request) ([]int32, []float32, error) { return ids, nil, nil }}.Generate(ctx, r)
	if err != nil {
		return c, err
	}
	if luck < 2 {
		a.failed++
		c.Finish = rollout.FinishCancelled
		return c, []error{errors.New("out of luck"), nil}[luck]
	}
	if a.said[r.Sampling.Seed] != nil {
		return c, errors.New("two requests have one seed")
	}
	a.said[r.Sampling.Seed] = &spoken{prompt: slices.Clone(r.IDs), ids: ids[:len(c.Tokens)]}
	return c, nil
}

// line is a message in no vendor's words. Calls have a name, arguments and an id.
type line struct {
	role, content, thoughts string
	calls                   [][3]string
}

// inDialect writes a conversation as messages, or as items of OpenAI's responses.
func inDialect(path string, talk []line) (list []any) {
	for i, l := range talk {
		var calls, blocks []any
		form := map[string]any{"role": l.role, "content": l.content, "reasoning_content": l.thoughts}
		if l.thoughts != "" {
			blocks = append(blocks, object{"type": "thinking", "thinking": l.thoughts})
		}
		if l.content != "" || l.calls == nil {
			blocks = append(blocks, object{"type": "text", "text": l.content})
		}
		if path == "responses" && l.role != "tool" {
			if l.thoughts != "" {
				list = append(list, object{"type": "reasoning", "content": []any{object{"type": "reasoning_text", "text": l.thoughts}}})
			}
			list = append(list, object{"role": l.role, "content": l.content})
		}
		for _, c := range l.calls {
			id, input := c[2], c[1]
			if !json.Valid([]byte(input)) { // of a call that was begun for the model and got broken
				input = "{}"
			}
			calls = append(calls, callForm(id, c[0], c[1]))
			blocks = append(blocks, object{"type": "tool_use", "id": id, "name": c[0], "input": json.RawMessage(input)})
			if form["tool_calls"] = calls; path == "responses" {
				list = append(list, object{"type": "function_call", "call_id": id, "name": c[0], "arguments": c[1]})
			}
		}
		id := "none"
		if i > 0 && talk[i-1].calls != nil {
			id = talk[i-1].calls[0][2]
		}
		switch tool := l.role == "tool"; {
		case path == "responses" && tool:
			list = append(list, object{"type": "function_call_output", "call_id": id, "output": l.content})
		case path == "responses":
		case path == "messages" && tool:
			list = append(list, object{"role": "user", "content": []any{object{"type": "tool_result", "tool_use_id": id, "content": l.content}}})
		case path == "messages":
			list = append(list, object{"role": l.role, "content": blocks})
		default:
			if tool {
				form["tool_call_id"] = id
			}
			list = append(list, form)
		}
	}
	return list
}

// hear takes what is said out of a part of an answer, whatever the dialect.
func (l *line) hear(v any) {
	for _, part := range listOf(v) {
		l.hear(part)
	}
	str := func(keys ...any) string { s, _ := at(v, keys...).(string); return s }
	switch str("type") {
	case "tool_use":
		l.calls = append(l.calls, [3]string{str("name"), text(at(v, "input")), str("id")})
	case "function_call", "function":
		l.calls = append(l.calls, [3]string{str("name") + str("function", "name"), str("arguments") + str("function", "arguments"),
			cmp.Or(str("call_id"), str("id"))})
	case "reasoning_text":
		l.thoughts += str("text")
	default:
		if v == nil {
			return
		}
		l.content, l.thoughts = l.content+str("content")+str("text"), l.thoughts+str("thinking")+str("reasoning_content")
		l.hear(at(v, "content"))
		l.hear(at(v, "tool_calls"))
	}
}

// heardIn reads an answer: what each of up to two choices says, how many there are, and the answer's id and usage.
func heardIn(t *testing.T, path string, a object, events []event) (lines [2]line, n int, id string, in, out float64) {
	if path == "messages" && events != nil {
		a, events = rebuildMessage(t, events), nil
	} else if path == "responses" && events != nil {
		a, events = rebuildResponse(t, events), nil
	}
	lines[0].hear(at(a, "content"))
	lines[0].hear(at(a, "output"))
	for _, e := range append(events, event{data: a}) {
		for _, c := range listOf(e.data["choices"]) {
			i, _ := at(c, "index").(float64)
			n = max(n, int(i))
			lines[int(i)].hear(cmp.Or(at(c, "message"), at(c, "delta"), c))
		}
		if u := e.data["usage"]; u != nil {
			in, _ = cmp.Or(at(u, "prompt_tokens"), at(u, "input_tokens")).(float64)
			out, _ = cmp.Or(at(u, "completion_tokens"), at(u, "output_tokens")).(float64)
		}
		if id == "" {
			id, _ = e.data["id"].(string)
		}
	}
	return lines, n + 1, id, in, out
}

var aCall = regexp.MustCompile(`(?s)<tool_call>\s*\{"name": ?"(\w+)", ?"arguments": ?(\{[^{}]*\})\}\s*(</tool_call>|$)`)

// plainly is what a client is to read of a text, worked out in the plainest way.
func (w *wish) plainly(text string, thinks bool) (l line) {
	for _, s := range w.stops {
		text, _, _ = strings.Cut(text, s)
	}
	if lead := strings.TrimLeft(text, " \n"); thinks && w.path != "completions" && strings.HasPrefix(lead, "<think>") {
		thoughts, rest, _ := strings.Cut(lead[len("<think>"):], "</think>")
		if text = strings.TrimLeft(rest, "\n"); w.shows {
			l.thoughts = strings.Trim(thoughts, "\n")
		}
	}
	if l.content = text; w.calls {
		l.content = aCall.ReplaceAllStringFunc(text, func(s string) string {
			m := aCall.FindStringSubmatch(s)
			if !json.Valid([]byte(m[2])) {
				return s
			}
			l.calls = append(l.calls, [3]string{m[1], m[2], ""})
			return ""
		})
		if own, forced := strings.CutPrefix(text, callOfF); l.calls == nil && forced && w.opening == callOfF {
			l.content, l.calls = "", [][3]string{{"f", strings.TrimSpace(own), ""}}
			if w.path == "messages" {
				l.calls[0][1] = "{}"
			}
		}
		if l.calls != nil {
			l.content = strings.TrimRight(l.content, " \n")
		}
	}
	l.content = strings.TrimPrefix(l.content, w.prefill)
	return l
}

// led tells whether a prompt, as text and ids, is what the request asks to go on from: all of it without a template, else its two ends.
func (w *wish) led(prompt string, ids []int32) bool {
	if list, ok := w.body["prompt"].([]int32); ok {
		return slices.Equal(list, ids)
	} else if w.talk == nil {
		return prompt == w.body["prompt"]
	}
	first, last := w.talk[0], w.talk[len(w.talk)-1]
	return strings.HasPrefix(prompt, "<|im_start|>"+first.role+"\n"+first.content) &&
		strings.HasSuffix(prompt, last.role+"\n"+last.content+"<|im_end|>\n<|im_start|>assistant\n"+w.opening)
}

// form is a line with arguments as objects, as Anthropic's clients get them.
func (l line) form() string {
	list := []any{l.content, l.thoughts}
	for _, c := range l.calls {
		var v any
		_ = json.Unmarshal([]byte(c[1]), &v)
		list = append(list, c[0], v)
	}
	return text(list)
}

// company plays one session.
type company struct {
	*stand
	*actor
	thinks, tools bool
	rng           *rand.Rand // of the session's one line of play

	mu      sync.Mutex
	talks   [][]line
	prompts []any                 // to go on from without a template
	earlier map[string]string     // the text of a conversation, the id of the response that it ends with
	heard   map[string][2]*spoken // by request and choice
	count   map[string]int        // of what was played
}

// wish is a request.
type wish struct {
	path, prefill, opening string
	body                   object
	talk                   []line
	stops                  []string
	calls, shows           bool
	n                      int
}

// wish thinks of a request that goes on from talk.
func (c *company) wish(talk []line) (w wish) {
	w = wish{path: []string{"chat/completions", "messages", "responses", "completions"}[c.rng.IntN(4)], talk: talk, n: 1, shows: true}
	tool, limit, stop := map[string]any{"type": "function"}, "max_tokens", "stop"
	switch w.body = (object{"stream": c.rng.IntN(2) == 0}); w.path {
	case "completions":
		w.body["prompt"], w.talk = c.prompts[c.rng.IntN(len(c.prompts))], nil
	case "responses":
		limit = "max_output_tokens"
		for n := range talk {
			if id := c.earlier[text(shown(talk[:n]))]; id != "" && c.rng.IntN(2) == 0 {
				w.body["previous_response_id"], talk = id, talk[n:]
				c.count["previous"]++
				break
			}
		}
		w.body["input"] = inDialect(w.path, talk)
	case "messages":
		tool, stop, w.shows = object{"input_schema": object{}}, "stop_sequences", c.rng.IntN(2) == 0
		w.body["thinking"] = object{"type": map[bool]string{false: "disabled", true: "enabled"}[w.shows]}
		if c.rng.IntN(4) == 0 {
			w.prefill, w.opening, talk = "So", "So", append(slices.Clip(talk), line{role: "assistant", content: "So"})
			c.count["prefills"]++
		}
		w.body["messages"] = inDialect(w.path, talk)
	default:
		w.body["messages"] = inDialect(w.path, talk)
	}
	if w.path != "completions" && c.tools {
		w.calls = true
		tools := []object{maps.Clone(tool), maps.Clone(tool)}
		for i, name := range []string{"f", "g"} {
			tools[i]["name"], tools[i]["function"] = name, object{"name": name}
		}
		if w.body["tools"] = tools; w.prefill == "" && c.rng.IntN(3) == 0 {
			c.count["forced"]++
			k := c.rng.IntN(2)
			w.opening = []string{anyCall, callOfF}[k]
			w.body["tool_choice"] = []any{object{"type": "required"}, object{"type": "function", "name": "f", "function": object{"name": "f"}}}[k]
		}
	}
	if w.path != "responses" && c.rng.IntN(3) == 0 {
		w.stops = [][]string{{"nk h"}, {"😍", "ello"}, {"k"}, {" h"}}[c.rng.IntN(4)]
		w.body[stop] = w.stops
	}
	if strings.HasSuffix(w.path, "completions") {
		w.n = 1 + c.rng.IntN(5)/4
		w.body["n"], w.body["stream_options"] = w.n, object{"include_usage": true}
	}
	if w.body[limit] = 300; c.rng.IntN(3) == 0 {
		w.body[limit] = 1 + c.rng.IntN(12)
	}
	return w
}

// shown makes a conversation's text, with what clients may leave out.
func shown(talk []line) (list []any) {
	for _, l := range talk {
		list = append(list, l.role, l.content, l.calls)
	}
	return list
}

// leave makes a request and hangs up once the model speaks.
func (c *company) leave(w wish) {
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	set := func(f func()) {
		c.actor.mu.Lock()
		defer c.actor.mu.Unlock()
		c.actor.leave = f
	}
	set(cancel)
	defer set(nil)
	if response, err := c.request(ctx, c.v.token, "POST", "/v1/"+w.path, text(w.body)); err == nil {
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	c.count["hung up"]++
}

// do makes a request, checks what comes back and remembers it.
func (c *company) do(w wish, headers ...string) {
	body := text(w.body)
	status, a, events := c.post(w.path, body, headers...)
	if failed := slices.ContainsFunc(events, func(e event) bool { return e.data["error"] != nil || e.name == "response.failed" }); status == 500 || failed {
		return
	}
	lines, n, id, in, out := heardIn(c.T, w.path, a, events)
	_, hex, _ := strings.Cut(strings.ReplaceAll(id, "_", "-"), "-")
	number, err := strconv.ParseUint(hex, 16, 64)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.actor.mu.Lock()
	defer c.actor.mu.Unlock()
	known, tokens := c.heard[w.path+body], 0
	for i, l := range lines[:n] {
		plainly := func(s *spoken) string {
			text := strings.TrimSuffix(c.actor.chat.Decode(s.ids), "<|im_end|>")
			return w.plainly(w.opening+text, c.thinks).form()
		}
		s, could := c.said[rollout.MixSeed(number, uint64(i))], 0
		if s == nil { // it is what an equal request got or lost
			c.count["recorded"]++
			for _, other := range c.said {
				if known[i] == nil && !other.got && float64(len(other.prompt)) == in && plainly(other) == l.form() {
					s = other
					could++
				}
			}
			if s = cmp.Or(known[i], s); could > 1 { // with other ids: there is no telling which
				return
			}
		} else if s.got || headers != nil && known[i] != nil {
			c.Errorf("%s %s: got twice, or said again", w.path, body)
		}
		if s == nil || err != nil || status != 200 || l.form() != plainly(s) || in != float64(len(s.prompt)) {
			c.Fatalf("%s %s: %d, %d tokens before:\nread %+v\nof %+v", w.path, body, status, int(in), l, s)
		}
		if prompt := c.actor.chat.Decode(s.prompt); !w.led(prompt, s.prompt) {
			c.Errorf("%s %s: the model was shown %q", w.path, body, prompt)
		}
		s.got, known[i], tokens = true, s, tokens+len(s.ids)
		c.count["calls"] += len(l.calls)
		c.count["thoughts"] += min(len(l.thoughts), 1)
		l.role, l.content = "assistant", w.prefill+l.content
		if talk := append(slices.Clip(w.talk), l); w.path != "completions" {
			if c.talks = append(c.talks, talk); w.path == "responses" {
				c.earlier[text(shown(talk))] = id
			}
		} else if prompt, ok := w.body["prompt"].(string); ok {
			c.prompts = append(c.prompts, prompt+l.content+"obs é")
		} else {
			c.prompts = append(c.prompts, append(slices.Concat(s.prompt, s.ids), 'a'))
		}
	}
	if c.heard[w.path+body] = known; out != float64(tokens) || n != w.n {
		c.Errorf("%s %s: %d choices; %d tokens count %d", w.path, body, n, tokens, int(out))
	}
}

// talk is a conversation to go on with: one that was, perhaps edited, cut or summarised, or a new one.
func (c *company) talk() (talk []line) {
	if c.rng.IntN(8) == 0 {
		talk = append(talk, line{role: "system", content: "be good"})
	}
	if len(c.talks) > 0 && c.rng.IntN(6) > 0 {
		talk = slices.Clone(c.talks[max(0, len(c.talks)-1-c.rng.IntN(3))])
		last, i := &talk[len(talk)-1], c.rng.IntN(len(talk))
		if last.calls != nil {
			c.count["results"]++
			talk = append(talk, line{role: "tool", content: "42 \"é\""})
			last = &talk[len(talk)-2]
		}
		switch c.rng.IntN(12) {
		case 0:
			talk[i].content += "!"
		case 1:
			talk = slices.Delete(talk, i, i+1)
		case 2:
			talk = []line{{role: "system", content: "so far: all well"}, {role: "user", content: "go"}, *last}
		case 3, 4:
			last.thoughts = []string{"", "made up"}[i%2]
		}
	}
	return append(talk, line{role: "user", content: fmt.Sprint("😍 go on ", c.rng.IntN(2))})
}

// Random conversations in all dialects, mixed within a session, over HTTP. Every trained id was generated at that position after exactly
// the ids before it, what a client got is trained once, and what it read is the text of that.
func TestWhatAgentsReadIsWhatIsTrainedOn(t *testing.T) {
	for name, template := range map[string]string{"ChatML": chatML, "forgetful": forgetful, "Hermes": hermes + "{% if false %}</think>{% endif %}"} {
		a := &actor{}
		s := newStand(t, template, a, ServerConfig{Context: 1 << 16})
		count := map[string]int{}
		for seed := range uint64(20) {
			a.chat, a.rng, a.said = s.chat, rand.New(rand.NewPCG(seed, 1)), map[uint64]*spoken{}
			s.v = s.open(t.Context(), rollout.Spec{Seed: seed, Sampling: allRun})
			c := &company{stand: s, actor: a, thinks: template != chatML, tools: seed%2 == 0, rng: rand.New(rand.NewPCG(seed, 2)), count: count,
				prompts: []any{"I think", []int32{'I', ' ', 't'}}, earlier: map[string]string{}, heard: map[string][2]*spoken{}}
			for range 20 {
				w := c.wish(c.talk())
				switch c.rng.IntN(8) {
				case 0:
					c.leave(w)
					c.do(w, "X-Stainless-Retry-Count", "1")
				case 1:
					c.do(w)
					c.do(w, "X-Stainless-Retry-Count", "1")
				case 2:
					var all sync.WaitGroup
					all.Go(func() { c.do(w) })
					all.Go(func() { c.do(w) })
					all.Wait()
				default:
					c.do(w)
				}
			}
			c.judge(seed, s.v.close())
		}
		for what, floor := range map[string]int{"segments": 100, "branches": 30, "got": 250, "continued": 60, "lost": 3, "recorded": 15, "hung up": 15, "failed": 15,
			"forced": 15, "prefills": 8, "calls": 30, "thoughts": 20, "results": 5, "previous": 5} {
			if count[what] < floor && !(what == "thoughts" && template == chatML) {
				t.Errorf("%s: only %d %s: the play is too tame", name, count[what], what)
			}
		}
		t.Log(name, count)
	}
}

// judge checks what a session is trained on against what was said in it.
func (c *company) judge(seed uint64, samples []*rollout.Trajectory) {
	said := map[string][]*spoken{}
	for _, s := range c.said {
		said[key(s.prompt)] = append(said[key(s.prompt)], s)
	}
	for n, tr := range samples {
		k := tr.Tokens()
		c.count["segments"]++
		if parent, shared := tr.Parent(); parent != nil {
			c.count["branches"]++
			if !slices.Contains(samples, parent) || shared == 0 || !slices.Equal(parent.Tokens().IDs[:shared], k.IDs[:shared]) ||
				slices.Contains(k.Mask[:shared], true) {
				c.Errorf("seed %d: sample %d branches off at %d of what is no sample, or trains on it", seed, n, shared)
			}
		}
		for i := 0; i < len(k.IDs); i++ {
			if !k.Mask[i] {
				continue
			}
			var best *spoken
			for _, s := range said[key(k.IDs[:i])] {
				end := i + len(s.ids)
				if end <= len(k.IDs) && slices.Equal(s.ids, k.IDs[i:end]) && !slices.Contains(k.Mask[i:end], false) &&
					(best == nil || len(s.ids) > len(best.ids) || len(s.ids) == len(best.ids) && (s.trained < best.trained || s.trained == best.trained && s.got)) {
					best = s
				}
			}
			if best == nil {
				c.Fatalf("seed %d: sample %d trains token %d, which was not generated there:\n%s", seed, n, i, c.actor.chat.Decode(k.IDs))
			}
			best.trained++
			if slices.Contains(k.Mask[:i], true) {
				c.count["continued"]++
			}
			i += len(best.ids) - 1
		}
	}
	for _, s := range c.said {
		if s.got {
			c.count["got"]++
		} else {
			c.count["lost"]++
		}
		if s.trained > 1 || s.got && s.trained == 0 {
			c.Errorf("seed %d: what was said is trained on %d times: %q", seed, s.trained, c.actor.chat.Decode(s.ids))
		}
	}
	c.count["failed"] += c.failed
	c.failed = 0
}
