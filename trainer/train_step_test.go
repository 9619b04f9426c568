package trainer

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
)

type stepMicro struct {
	Sequences  [][]int32
	Attention  [][]int    `json:"attention_mask"`
	Mask       [][]number `json:"action_mask"`
	Logits     [][][]number
	Old        [][]number `json:"old_action_log_probs"`
	Base       [][]number `json:"base_action_log_probs"`
	Rollout    [][]number `json:"rollout_log_probs"`
	Advantages [][]number
}

type stepConfig struct {
	Temperature number
	EntropyCoef number `json:"entropy_coef"`
	KLUseLoss   bool   `json:"kl_use_loss"`
	KLCoef      number `json:"kl_coef"`
	KL          string `json:"kl_estimator"`
	KLRef       string `json:"kl_ref"`
	Clip        [2]number
	DualClip    number    `json:"dual_clip"`
	Loss        string    `json:"loss_mode"`
	Level       string    `json:"is_level"`
	Mode        string    `json:"is_mode"`
	Band        [2]number `json:"is_threshold"`
	Agg         string
	OnPolicy    bool `json:"force_on_policy"`
}

func (c stepConfig) settings() map[string]string {
	s := map[string]string{
		"name": c.Loss, "aggregation": c.Agg, "clip_low": fmt.Sprint(c.Clip[0]), "clip_high": fmt.Sprint(c.Clip[1]),
		"entropy_coef": fmt.Sprint(c.EntropyCoef), "dual_clip": fmt.Sprint(c.DualClip), "old": "policy",
		"is_level": c.Level, "is_mode": c.Mode, "is_band": fmt.Sprintf("[%v, %v]", c.Band[0], c.Band[1]),
	}
	if c.KLUseLoss {
		s["kl_coef"], s["kl"] = fmt.Sprint(c.KLCoef), c.KL
		if c.KL == "k3" && c.KLRef == "rollout" {
			s["kl"] = "k3_base"
		}
	}
	return s
}

func (m stepMicro) samples(c stepConfig) []Sample {
	var out []Sample
	for b, ids := range m.Sequences {
		n := 0
		for n < len(ids) && m.Attention[b][n] != 0 {
			n++
		}
		x := Sample{Tokens: blank(n), Group: int64(b),
			Advantages: make([]float32, n), Old: make([]float32, n), Reference: make([]float32, n)}
		copy(x.Tokens.IDs, ids)
		for t := range n - 1 {
			x.Tokens.Mask[t+1], x.Tokens.LogP[t+1], x.Tokens.Temp[t+1] = m.Mask[b][t] != 0, float32(m.Rollout[b][t]), float32(c.Temperature)
			x.Old[t+1], x.Reference[t+1], x.Advantages[t+1] = float32(m.Old[b][t]), float32(m.Base[b][t]), float32(m.Advantages[b][t])
		}
		if c.OnPolicy {
			x.Old = nil
		}
		out = append(out, x)
	}
	return out
}

// stepMetrics gives the names that the reference's metrics have here.
var stepMetrics = map[string]string{
	"policy_loss": "policy_loss", "policy_clip_ratio": "clip_ratio", "policy_kl": "policy_kl", "entropy_loss": "entropy", "kl": "kl",
	"advantage_mean": "advantage_mean", "mismatch/abs_diff_mean": "mismatch_abs", "mismatch/k3_kl": "mismatch_k3",
	"vllm_kl": "behaviour_kl", "is_filter_ratio": "is_outside",
	"logprobs_diff": "", // the k1 of any KL; not reported
}

// Given logits are hidden states under the identity as head.
func TestTrainingStepsEqualTheReference(t *testing.T) {
	var ref struct {
		Vocab   int
		Micros  []stepMicro `json:"micro_batches"`
		Results []struct {
			Name   string
			DP     float64 `json:"dp_size"`
			Config stepConfig
			Out    struct {
				Tokens float64 `json:"batch_num_tokens"`
				Seqs   float64 `json:"batch_num_seqs"`
				Micros []struct {
					Loss    number       `json:"total_loss"`
					Grad    [][][]number `json:"grad_logits"`
					Metrics map[string]any
				} `json:"micro_batches"`
			}
		}
	}
	readReference(t, "train_step.json", &ref)
	if len(ref.Results) == 0 || len(ref.Micros) == 0 {
		t.Fatal("the reference has an empty list of cases")
	}
	for _, r := range ref.Results {
		c, err := configure(t, r.Config.settings())
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		counted := 0
		for i, want := range r.Out.Micros {
			name := fmt.Sprintf("%s, %v ranks, micro-batch %d", r.Name, r.DP, i)
			plan, err := Pack(ref.Micros[i].samples(r.Config), 1<<20)
			if err != nil || len(plan.Micros) != 1 {
				t.Fatalf("%s: %d micro-batches, %v", name, len(plan.Micros), err)
			}
			m := &plan.Micros[0]
			counted += plan.Step.Tokens
			plan.Step.Tokens, plan.Step.Sequences = int(r.Out.Tokens), int(r.Out.Seqs)
			do(t, func(s *torch.Scope) {
				loss, metrics, grad := m.onLogits(t, s, ref.Micros[i].Logits, ref.Vocab, plan.Step, c)
				if diff := cmp.Diff(float64(want.Loss)/r.DP, loss, close64(rounding(slices.Concat(grad...)), 1e-5)); diff != "" {
					t.Errorf("%s: loss: %s", name, diff)
				}
				for b := range want.Grad {
					if diff := cmp.Diff(floats(want.Grad[b], 1/r.DP), grad[b], close64(1e-7, 1e-5)); diff != "" {
						t.Errorf("%s: gradient of sample %d: %s", name, b, diff)
					}
				}
				for metric, v := range want.Metrics {
					ours, known := stepMetrics[metric]
					if !known {
						t.Errorf("%s: unknown metric %s", name, metric)
						continue
					}
					if flags, ok := v.([]any); ok {
						v = share(flags, ref.Micros[i].Mask)
					}
					if diff := cmp.Diff(v, any(metrics[ours].Mean()), close64(1e-6, 1e-5)); ours != "" && diff != "" {
						t.Errorf("%s: %s: %s", name, metric, diff)
					}
				}
			})
		}
		if r.DP == 1 && counted != int(r.Out.Tokens) {
			t.Errorf("%s: %d tokens, want %v", r.Name, counted, r.Out.Tokens)
		}
	}
}

// onLogits is the loss of m on logits [sample][slot][vocab], its metrics, and its gradient by the logits.
func (m *Micro) onLogits(t *testing.T, s *torch.Scope, logits [][][]number, vocab int, step Step, c LossConfig) (float64, map[string]Metric, [][][]float64) {
	var flat []float32
	var ids []int64
	eye := make([]float32, vocab*vocab)
	for i := range vocab {
		eye[i*vocab+i] = 1
	}
	for n, p := range m.Places {
		for _, l := range logits[p.Sample][p.Token-1] {
			flat = append(flat, float32(l))
		}
		ids = append(ids, int64(m.IDs[n]))
	}
	h := torch.New(s, flat, len(ids), vocab).RequireGrad(true)
	logp, entropy := s.LMLogP(h, torch.New(s, eye, vocab, vocab), torch.New(s, ids, len(ids), 1), torch.New(s, m.InvT), 0, 4)
	loss, metrics, grads, err := m.leaves(s, logp, entropy, step, c)
	if err != nil {
		t.Fatal(err)
	}
	roots := []torch.Tensor{logp, entropy}
	if grads[1] == (torch.Tensor{}) {
		roots, grads = roots[:1], grads[:1]
	}
	g := torch.Values[float64](s.Gradients(roots, grads, []torch.Tensor{h})[0])
	all := make([][][]float64, len(logits))
	for b := range logits {
		for range logits[b] {
			all[b] = append(all[b], make([]float64, vocab))
		}
	}
	for n, p := range m.Places {
		copy(all[p.Sample][p.Token-1], g[n*vocab:])
	}
	return loss, metrics, all
}
