package estimators

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// number reads a JSON number or a number in a string: "NaN", "-Infinity", "0.1".
type number float64

func (n *number) UnmarshalJSON(text []byte) error {
	x, err := strconv.ParseFloat(strings.Trim(string(text), `"`), 64)
	*n = number(x)
	return err
}

func floats(rows [][]number) [][]float32 {
	out := make([][]float32, len(rows))
	for i, row := range rows {
		for _, x := range row {
			out[i] = append(out[i], float32(x))
		}
	}
	return out
}

type klReference struct {
	ApproxKL []struct {
		Name    string
		LogP    [][]number `json:"log_probs"`
		Base    [][]number `json:"log_probs_base"`
		Mask    [][]number
		Outputs map[string]struct{ KL [][]number }
		Means   []number `json:"masked_mean_k3_model"`
	} `json:"approx_kl"`
	Controllers []struct {
		Init, Target, Horizon number
		N                     int      `json:"n_steps"`
		Current               []number `json:"current"`
		Adaptive              []number `json:"adaptive_value_after_update"`
		Fixed                 []number `json:"fixed_value_after_update"`
	}
	Masked []struct {
		Name     string
		Tensor   [][]number
		Mask     [][]number
		MeanAll  number   `json:"mean_all"`
		SumAll   *number  `json:"sum_all"`
		MeanRows []number `json:"mean_rows"`
	}
}

func loadKL(t *testing.T) klReference {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "testdata", "reference", "kl.json"))
	if err != nil {
		t.Fatal(err)
	}
	var ref klReference
	if err := json.Unmarshal(text, &ref); err != nil {
		t.Fatal(err)
	}
	if len(ref.ApproxKL) == 0 || len(ref.Controllers) == 0 || len(ref.Masked) == 0 {
		t.Fatal("the reference has an empty list of cases")
	}
	return ref
}

func TestKLValuesEqualTheReference(t *testing.T) {
	names := map[string]string{"k1/model": "k1", "k1/rollout": "k1",
		"k2/model": "k2", "k2/rollout": "k2", "k3/model": "k3", "k3/rollout": "k3_base"}
	for _, c := range loadKL(t).ApproxKL {
		logp, base := floats(c.LogP), floats(c.Base)
		masks := make([][]bool, len(logp))
		for i := range logp { // every finite pair; the others are errors here, see deviations and the test of that
			for k := range logp[i] {
				masks[i] = append(masks[i], finite(float64(logp[i][k])) && finite(float64(base[i][k])))
			}
		}
		actions := bools(floats(c.Mask))
		for name, want := range c.Outputs {
			got, err := KL(names[name], logp, base, masks)
			if err != nil {
				t.Fatal(c.Name, name, err)
			}
			means, _ := MaskedMean(got, actions)
			for i, mean := range means {
				whole := true // no pair under the mask that is an error here
				for k, action := range actions[i] {
					whole = whole && (!action || masks[i][k])
				}
				if w := float64(c.Means[i]); name == "k3/model" && whole && !(math.Abs(mean-w) <= 3e-7+1e-6*math.Abs(w)) {
					t.Errorf("%s %s: mean of sample %d is %.9g, want %.9g", c.Name, name, i, mean, w)
				}
			}
			for i, mask := range masks {
				for k, action := range mask {
					g, w := float64(got[i][k]), float64(want.KL[i][k])
					// 3e-7: the float32 reference loses that much of exp(-d) - 1 + d when d is small
					if action && !(math.Abs(g-w) <= 3e-7+1e-6*math.Abs(w)) || !action && g != 0 {
						t.Errorf("%s %s: sample %d slot %d is %.9g, want %.9g", c.Name, name, i, k, g, w)
					}
				}
			}
		}
	}
}

func TestKLByHand(t *testing.T) { // L7: logp -1, base -1.5
	for kind, want := range map[string]float64{"k1": 0.5, "k2": 0.125, "k3": 0.1065307, "k3_base": 0.1487213} {
		got, err := KL(kind, [][]float32{{-1}}, [][]float32{{-1.5}}, [][]bool{{true}})
		if err != nil || math.Abs(float64(got[0][0])-want) > 1e-6 {
			t.Errorf("%s: %v, %v, want %v", kind, got, err, want)
		}
	}
}

func TestALogProbThatIsNoNumberIsAnErrorNotKLZero(t *testing.T) { // L9
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for want, rows := range map[string][2][][]float32{
		"k3: log-probs: sample 0 slot 1 is NaN":       {{{0, nan}}, {{0, 0}}},
		"k3: base log-probs: sample 0 slot 1 is -Inf": {{{nan, 0}}, {{0, inf}}},
		"k3: log-probs: 0 samples, want 1":            {nil, {{0, 0}}},
	} {
		if _, err := KL("k3", rows[0], rows[1], [][]bool{{false, true}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
	if _, err := KL("k4", nil, nil, nil); err == nil || !strings.Contains(err.Error(), "known: k1, k2, k3, k3_base") {
		t.Errorf("unknown kind: got error %v", err)
	}
}

func TestKLGradientsAreThoseDocumented(t *testing.T) { // L8
	// The policy is p over two tokens, the base q, and d(log p(a))/d(logit 0) = [a = 0] - p(0). By hand, with p(0) = 0.5:
	// d(KL(p ‖ q)) = p(0) (1 - p(0)) (d(0) - d(1)) = 0.25 ln 3 = 0.2746531, and d(KL(q ‖ p)) = p(0) - q(0) = 0.25.
	p, q := [2]float64{0.5, 0.5}, [2]float64{0.25, 0.75}
	for kind, want := range map[string]struct {
		gradient func(d float64) float64
		sampler  [2]float64
		total    float64
	}{
		"k1":      {func(float64) float64 { return 1 }, p, 0},
		"k2":      {func(d float64) float64 { return d }, p, 0.2746531},
		"k3":      {func(d float64) float64 { return 1 - math.Exp(-d) }, p, 0.25},
		"k3_base": {func(d float64) float64 { return math.Exp(d) - 1 }, q, 0.25},
	} {
		const h = 1e-5
		slope := func(d float64) float64 { return (klKinds[kind](d+h) - klKinds[kind](d-h)) / (2 * h) }
		total := 0.0
		for a, score := range []float64{1 - p[0], -p[0]} {
			total += want.sampler[a] * slope(math.Log(p[a]/q[a])) * score
		}
		if math.Abs(total-want.total) > 1e-6 {
			t.Errorf("%s: expected gradient %v, want %v", kind, total, want.total)
		}
		for _, d := range []float64{-1.5, -0.1, 0.3, 1.2} {
			if math.Abs(slope(d)-want.gradient(d)) > 1e-6 {
				t.Errorf("%s: gradient at %v is %v, want %v", kind, d, slope(d), want.gradient(d))
			}
		}
		if beyond := slope(30); kind != "k1" && beyond != 0 {
			t.Errorf("%s: gradient beyond the bound is %v", kind, beyond)
		}
	}
}

func TestControllersEqualTheReferenceUntilItTurnsNegative(t *testing.T) {
	for _, c := range loadKL(t).Controllers {
		adaptive := KLController{Coef: float64(c.Init), Target: float64(c.Target), Horizon: float64(c.Horizon)}
		fixed := KLController{Coef: float64(c.Init)}
		for i, current := range c.Current {
			var err error
			if fixed, err = fixed.Update(float64(current), c.N); err != nil || fixed.Coef != float64(c.Fixed[i]) {
				t.Fatalf("fixed %+v after update %d, want %v: %v", fixed, i, c.Fixed[i], err)
			}
			if c.Adaptive[i] <= 0 {
				if kept, err := adaptive.Update(float64(current), c.N); err == nil || kept != adaptive {
					t.Errorf("update %d to %v: %s", i, kept.Coef, deviations["controllers"])
				}
				break
			}
			if adaptive, err = adaptive.Update(float64(current), c.N); err != nil {
				t.Fatal(err)
			}
			if want := float64(c.Adaptive[i]); !(math.Abs(adaptive.Coef-want) <= 1e-12*math.Abs(want)) {
				t.Fatalf("%+v after update %d, want %.17g", adaptive, i, want)
			}
		}
	}
}

func TestAControllerOutOfRangeIsRefused(t *testing.T) {
	good := KLController{Coef: 0.1, Target: 1, Horizon: 10}
	for name, bad := range map[string]func(c *KLController, current *float64, n *int){
		"no number": func(_ *KLController, current *float64, _ *int) { *current = math.NaN() },
		"infinite":  func(_ *KLController, current *float64, _ *int) { *current = math.Inf(1) },
		"coef":      func(c *KLController, _ *float64, _ *int) { c.Coef = -0.1 },
		"no end":    func(c *KLController, _ *float64, _ *int) { c.Coef = math.Inf(1) },
		"no target": func(c *KLController, _ *float64, _ *int) { c.Target = math.Inf(1) },
		"no move":   func(c *KLController, _ *float64, _ *int) { c.Horizon = math.Inf(1) },
		"target":    func(c *KLController, _ *float64, _ *int) { c.Target = -1 },
		"horizon":   func(c *KLController, _ *float64, _ *int) { c.Horizon = 0 },
		"too fast":  func(_ *KLController, _ *float64, n *int) { *n = 50 }, // -20 % · 50 / 10 = -1: nothing would be left
	} {
		c, current, n := good, 0.0, 1
		bad(&c, &current, &n)
		if got, err := c.Update(current, n); err == nil {
			t.Errorf("%s: accepted, %+v", name, got)
		}
	}
	if _, err := good.Update(0, 50); err == nil || !strings.Contains(err.Error(), "horizon must be above 10") {
		t.Errorf("too fast: got error %v", err)
	}
}

func TestMaskedMeansEqualTheReference(t *testing.T) {
	for _, c := range loadKL(t).Masked {
		rows, masks := floats(c.Tensor), bools(floats(c.Mask))
		if c.Mask == nil {
			for _, row := range rows {
				masks = append(masks, slices.Repeat([]bool{true}, len(row)))
			}
		}
		perSample, all := MaskedMean(rows, masks)
		actions := 0
		for _, mask := range masks {
			for _, action := range mask {
				if action {
					actions++
				}
			}
		}
		if sum := all * float64(actions); c.SumAll != nil && !(math.Abs(sum-float64(*c.SumAll)) <= 1e-6+1e-6*math.Abs(sum)) {
			t.Errorf("%s: sum is %.9g, want %.9g", c.Name, sum, *c.SumAll)
		}
		for i, got := range append(perSample, all) {
			if want := float64(append(c.MeanRows, c.MeanAll)[i]); !(math.Abs(got-want) <= 1e-6+1e-6*math.Abs(want)) {
				t.Errorf("%s: mean %d is %.9g, want %.9g", c.Name, i, got, want)
			}
		}
	}
}
