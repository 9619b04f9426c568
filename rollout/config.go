package rollout

import (
	"errors"
	"fmt"
	"time"
)

// Config is the [rollout] table.
type Config struct {
	Prompts       int           `toml:"prompts"`        // groups in a batch
	Samples       int           `toml:"samples"`        // rollouts of one prompt: the size of a group
	MaxTurns      int           `toml:"max_turns"`      // model calls of a step-style agent in one rollout
	MaxTokens     int           `toml:"max_tokens"`     // new tokens in one turn
	Temperature   float32       `toml:"temperature"`    // above 0: greedy tokens cannot be trained on
	Timeout       time.Duration `toml:"timeout"`        // of one rollout, as "5m"; then it has failed
	Concurrency   int           `toml:"concurrency"`    // rollouts that run at once
	MaxFailed     float64       `toml:"max_failed"`     // failed rollouts for one batch, as a share of its size, before the run stops
	MaxRefill     int           `toml:"max_refill"`     // groups taken out for one batch, in batches, before the run stops
	FilterEqual   bool          `toml:"filter_equal"`   // take out groups whose rewards are all equal: they teach nothing
	PartialGroups bool          `toml:"partial_groups"` // keep what is left of a group with failures; not for group estimators
}

// DefaultConfig has the values that hold where the file is silent.
func DefaultConfig() Config {
	return Config{
		Prompts: 8, Samples: 8, MaxTurns: 8, MaxTokens: 256, Temperature: 1,
		Timeout: 10 * time.Minute, Concurrency: 256, MaxFailed: 0.5, MaxRefill: 4,
	}
}

// Validate lists what is wrong with c. It changes nothing.
func (c Config) Validate() error {
	var errs []error
	positive := func(key string, v int) {
		if v <= 0 {
			errs = append(errs, fmt.Errorf("[rollout] %s = %d: must be at least 1", key, v))
		}
	}
	positive("prompts", c.Prompts)
	positive("samples", c.Samples)
	positive("max_turns", c.MaxTurns)
	positive("max_tokens", c.MaxTokens)
	positive("concurrency", c.Concurrency)
	if t := float64(c.Temperature); !finite(t) || t <= 0 {
		errs = append(errs, fmt.Errorf("[rollout] temperature = %v: must be above 0, as greedy tokens cannot be trained on", t))
	}
	if c.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("[rollout] timeout = %q: must be above 0", c.Timeout))
	}
	if !finite(c.MaxFailed) || c.MaxFailed < 0 {
		errs = append(errs, fmt.Errorf("[rollout] max_failed = %v: must be a share, 0 or more", c.MaxFailed))
	}
	if c.MaxRefill < 0 {
		errs = append(errs, fmt.Errorf("[rollout] max_refill = %d: must be 0 or more", c.MaxRefill))
	}
	if c.FilterEqual && c.Samples == 1 {
		errs = append(errs, errors.New("[rollout] filter_equal with samples = 1 would take out every group"))
	}
	return errors.Join(errs...)
}

// Sampling is what c asks for in each turn.
func (c Config) Sampling() Sampling {
	return Sampling{Temperature: c.Temperature, MaxTokens: c.MaxTokens}
}

// DataConfig is the [data] table.
type DataConfig struct {
	Source   string `toml:"source"`    // "jsonl", or a registered generator of tasks
	Path     string `toml:"path"`      // jsonl: the file to train on
	EvalPath string `toml:"eval_path"` // jsonl: the held-out file, if any
	Tasks    int    `toml:"tasks"`     // generators: number of tasks to train on; 0: all there are
	Eval     int    `toml:"eval"`      // number of held-out tasks; 0: all there are
	Shuffle  bool   `toml:"shuffle"`   // each epoch in an order of its own
	Seed     uint64 `toml:"seed"`      // of that order, and of generated tasks
	Epochs   int    `toml:"epochs"`    // 0: without end
}

// DefaultDataConfig has the values that hold where the file is silent.
func DefaultDataConfig() DataConfig { return DataConfig{Source: "jsonl", Shuffle: true, Eval: 128} }

// Validate lists what is wrong with c. It changes nothing.
func (c DataConfig) Validate() error {
	var errs []error
	if c.Source == "jsonl" && c.Path == "" {
		errs = append(errs, errors.New(`[data] path is missing: name the file to train on, or another source than "jsonl"`))
	}
	if c.Source != "jsonl" && (c.Path != "" || c.EvalPath != "") {
		errs = append(errs, fmt.Errorf(`[data] path and eval_path are for source = "jsonl", not %q`, c.Source))
	}
	for key, v := range map[string]int{"tasks": c.Tasks, "eval": c.Eval, "epochs": c.Epochs} {
		if v < 0 {
			errs = append(errs, fmt.Errorf("[data] %s = %d: must be 0 or more", key, v))
		}
	}
	return errors.Join(errs...)
}
