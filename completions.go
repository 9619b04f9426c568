package molt

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

// asked is what a request to /v1/completions wants.
type asked struct {
	*endpoints
	rollout.Sampling
	model                        string
	prompts                      [][]int32
	n                            int
	seed                         *uint64
	logprobs                     *int
	stop                         []string
	stopIDs                      []int32
	withIDs, stream, hideSpecial bool // token ids in the answer; the answer as it comes; no special tokens in texts
	options                      map[string]any
}

// off is a value that may only ask for what is done anyway.
type off struct{}

func (*off) UnmarshalJSON(b []byte) error {
	if s := string(b); s != "false" && s != "0" && s != "0.0" {
		return fmt.Errorf("%.32s is not supported; leave it out", s)
	}
	return nil
}

func (q *asked) read(w http.ResponseWriter, r *http.Request) error {
	s, text := &q.Sampling, json.RawMessage("[]")
	s.Temperature, s.TopP, s.Penalty, s.MaxTokens, s.StopIDs = 1, 1, 1, 16, q.ends
	err := read(w, r, map[string]any{
		"model": &q.model, "prompt": &text, "max_tokens": &s.MaxTokens, "temperature": &s.Temperature, "top_p": &s.TopP, "top_k": &s.TopK,
		"min_p": &s.MinP, "repetition_penalty": &s.Penalty, "logit_bias": &s.Bias, "seed": &q.seed, "n": &q.n, "stop": &q.stop,
		"stop_token_ids": &q.stopIDs, "ignore_eos": &s.IgnoreEOS, "logprobs": &q.logprobs, "stream": &q.stream,
		"stream_options": &q.options, "return_token_ids": &q.withIDs, "skip_special_tokens": &q.hideSpecial,
		"user": new(any), "spaces_between_special_tokens": new(any), // without effect
		"echo": &off{}, "frequency_penalty": &off{}, "presence_penalty": &off{}, "min_tokens": &off{}, "use_beam_search": &off{},
		"include_stop_str_in_output": &off{},
	})
	if err != nil {
		return err
	}
	if q.logprobs != nil {
		s.TopLogP = *q.logprobs
	}
	err = cmp.Or(q.readPrompt(text), q.check())
	if s.TopK = max(s.TopK, 0); s.Temperature < 1e-5 { // which is greedy for vLLM too
		s.Temperature = 0
	}
	return err
}

// readPrompt takes a list of ids or a text, or a list of those.
func (q *asked) readPrompt(b []byte) error {
	ids, list, text, texts := []int32(nil), [][]int32(nil), "", []string(nil)
	hole := bytes.Contains(b, []byte("null")) // would be read as 0
	switch {
	case !hole && json.Unmarshal(b, &ids) == nil:
		q.prompts = [][]int32{ids}
	case !hole && json.Unmarshal(b, &list) == nil:
		q.prompts = list
	case json.Unmarshal(b, &text) == nil:
		texts = []string{text}
	case json.Unmarshal(b, &texts) != nil:
		return bad("prompt: must be a list of token ids or a text, or a list of those")
	}
	if len(texts)+len(q.stop) > 0 && q.tok == nil {
		return bad("prompt, stop: the model has no tokenizer for texts; give prompt and stop_token_ids as ids: %w", q.noTok)
	}
	for _, text := range texts {
		q.prompts = append(q.prompts, q.tok.AddSpecial(q.tok.Encode(text)))
	}
	return nil
}

// check finds what cannot be done.
func (q *asked) check() error {
	for _, c := range []struct {
		key       string
		v, lo, hi float64
	}{
		{"n", float64(q.n), 1, 1 << 14}, {"prompt: the number of prompts times n", float64(q.n * len(q.prompts)), 1, 1 << 14},
		{"temperature", float64(q.Temperature), 0, 1e5}, {"top_p", float64(q.TopP), 1e-5, 1}, {"min_p", float64(q.MinP), 0, 1},
		{"top_k", float64(q.TopK), -1, 1 << 30}, {"repetition_penalty", float64(q.Penalty), 1e-5, 1e5},
		{"max_tokens", float64(q.MaxTokens), 1, 1 << 30}, {"logprobs", float64(q.TopLogP), 0, float64(min(maxTop, q.vocab))},
		{"stop: the number of strings", float64(len(q.stop)), 0, 64},
	} {
		if !(c.v >= c.lo && c.v <= c.hi) {
			return bad("%s is %v: must be from %v to %v", c.key, c.v, c.lo, c.hi)
		}
	}
	if slices.Contains(q.stop, "") {
		return bad("stop: a string is empty")
	}
	strange := func(id int32) bool { return id < 0 || int(id) >= q.vocab }
	for key, lists := range map[string][][]int32{
		"prompt": q.prompts, "stop_token_ids": {q.stopIDs}, "logit_bias": {slices.Collect(maps.Keys(q.Bias))},
	} {
		for _, ids := range lists {
			if i := slices.IndexFunc(ids, strange); i >= 0 {
				return bad("%s: token %d is not in the model's vocabulary of %d", key, ids[i], q.vocab)
			}
			if key == "prompt" && (len(ids) == 0 || len(ids) > q.context) {
				return bad("prompt has %d tokens: must have from 1 to %d, the context", len(ids), q.context)
			}
		}
	}
	return nil
}

// choice is a sample, or what came of it since the last chunk.
type choice struct {
	Index    int             `json:"index"`
	Text     string          `json:"text"`
	LogProbs *logProbs       `json:"logprobs"`
	Finish   *rollout.Finish `json:"finish_reason"` // nil while it goes on
	Stop     any             `json:"stop_reason"`   // the stop string or the id of stop_token_ids
	IDs      []int32         `json:"token_ids"`
	Prompt   []int32         `json:"prompt_token_ids"`
	Versions []int32         `json:"policy_versions"`
	err      error           // instead of the rest
}

type logProbs struct {
	Tokens []string            `json:"tokens"`
	LogP   []number            `json:"token_logprobs"`
	Top    []map[string]number `json:"top_logprobs"`
}

// complete answers at once, or by server-sent events.
func (e *endpoints) complete(w http.ResponseWriter, r *http.Request) (any, error) {
	if _, err := e.health(w, r); err != nil {
		return nil, err
	}
	q := &asked{endpoints: e, model: "policy", n: 1, withIDs: e.tok == nil, hideSpecial: true}
	if err := q.read(w, r); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var all sync.WaitGroup
	chunks, choices, usage := make(chan choice), make([]choice, q.n*len(q.prompts)), map[string]int{}
	for i := range choices {
		ids, seed := q.prompts[i/q.n], rand.Uint64()
		if q.seed != nil {
			seed = *q.seed
		}
		if i%q.n > 0 {
			seed = rollout.MixSeed(seed, uint64(i%q.n))
		} else {
			usage["prompt_tokens"] += len(ids)
		}
		p := &sample{asked: q, choice: choice{Index: i}, chunks: chunks}
		all.Go(func() { p.run(ctx, ids, seed) })
	}
	go func() { all.Wait(); close(chunks) }()
	answer := map[string]any{
		"id": fmt.Sprintf("cmpl-%016x", rand.Uint64()), "object": "text_completion", "created": time.Now().Unix(), "model": q.model,
	}
	event := func(value any, err error) {
		_, text := e.encode(value, err)
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n", text)
		_ = http.NewResponseController(w).Flush()
	}
	sent, failed := false, error(nil)
	for c := range chunks {
		usage["completion_tokens"] += len(c.Versions)
		if c.err != nil {
			failed = cmp.Or(failed, c.err)
			cancel()
		} else if choices[c.Index] = c; q.stream {
			sent, answer["choices"] = true, choices[c.Index:c.Index+1]
			event(answer, nil)
		}
	}
	usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
	answer["choices"], answer["usage"] = choices, usage
	switch {
	case !sent && (failed != nil || !q.stream):
		return answer, failed
	case failed != nil:
		event(nil, failed)
	case q.options["include_usage"] == true:
		answer["choices"] = []choice{}
		event(answer, nil)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
	return nil, nil
}

// sample is a choice as it grows.
type sample struct {
	*asked
	choice  // what was not sent yet
	chunks  chan<- choice
	decoder *multimodal.Stream // nil without a tokenizer
	matcher *multimodal.Matcher
	text    strings.Builder
	sent    int // bytes of text
	taken   int // tokens
	reason  any // for stopping
}

// run generates the choice and sends it; in a stream, what there is of it with each token.
func (p *sample) run(ctx context.Context, ids []int32, seed uint64) {
	r := rollout.Request{IDs: ids, Sampling: p.Sampling, Stop: p}
	r.Sampling.Seed = seed
	if p.clear(); p.withIDs {
		p.Prompt = ids
	}
	if p.tok != nil {
		p.decoder, p.matcher = multimodal.NewStream(p.tok), multimodal.NewMatcher(p.tok, p.stop)
	}
	if p.stream && p.TopLogP == 0 { // the likeliest come at the end
		r.OnToken = func(g rollout.Generated) {
			p.add(g, nil)
			p.send()
		}
	}
	c, err := p.engine.Generate(ctx, r)
	for i, g := range c.Tokens[min(p.taken, len(c.Tokens)):] {
		var top []rollout.TopLogP
		if c.Top != nil {
			top = c.Top[i]
		}
		p.add(g, top)
	}
	if p.decoder != nil {
		p.text.WriteString(p.decoder.Flush())
	}
	if p.err, p.Finish = err, &c.Finish; c.Finish == rollout.FinishCancelled {
		c.Finish = "abort"
	}
	p.send()
}

// Next stops at the request's own ids, which ignore_eos does not switch off, and at strings in the text. The engine calls it.
func (p *sample) Next(id int32) bool {
	return len(p.stop) > 0 && p.shown(id) && p.matcher.Next(id) || slices.Contains(p.stopIDs, id)
}

// shown tells whether a token is text.
func (p *sample) shown(id int32) bool { return p.tok != nil && !(p.hideSpecial && p.tok.Special(id)) }

func (p *sample) tokenText(id int32) string {
	if p.tok == nil {
		return fmt.Sprintf("token_id:%d", id)
	}
	return p.tok.Decode([]int32{id})
}

// add takes the next token.
func (p *sample) add(g rollout.Generated, top []rollout.TopLogP) {
	id := g.ID()
	p.taken++
	p.Versions = append(p.Versions, g.Version())
	if p.withIDs {
		p.IDs = append(p.IDs, id)
	}
	if l := p.LogProbs; l != nil {
		likely := map[string]number{}
		for _, t := range slices.Backward(top) { // of those with one name the likeliest stays
			likely[p.tokenText(t.ID)] = number(t.LogP)
		}
		name, logp := p.tokenText(id), number(g.LogP())
		likely[name] = logp
		l.Tokens, l.LogP, l.Top = append(l.Tokens, name), append(l.LogP, logp), append(l.Top, likely)
	}
	switch {
	case !p.IgnoreEOS && slices.Contains(p.ends, id):
	case slices.Contains(p.stopIDs, id):
		p.reason = id
	case p.shown(id):
		p.text.WriteString(p.decoder.Next(id))
	}
}

// send sends all tokens, and the text up to where a stop string may begin.
func (p *sample) send() {
	text := p.text.String()[p.sent:]
	end, longest := len(text), 1
	for _, s := range p.stop {
		if i := strings.Index(text, s); i >= 0 && i < end {
			end, p.reason = i, s
		}
		longest = max(longest, len(s))
	}
	if p.Finish != nil {
		p.Stop = p.reason
	} else if end = min(end, max(0, len(text)-longest+1)); end < len(text) {
		for !utf8.RuneStart(text[end]) {
			end--
		}
	}
	p.Text, p.sent = text[:end], p.sent+end
	p.chunks <- p.choice
	p.clear()
}

func (p *sample) clear() {
	p.choice = choice{Index: p.Index, Versions: []int32{}}
	if p.withIDs {
		p.IDs = []int32{}
	}
	if p.logprobs != nil {
		p.LogProbs = &logProbs{[]string{}, []number{}, []map[string]number{}}
	}
}
