package trainer

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// chance is a sample whose tokens had the probabilities sampled and have now those of the policy.
func chance(sampled, now, advantages []float64) (Sample, []number) {
	n := len(sampled) + 1
	x, logp := Sample{Tokens: blank(n), Advantages: make([]float32, n)}, make([]number, n-1)
	for i := range sampled {
		x.Tokens.Mask[i+1], x.Tokens.LogP[i+1] = true, float32(math.Log(sampled[i]))
		x.Advantages[i+1], logp[i] = float32(advantages[i]), number(math.Log(now[i]))
	}
	return x, logp
}

// worked is one sample under a loss, whose values stand in the comments of its case; aggregation is "seq-mean-token-sum".
type worked struct {
	loss                    string
	params                  map[string]float64
	sampled, now, advantage []float64
	want                    float64
	grad                    []float64
	metric                  string
	mean                    float64
}

func (w worked) check(t *testing.T, aggregation string) {
	t.Helper()
	c := DefaultConfig().Loss
	c.Name, c.Params, c.Aggregation = w.loss, w.params, aggregation
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	x, logp := chance(w.sampled, w.now, w.advantage)
	got := mustEvaluate(t, []Sample{x}, [][]number{logp}, c, noLimit)
	what := fmt.Sprintf("%s %v: %v → %v at A %v", w.loss, w.params, w.sampled, w.now, w.advantage)
	got.near(t, what, w.want)
	if diff := cmp.Diff([][]float64{w.grad}, got.grad, close64(2e-6, 2e-6)); diff != "" {
		t.Errorf("%s: gradient %s", what, diff)
	}
	if diff := cmp.Diff(w.mean, got.metrics[w.metric].Mean(), close64(1e-6, 1e-6)); diff != "" {
		t.Errorf("%s: %s %s", what, w.metric, diff)
	}
}

// one is a case of a single token.
func one(loss string, params map[string]float64, sampled, now, a, want, grad float64, metric string, mean float64) worked {
	return worked{loss, params, []float64{sampled}, []float64{now}, []float64{a}, want, []float64{grad}, metric, mean}
}

func TestSAPOByHand(t *testing.T) {
	for _, w := range []worked{
		// Ratio 1: σ(0) = 1/2, so the value is -4/τ·A/2 and 4·σ·(1-σ) = 1.
		one("sapo", nil, 0.4, 0.4, 1, -2, -1, "gate", 1),
		one("sapo", nil, 0.4, 0.4, -1, 2/1.05, 1, "gate", 1),
		// Ratio 2, τ 1: σ(1) = 0.7310586, 4·σ·(1-σ) = 0.7864477; loss -4·0.7310586, gradient -2·0.7864477.
		one("sapo", nil, 0.4, 0.8, 1, -2.9242343, -1.5728955, "gate", 0.7864477),
		// Ratio 1/2: σ(-0.5) = 0.3775407, 4·σ·(1-σ) = 0.9400148; loss -4·0.3775407, gradient -0.5·0.9400148.
		one("sapo", nil, 0.8, 0.4, 1, -1.5101627, -0.4700074, "gate", 0.9400148),
		// A < 0 has τ 1.05: σ(1.05) = 0.7407749, 4·σ·(1-σ) = 0.7681097; loss 4/1.05·0.7407749, gradient 2·0.7681097.
		one("sapo", nil, 0.4, 0.8, -1, 2.8219996, 1.5362196, "gate", 0.7681097),
		// A 3, ratio 3/2, τ 2: σ(1) again; loss -3·2·0.7310586, gradient -3·1.5·0.7864477.
		one("sapo", map[string]float64{"tau_pos": 2}, 0.4, 0.6, 3, -4.3863515, -3.5390148, "gate", 0.7864477),
	} {
		w.check(t, "seq-mean-token-sum")
	}
}

func TestDPPOByHand(t *testing.T) {
	tight := map[string]float64{"delta": 0.15}
	for _, w := range []worked{
		// Total variation: what A > 0 has raised by more than 0.2 is masked, by less it is not; the loss is then -ratio, with that gradient.
		one("dppo_tv", nil, 0.5, 0.75, 1, 0, 0, "clip_ratio", 1),
		one("dppo_tv", nil, 0.5, 0.65, 1, -1.3, -1.3, "clip_ratio", 0),
		one("dppo_tv", nil, 0.5, 0.25, -1, 0, 0, "clip_ratio", 1),
		one("dppo_tv", nil, 0.5, 0.35, -1, 0.7, 0.7, "clip_ratio", 0),
		// Back to the policy that sampled, from however far.
		one("dppo_tv", nil, 0.5, 0.75, -1, 1.5, 1.5, "clip_ratio", 0),
		one("dppo_tv", nil, 0.5, 0.25, 2, -1, -1, "clip_ratio", 0),
		// The examples of section 4.2: PPO would clip the first and not the second. Ratio 100 counts as c.
		one("dppo_tv", nil, 1e-4, 1e-2, 1, -5, -5, "clip_ratio", 0),
		one("dppo_tv", map[string]float64{"c": 1e13}, 1e-4, 1e-2, 1, -100, -100, "clip_ratio", 0),
		one("dppo_tv", nil, 0.99, 0.8, -1, 0.8080808, 0.8080808, "clip_ratio", 0),
		one("dppo_tv", tight, 0.99, 0.8, -1, 0, 0, "clip_ratio", 1),
		// KL: 0.5·ln(0.5/0.65) + 0.5·ln(0.5/0.35) = 0.0472 and, of 0.66, 0.0540; of 0.34 too; of 1e-4 → 1e-2 0.0095.
		one("dppo_kl", nil, 0.5, 0.65, 1, -1.3, -1.3, "clip_ratio", 0),
		one("dppo_kl", nil, 0.5, 0.66, 1, 0, 0, "clip_ratio", 1),
		one("dppo_kl", nil, 0.5, 0.34, -1, 0, 0, "clip_ratio", 1),
		one("dppo_kl", nil, 0.5, 0.34, 1, -0.68, -0.68, "clip_ratio", 0),
		one("dppo_kl", nil, 1e-4, 1e-2, 1, -5, -5, "clip_ratio", 0),
		// The KL divergence is from the policy now: 0.1·ln(0.1/0.25) + 0.9·ln(0.9/0.75) = 0.0725; the other way round 0.0923.
		one("dppo_kl", map[string]float64{"delta": 0.08}, 0.1, 0.25, 1, -2.5, -2.5, "clip_ratio", 0),
	} {
		w.check(t, "seq-mean-token-sum")
	}
}

func TestGMPOByHand(t *testing.T) {
	sampled := []float64{0.1, 0.1, 0.1}
	now := []float64{0.1 * math.Exp(0.1), 0.1 * math.Exp(0.9), 0.1 * math.Exp(-0.6)}
	for _, w := range []worked{
		// A > 0 bounds 0.9 to 0.4: G = exp((0.1+0.4-0.6)/3) = 0.9672161, loss -2·G, each gradient -2·G/3 but that of the bounded token 0.
		{"gmpo", nil, sampled, now, []float64{2, 2, 2}, -1.9344322, []float64{-0.6448107, 0, -0.6448107}, "clip_ratio", 1. / 3},
		// A < 0 bounds -0.6 to -0.4: G = exp((0.1+0.9-0.4)/3) = 1.2214028.
		{"gmpo", nil, sampled, now, []float64{-1, -1, -1}, 1.2214028, []float64{0.4071343, 0.4071343, 0}, "clip_ratio", 1. / 3},
		// Within a wider range: G = exp(0.4/3) = 1.1426308.
		{"gmpo", map[string]float64{"epsilon": 1}, sampled, now, []float64{1, 1, 1}, -1.1426308, []float64{-0.3808769, -0.3808769, -0.3808769},
			"clip_ratio", 0},
	} {
		w.check(t, "seq-mean-token-mean")
	}
}

// Log-probs -1, -1, -3, -3 (mean -2) with advantages 4, 1, 1, -2 (mean 1) have covariances 1·3, 1·0, -1·0 and -1·-3.
func TestClipCovByHand(t *testing.T) {
	high, low := math.Exp(-1), math.Exp(-3)
	sampled, advantages := []float64{high, high, low, low}, []float64{4, 1, 1, -2}
	now := []float64{high, high * 1.5, low, low}
	for _, w := range []worked{
		// Both tokens of covariance 3 are drawn; of the others one is clipped to 1.2 and one has ratio 1.
		{"clip_cov", map[string]float64{"r": 0.5}, sampled, now, advantages, -2.2, []float64{0, 0, -1, 0}, "cov_ratio", 0.5},
		{"clip_cov", map[string]float64{"r": 0.5}, sampled, now, advantages, -2.2, []float64{0, 0, -1, 0}, "clip_ratio", 0.25},
		{"clip_cov", map[string]float64{"r": 0.5, "omega_low": 3, "omega_high": 3}, sampled, now, advantages, -2.2, []float64{0, 0, -1, 0},
			"cov_ratio", 0.5},
		// None lies within the bounds: the loss is PPO's, -4 - 1.2 - 1 + 2.
		{"clip_cov", map[string]float64{"r": 1, "omega_low": 3.1}, sampled, now, advantages, -4.2, []float64{-4, 0, -1, 2}, "cov_ratio", 0},
		{"clip_cov", map[string]float64{"r": 1, "omega_high": 2.9}, sampled, now, advantages, -4.2, []float64{-4, 0, -1, 2}, "cov_ratio", 0},
		{"clip_cov", map[string]float64{"r": 1, "omega_low": 0}, sampled, now, advantages, 0, []float64{0, 0, 0, 0}, "cov_ratio", 1},
	} {
		w.check(t, "seq-mean-token-sum")
	}
}

func TestKLCovByHand(t *testing.T) {
	high, low := math.Exp(-1), math.Exp(-3)
	sampled, advantages := []float64{high, high, low, low}, []float64{5, 1, 1, -2} // covariances 3.75, -0.25, 0.25, 3.25
	now := []float64{high * math.Exp(0.3), high * math.Exp(-0.2), low, low * math.Exp(-0.5)}
	for _, w := range []worked{
		// One of four: -5·e^0.3 + 2·0.3 - e^-0.2 - 1 + 2·e^-0.5, and the gradient of the first is -5·e^0.3 + 2.
		{"kl_cov", map[string]float64{"k": 0.25, "beta": 2}, sampled, now, advantages, -6.7549634,
			[]float64{-4.7492940, -0.8187308, -1, 1.2130613}, "cov_ratio", 0.25},
		// Two: the fourth has 2·0.5 more, and 2 off its gradient.
		{"kl_cov", map[string]float64{"k": 0.5, "beta": 2}, sampled, now, advantages, -5.7549634,
			[]float64{-4.7492940, -0.8187308, -1, -0.7869387}, "cov_ratio", 0.5},
		// At least one, and beta 1 if nothing is said: 0.3 less than twice of it.
		{"kl_cov", nil, sampled, now, advantages, -7.0549634, []float64{-5.7492940, -0.8187308, -1, 1.2130613}, "cov_ratio", 0.25},
	} {
		w.check(t, "seq-mean-token-sum")
	}
}

func TestClipCovDrawsByThePlaceInTheStep(t *testing.T) {
	var samples []Sample
	var logp [][]number
	for i := range 40 {
		// Log-probs -1 and -3 with advantages 3 and 1 have covariance 1 everywhere, and a gradient wherever none is drawn.
		chances := []float64{math.Exp(-1), math.Exp(-3), math.Exp(-1), math.Exp(-3)}
		x, l := chance(chances, chances, []float64{3, 1, 3, 1})
		x.Group = int64(i)
		samples, logp = append(samples, x), append(logp, l)
	}
	draw := func(r float64, budget int) (drawn []bool) {
		c := DefaultConfig().Loss
		c.Name, c.Params = "clip_cov", map[string]float64{"r": r, "omega_low": 0.5}
		got := mustEvaluate(t, samples, logp, c, budget)
		if want := r * 160; math.Abs(got.metrics["cov_ratio"].Sum-want) > 1e-9 {
			t.Errorf("r %v: %v tokens are drawn, want %v", r, got.metrics["cov_ratio"].Sum, want)
		}
		for _, row := range got.grad {
			for _, g := range row {
				drawn = append(drawn, g == 0)
			}
		}
		return drawn
	}
	few, more := draw(0.25, noLimit), draw(0.5, 8)
	if diff := cmp.Diff(few, draw(0.25, 4)); diff != "" {
		t.Error("another draw with other micro-batches:", diff)
	}
	var halves [2]int
	for i, drawn := range few {
		if drawn {
			halves[i*2/len(few)]++
		}
		if drawn && !more[i] {
			t.Errorf("place %d is drawn among 40 and not among 80", i)
		}
	}
	if halves[0] < 10 || halves[1] < 10 {
		t.Errorf("the draw is not over the whole step: %v in its halves", halves)
	}
}
