package engine

import (
	"cmp"
	"math"
	"slices"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
)

// uniform is the random number in [0, 1) that token i of a request is drawn with: a function of the request's seed alone, so that
// neither the batch nor the order of requests matters.
func uniform(seed uint64, i int) float64 {
	return float64(rollout.MixSeed(seed, uint64(i))>>11) / (1 << 53)
}

// inverse is 1/T, the factor of the logits; 1 for greedy, whose log-probs are at temperature 1.
func inverse(s rollout.Sampling) float32 {
	if s.Temperature == 0 {
		return 1
	}
	return 1 / s.Temperature
}

// edited tells whether s changes logits before the temperature does.
func edited(s rollout.Sampling) bool {
	return s.Penalty != 0 && s.Penalty != 1 || len(s.Bias) > 0
}

// edit makes y of a row of logits x: bias, then repetition penalty, as transformers' generate does it. seen are the ids so far; the
// penalty acts once on each.
func edit(y, x []float32, s rollout.Sampling, seen []int32) {
	copy(y, x)
	for id, b := range s.Bias {
		y[id] += b
	}
	if s.Penalty == 0 || s.Penalty == 1 {
		return
	}
	for _, id := range seen {
		if v := x[id] + s.Bias[id]; v < 0 {
			y[id] = v * s.Penalty
		} else {
			y[id] = v / s.Penalty
		}
	}
}

// logProb is that of a logit under the distribution that stats are of, with the bits that [torch.Scope.Sample] gives it.
func logProb(x float32, stats []float32, invT float32) float32 {
	return float32(math.FMA(float64(x)-float64(stats[0]), float64(invT), -float64(stats[1])))
}

// maxTop bounds Sampling.TopLogP.
const maxTop = 256

// topLogP lists the n likeliest ids of a row of logits x, likeliest first, equal ones by id.
func topLogP(x, stats []float32, invT float32, n int) []rollout.TopLogP {
	better := func(a, b int32) int { return cmp.Or(cmp.Compare(x[b], x[a]), cmp.Compare(a, b)) }
	best := make([]int32, 0, n+1)
	for id, v := range x {
		if len(best) == n && v <= x[best[n-1]] {
			continue
		}
		i, _ := slices.BinarySearchFunc(best, int32(id), better)
		if best = slices.Insert(best, i, int32(id)); len(best) > n {
			best = best[:n]
		}
	}
	top := make([]rollout.TopLogP, len(best))
	for i, id := range best {
		top[i] = rollout.TopLogP{ID: id, LogP: logProb(x[id], stats, invT)}
	}
	return top
}

// sample draws a token from each row of logits [len(asked), vocabulary], as asked, at quantiles u. Log-probs are those of
// softmax(logits/T), before bias, penalty and truncation. seen(i) are row i's ids so far.
func sample(s *torch.Scope, logits torch.Tensor, asked []rollout.Sampling, u []float64, seen func(i int) []int32) []drawn {
	invT, cuts := make([]float32, len(asked)), make([]float64, 0, 3*len(asked))
	for i, q := range asked {
		if q.Temperature > 0 {
			invT[i] = inverse(q)
		}
		cuts = append(cuts, float64(q.TopK), float64(q.TopP), float64(q.MinP))
	}
	invTs, us, cutsT := torch.New(s, invT), torch.New(s, u), torch.New(s, cuts, len(asked), 3)
	idsT, logpT, statsT := s.Sample(logits, invTs, us, cutsT)
	ids, logp, stats := torch.Values[int32](idsT), torch.Values[float32](logpT), torch.Values[float32](statsT)
	out := make([]drawn, len(asked))
	var at []int32
	var raw, edits []float32 // the logits of the rows at
	for i, q := range asked {
		out[i] = drawn{id: ids[i], logp: logp[i]}
		if q.TopLogP == 0 && !edited(q) {
			continue
		}
		x := torch.Values[float32](s.Narrow(logits, 0, i, 1))
		if q.TopLogP > 0 {
			out[i].top = topLogP(x, stats[2*i:], inverse(q), q.TopLogP)
		}
		if edited(q) {
			at, raw, edits = append(at, int32(i)), append(raw, x...), append(edits, x...)
			edit(edits[len(edits)-len(x):], x, q, seen(i))
		}
	}
	if len(at) == 0 {
		return out
	}
	v, rows := len(raw)/len(at), torch.New(s, at)
	of := func(x torch.Tensor) torch.Tensor { return s.IndexSelect(x, 0, rows) }
	idsT, _, _ = s.Sample(torch.New(s, edits, len(at), v), of(invTs), of(us), of(cutsT))
	for j, id := range torch.Values[int32](idsT) {
		d, i := &out[at[j]], at[j]
		if d.id = min(d.id, id); d.id >= 0 {
			d.id, d.logp = id, logProb(raw[j*v+int(id)], stats[2*i:], inverse(asked[i]))
		}
	}
	return out
}
