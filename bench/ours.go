package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/molt-go/molt"
	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
	"github.com/molt-go/molt/torch/optim"
	"github.com/molt-go/molt/trainer"
)

func (j job) model() string { return filepath.Join(j.Models, "SmolLM2-135M-Instruct.Q4_1.gguf") }

// ours is our side: it reads a job and prints a report.
func ours(parts bool) error {
	var j job
	if err := json.NewDecoder(os.Stdin).Decode(&j); err != nil {
		return fmt.Errorf("the job on standard input: %w", err)
	}
	dtype, err := torch.ParseDType(j.DType)
	if err != nil {
		return err
	}
	var r report
	switch ctx := context.Background(); j.Kind {
	case "grpo":
		r, err = j.grpo(ctx)
	case "adamw":
		err = torch.Do(j.Threads, func(s *torch.Scope) error { r, err = j.adamw(s); return err })
	case "encode":
		r, err = j.encode()
	case "estimate":
		r, err = j.estimate()
	case "generate":
		r, err = j.generate(ctx, dtype)
	case "group":
		r, err = j.group(ctx, dtype, parts)
	case "refit":
		r, err = j.refit(ctx, dtype)
	case "allreduce":
		r, err = j.allreduce(dtype)
	case "op":
		runtime.GOMAXPROCS(2) // pinned to one core, the runtime would look for other work during every long call of C
		err = torch.Do(1, func(s *torch.Scope) error { r = j.op(s); return nil })
	case "loss", "sequence":
		err = torch.Do(j.Threads, func(s *torch.Scope) error { r, err = j.loss(s, dtype, parts); return err })
	case "train":
		err = torch.Do(j.Threads, func(s *torch.Scope) error { r, err = j.train(ctx, s, dtype); return err })
	}
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(r))
}

// encode measures the tokenizer on the reference's texts in languages of people and in the forms of chats, one after the other.
func (j job) encode() (r report, err error) {
	tok, err := multimodal.OpenTokenizer(j.model())
	if err != nil {
		return r, err
	}
	f, err := os.Open("testdata/reference/text/strings.jsonl.gz")
	if err != nil {
		return r, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return r, err
	}
	var texts []string
	for d := json.NewDecoder(z); d.More(); {
		var line struct{ Text, Kind string }
		if err := d.Decode(&line); err != nil {
			return r, err
		}
		if strings.HasPrefix(line.Kind, "lang_") || line.Kind == "chat" {
			texts = append(texts, line.Text)
		}
	}
	once := func() (n float64) {
		for _, text := range texts {
			n += float64(len(tok.Encode(text)))
		}
		return n
	}
	r.Loss = once()
	start := time.Now()
	for range j.Steps {
		r.Value += once()
	}
	r.Value /= time.Since(start).Seconds()
	return r, nil
}

// train measures optimizer steps on the mean negative log-prob of all tokens but each row's first, with PyTorch's defaults of AdamW.
// Token i of all rows is 100 + 7919·i mod (vocab−200).
func (j job) train(ctx context.Context, s *torch.Scope, dtype torch.DType) (r report, err error) {
	c := trainer.DefaultConfig()
	c.Loss.Name = "sft"
	c.Optim.Beta2, c.Optim.WeightDecay, c.Optim.MicroTokens = 0.999, 0.01, j.Micro*j.Length
	master, err := model.Load(s, j.model(), torch.Float32)
	if err != nil {
		return r, err
	}
	policy, err := trainer.NewPolicy(s, master, dtype, c.Optim, c.Loss)
	if err != nil {
		return r, err
	}
	samples, n := make([]trainer.Sample, j.Batch), j.Length
	for i := range samples {
		t := rollout.Tokens{IDs: make([]int32, n), Mask: make([]bool, n), LogP: make([]float32, n), Temp: make([]float32, n)}
		for k := range n {
			t.IDs[k], t.Mask[k], t.Temp[k] = int32((i*n+k)*7919%(master.Vocab-200)+100), k > 0, 1
		}
		samples[i] = trainer.Sample{Tokens: t, Advantages: make([]float32, n), Group: int64(i)}
	}
	var start time.Time
	for step := range 1 + j.Steps {
		stats, err := policy.Step(ctx, s, samples, j.LR, nil)
		if err != nil {
			return r, err
		}
		if step == 0 {
			r.Loss, start = stats.Loss, time.Now()
		}
	}
	r.Value = float64(j.Steps*j.Batch*n) / time.Since(start).Seconds()
	return r, nil
}

// adamw measures the fastest update of the model's weights; their gradients are what they begin with.
func (j job) adamw(s *torch.Scope) (r report, err error) {
	m, err := model.Load(s, j.model(), torch.Float32)
	if err != nil {
		return r, err
	}
	var params, grads []optim.Named
	for _, p := range m.Params() {
		params = append(params, optim.Named{Name: p.Name, Tensor: p.Tensor})
		grads = append(grads, optim.Named{Name: p.Name, Tensor: s.Clone(p.Tensor)})
	}
	o, err := optim.NewAdamW(s, params, optim.AdamWConfig{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01})
	if err != nil {
		return r, err
	}
	for step := range 1 + j.Steps {
		start := time.Now()
		if err := o.Step(s, grads, j.LR); err != nil {
			return r, err
		}
		if took := time.Since(start).Seconds(); step > 0 {
			r.Value = min(r.Value, took)
			continue
		}
		r.Value = math.Inf(1)
		for _, p := range params {
			r.Loss += s.Sum(s.Call("aten::abs", p.Tensor)[0]).Item() / float64(m.NumParams())
		}
	}
	return r, nil
}

// grpo runs molt itself and takes the mean seconds of a step from its metrics.
func (j job) grpo(ctx context.Context) (r report, err error) {
	tmp, err := os.MkdirTemp("", "molt-bench-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(tmp)
	c := molt.DefaultConfig()
	c.Model = molt.ModelConfig{Path: j.model(), DType: j.DType}
	c.Data.Path, c.Data.Shuffle, c.Agent.Env = "bench/tasks.jsonl", false, "largest"
	c.Rollout.Prompts, c.Rollout.Samples, c.Rollout.MaxTokens = j.Batch, j.Samples, j.New
	c.Optim.LR, c.Steps, c.Eval.Tasks, c.Log.Dir = j.LR, 1+j.Steps, 0, tmp
	if err := molt.Run(ctx, c, os.Stderr); err != nil {
		return r, err
	}
	metrics, err := os.ReadFile(filepath.Join(tmp, c.Name, "metrics.jsonl"))
	for line := range bytes.Lines(metrics) {
		var row struct{ Step, Seconds float64 }
		if err = errors.Join(err, json.Unmarshal(line, &row)); row.Step > 1 {
			r.Value += row.Seconds / float64(j.Steps)
		}
	}
	return r, err
}

// op measures one operator on small tensors, where the way to it takes most of the time: microseconds, the fastest of 15 runs.
func (j job) op(s *torch.Scope) (r report) {
	fill := func(v float64, shape ...int) torch.Tensor { return s.AddScalar(s.Zeros(torch.Float32, shape...), v) }
	x, w, b := fill(0.5, 1, 64), fill(0.25, 64, 64), fill(1, 64)
	u, v := fill(0.5, 64).RequireGrad(true), fill(0.25, 64).RequireGrad(true)
	run := map[string]func(s *torch.Scope) torch.Tensor{
		"op_add":    func(s *torch.Scope) torch.Tensor { return s.Add(x, x) },
		"op_linear": func(s *torch.Scope) torch.Tensor { return s.Linear(x, w, b) },
		"op_backward": func(s *torch.Scope) torch.Tensor {
			s.Backward([]torch.Tensor{s.Sum(s.Mul(u, v))}, nil)
			g := s.GradOf(u)
			u.ClearGrad()
			v.ClearGrad()
			return g
		},
	}[j.Name]
	r.Loss = s.Sum(run(s)).Item()
	for range 15 {
		start := time.Now()
		for range j.Steps / 10 {
			s.Block(func(s *torch.Scope) torch.Tensor {
				for range 10 {
					run(s)
				}
				return torch.Tensor{}
			})
		}
		if t := time.Since(start).Seconds() / float64(j.Steps) * 1e6; r.Value == 0 || t < r.Value {
			r.Value = t
		}
	}
	return r
}

// allreduce adds up tensors of two ranks, each a process with one thread: this one starts the other.
func (j job) allreduce(dtype torch.DType) (r report, err error) {
	if os.Getenv("RANK") == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0") // finds a free port
		if err != nil {
			return r, err
		}
		l.Close()
		in, err := json.Marshal(j)
		if err != nil {
			return r, err
		}
		os.Setenv("RANK", "1")
		os.Setenv("WORLD_SIZE", "2")
		os.Setenv("MASTER_ADDR", "127.0.0.1")
		os.Setenv("MASTER_PORT", fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
		other := exec.Command(os.Args[0], "-run")
		other.Stdin, other.Stderr = bytes.NewReader(in), os.Stderr
		if err := other.Start(); err != nil {
			return r, err
		}
		defer other.Wait() // it fails where this one does
		os.Setenv("RANK", "0")
	}
	c, err := torch.GroupFromEnv()
	if err != nil {
		return r, err
	}
	g, err := torch.NewGroup(c)
	if err != nil {
		return r, err
	}
	defer g.Close()
	err = torch.Do(1, func(s *torch.Scope) error {
		x := s.To(s.AddScalar(s.Zeros(torch.Float32, j.Length), float64(1+g.Rank())), dtype)
		times := make([]float64, 1+j.Steps)
		for step := range times {
			start := time.Now()
			s.AllReduce_(g, x, torch.Sum)
			times[step] = time.Since(start).Seconds()
		}
		r.Value, r.Loss = median(times[1:]), s.Narrow(x, 0, j.Length-1, 1).Item()
		return nil
	})
	return r, err
}
