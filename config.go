package molt

import (
	"errors"
	"fmt"
	"os"

	"github.com/molt-go/molt/estimators"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent"
	"github.com/molt-go/molt/rollout/engine"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/trainer"
)

// Config is a run as its TOML file describes it; start from [DefaultConfig]. The tables of trainer.Config stand beside these.
type Config struct {
	trainer.Config
	// Mode is what to do; "rl", the default, is all there is.
	Mode string `toml:"mode"`
	// Resume goes on from the newest checkpoint of the run's folder; default false.
	Resume bool `toml:"resume"`

	Model   ModelConfig        `toml:"model"`
	Data    rollout.DataConfig `toml:"data"`
	Agent   agent.Config       `toml:"agent"`
	Rollout rollout.Config     `toml:"rollout"`
	Engine  engine.Config      `toml:"engine"`
}

// ModelConfig is the table [model].
type ModelConfig struct {
	// Path is a Hugging Face folder or a .gguf file; a leading ~ and $VARIABLES are replaced.
	Path string `toml:"path"`
	// Reference is the model that KL coefficients hold the policy to, or the teacher that it learns from, given as Path is; default: the
	// weights at Path, from which the run started (a teacher must be named). It is loaded, in DType, if [algo] or [loss] asks for it.
	Reference string `toml:"reference"`
	// DType is that of the forward and backward passes and of the engine, "float32" (default) or "bfloat16"; parameters and optimizer
	// state are float32.
	DType string `toml:"dtype"`
}

// DefaultConfig has the values that hold where the file is silent.
func DefaultConfig() Config {
	return Config{
		Config: trainer.DefaultConfig(), Mode: "rl", Model: ModelConfig{DType: "float32"},
		Data: rollout.DefaultDataConfig(), Rollout: rollout.DefaultConfig(), Engine: engine.DefaultConfig(),
	}
}

// Validate returns every wrong value by the name of its key.
func (c Config) Validate() error {
	errs := []error{c.Config.Validate(), c.Data.Validate(), c.Agent.Validate(), c.Rollout.Validate(), c.Engine.Validate()}
	if c.Mode != "rl" {
		errs = append(errs, fmt.Errorf(`mode = %q is not known; there is "rl"`, c.Mode))
	}
	if n := c.Rollout.Prompts * c.Rollout.Samples; c.Algo.KLTarget != 0 && float64(n) >= 5*c.Algo.KLHorizon {
		errs = append(errs, fmt.Errorf("algo.kl_horizon is %v, want more than a fifth of the %d rollouts of a batch", c.Algo.KLHorizon, n))
	}
	if c.Algo.Estimator == "pass_at_k" && c.Algo.PassK > c.Rollout.Samples {
		errs = append(errs, fmt.Errorf("algo.pass_k is %d, but a group has only [rollout] samples = %d", c.Algo.PassK, c.Rollout.Samples))
	}
	if c.Rollout.Samples == 1 && estimators.Needs(c.Algo.Estimator, estimators.Groups) {
		errs = append(errs, fmt.Errorf("[rollout] samples = 1: %s compares the rollouts of a group with each other", c.Algo.Estimator))
	}
	if c.Rollout.PartialGroups && estimators.Needs(c.Algo.Estimator, estimators.Groups) {
		errs = append(errs, fmt.Errorf("[rollout] partial_groups: %s compares the rollouts of a whole group; leave it out, and a group "+
			"that lost one is replaced", c.Algo.Estimator))
	}
	if c.Algo.Estimator == "on_policy_distill" && c.Model.Reference == "" {
		errs = append(errs, errors.New("[model] reference is missing: on_policy_distill learns from the teacher that it names"))
	}
	if c.Engine.Context > c.Optim.MicroTokens+1 {
		errs = append(errs, fmt.Errorf("[engine] context = %d: rollouts of more than optim.micro_tokens = %d tokens and one cannot be "+
			"trained on: lower the one or raise the other", c.Engine.Context, c.Optim.MicroTokens))
	}
	if c.Model.Path == "" {
		errs = append(errs, errors.New("[model] path is missing: name a Hugging Face folder or a .gguf file"))
	}
	if d, err := torch.ParseDType(c.Model.DType); err != nil || d != torch.Float32 && d != torch.BFloat16 {
		errs = append(errs, fmt.Errorf("[model] dtype = %q: must be float32 or bfloat16", c.Model.DType))
	}
	return errors.Join(errs...)
}

// expand replaces a leading ~ and $VARIABLES; $XDG_CACHE_HOME and ~/.cache are the same where the former is not set.
func expand(path string) (string, error) {
	var err error
	path = os.Expand(path, func(name string) string {
		if v := os.Getenv(name); v != "" {
			return v
		}
		dir := ""
		switch name {
		case "XDG_CACHE_HOME":
			dir, err = os.UserCacheDir()
		case "HOME":
			dir, err = os.UserHomeDir()
		default:
			err = fmt.Errorf("[model] the variable %s is not set", name)
		}
		return dir
	})
	if err == nil && len(path) > 1 && path[:2] == "~/" {
		var home string
		home, err = os.UserHomeDir()
		path = home + path[1:]
	}
	return path, err
}
