package engine

import (
	"cmp"
	"math"
	"slices"

	"github.com/molt-go/molt/rollout"
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

// shaped tells whether tokens are not simply drawn from softmax(logits/T), or at temperature 0 are not the largest logit's.
func shaped(s rollout.Sampling) bool {
	if s.Temperature == 0 {
		s.Temperature, s.TopK, s.TopP, s.MinP = 1, 0, 0, 0
	}
	return !s.Exact()
}

// warp changes a row of logits as s asks: bias, repetition penalty, temperature, top-k, top-p, min-p, in the order and with the
// meanings of transformers' generate. What is cut off becomes -Inf. seen are the ids so far; the penalty acts once on each. At
// temperature 0 only bias and penalty act.
func warp(x []float32, s rollout.Sampling, seen []int32) {
	for id, b := range s.Bias {
		x[id] += b
	}
	if s.Penalty != 0 && s.Penalty != 1 {
		penalise(x, s.Penalty, seen)
	}
	if s.Temperature == 0 {
		return
	}
	for i := range x {
		x[i] /= s.Temperature
	}
	topK, topP := s.TopK > 0 && s.TopK < len(x), s.TopP > 0 && s.TopP < 1
	if topK || topP {
		order := ascending(x)
		if topK {
			least := x[order[len(x)-s.TopK]] // all ties with the k-th stay
			cut(x, func(v float32) bool { return v < least })
		}
		if topP {
			nucleus(x, s.TopP, order)
		}
	}
	if s.MinP > 0 {
		top := slices.Max(x)
		cut(x, func(v float32) bool { return math.Exp(float64(v-top)) < float64(s.MinP) })
	}
}

func penalise(x []float32, penalty float32, seen []int32) {
	once := make(map[int32]bool, len(seen))
	for _, id := range seen {
		if once[id] {
			continue
		}
		once[id] = true
		if x[id] < 0 {
			x[id] *= penalty
		} else {
			x[id] /= penalty
		}
	}
}

// nucleus drops the tail whose probabilities sum to at most 1-p; the likeliest token stays.
func nucleus(x []float32, p float32, order []int32) {
	top, total := x[order[len(order)-1]], 0.0
	for _, v := range x {
		total += math.Exp(float64(v - top))
	}
	sum := 0.0
	for _, id := range order[:len(order)-1] {
		if sum += math.Exp(float64(x[id]-top)) / total; sum > 1-float64(p) {
			return
		}
		x[id] = float32(math.Inf(-1))
	}
}

func cut(x []float32, drop func(float32) bool) {
	for i, v := range x {
		if drop(v) {
			x[i] = float32(math.Inf(-1))
		}
	}
}

// ascending lists the ids by logit, equal ones by id.
func ascending(x []float32) []int32 {
	order := make([]int32, len(x))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Or(cmp.Compare(x[a], x[b]), cmp.Compare(a, b)) })
	return order
}

// pick is the id at quantile u of softmax(x).
func pick(x []float32, u float64) int32 {
	top, total := slices.Max(x), 0.0
	for _, v := range x {
		total += math.Exp(float64(v - top))
	}
	left, last := u*total, 0
	for i, v := range x {
		p := math.Exp(float64(v - top))
		if p == 0 {
			continue
		}
		if last = i; left < p {
			break
		}
		left -= p
	}
	return int32(last)
}

// argmax is the first of the largest.
func argmax(x []float32) int32 {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return int32(best)
}

// drawRow draws from a row of logits as s asks, at quantile u. The log-prob is that under softmax(x/T), before bias, penalty and
// truncation. The row is overwritten.
func drawRow(x []float32, s rollout.Sampling, seen []int32, u float64) (id int32, logp float32) {
	raw := slices.Clone(x)
	warp(x, s, seen)
	if s.Temperature == 0 {
		id = argmax(x)
	} else {
		id = pick(x, u)
	}
	return id, float32(float64(raw[id]*inverse(s)) - logSumExp(raw, inverse(s)))
}

func logSumExp(x []float32, invT float32) float64 {
	top, sum := float64(slices.Max(x)*invT), 0.0
	for _, v := range x {
		sum += math.Exp(float64(v*invT) - top)
	}
	return top + math.Log(sum)
}

// maxTop bounds Sampling.TopLogP.
const maxTop = 256

// topLogP lists the n likeliest ids under softmax(x·invT), likeliest first, equal ones by id.
func topLogP(x []float32, invT float32, n int) []rollout.TopLogP {
	better := func(a, b int32) int { return cmp.Or(cmp.Compare(x[b], x[a]), cmp.Compare(a, b)) }
	best := make([]int32, 0, n+1)
	for id := range int32(len(x)) {
		if len(best) == n && better(best[n-1], id) <= 0 {
			continue
		}
		i, _ := slices.BinarySearchFunc(best, id, better)
		if best = slices.Insert(best, i, id); len(best) > n {
			best = best[:n]
		}
	}
	lse, top := logSumExp(x, invT), make([]rollout.TopLogP, len(best))
	for i, id := range best {
		top[i] = rollout.TopLogP{ID: id, LogP: float32(float64(x[id]*invT) - lse)}
	}
	return top
}
