package trainer

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/torch"
)

type trlSettings struct {
	Agg      string
	Loss     string   `json:"loss_mode"`
	Scale    *int     // length to divide by
	NumItems number   `json:"num_items"` // tokens of the step
	Eps      []number // clip bounds
	Dual     number
	Beta     number // coefficient of k3
	Accum    int
}

// TRL's GRPO losses under the names that they have here.
func TestLossesEqualThoseOfTRL(t *testing.T) {
	var ref struct {
		Inputs struct {
			LogP       [][]number `json:"log_probs"`
			Old        [][]number `json:"old_log_probs"`
			Ref        [][]number `json:"ref_log_probs"`
			Mask       [][]number
			Advantages []number
		}
		Results []struct {
			Name      string
			TRL       trlSettings
			Molt      *trlSettings
			TRLLoss   number     `json:"trl_loss"`
			TRLGrad   [][]number `json:"trl_grad"`
			MoltLoss  number     `json:"molt_loss"`
			MoltGrad  [][]number `json:"molt_grad"`
			TRLMetric struct {
				KL *number `json:"kl"`
			} `json:"trl_metrics"`
		}
		Groups []struct {
			Rewards []float32
			GRPO    []number `json:"molt_grpo_eps_1e-9"`
			TRL     []number `json:"trl_group_eps_1e-4"`
			DrGRPO  []number `json:"molt_dr_grpo"`
		} `json:"group_advantages"`
	}
	readReference(t, "trl_crosscheck.json", &ref)
	if len(ref.Results) == 0 || len(ref.Groups) == 0 {
		t.Fatal("the reference has an empty list of cases")
	}
	x := ref.Inputs
	in := lossInputs{LogP: x.LogP, Old: x.Old, Rollout: x.Old, Mask: x.Mask}
	for b, a := range x.Advantages {
		row := make([]number, len(x.Mask[b]))
		for slot := range row {
			row[slot] = a
		}
		in.Advantages = append(in.Advantages, row)
	}
	samples := in.samples()
	for b := range samples {
		samples[b].Reference = append([]float32{0}, singles(x.Ref[b])...)
	}
	for _, r := range ref.Results {
		c := trlSettings{Agg: "seq-mean-token-mean"} // of the one case that the reference has no settings for
		if r.Molt != nil {
			c = *r.Molt
		}
		settings := map[string]string{"aggregation": c.Agg, "norm_tokens": fmt.Sprint(len(x.Mask[0])), "dual_clip": fmt.Sprint(c.Dual),
			"kl_coef": fmt.Sprint(c.Beta), "kl": "k3", "clip_low": "0.2", "clip_high": "0.28"}
		if c.Scale != nil {
			settings["norm_tokens"] = fmt.Sprint(*c.Scale)
		}
		if c.Loss != "" {
			settings["name"] = c.Loss
		}
		if c.Eps != nil {
			settings["clip_low"], settings["clip_high"] = fmt.Sprint(c.Eps[0]), fmt.Sprint(c.Eps[1])
		}
		config, err := configure(t, settings)
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		got, err := evaluate(t, samples, x.LogP, config, noLimit, func(step *Step) {
			if c.NumItems > 0 {
				step.Tokens = int(c.NumItems)
			}
			step.Sequences *= max(1, r.TRL.Accum) // TRL divides by the micro-batches of a step, here the step's samples count
		})
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		if r.Molt != nil {
			evaluated{loss: float64(r.MoltLoss), grad: floats(r.MoltGrad, 1)}.equal(t, r.Name+" (Molt)", got)
		}
		if c.Beta > 0 && c.Agg != "token-mean" { // TRL aggregates the KL as the loss; here it is always the mean over tokens
			if math.Abs(got.loss-float64(r.TRLLoss)) < 1e-6 {
				t.Errorf("%s: equal to TRL's, which aggregates otherwise", r.Name)
			}
			continue
		}
		evaluated{loss: float64(r.TRLLoss), grad: floats(r.TRLGrad, 1)}.equal(t, r.Name+" (TRL)", got)
		if r.TRLMetric.KL != nil {
			near(t, r.Name+": kl", float64(*r.TRLMetric.KL), got.metrics["kl"].Mean())
		}
	}
	for _, r := range ref.Groups {
		input := estimators.Input{Rewards: r.Rewards, Groups: make([]int64, len(r.Rewards)), Options: estimators.DefaultOptions()}
		for range r.Rewards {
			input.Masks = append(input.Masks, []bool{true})
		}
		equal := !slices.ContainsFunc(r.Rewards, func(x float32) bool { return x != r.Rewards[0] })
		for name, want := range map[string][]number{"grpo": r.GRPO, "dr_grpo": r.DrGRPO} {
			out, err := estimators.Estimate(name, input)
			if err != nil {
				t.Fatal(err)
			}
			for i, std := range out.GroupStd {
				got := float64(out.Advantages[i][0])
				if equal && got != 0 {
					t.Errorf("%s of equal rewards: %v: %s", name, got, deviations["equal groups"])
				}
				if equal {
					continue
				}
				near(t, name, float64(want[i]), got)
				if name == "grpo" { // TRL's epsilon is larger
					near(t, "TRL's grpo", float64(r.TRL[i]), got*(std+1e-9)/(std+1e-4))
				}
			}
		}
	}
}

// Values, and gradients of their sum, of pairs of which neither is NaN or infinite.
func TestKLGradientsEqualTheReference(t *testing.T) {
	var ref struct {
		ApproxKL []struct {
			Name    string
			LogP    [][]number `json:"log_probs"`
			Base    [][]number `json:"log_probs_base"`
			Outputs map[string]struct {
				KL   [][]number
				Grad [][]number `json:"grad_sum"`
			}
		} `json:"approx_kl"`
	}
	readReference(t, "kl.json", &ref)
	kinds := map[string]string{"k1/model": "k1", "k1/rollout": "k1", "k2/model": "k2", "k2/rollout": "k2", "k3/model": "k3",
		"k3/rollout": "k3_base"}
	checked := map[string]bool{}
	for _, r := range ref.ApproxKL {
		for name, want := range r.Outputs {
			checked[kinds[name]] = true
			var logp, base []float32
			var values, grads []float64
			for b, row := range r.LogP {
				for slot, l := range row {
					if finite(float64(l)) && finite(float64(r.Base[b][slot])) {
						logp, base = append(logp, float32(l)), append(base, float32(r.Base[b][slot]))
						values, grads = append(values, float64(want.KL[b][slot])), append(grads, float64(want.Grad[b][slot]))
					}
				}
			}
			do(t, func(s *torch.Scope) {
				x := torch.New(s, logp).RequireGrad(true)
				kl := klLosses[kinds[name]](s, s.Sub(x, torch.New(s, base)))
				got := torch.Values[float64](s.Gradients([]torch.Tensor{s.Sum(kl)}, nil, []torch.Tensor{x})[0])
				// 3e-7: the float32 reference loses that much of exp(-d) - 1 when d is small
				if diff := cmp.Diff(values, torch.Values[float64](kl), close64(3e-7, 1e-6)); diff != "" {
					t.Errorf("%s, %s: %s", r.Name, name, diff)
				}
				if diff := cmp.Diff(grads, got, close64(3e-7, 1e-6)); diff != "" {
					t.Errorf("%s, gradient of %s: %s", r.Name, name, diff)
				}
			})
		}
	}
	if len(checked) != len(klLosses) {
		t.Errorf("the reference has only %v", checked)
	}
}

func TestAWideMismatchIsReportedWhole(t *testing.T) {
	x, logp := trained(0, []float32{4, 0}, []float32{1, 1})
	got := mustEvaluate(t, []Sample{x}, [][]number{logp}, DefaultConfig().Loss, noLimit).metrics
	near(t, "half of e^4 - 1 - 4", 24.799075, got["mismatch_k3"].Mean())
}

// Train and rollout log-probs of one step: the share that differs, the mean distance and k3.
func TestMismatchMetricsEqualTheReference(t *testing.T) {
	var ref struct {
		Mismatch struct {
			Rollout, Train, Mask [][]number
			Share                number `json:"mismatch/bitwise_frac"`
			Abs                  number `json:"mismatch/abs_diff_mean"`
			K3                   number `json:"mismatch/k3_kl"`
		}
		Masked []struct {
			Name         string
			Tensor, Mask [][]number
			All          number   `json:"mean_all"`
			Rows         []number `json:"mean_rows"`
			Sum          *number  `json:"sum_all"`
		}
	}
	readReference(t, "kl.json", &ref)
	if len(ref.Mismatch.Mask) == 0 || len(ref.Masked) == 0 {
		t.Fatal("the reference has an empty list of cases")
	}
	x := ref.Mismatch
	in := lossInputs{LogP: x.Train, Old: x.Rollout, Rollout: x.Rollout, Advantages: x.Mask, Mask: x.Mask}
	got, err := evaluate(t, in.samples(), x.Train, DefaultConfig().Loss, noLimit, nil)
	if err != nil {
		t.Fatal(err)
	}
	for metric, want := range map[string]number{"mismatch_share": x.Share, "mismatch_abs": x.Abs, "mismatch_k3": x.K3} {
		near(t, metric, float64(want), got.metrics[metric].Mean())
	}
	for _, r := range ref.Masked { // means over masked tokens are aggregations of them
		if r.Mask == nil {
			for _, row := range r.Tensor {
				r.Mask = append(r.Mask, make([]number, len(row)))
				for slot := range row {
					r.Mask[len(r.Mask)-1][slot] = 1
				}
			}
		}
		near(t, r.Name, float64(r.All), aggregated(t, r.Mask, r.Tensor, LossConfig{Aggregation: "token-mean"}).loss)
		sums := 0.0
		for b, want := range r.Rows {
			row := aggregated(t, r.Mask[b:b+1], r.Tensor[b:b+1], LossConfig{Aggregation: "seq-mean-token-mean"})
			near(t, fmt.Sprintf("%s, row %d", r.Name, b), float64(want), row.loss)
			sums += aggregated(t, r.Mask[b:b+1], r.Tensor[b:b+1], LossConfig{Aggregation: "seq-mean-token-sum"}).loss
		}
		if r.Sum != nil {
			near(t, r.Name+", sum", float64(*r.Sum), sums)
		}
	}
}
