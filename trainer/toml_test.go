package trainer

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// runConfig is what a program with more tables than the trainer's decodes into.
type runConfig struct {
	Config
	Model struct {
		Path  string   `toml:"path"`
		Dtype string   `toml:"dtype"`
		Stop  []string `toml:"stop"`
	} `toml:"model"`
	Agent struct {
		Args map[string]any `toml:"args"`
	} `toml:"agent"`
}

func decode(t *testing.T, text string, sets ...string) (runConfig, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run.toml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c := runConfig{Config: DefaultConfig()}
	err := DecodeTOML(path, sets, &c)
	return c, err
}

func TestTheFileOverridesDefaultsAndSetsOverrideTheFile(t *testing.T) {
	got, err := decode(t, "name = \"a\"\nsteps = 3\n[optim]\nlr = 1\n[algo]\ngamma = 0.5\nreward_max = 2\n[agent.args]\nfree = [1, 2]\n",
		"optim.lr=2e-5", "optim.lr = 3e-5", "name=it's a run", "model.path=/x/y z.gguf", "model.dtype=16", "loss.clip_high=1",
		`model.stop=["a", "b"]`, "agent.args.depth=4", "eval = {every = 5}", `log.dir="quoted"`, "model.path=/x/y.gguf\n[optim]")
	if err != nil {
		t.Fatal(err)
	}
	want := runConfig{Config: DefaultConfig()}
	want.Name, want.Steps, want.Optim.LR, want.Algo.Gamma, want.Algo.RewardMax = "it's a run", 3, 3e-5, 0.5, 2
	want.Model.Path, want.Model.Dtype, want.Model.Stop = "/x/y.gguf\n[optim]", "16", []string{"a", "b"}
	want.Loss.ClipHigh, want.Eval.Every, want.Log.Dir = 1, 5, "quoted"
	want.Agent.Args = map[string]any{"free": []any{int64(1), int64(2)}, "depth": int64(4)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestConfigErrorsNameLineAndNearestKey(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"unknown key", "[optim]\nbeta1 = 0.9\nlrr = 1\n", `run.toml:3: unknown key "optim.lrr"; the nearest known key is "optim.lr"`},
		{"other case", "[optim]\n\nLR = 1\n", `run.toml:3: unknown key "optim.LR"; the nearest known key is "optim.lr"`},
		{"other case of a table", "[Optim]\nlr = 1\n", `run.toml:1: unknown key "Optim"; the nearest known key is "optim"`},
		{"both cases", "[optim]\nlr = 1\nLr = 1\n", `unknown key "optim.Lr"; the nearest known key is "optim.lr"`},
		{"unknown table once", "steps = 1\n[optm]\nlr = 1\nb.c = 2\n", `run.toml:2: unknown key "optm"; the nearest known key is "optim"`},
		{"key in no table", "lr = 1\n", `run.toml:1: unknown key "lr"; the nearest known key is "optim.lr"`},
		{"key in the wrong table", "[algo]\nclip_low = 1\n", `unknown key "algo.clip_low"; the nearest known key is "loss.clip_low"`},
		{"key of an embedded struct", "[algo]\ngama = 1\n", `unknown key "algo.gama"; the nearest known key is "algo.gamma"`},
		{"hidden key", "[algo]\nMaxLen = 1\n", `unknown key "algo.MaxLen"`},
		{"dotted key", "steps = 1\noptim.betta1 = 1\n", `run.toml:2: unknown key "optim.betta1"; the nearest known key is "optim.beta1"`},
		{"inline table", "\noptim = {lr = 1, bet1 = 2}\n", `run.toml:2: unknown key "optim.bet1"; the nearest known key is "optim.beta1"`},
		{"quoted key", "[optim]\n\"l r\" = 1\n", `run.toml:2: unknown key "optim.\"l r\""; the nearest known key is "optim.lr"`},
		{"two unknown keys", "stepss = 1\nsed = 2\n", "run.toml:2: unknown key \"sed\"; the nearest known key is \"seed\""},
		{"key after a long string", "name = \"\"\"\nlrr = 1\n\"\"\"\nlrr = 1\n", `run.toml:4: unknown key "lrr"`},
		{"text for a number", "[optim]\nlr = \"high\"\n",
			`run.toml:2: (last key "optim.lr"): it is of type string, want float`},
		{"text for a list", "[model]\nstop = \"a\"\n", `run.toml:2: model.stop: want a list, as ["one", "two"]`},
		{"number for a free table", "[agent]\nargs = 3\n", `run.toml:2: agent.args: want a table, as {key = value}`},
		{"fraction for a count", "steps = 1.5\n", `run.toml:1: (last key "steps"): it is of type float64, want integer`},
		{"too large for a count", "steps = 9223372036854775808\n", "run.toml:1: (last key \"steps\"): 9223372036854775808 is out of range"},
		{"value for a table", "steps = 1\noptim = 3\n", `run.toml:2: (last key "optim"): type mismatch`},
		{"table for a value", "[optim.lr]\nx = 1\n", "want float"},
		{"duplicate key", "[optim]\nlr = 1\nlr = 2\n", "run.toml:3: (last key \"optim.lr\"): Key 'optim.lr' has already been defined"},
		{"bad syntax", "steps = 1\nname = [\n", "run.toml:"},
		{"not text", "\x00\xff", "run.toml:1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := decode(t, test.text)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			} else if strings.Contains(err.Error(), "toml: ") || test.name == "unknown table once" && strings.Contains(err.Error(), "\n") {
				t.Errorf("noisy error %v", err)
			}
		})
	}
	err := DecodeTOML(filepath.Join(t.TempDir(), "none.toml"), nil, &runConfig{})
	if err == nil || !strings.Contains(err.Error(), "none.toml: no such file") {
		t.Errorf("missing file: got error %v", err)
	}
}

func TestSetErrorsNameTheSet(t *testing.T) {
	for set, want := range map[string]string{
		"optim.lr":       `-set "optim.lr": want table.key=value`,
		"=1":             "want table.key=value",
		"optim.lrr=1":    `-set "optim.lrr=1": unknown key "optim.lrr"; the nearest known key is "optim.lr"`,
		"optim.LR=1":     `the nearest known key is "optim.lr"`,
		"Steps=1":        `the nearest known key is "steps"`,
		"optim.lr=high":  `-set "optim.lr=high": (last key "optim.lr"): it is of type string, want float`,
		"optim.lr=":      "want float",
		"optim=3":        "type mismatch",
		"optim={lrr=3}":  `unknown key "optim.lrr"`,
		"steps=1\nsed=2": "want integer",
		"optim..lr=1":    "unknown key",
	} {
		if _, err := decode(t, "", set); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("-set %q: got error %v, want one with %q", set, err, want)
		}
	}
}

func FuzzDecodeTOMLDoesNotPanic(f *testing.F) {
	f.Add("[optim]\nlr = 1\n", "optim.lr=2")
	f.Add("a.b.c = {d = [1, {e = 2}]}\n[[x]]\n[[x.y]]\n", "agent.args.\"x=1")
	f.Add("\"\" = 1\n'optim'.'lr' = inf", "model.stop=[[1]]")
	f.Fuzz(func(t *testing.T, text, set string) {
		if _, err := decode(t, text, set); err != nil && err.Error() == "" {
			t.Error("an error without text")
		}
	})
}

func TestDefaultsAreValid(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateNamesTheKey(t *testing.T) {
	tests := []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Name = "../x" }, `name is "../x", want a folder name`},
		{func(c *Config) { c.Name = ".." }, `name is ".."`},
		{func(c *Config) { c.Seed = -1 }, "seed is -1"},
		{func(c *Config) { c.Steps = 0 }, "steps is 0, want at least 1"},
		{func(c *Config) { c.Algo.Estimator = "grop" }, `algo.estimator: estimators: unknown estimator "grop"; known: dr_grpo`},
		{func(c *Config) { c.Algo.Gamma = 2 }, "algo.gamma is 2, want 0 to 1"},
		{func(c *Config) { c.Loss.ClipLow = -1 }, "loss.clip_low is -1"},
		{func(c *Config) { c.Loss.DualClip = 0.5 }, "loss.dual_clip is 0.5, want above 1 (0: off)"},
		{func(c *Config) { c.Loss.Aggregation = "mean" }, `loss.aggregation is "mean", want prompt-mean-token-mean, seq-mean-token-mean`},
		{func(c *Config) { c.Optim.Name = "sgd" }, `optim.name is "sgd", want one of adamw, dion, dion_newton_schulz, muon`},
		{func(c *Config) { c.Optim.MuonLR = 0 }, "optim.muon_lr is 0, want above 0"},
		{func(c *Config) { c.Optim.Momentum = -0.5 }, "optim.momentum is -0.5, want 0 up to"},
		{func(c *Config) { c.Optim.Freeze = []string{"*", "[a"} }, `optim.freeze is "[a", want a pattern`},
		{func(c *Config) { c.Optim.Schedule = "cosin" }, `optim.schedule is "cosin", want one of constant, constant_with_warmup, cosine`},
		{func(c *Config) { c.Optim.NumCycles = 0 }, "optim.num_cycles is 0"},
		{func(c *Config) { c.Optim.Power = 0 }, "optim.power is 0"},
		{func(c *Config) { c.Optim.DecaySteps = -1 }, "optim.decay_steps is -1"},
		{func(c *Config) { c.Optim.DecayType = "log" }, `optim.decay_type is "log", want one of cosine, linear, 1-sqrt`},
		{func(c *Config) { c.Optim.WarmupRate = 2 }, "optim.warmup_lr_rate is 2"},
		{func(c *Config) { c.Optim.LR = math.NaN() }, "optim.lr is NaN"},
		{func(c *Config) { c.Optim.MaxNorm = math.Inf(1) }, "optim.max_norm is +Inf"},
		{func(c *Config) { c.Optim.Beta2 = 1 }, "optim.beta2 is 1"},
		{func(c *Config) { c.Optim.MicroTokens = 0 }, "optim.micro_tokens is 0"},
		{func(c *Config) { c.Async.Staleness = -1 }, "async.staleness is -1"},
		{func(c *Config) { c.Eval.Tasks = -1 }, "eval.tasks is -1"},
		{func(c *Config) { c.Checkpoint.Keep = -1 }, "checkpoint.keep is -1"},
		{func(c *Config) { c.Checkpoint.Keep, c.Checkpoint.Every = 0, 5 }, "checkpoint.keep is 0, want at least 1 with checkpoint.every"},
		{func(c *Config) { c.Log.Dir = "" }, `log.dir is ""`},
	}
	for _, test := range tests {
		c := DefaultConfig()
		test.change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got error %v, want only one with %q", err, test.want)
		}
	}
}

func TestThreadsAreDisjointWhereBothSidesWork(t *testing.T) {
	tests := []struct {
		config        AsyncConfig
		cores         int
		train, engine int
	}{
		{AsyncConfig{Staleness: 0}, 2, 2, 2},
		{AsyncConfig{Staleness: 1}, 1, 1, 1},
		{AsyncConfig{Staleness: 1}, 2, 1, 1},
		{AsyncConfig{Staleness: 1}, 7, 3, 4},
		{AsyncConfig{Staleness: 1, TrainThreads: 5}, 8, 5, 4},
		{AsyncConfig{Staleness: 1, EngineThreads: 6}, 8, 4, 6},
	}
	for _, test := range tests {
		if train, engine := test.config.Threads(test.cores); train != test.train || engine != test.engine {
			t.Errorf("%+v on %d cores: %d and %d, want %d and %d", test.config, test.cores, train, engine, test.train, test.engine)
		}
	}
}
