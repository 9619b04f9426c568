package trainer

import (
	"fmt"
	"math"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch/model"
)

// Sample is one trajectory to train on, of T tokens. What belongs to tokens that are not trained on is not read.
type Sample struct {
	Tokens         rollout.Tokens
	Advantages     []float32 // [T]
	Old            []float32 // [T] log-probs that the ratio is taken to; nil: what loss.old says
	Reference      []float32 // [T] log-probs under the reference model; see LossConfig.needsReference
	values         []float32 // [T] the critic's before the step; nil without one, as are the returns that it learns from
	returns        []float32
	Group, Rollout int64
}

// Plan is an optimizer step cut into micro-batches.
type Plan struct {
	Micros []Micro // none if no sample has a token to train on
	Step   Step
}

// Micro is one forward and backward. Of its rows only those that predict a trained token are scored: N places.
type Micro struct {
	Batch                     model.Batch
	Rows                      []int32         // [N] row of Batch that predicts the token; samples of a group may have it in common
	IDs                       []int32         // [N], after addTop [N,1+K]
	InvT                      []float32       // [N] 1 / temperature
	Old, Behaviour, Reference []float32       // [N]; Old and Reference are nil where samples have none
	Top                       []float32       // [N,K] log-probs that the sampler gave its most likely tokens; see addTop
	Advantages                []float32       // [N]
	Places                    []Place         // [N] where the token stands
	Sample                    []int32         // [N] an index into Samples
	Images                    []rollout.Image // that Batch shows, in its order
	Samples                   []SampleInfo
	First                     int // place 0 is this token of the step
}

// Place is a token of a sample, both by their index.
type Place struct{ Sample, Token int }

// bundle is samples of one group that stand in one micro-batch and have their first tokens in common.
type bundle struct {
	members []int
	prefix  int // tokens in common, one sequence that all see
	total   int // rows if nothing were in common
}

func (h bundle) rows() int { return h.total - (len(h.members)-1)*h.prefix }

// Pack cuts samples into micro-batches of at most budget rows. Tokens that the samples of a group have in common
// from the start on are computed once; a group stands in one micro-batch unless it exceeds the budget by itself. Tokens after
// the last trained one are left out. A sample that does not fit, numbers that are not finite, and log-probs that only some samples have
// are errors.
func Pack(samples []Sample, budget int) (Plan, error) {
	var plan Plan
	var order []int64
	groups, trained := map[int64][]int{}, map[int64]int{}
	var first *Sample // with a trained token
	for i, x := range samples {
		n, err := x.check()
		if err != nil {
			return Plan{}, fmt.Errorf("sample %d (rollout %d): %w", i, x.Rollout, err)
		}
		if rows := x.rows(); rows > budget {
			return Plan{}, fmt.Errorf("sample %d (rollout %d) needs %d rows, but optim.micro_tokens is %d: "+
				"raise it or lower the context length", i, x.Rollout, rows, budget)
		}
		if n > 0 && first == nil {
			first = &samples[i]
		}
		if n > 0 && ((x.Old == nil) != (first.Old == nil) || (x.Reference == nil) != (first.Reference == nil)) {
			return Plan{}, fmt.Errorf("sample %d (rollout %d): old or reference log-probs are given for some samples and not for others", i,
				x.Rollout)
		}
		if _, ok := groups[x.Group]; !ok {
			order = append(order, x.Group)
		}
		groups[x.Group] = append(groups[x.Group], i)
		trained[x.Group] += n
		plan.Step.Tokens += n
	}
	plan.Step.Sequences, plan.Step.chosen = len(samples), new([]float32)
	room := 0
	for _, group := range order {
		if trained[group] > 0 {
			plan.Step.Prompts++
		}
		for _, h := range split(samples, groups[group], budget) {
			if h.rows() > room {
				plan.Micros, room = append(plan.Micros, Micro{}), budget
			}
			room -= h.rows()
			plan.Micros[len(plan.Micros)-1].add(samples, h, trained[group])
		}
	}
	for i := range plan.Micros {
		m := &plan.Micros[i]
		m.First = len(plan.Step.Behaviour)
		plan.Step.Behaviour = append(plan.Step.Behaviour, m.Behaviour...)
		plan.Step.Advantages = append(plan.Step.Advantages, m.Advantages...)
	}
	return plan, nil
}

// addTop puts the sampler's k most likely tokens beside those that were sampled.
func (p Plan) addTop(samples []Sample, k int) error {
	for i := range p.Micros {
		m := &p.Micros[i]
		var ids []int32
		for n, at := range m.Places {
			ids = append(ids, m.IDs[n])
			var top []rollout.TopLogP
			if t := samples[at.Sample].Tokens.Top; t != nil {
				top = t[at.Token]
			}
			if len(top) < k {
				return fmt.Errorf("sample %d, token %d: the sampler reported %d most likely tokens, loss.score_centering needs %d",
					at.Sample, at.Token, len(top), k)
			}
			for _, c := range top[:k] {
				if !finite(c.LogP) {
					return fmt.Errorf("sample %d, token %d: the sampler's log-prob of token %d is %v", at.Sample, at.Token, c.ID, c.LogP)
				}
				ids, m.Top = append(ids, c.ID), append(m.Top, c.LogP)
			}
		}
		m.IDs = ids
	}
	return nil
}

// check returns the number of trained tokens.
func (x Sample) check() (trained int, err error) {
	t := x.Tokens
	n := len(t.IDs)
	if len(t.Mask) != n || len(t.LogP) != n || len(t.Temp) != n || len(x.Advantages) != n ||
		x.Old != nil && len(x.Old) != n || x.Reference != nil && len(x.Reference) != n {
		return 0, fmt.Errorf("%d tokens, but %d masks, %d log-probs, %d temperatures, %d advantages, %d old and %d reference log-probs",
			n, len(t.Mask), len(t.LogP), len(t.Temp), len(x.Advantages), len(x.Old), len(x.Reference))
	}
	for i, on := range t.Mask {
		if !on {
			continue
		}
		trained++
		if i == 0 {
			return 0, fmt.Errorf("token 0 is to be trained, but nothing comes before it")
		}
		if !(t.Temp[i] > 0) || !finite(t.Temp[i]) {
			return 0, fmt.Errorf("token %d: temperature is %v", i, t.Temp[i])
		}
		for _, v := range []struct {
			name   string
			values []float32
		}{{"advantage", x.Advantages}, {"log-prob", t.LogP}, {"old log-prob", x.Old}, {"reference log-prob", x.Reference}} {
			if v.values != nil && !finite(v.values[i]) {
				return 0, fmt.Errorf("token %d: %s is %v", i, v.name, v.values[i])
			}
		}
	}
	return trained, nil
}

func finite[F float32 | float64](x F) bool {
	return !math.IsNaN(float64(x)) && !math.IsInf(float64(x), 0)
}

// rows is the number of tokens that predict: those before the last trained one.
func (x Sample) rows() int {
	for i := len(x.Tokens.Mask) - 1; i >= 0; i-- {
		if x.Tokens.Mask[i] {
			return i
		}
	}
	return 0
}

// split cuts a group into bundles of at most budget rows. Samples without a trained token are left out.
func split(samples []Sample, members []int, budget int) []bundle {
	var bundles []bundle
	var h bundle
	for _, i := range members {
		ids := samples[i].Tokens.IDs[:samples[i].rows()]
		if len(ids) == 0 {
			continue
		}
		next := bundle{append(h.members[:len(h.members):len(h.members)], i), len(ids), h.total + len(ids)}
		if len(h.members) > 0 {
			next.prefix = common(samples[h.members[0]].Tokens, samples[i].Tokens, min(h.prefix, len(ids)))
		}
		if next.rows() > budget {
			bundles = append(bundles, h)
			next = bundle{[]int{i}, len(ids), len(ids)}
		}
		h = next
	}
	if len(h.members) > 0 {
		bundles = append(bundles, h)
	}
	return bundles
}

// common is the number of tokens, at most n and no part of an image, that a and b start with alike.
func common(a, b rollout.Tokens, n int) int {
	for i := range n {
		if a.IDs[i] != b.IDs[i] {
			n = i
			break
		}
	}
	for k, m := range a.Images {
		if m.Start < n && (m.Start+m.Len > n || k >= len(b.Images) || b.Images[k].Start != m.Start || b.Images[k].Grid != m.Grid ||
			b.Images[k].Digest != m.Digest) {
			return m.Start
		}
	}
	return n
}

// add appends a bundle to m: the common tokens as one sequence, then what each sample has of its own.
func (m *Micro) add(samples []Sample, h bundle, groupTokens int) {
	first := samples[h.members[0]]
	prefix, start := int32(h.prefix), int32(m.Batch.Len())
	if prefix > 0 {
		m.Batch.AddSequence(first.Tokens.IDs[:prefix], start, prefix)
		m.place(first.Tokens.Images, int(start), 0, h.prefix)
	}
	for _, i := range h.members {
		x := samples[i]
		own, at := x.Tokens.IDs[prefix:x.rows()], int32(m.Batch.Len())
		if len(own) > 0 && prefix > 0 {
			m.Batch.AddSequence(own, start, prefix, at, int32(len(own)))
		} else if len(own) > 0 {
			m.Batch.AddSequence(own, at, int32(len(own)))
		}
		m.place(x.Tokens.Images, int(at), h.prefix, len(own))
		info := SampleInfo{GroupTokens: groupTokens}
		for t, on := range x.Tokens.Mask {
			if !on {
				continue
			}
			row := start + int32(t) - 1
			if int32(t) > prefix {
				row = at + int32(t) - 1 - prefix
			}
			m.score(x, i, t, row)
			info.Tokens++
		}
		m.Samples = append(m.Samples, info)
	}
}

// place gives n rows of the batch, which are the tokens of a sequence from one on, their places beside images and in them.
func (m *Micro) place(images []rollout.Image, first, from, n int) {
	if len(images) == 0 {
		return
	}
	var placed []model.Placed
	var merge int // patches on a side of what a token stands for
	for _, x := range images {
		placed = append(placed, model.Placed{Start: x.Start, Len: x.Len, Grid: x.Grid})
		merge = int(math.Sqrt(float64(x.Grid[1] * x.Grid[2] / x.Len)))
	}
	for _, k := range m.Batch.Place(merge, first, from, n, placed) {
		m.Images = append(m.Images, images[k])
	}
}

// score appends token t of x, predicted by that row.
func (m *Micro) score(x Sample, i, t int, row int32) {
	m.Rows, m.IDs = append(m.Rows, row), append(m.IDs, x.Tokens.IDs[t])
	m.InvT, m.Behaviour = append(m.InvT, 1/x.Tokens.Temp[t]), append(m.Behaviour, x.Tokens.LogP[t])
	m.Advantages = append(m.Advantages, x.Advantages[t])
	if x.Old != nil {
		m.Old = append(m.Old, x.Old[t])
	}
	if x.Reference != nil {
		m.Reference = append(m.Reference, x.Reference[t])
	}
	m.Places = append(m.Places, Place{i, t})
	m.Sample = append(m.Sample, int32(len(m.Samples)))
}
