package rollout

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Config is the [rollout] table.
type Config struct {
	Prompts       int           `toml:"prompts"`        // groups in a batch
	Samples       int           `toml:"samples"`        // rollouts of one prompt: the size of a group
	MaxTurns      int           `toml:"max_turns"`      // model calls of a step-style agent in one rollout
	MaxTokens     int           `toml:"max_tokens"`     // new tokens in one turn; a chat agent's own number holds instead
	Temperature   float32       `toml:"temperature"`    // above 0: greedy tokens cannot be trained on
	Timeout       time.Duration `toml:"timeout"`        // of one rollout, as "5m"; then it has failed
	Concurrency   int           `toml:"concurrency"`    // rollouts that run at once
	MaxFailed     float64       `toml:"max_failed"`     // failed rollouts for one batch, as a share of its size, before the run stops
	MaxRefill     int           `toml:"max_refill"`     // groups taken out for one batch, in batches, before the run stops
	FilterEqual   bool          `toml:"filter_equal"`   // take out groups whose scores are all equal: they teach little
	PartialGroups bool          `toml:"partial_groups"` // keep what is left of a group with failures; not for group estimators
	// ClientSampling says what becomes of the sampling that a chat agent asks for itself: "honour", "override" (the run's holds) or
	// "refuse". Tokens that are not drawn from the model's own distribution are not trained on.
	ClientSampling string `toml:"client_sampling"`
	TopLogP        int    `toml:"-"` // most likely tokens to record at each position, where the loss needs them
}

// DefaultConfig has the values that hold where the file is silent.
func DefaultConfig() Config {
	return Config{
		Prompts: 8, Samples: 8, MaxTurns: 8, MaxTokens: 256, Temperature: 1,
		Timeout: 10 * time.Minute, Concurrency: 256, MaxFailed: 0.5, MaxRefill: 4, ClientSampling: "honour",
	}
}

// Validate lists what is wrong with c. It changes nothing.
func (c Config) Validate() error {
	t := float64(c.Temperature)
	return errors.Join(
		need(c.Prompts >= 1, "[rollout] prompts = %d: must be at least 1", c.Prompts),
		need(c.Samples >= 1, "[rollout] samples = %d: must be at least 1", c.Samples),
		need(c.MaxTurns >= 1, "[rollout] max_turns = %d: must be at least 1", c.MaxTurns),
		need(c.MaxTokens >= 1, "[rollout] max_tokens = %d: must be at least 1", c.MaxTokens),
		need(c.Concurrency >= 1, "[rollout] concurrency = %d: must be at least 1", c.Concurrency),
		need(finite(t) && t > 0, "[rollout] temperature = %v: must be above 0, as greedy tokens cannot be trained on", t),
		need(c.Timeout >= time.Millisecond, `[rollout] timeout = %q: must be at least "1ms", with its unit`, c.Timeout),
		need(finite(c.MaxFailed) && c.MaxFailed >= 0, "[rollout] max_failed = %v: must be a share, 0 or more", c.MaxFailed),
		need(c.MaxRefill >= 0, "[rollout] max_refill = %d: must be 0 or more", c.MaxRefill),
		need(slices.Contains([]string{"honour", "override", "refuse"}, c.ClientSampling),
			`[rollout] client_sampling = %q: must be "honour", "override" or "refuse"`, c.ClientSampling),
		need(!c.FilterEqual || c.Samples != 1, "[rollout] filter_equal with samples = 1 would take out every group"),
	)
}

func need(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// Sampling is what c asks for in each turn.
func (c Config) Sampling() Sampling {
	return Sampling{Temperature: c.Temperature, MaxTokens: c.MaxTokens, TopLogP: c.TopLogP}
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
	jsonl := c.Source == "jsonl"
	return errors.Join(
		need(!jsonl || c.Path != "", `[data] path is missing: name the file to train on, or another source than "jsonl"`),
		need(jsonl || c.Path == "" && c.EvalPath == "", `[data] path and eval_path are for source = "jsonl", not %q`, c.Source),
		need(c.Tasks >= 0, "[data] tasks = %d: must be 0 or more", c.Tasks),
		need(c.Eval >= 0, "[data] eval = %d: must be 0 or more", c.Eval),
		need(c.Epochs >= 0, "[data] epochs = %d: must be 0 or more", c.Epochs),
	)
}
