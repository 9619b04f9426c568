package trainer

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
)

// versionHas says which settings of the reference this version has. All others must be refused by name.
var versionHas = map[string][]string{
	"name":                {"ppo"},
	"is_correction_level": {"off"},
	"aggregation":         {"token-mean"},
}

func readReference(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "testdata", "reference", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

// configure reads settings as a config would, and reports what refuses them.
func configure(t *testing.T, settings map[string]string) (LossConfig, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run.toml")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c := DefaultConfig()
	var sets []string
	for key, value := range settings {
		sets = append(sets, "loss."+key+"="+value)
	}
	if err := DecodeTOML(path, sets, &c); err != nil {
		return LossConfig{}, err
	}
	if err := c.Validate(); err != nil {
		return LossConfig{}, err
	}
	return c.Loss, FindLoss(c.Loss.Name)
}

// refused tells whether this version lacks a setting, and if so that the error names one that it lacks.
func refused(t *testing.T, settings map[string]string) bool {
	t.Helper()
	var lacks []string
	for key, known := range versionHas {
		if v, ok := settings[key]; ok && !slices.Contains(known, v) {
			lacks = append(lacks, "loss."+strings.TrimSuffix(key, "_level")) // or another key of the same correction
		}
	}
	if lacks == nil {
		return false
	}
	_, err := configure(t, settings)
	named := func(key string) bool { return err != nil && strings.Contains(err.Error(), key) }
	if !slices.ContainsFunc(lacks, named) {
		t.Errorf("%v: error %v, want one that names one of %v", settings, err, lacks)
	}
	return true
}

// translate gives settings of the reference the names that they have here.
func translate(ref map[string]any) map[string]string {
	names := map[string]string{"loss_mode": "name", "clip_eps_low": "clip_low", "clip_eps_high": "clip_high"}
	out := map[string]string{}
	for key, v := range ref {
		if name, ok := names[key]; ok {
			key = name
		}
		if text := fmt.Sprint(v); v != nil && !(key == "is_correction_level" && text == "off") {
			out[key] = text
		}
	}
	return out
}

type lossInputs struct {
	LogP       [][]number `json:"log_probs"`
	Old        [][]number `json:"old_log_probs"`
	Rollout    [][]number `json:"rollout_log_probs"`
	Advantages [][]number
	Mask       [][]number `json:"action_mask"`
	Local      lossCounts
	Global     lossCounts
}

type lossCounts struct {
	DP     float64 `json:"dp_size"`
	Tokens number  `json:"batch_num_tokens"`
}

// samples puts slot t at token t+1, as the trainer has it.
func (in lossInputs) samples() []Sample {
	var out []Sample
	for b, mask := range in.Mask {
		n := len(mask) + 1
		x := Sample{Tokens: blank(n), Advantages: make([]float32, n), Old: make([]float32, n), Group: int64(b / 2)}
		for t, m := range mask {
			x.Tokens.Mask[t+1], x.Tokens.IDs[t] = m != 0, int32(b)
			x.Tokens.LogP[t+1], x.Old[t+1] = float32(in.Rollout[b][t]), float32(in.Old[b][t])
			x.Advantages[t+1] = float32(in.Advantages[b][t])
		}
		out = append(out, x)
	}
	return out
}

func floats(rows [][]number, scale float64) [][]float64 {
	var out [][]float64
	for _, row := range rows {
		var r []float64
		for _, x := range row {
			r = append(r, float64(x)*scale)
		}
		out = append(out, r)
	}
	return out
}

func TestPolicyLossesEqualTheReference(t *testing.T) {
	var ref struct {
		Surrogates map[string]map[string]any
		IS         map[string]map[string]any `json:"is_correction"`
		Inputs     map[string]lossInputs
		Results    []struct {
			Inputs, Surrogate, IS, Agg, Dist string
			Out                              struct {
				Loss     number
				Grad     [][]number
				Reported number `json:"reported_loss"`
				Clip     number `json:"clip_ratio"`
				KL       number `json:"policy_kl"`
			}
		}
		Direct []struct {
			Inputs, Matrix, Agg string
			Loss                number
			Grad                [][]number
		} `json:"agg_loss_direct"`
		Empty  map[string]float64 `json:"agg_loss_empty_mask"`
		Checks []struct {
			Args     map[string]any
			Accepted bool
		} `json:"constructor_checks"`
	}
	readReference(t, "policy_loss.json", &ref)
	if len(ref.Results) == 0 || len(ref.Direct) == 0 || len(ref.Empty) == 0 || len(ref.Checks) == 0 {
		t.Fatal("the reference has an empty list of cases")
	}
	ran := 0
	for _, r := range ref.Results {
		settings := map[string]string{"aggregation": r.Agg}
		for _, part := range []map[string]any{ref.Surrogates[r.Surrogate], ref.IS[r.IS]} {
			for key, v := range translate(part) {
				settings[key] = v
			}
		}
		name := strings.Join([]string{r.Inputs, r.Surrogate, r.IS, r.Agg, r.Dist}, "/")
		if refused(t, settings) {
			continue
		}
		ran++
		c, err := configure(t, settings)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		in := ref.Inputs[r.Inputs]
		counts := map[string]lossCounts{"local": in.Local, "global": in.Global}[r.Dist]
		if r.Inputs == "special" {
			checkSpecial(t, name, in, c, int(counts.Tokens))
			continue
		}
		got, err := evaluate(t, in.samples(), in.LogP, c, noLimit, int(counts.Tokens))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		// The reference averages over ranks and so multiplies by their number; here ranks add up.
		want := evaluated{loss: float64(r.Out.Loss) / counts.DP, grad: floats(r.Out.Grad, 1/counts.DP)}
		want.equal(t, name, got)
		for metric, v := range map[string]number{"policy_loss": r.Out.Reported, "clip_ratio": r.Out.Clip, "policy_kl": r.Out.KL} {
			if diff := cmp.Diff(float64(v), got.metrics[metric].Mean(), close64(1e-6, 1e-5)); diff != "" {
				t.Errorf("%s: %s: %s", name, metric, diff)
			}
		}
	}
	if ran == 0 {
		t.Error("this version has none of the cases")
	}
	for _, r := range ref.Direct {
		if refused(t, map[string]string{"aggregation": r.Agg}) {
			continue
		}
		in := ref.Inputs[r.Inputs]
		values := map[string][][]number{"log_probs": in.LogP, "old_log_probs": in.Old, "advantages": in.Advantages}[r.Matrix]
		got := aggregated(t, in.Mask, values)
		evaluated{loss: float64(r.Loss), grad: floats(r.Grad, 1)}.equal(t, "aggregate "+r.Inputs, got)
	}
	for agg, want := range ref.Empty {
		if !refused(t, map[string]string{"aggregation": agg}) {
			got, err := evaluate(t, []Sample{{Tokens: blank(9), Advantages: make([]float32, 9)}}, nil, DefaultConfig().Loss, noLimit, 0)
			if err != nil || got.loss != want {
				t.Errorf("%s without a token: %v, want %v (%v)", agg, got.loss, want, err)
			}
		}
	}
	for _, r := range ref.Checks {
		if _, err := configure(t, translate(r.Args)); (err == nil) != r.Accepted {
			t.Errorf("%v: accepted %v, want %v (%v)", r.Args, err == nil, r.Accepted, err)
		}
	}
}

func (want evaluated) equal(t *testing.T, name string, got evaluated) {
	t.Helper()
	if diff := cmp.Diff(want.loss, got.loss, close64(1e-7, 1e-5)); diff != "" {
		t.Errorf("%s: loss: %s", name, diff)
	}
	if diff := cmp.Diff(want.grad, got.grad, close64(1e-6, 1e-5)); diff != "" {
		t.Errorf("%s: gradient: %s", name, diff)
	}
}

// aggregated is Aggregate of given token losses.
func aggregated(t *testing.T, mask, values [][]number) (out evaluated) {
	t.Helper()
	var flat []float32
	var at [][2]int
	for b, row := range mask {
		out.grad = append(out.grad, make([]float64, len(row)))
		for slot, m := range row {
			if m != 0 {
				flat, at = append(flat, float32(values[b][slot])), append(at, [2]int{b, slot})
			}
		}
	}
	do(t, func(s *torch.Scope) {
		x := torch.New(s, flat).RequireGrad(true)
		loss := LossInput{Step: StepCounts{Tokens: len(flat)}, Config: LossConfig{Aggregation: "token-mean"}}.Aggregate(s, x)
		out.loss = loss.Item()
		for n, g := range torch.Values[float64](s.Gradients([]torch.Tensor{loss}, nil, []torch.Tensor{x})[0]) {
			out.grad[at[n][0]][at[n][1]] = g
		}
	})
	return out
}

// checkSpecial wants every NaN and infinity under the mask to be an error that names its place, and then, with those places masked,
// the values of the formula worked out here.
func checkSpecial(t *testing.T, name string, in lossInputs, c LossConfig, tokens int) {
	t.Helper()
	samples, bad := in.samples(), 0
	for b := range samples {
		for slot := range in.Mask[b] {
			zero := 0 * (in.LogP[b][slot] + in.Old[b][slot] + in.Rollout[b][slot] + in.Advantages[b][slot])
			if !math.IsNaN(float64(zero)) || !samples[b].Tokens.Mask[slot+1] {
				continue
			}
			bad++
			_, err := evaluate(t, samples, in.LogP, c, noLimit, tokens)
			place := regexp.MustCompile(fmt.Sprintf(`^sample %d .*token %d:`, b, slot+1))
			if err == nil || !place.MatchString(err.Error()) {
				t.Errorf("%s: error %v, want one that names sample %d, token %d", name, err, b, slot+1)
			}
			samples[b].Tokens.Mask[slot+1] = false
		}
	}
	if bad == 0 {
		t.Errorf("%s: the special inputs hold nothing special", name)
	}
	got, err := evaluate(t, samples, in.LogP, c, noLimit, tokens)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	ppoByHand(samples, in.LogP, c, tokens).equal(t, name+", masked", got)
}

// ppoByHand is the clipped surrogate and its gradient, token by token.
func ppoByHand(samples []Sample, logp [][]number, c LossConfig, tokens int) (out evaluated) {
	num := 0
	for b, x := range samples {
		out.grad = append(out.grad, make([]float64, len(logp[b])))
		for slot := range logp[b] {
			if !x.Tokens.Mask[slot+1] {
				continue
			}
			num++
			a := float64(x.Advantages[slot+1])
			r := math.Exp(float64(logp[b][slot]) - float64(x.Old[slot+1]))
			gain, slope := r*a, r*a
			if clipped := min(max(r, 1-c.ClipLow), 1+c.ClipHigh) * a; clipped < gain {
				gain, slope = clipped, 0
			}
			if c.DualClip > 0 && a < 0 && c.DualClip*a > gain {
				gain, slope = c.DualClip*a, 0
			}
			out.loss -= gain
			out.grad[b][slot] = -slope
		}
	}
	if tokens == 0 {
		tokens = num
	}
	out.loss /= float64(tokens)
	for _, row := range out.grad {
		for slot := range row {
			row[slot] /= float64(tokens)
		}
	}
	return out
}
