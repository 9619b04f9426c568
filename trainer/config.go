package trainer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/molt-go/molt/estimators"
)

// Config holds the tables that the trainer reads and the top-level keys of the run. DefaultConfig has the defaults.
type Config struct {
	Name  string `toml:"name"`  // of the run and of its folder
	Seed  int64  `toml:"seed"`  // of data order and sampling
	Steps int    `toml:"steps"` // optimizer steps of the whole run, those before a resume included

	Algo       AlgoConfig       `toml:"algo"`
	Loss       LossConfig       `toml:"loss"`
	Optim      OptimConfig      `toml:"optim"`
	Async      AsyncConfig      `toml:"async"`
	Eval       EvalConfig       `toml:"eval"`
	Checkpoint CheckpointConfig `toml:"checkpoint"`
	Log        LogConfig        `toml:"log"`
}

// AlgoConfig is the table [algo]: from rewards to advantages.
type AlgoConfig struct {
	Estimator string `toml:"estimator"` // a name of estimators.Names
	// KL is the estimate, "k1", "k2", "k3" or "k3_base" (see estimators.KL), that kl_coef multiplies and that on_policy_distill learns
	// from: of the log-probs that the tokens were sampled at, against those under the reference model.
	KL string `toml:"kl"`
	// KLTarget steers kl_coef, of this table or of [loss], towards this KL, in nats: see estimators.KLController; 0: it is fixed. A resumed
	// run goes on with the coefficient that it had.
	KLTarget           float64 `toml:"kl_target"`
	KLHorizon          float64 `toml:"kl_horizon"` // rollouts over which kl_coef moves by about its own size, where KLTarget is given
	estimators.Options         // further keys of this table: gamma, lambda, kl_coef, whiten and reward shaping
}

// needsKL tells whether the estimator gets KLs against the reference model.
func (c AlgoConfig) needsKL() bool {
	return c.KLCoef != 0 || estimators.Needs(c.Estimator, estimators.KLs)
}

// LossConfig is the table [loss]: from advantages to gradients.
type LossConfig struct {
	Name     string  `toml:"name"`     // a registered policy loss
	ClipLow  float64 `toml:"clip_low"` // ppo, gspo and clip_cov bound the probability ratio to 1-ClipLow … 1+ClipHigh
	ClipHigh float64 `toml:"clip_high"`
	DualClip float64 `toml:"dual_clip"` // times its size bounds the loss of tokens with negative advantage; above 1; 0: off
	// Old says what the ratio is taken to: "behaviour", the log-probs that the tokens were sampled at, or "policy", those under the policy
	// before the step. Under "policy" the ratio is 1, and the correction below stands for what age and engine have changed.
	Old         string  `toml:"old"`
	Aggregation string  `toml:"aggregation"`  // of token losses to one number, see aggregations
	NormTokens  int     `toml:"norm_tokens"`  // the length that "seq-mean-token-sum-norm" divides by
	EntropyCoef float64 `toml:"entropy_coef"` // times the mean entropy, in nats, is taken off the loss; below 0 drives entropy down
	KLCoef      float64 `toml:"kl_coef"`      // times the mean KL to the reference policy, in nats, is added; 0: no reference is needed
	KL          string  `toml:"kl"`           // the estimate that KLCoef multiplies: "k1", "k2", "k3" or "k3_base", see klLosses
	KLReference string  `toml:"kl_reference"` // what KLCoef pulls to: "model", the reference model, or "behaviour", the policy that sampled
	ValueClip   float64 `toml:"value_clip"`   // a critic's values move the value loss within this of the old ones, see ValueLoss; 0: off
	// MaxAge is the largest age, in versions, of a token that is trained on; older ones of the same rollout stay in the context. −1, the
	// default: all, each with the log-prob that it was sampled at.
	MaxAge int `toml:"max_age"`
	// ScoreCentering takes from each loss what the sampler's choice alone would push to, by its so many most likely tokens; 0: off.
	ScoreCentering        int                `toml:"score_centering"`
	Params                map[string]float64 `toml:"params"` // of the loss; see RegisterLoss
	estimators.Correction                    // further keys of this table: is_preset, is_level, is_mode, …
}

// needsReference tells whether samples need log-probs under a reference model.
func (c LossConfig) needsReference() bool { return c.KLCoef != 0 && c.KLReference == "model" }

// AsyncConfig is the table [async]: how rollouts and training share time and cores.
type AsyncConfig struct {
	Staleness     int `toml:"staleness"`     // the largest age of a trained token, in optimizer steps; 0: synchronous
	TrainThreads  int `toml:"train_threads"` // cores of each side; 0: see Threads
	EngineThreads int `toml:"engine_threads"`
}

// EvalConfig is the table [eval]: held-out tasks, before, during and after training.
type EvalConfig struct {
	Every       int `toml:"every"`        // optimizer steps between two evaluations; 0: before and after training only
	Tasks       int `toml:"tasks"`        // held-out tasks, answered greedily; 0: no evaluation
	ShowReplies int `toml:"show_replies"` // held-out replies printed before and after training
}

// CheckpointConfig is the table [checkpoint].
type CheckpointConfig struct {
	Every int `toml:"every"` // optimizer steps between two checkpoints; 0: at the end and when stopped only
	Keep  int `toml:"keep"`  // newest checkpoints that are kept; 0: none is written
}

// LogConfig is the table [log].
type LogConfig struct {
	Dir string `toml:"dir"` // holds the run folders
}

// DefaultConfig has the values that hold where the file is silent.
func DefaultConfig() Config {
	return Config{
		Name:  "run",
		Steps: 100,
		Algo:  AlgoConfig{Estimator: "grpo", KL: "k1", KLHorizon: 10000, Options: estimators.DefaultOptions()},
		Loss: LossConfig{Name: "ppo", Old: "behaviour", ClipLow: 0.2, ClipHigh: 0.2, Aggregation: "token-mean", KL: "k2",
			KLReference: "model", ValueClip: 0.2, MaxAge: -1, Correction: estimators.DefaultCorrection()},
		Optim: OptimConfig{Name: "adamw", LR: 1e-5, CriticLR: 1e-5, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, MuonLR: 0.02, Momentum: 0.95,
			Nesterov: true, MaxNorm: 1, Schedule: "constant", NumCycles: 1, Power: 1, DecayType: "cosine", MicroTokens: 2048},
		Async:      AsyncConfig{Staleness: 1},
		Eval:       EvalConfig{Tasks: 64, ShowReplies: 10},
		Checkpoint: CheckpointConfig{Keep: 2},
		Log:        LogConfig{Dir: "runs"},
	}
}

// Validate returns every wrong value by the name of its key. Names of losses and schedules are checked by those who have them.
func (c Config) Validate() error {
	return errors.Join(
		check("name", c.Name, folder.MatchString(c.Name), "a folder name: letters, digits, dot, dash and underscore"),
		check("seed", c.Seed, c.Seed >= 0, "at least 0"),
		check("steps", c.Steps, c.Steps >= 1, "at least 1"),
		check("algo.kl_target", c.Algo.KLTarget, c.Algo.KLTarget == 0 || (c.Algo.KLCoef != 0) != (c.Loss.KLCoef != 0),
			"0, or one coefficient to steer: algo.kl_coef or loss.kl_coef"),
		c.Algo.validate(), c.Loss.validate(), c.Optim.validate(), c.Async.validate(),
		check("eval.every", c.Eval.Every, c.Eval.Every >= 0, "at least 0 (0: before and after training only)"),
		check("eval.tasks", c.Eval.Tasks, c.Eval.Tasks >= 0, "at least 0 (0: no evaluation)"),
		check("eval.show_replies", c.Eval.ShowReplies, c.Eval.ShowReplies >= 0, "at least 0"),
		check("checkpoint.every", c.Checkpoint.Every, c.Checkpoint.Every >= 0, "at least 0 (0: at the end only)"),
		check("checkpoint.keep", c.Checkpoint.Keep, c.Checkpoint.Keep >= 0, "at least 0 (0: no checkpoint)"),
		check("checkpoint.keep", c.Checkpoint.Keep, c.Checkpoint.Keep > 0 || c.Checkpoint.Every == 0, "at least 1 with checkpoint.every"),
		check("log.dir", c.Log.Dir, c.Log.Dir != "", "a folder"),
	)
}

func (c AlgoConfig) validate() error {
	err := estimators.Check(c.Estimator)
	switch {
	case err != nil:
		return fmt.Errorf("algo.estimator: %w", err)
	case c.Estimator == "on_policy_distill" && c.KLCoef == 0:
		return errors.New("algo.kl_coef is 0, but on_policy_distill learns from nothing but the KL times it: 1 is usual")
	case c.Estimator == "gdpo" && c.Options.Shapes():
		return errors.New("algo.overlong_buffer, stop_coef, reward_min and reward_max shape the whole reward, but gdpo sees its parts " +
			"only: leave them out and make a penalty a part")
	}
	has := func(n estimators.Need) bool { return estimators.Needs(c.Estimator, n) }
	if _, err := estimators.KL(c.KL, nil, nil, nil); err != nil {
		return fmt.Errorf("algo.kl: %w", err)
	}
	if err := c.Options.Validate(); err != nil {
		return fmt.Errorf("algo.%w", err)
	}
	return errors.Join(
		check("algo.kl_coef", c.KLCoef, c.KLCoef == 0 || has(estimators.KLs) || has(estimators.KLReward),
			fmt.Sprintf("0: %s takes no KL off rewards; loss.kl_coef is that of the loss", c.Estimator)),
		check("algo.bootstrap", c.Bootstrap, !c.Bootstrap || has(estimators.Values), "false: only an estimator with a critic has it"),
		check("algo.reward_weights", c.RewardWeights, len(c.RewardWeights) == 0 || has(estimators.Components),
			"none: only an estimator of parts of the reward has them"),
		check("algo.kl_target", c.KLTarget, atLeast0(c.KLTarget), "at least 0 (0: kl_coef is fixed)"),
		check("algo.kl_horizon", c.KLHorizon, c.KLHorizon > 0 && atLeast0(c.KLHorizon), "above 0"),
	)
}

func (c LossConfig) validate() error {
	is, err := c.Correction.Resolve()
	if err != nil {
		err = fmt.Errorf("loss.%w", err)
	}
	one := func(key, value string, of ...string) error {
		return check(key, value, slices.Contains(of, value), strings.Join(of, ", "))
	}
	weighted := (is.Level == "off" || is.Level == "token") && is.Gate == "ratio"
	return errors.Join(
		FindLoss(c.Name),
		c.validateParams(),
		check("loss.clip_low", c.ClipLow, c.ClipLow >= 0 && c.ClipLow <= 1, "0 to 1"),
		check("loss.clip_high", c.ClipHigh, atLeast0(c.ClipHigh), "at least 0"),
		check("loss.clip_high", c.ClipHigh, c.Name != "cispo" || c.ClipHigh >= 1, "at least 1 for cispo, whose ceiling of the ratio it is"),
		check("loss.dual_clip", c.DualClip, c.DualClip == 0 || c.DualClip > 1 && atLeast0(c.DualClip), "above 1 (0: off)"),
		check("loss.dual_clip", c.DualClip, c.DualClip == 0 || c.Name == "ppo", "0: only ppo has it"),
		one("loss.old", c.Old, "behaviour", "policy"),
		one("loss.aggregation", c.Aggregation, slices.Sorted(maps.Keys(aggregations))...),
		check("loss.norm_tokens", c.NormTokens, c.Aggregation != "seq-mean-token-sum-norm" || c.NormTokens > 0,
			"the length to divide by, which loss.aggregation asks for"),
		check("loss.entropy_coef", c.EntropyCoef, finite(c.EntropyCoef), "a number"),
		check("loss.kl_coef", c.KLCoef, atLeast0(c.KLCoef), "at least 0 (0: off)"),
		one("loss.kl", c.KL, slices.Sorted(maps.Keys(klLosses))...),
		check("loss.value_clip", c.ValueClip, atLeast0(c.ValueClip), "at least 0 (0: off)"),
		one("loss.kl_reference", c.KLReference, "model", "behaviour"),
		err,
		check("loss.old", c.Old, err != nil || is.Level == "off" || c.Old == "policy",
			`"policy" for importance sampling: under "behaviour" the ratio is in the loss itself`),
		check("loss.max_age", c.MaxAge, c.MaxAge >= -1, "at least 0 (−1: no limit)"),
		check("loss.score_centering", c.ScoreCentering, c.ScoreCentering >= 0 && c.ScoreCentering < 256, "0 to 255 (0: off)"),
		check("loss.score_centering", c.ScoreCentering, c.ScoreCentering == 0 || weighted,
			"0 with this correction: it goes with is_level off or token and is_gate ratio"),
	)
}

func (c LossConfig) validateParams() error {
	var errs []error
	var known []string
	for _, p := range losses[c.Name].params {
		known = append(known, p.Name)
		if v, ok := c.Params[p.Name]; ok {
			errs = append(errs, check("loss.params."+p.Name, v, v >= p.Min && v <= p.Max, fmt.Sprintf("%v to %v", p.Min, p.Max)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Params)) {
		if !slices.Contains(known, name) {
			errs = append(errs, fmt.Errorf("loss.params.%s is not known to the loss %q, which has: %s", name, c.Name,
				cmp.Or(strings.Join(known, ", "), "none")))
		}
	}
	return errors.Join(errs...)
}

func (c AsyncConfig) validate() error {
	return errors.Join(
		check("async.staleness", c.Staleness, c.Staleness >= 0, "at least 0 (0: synchronous)"),
		check("async.train_threads", c.TrainThreads, c.TrainThreads >= 0, "at least 0 (0: decide by the cores)"),
		check("async.engine_threads", c.EngineThreads, c.EngineThreads >= 0, "at least 0 (0: decide by the cores)"),
	)
}

// Threads returns the threads of the trainer and of the engine on a machine with that many cores. Where the config
// leaves it open each side has all cores in a synchronous run, where they take turns, and disjoint halves otherwise:
// shares that overlap slow both down.
func (c AsyncConfig) Threads(cores int) (train, engine int) {
	train, engine = cores, cores
	if c.Staleness > 0 {
		train = max(1, cores/2)
		engine = max(1, cores-train)
	}
	return cmp.Or(c.TrainThreads, train), cmp.Or(c.EngineThreads, engine)
}

func check(key string, value any, ok bool, want string) error {
	if ok {
		return nil
	}
	return fmt.Errorf("%s is %#v, want %s", key, value, want)
}

func atLeast0(x float64) bool { return x >= 0 && finite(x) }

var folder = regexp.MustCompile(`^[\w.-]*[\w-][\w.-]*$`) // not of dots alone
