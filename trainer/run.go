package trainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
	"github.com/molt-go/molt/torch/optim"
)

// WeightSink takes the policy's weights after each update: the engine, or whoever passes them on. Load returns when every later
// token is generated under version; params stay unchanged until then.
type WeightSink interface {
	Load(ctx context.Context, version int32, params []model.Param) error
}

// Parts are what a run is made of besides its numbers. Held and the functions may be nil.
type Parts struct {
	Model     string // a Hugging Face folder or a .gguf file
	Reference string // the same, of the reference model or teacher; "": the run's starting weights, Model
	DType     torch.DType
	Rollout   rollout.Config
	Data      rollout.DataConfig
	Train     rollout.Source
	Held      rollout.Source // held-out tasks for evaluation
	Runner    rollout.Runner // runs the agent
	Generator rollout.Generator
	Sink      WeightSink
	Context   int                    // longest sequence, in tokens
	Share     func(waiting bool) int // told whether the trainer waits for rollouts; says how many cores it may use
	Decode    func([]int32) string   // for showing replies
	SaveText  func(dir string) error // writes tokenizer and template beside the weights of a checkpoint
	Console   *Progress
	Resume    bool // from the newest checkpoint of the run's folder
}

// Trainer is one run: it takes batches of rollouts, updates the policy and hands it back to the engine.
type Trainer struct {
	Parts
	cfg       Config
	schedule  optim.Schedule
	dir       *RunDir
	metrics   *Metrics
	policy    *Policy
	reference *Policy // nil: nothing asks for it
	critic    *Policy // nil: the estimator needs no values
	collector *rollout.Collector
	runState  // what is saved and restored

	started, last time.Time    // of the run, of the last row
	startStep     int          // after a resume
	sampled       atomic.Int64 // tokens since the last row
}

// New checks the configuration and the parts. It makes no tensors and no files.
func New(cfg Config, p Parts) (*Trainer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if p.Train == nil || p.Runner == nil || p.Generator == nil || p.Sink == nil || p.Console == nil {
		return nil, errors.New("trainer: Train, Runner, Generator, Sink and Console are needed")
	}
	if o := cfg.Algo.OverlongBuffer; o > p.Context {
		return nil, fmt.Errorf("algo.overlong_buffer is %d, more than the context of %d tokens", o, p.Context)
	}
	t := &Trainer{Parts: p, cfg: cfg, schedule: cfg.Optim.schedule(cfg.Steps)}
	t.Rollout.TopLogP = cfg.Loss.ScoreCentering
	if err := t.schedule.Validate(); err != nil {
		return nil, fmt.Errorf("[optim] %w", err)
	}
	if t.needsReference() {
		if err := t.checkReference(); err != nil {
			return nil, err
		}
	}
	if t.Share == nil {
		train, _ := cfg.Async.Threads(1)
		t.Share = func(bool) int { return train }
	}
	return t, nil
}

// Run trains until the last step, the end of the data, or ctx ends; then the state is saved and ctx's cause is returned.
func (t *Trainer) Run(ctx context.Context) error {
	dir, err := OpenRunDir(t.cfg.Log.Dir, t.cfg.Name)
	if err != nil {
		return err
	}
	defer dir.Close()
	t.dir = dir
	return torch.Do(t.Share(false), func(s *torch.Scope) error {
		if err := t.open(s); err != nil {
			return err
		}
		defer t.metrics.Close()
		err := t.loop(ctx, s)
		saveErr := t.save()
		t.Console.Done()
		switch {
		case err == nil || ctx.Err() == nil || saveErr != nil || t.policy.moved: // what failed is the caller's to say
		case t.Step == 0:
			t.say("stopped before the first step was done: there is nothing to save")
		case t.savedStep != t.Step:
			t.say("stopped after step %d; checkpoint.keep = 0: nothing is saved", t.Step)
		default:
			t.say("stopped; %s is saved, and -set resume=true goes on from it", t.saved)
		}
		if saveErr != nil && errors.Is(err, context.Canceled) {
			return saveErr
		}
		return errors.Join(err, saveErr)
	})
}

// loop is the consumer side of the whole system. An operator's panic is its error, so that the state is saved all the same.
func (t *Trainer) loop(ctx context.Context, s *torch.Scope) (err error) {
	defer torch.Catch(&err)
	if err := t.Sink.Load(ctx, t.Version, t.policy.Params()); err != nil {
		return err
	}
	if err := t.evaluateIfDue(ctx); err != nil {
		return err
	}
	if t.Step >= t.cfg.Steps {
		return t.finish(ctx)
	}
	plan := rollout.Plan{Config: t.Rollout, Data: t.Data, Source: t.Train, Limit: t.cfg.Async.Staleness, Seed: uint64(t.cfg.Seed),
		Version: t.Version, State: t.Queue, OnEvent: t.count, Greedy: estimators.Needs(t.cfg.Algo.Estimator, estimators.Greedy)}
	if t.collector, err = rollout.Collect(ctx, plan, t.Runner); err != nil {
		return err
	}
	defer t.collector.Close()
	t.started, t.last, t.startStep = time.Now(), time.Now(), t.Step
	for skipped := 0; t.Step < t.cfg.Steps; {
		batch, err := t.next(ctx)
		if errors.Is(err, rollout.ErrEndOfData) {
			t.say("the data ends after step %d", t.Step)
			break
		}
		if err != nil {
			return err
		}
		trained, err := t.update(ctx, s, batch)
		if err != nil {
			return err
		}
		if !trained {
			if skipped++; skipped < maxSkipped {
				continue
			}
			err := fmt.Errorf("trainer: %d batches in a row had nothing to learn from: their advantages are all 0, as in groups "+
				"of equal rewards or of one rollout, or no token is left to train on", skipped)
			if t.Step == t.startStep {
				return err
			}
			t.say("%v; the run ends with step %d", err, t.Step)
			break
		}
		skipped = 0
		if err := t.evaluateIfDue(ctx); err != nil {
			return err
		}
		if every := t.cfg.Checkpoint.Every; every > 0 && t.Step%every == 0 {
			if err := t.save(); err != nil {
				return err
			}
		}
	}
	return t.finish(ctx)
}

// maxSkipped batches that teach nothing end a run: its tasks are all solved, or all out of reach. That is an error if it learned nothing
// before.
const maxSkipped = 10

// next waits for a batch; meanwhile the engine may have all cores.
func (t *Trainer) next(ctx context.Context) (rollout.Batch, error) {
	t.show("collecting")
	t.Share(true)
	defer t.Share(false)
	return t.collector.Next(ctx)
}

// update makes one optimizer step of a batch and refits the engine, unless there is nothing to learn from.
func (t *Trainer) update(ctx context.Context, s *torch.Scope, b rollout.Batch) (bool, error) {
	t.show("training")
	row := map[string]float64{}
	samples, err := t.samples(ctx, s, b, row)
	if err != nil {
		return false, fmt.Errorf("trainer: step %d: %w", t.Step+1, err)
	}
	lr := t.schedule.At(t.Step)
	var stats Stats
	if t.critic != nil || hasSignal(samples, t.cfg.Loss) { // a critic learns from equal rewards too
		stats, err = t.policy.Step(ctx, s, samples, lr, t.Share)
		if err == nil && stats.Stepped && t.critic != nil {
			err = t.critic.learn(s, samples, t.critic.config.schedule(t.cfg.Steps).At(t.Step), t.Share, stats.Metrics)
		}
		if err != nil {
			return false, fmt.Errorf("trainer: step %d: %w", t.Step+1, err)
		}
	}
	if !stats.Stepped {
		t.Skipped++
		t.collector.Skip()
		t.Queue = new(t.collector.State())
		t.say("step %d: a batch was skipped: its advantages are all 0, or no token is left to train on", t.Step+1)
		return false, nil
	}
	// The weights have moved: from here on a stop must not come between them and the rest of the state.
	ctx = context.WithoutCancel(ctx)
	age := staleness(samples, t.Version)
	t.Step, t.Version = t.Step+1, t.Version+1
	if err := t.Sink.Load(ctx, t.Version, t.policy.Params()); err != nil {
		return false, err
	}
	diff, tokens, err := t.probe(ctx, s, b)
	if err != nil {
		return false, fmt.Errorf("trainer: step %d: probe: %w", t.Step, err)
	}
	if err := t.collector.SetVersion(t.Version); err != nil {
		return false, err
	}
	t.Queue = new(t.collector.State())
	t.policy.moved = false
	for name, m := range stats.Metrics {
		if m.Count != 0 { // else the batch had nothing that the metric is of
			row[name] = m.Mean()
		}
	}
	now := time.Now()
	maps.Copy(row, map[string]float64{
		KeyStep: float64(t.Step), KeyVersion: float64(t.Version), KeyRewardMean: b.RewardMean,
		KeyLoss: stats.Loss, KeyGradNorm: stats.GradNorm,
		KeyTokensPerSecond: float64(t.sampled.Swap(0)) / now.Sub(t.last).Seconds(), KeyStalenessMax: float64(age),
		KeyLogProbDiffMax: diff, KeyLogProbDiffToks: float64(tokens),
		"lr": lr, "seconds": now.Sub(t.last).Seconds(), "trained_tokens": float64(stats.Tokens), "failed": float64(b.Failed),
		"filtered": float64(b.Filtered), "truncated": 0, "skipped_steps": float64(t.Skipped),
		"memory_peak_mb": float64(torch.Memory().Peak) / (1 << 20),
	})
	for kind, n := range b.Kinds {
		row["failed_"+kind] = float64(n)
	}
	rollouts := 0
	for _, group := range b.Groups {
		rollouts += len(group)
		for _, r := range group {
			if r.Truncated {
				row["truncated"]++
			}
		}
	}
	if err := t.steerKL(row, rollouts); err != nil {
		return false, err
	}
	t.last, t.reward, t.speed = now, b.RewardMean, row[KeyTokensPerSecond]
	t.show("")
	return true, t.metrics.Write(row)
}

// finish evaluates once more, saves, and says what came of it.
func (t *Trainer) finish(ctx context.Context) error {
	if t.collector != nil {
		t.collector.Close() // rollouts past the last step are of no use
	}
	if err := t.evaluate(ctx, true); err != nil {
		return err
	}
	if err := t.save(); err != nil {
		return err
	}
	t.Console.Done()
	if t.Before != nil && t.Score != nil {
		t.say("held-out score %.3f → %.3f", *t.Before, *t.Score)
	}
	if t.saved != "" {
		t.say("checkpoint %s", t.saved)
	}
	t.say("metrics    %s", t.dir.file("metrics.jsonl"))
	return nil
}

func (t *Trainer) say(format string, args ...any) { fmt.Fprintf(t.Console, format+"\n", args...) }

func (t *Trainer) show(note string) {
	done := t.Step - t.startStep
	left := TimeLeft(time.Since(t.started), done, t.cfg.Steps-t.Step)
	t.Console.Show(Status{Step: t.Step, Steps: t.cfg.Steps, Reward: t.reward, TokensPerSecond: t.speed, Left: left, Note: note})
}
