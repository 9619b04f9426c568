package trainer

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/molt-go/molt/rollout"
)

// first is the first n tasks of a source.
type first struct {
	rollout.Source
	n int
}

func (f first) Len() int { return min(f.n, f.Source.Len()) }

// evaluateIfDue evaluates before training, and every so many steps. The evaluation after training is finish's.
func (t *Trainer) evaluateIfDue(ctx context.Context) error {
	every := t.cfg.Eval.Every
	if t.Step == 0 || every > 0 && t.Step%every == 0 && t.Step < t.cfg.Steps {
		return t.evaluate(ctx, t.Step == 0)
	}
	return nil
}

// evaluate answers the held-out tasks greedily and writes their mean score. It touches nothing that training reads: its rollouts enter
// no queue, its seeds are its own.
func (t *Trainer) evaluate(ctx context.Context, show bool) error {
	if t.Held == nil || t.cfg.Eval.Tasks == 0 || t.Evaluated == t.Step {
		return nil
	}
	tasks := first{t.Held, t.cfg.Eval.Tasks}
	t.show(fmt.Sprintf("evaluating %d held-out tasks", tasks.Len()))
	t.Share(true)
	defer t.Share(false)
	greedy := rollout.Sampling{MaxTokens: t.Rollout.MaxTokens}
	result, err := rollout.Evaluate(ctx, t.Runner, tasks, greedy, uint64(t.cfg.Seed), t.Rollout)
	if err != nil {
		return err
	}
	mean, scored := result.Score()
	if scored == 0 {
		return fmt.Errorf("trainer: all %d held-out tasks failed, the first with: %w", tasks.Len(), result.Errs[0])
	}
	if t.Step == 0 {
		t.Before = &mean
	}
	t.Score, t.Evaluated = &mean, t.Step
	t.say("step %d: held-out score %.3f over %d tasks", t.Step, mean, scored)
	if show {
		t.showReplies(result)
	}
	t.last = time.Now()
	t.sampled.Store(0) // rates are since the last row
	return t.metrics.Write(map[string]float64{KeyStep: float64(t.Step), KeyEvalScore: mean, "eval_tasks": float64(scored)})
}

// showReplies prints the last message and the reply of the first held-out tasks.
func (t *Trainer) showReplies(e rollout.Evaluation) {
	for i, r := range e.Rollouts {
		if i == t.cfg.Eval.ShowReplies || t.Decode == nil {
			return
		}
		if r == nil {
			t.say("  failed: %v", e.Errs[i])
			continue
		}
		ask := ""
		if n := len(r.Task.Messages); n > 0 {
			ask = r.Task.Messages[n-1].Content
		}
		t.say("  %s\n    → %q  (want %q, score %g)", oneLine(ask), t.reply(r), r.Task.Answer, r.Score)
	}
}

// reply is the text of the tokens that the policy sampled in a rollout's last segment.
func (t *Trainer) reply(r *rollout.Rollout) string {
	if len(r.Samples) == 0 {
		return ""
	}
	tokens := r.Samples[len(r.Samples)-1].Tokens()
	var ids []int32
	for i, v := range tokens.Versions {
		if v >= 0 {
			ids = append(ids, tokens.IDs[i])
		}
	}
	return t.Decode(ids)
}

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 100 {
		return string(r[:99]) + "…"
	}
	return s
}
