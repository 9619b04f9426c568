package estimators

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Estimators without a reference: worked out by hand from the formulas of their papers.

func TestReMaxTakesOffTheGreedyReward(t *testing.T) {
	in := Input{Rewards: []float32{1, 0.25, 0}, Baselines: []float32{0.5, 0.5, 1}}
	if diff := cmp.Diff([]float32{0.5, -0.25, -1}, perSample(t, "remax", in)); diff != "" {
		t.Error(diff)
	}
	in.Options = DefaultOptions()
	in.Options.RewardMax = 0.75 // 0.75 - 0.5, 0.25 - 0.5, 0 - 0.75
	if diff := cmp.Diff([]float32{0.25, -0.25, -0.75}, perSample(t, "remax", in)); diff != "" {
		t.Error("clipped:", diff)
	}
}

func TestOPOWeightsTheBaselineByLength(t *testing.T) {
	// Rollout 0: reward 1, one action and one more in a second sample; rollout 1: reward 0, one action; rollout 2: reward 0.5,
	// five actions. Baseline (2 · 1 + 1 · 0 + 5 · 0.5) / 8 = 0.5625. The other group has no action: nothing to weigh.
	in := Input{Rewards: []float32{1, 1, 0, 0.5, 3}, Rollouts: []int64{0, 0, 1, 2, 3}, Groups: []int64{0, 0, 0, 0, 1},
		Options: DefaultOptions(), Masks: [][]bool{{true, false}, {false, true}, {true}, slices.Repeat([]bool{true}, 5), {false}}}
	want := [][]float32{{0.4375, 0}, {0, 0.4375}, {-0.5625}, slices.Repeat([]float32{-0.0625}, 5), {0}}
	if diff := cmp.Diff(want, estimate(t, "opo", in).Advantages, near); diff != "" {
		t.Error(diff)
	}
}

func TestGPGMakesUpForGroupsWithoutSpread(t *testing.T) {
	// B = 7 rollouts, M = 4 of them in groups of equal rewards: α = 7/3. Means 0.75 and, for three, 1/3.
	in := Input{Rewards: []float32{1, 1, 0, 0, 1, 0, 0}, Groups: []int64{1, 1, 2, 2, 3, 3, 3}}
	want := []float32{0, 0, 0, 0, 14. / 9, -7. / 9, -7. / 9}
	if diff := cmp.Diff(want, perSample(t, "gpg", in), near); diff != "" {
		t.Error(diff)
	}
	in = Input{Rewards: []float32{1, 1, 5}, Groups: []int64{1, 1, 2}} // M = B: no gradient at all
	if diff := cmp.Diff([]float32{0, 0, 0}, perSample(t, "gpg", in)); diff != "" {
		t.Error("no group with spread:", diff)
	}
}

func TestMaxRLDividesByTheMean(t *testing.T) {
	// One of four is right: mean 0.25, (1 - 0.25) / 0.25 = 3 and -0.25 / 0.25 = -1. Three of four: 1/3 and -1. None: 0.
	in := Input{Rewards: []float32{1, 0, 0, 0, 1, 1, 1, 0, 0, 0}, Groups: []int64{0, 0, 0, 0, 1, 1, 1, 1, 2, 2}}
	want := []float32{3, -1, -1, -1, 1. / 3, 1. / 3, 1. / 3, -1, 0, 0}
	if diff := cmp.Diff(want, perSample(t, "maxrl", in), near); diff != "" {
		t.Error(diff)
	}
}

func TestPassAtKRewardsTheGroupsChance(t *testing.T) {
	// n = 4, f wrong, k = 2. f = 3: miss = C(3,2) / C(4,2) = 1/2, σ = 1/2; right (1/2) / (1/2) = 1; wrong
	// (1/2 - C(2,1) / C(3,1)) / (1/2) = -1/3. f = 2: miss = 1/6, σ = √5 / 6; right 1 / √5; wrong (1/6 - 1/3) · 6 / √5 = -1 / √5.
	// f = 1: miss = 0, every pair has a right one; f = 4: miss = 1, none has.
	in := Input{Rewards: []float32{0, 1, 0, 0 /**/, 1, 0, 1, 0 /**/, 1, 1, 1, 0 /**/, 0, 0, 0, 0},
		Groups: []int64{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}}
	const root = 0.44721360 // 1 / √5
	want := []float32{-1. / 3, 1, -1. / 3, -1. / 3, root, -root, root, -root, 0, 0, 0, 0, 0, 0, 0, 0}
	if diff := cmp.Diff(want, perSample(t, "pass_at_k", in), near); diff != "" {
		t.Error(diff)
	}
	in = Input{Rewards: []float32{1, 0, 0, 0}, Groups: make([]int64, 4), Options: DefaultOptions()}
	in.Options.PassK = 1 // (r - 1/4) / √(1/4 · 3/4) = (r - 0.25) / 0.4330127
	if diff := cmp.Diff([]float32{1.7320508, -0.5773503, -0.5773503, -0.5773503}, perSample(t, "pass_at_k", in), near); diff != "" {
		t.Error("k = 1:", diff)
	}
}

func TestGDPONormalizesEachComponentAlone(t *testing.T) {
	// The paper's two groups of two rollouts, with rewards 0 and 1 in one component, and 0 and 2 as the sum of two: GRPO cannot
	// tell them apart. Each component that differs gives ∓1/√2: sums ∓0.7071068 and ∓1.4142136.
	in := Input{Rewards: []float32{0, 1, 0, 2}, Groups: []int64{0, 0, 1, 1}, Options: DefaultOptions(),
		Components: map[string][]float32{"right": {0, 1, 0, 1}, "format": {1, 1, 0, 1}}}
	in.Options.Whiten = false
	if diff := cmp.Diff([]float32{-0.7071068, 0.7071068, -1.4142136, 1.4142136}, perSample(t, "gdpo", in), near); diff != "" {
		t.Error(diff)
	}
	in.Options.RewardWeights = map[string]float64{"format": 0.5} // 0.7071068 · (1 + 0.5)
	if diff := cmp.Diff([]float32{-0.7071068, 0.7071068, -1.0606602, 1.0606602}, perSample(t, "gdpo", in), near); diff != "" {
		t.Error("weighted:", diff)
	}
	// Over the batch: mean 0, variance (1/2 + 1/2 + 2 + 2) / 3 = 5/3; 0.7071068 / 1.2909944 and 1.4142136 / 1.2909944.
	in.Options = DefaultOptions()
	if diff := cmp.Diff([]float32{-0.5477226, 0.5477226, -1.0954451, 1.0954451}, perSample(t, "gdpo", in), near); diff != "" {
		t.Error("over the batch:", diff)
	}
}
