package molt

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/trainer"
)

// Where the engine's log-probs are the trainer's, ratios are 1 and both distributions are one: then surrogates and corrections are all
// the same policy gradient, to the last bit of the weights.
func TestOnPolicySurrogatesAndCorrectionsMakeOneUpdate(t *testing.T) {
	set := func(f func(*trainer.LossConfig)) string {
		c := tinyConfig(t.TempDir())
		c.Steps, c.Eval.Tasks = 2, 0
		c.Loss.Old = "policy"
		f(&c.Loss)
		if err := runTiny(context.Background(), c, nil); err != nil {
			t.Fatal(err)
		}
		return digest(t, c, 2)
	}
	want := set(func(*trainer.LossConfig) {})
	for name, f := range map[string]func(*trainer.LossConfig){
		"ppo to the behaviour": func(c *trainer.LossConfig) { c.Old = "behaviour" },
		"gspo":                 func(c *trainer.LossConfig) { c.Name = "gspo" },
		"cispo":                func(c *trainer.LossConfig) { c.Name, c.ClipHigh = "cispo", 1.2 },
		"tis":                  func(c *trainer.LossConfig) { c.Preset = "tis" },
		"icepop":               func(c *trainer.LossConfig) { c.Preset = "icepop" },
		"mis":                  func(c *trainer.LossConfig) { c.Preset = "mis" },
		"seq-mask-tis":         func(c *trainer.LossConfig) { c.Preset = "seq-mask-tis" },
		"rejected dropped":     func(c *trainer.LossConfig) { c.Preset, c.Rejected = "mis", "drop" },
		"score centering":      func(c *trainer.LossConfig) { c.ScoreCentering = 16 },
	} {
		if got := set(f); got != want {
			t.Errorf("%s: other weights after two steps", name)
		}
	}
	if got := set(func(c *trainer.LossConfig) { c.Name = "sft" }); got == want {
		t.Error("sft: the same weights: the check cannot fail")
	}
}

// Stale tokens are corrected by their own log-probs, or left out by their age.
func TestCorrectionsSeeStaleTokens(t *testing.T) {
	for name, f := range map[string]func(*trainer.LossConfig){
		"tis":             func(c *trainer.LossConfig) { c.Preset = "tis" },
		"dropped":         func(c *trainer.LossConfig) { c.Preset, c.Rejected, c.Band = "icepop", "drop", []float64{0.999, 1.001} },
		"score centering": func(c *trainer.LossConfig) { c.ScoreCentering = 16 },
		"by age":          func(c *trainer.LossConfig) { c.Preset, c.MaxAge = "tis", 0 },
	} {
		c := tinyConfig(t.TempDir())
		c.Steps, c.Async.Staleness, c.Eval.Tasks, c.Loss.Old, c.Optim.LR = 8, 2, 0, "policy", 1e-3
		f(&c.Loss)
		if err := runTiny(context.Background(), c, nil); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		steps, _ := rows(t, c)
		stale := slices.ContainsFunc(steps, func(row map[string]float64) bool { return row["staleness_max"] > 0 })
		if stale == (c.Loss.MaxAge == 0) {
			t.Errorf("%s: trained stale tokens: %v", name, stale)
		}
		raw := column(steps, "is_ratio")
		switch name {
		case "tis":
			if slices.Max(raw) == 1 && slices.Min(raw) == 1 {
				t.Errorf("%s: all ratios are 1: %v", name, raw)
			}
		case "dropped": // ratios and the share outside are of all 128 tokens, as they were before (M3)
			var dropped float64
			for _, row := range steps {
				if dropped += row["is_outside"]; math.Abs(row["trained_tokens"]-128*(1-row["is_outside"])) > 1e-6 {
					t.Errorf("%s: %v", name, row)
				}
			}
			if dropped == 0 {
				t.Errorf("%s: nothing was", name)
			}
		}
	}
}

func TestEveryEstimatorThatNeedsNothingRuns(t *testing.T) {
	for _, name := range estimators.Names() {
		if estimators.Needs(name, estimators.Values) || estimators.Needs(name, estimators.KLs) || estimators.Needs(name, estimators.Components) {
			continue
		}
		c := tinyConfig(t.TempDir())
		c.Steps, c.Eval.Tasks, c.Algo.Estimator = 2, 0, name
		binary := func(r rollout.Runner) rollout.Runner { // as pass_at_k wants it
			return rollout.RunnerFunc(func(ctx context.Context, s rollout.Spec) (*rollout.Rollout, error) {
				out, err := r.Run(ctx, s)
				if err == nil {
					out.Reward = math.Round(out.Reward)
				}
				return out, err
			})
		}
		if err := runTiny(context.Background(), c, binary); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A loss's metric of something that a batch does not have is left out of the row, and one by the name of a key of every row is not heard.
func TestMetricsOfALossNeitherEndARunNorHideItsOwn(t *testing.T) {
	f := func(s *torch.Scope, in trainer.LossInput) trainer.LossOutput {
		out := trainer.PPO(s, in)
		out.Metrics = map[string]trainer.Metric{"test_none": {}, "test_some": {Sum: 3, Count: 2}, trainer.KeyStep: {Sum: 99, Count: 1}}
		return out
	}
	if err := trainer.RegisterLoss("test_metrics", f); err != nil {
		t.Fatal(err)
	}
	c := tinyConfig(t.TempDir())
	c.Steps, c.Eval.Tasks, c.Loss.Name = 1, 0, "test_metrics"
	if err := runTiny(context.Background(), c, nil); err != nil {
		t.Fatal(err)
	}
	steps, _ := rows(t, c)
	if _, there := steps[0]["test_none"]; there || steps[0]["test_some"] != 1.5 || steps[0]["step"] != 1 {
		t.Error(steps)
	}
}
