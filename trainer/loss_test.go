package trainer

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
)

// trained is a sample of one context token and one trained token for each log-ratio, in a group of its own, and its log-probs.
func trained(group int64, ratios, advantages []float32) (Sample, []number) {
	n := len(ratios) + 1
	x := Sample{Tokens: blank(n), Advantages: append([]float32{0}, advantages...), Group: group}
	logp := make([]number, n-1)
	for i, r := range ratios {
		x.Tokens.IDs[i+1], x.Tokens.Mask[i+1], x.Tokens.LogP[i+1] = int32(i), true, -1
		logp[i] = number(r - 1)
	}
	return x, logp
}

// onPolicy is a batch with log-ratio 0 and one advantage a sample: its token losses are the advantages' negatives.
func onPolicy(lengths []int, advantages []float32) (samples []Sample, logp [][]number) {
	for i, n := range lengths {
		a := make([]float32, n)
		for j := range a {
			a[j] = advantages[i]
		}
		x, l := trained(int64(i), make([]float32, n), a)
		samples, logp = append(samples, x), append(logp, l)
	}
	return samples, logp
}

func mustEvaluate(t *testing.T, samples []Sample, logp [][]number, c LossConfig, budget int) evaluated {
	t.Helper()
	out, err := evaluate(t, samples, logp, c, budget, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (want evaluated) near(t *testing.T, what string, loss float64) {
	t.Helper()
	if diff := cmp.Diff(loss, want.loss, close64(1e-6, 1e-6)); diff != "" {
		t.Errorf("%s: loss %s", what, diff)
	}
}

func TestLossAndMetricsDoNotDependOnTheMicroBatches(t *testing.T) { // L1, M1
	c := DefaultConfig().Loss
	samples, logp := onPolicy([]int{2, 8}, []float32{-1, -0.5})
	whole := mustEvaluate(t, samples, logp, c, noLimit)
	whole.near(t, "2 tokens at 1 and 8 at 0.5", 0.6)
	if diff := cmp.Diff(whole, mustEvaluate(t, samples, logp, c, 8), cmp.AllowUnexported(evaluated{}), close64(1e-7, 1e-6)); diff != "" {
		t.Error("two micro-batches:", diff)
	}

	samples, logp = onPolicy([]int{4, 1}, []float32{-1, -6})
	for _, budget := range []int{noLimit, 4} {
		if got := mustEvaluate(t, samples, logp, c, budget).metrics["policy_loss"].Mean(); got != 2 {
			t.Errorf("4 tokens of mean 1 and 1 of 6: mean %v, want 2", got)
		}
	}

	samples, logp = nil, nil
	for i := range 10 {
		x, l := trained(int64(i), []float32{float32(i)/10 - 0.5, 0.1}, []float32{float32(i) - 4, 1})
		samples, logp = append(samples, x), append(logp, l)
	}
	whole = mustEvaluate(t, samples, logp, c, noLimit)
	for _, budget := range []int{10, 4, 2} { // 2, 5 and 10 micro-batches
		got := mustEvaluate(t, samples, logp, c, budget)
		if diff := cmp.Diff(whole, got, cmp.AllowUnexported(evaluated{}), close64(1e-6, 1e-6)); diff != "" {
			t.Errorf("micro-batches of %d rows: %s", budget, diff)
		}
	}
}

func TestAPartialWindowIsDividedByWhatItHolds(t *testing.T) { // L3
	c := DefaultConfig().Loss
	for _, window := range []int{4, 2} {
		samples, logp := onPolicy([]int{3, 3, 3, 3}[:window], []float32{-1, -1, -1, -1})
		got := mustEvaluate(t, samples, logp, c, 3) // one sample a micro-batch
		got.near(t, "loss 1 everywhere", 1)
		full := mustEvaluate(t, samples, logp, c, noLimit)
		if diff := cmp.Diff(full.grad, got.grad, close64(0, 1e-6)); diff != "" {
			t.Error("gradient:", diff)
		}
	}
}

func TestTokenMeanIsNotTheMeanOfSequences(t *testing.T) { // L4
	samples, logp := onPolicy([]int{2, 6}, []float32{-1, -1})
	mustEvaluate(t, samples, logp, DefaultConfig().Loss, noLimit).near(t, "lengths 2 and 6, all losses 1", 1)
	samples, logp = onPolicy([]int{2, 6}, []float32{-1, -3})
	mustEvaluate(t, samples, logp, DefaultConfig().Loss, noLimit).near(t, "(2·1 + 6·3) / 8", 2.5)
}

func TestMaskedTokensHaveNoInfluence(t *testing.T) { // T8, L6, L10
	c := DefaultConfig().Loss
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	x, logp := trained(0, []float32{0, 0, 0, 0}, []float32{-1, -1, -10, -1})
	mustEvaluate(t, []Sample{x}, [][]number{logp}, c, noLimit).near(t, "all trained", 3.25)
	x.Tokens.Mask[3] = false
	want := mustEvaluate(t, []Sample{x}, [][]number{logp}, c, noLimit)
	want.near(t, "the tool's token masked", 1)
	for _, v := range []float32{-2, -6, inf, nan} {
		logp[2], x.Tokens.LogP[3], x.Advantages[3] = number(v), v, v
		got := mustEvaluate(t, []Sample{x}, [][]number{logp}, c, noLimit)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(evaluated{})); diff != "" {
			t.Errorf("%v at the masked token changes the loss: %s", v, diff)
		}
	}
	x, logp = trained(0, []float32{0.3, -0.3}, []float32{1, -1})
	got := mustEvaluate(t, []Sample{x}, [][]number{logp}, c, noLimit) // e^.3 = 1.34986 → 1.2, e^-.3 = 0.74082 → 0.8
	got.near(t, "both ratios clipped", -0.2)
	if got.metrics["clip_ratio"].Mean() != 1 || got.grad[0][0] != 0 || got.grad[0][1] != 0 {
		t.Error("clipped tokens have no gradient:", got)
	}
}

func TestHugeLogRatiosStayFiniteAndNaNIsAnError(t *testing.T) { // L9
	c := DefaultConfig().Loss
	x, logp := trained(0, []float32{800}, []float32{0})
	if got := mustEvaluate(t, []Sample{x}, [][]number{logp}, c, noLimit); got.loss != 0 || got.grad[0][0] != 0 {
		t.Error("log-ratio 800 at advantage 0:", got)
	}
	x, logp = trained(0, []float32{800}, []float32{-1})
	got := mustEvaluate(t, []Sample{x}, [][]number{logp}, c, noLimit)
	if diff := cmp.Diff(math.Exp(30), got.loss, close64(0, 1e-5)); diff != "" || got.grad[0][0] != 0 {
		t.Error("log-ratio 800 at advantage -1:", diff, got)
	}
	logp[0] = number(math.NaN())
	_, err := evaluate(t, []Sample{x}, [][]number{logp}, c, noLimit, nil)
	if err == nil || !strings.Contains(err.Error(), "sample 0, token 1: log-prob is NaN") {
		t.Error("NaN log-prob:", err)
	}
}

func TestKLLossesAreFiniteAndFlatBeyondTheirBound(t *testing.T) { // L7 in values
	do(t, func(s *torch.Scope) {
		for kind, want := range map[string][]float64{ // at d = 0.5 and 800, and the slopes there
			"k1": {0.5, 800, 1, 1}, "k2": {0.125, 10, 0.5, 0},
			"k3": {0.1065307, 10, 0.3934693, 0}, "k3_base": {0.1487213, 10, 0.6487213, 0},
		} {
			d := torch.New(s, []float32{0.5, 800}).RequireGrad(true)
			kl := klLosses[kind](s, d)
			slopes := s.Gradients([]torch.Tensor{s.Sum(kl)}, nil, []torch.Tensor{d})[0]
			got := append(torch.Values[float64](kl), torch.Values[float64](slopes)...)
			if diff := cmp.Diff(want, got, close64(1e-6, 1e-6)); diff != "" {
				t.Errorf("%s: %s", kind, diff)
			}
		}
	})
}

func TestLossesAreRegisteredByName(t *testing.T) {
	plain := func(s *torch.Scope, in LossInput) LossOutput {
		return LossOutput{Loss: s.Neg(s.Mul(in.LogP, in.Advantages))}
	}
	if err := RegisterLoss("test_reinforce", plain); err != nil {
		t.Fatal(err)
	}
	defer delete(losses, "test_reinforce")
	for name, f := range map[string]func(*torch.Scope, LossInput) LossOutput{"": plain, "ppo": plain, "other": nil} {
		if err := RegisterLoss(name, f); err == nil || !strings.Contains(err.Error(), "sft, test_reinforce") {
			t.Errorf("RegisterLoss(%q): %v", name, err)
		}
	}
	if err := FindLoss("pop"); err == nil || !strings.Contains(err.Error(), `loss.name: unknown loss "pop"; known: cispo, `) {
		t.Error(err)
	}
	x, logp := trained(0, []float32{0, 1}, []float32{2, 3}) // log-probs -1 and 0
	c := DefaultConfig().Loss
	c.Name = "test_reinforce"
	got := mustEvaluate(t, []Sample{x}, [][]number{logp}, c, noLimit)
	got.near(t, "-(2·-1 + 3·0) / 2", 1)
	if diff := cmp.Diff([][]float64{{-1, -1.5}}, got.grad, close64(1e-7, 0)); diff != "" || got.metrics["entropy"].Count != 2 {
		t.Error(diff, got.metrics)
	}
}
