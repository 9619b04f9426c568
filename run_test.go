package molt

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/engine"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
	"github.com/molt-go/molt/trainer"
)

// The test binary is also the program that TestTheAgentsOfAConfigTrain runs.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "program" {
		program(os.Args[2])
	}
	code := m.Run()
	if n := torch.Live(); n != 0 {
		println("tensors still alive after all tests:", n)
		code = 1
	}
	os.Exit(code)
}

const tinyModel = "testdata/reference/models/llama_untied_gqa"

// low is a task without words: after any three ids, sample ids below 64. A reply is worth the share of its eight tokens that are.
type low struct{ gen rollout.Generator }

func (l low) Run(ctx context.Context, s rollout.Spec) (*rollout.Rollout, error) {
	t := &rollout.Trajectory{}
	if err := t.Context([]int32{int32(s.Group%60) + 10, 7, int32(s.Group%7) + 100}); err != nil {
		return nil, err
	}
	sampling := s.Sampling
	sampling.Seed, sampling.IgnoreEOS = s.Seed, true
	c, err := l.gen.Generate(ctx, t.Request(sampling, nil))
	if err != nil {
		return nil, err
	}
	if err := t.Append(c); err != nil {
		return nil, err
	}
	t.Seal()
	r := &rollout.Rollout{Spec: s, Samples: []*rollout.Trajectory{t}}
	for _, token := range c.Tokens {
		if token.ID() < 64 {
			r.Reward += 1 / float64(len(c.Tokens))
		}
	}
	r.Score = r.Reward
	return r, nil
}

// words is a source of n tasks whose text nobody reads.
func words(n int) rollout.Source {
	list := make([]rollout.Task, n)
	for i := range list {
		list[i] = rollout.Task{ID: fmt.Sprint(i), Messages: []multimodal.Message{{Role: "user", Content: "?"}}}
	}
	return rollout.Tasks{List: list, Name: "words"}
}

func tinyConfig(dir string) Config {
	c := DefaultConfig()
	c.Name, c.Log.Dir, c.Steps, c.Model.Path = "tiny", dir, 6, tinyModel
	c.Rollout.Prompts, c.Rollout.Samples, c.Rollout.MaxTokens = 4, 4, 8
	c.Optim.LR, c.Async.Staleness, c.Async.TrainThreads, c.Async.EngineThreads = 1e-2, 0, 1, 1
	c.Eval.Tasks = 8
	c.Engine.CacheMB = 8
	return c
}

// runTiny runs c with the real engine and trainer on a reference model; wrap may replace the agent.
func runTiny(ctx context.Context, c Config, wrap func(rollout.Runner) rollout.Runner) error {
	shape, err := model.PeekConfig(c.Model.Path)
	if err != nil {
		return err
	}
	dtype, err := torch.ParseDType(c.Model.DType)
	if err != nil {
		return err
	}
	eng, err := engine.New(c.Engine, shape, dtype, 1)
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	var agent rollout.Runner = low{eng}
	if wrap != nil {
		agent = wrap(agent)
	}
	t, err := trainer.New(c.Config, trainer.Parts{
		Model: c.Model.Path, Reference: c.Model.Reference, DType: dtype, Rollout: c.Rollout, Train: words(16), Held: words(8),
		Data:   rollout.DataConfig{Source: "words", Shuffle: true},
		Runner: agent, Generator: eng, Sink: eng, Context: shape.Context, Console: trainer.NewProgress(null), Resume: c.Resume,
	})
	if err != nil {
		return err
	}
	return together(ctx, eng.Run, t.Run)
}

func rows(t *testing.T, c Config) (steps, evals []map[string]float64) {
	t.Helper()
	f, err := os.Open(filepath.Join(c.Log.Dir, c.Name, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var row map[string]float64
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		if _, ok := row["eval_score"]; ok {
			evals = append(evals, row)
		} else {
			steps = append(steps, row)
		}
	}
	return steps, evals
}

// digest is of the files of weights and optimizer state of a run's checkpoint.
func digest(t *testing.T, c Config, step int) string {
	t.Helper()
	h := sha256.New()
	for _, name := range []string{"model.safetensors", "optimizer.safetensors"} {
		data, err := os.ReadFile(filepath.Join(c.Log.Dir, c.Name, "checkpoints", fmt.Sprintf("step-%06d", step), name))
		if err != nil {
			t.Fatal(err)
		}
		h.Write(data)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

func TestSynchronousGRPOLearnsAndMatchesTheEngineExactly(t *testing.T) {
	for _, dtype := range []string{"float32", "bfloat16"} {
		c := tinyConfig(t.TempDir())
		c.Steps, c.Model.DType, c.Optim.LR = 12, dtype, 3e-3
		if err := runTiny(context.Background(), c, nil); err != nil {
			t.Fatal(err)
		}
		steps, evals := rows(t, c)
		if len(steps) != 12 || len(evals) != 2 {
			t.Fatalf("%s: %d step rows and %d evaluations", dtype, len(steps), len(evals))
		}
		t.Log(dtype, column(steps, "reward_mean"))
		first, last := steps[0]["reward_mean"], steps[11]["reward_mean"]
		if last < first+0.3 || evals[1]["eval_score"] < evals[0]["eval_score"]+0.3 {
			t.Errorf("%s: reward went from %v to %v, held-out from %v to %v", dtype, first, last, evals[0]["eval_score"], evals[1]["eval_score"])
		}
		for _, row := range steps {
			if row["logprob_diff_max"] != 0 || row["logprob_diff_tokens"] == 0 || row["mismatch_abs"] != 0 || row["staleness_max"] != 0 {
				t.Errorf("%s: engine and trainer differ, or tokens are stale, in a synchronous run: %v", dtype, row)
			}
			if row["version"] != row["step"] {
				t.Errorf("%s: version %v after step %v", dtype, row["version"], row["step"])
			}
		}
	}
}

func TestARunWithoutCheckpointsLeavesItsMetricsToNoOther(t *testing.T) {
	c := tinyConfig(t.TempDir())
	c.Steps, c.Checkpoint.Keep = 2, 0
	if err := runTiny(t.Context(), c, nil); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(c.Log.Dir, c.Name)
	if _, err := os.Stat(filepath.Join(folder, "checkpoints")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("checkpoints: %v", err)
	}
	rows, err := os.ReadFile(filepath.Join(folder, "metrics.jsonl"))
	if err != nil || strings.Count(string(rows), "\n") != 4 { // evaluation, two steps, evaluation
		t.Fatalf("%s, error %v", rows, err)
	}
	if err := runTiny(t.Context(), c, nil); err == nil || !strings.Contains(err.Error(), "which left no checkpoint") {
		t.Errorf("again: %v", err)
	}
	if again, err := os.ReadFile(filepath.Join(folder, "metrics.jsonl")); err != nil || string(again) != string(rows) {
		t.Errorf("%s, error %v", again, err)
	}
}

func TestAsynchronousRunKeepsToItsStalenessLimit(t *testing.T) {
	c := tinyConfig(t.TempDir())
	c.Steps, c.Async.Staleness, c.Checkpoint.Keep = 20, 2, 1
	c.Optim.LR = 1e-4 // so slow that rewards stay mixed: equal ones end a run
	if err := runTiny(context.Background(), c, nil); err != nil {
		t.Fatal(err)
	}
	steps, _ := rows(t, c)
	stale := false
	for _, row := range steps {
		stale = stale || row["staleness_max"] > 0
		if row["staleness_max"] > 2 || row["logprob_diff_max"] > 1e-4 || row["logprob_diff_tokens"] == 0 {
			t.Error(row)
		}
	}
	if !stale {
		t.Error("no rollout overlapped an update: the loop is not asynchronous")
	}
}

// k steps, resume, and the rest equal one uninterrupted run bit for bit: weights, optimizer, rewards.
func TestResumedRunEqualsAnUninterruptedOne(t *testing.T) {
	whole := tinyConfig(t.TempDir())
	if err := runTiny(context.Background(), whole, nil); err != nil {
		t.Fatal(err)
	}
	// Stopped by its context in the middle of step 4.
	halves := tinyConfig(t.TempDir())
	ctx, cancel := context.WithCancel(context.Background())
	var n atomic.Int32
	perStep := int32(halves.Rollout.Prompts * halves.Rollout.Samples)
	err := runTiny(ctx, halves, func(r rollout.Runner) rollout.Runner {
		return rollout.RunnerFunc(func(ctx context.Context, s rollout.Spec) (*rollout.Rollout, error) {
			if n.Add(1) == int32(halves.Eval.Tasks)+3*perStep+5 {
				cancel()
			}
			return r.Run(ctx, s)
		})
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal("a stopped run ends with", err)
	}
	if steps, _ := rows(t, halves); len(steps) != 3 {
		t.Fatalf("%d rows before the stop", len(steps))
	}
	if err := runTiny(context.Background(), halves, nil); err == nil || !strings.Contains(err.Error(), "resume=true") {
		t.Error("a second run in the same folder without resume:", err)
	}
	// A checkpoint that was being written when the process died is not used.
	if err := os.MkdirAll(filepath.Join(halves.Log.Dir, "tiny", "checkpoints", "step-000005.tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	halves.Resume = true
	if err := runTiny(context.Background(), halves, nil); err != nil {
		t.Fatal(err)
	}
	if digest(t, whole, 6) != digest(t, halves, 6) {
		t.Error("weights or optimizer state differ after a resume")
	}
	a, _ := rows(t, whole)
	b, _ := rows(t, halves)
	rewards := func(rows []map[string]float64) (r []float64) {
		for _, row := range rows {
			r = append(r, row["step"], row["reward_mean"], row["loss"], row["grad_norm"])
		}
		return r
	}
	if diff := cmp.Diff(rewards(a), rewards(b)); diff != "" {
		t.Error(diff)
	}
}

// So it is with Muon, a warm-up and frozen parameters, which the engine has like any other; other patterns are refused.
func TestAResumedRunKeepsItsOptimizerScheduleAndFrozenParameters(t *testing.T) {
	config := func() Config {
		c := tinyConfig(t.TempDir())
		c.Steps, c.Eval.Tasks, c.Optim.Name, c.Optim.Freeze = 4, 0, "dion", []string{"model.embed_tokens.*", "*.k_proj.*"}
		c.Optim.Schedule, c.Optim.WarmupSteps, c.Model.DType = "constant_with_warmup", 4, "bfloat16"
		return c
	}
	whole, halves := config(), config()
	halves.Steps = 2
	if err := errors.Join(runTiny(context.Background(), whole, nil), runTiny(context.Background(), halves, nil)); err != nil {
		t.Fatal(err)
	}
	halves.Steps, halves.Resume = 4, true
	other := halves
	other.Optim.Freeze = nil
	err := runTiny(context.Background(), other, nil)
	if err == nil || !strings.Contains(err.Error(), "exp_avg.model.embed_tokens.weight is missing") ||
		!strings.Contains(err.Error(), "optim.freeze must be those of the run") {
		t.Error("resumed with other patterns:", err)
	}
	if err := runTiny(context.Background(), halves, nil); err != nil {
		t.Fatal(err)
	}
	if digest(t, whole, 4) != digest(t, halves, 4) {
		t.Error("weights or optimizer state differ after a resume")
	}
	steps, _ := rows(t, halves)
	for i, row := range steps {
		if row["logprob_diff_max"] != 0 || row["lr"] != 0.02*float64(i+1)/4 {
			t.Error("engine and trainer differ, or the rate is not the schedule's:", row)
		}
	}
}

// Evaluation touches no training state: every 1, every 3 steps or never give the same weights.
func TestEvaluationDoesNotChangeTraining(t *testing.T) {
	var digests []string
	for _, every := range []int{0, 1, 3} {
		c := tinyConfig(t.TempDir())
		c.Eval.Every = every
		if every == 0 {
			c.Eval.Tasks = 0
		}
		if err := runTiny(context.Background(), c, nil); err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest(t, c, 6))
	}
	if len(slices.Compact(digests)) != 1 {
		t.Error(digests)
	}
}

// Groups without a difference in reward teach nothing: no step is made, no weight moves, and the run ends with an error instead of
// looking for ever.
func TestBatchesWithoutSignalAreSkippedAndCounted(t *testing.T) {
	c := tinyConfig(t.TempDir())
	err := runTiny(context.Background(), c, func(r rollout.Runner) rollout.Runner {
		return rollout.RunnerFunc(func(ctx context.Context, s rollout.Spec) (*rollout.Rollout, error) {
			out, err := r.Run(ctx, s)
			if err == nil {
				out.Reward = 1
			}
			return out, err
		})
	})
	if err == nil || !strings.Contains(err.Error(), "10 batches in a row had nothing to learn from") {
		t.Error(err)
	}
	if steps, _ := rows(t, c); len(steps) != 0 {
		t.Error("steps were counted:", steps)
	}
}

// What was learned before there was nothing more to learn is evaluated and kept.
func TestARunWhoseTasksAreSolvedEndsAsOthersDo(t *testing.T) {
	c := tinyConfig(t.TempDir())
	err := runTiny(context.Background(), c, func(r rollout.Runner) rollout.Runner {
		return rollout.RunnerFunc(func(ctx context.Context, s rollout.Spec) (*rollout.Rollout, error) {
			out, err := r.Run(ctx, s)
			if err == nil && s.Place >= 2*int64(c.Rollout.Prompts) {
				out.Reward = 1
			}
			return out, err
		})
	})
	if err != nil {
		t.Error(err)
	}
	steps, evals := rows(t, c)
	if len(steps) != 2 || len(evals) != 2 || evals[1]["step"] != 2 {
		t.Errorf("%d steps, evaluations %v", len(steps), evals)
	}
	if _, err := os.Stat(filepath.Join(c.Log.Dir, c.Name, "checkpoints", "step-000002")); err != nil {
		t.Error(err)
	}
}

func TestFailedRolloutsAreReplacedAndCounted(t *testing.T) {
	c := tinyConfig(t.TempDir())
	c.Steps = 3
	var n atomic.Int32
	err := runTiny(context.Background(), c, func(r rollout.Runner) rollout.Runner {
		return rollout.RunnerFunc(func(ctx context.Context, s rollout.Spec) (*rollout.Rollout, error) {
			if n.Add(1) == 15 { // in the first batch, behind the evaluation
				panic("a bug in an agent")
			}
			return r.Run(ctx, s)
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	steps, _ := rows(t, c)
	if len(steps) != 3 || steps[0]["failed"] != 1 || steps[0]["trained_tokens"] != 4*4*8 {
		t.Error(steps)
	}
}

// The probe after a refit asks for no more than a batch may hold.
func TestTheProbeKeepsToTheBudget(t *testing.T) {
	c := tinyConfig(t.TempDir())
	c.Steps, c.Optim.MicroTokens = 1, 10 // a prompt of 3, and 8 tokens of which 7 predict
	if err := runTiny(context.Background(), c, nil); err != nil {
		t.Fatal(err)
	}
	c = tinyConfig(t.TempDir())
	c.Steps, c.Rollout.MaxTokens, c.Optim.MicroTokens = 1, 4, 6
	if err := runTiny(context.Background(), c, nil); err != nil {
		t.Fatal(err)
	}
	if steps, _ := rows(t, c); len(steps) != 1 || steps[0]["logprob_diff_tokens"] != 4*4 {
		t.Error(steps)
	}
}

// A run that was finished does nothing more when it is resumed.
func TestAFinishedRunResumesToNothing(t *testing.T) {
	c := tinyConfig(t.TempDir())
	c.Steps = 2
	if err := runTiny(context.Background(), c, nil); err != nil {
		t.Fatal(err)
	}
	c.Resume = true
	if err := runTiny(context.Background(), c, nil); err != nil {
		t.Fatal(err)
	}
	if steps, evals := rows(t, c); len(steps) != 2 || len(evals) != 2 {
		t.Errorf("%d step rows and %d evaluations, want 2 and 2", len(steps), len(evals))
	}
}

func TestABatchThatCannotFitIsAnErrorThatNamesTheKey(t *testing.T) {
	c := tinyConfig(t.TempDir())
	c.Optim.MicroTokens = 9
	if err := runTiny(context.Background(), c, nil); err == nil || !strings.Contains(err.Error(), "needs 10 rows, but optim.micro_tokens is 9") {
		t.Error(err)
	}
}

func column(rows []map[string]float64, key string) []float64 {
	var c []float64
	for _, row := range rows {
		c = append(c, row[key])
	}
	return c
}
