package main

import (
	"math"
	"strings"
	"time"

	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/trainer"
)

// estimate measures an estimator, in ms, on rollouts in groups of 8: a prompt each, then turns of the policy and of a tool.
func (j job) estimate() (r report, err error) {
	in, actions := estimators.Input{Options: estimators.DefaultOptions()}, 0.0
	in.Options.Lambda, in.Options.KLCoef = 0.95, 1e-3
	for i := range j.Batch {
		mask, kl, values := make([]bool, j.Length), make([]float32, j.Length), make([]float32, j.Length)
		for t := range mask {
			kl[t] = float32((i*j.Length+t)*7919%1009) / 1009
			mask[t], values[t] = t >= 256+i%64 && (t+i)%128 < 96, kl[t]-0.5
			if mask[t] {
				actions++
			}
		}
		in.Masks, in.KLs, in.Values = append(in.Masks, mask), append(in.KLs, kl), append(in.Values, values)
		in.Rewards, in.Groups = append(in.Rewards, float32(i*7919%101)/101), append(in.Groups, int64(i/8))
	}
	var out estimators.Result
	times := make([]float64, 1+j.Steps)
	for step := range times {
		start := time.Now()
		if out, err = estimators.Estimate(strings.TrimPrefix(j.Name, "estimate_"), in); err != nil {
			return r, err
		}
		times[step] = time.Since(start).Seconds() * 1e3
	}
	var advantages, returns float64
	for i, row := range out.Advantages {
		for t, a := range row {
			advantages += math.Abs(float64(a+in.Rewards[i])) * float64(t) / float64(j.Length)
			returns += math.Abs(float64(out.Returns[i][t]))
		}
	}
	r.Loss = advantages * returns / actions / actions // an error of either shows
	r.Value = median(times[1:])
	return r, nil
}

// loss measures a policy loss, in seconds, from hidden states and a head of SmolLM2's shape to their gradients, as the trainer goes: the
// loss is an expression over log-probs, and the head's backward starts at its gradient. Kind sequence is a loss by sequences of 128
// tokens against the one by tokens, its other side.
func (j job) loss(s *torch.Scope, dtype torch.DType, parts bool) (r report, err error) {
	const width, vocab = 576, 49_152
	n, policy := j.Length, trainer.PPO
	if j.Kind == "sequence" && !parts {
		policy = trainer.GSPO
	}
	if err := torch.Seed(0); err != nil {
		return r, err
	}
	normal := func(d torch.DType, mean, std float64, shape ...int) torch.Tensor {
		return s.Call("aten::normal_", s.Empty(d, shape...), mean, std)[0]
	}
	h, w := normal(dtype, 0, 1, n, width).RequireGrad(true), normal(dtype, 0, 0.05, vocab, width).RequireGrad(true)
	c := trainer.LossInput{Advantages: normal(torch.Float32, -0.5, 1, n), Config: trainer.DefaultConfig().Loss}
	c.Old = s.AddScalar(s.Zeros(torch.Float32, n), -math.Log(vocab))
	c.Behaviour, c.Step.Tokens = c.Old, n
	ids, invT := make([]int64, n), make([]float32, n)
	for i := range ids {
		ids[i], invT[i] = int64(i*7919%vocab), 1
		if i%128 == 0 {
			c.Samples = append(c.Samples, trainer.SampleInfo{Tokens: 128, GroupTokens: 128})
		}
		c.Sample = append(c.Sample, int32(i/128))
	}
	id, it := torch.New(s, ids, n, 1), torch.New(s, invT)
	times := make([]float64, 1+j.Steps)
	for step := range times {
		s.Block(func(s *torch.Scope) torch.Tensor {
			h.ClearGrad()
			w.ClearGrad()
			start, in := time.Now(), c
			logp, entropy := s.LMLogP(h, w, id, it, 0, 512) // 512 rows at a time, as the models take
			in.LogP, in.Entropy = s.Detach(s.Reshape(logp, n)).RequireGrad(true), s.Detach(entropy)
			loss := in.Aggregate(s, policy(s, in).Loss)
			grad := s.Gradients([]torch.Tensor{loss}, nil, []torch.Tensor{in.LogP})[0]
			s.Backward([]torch.Tensor{logp}, []torch.Tensor{s.Reshape(grad, n, 1)})
			times[step], r.Loss = time.Since(start).Seconds(), s.Mean(entropy).Item()
			if j.Kind == "sequence" {
				return torch.Tensor{} // another loss has other gradients
			}
			r.Loss *= loss.Item() // an error of any factor shows
			for _, x := range []torch.Tensor{s.GradOf(h), s.GradOf(w)} {
				r.Loss *= s.Call("aten::linalg_vector_norm", x, 1, nil, false, torch.Float32)[0].Item()
			}
			return torch.Tensor{}
		})
	}
	r.Value = median(times[1:])
	return r, nil
}
