package trainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// runState is how far a run has come. Its exported fields are saved.
type runState struct {
	Step    int            `json:"step"`
	Version int32          `json:"version"`
	Skipped int            `json:"skipped_steps"`
	Queue   *rollout.State `json:"queue"`
	KLCoef  float64        `json:"kl_coef"` // after the last step, 0 without one: algo.kl_target steers it on from there

	Before    *float64 `json:"score_before"` // held-out, before training
	Score     *float64 `json:"score"`        // held-out, last
	Evaluated int      `json:"evaluated"`    // step of the last evaluation; −1: none

	reward, speed float64 // of the last row
	saved         string  // the newest checkpoint
	savedStep     int
}

const (
	stateFile     = "state.json"
	optimizerFile = "optimizer.safetensors"
	criticFolder  = "critic"
)

func (d *RunDir) file(name string) string { return filepath.Join(d.Path, name) }

// open makes the policy, from the model or from the newest checkpoint, and the metrics file.
func (t *Trainer) open(s *torch.Scope) error {
	t.runState = runState{reward: math.NaN(), speed: math.NaN(), Evaluated: -1, savedStep: -1}
	path, keep := t.Model, -1
	old, err := t.checkpoints()
	if err != nil {
		return err
	}
	switch {
	case !t.Resume && len(old) > 0:
		return fmt.Errorf("run folder %s holds checkpoints of an earlier run; go on with -set resume=true, choose another name with "+
			"-set name=…, or delete it", t.dir.Path)
	case t.Resume && len(old) == 0:
		return fmt.Errorf("resume = true, but %s holds no checkpoint", t.dir.file("checkpoints"))
	case t.Resume:
		path = old[len(old)-1]
		data, err := os.ReadFile(filepath.Join(path, stateFile))
		if err != nil {
			return fmt.Errorf("resume: %w", err)
		}
		if err := json.Unmarshal(data, &t.runState); err != nil {
			return fmt.Errorf("resume: %s: %w", filepath.Join(path, stateFile), err)
		}
		t.saved, t.savedStep, keep = path, t.Step, t.Step
		t.say("resuming %s from step %d", t.dir.Path, t.Step)
	}
	master, err := model.Load(s, path, torch.Float32)
	if err != nil {
		return err
	}
	if t.policy, err = NewPolicy(s, master, t.DType, t.cfg.Optim, t.cfg.Loss); err != nil {
		return err
	}
	if t.Resume {
		if err := t.policy.LoadOptimizer(filepath.Join(path, optimizerFile)); err != nil {
			return fmt.Errorf("resume: %w (optim.name and optim.freeze must be those of the run so far)", err)
		}
	}
	if t.needsReference() {
		if err := t.openReference(s); err != nil {
			return err
		}
	}
	if estimators.Needs(t.cfg.Algo.Estimator, estimators.Values) {
		from := t.Model
		if t.Resume {
			from = filepath.Join(path, criticFolder)
		}
		if t.critic, err = openCritic(s, from, t.Resume, t.DType, t.cfg.Optim, t.cfg.Loss); err != nil {
			return fmt.Errorf("the critic of algo.estimator %q: %w", t.cfg.Algo.Estimator, err)
		}
	}
	if t.KLCoef != 0 && t.cfg.Algo.KLTarget != 0 {
		*t.klCoef() = t.KLCoef
	}
	t.metrics, err = t.dir.OpenMetrics(keep)
	return err
}

// checkpoints lists the complete ones, oldest first, and removes what a killed process left unfinished.
func (t *Trainer) checkpoints() ([]string, error) {
	entries, err := os.ReadDir(t.dir.file("checkpoints"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	var steps []int
	for _, e := range entries {
		var step int
		if path := t.dir.file("checkpoints/" + e.Name()); strings.HasSuffix(path, ".tmp") {
			if err := os.RemoveAll(path); err != nil {
				return nil, fmt.Errorf("checkpoint: %w", err)
			}
		} else if _, bad := fmt.Sscanf(e.Name(), "step-%d", &step); bad == nil {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	var paths []string
	for _, step := range steps {
		paths = append(paths, t.checkpoint(step))
	}
	return paths, nil
}

func (t *Trainer) checkpoint(step int) string {
	return t.dir.file(fmt.Sprintf("checkpoints/step-%06d", step))
}

// save writes a checkpoint of the last completed step, unless it is there: a Hugging Face folder of the float32 weights, the optimizer's
// state, and how far data and versions are. It appears under its name when it is complete, and the oldest beyond Keep go.
func (t *Trainer) save() error {
	if t.cfg.Checkpoint.Keep == 0 || t.savedStep == t.Step || t.Step == 0 || t.policy.moved { // moved: the weights are ahead of the rest
		return nil
	}
	t.show("saving")
	path := t.checkpoint(t.Step)
	tmp := path + ".tmp"
	state, err := json.MarshalIndent(t.runState, "", "  ")
	err = errors.Join(err, os.MkdirAll(tmp, 0o755))
	if err == nil && t.SaveText != nil {
		err = t.SaveText(tmp)
	}
	if err == nil {
		err = errors.Join(
			t.policy.save(tmp),
			os.WriteFile(filepath.Join(tmp, stateFile), state, 0o644),
		)
	}
	if err == nil && t.critic != nil {
		err = t.critic.save(filepath.Join(tmp, criticFolder))
	}
	if err == nil { // complete: it may have its name
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	t.saved, t.savedStep = path, t.Step
	old, err := t.checkpoints()
	if err != nil {
		return err
	}
	for _, path := range old[:max(0, len(old)-t.cfg.Checkpoint.Keep)] {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
	}
	return nil
}
