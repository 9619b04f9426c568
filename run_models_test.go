package molt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/rollout"
)

// The teacher is a checkpoint of a run that has learned; the student sees none of its rewards.
func TestOnPolicyDistillationBringsTheStudentToItsTeacher(t *testing.T) {
	teacher := tinyConfig(t.TempDir())
	teacher.Steps, teacher.Eval.Tasks, teacher.Optim.LR = 12, 0, 3e-3
	if err := runTiny(context.Background(), teacher, nil); err != nil {
		t.Fatal(err)
	}
	c := tinyConfig(t.TempDir())
	c.Steps, c.Eval.Tasks, c.Optim.LR = 16, 0, 3e-3
	c.Model.Reference = filepath.Join(teacher.Log.Dir, teacher.Name, "checkpoints", "step-000012")
	c.Algo.Estimator, c.Algo.KLCoef = "on_policy_distill", 1
	err := runTiny(context.Background(), c, func(r rollout.Runner) rollout.Runner {
		return rollout.RunnerFunc(func(ctx context.Context, s rollout.Spec) (*rollout.Rollout, error) {
			out, err := r.Run(ctx, s)
			if err == nil {
				out.Reward = 0
			}
			return out, err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	steps, _ := rows(t, c)
	kls := column(steps, "kl_reward")
	t.Log(kls)
	if len(kls) != 16 || kls[15] > kls[0]/2 {
		t.Error("the KL to the teacher:", kls)
	}
}

// criticConfig is of a run with everything beside the policy: a critic, a reference, a coefficient that is steered.
func criticConfig(t *testing.T, dtype string) Config {
	c := tinyConfig(t.TempDir())
	c.Eval.Tasks, c.Model.DType, c.Optim.LR, c.Optim.CriticLR = 0, dtype, 1e-3, 3e-3
	c.Algo.Estimator, c.Algo.Gamma, c.Algo.Lambda = "gae", 1, 0.95
	c.Algo.KLCoef, c.Algo.KLTarget, c.Algo.KLHorizon, c.Algo.Bootstrap = 0.01, 0.05, 32, true
	return c
}

func TestACriticLearnsInARun(t *testing.T) {
	c := criticConfig(t, "float32")
	c.Steps = 16
	err := runTiny(context.Background(), c, func(r rollout.Runner) rollout.Runner {
		return rollout.RunnerFunc(func(ctx context.Context, s rollout.Spec) (*rollout.Rollout, error) {
			out, err := r.Run(ctx, s)
			if err == nil {
				out.Reward++ // so that it is more than noise
			}
			return out, err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	steps, _ := rows(t, c)
	losses := column(steps, "value_loss")
	t.Log(losses, column(steps, "explained_variance"))
	if losses[15] > losses[0]/3 {
		t.Error("value losses:", losses)
	}
	for i, row := range steps {
		_, clipped := row["value_clip_ratio"]
		if !clipped || row["logprob_diff_max"] != 0 || (row["kl_reward"] != 0) != (i > 0) { // the first step is at the reference itself
			t.Error(row)
		}
	}
}

// Weights and optimizers of both, the reference, which stays that of the start, and the coefficient go on as if nothing had happened.
func TestAResumedRunKeepsItsCriticReferenceAndKLCoefficient(t *testing.T) {
	for _, dtype := range []string{"float32", "bfloat16"} {
		whole, halves := criticConfig(t, dtype), criticConfig(t, dtype)
		halves.Steps = 3
		if err := errors.Join(runTiny(context.Background(), whole, nil), runTiny(context.Background(), halves, nil)); err != nil {
			t.Fatal(err)
		}
		halves.Steps, halves.Resume = 6, true
		if err := runTiny(context.Background(), halves, nil); err != nil {
			t.Fatal(err)
		}
		a, _ := rows(t, whole)
		b, _ := rows(t, halves)
		for _, key := range []string{"loss", "grad_norm", "value_loss", "explained_variance", "kl_reward", "kl_coef"} {
			if diff := cmp.Diff(column(a, key), column(b, key)); diff != "" {
				t.Errorf("%s: %s: %s", dtype, key, diff)
			}
		}
		for _, name := range []string{"model.safetensors", "optimizer.safetensors", "critic/model.safetensors", "critic/optimizer.safetensors",
			"critic/config.json"} {
			var files []string
			for _, c := range []Config{whole, halves} {
				data, err := os.ReadFile(filepath.Join(c.Log.Dir, c.Name, "checkpoints", "step-000006", name))
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, string(data))
			}
			if files[0] != files[1] {
				t.Errorf("%s: %s differs after a resume", dtype, name)
			}
		}
		coefs, kls := column(a, "kl_coef"), column(a, "kl_reward")
		for i := 1; i < len(coefs); i++ { // 16 rollouts over a horizon of 32
			want := coefs[i-1] * (1 + 0.5*min(max(kls[i-1]/0.05-1, -0.2), 0.2))
			if math.Abs(coefs[i]-want) > 1e-12 || coefs[i] == coefs[i-1] {
				t.Errorf("%s: the coefficient of step %d is %v, want %v", dtype, i+1, coefs[i], want)
			}
		}
	}
}

func TestACheckpointWithoutACriticDoesNotResumeOneThatNeedsIt(t *testing.T) {
	c := criticConfig(t, "float32")
	c.Steps, c.Algo.Estimator, c.Algo.KLTarget, c.Algo.KLCoef, c.Algo.Bootstrap = 1, "grpo", 0, 0, false
	if err := runTiny(context.Background(), c, nil); err != nil {
		t.Fatal(err)
	}
	c.Steps, c.Algo.Estimator, c.Resume = 2, "gae", true
	err := runTiny(context.Background(), c, nil)
	if err == nil || !strings.Contains(err.Error(), "the run so far must have had a critic") {
		t.Error(err)
	}
}

// The loss's KL is against the weights that the run started from, also after a resume, and its coefficient is steered by its own KL.
func TestTheKLInTheLossIsAgainstTheStartOfTheRun(t *testing.T) {
	c := tinyConfig(t.TempDir())
	c.Steps, c.Eval.Tasks, c.Loss.KLCoef, c.Optim.LR = 2, 0, 0.1, 1e-3
	c.Algo.KLTarget, c.Algo.KLHorizon = 1e-6, 160
	if err := runTiny(context.Background(), c, nil); err != nil {
		t.Fatal(err)
	}
	c.Steps, c.Resume = 4, true
	if err := runTiny(context.Background(), c, nil); err != nil {
		t.Fatal(err)
	}
	steps, _ := rows(t, c)
	kls, coefs := column(steps, "kl"), column(steps, "kl_coef")
	if kls[0] != 0 || !(kls[1] > 0) || !(kls[2] > kls[1]) || !(kls[3] > kls[2]) {
		t.Error("the KL to the start:", kls)
	}
	// At KL 0 the first step takes off 20 % · 16/160; the others add as much.
	for i, want := range []float64{0.1, 0.098, 0.09996, 0.1019592} {
		if math.Abs(coefs[i]-want) > 1e-9 {
			t.Error("coefficients:", coefs)
		}
	}
	state, err := os.ReadFile(filepath.Join(c.Log.Dir, c.Name, "checkpoints", "step-000004", "state.json"))
	var saved struct {
		KLCoef float64 `json:"kl_coef"`
	}
	if err = errors.Join(err, json.Unmarshal(state, &saved)); err != nil || math.Abs(saved.KLCoef-0.1019592*1.02) > 1e-9 {
		t.Error("the state has the coefficient", saved, err)
	}
}

func TestReferenceCriticAndKLSettingsThatCannotBeAreRefused(t *testing.T) {
	for want, set := range map[string]func(*Config){
		"algo.kl_target is 0.1, want 0, or one coefficient": func(c *Config) { c.Algo.KLTarget = 0.1 },
		"one coefficient to steer: algo.kl_coef or loss.kl_coef": func(c *Config) {
			c.Algo.KLTarget, c.Algo.KLCoef, c.Loss.KLCoef = 0.1, 1, 1
		},
		"algo.kl_target is -1":  func(c *Config) { c.Algo.KLTarget, c.Algo.KLCoef = -1, 1 },
		"algo.kl_horizon is 0,": func(c *Config) { c.Algo.KLHorizon = 0 },
		"algo.kl_horizon is 3, want more than a fifth of the 16 rollouts of a batch": func(c *Config) {
			c.Algo.KLTarget, c.Algo.KLCoef, c.Algo.KLHorizon = 0.1, 1, 3
		},
		`algo.kl: estimators: unknown KL "k4"; known: k1, k2, k3, k3_base`: func(c *Config) { c.Algo.KL = "k4" },
		"on_policy_distill learns from nothing but the KL":                 func(c *Config) { c.Algo.Estimator = "on_policy_distill" },
		"[model] reference is missing: on_policy_distill":                  func(c *Config) { c.Algo.Estimator, c.Algo.KLCoef = "on_policy_distill", 1 },
		"algo.kl_coef is 0.1, want 0: grpo takes no KL off rewards":        func(c *Config) { c.Algo.KLCoef = 0.1 },
		"algo.kl_coef is 0.1, want 0: remax":                               func(c *Config) { c.Algo.Estimator, c.Algo.KLCoef = "remax", 0.1 },
		"algo.bootstrap is true, want false":                               func(c *Config) { c.Algo.Bootstrap = true },
		"algo.reward_weights is map[string]float64{\"a\":1}, want none": func(c *Config) {
			c.Algo.RewardWeights = map[string]float64{"a": 1}
		},
		"but gdpo sees its parts only":                                 func(c *Config) { c.Algo.Estimator, c.Algo.RewardMin = "gdpo", 0 },
		"algo.pass_k is 5, but a group has only [rollout] samples = 4": func(c *Config) { c.Algo.Estimator, c.Algo.PassK = "pass_at_k", 5 },
		"partial_groups: rloo compares the rollouts of a whole group":  func(c *Config) { c.Algo.Estimator, c.Rollout.PartialGroups = "rloo", true },
		"loss.value_clip is -1":                                        func(c *Config) { c.Loss.ValueClip = -1 },
		"optim.critic_lr is -1":                                        func(c *Config) { c.Optim.CriticLR = -1 },
	} {
		c := tinyConfig(t.TempDir())
		c.Data.Source, c.Agent.Env = "largest", "largest"
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		if set(&c); fmt.Sprint(c.Validate()) == "<nil>" || !strings.Contains(c.Validate().Error(), want) {
			t.Errorf("error %v, want one with %q", c.Validate(), want)
		}
	}
}

// A reward of each rollout alone, or a baseline beside the group, does not need the others of the group (A8); KL in the reward is for those
// estimators that take it off.
func TestSettingsOfAnEstimatorThatUsesThemAreAccepted(t *testing.T) {
	for _, name := range estimators.Names() {
		alone := slices.Contains([]string{"reinforce", "flash_reinforce", "gae", "on_policy_distill", "remax"}, name)
		kl := slices.Contains([]string{"reinforce", "gae", "on_policy_distill"}, name)
		c := tinyConfig(t.TempDir())
		c.Data.Source, c.Agent.Env, c.Model.Reference, c.Algo.Estimator = "largest", "largest", tinyModel, name
		c.Algo.KLCoef = 1
		if err := c.Validate(); (err == nil) != kl {
			t.Errorf("%s with kl_coef: %v", name, err)
		}
		if c.Rollout.PartialGroups = true; !kl {
			c.Algo.KLCoef = 0
		}
		if err := c.Validate(); (err == nil) != alone {
			t.Errorf("%s with partial_groups: %v", name, err)
		}
	}
}

// What only the context or another model's folder can tell is an error before a weight is read or a rollout made.
func TestARunThatCannotGoAheadIsRefusedBeforeItMakesAnything(t *testing.T) {
	for want, set := range map[string]func(*Config){
		"algo.overlong_buffer is 100000, more than the context of": func(c *Config) { c.Algo.OverlongBuffer = 100000 },
		"the reference model: model: stat nowhere":                 func(c *Config) { c.Loss.KLCoef, c.Model.Reference = 0.1, "nowhere" },
	} {
		c := tinyConfig(t.TempDir())
		set(&c)
		err := runTiny(context.Background(), c, nil)
		if _, missing := os.Stat(filepath.Join(c.Log.Dir, c.Name)); err == nil || !strings.Contains(err.Error(), want) || missing == nil {
			t.Errorf("error %v, want one with %q and no run folder", err, want)
		}
	}
}
