package trainer

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
)

// deviations is every difference to the references of losses that these tests allow.
var deviations = map[string]string{
	"not finite": "the reference takes a NaN log-prob as ratio 1, an infinite one as e^±30 and a NaN advantage as 0; here they are errors, and " +
		"with their places masked the values are those worked out by hand",
	"clamp":        "the reference's GSPO averages log-ratios before they are clamped to ±30; here the clamped ones, as everywhere",
	"empty rows":   "the reference reports rows without a token as units of the correction; here nothing is counted for them",
	"equal groups": "the reference divides a float32 rounding by 1e-9 and gets advantages near 0.8; here they are 0",
	"ranks":        "the reference averages over ranks and so multiplies by their number; here ranks add up",
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

// translate gives settings of the reference the names that they have here.
func translate(ref map[string]any, width int) map[string]string {
	names := map[string]string{"loss_mode": "name", "clip_eps_low": "clip_low", "clip_eps_high": "clip_high", "is_correction_level": "is_level",
		"is_correction_mode": "is_mode", "is_correction_gating": "is_gate", "is_correction_threshold": "is_band"}
	out := map[string]string{"old": "policy", "norm_tokens": fmt.Sprint(width)}
	for key, v := range ref {
		switch text := fmt.Sprint(v); {
		case key == "score_centering":
			out[key] = "5"
		case key == "is_correction_threshold":
			text = strings.ReplaceAll(strings.ReplaceAll(text, "Infinity", "inf"), " ", ", ")
			out["is_band"] = text
		case v != nil:
			if name, ok := names[key]; ok {
				key = name
			}
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
	Prompt     []number   `json:"prompt_token_counts"` // tokens of the row's prompt, whose rows stand together
	Local      lossCounts
	Global     lossCounts
}

type lossCounts struct {
	DP        float64 `json:"dp_size"`
	Tokens    number  `json:"batch_num_tokens"`
	Sequences number  `json:"global_batch_size"`
}

// samples puts slot t at token t+1, as the trainer has it. A prompt is done when all its tokens are.
func (in lossInputs) samples() []Sample {
	var out []Sample
	group, left := 0, number(0)
	for b, mask := range in.Mask {
		if left <= 0 {
			if group = b; in.Prompt != nil {
				left = in.Prompt[b]
			}
		}
		n := len(mask) + 1
		x := Sample{Tokens: blank(n), Advantages: make([]float32, n), Old: make([]float32, n), Group: int64(group)}
		for t, m := range mask {
			left -= m
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

type lossReference struct {
	Surrogates map[string]map[string]any
	IS         map[string]map[string]any `json:"is_correction"`
	Inputs     map[string]lossInputs
	Results    []struct {
		Inputs, Surrogate, IS, Agg, Dist string
		Sequences                        number `json:"global_batch_size"`
		Out                              lossResult
	}
	NotTokenLevel lossResult `json:"token_level_loss_false_ppo_0.2_0.2_near"`
	Direct        []struct {
		Inputs, Matrix, Agg string
		Scale               *int `json:"loss_scale_factor"`
		Loss                number
		Grad                [][]number
	} `json:"agg_loss_direct"`
	Empty  map[string]float64 `json:"agg_loss_empty_mask"`
	Checks []struct {
		Args     map[string]any
		Accepted bool
	} `json:"constructor_checks"`
}

type lossResult struct {
	Loss      number
	Grad      [][]number
	Reported  number  `json:"reported_loss"`
	Clip      number  `json:"clip_ratio"`
	KL        number  `json:"policy_kl"`
	Behaviour *number `json:"vllm_kl"`
	Outside   any     `json:"is_filter_ratio"` // a number, or a flag for each row
}

func loadLosses(t *testing.T) (ref lossReference) {
	t.Helper()
	readReference(t, "policy_loss.json", &ref)
	if len(ref.Results) == 0 || len(ref.Direct) == 0 || len(ref.Empty) == 0 || len(ref.Checks) == 0 {
		t.Fatal("the reference has an empty list of cases")
	}
	return ref
}

// changes has the counts of the reference where it gives them; else those of the batch hold, of which it leaves out rows without a token.
func changes(samples []Sample, counts lossCounts, groups number) func(*Step) {
	return func(step *Step) {
		step.Sequences = 0
		for _, x := range samples {
			if slices.Contains(x.Tokens.Mask, true) {
				step.Sequences++
			}
		}
		if counts.Tokens > 0 {
			step.Tokens = int(counts.Tokens)
		}
		if counts.Sequences > 0 {
			step.Sequences = int(counts.Sequences)
		}
		if groups > 0 {
			step.Prompts = int(groups)
		}
	}
}

func TestPolicyLossesEqualTheReference(t *testing.T) {
	ref := loadLosses(t)
	for _, r := range ref.Results {
		in := ref.Inputs[r.Inputs]
		settings := map[string]any{"aggregation": r.Agg}
		maps.Copy(settings, ref.Surrogates[r.Surrogate])
		maps.Copy(settings, ref.IS[r.IS])
		name := strings.Join([]string{r.Inputs, r.Surrogate, r.IS, r.Agg, r.Dist}, "/")
		c, err := configure(t, translate(settings, len(in.Mask[0])))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		counts := map[string]lossCounts{"local": in.Local, "global": in.Global}[r.Dist]
		groups := r.Sequences
		if r.Agg != "prompt-mean-token-mean" {
			groups = 0
		}
		samples := in.samples()
		if r.Inputs == "special" {
			checkSpecial(t, name, in, c, counts, groups)
			continue
		}
		got, err := evaluate(t, samples, in.LogP, c, noLimit, changes(samples, counts, groups))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := evaluated{loss: float64(r.Out.Loss) / counts.DP, grad: floats(r.Out.Grad, 1/counts.DP)}
		want.equal(t, name, got)
		r.Out.metricsEqual(t, name, in, got.metrics)
	}
	in := ref.Inputs["near"]
	c, err := configure(t, map[string]string{"aggregation": "seq-mean-token-mean"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := evaluate(t, in.samples(), in.LogP, c, noLimit, changes(in.samples(), in.Local, 0))
	if err != nil {
		t.Fatal(err)
	}
	evaluated{loss: float64(ref.NotTokenLevel.Loss), grad: floats(ref.NotTokenLevel.Grad, 1)}.equal(t, "token_level_loss false", got)
}

// metricsEqual compares what is reported.
func (want lossResult) metricsEqual(t *testing.T, name string, in lossInputs, got map[string]Metric) {
	t.Helper()
	all := map[string]float64{"policy_loss": float64(want.Reported), "clip_ratio": float64(want.Clip), "policy_kl": float64(want.KL)}
	if want.Behaviour != nil {
		all["behaviour_kl"] = float64(*want.Behaviour)
	}
	switch v := want.Outside.(type) {
	case float64:
		all["is_outside"] = v
	case []any:
		all["is_outside"] = share(v, in.Mask)
	}
	for metric, v := range all {
		if diff := cmp.Diff(v, got[metric].Mean(), close64(1e-6, 1e-5)); diff != "" {
			t.Errorf("%s: %s: %s", name, metric, diff)
		}
	}
}

// share is the mean of the flags of rows with a token; see deviations, empty rows.
func share(flags []any, mask [][]number) float64 {
	units := Metric{}
	for b, flag := range flags {
		if slices.Contains(mask[b], 1) {
			units = units.Add(Metric{flag.(float64), 1})
		}
	}
	return units.Mean()
}

func TestAggregationsEqualTheReference(t *testing.T) {
	ref := loadLosses(t)
	for _, r := range ref.Direct {
		in := ref.Inputs[r.Inputs]
		values := map[string][][]number{"log_probs": in.LogP, "old_log_probs": in.Old, "advantages": in.Advantages}[r.Matrix]
		length := len(in.Mask[0])
		if r.Scale != nil {
			length = *r.Scale
		}
		got := aggregated(t, in.Mask, values, LossConfig{Aggregation: r.Agg, NormTokens: length})
		evaluated{loss: float64(r.Loss), grad: floats(r.Grad, 1)}.equal(t, "aggregate "+r.Inputs+" "+r.Agg, got)
	}
	for agg, want := range ref.Empty {
		c := DefaultConfig().Loss
		c.Aggregation = agg
		got, err := evaluate(t, []Sample{{Tokens: blank(9), Advantages: make([]float32, 9)}}, nil, c, noLimit, nil)
		if err != nil || got.loss != want {
			t.Errorf("%s without a token: %v, want %v (%v)", agg, got.loss, want, err)
		}
	}
}

func TestSettingsAreAcceptedAsByTheReference(t *testing.T) {
	for _, r := range loadLosses(t).Checks {
		if _, err := configure(t, translate(r.Args, 9)); (err == nil) != r.Accepted {
			t.Errorf("%v: accepted %v, want %v (%v)", r.Args, err == nil, r.Accepted, err)
		}
	}
}

func (want evaluated) equal(t *testing.T, name string, got evaluated) {
	t.Helper()
	if diff := cmp.Diff(want.loss, got.loss, close64(rounding(want.grad), 1e-5)); diff != "" {
		t.Errorf("%s: loss: %s", name, diff)
	}
	if diff := cmp.Diff(want.grad, got.grad, close64(1e-6, 1e-5)); diff != "" {
		t.Errorf("%s: gradient: %s", name, diff)
	}
}

// rounding is what a float32 sum may be off by when its terms cancel: two units in the last place of the sum of their sizes, which for
// those with a gradient are about the gradient's. The reference was off by one.
func rounding(grad [][]float64) float64 {
	sum := 0.0
	for _, g := range slices.Concat(grad...) {
		sum += math.Abs(g)
	}
	return 1e-7 + 0x1p-22*sum
}

// masked is a sample for each row of a reference's mask, each a group of its own, with nothing but the mask.
func masked(mask [][]number) []Sample {
	return lossInputs{LogP: mask, Old: mask, Rollout: mask, Advantages: mask, Mask: mask}.samples()
}

// aggregated is Aggregate of given token losses.
func aggregated(t *testing.T, mask, values [][]number, c LossConfig) (out evaluated) {
	t.Helper()
	samples := masked(mask)
	plan := mustPack(t, samples, noLimit)
	changes(samples, lossCounts{}, 0)(&plan.Step)
	for _, row := range mask {
		out.grad = append(out.grad, make([]float64, len(row)))
	}
	do(t, func(s *torch.Scope) {
		for _, m := range plan.Micros {
			var flat []float32
			for _, p := range m.Places {
				flat = append(flat, float32(values[p.Sample][p.Token-1]))
			}
			x := torch.New(s, flat).RequireGrad(true)
			loss := LossInput{Step: plan.Step, Sample: m.Sample, Samples: m.Samples, Config: c}.Aggregate(s, x)
			out.loss += loss.Item()
			for n, g := range torch.Values[float64](s.Gradients([]torch.Tensor{loss}, nil, []torch.Tensor{x})[0]) {
				out.grad[m.Places[n].Sample][m.Places[n].Token-1] = g
			}
		}
	})
	return out
}
