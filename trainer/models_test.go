package trainer

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// exactLogP is log softmax(logits / temperature) of each token but the first, in float64.
func exactLogP(t *testing.T, s *torch.Scope, net *model.Model, x Sample) []float64 {
	t.Helper()
	var b model.Batch
	ids := x.Tokens.IDs
	b.AddSequence(ids, 0, int32(len(ids)))
	out := []float64{0}
	err := within(s.NoGrad, func(s *torch.Scope) error {
		h, err := net.Hidden(s, &b, nil)
		if err != nil {
			return err
		}
		logits := torch.Values[float64](net.Logits(s, h.Hidden))
		for i, id := range ids[1:] {
			row, total := logits[i*net.Vocab:(i+1)*net.Vocab], 0.0
			for _, v := range row {
				total += math.Exp(v / float64(x.Tokens.Temp[i+1]))
			}
			out = append(out, row[id]/float64(x.Tokens.Temp[i+1])-math.Log(total))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// beside is a trainer with a policy and what c asks for beside it, on reference models of one vocabulary.
func beside(t *testing.T, s *torch.Scope, reference string, change func(*Config)) *Trainer {
	t.Helper()
	c := DefaultConfig()
	change(&c)
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	out := &Trainer{cfg: c, Parts: Parts{Model: llamas(t)[0], Reference: reference, DType: torch.Float32, Share: func(bool) int { return 1 }}}
	out.policy = newPolicy(t, s, out.Model, torch.Float32, change)
	if err := out.openReference(s); err != nil {
		t.Fatal(err)
	}
	return out
}

// warm are two samples whose tokens were sampled at several temperatures, by the policy itself.
func warm(t *testing.T, s *torch.Scope, p *Policy) []Sample {
	t.Helper()
	samples := []Sample{dialogue(0, 2, 5, 9, 30, 31, 32), dialogue(0, 2, 5, 9, 40, 41)}
	for i, temps := range [][]float32{{1, 1, 0.5, 1.5, 1}, {1, 1, 2, 0.7}} {
		copy(samples[i].Tokens.Temp, temps)
		for j, v := range exactLogP(t, s, p.compute, samples[i]) {
			samples[i].Tokens.LogP[j] = float32(v)
		}
	}
	return samples
}

func inputOf(samples []Sample) (in estimators.Input) {
	in.Options = estimators.DefaultOptions()
	for _, x := range samples {
		in.Rewards = append(in.Rewards, 1)
		in.Masks = append(in.Masks, x.Tokens.Mask[1:])
	}
	return in
}

func TestTheReferenceScoresAtTheTemperaturesThatTokensWereSampledAt(t *testing.T) { // L11
	do(t, func(s *torch.Scope) {
		own := beside(t, s, "", func(c *Config) { c.Loss.KLCoef = 0.1 })
		other := beside(t, s, llamas(t)[2], func(c *Config) { c.Loss.KLCoef = 0.1 })
		for _, trainer := range []*Trainer{own, other} {
			samples := warm(t, s, own.policy)
			in := inputOf(samples)
			row := map[string]float64{}
			if err := trainer.consult(t.Context(), s, samples, &in, row); err != nil || in.KLs != nil || len(row) != 0 {
				t.Fatal(row, in.KLs, err)
			}
			for _, x := range samples {
				for i, want := range exactLogP(t, s, trainer.reference.compute, x) {
					if !x.Tokens.Mask[i] {
						want = 0
					}
					if math.Abs(float64(x.Reference[i])-want) > 1e-5 {
						t.Errorf("token %d at temperature %v: %v under the reference, want %v", i, x.Tokens.Temp[i], x.Reference[i], want)
					}
				}
			}
			if same := math.Abs(float64(samples[0].Reference[2]-samples[0].Tokens.LogP[2])) < 1e-5; same != (trainer == own) {
				t.Error("the reference is not the model that was named")
			}
		}
	})
}

// The advantage of a token is the reward less 0.5 times the KLs from it on, each the log-prob that it was sampled at less the reference's.
func TestKLInTheRewardIsTakenOffEachToken(t *testing.T) {
	do(t, func(s *torch.Scope) {
		trainer := beside(t, s, llamas(t)[2], func(c *Config) {
			c.Algo.Estimator, c.Algo.KLCoef, c.Algo.Whiten = "reinforce", 0.5, false
		})
		samples := warm(t, s, trainer.policy)
		in := inputOf(samples)
		in.Options = trainer.cfg.Algo.Options
		row := map[string]float64{}
		if err := trainer.consult(t.Context(), s, samples, &in, row); err != nil {
			t.Fatal(err)
		}
		result, err := estimators.Estimate("reinforce", in)
		if err != nil {
			t.Fatal(err)
		}
		sum, n := 0.0, 0.0
		for i, x := range samples {
			policy, reference := exactLogP(t, s, trainer.policy.compute, x), exactLogP(t, s, trainer.reference.compute, x)
			want := make([]float64, len(policy)-1)
			for j, rest := len(policy)-1, 1.0; j >= 2; j-- {
				rest -= 0.5 * (policy[j] - reference[j])
				want[j-1] = rest
				sum, n = sum+policy[j]-reference[j], n+1
			}
			got := make([]float64, len(want))
			for j, a := range result.Advantages[i] {
				got[j] = float64(a)
			}
			if diff := cmp.Diff(want, got, close64(1e-5, 1e-5)); diff != "" {
				t.Errorf("sample %d: %s", i, diff)
			}
		}
		if diff := cmp.Diff(sum/n, row["kl_reward"], close64(1e-5, 1e-5)); diff != "" || sum == 0 {
			t.Error("kl_reward", diff)
		}
	})
}

// At ratio 1 ppo is −mean(A) = −1; the KL adds 0.1 times the mean of (policy − reference)² / 2, at most 10.
func TestKLInTheLossIsAgainstTheReference(t *testing.T) {
	do(t, func(s *torch.Scope) {
		trainer := beside(t, s, llamas(t)[2], func(c *Config) { c.Loss.KLCoef = 0.1 })
		samples := warm(t, s, trainer.policy)
		in, sum := inputOf(samples), 0.0
		if err := trainer.consult(t.Context(), s, samples, &in, nil); err != nil {
			t.Fatal(err)
		}
		for _, x := range samples {
			policy, reference := exactLogP(t, s, trainer.policy.compute, x), exactLogP(t, s, trainer.reference.compute, x)
			for j := 2; j < len(policy); j++ {
				sum += min(math.Pow(policy[j]-reference[j], 2)/2, 10)
			}
		}
		stats := step(t, s, trainer.policy, samples, 0)
		got := []float64{stats.Loss, stats.Metrics["kl"].Mean()}
		if diff := cmp.Diff([]float64{-1 + 0.1*sum/5, sum / 5}, got, close64(1e-5, 1e-5)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAReferenceThatCannotJudgeThePolicyIsNamed(t *testing.T) {
	do(t, func(s *torch.Scope) {
		trainer := beside(t, s, "", func(c *Config) { c.Loss.KLCoef = 0.1 })
		shape := trainer.policy.master.Config
		shape.Vocab++
		trainer.Reference = t.TempDir()
		if err := model.New(s, shape, torch.Float32).Save(trainer.Reference); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"has 321 tokens, but the policy 320", "the reference model: model: stat nowhere"} {
			if err := trainer.checkReference(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
			trainer.Reference = "nowhere"
		}
	})
}

// A KL of 0.3 against a target of 0.2 is 50 % too high, bounded to 20 %: 16 rollouts over a horizon of 100 add 20 % · 0.16 = 3.2 %.
// One of 0.19 is 5 % too low and takes off 5 % · 0.16 = 0.8 %.
func TestTheKLCoefficientThatIsOnIsSteered(t *testing.T) {
	for _, kind := range []string{"kl", "kl_reward"} {
		trainer := &Trainer{cfg: DefaultConfig(), policy: &Policy{}}
		trainer.cfg.Algo.KLTarget, trainer.cfg.Algo.KLHorizon = 0.2, 100
		trainer.policy.loss.KLCoef = 0.5
		if kind == "kl_reward" {
			trainer.cfg.Algo.KLCoef, trainer.policy.loss.KLCoef = 0.5, 0
		}
		for _, c := range []struct{ kl, before, after float64 }{{0.3, 0.5, 0.516}, {0.19, 0.516, 0.511872}} {
			row := map[string]float64{"kl": 9, "kl_reward": 9}
			row[kind] = c.kl
			if err := trainer.steerKL(row, 16); err != nil {
				t.Fatal(err)
			}
			got := []float64{row["kl_coef"], *trainer.klCoef(), trainer.KLCoef}
			if diff := cmp.Diff([]float64{c.before, c.after, c.after}, got, close64(1e-12, 1e-12)); diff != "" {
				t.Errorf("%s: %s", kind, diff)
			}
		}
		trainer.cfg.Algo.KLTarget = 0
		before, row := *trainer.klCoef(), map[string]float64{}
		if err := trainer.steerKL(row, 16); err != nil || *trainer.klCoef() != before || row["kl_coef"] != before {
			t.Error("without a target the coefficient moves:", row, err)
		}
	}
	row := map[string]float64{}
	if err := (&Trainer{policy: &Policy{}}).steerKL(row, 16); err != nil || len(row) != 0 {
		t.Error("without a KL there is a coefficient:", row, err)
	}
}

// AdamW's first step moves every weight of the head by the rate: a quarter of the critic's peak, where a warm-up takes 4 steps.
func TestTheCriticIsAskedBeforeTheStepAndMakesItsOwnAtItsScheduledRate(t *testing.T) {
	do(t, func(s *torch.Scope) {
		trainer := beside(t, s, "", func(c *Config) {
			c.Algo.Estimator, c.Optim.CriticLR, c.Optim.Schedule, c.Optim.WarmupSteps = "gae", 4e-3, "constant_with_warmup", 4
			c.Optim.Name = "dion"
		})
		trainer.critic = criticOf(t, s, trainer.Model, false, torch.Float32, func(c *Config) { *c = trainer.cfg })
		samples := warm(t, s, trainer.policy)
		in := inputOf(samples)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := trainer.consult(gone, s, samples, &in, nil); !errors.Is(err, context.Canceled) {
			t.Error("a stop before the update:", err)
		}
		if err := trainer.consult(t.Context(), s, samples, &in, nil); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([][]float32{make([]float32, 4), make([]float32, 3)}, in.Values); diff != "" {
			t.Error("values of a new critic:", diff)
		}
		for i := range samples {
			samples[i].returns = samples[i].Advantages
		}
		if metrics := learn(t, s, trainer.critic, samples, trainer.critic.config.schedule(10).At(0)); metrics["value_loss"].Mean() != 0.5 {
			t.Error(metrics)
		}
		for _, v := range torch.Values[float64](trainer.critic.heads[0].Tensor) {
			if math.Abs(math.Abs(v)-1e-3) > 1e-6 {
				t.Fatal("a weight of the head moved by", v)
			}
		}
	})
}
