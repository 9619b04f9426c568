package estimators

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// deviations is every difference to the reference that these tests allow.
var deviations = map[string]string{
	"masked slots": "the reference whitens slots without an action too, and its returns run on before the first; here they are 0",
	"whitening":    "the reference rounds sum and mean to float32, which a small spread around a large mean magnifies; here: float64",
	"equal groups": "the reference divides a float32 rounding by 1e-9 and gets advantages near 0.8; here they are 0",
	"controllers":  "the reference's coefficient turns negative in a step of 5 horizons, which rewards divergence; here that is an error",
	"not a number": "the reference takes a log-prob ratio that is no number for 0 and an infinite one for 30; here both are errors",
}

type reference struct {
	Cases []struct {
		Name   string
		Inputs struct {
			Rewards                 []float32
			RolloutIDs              []string      `json:"rollout_ids"`
			GroupIDs                []string      `json:"group_ids"`
			Masks                   [][][]float32 `json:"action_masks"`
			KLs, Values             [][][]float32
			KLCoef                  float64 `json:"kl_coef"`
			Gamma, Lam              float64
			NoWhiten                bool      `json:"no_whiten"`
			ClipRange               []float64 `json:"clip_range"`
			Truncated               []float32
			ContextLength           []float64 `json:"context_length"`
			MaxLen                  int       `json:"max_len"`
			OverlongBuffer          *float64  `json:"overlong_buffer_len"`
			OverlongFactor          float64   `json:"overlong_penalty_factor"`
			StopProperlyPenaltyCoef *float64  `json:"stop_properly_penalty_coef"`
		}
		Outputs map[string]struct {
			Merged              []float64 `json:"merged_rewards_before_shaping"`
			Groups              [][]int
			SampleToRollout     []int `json:"sample_to_rollout"`
			Advantages, Returns [][][]float32
			MeanReturn          [][]float64 `json:"info_return_mean"`
			GroupStd            [][]float64 `json:"info_group_reward_std"`
		}
	}
	Whitening []struct {
		Name       string
		Advantages [][][]float32
		Masks      [][][]float32
		NoWhiten   bool `json:"no_whiten"`
		Out        [][][]float32
	}
	EqualGroups []struct {
		N      int
		Reward float32
	} `json:"rounding_dependent_equal_groups"`
}

func loadReference(t *testing.T) reference {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "testdata", "reference", "estimators.json"))
	if err != nil {
		t.Fatal(err)
	}
	var ref reference
	if err := json.Unmarshal(text, &ref); err != nil {
		t.Fatal(err)
	}
	if len(ref.Cases) == 0 || len(ref.Whitening) == 0 || len(ref.EqualGroups) == 0 {
		t.Fatal("the reference has an empty list of cases")
	}
	return ref
}

// ids numbers names by first appearance.
func ids(names []string) []int64 {
	var out []int64
	for _, name := range names {
		out = append(out, int64(slices.Index(names, name)))
	}
	return out
}

func bools(rows [][]float32) [][]bool {
	out := make([][]bool, len(rows))
	for i, row := range rows {
		out[i] = make([]bool, len(row))
		for t, x := range row {
			out[i][t] = x != 0
		}
	}
	return out
}

// compare wants got equal to want within 1e-5 relative plus abs where the mask is true, and exactly 0 elsewhere.
func compare(t *testing.T, what string, got, want [][]float32, masks [][]bool, abs float64) {
	t.Helper()
	for i, mask := range masks {
		for k, action := range mask {
			g, w := float64(got[i][k]), float64(want[i][k])
			if !action && g != 0 {
				t.Fatalf("%s: sample %d masked slot %d is %g, want 0", what, i, k, g)
			}
			if action && !(math.Abs(g-w) <= abs+1e-5*math.Abs(w)) {
				t.Fatalf("%s: sample %d slot %d is %.9g, want %.9g", what, i, k, g, w)
			}
		}
	}
}

// compareEach wants one number a sample equal within 1e-5 relative plus abs.
func compareEach(t *testing.T, what string, got, want []float64, abs float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d samples, want %d", what, len(got), len(want))
	}
	for i, w := range want {
		if !(math.Abs(got[i]-w) <= abs+1e-5*math.Abs(w)) {
			t.Fatalf("%s: sample %d is %.9g, want %.9g", what, i, got[i], w)
		}
	}
}

func TestEveryEstimatorEqualsTheReferenceOnEveryCase(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range loadReference(t).Cases {
		masks := bools(slices.Concat(c.Inputs.Masks...))
		o := DefaultOptions()
		o.Gamma, o.Lambda, o.KLCoef, o.Whiten = c.Inputs.Gamma, c.Inputs.Lam, c.Inputs.KLCoef, !c.Inputs.NoWhiten
		o.MaxLen, o.OverlongFactor = c.Inputs.MaxLen, c.Inputs.OverlongFactor
		if c.Inputs.ClipRange != nil {
			o.RewardMin, o.RewardMax = c.Inputs.ClipRange[0], c.Inputs.ClipRange[1]
		}
		if c.Inputs.OverlongBuffer != nil {
			o.OverlongBuffer = int(*c.Inputs.OverlongBuffer)
		}
		if c.Inputs.StopProperlyPenaltyCoef != nil {
			o.StopCoef = *c.Inputs.StopProperlyPenaltyCoef
		}
		in := Input{Rewards: c.Inputs.Rewards, Rollouts: ids(c.Inputs.RolloutIDs), Groups: ids(c.Inputs.GroupIDs), Masks: masks,
			KLs: slices.Concat(c.Inputs.KLs...), Values: slices.Concat(c.Inputs.Values...), Options: o}
		for i, x := range c.Inputs.Truncated {
			in.Truncated = append(in.Truncated, x != 0)
			in.Contexts = append(in.Contexts, int(c.Inputs.ContextLength[i]))
		}
		for name, want := range c.Outputs {
			seen[name] = true
			t.Run(c.Name+"/"+name, func(t *testing.T) {
				unshaped := in
				unshaped.Options = DefaultOptions()
				batch, err := newBatch(unshaped, registry[name].unit)
				if err != nil {
					t.Fatal(err)
				}
				compareEach(t, "merged rewards", batch.Rewards, want.Merged, 0)
				if diff := cmp.Diff(want.Groups, batch.Groups) + cmp.Diff(want.SampleToRollout, batch.Units); diff != "" {
					t.Error("groups or units:", diff)
				}

				abs := 1e-6
				batch.PerGroup(func(r []float64) {
					if std := Std(r, Mean(r)); std > 0 {
						abs = max(abs, 1e-6+rounding(r, std))
					}
				})
				got := estimate(t, name, in)
				compare(t, "advantages", got.Advantages, slices.Concat(want.Advantages...), masks, abs)
				compare(t, "returns", got.Returns, slices.Concat(want.Returns...), masks, abs)
				means, _ := MaskedMean(got.Returns, masks)
				compareEach(t, "mean return", means, slices.Concat(want.MeanReturn...), abs)
				compareEach(t, "group std", got.GroupStd, slices.Concat(want.GroupStd...), 1e-6)
			})
		}
	}
	for _, name := range []string{"dr_grpo", "flash_reinforce", "gae", "grpo", "on_policy_distill", "reinforce", "reinforce_baseline",
		"rloo"} {
		if !seen[name] {
			t.Errorf("the reference has no %s", name)
		}
	}
}

func TestWhiteningEqualsTheReference(t *testing.T) {
	for _, c := range loadReference(t).Whitening {
		t.Run(c.Name, func(t *testing.T) {
			rows, masks := slices.Concat(c.Advantages...), bools(slices.Concat(c.Masks...))
			abs := 1e-6
			if !c.NoWhiten {
				abs += whiteningRounding(rows, masks)
				Whiten(rows, masks)
			}
			if err := applyMask("advantages", rows, masks); err != nil {
				t.Fatal(err)
			}
			compare(t, "whitened", rows, slices.Concat(c.Out...), masks, abs)
		})
	}
}

// whiteningRounding is what rounding to float32 does to whitened values.
func whiteningRounding(rows [][]float32, masks [][]bool) float64 {
	var x []float64
	for i, mask := range masks {
		for t, action := range mask {
			if action {
				x = append(x, float64(rows[i][t]))
			}
		}
	}
	mean := Mean(x)
	std := Std(x, mean) * math.Sqrt(float64(max(len(x)-1, 0))/float64(max(len(x), 1)))
	return rounding(x, max(std, math.Sqrt(varianceFloor)))
}

// rounding is how far a mean in float32 moves numbers that are centred by it and divided by std: half a unit in the last place of the sum
// at each level of a tree of sums, and half of one of the mean (see deviations).
func rounding(x []float64, std float64) float64 {
	ulp := func(x float64) float64 {
		return float64(math.Nextafter32(float32(math.Abs(x)), math.MaxFloat32)) - float64(float32(math.Abs(x)))
	}
	n, mean := float64(max(len(x), 1)), Mean(x)
	return (ulp(n*mean)/n*math.Ceil(math.Log2(n)) + ulp(mean)) / 2 / std
}

// centring estimators take off a mean.
var centring = []string{"grpo", "dr_grpo", "rloo", "reinforce_baseline", "flash_reinforce", "opo", "gpg", "maxrl", "gdpo"}

func TestEqualGroupsAreExactlyZeroWhereTheReferenceRounds(t *testing.T) {
	for _, c := range loadReference(t).EqualGroups {
		rewards := slices.Repeat([]float32{c.Reward}, c.N)
		want := make([]float32, c.N)
		for _, name := range centring {
			if name == "maxrl" && c.Reward < 0 { // an error, see MaxRL
				continue
			}
			in := Input{Rewards: rewards, Groups: make([]int64, c.N), Components: map[string][]float32{"all": rewards}}
			if diff := cmp.Diff(want, perSample(t, name, in)); diff != "" {
				t.Errorf("%s of %d times %v: %s (%s)", name, c.N, c.Reward, diff, deviations["equal groups"])
			}
		}
	}
}

func estimate(t *testing.T, name string, in Input) Result {
	t.Helper()
	got, err := Estimate(name, in)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// perSample estimates in with one action per sample, with the default options if it has none, and returns its advantages.
func perSample(t *testing.T, name string, in Input) []float32 {
	t.Helper()
	in.Masks = slices.Repeat([][]bool{{true}}, len(in.Rewards))
	if reflect.ValueOf(in.Options).IsZero() {
		in.Options = DefaultOptions()
	}
	return slices.Concat(estimate(t, name, in).Advantages...)
}
