package trainer

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/rollout"
)

// lossSettings are those that the properties below hold under; every loss is run with each.
var lossSettings = map[string]map[string]string{
	"behaviour":            {"aggregation": `"token-mean"`},
	"old policy":           {"aggregation": `"seq-mean-token-mean"`, "old": `"policy"`},
	"token, mask":          {"aggregation": `"prompt-mean-token-mean"`, "is_level": `"token"`, "is_band": "[0.8, 1.25]"},
	"token, clip":          {"aggregation": `"seq-mean-token-sum"`, "is_level": `"token"`, "is_mode": `"clip"`, "is_band": "[0.8, 1.25]"},
	"token, trunc":         {"aggregation": `"seq-mean-token-sum-norm"`, "is_level": `"token"`, "is_mode": `"trunc"`, "is_band": "[1.2]"},
	"seq, mask":            {"aggregation": `"seq-mean-token-mean"`, "is_level": `"seq"`, "is_band": "[0.6, 1.6]"},
	"geo, mask":            {"aggregation": `"prompt-mean-token-mean"`, "is_level": `"geo"`, "is_band": "[0.95, 1.1]"},
	"token, tv":            {"aggregation": `"token-mean"`, "is_level": `"token"`, "is_gate": `"tv"`, "is_band": "[0.03]"},
	"seq, KL":              {"aggregation": `"seq-mean-token-sum"`, "is_level": `"seq"`, "is_gate": `"binary_kl"`, "is_band": "[0.005]"},
	"centering":            {"aggregation": `"seq-mean-token-mean"`, "score_centering": "2"},
	"centering, token":     {"aggregation": `"token-mean"`, "score_centering": "2", "is_level": `"token"`, "is_band": "[0.8, 1.25]"},
	"centering, token cut": {"score_centering": "2", "is_level": `"token"`, "is_mode": `"trunc"`, "is_band": "[0, 1]"},
}

// lossParams make something happen on a step of a hundred tokens. Every token of high covariance is drawn, so that the draw, which goes by
// places, does not depend on their order.
var lossParams = map[string]map[string]float64{
	"clip_cov": {"r": 1, "omega_low": 0.5, "omega_high": 3}, "kl_cov": {"k": 0.2},
	"dppo_tv": {"delta": 0.05, "c": 1.2}, "dppo_kl": {"delta": 0.01, "c": 1.2}, "gmpo": {"epsilon": 0.1},
}

func eachLoss(t *testing.T, f func(t *testing.T, c LossConfig)) {
	for _, name := range slices.Sorted(maps.Keys(losses)) {
		for setting, keys := range lossSettings {
			t.Run(name+"/"+setting, func(t *testing.T) {
				settings := map[string]string{"name": fmt.Sprintf("%q", name), "norm_tokens": "7", "kl_coef": "0.1", "kl": `"k3"`}
				if keys["is_level"] != "" {
					settings["old"] = `"policy"`
				}
				if name == "cispo" {
					settings["clip_high"] = "1.1"
				}
				maps.Copy(settings, keys)
				c, err := configure(t, settings)
				if err != nil {
					t.Fatal(err)
				}
				c.Params = lossParams[name]
				if err := c.validate(); err != nil {
					t.Fatal(err)
				}
				f(t, c)
			})
		}
	}
}

// randomStep is samples of four prompts with some tokens masked, and log-probs near those that they were sampled at.
func randomStep() (samples []Sample, logp [][]number) {
	r := rand.New(rand.NewPCG(3, 4))
	for g := range 4 {
		for range 2 + g%2 {
			n := 6 + r.IntN(5)
			x := Sample{Tokens: blank(n), Advantages: make([]float32, n), Reference: make([]float32, n), Group: int64(g)}
			x.Tokens.Top = make([][]rollout.TopLogP, n)
			advantage, row := float32(r.NormFloat64()), make([]number, n-1)
			for i := range n {
				x.Tokens.IDs[i], x.Tokens.LogP[i] = r.Int32N(300), -3*r.Float32()
				x.Advantages[i] = advantage + float32(r.NormFloat64())/4
				x.Reference[i] = x.Tokens.LogP[i] + float32(r.NormFloat64())/4
				x.Tokens.Top[i] = []rollout.TopLogP{{ID: 7, LogP: -0.5 - r.Float32()}, {ID: 8, LogP: -2 - r.Float32()}}
				x.Tokens.Mask[i] = i > 0 && r.IntN(4) > 0
				if i > 0 {
					row[i-1] = number(x.Tokens.LogP[i] + float32(r.NormFloat64())*0.3)
				}
			}
			samples, logp = append(samples, x), append(logp, row)
		}
	}
	return samples, logp
}

func (want evaluated) same(t *testing.T, what string, got evaluated) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(evaluated{}), close64(1e-6, 1e-5)); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

func TestMicroBatchesChangeNeitherLossNorGradientNorMetric(t *testing.T) {
	samples, logp := randomStep()
	eachLoss(t, func(t *testing.T, c LossConfig) {
		want := mustEvaluate(t, samples, logp, c, noLimit)
		for _, name := range []string{"clip_ratio", "cov_ratio", "is_outside"} {
			m, ok := want.metrics[name]
			if ok && (m.Sum == 0 || m.Sum == m.Count) && (name != "clip_ratio" || c.Old == "behaviour") {
				t.Errorf("%s is %v of %v: nothing is tried", name, m.Sum, m.Count)
			}
		}
		for _, budget := range []int{40, 10} {
			if n := len(mustPack(t, samples, budget).Micros); n < 2 {
				t.Fatal("one micro-batch")
			}
			want.same(t, fmt.Sprintf("micro-batches of %d rows", budget), mustEvaluate(t, samples, logp, c, budget))
		}
	})
}

func TestTheOrderOfSamplesChangesNothing(t *testing.T) {
	samples, logp := randomStep()
	order := rand.New(rand.NewPCG(7, 8)).Perm(len(samples))
	shuffled, rows := make([]Sample, len(samples)), make([][]number, len(samples))
	for i, j := range order {
		shuffled[i], rows[i] = samples[j], logp[j]
	}
	eachLoss(t, func(t *testing.T, c LossConfig) {
		want := mustEvaluate(t, samples, logp, c, noLimit)
		got := mustEvaluate(t, shuffled, rows, c, 20)
		back := got
		back.grad, back.head = make([][]float64, len(samples)), make([][]float64, len(samples))
		for i, j := range order {
			back.grad[j], back.head[j] = got.grad[i], got.head[i]
		}
		want.same(t, "shuffled", back)
	})
}

func TestNothingAtAMaskedPositionReachesALoss(t *testing.T) {
	samples, logp := randomStep()
	other, rows := slices.Clone(samples), make([][]number, len(logp))
	for i, x := range samples {
		y := &other[i]
		y.Advantages, y.Reference, rows[i] = slices.Clone(x.Advantages), slices.Clone(x.Reference), slices.Clone(logp[i])
		y.Tokens.LogP, y.Tokens.Top = slices.Clone(x.Tokens.LogP), slices.Clone(x.Tokens.Top)
		for n, on := range x.Tokens.Mask {
			if !on {
				bad := []float32{float32(math.NaN()), float32(math.Inf(-1)), 1e30}[n%3]
				y.Advantages[n], y.Reference[n], y.Tokens.LogP[n], y.Tokens.Top[n] = bad, bad, bad, nil
				if n > 0 {
					rows[i][n-1] = number(bad)
				}
			}
		}
	}
	eachLoss(t, func(t *testing.T, c LossConfig) {
		want, got := mustEvaluate(t, samples, logp, c, noLimit), mustEvaluate(t, other, rows, c, noLimit)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(evaluated{})); diff != "" {
			t.Error(diff)
		}
	})
}

func TestTwiceTheCountsOfTheStepHalveLossAndGradient(t *testing.T) { // what other ranks hold
	samples, logp := randomStep()
	half := func(rows [][]float64) [][]float64 {
		for _, row := range rows {
			for i := range row {
				row[i] /= 2
			}
		}
		return rows
	}
	eachLoss(t, func(t *testing.T, c LossConfig) {
		want := mustEvaluate(t, samples, logp, c, noLimit)
		got, err := evaluate(t, samples, logp, c, noLimit, func(step *Step) {
			step.Tokens, step.Sequences, step.Prompts = 2*step.Tokens, 2*step.Sequences, 2*step.Prompts
		})
		if err != nil {
			t.Fatal(err)
		}
		want.loss, want.grad, want.head = want.loss/2, half(want.grad), half(want.head)
		want.same(t, "two ranks", got)
	})
}

// policyLosses are the default settings of each loss that is one of a policy gradient.
func policyLosses(t *testing.T) map[string]LossConfig {
	out := map[string]LossConfig{}
	for name := range losses {
		c := DefaultConfig().Loss
		if c.Name = name; name == "cispo" {
			c.ClipHigh = 5
		}
		if err := c.validate(); err != nil {
			t.Fatal(err)
		}
		out[name] = c
	}
	delete(out, "sft") // has no advantage
	return out
}

func TestOnPolicyEveryPolicyLossHasTheGradientOfREINFORCE(t *testing.T) {
	samples, logp := onPolicy([]int{2, 5, 1}, []float32{1.5, -0.5, 0})
	for name, c := range policyLosses(t) {
		want := [][]float64{{-1.5 / 8, -1.5 / 8}, {0.5 / 8, 0.5 / 8, 0.5 / 8, 0.5 / 8, 0.5 / 8}, {0}}
		got := mustEvaluate(t, samples, logp, c, noLimit)
		if diff := cmp.Diff(want, got.grad, close64(1e-7, 1e-6)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	// Clip-Cov has it where it has not drawn the token, here the first: log-probs ln(0.9) and ln(0.01), covariances 8, 2 and 2.
	x, row := chance([]float64{0.9, 0.01, 0.01}, []float64{0.9, 0.01, 0.01}, []float64{3, -1, -1})
	c := policyLosses(t)["clip_cov"]
	c.Params = map[string]float64{"omega_low": 7, "omega_high": 9}
	got := mustEvaluate(t, []Sample{x}, [][]number{row}, c, noLimit)
	if diff := cmp.Diff([][]float64{{0, 1. / 3, 1. / 3}}, got.grad, close64(1e-7, 1e-6)); diff != "" {
		t.Error("clip_cov, drawn:", diff)
	}
}

func TestEveryLossIsFiniteAtHugeRatios(t *testing.T) { // L9
	for name, c := range policyLosses(t) {
		for _, ratio := range []float32{800, -800} {
			for _, a := range []float32{-1, 0, 1} {
				x, logp := trained(0, []float32{ratio}, []float32{a})
				got := mustEvaluate(t, []Sample{x}, [][]number{logp}, c, noLimit)
				if !finite(got.loss) || !finite(got.grad[0][0]) {
					t.Errorf("%s at log-ratio %v, advantage %v: %v", name, ratio, a, got)
				}
				if a == 0 && name != "kl_cov" && (got.loss != 0 || got.grad[0][0] != 0) { // which has its penalty
					t.Errorf("%s at log-ratio %v, advantage 0: %v", name, ratio, got)
				}
			}
		}
	}
}

func TestLossParametersAreCheckedByName(t *testing.T) {
	for key, want := range map[string]string{
		"tau_pos": "loss.params.tau_pos is 0, want 0.01 to 100", "tau": `loss.params.tau is not known to the loss "sapo"`,
	} {
		c := DefaultConfig().Loss
		c.Name, c.Params = "sapo", map[string]float64{key: 0}
		if err := c.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", key, err, want)
		}
	}
}
