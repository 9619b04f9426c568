package estimators

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
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
		Outputs map[string]struct{ KL [][]number }
	} `json:"approx_kl"`
	Controllers []struct {
		Init, Target, Horizon number
		N                     int      `json:"n_steps"`
		Current               []number `json:"current"`
		Adaptive              []number `json:"adaptive_value_after_update"`
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
	if len(ref.ApproxKL) == 0 || len(ref.Controllers) == 0 {
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
		for i := range logp { // every finite pair; the others are errors here, see the next test
			for k := range logp[i] {
				masks[i] = append(masks[i], finite(float64(logp[i][k])) && finite(float64(base[i][k])))
			}
		}
		for name, want := range c.Outputs {
			got, err := KL(names[name], logp, base, masks)
			if err != nil {
				t.Fatal(c.Name, name, err)
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

func TestTheAdaptiveControllerEqualsTheReference(t *testing.T) {
	for _, c := range loadKL(t).Controllers {
		controller := AdaptiveKL{Coef: float64(c.Init), Target: float64(c.Target), Horizon: float64(c.Horizon)}
		for i, current := range c.Current {
			var err error
			if controller, err = controller.Update(float64(current), c.N); err != nil {
				t.Fatal(err)
			}
			if want := float64(c.Adaptive[i]); !(math.Abs(controller.Coef-want) <= 1e-12*math.Abs(want)) {
				t.Fatalf("%+v after update %d, want %.17g", controller, i, want)
			}
		}
		if _, err := controller.Update(math.NaN(), c.N); err == nil {
			t.Error("a NaN divergence was accepted")
		}
	}
}
