package estimators

import (
	"errors"
	"fmt"
)

// Batch is what an estimator works on: checked, with rewards merged to U units and shaped. Its slices are read-only.
type Batch struct {
	Rewards []float64   // [U] shaped reward of each unit
	Groups  [][]int     // units of each group, in order of first appearance
	Units   []int       // [N] unit of each sample
	Masks   [][]bool    // [N][T]
	KLs     [][]float32 // [N][T], or nil: no KL
	Values  [][]float32 // [N][T], or nil: no critic
	Options Options
}

func newBatch(in Input, unit Unit) (Batch, error) {
	if err := in.check(); err != nil {
		return Batch{}, err
	}
	b := Batch{Masks: in.Masks, KLs: in.KLs, Values: in.Values, Options: in.Options, Units: make([]int, len(in.Rewards))}
	var firsts, contexts []int
	var truncated []bool
	units, groups := map[int64]int{}, map[int64]int{}
	for i := range in.Rewards {
		u, seen := len(firsts), false
		if unit == PerRollout && len(in.Rollouts) > 0 {
			u, seen = lookup(units, in.Rollouts[i])
		}
		if !seen {
			firsts, contexts, truncated = append(firsts, i), append(contexts, 0), append(truncated, false)
			g := len(b.Groups)
			if len(in.Groups) > 0 {
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
		truncated[u] = truncated[u] || len(in.Truncated) > 0 && in.Truncated[i]
	}
	for u, i := range firsts {
		b.Rewards = append(b.Rewards, in.Options.shape(float64(in.Rewards[i]), contexts[u], truncated[u]))
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
	for _, field := range []struct {
		name     string
		got      int
		optional bool
	}{
		{"masks", len(in.Masks), false},
		{"rollouts", len(in.Rollouts), true},
		{"groups", len(in.Groups), true},
		{"truncated", len(in.Truncated), true},
		{"contexts", len(in.Contexts), true},
	} {
		if field.got != n && !(field.optional && field.got == 0) {
			return fmt.Errorf("%s: %d samples, want %d", field.name, field.got, n)
		}
	}
	for i, r := range in.Rewards {
		if !finite(float64(r)) {
			return fmt.Errorf("reward of sample %d is %v", i, r)
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

// Broadcast gives every action of a sample the advantage of its unit, perUnit [U]. The returns are the same numbers.
func (b Batch) Broadcast(perUnit []float64) Result {
	out := Result{b.Zeros(), b.Zeros()}
	for i, mask := range b.Masks {
		a := float32(perUnit[b.Units[i]])
		for t, action := range mask {
			if action {
				out.Advantages[i][t], out.Returns[i][t] = a, a
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
