package trainer

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
)

// Log-ratios 0.1, -1.5, 0.8, -10, 0.3 in the band [0.5, 2] at advantage 1 keep the first and the last: e^0.1 + e^0.3 = 2.45503.
func TestRejectedTokensCountOrAreDroppedInEveryAggregation(t *testing.T) { // L5
	ratios := []float32{0.1, -1.5, 0.8, -10, 0.3}
	for rejected, want := range map[string]map[string]float64{
		"count": {"token-mean": -0.49101, "seq-mean-token-mean": -0.49101, "prompt-mean-token-mean": -0.49101, "seq-mean-token-sum": -2.45503},
		"drop":  {"token-mean": -1.22751, "seq-mean-token-mean": -1.22751, "prompt-mean-token-mean": -1.22751, "seq-mean-token-sum": -2.45503},
	} {
		for aggregation, loss := range want {
			do(t, func(s *torch.Scope) {
				p := newPolicy(t, s, llamas(t)[0], torch.Float32, func(c *Config) {
					c.Loss.Old, c.Loss.Level, c.Loss.Band, c.Loss.Rejected = "policy", "token", []float64{0.5, 2}, rejected
					c.Loss.Aggregation = aggregation
				})
				x := dialogue(0, 2, 3, 4, 5, 6, 7, 8, 9)
				scores, err := p.Score(s, [][]int32{x.Tokens.IDs}, []float32{1})
				if err != nil {
					t.Fatal(err)
				}
				for i, r := range ratios {
					x.Tokens.LogP[i+2] = scores[0][i+1] - r
				}
				stats := step(t, s, p, []Sample{x}, 0)
				if diff := cmp.Diff(loss, stats.Loss, close64(1e-5, 0)); diff != "" {
					t.Errorf("%s, %s: %s", rejected, aggregation, diff)
				}
				for key, want := range map[string]float64{"is_ratio": 0.980749, "is_outside": 0.6, "behaviour_kl": 2.06} { // of all five: M3
					if diff := cmp.Diff(want, stats.Metrics[key].Mean(), close64(1e-5, 0)); diff != "" {
						t.Errorf("%s: %s: %s", rejected, key, diff)
					}
				}
				if tokens := map[string]int{"count": 5, "drop": 2}[rejected]; stats.Tokens != tokens {
					t.Errorf("%s: %d tokens, want %d", rejected, stats.Tokens, tokens)
				}
			})
		}
	}
}

func TestARatioOfASampleIsAProductOrAMean(t *testing.T) { // L6
	for _, c := range []struct {
		level     string
		low, high float64
		outside   float64
	}{ // log-ratios 0.2, 0.2: e^0.4 = 1.49182, e^0.2 = 1.22140
		{"seq", 1.49182, 1.49183, 0}, {"seq", 1.2, 1.49181, 1}, {"geo", 1.22140, 1.22141, 0}, {"geo", 1.22141, 1.5, 1},
	} {
		x, logp := trained(0, []float32{0.2, 0.2}, []float32{1, 1})
		lc := DefaultConfig().Loss
		lc.Old, lc.Level, lc.Band = "policy", c.level, []float64{c.low, c.high}
		got := mustEvaluate(t, []Sample{x}, [][]number{logp}, lc, noLimit)
		if outside := got.metrics["is_outside"]; outside != (Metric{c.outside, 1}) {
			t.Errorf("%+v: outside %v", c, outside)
		}
	}
	x, logp := trained(0, []float32{0.3, -0.3, -2}, []float32{1, -1, 1})
	x.Tokens.Mask[3] = false
	for _, masked := range []number{-2, -6} { // neither is seen
		logp[2] = masked
		for name, want := range map[string]struct{ loss, clipped float64 }{"ppo": {-0.2, 1}, "gspo": {0, 0}} {
			lc := DefaultConfig().Loss
			lc.Name = name
			got := mustEvaluate(t, []Sample{x}, [][]number{logp}, lc, noLimit)
			got.near(t, name, want.loss) // of -1.2 and 0.8, both clipped; of ratio 1
			if got.metrics["clip_ratio"].Mean() != want.clipped {
				t.Errorf("%s clips %v of the tokens, want %v", name, got.metrics["clip_ratio"].Mean(), want.clipped)
			}
		}
	}
}

func TestRawRatiosAreReportedApartFromEffectiveOnes(t *testing.T) { // M3
	x, logp := trained(0, []float32{-0.5, 2.5, -0.2}, []float32{1, 1, 1})
	for mode, effective := range map[string]float64{"trunc": 2.141754, "mask": 0.475087} {
		c := DefaultConfig().Loss
		c.Old, c.Level, c.Mode, c.Band = "policy", "token", mode, []float64{0.5, 5}
		got := mustEvaluate(t, []Sample{x}, [][]number{logp}, c, noLimit).metrics
		means := []float64{got["is_ratio"].Mean(), got["is_weight"].Mean()}
		if diff := cmp.Diff([]float64{4.535919, effective}, means, close64(1e-6, 1e-6)); diff != "" {
			t.Errorf("%s: %s", mode, diff)
		}
	}
}

func TestTheKLTermIsAddedToTheLoss(t *testing.T) { // L7
	x, logp := trained(0, []float32{0}, []float32{1})
	x.Reference = []float32{0, -1.5}
	for kind, want := range map[string]float64{"k1": 0.5, "k2": 0.125, "k3": 0.1065307, "k3_base": 0.1487213} {
		for _, coef := range []float64{0, 0.5, 2} {
			c := DefaultConfig().Loss
			c.KL, c.KLCoef = kind, coef
			mustEvaluate(t, []Sample{x}, [][]number{logp}, c, noLimit).near(t, kind, -1+coef*want)
		}
	}
}

// Two tokens of probability 1/2 each, and 1/4 and 3/4 under the reference: the gradient by the first logit, both tokens taken as often as
// they are sampled.
func TestGradientsOfTheKLEstimates(t *testing.T) { // L8
	do(t, func(s *torch.Scope) {
		reference := torch.New(s, []float32{float32(math.Log(0.25)), float32(math.Log(0.75))})
		half := torch.New(s, []float32{0.5, 0.5})
		got := map[string]float64{}
		slope := func(kind string, f func(logp torch.Tensor) torch.Tensor) {
			logits := torch.New(s, []float32{0, 0}).RequireGrad(true)
			got[kind] = torch.Values[float64](s.Gradients([]torch.Tensor{f(s.LogSoftmax(logits, 0))}, nil, []torch.Tensor{logits})[0])[0]
		}
		slope("true", func(logp torch.Tensor) torch.Tensor { return s.Sum(s.Mul(s.Exp(logp), s.Sub(logp, reference))) })
		for kind, kl := range klLosses {
			slope(kind, func(logp torch.Tensor) torch.Tensor { return s.Sum(s.Mul(half, kl(s, s.Sub(logp, reference)))) })
		}
		want := map[string]float64{"true": 0.2746531, "k1": 0, "k2": 0.2746531, "k3": 0.25, "k3_base": 1. / 3}
		if diff := cmp.Diff(want, got, close64(1e-6, 0)); diff != "" {
			t.Error(diff)
		}
	})
}
