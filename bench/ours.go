package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/molt-go/molt"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/engine"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
	"github.com/molt-go/molt/trainer"
)

// session is our side's end of the pipes: a job comes as one line of JSON, then a line for each round. What a round gives, and before the
// first that all is ready, goes out as a report.
type session struct {
	job
	in  *bufio.Scanner
	out *json.Encoder
}

func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	s := session{in: bufio.NewScanner(in), out: json.NewEncoder(out)}
	if !s.in.Scan() {
		return errors.New("no job on standard input")
	}
	if err := json.Unmarshal(s.in.Bytes(), &s.job); err != nil {
		return err
	}
	switch s.Kind {
	case "generate":
		return s.generate(ctx)
	case "train":
		return s.train(ctx)
	case "grpo":
		return s.rounds(report{}, func() (float64, error) { return s.grpo(ctx) })
	}
	return fmt.Errorf("unknown kind of job %q", s.Kind)
}

// rounds says that all is ready and measures as often as it is asked to.
func (j session) rounds(ready report, round func() (float64, error)) error {
	if err := j.out.Encode(ready); err != nil {
		return err
	}
	for j.in.Scan() {
		value, err := round()
		if err != nil {
			return err
		}
		if err := j.out.Encode(report{Value: value}); err != nil {
			return err
		}
	}
	return j.in.Err()
}

// generate measures the engine: a batch of requests, sent at once, each with a prompt of its own.
func (j session) generate(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	shape, err := model.PeekConfig(j.Model)
	if err != nil {
		return err
	}
	dtype, err := torch.ParseDType(j.DType)
	if err != nil {
		return err
	}
	e, err := engine.New(engine.DefaultConfig(), shape, dtype, j.Threads)
	if err != nil {
		return err
	}
	go e.Run(ctx) // its error comes out of Load and Generate too
	var ready report
	err = torch.Do(j.Threads, func(s *torch.Scope) error {
		m, err := model.Load(s, j.Model, dtype)
		if err != nil {
			return err
		}
		ready.Bound = float64(j.Batch) / products(s, m, j.Batch)
		return e.Load(ctx, 0, m.Params())
	})
	if err != nil {
		return err
	}
	num := uint64(0)
	round := func() (float64, error) {
		num++
		errs := make([]error, j.Batch)
		var wg sync.WaitGroup
		start := time.Now()
		for i := range j.Batch {
			rng := rand.New(rand.NewPCG(num, uint64(i)))
			ids := make([]int32, j.Length)
			for k := range ids {
				ids[k] = 100 + rng.Int32N(int32(shape.Vocab)-200)
			}
			sampling := rollout.Sampling{Temperature: 1, MaxTokens: j.New, Seed: rng.Uint64(), IgnoreEOS: true}
			wg.Go(func() {
				c, err := e.Generate(ctx, rollout.Request{IDs: ids, Sampling: sampling})
				if errs[i] = err; err == nil && len(c.Tokens) != j.New {
					errs[i] = fmt.Errorf("%d tokens instead of %d", len(c.Tokens), j.New)
				}
			})
		}
		wg.Wait()
		return float64(j.Batch*j.New) / time.Since(start).Seconds(), errors.Join(errs...)
	}
	if _, err := round(); err != nil {
		return err
	}
	return j.rounds(ready, round)
}

// products is the time, in seconds, of the matrix products of one decode step alone: every weight once, and the embedding is the head.
func products(s *torch.Scope, m *model.Model, batch int) float64 {
	best := math.Inf(1)
	for range 5 {
		s.NoGrad(func(s *torch.Scope) torch.Tensor {
			inputs := map[int]torch.Tensor{}
			for _, width := range []int{m.Width, m.Heads * m.HeadDim, m.Inner} {
				inputs[width] = s.Zeros(m.DType, batch, width)
			}
			start := time.Now()
			for _, w := range m.Leaves() {
				if shape := w.Shape(); len(shape) == 2 {
					s.Linear(inputs[shape[1]], w, torch.Tensor{})
				}
			}
			best = min(best, time.Since(start).Seconds())
			return torch.Tensor{}
		})
	}
	return best
}

// train measures the optimizer step on the mean negative log-prob of every token but the first of each row, with PyTorch's defaults of AdamW.
func (j session) train(ctx context.Context) error {
	dtype, err := torch.ParseDType(j.DType)
	if err != nil {
		return err
	}
	nll := func(s *torch.Scope, in trainer.LossInput) trainer.LossOutput {
		return trainer.LossOutput{Loss: s.Neg(in.TokenMean(s, in.LogP))}
	}
	if err := trainer.RegisterLoss("nll", nll); err != nil {
		return err
	}
	c := trainer.DefaultConfig()
	c.Loss.Name = "nll"
	c.Optim.Beta2, c.Optim.WeightDecay, c.Optim.MicroTokens = 0.999, 0.01, j.Micro*j.Length
	return torch.Do(j.Threads, func(s *torch.Scope) error {
		master, err := model.Load(s, j.Model, torch.Float32)
		if err != nil {
			return err
		}
		policy, err := trainer.NewPolicy(s, master, dtype, c.Optim, c.Loss)
		if err != nil {
			return err
		}
		samples := j.rows(master.Vocab)
		first, err := policy.Step(ctx, s, samples, j.LR, nil)
		if err != nil {
			return err
		}
		if want := j.Batch * (j.Length - 1); first.Tokens != want {
			return fmt.Errorf("%d tokens were scored instead of %d", first.Tokens, want)
		}
		return j.rounds(report{Loss: first.Loss}, func() (float64, error) {
			start := time.Now()
			_, err := policy.Step(ctx, s, samples, j.LR, nil)
			return float64(j.Batch*j.Length) / time.Since(start).Seconds(), err
		})
	})
}

// rows are what both sides train on: token i of all is 100 + 7919·i mod (vocab−200).
func (j session) rows(vocab int) []trainer.Sample {
	samples := make([]trainer.Sample, j.Batch)
	for i := range samples {
		n := j.Length
		t := rollout.Tokens{IDs: make([]int32, n), Mask: make([]bool, n), LogP: make([]float32, n), Temp: make([]float32, n)}
		for k := range n {
			t.IDs[k], t.Mask[k], t.Temp[k] = int32((i*n+k)*7919%(vocab-200)+100), k > 0, 1
		}
		samples[i] = trainer.Sample{Tokens: t, Advantages: make([]float32, n), Group: int64(i), Rollout: int64(i)}
	}
	return samples
}

// grpo runs molt itself and gives the mean seconds of a step, from the rows of its metrics after the first.
func (j session) grpo(ctx context.Context) (float64, error) {
	tmp, err := os.MkdirTemp("", "molt-bench-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(tmp)
	c := molt.DefaultConfig()
	c.Model = molt.ModelConfig{Path: j.Model, DType: j.DType}
	c.Data = rollout.DataConfig{Source: "jsonl", Path: j.Tasks}
	c.Agent.Env = "largest"
	c.Rollout.Prompts, c.Rollout.Samples, c.Rollout.MaxTokens = j.Batch/j.Samples, j.Samples, j.New
	c.Optim.LR, c.Steps, c.Eval.Tasks, c.Log.Dir = j.LR, j.Steps+1, 0, tmp
	if err := molt.Run(ctx, c, os.Stderr); err != nil {
		return 0, err
	}
	f, err := os.Open(filepath.Join(tmp, c.Name, "metrics.jsonl"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	total, steps := 0.0, 0
	for rows := json.NewDecoder(f); ; {
		var row struct{ Step, Seconds float64 }
		if err := rows.Decode(&row); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return 0, err
		}
		if row.Step > 1 {
			total, steps = total+row.Seconds, steps+1
		}
	}
	if steps != j.Steps {
		return 0, fmt.Errorf("%d steps were measured instead of %d", steps, j.Steps)
	}
	return total / float64(steps), nil
}
