package molt

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
	prompts        prompts
	n              int
	seed           *uint64
	stop           []string
	stopIDs        []int32
	logprobs       *int
	ids, streams   bool // token ids in the answer; the answer as it comes
	hide, surround bool // no special tokens in texts; the tokenizer's own around prompts
	options        struct {
		Usage bool `json:"include_usage"`
	}
}

// prompts are texts or ids to continue.
type prompts struct {
	texts []string
	ids   [][]int32
}

// UnmarshalJSON takes a list of ids or a text, or a list of those.
func (p *prompts) UnmarshalJSON(b []byte) error {
	var ids, null = []int32(nil), bytes.Contains(b, []byte("null"))
	var lists [][]int32
	var text string
	switch {
	case !null && json.Unmarshal(b, &ids) == nil:
		p.ids = [][]int32{ids}
	case !null && json.Unmarshal(b, &lists) == nil:
		p.ids = lists
	case json.Unmarshal(b, &text) == nil:
		p.texts = []string{text}
	case json.Unmarshal(b, &p.texts) != nil:
		return errors.New("must be a list of token ids or a text, or a list of those")
	}
	return nil
}

// off is a value that can only ask for what is done anyway.
type off struct{}

func (*off) UnmarshalJSON(b []byte) error {
	if s := string(b); s != "false" && s != "0" && s != "0.0" {
		return fmt.Errorf("%.32s is not supported; leave it out", s)
	}
	return nil
}

func (q *asked) read(w http.ResponseWriter, r *http.Request) error {
	s, model := &q.Sampling, q.name
	s.Temperature, s.TopP, s.Penalty, s.MaxTokens, s.StopIDs = 1, 1, 1, 16, q.ends
	err := read(w, r, map[string]any{
		"model": &model, "prompt": &q.prompts, "max_tokens": &s.MaxTokens, "temperature": &s.Temperature, "top_p": &s.TopP,
		"top_k": &s.TopK, "min_p": &s.MinP, "repetition_penalty": &s.Penalty, "logit_bias": &s.Bias, "seed": &q.seed, "n": &q.n,
		"stop": &q.stop, "stop_token_ids": &q.stopIDs, "ignore_eos": &s.IgnoreEOS, "logprobs": &q.logprobs, "stream": &q.streams,
		"stream_options": &q.options, "return_token_ids": &q.ids, "skip_special_tokens": &q.hide, "add_special_tokens": &q.surround,
		"user": new(any), "spaces_between_special_tokens": new(any), // without effect
		"echo": &off{}, "frequency_penalty": &off{}, "presence_penalty": &off{}, "min_tokens": &off{}, "use_beam_search": &off{},
		"include_stop_str_in_output": &off{},
	})
	if err == nil && model != q.name {
		err = refusal{http.StatusNotFound, fmt.Errorf("model: there is no %q; this is %q", model, q.name)}
	}
	if q.logprobs != nil {
		s.TopLogP = *q.logprobs
	}
	if err == nil {
		err = q.check()
	}
	if s.TopK = max(s.TopK, 0); s.Temperature < 1e-5 { // which is greedy for vLLM too
		s.Temperature = 0
	}
	return err
}

// check finds what cannot be done, and makes ids of texts.
func (q *asked) check() error {
	if len(q.prompts.texts)+len(q.stop) > 0 && q.tok == nil {
		return bad("prompt, stop: the model has no tokenizer for texts; give prompt and stop_token_ids as ids: %w", q.noTok)
	}
	for _, text := range q.prompts.texts {
		ids := q.tok.Encode(text)
		if q.surround {
			ids = q.tok.AddSpecial(ids)
		}
		q.prompts.ids = append(q.prompts.ids, ids)
	}
	for _, c := range []struct {
		key       string
		v, lo, hi float64
	}{
		{"prompt: the number of prompts", float64(len(q.prompts.ids)), 1, 1 << 14}, {"n", float64(q.n), 1, 1 << 14},
		{"prompts times n", float64(q.n * len(q.prompts.ids)), 1, 1 << 14}, {"max_tokens", float64(q.MaxTokens), 1, 1 << 30},
		{"temperature", float64(q.Temperature), 0, 1e5}, {"top_p", float64(q.TopP), 1e-5, 1}, {"min_p", float64(q.MinP), 0, 1},
		{"top_k", float64(q.TopK), -1, 1 << 30}, {"repetition_penalty", float64(q.Penalty), 1e-5, 1e5},
		{"logprobs", float64(q.TopLogP), 0, float64(min(maxTop, q.vocab))}, {"stop: the number of strings", float64(len(q.stop)), 0, 64},
	} {
		if !(c.v >= c.lo && c.v <= c.hi) {
			return bad("%s is %v: must be from %v to %v", c.key, c.v, c.lo, c.hi)
		}
	}
	if slices.Contains(q.stop, "") {
		return bad("stop: a string is empty")
	}
	known := func(key string, ids []int32) error {
		for _, id := range ids {
			if id < 0 || int(id) >= q.vocab {
				return bad("%s: token %d is not in the model's vocabulary of %d", key, id, q.vocab)
			}
		}
		return nil
	}
	err := errors.Join(known("stop_token_ids", q.stopIDs), known("logit_bias", slices.Collect(maps.Keys(q.Bias))))
	for _, ids := range q.prompts.ids {
		if len(ids) == 0 || len(ids) > q.context {
			return bad("prompt has %d tokens: must have from 1 to %d, the context", len(ids), q.context)
		}
		err = errors.Join(err, known("prompt", ids))
	}
	return err
}

type response struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
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
	Tokens  []string            `json:"tokens"`
	LogP    []number            `json:"token_logprobs"`
	Top     []map[string]number `json:"top_logprobs"`
	Offsets []int               `json:"text_offset"`
}

// complete answers at once, or by server-sent events.
func (e *endpoints) complete(w http.ResponseWriter, r *http.Request) (any, error) {
	_, err := e.health(w, r)
	q := &asked{endpoints: e, n: 1, ids: e.tok == nil, hide: true, surround: true}
	if err == nil {
		err = q.read(w, r)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var all sync.WaitGroup
	chunks, choices, count := make(chan choice), make([]choice, q.n*len(q.prompts.ids)), usage{}
	for i := range choices {
		p := &sample{asked: q, chunks: chunks, prompt: q.prompts.ids[i/q.n]}
		if p.Index = i; i%q.n == 0 {
			count.Prompt += len(p.prompt)
		}
		seed := rand.Uint64()
		if q.seed != nil {
			seed = *q.seed
		}
		if i%q.n > 0 {
			seed = rollout.MixSeed(seed, uint64(i%q.n))
		}
		all.Go(func() { p.run(ctx, seed) })
	}
	go func() { all.Wait(); close(chunks) }()
	out := response{ID: fmt.Sprintf("cmpl-%016x", rand.Uint64()), Object: "text_completion", Created: time.Now().Unix(), Model: e.name}
	event := func(value any, err error) {
		_, text := e.encode(value, err)
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n", text)
		_ = http.NewResponseController(w).Flush()
	}
	sent := false
	for c := range chunks {
		count.Completion += len(c.Versions)
		switch {
		case c.err != nil:
			err = cmp.Or(err, c.err)
			cancel()
		case q.streams:
			out.Choices, sent = []choice{c}, true
			event(out, nil)
		default:
			choices[c.Index] = c
		}
	}
	count.Total = count.Prompt + count.Completion
	switch {
	case r.Context().Err() != nil && e.stopping.Err() == nil && !sent: // nobody reads the answer; 499 is for the metrics
		return nil, refusal{499, context.Cause(ctx)}
	case err != nil && !sent:
		return nil, err
	case !q.streams:
		out.Choices, out.Usage = choices, &count
		return out, nil
	case err != nil:
		event(nil, err)
	case q.options.Usage:
		out.Choices, out.Usage = []choice{}, &count
		event(out, nil)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
	return nil, nil
}

// sample is a choice as it grows.
type sample struct {
	*asked
	choice  // what was not sent yet
	chunks  chan<- choice
	prompt  []int32
	decoder *multimodal.Stream // nil without a tokenizer
	text    strings.Builder
	sent    int // bytes of text
	offset  int // characters of the tokens so far
	taken   int // tokens
	reason  any // for stopping
}

// run generates and sends the choice; in a stream, what there is of it with each token.
func (p *sample) run(ctx context.Context, seed uint64) {
	r := rollout.Request{IDs: p.prompt, Sampling: p.Sampling}
	r.Sampling.Seed = seed
	if p.clear(); p.ids {
		p.Prompt = p.prompt
	}
	stops := stopper{asked: p.asked}
	if p.tok != nil {
		p.decoder, stops.text = multimodal.NewStream(p.tok), multimodal.NewMatcher(p.tok, p.stop)
	}
	r.Stop = stops
	if p.streams && p.TopLogP == 0 { // the likeliest come at the end
		r.OnToken = func(g rollout.Generated) {
			p.add(g, nil)
			p.send()
		}
	}
	c, err := p.engine.Generate(ctx, r)
	for i := p.taken; i < len(c.Tokens); i++ {
		var top []rollout.TopLogP
		if c.Top != nil {
			top = c.Top[i]
		}
		p.add(c.Tokens[i], top)
	}
	if p.decoder != nil {
		p.text.WriteString(p.decoder.Flush())
	}
	if p.err, p.Finish = err, &c.Finish; c.Finish == rollout.FinishCancelled {
		c.Finish = "abort"
	}
	p.send()
}

func (p *sample) clear() {
	p.choice = choice{Index: p.Index, Versions: []int32{}}
	if p.ids {
		p.IDs = []int32{}
	}
	if p.logprobs != nil {
		p.LogProbs = &logProbs{[]string{}, []number{}, []map[string]number{}, []int{}}
	}
}

// add takes the next token.
func (p *sample) add(g rollout.Generated, top []rollout.TopLogP) {
	id := g.ID()
	p.taken++
	p.Versions = append(p.Versions, g.Version())
	if p.ids {
		p.IDs = append(p.IDs, id)
	}
	if l := p.LogProbs; l != nil {
		likely, name := map[string]number{}, p.tokenName(id)
		for _, t := range slices.Backward(top) { // of those with one name the likeliest stays
			likely[p.tokenName(t.ID)] = number(t.LogP)
		}
		likely[name] = number(g.LogP())
		l.Tokens, l.LogP, l.Top = append(l.Tokens, name), append(l.LogP, number(g.LogP())), append(l.Top, likely)
		l.Offsets = append(l.Offsets, p.offset)
		p.offset += utf8.RuneCountInString(name)
	}
	switch {
	case !p.IgnoreEOS && slices.Contains(p.ends, id):
	case slices.Contains(p.stopIDs, id):
		p.reason = id
	case p.shown(id):
		p.text.WriteString(p.decoder.Next(id))
	}
}

func (q *asked) tokenName(id int32) string {
	if q.tok == nil {
		return fmt.Sprintf("token_id:%d", id)
	}
	return q.tok.Decode([]int32{id})
}

// shown tells whether a token is text.
func (q *asked) shown(id int32) bool { return q.tok != nil && !(q.hide && q.tok.Special(id)) }

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

// stopper ends a reply at the request's own ids, which ignore_eos does not switch off, and at strings in its text.
type stopper struct {
	*asked
	text *multimodal.Matcher
}

func (s stopper) Next(id int32) bool {
	return len(s.stop) > 0 && s.shown(id) && s.text.Next(id) || slices.Contains(s.stopIDs, id)
}
