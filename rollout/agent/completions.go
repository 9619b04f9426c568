package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

// noEffect are keys of a request that change nothing here.
var noEffect = []string{"user", "store", "metadata", "service_tier", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention",
	"safety_identifier", "reasoning_effort", "verbosity"}

// chatCall is a call of POST /v1/chat/completions: what it asks for, and the answer as it grows.
type chatCall struct {
	s                *Server
	v                *visit
	w                http.ResponseWriter
	rollout.Sampling // the run's where the request says nothing
	model            string
	messages         []multimodal.Message
	tools            json.RawMessage
	stop             []string
	n, top           int
	logprobs, stream bool
	choice, seed     any
	options, format  map[string]any
	penalties        [2]float64 // presence and frequency

	mu          sync.Mutex
	form        map[string]any
	forms       []any // of the choices
	usage       map[string]int
	replies     []*Reply
	begun       bool  // a part was sent
	failed, err error // of the first choice that did; of sending
}

// read takes a body. A key that is not known is an error.
func (q *chatCall) read(r *http.Request) ([]byte, error) {
	known := map[string]any{
		"model": &q.model, "messages": &q.messages, "tools": &q.tools, "tool_choice": &q.choice, "max_tokens": &q.MaxTokens,
		"max_completion_tokens": &q.MaxTokens, "temperature": &q.Temperature, "top_p": &q.TopP, "logit_bias": &q.Bias, "n": &q.n,
		"stop": &q.stop, "seed": &q.seed, "logprobs": &q.logprobs, "top_logprobs": &q.top, "stream": &q.stream,
		"stream_options": &q.options, "response_format": &q.format, "presence_penalty": &q.penalties[0],
		"frequency_penalty": &q.penalties[1],
	}
	body, err := io.ReadAll(http.MaxBytesReader(q.w, r.Body, maxBody))
	if errors.As(err, new(*http.MaxBytesError)) {
		return nil, errLarge
	}
	var object map[string]json.RawMessage
	if err = cmp.Or(err, json.Unmarshal(body, &object)); err != nil {
		return nil, bad("the body is no JSON object: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		text, into := object[key], known[key]
		if key == "stop" && text[0] == '"' {
			text = slices.Concat([]byte("["), text, []byte("]"))
		}
		if into == nil && !slices.Contains(noEffect, key) {
			return nil, bad("%.64q is not supported: leave it out", key)
		} else if err := json.Unmarshal(text, cmp.Or(into, any(new(any)))); err != nil {
			return nil, bad("%s: %w", key, err)
		}
	}
	return body, q.check()
}

// check finds what cannot be done.
func (q *chatCall) check() error {
	kind, strange := q.format["type"], func(id int32) bool { return q.s.chat.Tokenizer().Token(id) == "" }
	for _, c := range []struct {
		ok    bool
		text  string
		value any
	}{
		{q.n >= 1 && q.n <= 128, "n: must be from 1 to 128", q.n},
		{q.MaxTokens >= 0, "max_tokens: must not be negative", q.MaxTokens},
		{q.Temperature >= 0 && q.Temperature <= 100, "temperature: must be from 0 to 100", q.Temperature},
		{q.TopP > 0 && q.TopP <= 1, "top_p: must be above 0 and at most 1", q.TopP},
		{q.top >= 0 && q.top <= 20, "top_logprobs: must be from 0 to 20", q.top},
		{len(q.stop) <= 64 && !slices.Contains(q.stop, ""), "stop: must be at most 64 strings, none empty", q.stop},
		{q.penalties == [2]float64{}, "presence_penalty, frequency_penalty: must be 0", q.penalties},
		{!slices.ContainsFunc(slices.Collect(maps.Keys(q.Bias)), strange), "logit_bias: must be for tokens of the vocabulary", q.Bias},
		{q.format == nil || kind == "text", "response_format: must be text", kind},
		{slices.Contains([]any{nil, "none", "auto"}, q.choice), `tool_choice: must be "auto" or "none"`, q.choice},
	} {
		if !c.ok {
			return bad("%s: it is %v", c.text, c.value)
		}
	}
	for i := range q.messages {
		if m := &q.messages[i]; m.Parts != nil {
			return bad("message %d has an image, but the model reads only text", i)
		} else if m.Role == "developer" { // OpenAI's new name, which templates do not know
			m.Role = "system"
		}
	}
	return nil
}

// sampling is what holds of q's wishes and the run's.
func (q *chatCall) sampling() (rollout.Sampling, error) {
	run := q.v.spec.Sampling
	run.MaxTokens, run.TopLogP = q.MaxTokens, max(run.TopLogP, q.top)
	other := q.Temperature != run.Temperature || q.Exact() != run.Exact()
	if other && q.s.config.Sampling == "refuse" && !q.v.spec.Greedy {
		return run, bad("temperature, top_p or logit_bias are not the run's, at temperature %v: leave them out", run.Temperature)
	}
	if q.s.config.Sampling == "honour" {
		run.Temperature, run.TopP, run.Bias = q.Temperature, q.TopP, q.Bias
	}
	if q.v.spec.Greedy || run.Temperature < 1e-5 {
		run.Temperature = 0
	}
	return run, nil
}

// key stands for a request; again says that it may have come before. seed is the same whenever the rollout is run, in whatever order its
// requests come; the next equal request has another one unless it names its own.
func (v *visit) key(r *http.Request, body []byte, named bool) (key digest, again bool, seed uint64) {
	once := r.Header.Get("Idempotency-Key")
	retry, _ := strconv.Atoi(r.Header.Get("X-Stainless-Retry-Count"))
	asked := sha256.Sum256(slices.Concat([]byte(r.URL.Path), body))
	v.mu.Lock()
	defer v.mu.Unlock()
	seed = rollout.MixSeed(v.spec.Seed, binary.LittleEndian.Uint64(asked[:]), v.asked[asked])
	if !named {
		v.asked[asked]++
	}
	return sha256.Sum256(append(asked[:], once...)), once != "" || retry > 0, seed
}

// chatCompletions answers at once, or by server-sent events: as the tokens come, but with logprobs each choice whole.
func (s *Server) chatCompletions(v *visit, w http.ResponseWriter, r *http.Request) error {
	q := &chatCall{s: s, v: v, w: w, Sampling: v.spec.Sampling, n: 1, usage: map[string]int{}}
	q.TopP = cmp.Or(q.TopP, 1)
	body, err := q.read(r)
	if err != nil {
		return err
	}
	call := Call{Messages: q.messages}
	call.Options = multimodal.RenderOptions{AddGenerationPrompt: true, Tools: q.tools, Extra: s.config.Template}
	if call.Sampling, err = q.sampling(); err != nil {
		return err
	}
	key, again, seed := v.key(r, body, q.seed != nil)
	call.Again, q.forms = again, make([]any, q.n)
	q.form = map[string]any{"id": fmt.Sprintf("chatcmpl-%016x", seed), "object": "chat.completion", "created": time.Now().Unix(),
		"model": cmp.Or(q.model, modelName)}
	if q.stream {
		q.form["object"] = "chat.completion.chunk"
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var all sync.WaitGroup
	for i := range q.n {
		c := call
		c.Key, c.Sampling.Seed = sha256.Sum256(append(key[:], byte(i))), rollout.MixSeed(seed, uint64(i))
		all.Go(func() {
			if err := contain(func() error { return q.speak(ctx, c, i) }); err != nil {
				q.mu.Lock()
				defer q.mu.Unlock()
				q.failed = cmp.Or(q.failed, err)
				cancel()
			}
		})
	}
	all.Wait()
	q.err = errors.Join(q.err, q.failed, context.Cause(r.Context()))
	q.usage["total_tokens"] = q.usage["prompt_tokens"] + q.usage["completion_tokens"]
	switch q.form["choices"], q.form["usage"] = q.forms, q.usage; {
	case q.failed != nil && q.begun:
		_, form := failure(q.failed)
		q.send(form)
		q.failed = nil
	case q.failed == nil && q.stream:
		if q.form["choices"] = []any{}; q.options["include_usage"] == true {
			q.send(q.form)
		}
		q.send(json.RawMessage("[DONE]"))
	case q.failed == nil:
		q.send(q.form)
	}
	for _, reply := range q.replies {
		if q.err != nil {
			reply.Lost()
		}
	}
	return q.failed
}

func (q *chatCall) send(value any) { q.err = errors.Join(q.err, send(q.w, q.stream, value)) }

// speak has the model give choice i.
func (q *chatCall) speak(ctx context.Context, c Call, i int) error {
	chat := q.s.chat
	said := &speech{decoder: multimodal.NewStream(chat.Tokenizer()), ends: chat.StopIDs(), stops: q.stop, thinks: chat.Thinks(),
		thinking: q.s.opened, calls: len(q.tools) > 0 && q.choice != "none", id: c.Sampling.Seed}
	if c.Message = func(string) multimodal.Message { return said.message(true) }; len(q.stop) > 0 {
		c.Stop = multimodal.NewMatcher(chat.Tokenizer(), q.stop)
	}
	var sent multimodal.Message
	c.OnToken = func(g rollout.Generated) {
		if said.add(g); q.stream && !q.logprobs {
			if m := said.message(false); len(m.Content)+len(m.Reasoning) > len(sent.Content)+len(sent.Reasoning) {
				q.show(i, m, sent, nil)
				sent = m
			}
		}
	}
	reply, err := q.v.call(ctx, c)
	if err == nil {
		q.show(i, reply.Message, sent, reply)
	}
	return err
}

// show sends what m has more of choice i than was sent, or keeps it until the end; reply comes with the last of it.
func (q *chatCall) show(i int, m, sent multimodal.Message, reply *Reply) {
	fields := map[string]any{"content": m.Content[len(sent.Content):]}
	if sent.Role == "" {
		fields["role"] = m.Role
	}
	if m.ToolCalls != nil {
		fields["tool_calls"] = m.ToolCalls
	}
	if text := m.Reasoning[len(sent.Reasoning):]; text != "" {
		fields["reasoning_content"] = text
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	form := map[string]any{"index": i, "message": fields, "logprobs": nil, "finish_reason": nil}
	if reply != nil {
		q.replies = append(q.replies, reply)
		q.usage["prompt_tokens"] = reply.Prompt
		q.usage["completion_tokens"] += len(reply.Tokens)
		if form["finish_reason"] = reply.Finish; m.ToolCalls != nil && reply.Finish == rollout.FinishStop {
			form["finish_reason"] = "tool_calls"
		}
		if q.logprobs {
			form["logprobs"] = map[string]any{"content": q.logProbs(reply), "refusal": nil}
		}
	}
	if q.forms[i] = form; q.stream && q.failed == nil {
		delete(form, "message")
		form["delta"], q.form["choices"], q.begun = fields, []any{form}, true
		q.send(q.form)
	}
}

// logProbs are those of r's text, with the likeliest tokens where there are.
func (q *chatCall) logProbs(r *Reply) []any {
	form := func(id int32, logp float32) map[string]any {
		return map[string]any{"token": q.s.chat.Decode([]int32{id}), "logprob": logp, "bytes": nil}
	}
	list := make([]any, len(r.Tokens)-r.NumStop)
	for i, g := range r.Tokens[:len(list)] {
		token, likely := form(g.ID(), g.LogP()), []any{}
		if r.Top != nil {
			for _, t := range r.Top[i][:min(q.top, len(r.Top[i]))] {
				likely = append(likely, form(t.ID, t.LogP))
			}
		}
		token["top_logprobs"], list[i] = likely, token
	}
	return list
}
