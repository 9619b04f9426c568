package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/engine"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// generator is an engine with the model's weights, and makes prompts for it.
type generator struct {
	*engine.Engine
	rng   *rand.Rand
	vocab int32
}

func (j job) generator(ctx context.Context, dtype torch.DType) (g generator, err error) {
	shape, err := model.PeekConfig(j.model())
	if err != nil {
		return g, err
	}
	g = generator{rng: rand.New(rand.NewPCG(1, 2)), vocab: int32(shape.Vocab)}
	if g.Engine, err = engine.New(engine.DefaultConfig(), shape, dtype, j.Threads); err != nil {
		return g, err
	}
	go g.Run(ctx) // its error comes out of Load and Generate too
	return g, g.LoadFile(ctx, 0, j.model())
}

// prompts makes n prompts, each with random ids of its own.
func (g generator) prompts(n, length int) [][]int32 {
	list := make([][]int32, n)
	for i := range list {
		for range length {
			list[i] = append(list[i], 100+g.rng.Int32N(g.vocab-200))
		}
	}
	return list
}

// ask sends requests for the prompts at once, waits until each has so many tokens, and gives the seconds.
func (g generator) ask(ctx context.Context, prompts [][]int32, tokens int) (seconds float64, err error) {
	errs, start := make(chan error, len(prompts)), time.Now()
	for _, ids := range prompts {
		r := rollout.Request{IDs: ids}
		r.Sampling = rollout.Sampling{Temperature: 1, MaxTokens: tokens, Seed: g.rng.Uint64(), IgnoreEOS: true}
		go func() {
			c, err := g.Generate(ctx, r)
			if err == nil && len(c.Tokens) != tokens {
				err = fmt.Errorf("%d tokens instead of %d", len(c.Tokens), tokens)
			}
			errs <- err
		}()
	}
	for range prompts {
		err = errors.Join(err, <-errs)
	}
	return time.Since(start).Seconds(), err
}

// generate measures the engine: a batch of requests, sent at once, each with a prompt of its own.
func (j job) generate(ctx context.Context, dtype torch.DType) (report, error) {
	g, err := j.generator(ctx, dtype)
	if err != nil {
		return report{}, err
	}
	if _, err := g.ask(ctx, g.prompts(j.Batch, j.Length), 4); err != nil { // to warm up
		return report{}, err
	}
	seconds, err := g.ask(ctx, g.prompts(j.Batch, j.Length), j.New)
	return report{Value: float64(j.Batch*j.New) / seconds}, err
}

// group measures the samples of one prompt. Its other side, the parts, measures the prompt with one token and, apart from it, as many
// samples of short prompts.
func (j job) group(ctx context.Context, dtype torch.DType, parts bool) (report, error) {
	g, err := j.generator(ctx, dtype)
	if err != nil {
		return report{}, err
	}
	times := make([]float64, 1+j.Steps)
	for step := range times {
		prompt := g.prompts(1, j.Length)
		if !parts {
			times[step], err = g.ask(ctx, slices.Repeat(prompt, j.Batch), j.New)
		} else if times[step], err = g.ask(ctx, prompt, 1); err == nil {
			var decode float64
			decode, err = g.ask(ctx, g.prompts(j.Batch, 4), j.New)
			times[step] += decode
		}
		if err != nil {
			return report{}, err
		}
	}
	return report{Value: median(times[1:])}, nil
}

// refit measures loads of a float32 master, in ms.
func (j job) refit(ctx context.Context, dtype torch.DType) (r report, err error) {
	g, err := j.generator(ctx, dtype)
	if err != nil {
		return r, err
	}
	err = torch.Do(1, func(s *torch.Scope) error {
		m, err := model.Load(s, j.model(), torch.Float32)
		if err != nil {
			return err
		}
		times := make([]float64, 1+j.Steps)
		for step := range times {
			start := time.Now()
			if err := g.Load(ctx, int32(1+step), m.Params()); err != nil {
				return err
			}
			times[step] = time.Since(start).Seconds() * 1e3
		}
		r.Value = median(times[1:])
		return nil
	})
	return r, err
}
