package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

// ask is what a request wants of the model, in no vendor's words, and what came of it.
type ask struct {
	dialect
	s                *Server
	v                *visit
	w                http.ResponseWriter
	rollout.Sampling // the run's where the request says nothing
	model            string
	messages         []multimodal.Message
	prompt           string          // in place of messages: a text, and always its
	ids              []int32         // ids
	tools            json.RawMessage // as OpenAI's chat completions have them
	calls            json.RawMessage // which tools to call: in a vendor's words
	stop             []string
	n, top           int
	logprobs, stream bool
	seed             any
	prefill          string   // what the reply starts with, as the client knows; of it, what is not thoughts
	opening          string   // what it is made to start with
	offered          []string // tools that the reply may call
	forced           string   // the one that it has to call, if it is one
	parallel         *bool    // it may have several calls; nil: so
	id               uint64   // of the answer

	mu          sync.Mutex
	numPrompt   int // tokens
	numNew      int // of all replies
	replies     []*Reply
	begun       bool  // a part was sent
	failed, err error // of the first choice that did; of sending
}

// dialect is how a vendor's API asks and answers. What answers holds ask.mu.
type dialect interface {
	// keys are those of a request that it knows, by where their values go.
	keys() map[string]any
	// read puts into the vendor-neutral form of a request what keys alone could not.
	read() error
	// show has more of choice i: m, of which sent is known already. r comes with the last of it.
	show(i int, m, sent multimodal.Message, r *Reply)
	// end ends an answer, by an error where one came after its beginning.
	end(failed error)
}

// serve answers requests in a dialect: at once, or by server-sent events as the tokens come.
func (s *Server) serve(speak func(*ask) dialect) func(*visit, http.ResponseWriter, *http.Request) error {
	return func(v *visit, w http.ResponseWriter, r *http.Request) error {
		q := s.newAsk(v, w, speak)
		body, err := q.take(r)
		if err != nil {
			return err
		}
		call := q.call()
		if call.Sampling, err = q.sampling(); err != nil {
			return err
		}
		key, again, seed := v.key(r, body, q.seed != nil)
		q.id, call.Again = seed, again
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		var all sync.WaitGroup
		var missing atomic.Int32 // choices without a reply: one that fails takes the others with it
		missing.Store(int32(q.n))
		complete := make(chan struct{})
		call.Hold = func() error {
			if missing.Add(-1) == 0 { // also where the client has gone meanwhile
				close(complete)
				return nil
			}
			select {
			case <-complete:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
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
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.err = errors.Join(q.err, q.failed, context.Cause(r.Context())); q.begun || q.failed == nil {
			q.end(q.failed)
			q.failed = nil
		}
		for _, reply := range q.replies {
			if q.err != nil {
				reply.Lost()
			}
		}
		return q.failed
	}
}

func (s *Server) newAsk(v *visit, w http.ResponseWriter, speak func(*ask) dialect) *ask {
	q := &ask{s: s, v: v, w: w, Sampling: v.spec.Sampling, n: 1}
	q.TopP, q.dialect = cmp.Or(q.TopP, 1), speak(q)
	return q
}

// call is q for a session, but for sampling.
func (q *ask) call() Call {
	tok := q.s.chat.Tokenizer()
	c := Call{Messages: q.messages, IDs: q.ids, Text: q.prompt, Encode: tok.EncodeAfter}
	c.Options = multimodal.RenderOptions{AddGenerationPrompt: true, Tools: q.tools, Extra: q.s.config.Template}
	if q.opening != "" {
		c.Opening = tok.Encode(q.opening)
	}
	return c
}

// empty are values that ask for nothing; hints are keys of the vendors' APIs that change nothing here, whatever they ask for.
var empty, hints = []string{"null", "[]", "{}"}, []string{"cache_control", "context_management", "inference_geo", "max_tool_calls",
	"metadata", "moderation", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning",
	"reasoning_effort", "safety_identifier", "service_tier", "speed", "store", "stream_options", "truncation", "user", "verbosity"}

// take reads a body. A key that is not known is an error.
func (q *ask) take(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(q.w, r.Body, maxBody))
	if errors.As(err, new(*http.MaxBytesError)) {
		return nil, errLarge
	}
	var object map[string]json.RawMessage
	if err = cmp.Or(err, json.Unmarshal(body, &object)); err != nil {
		return nil, bad("the body is no JSON object: %w", err)
	}
	known := q.keys()
	for _, key := range slices.Sorted(maps.Keys(object)) {
		text := object[key]
		into, ok := known[key]
		if !ok && (slices.Contains(empty, string(text)) || slices.Contains(hints, key)) {
			continue
		}
		if _, list := into.(*[]string); list && text[0] == '"' {
			text = slices.Concat([]byte("["), text, []byte("]"))
		}
		if !ok {
			return nil, bad("%.64q is not supported: leave it out", key)
		} else if err := json.Unmarshal(text, into); err != nil {
			return nil, bad("%s: %w", key, err)
		}
	}
	err = q.read()
	if slices.Contains(empty, string(q.tools)) {
		q.tools = nil
	}
	return body, cmp.Or(err, q.check(), q.choose())
}

// check finds what cannot be done.
func (q *ask) check() error {
	strange := func(id int32) bool { return q.s.chat.Tokenizer().Token(id) == "" }
	for _, c := range []struct {
		ok    bool
		text  string
		value any
	}{
		{q.n >= 1 && q.n <= 128, "n: must be from 1 to 128", q.n},
		{q.MaxTokens > 0 || q.MaxTokens == q.v.spec.Sampling.MaxTokens, "max_tokens: must be at least 1", q.MaxTokens},
		{q.Temperature >= 0 && q.Temperature <= 100, "temperature: must be from 0 to 100", q.Temperature},
		{q.TopP > 0 && q.TopP <= 1, "top_p: must be above 0 and at most 1", q.TopP},
		{q.TopK >= 0 && q.TopK <= math.MaxInt32, "top_k: must be from 0 to 2147483647", q.TopK},
		{q.top >= 0 && q.top <= 20, "top_logprobs: must be from 0 to 20", q.top},
		{len(q.stop) <= 64 && !slices.Contains(q.stop, ""), "stop: must be at most 64 strings, none empty", q.stop},
		{!slices.ContainsFunc(slices.Collect(maps.Values(q.Bias)), func(b float32) bool { return b < -100 || b > 100 }),
			"logit_bias: must be from -100 to 100", q.Bias},
		{!slices.ContainsFunc(slices.Collect(maps.Keys(q.Bias)), strange), "logit_bias: must be for tokens of the vocabulary", q.Bias},
		{!slices.ContainsFunc(q.ids, strange), "prompt: must be of tokens of the vocabulary", q.ids},
	} {
		if !c.ok {
			return bad("%s: it is %v", c.text, c.value)
		}
	}
	for i := range q.messages {
		if m := &q.messages[i]; m.Role == "" {
			return bad("messages: number %d has no role", i)
		} else if m.Role == "developer" { // OpenAI's new name, which templates do not know
			m.Role = "system"
		}
	}
	sources, err := multimodal.Images(q.messages)
	if i := slices.IndexFunc(sources, func(url string) bool { return !strings.HasPrefix(url, "data:") }); i >= 0 {
		return bad("image %d, %.40q: give it as a data: URL", i, sources[i]) // no request reads this machine's files
	}
	if err != nil {
		return bad("%w", err)
	}
	return nil
}

// sampling is what holds of q's wishes and the run's.
func (q *ask) sampling() (rollout.Sampling, error) {
	run := q.v.spec.Sampling
	run.TopLogP = max(run.TopLogP, q.top)
	if q.s.config.Sampling != "override" || run.MaxTokens == 0 || q.MaxTokens < run.MaxTokens {
		run.MaxTokens = q.MaxTokens
	}
	other := q.Temperature != run.Temperature || q.Exact() != run.Exact()
	if other && q.s.config.Sampling == "refuse" && !q.v.spec.Greedy {
		return run, bad("temperature, top_p, top_k or logit_bias are not the run's, at temperature %v: leave them out, or let [rollout] "+
			"client_sampling be another than refuse", run.Temperature)
	}
	if q.s.config.Sampling == "honour" {
		run.Temperature, run.TopP, run.TopK, run.Bias = q.Temperature, q.TopP, q.TopK, q.Bias
	}
	if q.v.spec.Greedy || run.Temperature < 1e-5 {
		run.Temperature = 0
	}
	return run, nil
}

// speak has the model give choice i.
func (q *ask) speak(ctx context.Context, c Call, i int) error {
	chat := q.s.chat
	said := &speech{decoder: multimodal.NewStream(chat.Tokenizer()), ends: chat.StopIDs(), stops: q.stop, offered: q.offered,
		forced: q.forced, single: q.parallel != nil && !*q.parallel, thinks: chat.Thinks() && q.ids == nil,
		thinking: q.s.opened && q.ids == nil, style: chat.Calls(), id: c.Sampling.Seed}
	if q.opening != "" || q.ids != nil {
		said.decoder = multimodal.NewStreamAfter(chat.Tokenizer())
	}
	said.given, _ = said.text.WriteString(q.opening)
	if c.Message = func(string) multimodal.Message { return said.message(true) }; len(q.stop) > 0 {
		c.Stop = multimodal.NewMatcher(chat.Tokenizer(), q.stop)
	}
	sent := multimodal.Message{Content: q.prefill}
	c.OnPrompt = func(tokens int) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.numPrompt = tokens
	}
	c.OnToken = func(g rollout.Generated) {
		if said.add(g); q.stream && !q.logprobs {
			if m := said.message(false); len(m.Content)+len(m.Reasoning) > len(sent.Content)+len(sent.Reasoning) {
				q.more(i, m, sent, nil)
				sent = m
			}
		}
	}
	reply, err := q.v.call(ctx, c)
	if err == nil {
		q.more(i, reply.Message, sent, reply)
	}
	return err
}

// more shows more of a choice, unless another one has failed.
func (q *ask) more(i int, m, sent multimodal.Message, r *Reply) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r != nil {
		q.replies = append(q.replies, r)
		q.numPrompt = r.Prompt
		q.numNew += len(r.Tokens)
	}
	if q.failed == nil {
		q.begun = q.begun || q.stream
		q.show(i, m, sent, r)
	}
}

// write sends an answer, or a part of one.
func (q *ask) write(event string, value any) { q.err = errors.Join(q.err, send(q.w, event, value)) }

// after is what text has beyond what was sent.
func after(text, sent string) string { return text[min(len(text), len(sent)):] }

// choose reads which tools the reply may call or must.
func (q *ask) choose() error {
	var choice struct {
		Type, Name string
		Function   struct{ Name string }
		Single     bool `json:"disable_parallel_tool_use"`
	}
	if q.calls != nil && json.Unmarshal(q.calls, &choice) != nil && json.Unmarshal(q.calls, &choice.Type) != nil {
		return bad("tool_choice: %s is not supported", q.calls)
	}
	name, names := cmp.Or(choice.Name, choice.Function.Name), q.toolNames()
	if i := slices.IndexFunc(names, unfit); i >= 0 {
		return bad("tools: the name %q of number %d must be 1 to 128 letters, digits, or _ - . : /", names[i], i)
	}
	if q.opening = q.prefill; choice.Type != "none" {
		q.offered = names
	}
	if choice.Single {
		q.parallel = new(false)
	}
	switch {
	case name == "" && slices.Contains([]string{"", "auto", "none"}, choice.Type):
	case !slices.Contains([]string{"required", "any", "function", "tool"}, choice.Type):
		return bad("tool_choice: %s is not supported", q.calls)
	case len(names) == 0:
		return bad("tool_choice: the request has no tools")
	case name != "" && !slices.Contains(names, name):
		return bad("tool_choice: there is no tool %q among the request's: %q", name, names)
	case q.prefill != "":
		return bad("tool_choice: a reply whose beginning is given cannot be made to call a tool")
	default:
		if q.forced = name; len(names) == 1 {
			q.forced = names[0]
		}
		q.opening = q.s.chat.Calls().Opening(q.forced)
	}
	if q.s.opened && q.opening != "" {
		q.opening = closeThought + "\n\n" + q.opening
	}
	if q.prefill != "" && q.s.chat.Thinks() {
		_, q.prefill = (&speech{thinking: q.s.opened}).thoughts(q.opening, true)
	}
	return nil
}

func (q *ask) toolNames() (names []string) {
	var tools []struct{ Function struct{ Name string } }
	_ = json.Unmarshal(q.tools, &tools) // read has made them, or they do not get through the template
	for _, t := range tools {
		names = append(names, t.Function.Name)
	}
	return names
}

// unfit tells names that could not be read again in a call, or would end one early.
func unfit(name string) bool {
	return name == "" || len(name) > 128 || strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-.:/", r)
	})
}

// answerID is the id of an answer in a vendor's form.
func (q *ask) answerID(form string) string { return fmt.Sprintf("%s%016x", form, q.id) }

// toolForm is a tool as OpenAI's chat completions have it.
func toolForm(name, description string, parameters json.RawMessage) any {
	type function struct { // in the order that templates are used to
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters,omitempty"`
	}
	if string(parameters) == "null" {
		parameters = nil
	}
	return struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}{"function", function{name, description, parameters}}
}
