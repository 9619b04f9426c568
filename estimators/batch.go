package estimators

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Batch is what an estimator works on: checked, with rewards merged to U units and shaped. Its slices are read-only.
type Batch struct {
	Rewards    []float64            // [U] shaped reward of each unit
	Groups     [][]int              // units of each group, in order of first appearance
	Units      []int                // [N] unit of each sample
	Truncated  []bool               // [U] a sample of the unit was cut by a limit
	Baselines  []float64            // [U] reward of a greedy rollout of the unit's prompt, or nil
	Components map[string][]float64 // parts of the reward, [U] each, not shaped
	Masks      [][]bool             // [N][T]
	KLs        [][]float32          // [N][T], or nil: no KL
	Values     [][]float32          // [N][T], or nil: no critic
	Bootstrap  []float32            // [N] value after the last action, or nil
	Options    Options
}

func newBatch(in Input, unit Unit) (Batch, error) {
	if err := in.check(); err != nil {
		return Batch{}, err
	}
	b := Batch{Units: make([]int, len(in.Rewards)), Masks: in.Masks, KLs: in.KLs, Values: in.Values, Bootstrap: in.Bootstrap,
		Components: map[string][]float64{}, Options: in.Options}
	var firsts, contexts []int
	units, groups := map[int64]int{}, map[int64]int{}
	for i := range in.Rewards {
		u, seen := len(firsts), false
		if unit == PerRollout && len(in.Rollouts) > 0 {
			u, seen = lookup(units, in.Rollouts[i])
		}
		if !seen {
			firsts, contexts, b.Truncated = append(firsts, i), append(contexts, 0), append(b.Truncated, false)
			g := len(b.Groups)
			if unit == PerRollout && len(in.Groups) > 0 {
				g, _ = lookup(groups, in.Groups[i])
			}
			if g == len(b.Groups) {
				b.Groups = append(b.Groups, nil)
			}
			b.Groups[g] = append(b.Groups[g], u)
		} else if len(in.Groups) > 0 && in.Groups[i] != in.Groups[firsts[u]] {
			return Batch{}, fmt.Errorf("rollout %d has samples in groups %d and %d", in.Rollouts[i], in.Groups[firsts[u]], in.Groups[i])
		}
		b.Units[i] = u
		if len(in.Contexts) > 0 {
			contexts[u] = max(contexts[u], in.Contexts[i])
		}
		b.Truncated[u] = b.Truncated[u] || len(in.Truncated) > 0 && in.Truncated[i]
	}
	for u, i := range firsts {
		r := in.Options.shape(float64(in.Rewards[i]), contexts[u], b.Truncated[u])
		if !(math.Abs(r) <= math.MaxFloat32) {
			return Batch{}, fmt.Errorf("rewards: sample %d is %v after shaping", i, r)
		}
		b.Rewards = append(b.Rewards, r)
		if in.Baselines != nil {
			b.Baselines = append(b.Baselines, in.Options.clip(float64(in.Baselines[i])))
		}
		for name, values := range in.Components {
			b.Components[name] = append(b.Components[name], float64(values[i]))
		}
	}
	return b, nil
}

// lookup returns the index of id, a new one if id was not seen before.
func lookup(index map[int64]int, id int64) (i int, seen bool) {
	i, seen = index[id]
	if !seen {
		i = len(index)
		index[id] = i
	}
	return i, seen
}

func (in Input) check() error {
	n := len(in.Rewards)
	if n == 0 {
		return errors.New("the batch has no samples")
	}
	type field struct {
		name     string
		got      int
		values   []float32
		optional bool
	}
	fields := []field{
		{"masks", len(in.Masks), nil, false},
		{"rollouts", len(in.Rollouts), nil, true},
		{"groups", len(in.Groups), nil, true},
		{"truncated", len(in.Truncated), nil, true},
		{"contexts", len(in.Contexts), nil, true},
		{"rewards", n, in.Rewards, false},
		{"baselines", len(in.Baselines), in.Baselines, in.Baselines == nil},
		{"bootstrap", len(in.Bootstrap), in.Bootstrap, true},
	}
	for _, name := range slices.Sorted(maps.Keys(in.Components)) {
		fields = append(fields, field{fmt.Sprintf("component %q", name), len(in.Components[name]), in.Components[name], false})
	}
	for _, f := range fields {
		if f.got != n && !(f.optional && f.got == 0) {
			return fmt.Errorf("%s: %d samples, want %d", f.name, f.got, n)
		}
		for i, x := range f.values {
			if !finite(x) {
				return fmt.Errorf("%s: sample %d is %v", f.name, i, x)
			}
		}
	}
	if in.KLs != nil {
		if err := checkRows("kls", in.KLs, in.Masks); err != nil {
			return err
		}
	}
	if in.Values != nil {
		if err := checkRows("values", in.Values, in.Masks); err != nil {
			return err
		}
	}
	return errors.Join(in.Options.Validate(), in.checkOverlong())
}

// PerGroup calls f once for each group with a copy of the rewards of its units; f replaces them by advantages. It
// returns the advantage of each unit, [U].
func (b Batch) PerGroup(f func(r []float64)) []float64 {
	out := make([]float64, len(b.Rewards))
	var r []float64
	for _, group := range b.Groups {
		r = r[:0]
		for _, u := range group {
			r = append(r, b.Rewards[u])
		}
		f(r)
		for k, u := range group {
			out[u] = r[k]
		}
	}
	return out
}

// Broadcast gives every action of a sample the advantage of its unit, perUnit [U]. The returns are those numbers too.
func (b Batch) Broadcast(perUnit []float64) Result {
	out := Result{Advantages: b.Zeros()}
	for i, mask := range b.Masks {
		a, row := float32(perUnit[b.Units[i]]), out.Advantages[i][:len(mask)]
		for t, action := range mask {
			if action {
				row[t] = a
			}
		}
	}
	return out
}

// Zeros returns a new array of zeros in the shape of the masks; its rows share one allocation.
func (b Batch) Zeros() [][]float32 {
	total := 0
	for _, mask := range b.Masks {
		total += len(mask)
	}
	flat, rows := make([]float32, total), make([][]float32, len(b.Masks))
	for i, mask := range b.Masks {
		rows[i], flat = flat[:len(mask):len(mask)], flat[len(mask):]
	}
	return rows
}
