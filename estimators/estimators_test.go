package estimators

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var near = cmpopts.EquateApprox(0, 1e-6)

func TestGRPOTakesItsStatisticsPerGroup(t *testing.T) { // A2
	tests := []struct {
		name    string
		rewards []float32
		groups  []int64
		want    []float32
	}{
		{"equal rewards are exactly 0", []float32{1, 1, 1, 1}, []int64{0, 0, 0, 0}, []float32{0, 0, 0, 0}},
		{"equal within each group, not over the batch", []float32{0, 0, 1, 1}, []int64{0, 0, 1, 1}, []float32{0, 0, 0, 0}},
		{"two rewards", []float32{0, 1}, []int64{0, 0}, []float32{-0.70710678, 0.70710678}},
		{"a group of one", []float32{5, 0, 1}, []int64{7, 3, 3}, []float32{0, -0.70710678, 0.70710678}},
		{"interleaved groups", []float32{0, 10, 1, 30}, []int64{1, 2, 1, 2}, []float32{-0.70710678, -0.70710678, 0.70710678, 0.70710678}},
		{"half a unit each way", []float32{0, 1, 0, 1}, []int64{0, 0, 0, 0}, []float32{-0.8660254, 0.8660254, -0.8660254, 0.8660254}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := perSample(t, "grpo", Input{Rewards: test.rewards, Groups: test.groups})
			if diff := cmp.Diff(test.want, got, near); diff != "" {
				t.Error(diff)
			}
		})
	}
	for reward, n := range map[float32]int{0.1: 8, 0.9: 3, 0.7: 16} {
		got := perSample(t, "grpo", Input{Rewards: slices.Repeat([]float32{reward}, n), Groups: make([]int64, n)})
		if diff := cmp.Diff(make([]float32, n), got); diff != "" {
			t.Errorf("%d times %v is not exactly 0: %s", n, reward, diff)
		}
	}
}

func TestARolloutOfManySamplesCountsOnce(t *testing.T) { // M2, A7
	in := Input{Groups: make([]int64, 12)}
	for i := range in.Groups { // rollout 0: ten samples of reward 0; rollout 1: two of reward 1
		in.Rollouts, in.Rewards = append(in.Rollouts, int64(i/10)), append(in.Rewards, float32(i/10))
	}
	want := slices.Concat(slices.Repeat([]float32{-0.5}, 10), slices.Repeat([]float32{0.5}, 2)) // the mean is 0.5, not 1/6
	if diff := cmp.Diff(want, perSample(t, "dr_grpo", in)); diff != "" {
		t.Error(diff)
	}
}

func TestOverlongPenaltyIsZeroThenLinearThenFlat(t *testing.T) { // A9
	for length, want := range map[int]float64{0: 0, 6: 0, 7: -0.25, 8: -0.5, 10: -1, 12: -1} {
		if got := OverlongPenalty(length, 10, 4, 1); got != want {
			t.Errorf("length %d: %v, want %v", length, got, want)
		}
	}
	o := DefaultOptions()
	o.OverlongBuffer, o.MaxLen = 4, 10
	for _, name := range []string{"flash_reinforce", "dr_grpo"} { // 0, -0.25, -0.5, -1, -1 minus their mean -0.55, on both paths
		in := Input{Rewards: make([]float32, 5), Groups: make([]int64, 5), Contexts: []int{6, 7, 8, 10, 12}, Options: o}
		got := perSample(t, name, in)
		if diff := cmp.Diff([]float32{0.55, 0.3, 0.05, -0.45, -0.45}, got, near); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestShapingIsPenaltyThenTruncationThenClip(t *testing.T) {
	o := DefaultOptions()
	o.OverlongBuffer, o.MaxLen, o.StopCoef, o.RewardMin, o.RewardMax = 4, 10, 0.5, -0.2, 0.6
	tests := []struct {
		reward    float64
		context   int
		truncated bool
		want      float64
	}{
		{1, 8, true, 0.25},   // (1 - 0.5) * 0.5
		{1, 8, false, 0.5},   // no coefficient
		{2, 0, true, 0.6},    // 1, clipped
		{-1, 0, false, -0.2}, // clipped below
	}
	for _, test := range tests {
		if got := o.shape(test.reward, test.context, test.truncated); got != test.want {
			t.Errorf("%+v: got %v", test, got)
		}
	}
	if o.StopCoef = -0.1; o.shape(1, 0, true) != -0.1 || o.shape(1, 0, false) != 0.6 {
		t.Error("a negative coefficient must replace the reward of truncated units only")
	}
}

func TestOneTruncatedSampleTruncatesItsRollout(t *testing.T) {
	o := DefaultOptions()
	o.StopCoef = -1
	in := Input{Rewards: []float32{1, 1, 1, 1}, Rollouts: []int64{0, 0, 1, 1}, Groups: make([]int64, 4), Options: o,
		Truncated: []bool{true, false, false, false}} // rewards -1 and 1
	if diff := cmp.Diff([]float32{-1, -1, 1, 1}, perSample(t, "dr_grpo", in)); diff != "" {
		t.Error(diff)
	}
}

func TestEqualRewardsAreExactlyZeroAfterShapingToo(t *testing.T) { // in float64 three times 0.1 is 0.30000000000000004
	o := DefaultOptions()
	o.StopCoef = 0.1
	in := Input{Rewards: []float32{1, 1, 1}, Groups: make([]int64, 3), Truncated: []bool{true, true, true}, Options: o}
	for _, name := range centring {
		if name != "gdpo" {
			if diff := cmp.Diff([]float32{0, 0, 0}, perSample(t, name, in)); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
}

func TestMaskedValuesAreTransparentToGAE(t *testing.T) { // A4, A6 with value 0 after the end
	tests := []struct {
		name   string
		mask   []bool
		values []float32
		reward float32
		lambda float64
		want   []float32
	}{
		{"value of a pad", []bool{true, true, false}, []float32{0, 0, 100}, 1, 0.95, []float32{0.95, 1, 0}},
		{"value of a tool result", []bool{true, false, true}, []float32{0, 100, 0}, 1, 0.95, []float32{0.95, 0, 1}},
		{"NaN under the mask", []bool{true, false, true}, []float32{0, float32(math.NaN()), 0}, 1, 0.95, []float32{0.95, 0, 1}},
		{"terminated", []bool{true, true}, []float32{0.5, 0.6}, 0, 1, []float32{-0.5, -0.6}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := DefaultOptions()
			o.Whiten, o.Lambda = false, test.lambda
			in := Input{Rewards: []float32{test.reward}, Masks: [][]bool{test.mask}, Values: [][]float32{test.values}, Options: o}
			got, err := Estimate("gae", in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([][]float32{test.want}, got.Advantages, near); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestBootstrapEntersOnceAndOnlyWhereASampleWasTruncated(t *testing.T) { // A6
	o := DefaultOptions()
	o.Whiten, o.Bootstrap = false, true
	for _, test := range []struct {
		name      string
		truncated bool
		gamma     float64
		want      []float32
	}{
		{"truncated", true, 1, []float32{0.3, 0, 0.2}},
		{"terminated", false, 1, []float32{-0.5, 0, -0.6}},
		{"discounted", true, 0.5, []float32{-0.3, 0, -0.2}}, // 0.5 · 0.8 - 0.6 = -0.2; 0.5 · 0.6 - 0.5 + 0.5 · -0.2 = -0.3
	} {
		o.Gamma = test.gamma
		in := Input{Rewards: []float32{0}, Masks: [][]bool{{true, false, true}}, Values: [][]float32{{0.5, 100, 0.6}},
			Bootstrap: []float32{0.8}, Truncated: []bool{test.truncated}, Options: o}
		if diff := cmp.Diff([][]float32{test.want}, estimate(t, "gae", in).Advantages, near); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

func TestGapsDiscountUnlessSkipped(t *testing.T) {
	o := DefaultOptions()
	o.Whiten, o.Gamma = false, 0.5
	in := Input{Rewards: []float32{1}, Masks: [][]bool{{true, false, true, true, false}}, Options: o}
	for skip, want := range map[bool][]float32{false: {0.125, 0, 0.5, 1, 0}, true: {0.25, 0, 0.5, 1, 0}} {
		in.Options.SkipGaps = skip
		if diff := cmp.Diff([][]float32{want}, estimate(t, "reinforce", in).Advantages, near); diff != "" {
			t.Errorf("skip_gaps %v: %s", skip, diff)
		}
	}
}

func TestKLLowersTheRewardByItsCoefficient(t *testing.T) { // L7: larger KL, smaller advantage
	o := DefaultOptions()
	o.Whiten, o.KLCoef = false, 0.1
	in := Input{Rewards: []float32{1}, Masks: [][]bool{{true, true}}, KLs: [][]float32{{0.5, 0.2}}, Values: [][]float32{{0, 0}}, Options: o}
	for name, want := range map[string][]float32{"reinforce": {0.93, 0.98}, "gae": {0.93, 0.98}, "on_policy_distill": {-0.05, -0.02}} {
		if diff := cmp.Diff([][]float32{want}, estimate(t, name, in).Advantages, near); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestBadInputIsRefusedByName(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	tests := []struct {
		name, estimator string
		change          func(*Input)
		want            string
	}{
		{"NaN reward", "grpo", func(in *Input) { in.Rewards[1] = nan }, "rewards: sample 1 is NaN"},
		{"infinite reward", "grpo", func(in *Input) { in.Rewards[0] = inf }, "rewards: sample 0 is +Inf"},
		{"NaN KL", "reinforce", func(in *Input) { in.KLs = [][]float32{{9, 0}, {9, nan}} }, "kls: sample 1 slot 1 is NaN"},
		{"NaN value", "gae", func(in *Input) { in.Values = [][]float32{{0, nan}, {0, 0}} }, "values: sample 0 slot 1 is NaN"},
		{"short KL row", "grpo", func(in *Input) { in.KLs = [][]float32{{0, 0}, {0}} }, "kls: sample 1 has 1 slots, want 2"},
		{"no critic", "gae", func(*Input) {}, "values of a critic"},
		{"no teacher", "on_policy_distill", func(*Input) {}, "KL against a reference policy or a teacher"},
		{"empty batch", "grpo", func(in *Input) { *in = Input{Options: in.Options} }, "no samples"},
		{"missing mask", "grpo", func(in *Input) { in.Masks = in.Masks[:1] }, "masks: 1 samples, want 2"},
		{"missing group", "grpo", func(in *Input) { in.Groups = in.Groups[:1] }, "groups: 1 samples, want 2"},
		{"rollout in two groups", "grpo", func(in *Input) { in.Rollouts, in.Groups[1] = []int64{4, 4}, 9 },
			"rollout 4 has samples in groups 0 and 9"},
		{"no greedy rollouts", "remax", func(*Input) {}, "reward of a greedy rollout of each prompt: Baselines is nil"},
		{"no components", "gdpo", func(*Input) {}, "components of the reward: Components is empty"},
		{"short baselines", "remax", func(in *Input) { in.Baselines = []float32{1} }, "baselines: 1 samples, want 2"},
		{"empty baselines", "remax", func(in *Input) { in.Baselines = []float32{} }, "baselines: 0 samples, want 2"},
		{"NaN baseline", "remax", func(in *Input) { in.Baselines = []float32{1, nan} }, "baselines: sample 1 is NaN"},
		{"empty component", "gdpo", func(in *Input) { in.Components = map[string][]float32{"a": {}} }, `component "a": 0 samples, want 2`},
		{"NaN component", "gdpo", func(in *Input) { in.Components = map[string][]float32{"a": {0, nan}} },
			`component "a": sample 1 is NaN`},
		{"weight of no component", "gdpo", func(in *Input) {
			in.Components, in.Options.RewardWeights = map[string][]float32{"a": {0, 1}, "b": {0, 1}}, map[string]float64{"c": 1}
		}, `reward_weights names "c", the reward's components are a, b`},
		{"infinite weight", "grpo", func(in *Input) { in.Options.RewardWeights = map[string]float64{"a": math.Inf(1)} },
			"reward_weights.a is +Inf"},
		{"shaping of components", "gdpo", func(in *Input) {
			in.Components, in.Options.StopCoef = map[string][]float32{"a": {0, 1}}, 0.5
		}, "stop_coef, reward_min and reward_max shape the whole reward"},
		{"no bootstrap values", "gae", func(in *Input) { in.Values, in.Options.Bootstrap = [][]float32{{0, 0}, {0, 0}}, true },
			"no values after the last actions"},
		{"infinite bootstrap value", "grpo", func(in *Input) { in.Bootstrap = []float32{0, inf} }, "bootstrap: sample 1 is +Inf"},
		{"negative reward of maxrl", "maxrl", func(in *Input) { in.Rewards[1] = -1 },
			"unit 1 (sample 1) has reward -1 after shaping, want at least 0"},
		{"fraction for pass@k", "pass_at_k", func(in *Input) { in.Rewards[1] = 0.5 },
			"unit 1 (sample 1) has reward 0.5 after shaping, want 0 or 1"},
		{"small group for pass@k", "pass_at_k", func(in *Input) { in.Groups = []int64{7, 8} },
			"group of sample 0 has 1 rollouts, fewer than pass_k = 2"},
		{"no tries", "grpo", func(in *Input) { in.Options.PassK = 0 }, "pass_k is 0, want at least 1"},
		{"reward beyond float32", "grpo", func(in *Input) {
			in.Contexts, in.Options.MaxLen, in.Options.OverlongBuffer, in.Options.OverlongFactor = []int{1, 4}, 4, 2, 1e300
		}, "rewards: sample 1 is -1e+300 after shaping"},
		{"zero options", "grpo", func(in *Input) { in.Options = Options{} }, "reward_min is 0 and reward_max 0"},
		{"NaN gamma", "grpo", func(in *Input) { in.Options.Gamma = math.NaN() }, "gamma is NaN"},
		{"overlong without lengths", "grpo", func(in *Input) { in.Options.OverlongBuffer, in.Options.MaxLen = 2, 4 }, "no context lengths"},
		{"overlong beyond the limit", "grpo", func(in *Input) { in.Options.OverlongBuffer = 2 }, "context limit of 0"},
		{"unknown name", "grop", func(*Input) {}, `unknown estimator "grop"; known: dr_grpo, flash_reinforce, gae, gdpo`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in := Input{Rewards: []float32{0, 1}, Groups: []int64{0, 0}, Masks: [][]bool{{false, true}, {false, true}},
				Options: DefaultOptions()}
			test.change(&in)
			_, err := Estimate(test.estimator, in)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestAnEstimatorOfTheUsersIsCheckedAsTheBuiltIns(t *testing.T) {
	register := func(name string, f Func) {
		t.Helper()
		if err := Register(name, PerSample, f); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { delete(registry, name) })
	}
	fill := func(b Batch, x float32) Result {
		out := Result{Advantages: b.Zeros(), Returns: b.Zeros()}
		for i := range out.Advantages {
			for t := range out.Advantages[i] {
				out.Advantages[i][t] = x
			}
		}
		return out
	}
	register("ones", func(b Batch) (Result, error) { return fill(b, 1), nil })
	register("nan", func(b Batch) (Result, error) { return fill(b, float32(math.NaN())), nil })
	register("short", func(Batch) (Result, error) { return Result{}, nil })
	in := Input{Rewards: []float32{1}, Masks: [][]bool{{false, true, false}}, Options: DefaultOptions()}
	got, err := Estimate("ones", in)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]float32{{0, 1, 0}}, got.Advantages); diff != "" {
		t.Error("masked slots:", diff)
	}
	for name, want := range map[string]string{"nan": "advantages: sample 0 slot 1 is NaN", "short": "advantages: 0 samples, want 1"} {
		if _, err := Estimate(name, in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want one with %q", name, err, want)
		}
	}
	if Register("grpo", PerRollout, GRPO) == nil || Register("", PerSample, GRPO) == nil || Register("none", PerSample, nil) == nil {
		t.Error("a known name, an empty name or no function was registered")
	}
}
