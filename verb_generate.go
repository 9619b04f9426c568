package molt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/engine"
	"github.com/molt-go/molt/torch/model"
)

const generateFormat = `  {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20, "temperature": 0.7, "seed": 1, "stop": ["\n"]}
  {"ids": [1, 4093, 198], "max_tokens": 20, "ignore_eos": true}
      {"ids": [19556, 17, 2], "text": "Hello!", "logprobs": [-0.61, -0.2, -0.04], "finish": "stop"}

messages and images are those of molt score, with add_generation_prompt true by default. temperature 0, the default, is greedy; top_p,
top_k and min_p cut the distribution; seed is 0 by default: the same line always gives the same tokens, whatever stands beside it.
max_tokens is what the context and -cache leave by default, and never more. finish is "stop" behind an id that ends a text by any of the
model's files (ignore_eos goes on) or a stop string, which is one string or a list, else "length". ids are all tokens that were
generated, text ends before the id or the string that stopped; it is empty for a model without a tokenizer. logprobs are those of the
tokens at the line's temperature, at 1 when greedy, before anything was cut off.`

// maxParallel lines are in work at once: as many as the engine runs.
const maxParallel = 256

func generateVerb(ctx context.Context, o options, serve server) error {
	g, err := newGenerator(o)
	if err != nil {
		return err
	}
	return together(ctx, g.engine.Run, func(ctx context.Context) error {
		if err := g.engine.LoadFile(ctx, 0, o.model); err != nil {
			return err
		}
		return serve(ctx, maxParallel, g.answer)
	})
}

// generator answers by an engine.
type generator struct {
	textSide
	engine         *engine.Engine
	vocab, context int
	ends           []int32 // ids that end a text
}

// newGenerator makes one that has no weights yet.
func newGenerator(o options) (*generator, error) {
	shape, err := model.PeekConfig(o.model)
	if err != nil {
		return nil, err
	}
	text := openText(o.model, shape.Vision)
	if text.noTok != nil && !errors.Is(text.noTok, fs.ErrNotExist) {
		return nil, text.noTok
	}
	cfg := engine.DefaultConfig()
	cfg.CacheMB, cfg.MaxRunning, cfg.StepTokens = o.cacheMB, o.maxRunning, max(cfg.StepTokens, o.maxRunning)
	cfg.Context = shape.Context
	if bytes := shape.CacheBytes(o.dtype); bytes > 0 {
		cfg.Context = min(cfg.Context, o.cacheMB<<20/bytes/64*64) // whole pages
	}
	if o.context > cfg.Context {
		return nil, fmt.Errorf("-context is %d: at most %d fit the model, of %d, and -cache", o.context, cfg.Context, shape.Context)
	} else if o.context > 0 {
		cfg.Context = o.context
	}
	eng, err := engine.New(cfg, shape, o.dtype, o.threads)
	if err != nil {
		return nil, err
	}
	g := &generator{textSide: text, engine: eng, vocab: shape.Vocab, context: cfg.Context, ends: shape.EOS}
	if text.chat != nil {
		g.ends = append(text.chat.StopIDs(), g.ends...)
	} else if text.tok != nil {
		g.ends = append(text.tok.EOS(), g.ends...)
	}
	return g, nil
}

type generated struct {
	IDs      []int32        `json:"ids"`
	Text     string         `json:"text"` // empty without a tokenizer
	LogProbs []number       `json:"logprobs"`
	Finish   rollout.Finish `json:"finish"`
}

func (g *generator) answer(ctx context.Context, line []byte) (any, error) {
	s, stop := rollout.Sampling{StopIDs: g.ends, MaxTokens: g.context, TopP: 1}, []string{}
	p := prompt{options: multimodal.RenderOptions{AddGenerationPrompt: true}}
	err := p.decode(line, map[string]any{
		"max_tokens": &s.MaxTokens, "temperature": &s.Temperature, "top_p": &s.TopP, "top_k": &s.TopK, "min_p": &s.MinP, "seed": &s.Seed,
		"stop": &stop, "ignore_eos": &s.IgnoreEOS, "images": &p.images,
	})
	var r rollout.Request
	if err == nil {
		r, err = g.request(p, g.vocab, g.context)
	}
	switch {
	case err != nil:
		return nil, err
	case s.MaxTokens < 1:
		return nil, fmt.Errorf("max_tokens is %d: must be at least 1", s.MaxTokens)
	case s.TopP == 0:
		return nil, errors.New("top_p is 0: must be above 0, and at most 1; temperature 0 is greedy")
	case len(stop) > 0 && g.tok == nil || slices.Contains(stop, ""):
		return nil, errors.New("stop: an empty string, or the model has no tokenizer to find one with")
	case len(stop) > 0:
		r.Stop = multimodal.NewMatcher(g.tok, stop)
	}
	r.Sampling = s
	c, err := g.engine.Generate(ctx, r)
	if err != nil {
		return nil, err
	}
	out := generated{IDs: []int32{}, LogProbs: []number{}, Finish: c.Finish}
	for _, t := range c.Tokens {
		out.IDs, out.LogProbs = append(out.IDs, t.ID()), append(out.LogProbs, number(t.LogP()))
	}
	if shown := out.IDs; g.tok != nil {
		if n := len(shown); n > 0 && !s.IgnoreEOS && slices.Contains(g.ends, shown[n-1]) {
			shown = shown[:n-1]
		}
		out.Text = g.tok.Decode(shown)
		for _, s := range stop {
			out.Text, _, _ = strings.Cut(out.Text, s)
		}
	}
	return out, nil
}
