package estimators

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// properties says what holds for each estimator, under the default options unless a test says otherwise.
var properties = map[string]struct {
	shift bool    // adding one number to all rewards changes nothing
	scale float32 // times 4 for all rewards, values and KLs is times scale for the advantages; 0: no law
	alone bool    // without whitening a group's advantages do not depend on other groups
	one   float32 // without whitening the advantage of oneRollout
}{
	"dr_grpo":            {true, 4, true, 0},
	"flash_reinforce":    {true, 4, false, 0},
	"gae":                {true, 1, true, 0.5},
	"gdpo":               {true, 1, true, 0},
	"gpg":                {true, 4, false, 0}, // α counts the groups with spread
	"grpo":               {true, 1, true, 0},
	"maxrl":              {false, 1, true, 0}, // divides by the mean
	"on_policy_distill":  {true, 4, true, -0.25},
	"opo":                {true, 4, true, 0},
	"pass_at_k":          {false, 0, true, 0}, // rewards are 0 or 1
	"reinforce":          {true, 1, true, 0.75},
	"reinforce_baseline": {true, 1, true, 0},
	"remax":              {true, 4, true, 0.875},
	"rloo":               {true, 4, true, 1},
}

// oneRollout is a batch of one action: reward 1, KL 0.5 at coefficient 0.5, value 0.25, greedy reward 0.125.
func oneRollout() Input {
	in := Input{Rewards: []float32{1}, Masks: [][]bool{{true}}, KLs: [][]float32{{0.5}}, Values: [][]float32{{0.25}},
		Baselines: []float32{0.125}, Components: map[string][]float32{"a": {1}}, Options: DefaultOptions()}
	in.Options.KLCoef, in.Options.PassK, in.Options.Whiten = 0.5, 1, false
	return in
}

// randomBatch has 8 groups of 4 rollouts of 1 to 3 samples, and all that any estimator needs.
func randomBatch(rng *rand.Rand, name string) Input {
	in := Input{Components: map[string][]float32{"a": nil, "b": nil}, Options: DefaultOptions()}
	in.Options.KLCoef = 0.1
	for rollout := range int64(32) {
		reward, baseline, part := rng.Float32(), rng.Float32(), rng.Float32()
		if name == "pass_at_k" {
			reward = float32(rng.IntN(2))
		}
		for range 1 + rng.IntN(3) {
			mask, kls, values := make([]bool, 12), make([]float32, 12), make([]float32, 12)
			for t := range mask {
				mask[t], kls[t], values[t] = rng.IntN(3) > 0, float32(rng.NormFloat64()), float32(rng.NormFloat64())
			}
			in.Rewards, in.Rollouts, in.Groups = append(in.Rewards, reward), append(in.Rollouts, rollout), append(in.Groups, rollout/4)
			in.Masks, in.KLs, in.Values = append(in.Masks, mask), append(in.KLs, kls), append(in.Values, values)
			in.Baselines, in.Bootstrap = append(in.Baselines, baseline), append(in.Bootstrap, rng.Float32())
			in.Truncated, in.Contexts = append(in.Truncated, rng.IntN(4) == 0), append(in.Contexts, 1+rng.IntN(20))
			in.Components["a"], in.Components["b"] = append(in.Components["a"], part), append(in.Components["b"], reward-part)
		}
	}
	return in
}

// pick returns a deep copy of in with the samples of order.
func pick(in Input, order []int) Input {
	out := in
	out.Rewards, out.Rollouts, out.Groups = choose(in.Rewards, order), choose(in.Rollouts, order), choose(in.Groups, order)
	out.Truncated, out.Contexts = choose(in.Truncated, order), choose(in.Contexts, order)
	out.Baselines, out.Bootstrap = choose(in.Baselines, order), choose(in.Bootstrap, order)
	out.Masks, out.KLs, out.Values = rows(in.Masks, order), rows(in.KLs, order), rows(in.Values, order)
	out.Components = map[string][]float32{}
	for name, x := range in.Components {
		out.Components[name] = choose(x, order)
	}
	return out
}

func choose[T any](x []T, order []int) []T {
	var out []T
	for _, i := range order {
		out = append(out, x[i])
	}
	return out
}

func rows[T any](x [][]T, order []int) [][]T {
	out := choose(x, order)
	for i := range out {
		out[i] = slices.Clone(out[i])
	}
	return out
}

func identity(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}

// rewardLike calls f with all that is measured in units of reward and is given once a rollout.
func rewardLike(in Input, f func([]float32)) {
	f(in.Rewards)
	f(in.Baselines)
	for _, x := range in.Components {
		f(x)
	}
}

// everyEstimator runs f in a subtest for each registered estimator, on a random batch of its own.
func everyEstimator(t *testing.T, f func(t *testing.T, name string, in Input)) {
	if diff := cmp.Diff(Names(), slices.Sorted(maps.Keys(properties))); diff != "" {
		t.Fatal("say what holds for each estimator:", diff)
	}
	for k, name := range Names() {
		t.Run(name, func(t *testing.T) { f(t, name, randomBatch(rand.New(rand.NewPCG(1, uint64(k))), name)) })
	}
}

func same(t *testing.T, what string, want, got [][]float32) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(2e-5, 2e-6)); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

func TestAShiftOfAllRewardsChangesNothing(t *testing.T) {
	everyEstimator(t, func(t *testing.T, name string, in Input) {
		if !properties[name].shift {
			return
		}
		want := estimate(t, name, in)
		rewardLike(in, func(x []float32) {
			for i := range x {
				x[i] += 2
			}
		})
		same(t, "shifted", want.Advantages, estimate(t, name, in).Advantages)
	})
}

func TestAPositiveScaleOfAllRewardsScalesOrChangesNothing(t *testing.T) {
	everyEstimator(t, func(t *testing.T, name string, in Input) {
		want, times := estimate(t, name, in).Advantages, properties[name].scale
		if times == 0 {
			return
		}
		scale := func(x []float32, by float32) {
			for i := range x {
				x[i] *= by
			}
		}
		rewardLike(in, func(x []float32) { scale(x, 4) })
		for i := range in.Masks {
			scale(in.KLs[i], 4)
			scale(in.Values[i], 4)
			scale(want[i], times)
		}
		same(t, "scaled", want, estimate(t, name, in).Advantages)
	})
}

func TestTheOrderOfSamplesHasNoInfluence(t *testing.T) {
	everyEstimator(t, func(t *testing.T, name string, in Input) {
		want, order := estimate(t, name, in), rand.New(rand.NewPCG(3, 4)).Perm(len(in.Rewards))
		got := estimate(t, name, pick(in, order))
		same(t, "advantages", choose(want.Advantages, order), got.Advantages)
		same(t, "returns", choose(want.Returns, order), got.Returns)
		if diff := cmp.Diff(choose(want.GroupStd, order), got.GroupStd, near); diff != "" {
			t.Error("group std:", diff)
		}
	})
}

func TestASplitIntoSeveralSamplesChangesNothingPerRollout(t *testing.T) {
	everyEstimator(t, func(t *testing.T, name string, in Input) {
		if registry[name].unit != PerRollout {
			return
		}
		want, n := estimate(t, name, in).Advantages, len(in.Rewards)
		split := pick(in, append(identity(n), identity(n)...)) // the first half of a row is trained in one copy, the rest in the other
		for i := range n {
			clear(split.Masks[i][6:])
			clear(split.Masks[n+i][:6])
		}
		got := estimate(t, name, split).Advantages
		for i := range n {
			copy(got[i][6:], got[n+i][6:])
		}
		same(t, "split", want, got[:n])
	})
}

func TestMaskedSlotsHaveNoInfluenceAndTheInputStays(t *testing.T) {
	everyEstimator(t, func(t *testing.T, name string, in Input) {
		want, nan := estimate(t, name, in), float32(math.NaN())
		for i, mask := range in.Masks {
			for k, action := range mask {
				if !action {
					in.KLs[i][k], in.Values[i][k] = nan, nan
				}
			}
		}
		before := pick(in, identity(len(in.Rewards)))
		if diff := cmp.Diff(want, estimate(t, name, in)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(before, in, cmpopts.EquateNaNs()); diff != "" {
			t.Error("the input changed:", diff)
		}
	})
}

func TestGroupsAreIndependentWithoutWhitening(t *testing.T) {
	everyEstimator(t, func(t *testing.T, name string, in Input) {
		if !properties[name].alone {
			return
		}
		in.Options.Whiten = false
		want := estimate(t, name, in)
		others := slices.IndexFunc(in.Groups, func(g int64) bool { return g > 0 })
		rewardLike(in, func(x []float32) {
			for i := range x[:others] {
				x[i] = 1 - x[0]
			}
		})
		if diff := cmp.Diff(want.Advantages[others:], estimate(t, name, in).Advantages[others:]); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAGroupOfOneIsJudgedAsDocumented(t *testing.T) {
	everyEstimator(t, func(t *testing.T, name string, _ Input) {
		got := estimate(t, name, oneRollout())
		if diff := cmp.Diff([][]float32{{properties[name].one}}, got.Advantages); diff != "" || got.GroupStd[0] != 0 {
			t.Error(diff, got.GroupStd)
		}
	})
}

func TestSamplesWithoutActionsAndWithoutSlotsAreHarmless(t *testing.T) {
	everyEstimator(t, func(t *testing.T, name string, in Input) {
		n := len(in.Rewards)
		more := pick(in, append(identity(n), 0, 1, 2)) // of rollouts that have others
		clear(more.Masks[n])
		more.Masks[n+1], more.KLs[n+1], more.Values[n+1] = nil, nil, nil
		more.Masks[n+2], more.KLs[n+2], more.Values[n+2] = []bool{}, []float32{}, []float32{}
		got := estimate(t, name, more)
		if diff := cmp.Diff([][]float32{make([]float32, 12), {}, {}}, got.Advantages[n:]); diff != "" {
			t.Error(diff)
		}
		if registry[name].unit == PerRollout {
			same(t, "the others", estimate(t, name, in).Advantages, got.Advantages[:n])
		}
		for i := range more.Masks {
			clear(more.Masks[i])
		}
		estimate(t, name, more) // no action at all
	})
}

func FuzzEstimateIsFiniteOrAnError(f *testing.F) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	f.Add(uint64(1), uint16(0), float32(0.5), float32(1), 1.0, 1.0, 0.1)
	f.Add(uint64(2), uint16(0xffff), nan, float32(0), 0.9, 0.5, 1e300)
	f.Add(uint64(3), uint16(0x2a5), float32(math.MaxFloat32), float32(-math.MaxFloat32), 1.0, 0.0, math.MaxFloat64)
	f.Add(uint64(4), uint16(0x1ff), float32(1), inf, 0.0, 1.0, math.Inf(1))
	f.Add(uint64(5), uint16(0x57), float32(1e-45), float32(1e-45), 1.0, 1.0, 1e-320)
	f.Fuzz(func(t *testing.T, seed uint64, flags uint16, first, second float32, gamma, lambda, coef float64) {
		for k, name := range Names() {
			in := randomBatch(rand.New(rand.NewPCG(seed, uint64(k))), name)
			flag := func(bit int) bool { return flags>>bit&1 == 1 }
			o := &in.Options
			o.Gamma, o.Lambda, o.KLCoef, o.MaxLen = gamma, lambda, coef, 16
			o.Whiten, o.Bootstrap, o.SkipGaps, o.PassK = flag(0), flag(1), flag(2), 1+int(flags>>12)
			if flag(3) {
				o.OverlongBuffer, o.OverlongFactor, o.StopCoef = 8, coef, -coef
			}
			if flag(4) {
				o.RewardMin, o.RewardMax = -gamma, coef
			}
			if flag(5) {
				o.RewardWeights = map[string]float64{"a": coef, "b": -gamma}
			}
			if flag(6) { // groups of one
				in.Groups = in.Rollouts
			}
			if flag(7) { // equal rewards
				rewardLike(in, func(x []float32) { copy(x, slices.Repeat(x[:1], len(x))) })
			}
			if flag(8) {
				in.Masks[0], in.KLs[0], in.Values[0] = nil, nil, nil
				clear(in.Masks[1])
			}
			if flag(9) {
				in.Rewards[0], in.Baselines[1], in.Components["a"][2], in.Bootstrap[3] = first, second, first, second
			}
			if flag(10) {
				in.KLs[2][0], in.Values[2][1], in.KLs[3][11], in.Values[3][11] = first, second, second, first
			}
			if flag(11) {
				in.Rollouts, in.Groups, in.Truncated, in.Contexts, in.Bootstrap = nil, nil, nil, nil, nil
			}
			out, err := Estimate(name, in)
			if err != nil {
				continue
			}
			for i, mask := range in.Masks {
				for k, action := range mask {
					for _, x := range []float32{out.Advantages[i][k], out.Returns[i][k]} {
						if !finite(float64(x)) || !action && x != 0 {
							t.Fatalf("%s: sample %d slot %d (action: %v) is %v", name, i, k, action, x)
						}
					}
				}
				if !(out.GroupStd[i] >= 0) || math.IsInf(out.GroupStd[i], 0) {
					t.Fatalf("%s: group std of sample %d is %v", name, i, out.GroupStd[i])
				}
			}
		}
	})
}

func BenchmarkEstimate(b *testing.B) { // 1,024 rollouts of 4,096 tokens: prompt, reply, tool result, reply
	const rollouts, tokens = 1024, 4096
	in := Input{Options: DefaultOptions(), Components: map[string][]float32{"a": nil, "b": nil}}
	in.Options.KLCoef, in.Options.Gamma, in.Options.Lambda = 0.1, 0.99, 0.95
	mask := slices.Concat(make([]bool, 256), slices.Repeat([]bool{true}, 2048), make([]bool, 256), slices.Repeat([]bool{true}, tokens-2560))
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range rollouts {
		kls, values := make([]float32, tokens), make([]float32, tokens)
		for t := range kls {
			kls[t], values[t] = rng.Float32(), rng.Float32()
		}
		in.Rewards, in.Groups, in.Baselines = append(in.Rewards, float32(i%3/2)), append(in.Groups, int64(i/8)), append(in.Baselines, 0.5)
		in.Masks, in.KLs, in.Values = append(in.Masks, mask), append(in.KLs, kls), append(in.Values, values)
		in.Components["a"], in.Components["b"] = append(in.Components["a"], float32(i%3)), append(in.Components["b"], float32(i%5))
	}
	for _, name := range Names() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Estimate(name, in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
