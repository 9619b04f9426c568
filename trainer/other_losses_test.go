package trainer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
)

type otherLosses struct {
	Value struct {
		Values, Returns [][]number
		Old             [][]number `json:"old_values"`
		Mask            [][]number
		Results         []struct {
			lossCounts
			Clip     float64 `json:"value_clip"`
			Agg      string
			Loss     number
			Grad     [][]number
			Reported number
			Outside  *float64 `json:"clip_frac"`
		}
	} `json:"value_loss"`
	SFT struct {
		LogP    [][]number `json:"per_token_logps"`
		Mask    [][]number `json:"loss_mask"`
		Results []struct {
			lossCounts
			TokenLevel bool `json:"token_level_loss"`
			Agg        string
			Loss       number
			Grad       [][]number
		}
	} `json:"sft_loss"`
	Entropy []struct {
		Temperature float32
		Logits      [][][]number
		Labels      [][]int64
		Weights     [][]number
		Entropy     [][]number
		GradEntropy [][][]number `json:"grad_weighted_entropy"`
		LogP        [][]number   `json:"log_probs"`
		GradLogP    [][][]number `json:"grad_weighted_log_probs"`
		LabelsK     [][][]int64  `json:"labels_k"` // instead of the above
		LogPK       [][][]number `json:"log_probs_k"`
	}
	Centering struct {
		LogP       [][]number `json:"log_probs"` // the old ones too
		Rollout    [][]number `json:"rollout_log_probs"`
		Advantages [][]number
		Mask       [][]number   `json:"action_mask"`
		K          int          `json:"top_k"`
		Top        [][][]number `json:"top_log_probs"`
		RolloutTop [][][]number `json:"rollout_top_log_probs"`
		Low        float64      `json:"clip_eps_low"`
		High       float64      `json:"clip_eps_high"`
		Results    []struct {
			IS        string
			Threshold []number
			Loss      number
			Reported  number       `json:"reported_loss"`
			Grad      [][]number   `json:"grad_log_probs"`
			GradTop   [][][]number `json:"grad_top_log_probs"`
		}
		Full struct {
			Policy, Sampler []number
			Correction      [][]number
		} `json:"full_head"`
	} `json:"score_centering"`
	Distill struct {
		Old     [][]number `json:"student_old_log_probs"`
		Teacher [][]number `json:"teacher_log_probs"`
		Mask    [][]number `json:"action_mask"`
		Results []struct {
			Name                      string
			KLCoef                    float64    `json:"kl_coef"`
			LogP                      [][]number `json:"log_probs"`
			Advantages, Returns, Grad [][]number
			Loss                      number
			Reported                  number `json:"reported_loss"`
		}
	} `json:"on_policy_distill"`
}

func loadOthers(t *testing.T) (ref otherLosses) {
	t.Helper()
	readReference(t, "other_losses.json", &ref)
	if len(ref.Value.Results) == 0 || len(ref.SFT.Results) == 0 || len(ref.Entropy) == 0 || len(ref.Centering.Results) == 0 ||
		len(ref.Distill.Results) == 0 {
		t.Fatal("the reference has an empty list of cases")
	}
	return ref
}

// pick is values at the places of m.
func (m *Micro) pick(values [][]number) []float32 {
	var out []float32
	for _, p := range m.Places {
		out = append(out, float32(values[p.Sample][p.Token-1]))
	}
	return out
}

// put is pick's inverse: values at the places of m, 0 elsewhere.
func (m *Micro) put(like [][]number, values []float64) [][]float64 {
	out := floats(like, 0)
	for n, p := range m.Places {
		out[p.Sample][p.Token-1] = values[n]
	}
	return out
}

func TestTheValueLossEqualsTheReference(t *testing.T) {
	ref := loadOthers(t).Value
	samples := masked(ref.Mask)
	for _, r := range ref.Results {
		name := fmt.Sprintf("clip %v, %s, %v ranks", r.Clip, r.Agg, r.DP)
		plan := mustPack(t, samples, noLimit)
		changes(samples, r.lossCounts, 0)(&plan.Step)
		m := &plan.Micros[0]
		do(t, func(s *torch.Scope) {
			values := torch.New(s, m.pick(ref.Values)).RequireGrad(true)
			losses, outside := ValueLoss(s, values, torch.New(s, m.pick(ref.Old)), torch.New(s, m.pick(ref.Returns)), r.Clip)
			in := LossInput{Step: plan.Step, Sample: m.Sample, Samples: m.Samples,
				Config: LossConfig{Aggregation: r.Agg, NormTokens: len(ref.Mask[0])}}
			loss := in.Aggregate(s, losses)
			grad := torch.Values[float64](s.Gradients([]torch.Tensor{loss}, nil, []torch.Tensor{values})[0])
			want := evaluated{loss: float64(r.Loss) / r.DP, grad: floats(r.Grad, 1/r.DP)}
			want.equal(t, name, evaluated{loss: loss.Item(), grad: m.put(ref.Mask, grad)})
			near(t, name+": reported", float64(r.Reported), in.Metric(s, losses).Mean())
			if (r.Outside == nil) != (outside == torch.Tensor{}) {
				t.Errorf("%s: share clipped %v, want %v", name, outside, r.Outside)
			} else if r.Outside != nil {
				near(t, name+": share clipped", *r.Outside, in.Metric(s, outside).Mean())
			}
		})
	}
}

func near(t *testing.T, what string, want, got float64) {
	t.Helper()
	if diff := cmp.Diff(want, got, close64(1e-6, 1e-5)); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

func TestTheSFTLossEqualsTheReference(t *testing.T) {
	ref := loadOthers(t).SFT
	samples := masked(ref.Mask)
	for _, r := range ref.Results {
		change := changes(samples, r.lossCounts, 0)
		if !r.TokenLevel { // the mean of the rows' means, rows without a token included
			r.Agg, change = "seq-mean-token-mean", nil
		}
		c, err := configure(t, map[string]string{"name": "sft", "aggregation": r.Agg, "norm_tokens": fmt.Sprint(len(ref.Mask[0]))})
		if err != nil {
			t.Fatal(err)
		}
		got, err := evaluate(t, samples, ref.LogP, c, noLimit, change)
		if err != nil {
			t.Fatal(err)
		}
		want := evaluated{loss: float64(r.Loss) / r.DP, grad: floats(r.Grad, 1/r.DP)}
		want.equal(t, fmt.Sprintf("%s, token level %v, %v ranks", r.Agg, r.TokenLevel, r.DP), got)
	}
}

// Given logits are hidden states under the identity as head.
func TestEntropyAndLogProbsEqualTheReference(t *testing.T) {
	for _, r := range loadOthers(t).Entropy {
		v := len(r.Logits[0][0])
		do(t, func(s *torch.Scope) {
			for b := range r.Logits {
				var logits, invT []float32
				for _, row := range r.Logits[b] {
					for _, x := range row {
						logits = append(logits, float32(x))
					}
					invT = append(invT, 1/r.Temperature)
				}
				n := len(invT)
				h := torch.New(s, logits, n, v).RequireGrad(true)
				eye := s.Call("aten::eye", v, torch.Float32)[0]
				if r.LabelsK != nil {
					logp, _ := s.LMLogP(h, eye, torch.New(s, slices.Concat(r.LabelsK[b]...), n, len(r.LabelsK[b][0])), torch.New(s, invT), 0, 3)
					want := slices.Concat(floats(r.LogPK[b], 1)...)
					if diff := cmp.Diff(want, torch.Values[float64](logp), close64(1e-6, 1e-5)); diff != "" {
						t.Errorf("temperature %v, several log-probs a row: %s", r.Temperature, diff)
					}
					continue
				}
				for _, c := range []struct {
					what string
					want []number
					grad [][]number
				}{{"entropy", r.Entropy[b], r.GradEntropy[b]}, {"log-probs", r.LogP[b], r.GradLogP[b]}} {
					logp, entropy := s.LMLogP(h, eye, torch.New(s, r.Labels[b], n, 1), torch.New(s, invT), 0, 3)
					got := s.Reshape(logp, n)
					if c.what == "entropy" {
						got = entropy
						exactEntropy(r.Logits[b], float64(r.Temperature), c.want, r.Weights[b], c.grad, t)
					}
					weights := torch.New(s, singles(r.Weights[b]))
					grad := torch.Values[float64](s.Gradients([]torch.Tensor{got}, []torch.Tensor{weights}, []torch.Tensor{h})[0])
					if diff := cmp.Diff(floats([][]number{c.want}, 1)[0], torch.Values[float64](got), close64(1e-6, 1e-5)); diff != "" {
						t.Errorf("temperature %v, %s: %s", r.Temperature, c.what, diff)
					}
					if diff := cmp.Diff(slices.Concat(floats(c.grad, 1)...), grad, close64(1e-6, 1e-5)); diff != "" {
						t.Errorf("temperature %v, gradient of %s: %s", r.Temperature, c.what, diff)
					}
				}
			}
		})
	}
}

// exactEntropy puts the float64 values of entropy and of its weighted gradient in place of the reference's, after checking that these are
// off by no more than its float32 rounds: it takes the difference of two numbers of the size of the largest logit, so that four units in
// that one's last place are lost of an entropy near 0.
func exactEntropy(logits [][]number, temperature float64, entropy, weights []number, grad [][]number, t *testing.T) {
	t.Helper()
	for i, row := range logits {
		most, sum, h := row[0], 0.0, 0.0
		for _, x := range row {
			most = max(most, x)
		}
		for _, x := range row {
			sum += math.Exp(float64(x-most) / temperature)
		}
		logp := make([]float64, len(row))
		for v, x := range row {
			logp[v] = float64(x-most)/temperature - math.Log(sum)
			h -= math.Exp(logp[v]) * logp[v]
		}
		largest := float32(math.Abs(float64(most)) / temperature)
		off := 4 * (math.Nextafter32(largest, math.MaxFloat32) - largest)
		for v, l := range logp {
			exact := -math.Exp(l) * (l + h) / temperature * float64(weights[i])
			if !(math.Abs(exact-float64(grad[i][v])) <= float64(off)+1e-6) {
				t.Errorf("gradient of entropy: reference %v, float64 %v", grad[i][v], exact)
			}
			grad[i][v] = number(exact)
		}
		if !(math.Abs(h-float64(entropy[i])) <= float64(off)+1e-6) {
			t.Errorf("entropy: reference %v, float64 %v", entropy[i], h)
		}
		entropy[i] = number(h)
	}
}

func singles(x []number) []float32 {
	var out []float32
	for _, v := range x {
		out = append(out, float32(v))
	}
	return out
}

func TestScoreCenteringEqualsTheReference(t *testing.T) {
	ref := loadOthers(t).Centering
	samples := lossInputs{LogP: ref.LogP, Old: ref.LogP, Rollout: ref.Rollout, Advantages: ref.Advantages, Mask: ref.Mask}.samples()
	for b := range samples {
		x := &samples[b].Tokens
		x.Top = make([][]rollout.TopLogP, len(x.IDs))
		for slot, row := range ref.RolloutTop[b] {
			for i, l := range row {
				x.Top[slot+1] = append(x.Top[slot+1], rollout.TopLogP{ID: int32(i), LogP: float32(l)})
			}
		}
	}
	for _, r := range ref.Results {
		settings := map[string]string{"old": "policy", "score_centering": fmt.Sprint(ref.K), "clip_low": fmt.Sprint(ref.Low),
			"clip_high": fmt.Sprint(ref.High)}
		if r.IS != "off" {
			settings["is_level"], settings["is_mode"], _ = strings.Cut(r.IS, "_")
			settings["is_band"] = fmt.Sprintf("[%v, %v]", float64(r.Threshold[0]), float64(r.Threshold[1]))
		}
		c, err := configure(t, settings)
		if err != nil {
			t.Fatal(r.IS, err)
		}
		plan := mustPack(t, samples, noLimit)
		if err := plan.addTop(samples, ref.K); err != nil {
			t.Fatal(err)
		}
		m := &plan.Micros[0]
		do(t, func(s *torch.Scope) {
			var scores []float32
			for _, p := range m.Places {
				scores = append(append(scores, float32(ref.LogP[p.Sample][p.Token-1])), singles(ref.Top[p.Sample][p.Token-1])...)
			}
			n := len(m.Places)
			loss, metrics, grads, err := m.leaves(s, torch.New(s, scores, n, 1+ref.K), s.Zeros(torch.Float32, n), plan.Step, c)
			if err != nil {
				t.Fatal(err)
			}
			near(t, r.IS+": loss", float64(r.Loss), loss)
			near(t, r.IS+": reported", float64(r.Reported), metrics["policy_loss"].Mean())
			got := torch.Values[float64](grads[0])
			for i, p := range m.Places {
				want := append([]number{r.Grad[p.Sample][p.Token-1]}, r.GradTop[p.Sample][p.Token-1]...)
				row := got[i*(1+ref.K) : (i+1)*(1+ref.K)]
				if diff := cmp.Diff(floats([][]number{want}, 1)[0], row, close64(1e-6, 1e-5)); diff != "" {
					t.Errorf("%s: gradient of sample %d, slot %d: %s", r.IS, p.Sample, p.Token-1, diff)
				}
			}
		})
	}
	full, is := ref.Full, estimators.DefaultCorrection()
	is, err := is.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for i, w := range is.Center(singles(full.Policy), singles(full.Sampler), len(full.Policy)) {
		sum += float64(w) * float64(full.Policy[i])
	}
	near(t, "the whole vocabulary", float64(full.Correction[0][0]), sum)
}

func TestOnPolicyDistillationEqualsTheReference(t *testing.T) {
	ref := loadOthers(t).Distill
	for _, r := range ref.Results {
		in := lossInputs{LogP: r.LogP, Old: ref.Old, Rollout: ref.Old, Advantages: r.Advantages, Mask: ref.Mask}
		samples := in.samples()
		input := estimators.Input{Rewards: make([]float32, len(samples)), Options: estimators.DefaultOptions()}
		input.Options.KLCoef = r.KLCoef
		var logp, teacher [][]float32
		for b, x := range samples {
			input.Masks = append(input.Masks, x.Tokens.Mask[1:])
			logp, teacher = append(logp, singles(ref.Old[b])), append(teacher, singles(ref.Teacher[b]))
		}
		kl, err := estimators.KL("k1", logp, teacher, input.Masks)
		if err != nil {
			t.Fatal(err)
		}
		input.KLs = kl
		out, err := estimators.Estimate("on_policy_distill", input)
		if err != nil {
			t.Fatal(err)
		}
		for b := range samples {
			for slot, on := range input.Masks[b] {
				if on {
					near(t, r.Name+": advantage", float64(r.Advantages[b][slot]), float64(out.Advantages[b][slot]))
					near(t, r.Name+": return", float64(r.Returns[b][slot]), float64(out.Returns[b][slot]))
				}
			}
			samples[b].Advantages = append([]float32{0}, out.Advantages[b]...)
		}
		c := DefaultConfig().Loss
		got, err := evaluate(t, samples, r.LogP, c, noLimit, nil)
		if err != nil {
			t.Fatal(err)
		}
		evaluated{loss: float64(r.Loss), grad: floats(r.Grad, 1)}.equal(t, r.Name, got)
		near(t, r.Name+": reported", float64(r.Reported), got.metrics["policy_loss"].Mean())
	}
}

func TestTheHeadOfTheSamplerMustBeComplete(t *testing.T) {
	x, _ := trained(0, []float32{0}, []float32{1})
	plan := mustPack(t, []Sample{x}, noLimit)
	want := "sample 0, token 1: the sampler reported 0 most likely tokens, loss.score_centering needs 2"
	if err := plan.addTop([]Sample{x}, 2); err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
	x.Tokens.Top = [][]rollout.TopLogP{nil, {{ID: 1, LogP: -1}, {ID: 2, LogP: float32(math.Inf(-1))}}}
	want = "sample 0, token 1: the sampler's log-prob of token 2 is -Inf"
	if err := plan.addTop([]Sample{x}, 2); err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}
