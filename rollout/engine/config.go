package engine

import (
	"errors"
	"fmt"

	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// Values of Config.RefitKV.
const (
	RefitRecompute = "recompute" // running requests' keys and values are computed again under the new weights
	RefitKeep      = "keep"      // running requests go on with the keys and values that they have
)

// Config is the [engine] table.
type Config struct {
	CacheMB    int    `toml:"cache_mb"`    // memory for keys, values and routed experts, in MB of 2^20 bytes
	MaxRunning int    `toml:"max_running"` // sequences that run at once; others wait
	StepTokens int    `toml:"step_tokens"` // rows in one step: prompts are computed in chunks beside the running sequences
	Context    int    `toml:"context"`     // longest sequence in tokens, prompt included; 0: the model's
	RefitKV    string `toml:"refit_kv"`    // what a refit does to running requests: "recompute" or "keep"
}

// DefaultConfig has the values that hold where the file is silent.
func DefaultConfig() Config {
	return Config{CacheMB: 512, MaxRunning: 256, StepTokens: 512, RefitKV: RefitRecompute}
}

// Validate lists what is wrong with c. It changes nothing.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		key   string
		value int
	}{{"cache_mb", c.CacheMB}, {"max_running", c.MaxRunning}, {"step_tokens", c.StepTokens}} {
		if f.value < 1 || f.value > 1<<30 {
			errs = append(errs, fmt.Errorf("[engine] %s = %d: must be at least 1 and at most 2^30", f.key, f.value))
		}
	}
	if c.StepTokens < c.MaxRunning {
		errs = append(errs, fmt.Errorf("[engine] step_tokens = %d: must be at least max_running = %d, a row for each running sequence",
			c.StepTokens, c.MaxRunning))
	}
	if c.Context < 0 {
		errs = append(errs, fmt.Errorf("[engine] context = %d: must be 0, for the model's own, or more", c.Context))
	}
	if c.RefitKV != RefitRecompute && c.RefitKV != RefitKeep {
		errs = append(errs, fmt.Errorf("[engine] refit_kv = %q: must be %q or %q", c.RefitKV, RefitRecompute, RefitKeep))
	}
	return errors.Join(errs...)
}

// limits are what a config means for one model.
type limits struct {
	model.Config     // Context is the longest sequence
	pages        int // of the cache
}

func (c Config) limits(m model.Config, d torch.DType) (limits, error) {
	if err := c.Validate(); err != nil {
		return limits{}, err
	}
	l := limits{Config: m}
	if c.Context > m.Context {
		return l, fmt.Errorf("[engine] context = %d: the model's is %d", c.Context, m.Context)
	}
	if c.Context > 0 {
		l.Context = c.Context
	}
	pageBytes := (m.CacheBytes(d) + m.MoE.NumSparse(len(m.MoE.Layers))*m.Chosen*2) * pageSize // keys, values and routed experts
	if pageBytes <= 0 {
		return l, fmt.Errorf("engine: a cache of %s for %d layers × %d heads × %d cannot be made", d, m.Layers, m.KVHeads, m.HeadDim)
	}
	l.pages = min(c.CacheMB<<20/pageBytes, (1<<31-1)/pageSize) // slots are int32 in the attention's ranges
	if l.pages < 1 {
		return l, fmt.Errorf("[engine] cache_mb = %d: one page of %d tokens takes %d bytes; raise cache_mb to %d",
			c.CacheMB, pageSize, pageBytes, (pageBytes+1<<20-1)>>20)
	}
	return l, nil
}
