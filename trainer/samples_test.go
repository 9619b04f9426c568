package trainer

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// standIn registers an estimator with that need, unless it is known.
func standIn(t *testing.T, name string, need estimators.Need) {
	t.Helper()
	if estimators.Check(name) == nil {
		return
	}
	if err := estimators.Register(name, estimators.PerRollout, estimators.DrGRPO, need); err != nil {
		t.Fatal(err)
	}
}

// askOnce is an agent of one turn after two tokens. Its rollouts have two samples where two is set.
func askOnce(gen rollout.Generator, two bool, grade func(rollout.Spec) *rollout.Rollout) rollout.Runner {
	return rollout.RunnerFunc(func(ctx context.Context, s rollout.Spec) (*rollout.Rollout, error) {
		out := grade(s)
		s.Sampling.Seed = s.Seed
		for range 2 {
			var tr rollout.Trajectory
			if err := tr.Context([]int32{10, 11}); err != nil {
				return nil, err
			}
			c, err := gen.Generate(ctx, tr.Request(s.Sampling, nil))
			if err != nil {
				return nil, err
			}
			if err := tr.Append(c); err != nil {
				return nil, err
			}
			tr.Seal()
			if out.Samples = append(out.Samples, &tr); !two {
				break
			}
		}
		return out, nil
	})
}

// batchOf collects one batch of two groups of two rollouts of two samples.
func batchOf(t *testing.T, greedy bool, grade func(rollout.Spec) *rollout.Rollout) rollout.Batch {
	t.Helper()
	gen := rollout.Script{Reply: func(rollout.Request) ([]int32, []float32, error) { return []int32{3}, []float32{-1}, nil }}
	c := rollout.DefaultConfig()
	c.Prompts, c.Samples = 2, 2
	plan := rollout.Plan{Config: c, Source: rollout.Tasks{List: make([]rollout.Task, 4)}, Data: rollout.DataConfig{Source: "test"},
		Greedy: greedy}
	collector, err := rollout.Collect(t.Context(), plan, askOnce(gen, true, grade))
	if err != nil {
		t.Fatal(err)
	}
	defer collector.Close()
	b, err := collector.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEachSampleHasTheBaselineOfItsGroup(t *testing.T) {
	standIn(t, "remax", estimators.Greedy)
	trainer := &Trainer{cfg: DefaultConfig()}
	trainer.cfg.Algo.Estimator = "remax"
	grade := func(s rollout.Spec) *rollout.Rollout {
		if s.Greedy {
			return &rollout.Rollout{Reward: 10 + float64(s.Group)}
		}
		return &rollout.Rollout{Reward: float64(s.ID)}
	}
	samples, in, err := trainer.input(batchOf(t, true, grade))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]float32{0, 0, 1, 1, 2, 2, 3, 3}, in.Rewards); diff != "" {
		t.Error("rewards", diff)
	}
	if diff := cmp.Diff([]float32{10, 10, 10, 10, 11, 11, 11, 11}, in.Baselines); diff != "" {
		t.Error("baselines", diff)
	}
	for _, s := range samples {
		if s.Rollout < 0 {
			t.Error("a sample of a greedy rollout")
		}
	}
	if _, in, err = trainer.input(batchOf(t, false, grade)); err != nil || in.Baselines != nil {
		t.Errorf("baselines %v without greedy rollouts, error %v", in.Baselines, err)
	}
}

func TestRewardsInPartsNeedTheSameNamesInEveryRollout(t *testing.T) {
	standIn(t, "parts", estimators.Components)
	trainer := &Trainer{cfg: DefaultConfig()}
	trainer.cfg.Algo.Estimator = "parts"
	parts := func(s rollout.Spec) map[string]float64 {
		return map[string]float64{"right": float64(s.ID), "format": -float64(s.ID)}
	}
	for _, c := range []struct {
		lacks func(s rollout.Spec, parts map[string]float64) map[string]float64
		want  string
	}{
		{func(_ rollout.Spec, p map[string]float64) map[string]float64 { return p }, ""},
		{func(s rollout.Spec, p map[string]float64) map[string]float64 {
			if s.ID == 2 {
				delete(p, "format")
			}
			return p
		}, `rollout 2 has no reward "format"`},
		{func(s rollout.Spec, p map[string]float64) map[string]float64 {
			if s.ID == 3 {
				p["late"] = 1
			}
			return p
		}, `rollout 0 has no reward "late"`},
		{func(rollout.Spec, map[string]float64) map[string]float64 { return nil }, "rollout 0 has no Rewards"},
	} {
		b := batchOf(t, false, func(s rollout.Spec) *rollout.Rollout { return &rollout.Rollout{Rewards: c.lacks(s, parts(s))} })
		_, in, err := trainer.input(b)
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			continue
		}
		want := map[string][]float32{"right": {0, 0, 1, 1, 2, 2, 3, 3}, "format": {0, 0, -1, -1, -2, -2, -3, -3}}
		if diff := cmp.Diff(want, in.Components); diff != "" || err != nil {
			t.Errorf("error %v, components %s", err, diff)
		}
		trainer.cfg.Algo.Estimator = "grpo"
		if _, in, err := trainer.input(b); err != nil || in.Components != nil {
			t.Errorf("grpo got components %v, error %v", in.Components, err)
		}
		trainer.cfg.Algo.Estimator = "parts"
	}
}

type noSink struct{}

func (noSink) Load(context.Context, int32, []model.Param) error { return nil }

// remaxRun trains two steps with that estimator on scripted replies of three tokens; greedy ones are five times id. It
// returns the weights, the tokens trained in each step and the greedy requests.
func remaxRun(t *testing.T, estimator string, id int32) (weights []byte, trained []float64, asked int) {
	t.Helper()
	var greedy atomic.Int64
	gen := rollout.Script{Reply: func(r rollout.Request) ([]int32, []float32, error) {
		if r.Sampling.Temperature == 0 {
			greedy.Add(1)
			return []int32{id, id, id, id, id}, nil, nil
		}
		return []int32{20 + int32(r.Sampling.Seed%5), 21, 22}, []float32{-5, -5, -5}, nil
	}}
	runner := askOnce(gen, false, func(s rollout.Spec) *rollout.Rollout {
		if s.Greedy {
			return &rollout.Rollout{Reward: 0.25}
		}
		return &rollout.Rollout{Reward: float64(s.ID % 2)}
	})
	cfg := DefaultConfig()
	cfg.Log.Dir, cfg.Steps, cfg.Algo.Estimator, cfg.Eval.Tasks, cfg.Async = t.TempDir(), 2, estimator, 0, AsyncConfig{TrainThreads: 1}
	c := rollout.DefaultConfig()
	c.Prompts, c.Samples = 2, 2
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	run, err := New(cfg, Parts{
		Model: llamas(t)[0], DType: torch.Float32, Context: 64, Rollout: c, Runner: runner, Generator: gen, Sink: noSink{},
		Train: rollout.Tasks{List: make([]rollout.Task, 4)}, Data: rollout.DataConfig{Source: "test", Epochs: 1}, // two batches, and no third
		Console: NewProgress(null),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(cfg.Log.Dir, cfg.Name)
	if weights, err = os.ReadFile(filepath.Join(folder, "checkpoints", "step-000002", "model.safetensors")); err != nil {
		t.Fatal(err)
	}
	metrics, err := os.ReadFile(filepath.Join(folder, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(metrics)) {
		var row map[string]float64
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		trained = append(trained, row["trained_tokens"])
		if row[KeyRewardMean] != 0.5 || row[KeyGradNorm] == 0 {
			t.Errorf("reward mean %v, want 0.5 over the samples alone; gradient norm %v", row[KeyRewardMean], row[KeyGradNorm])
		}
	}
	return weights, trained, int(greedy.Load())
}

// Two batches of 2 × 2 rollouts of three tokens train 12 tokens each, whatever the greedy rollout of each group said.
func TestARunWithRemaxTrainsNoTokenOfAGreedyRollout(t *testing.T) {
	standIn(t, "remax", estimators.Greedy)
	weights, trained, asked := remaxRun(t, "remax", 30)
	if diff := cmp.Diff([]float64{12, 12}, trained); diff != "" || asked != 4 {
		t.Errorf("%d greedy rollouts, tokens trained %s", asked, diff)
	}
	if other, _, _ := remaxRun(t, "remax", 31); !bytes.Equal(weights, other) {
		t.Error("what the greedy rollouts said moved the weights")
	}
	if _, trained, asked := remaxRun(t, "dr_grpo", 30); asked != 0 || trained[0] != 12 {
		t.Errorf("dr_grpo: %d greedy rollouts, trained %v", asked, trained)
	}
}

// A stop that comes while the last checkpoint is written finds the run at its end.
func TestARunThatIsDoneWasNotStopped(t *testing.T) {
	for _, steps := range []int{1, 2} {
		gen := rollout.Script{Reply: func(rollout.Request) ([]int32, []float32, error) { return []int32{21, 22}, []float32{-5, -5}, nil }}
		runner := askOnce(gen, false, func(s rollout.Spec) *rollout.Rollout { return &rollout.Rollout{Reward: float64(s.ID % 2)} })
		cfg := DefaultConfig()
		cfg.Log.Dir, cfg.Steps, cfg.Eval.Tasks, cfg.Async, cfg.Checkpoint.Every = t.TempDir(), steps, 0, AsyncConfig{TrainThreads: 1}, 1
		c := rollout.DefaultConfig()
		c.Prompts, c.Samples = 2, 2
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		ctx, cancel := context.WithCancel(t.Context())
		run, err := New(cfg, Parts{
			Model: llamas(t)[0], DType: torch.Float32, Context: 64, Rollout: c, Runner: runner, Generator: gen, Sink: noSink{},
			Train: rollout.Tasks{List: make([]rollout.Task, 4)}, Data: rollout.DataConfig{Source: "test"}, Console: NewProgress(out),
			SaveText: func(string) error { cancel(); return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		err = run.Run(ctx)
		said, readErr := os.ReadFile(out.Name())
		if done := steps == 1; readErr != nil || (err == nil) != done || strings.Contains(string(said), "stopped;") == done {
			t.Errorf("%d steps: error %v, said %q", steps, err, said)
		}
	}
}
