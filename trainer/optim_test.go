package trainer

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
	"github.com/molt-go/molt/torch/optim"
)

// After one step the frozen ones have kept every bit and the others are where they are without any freezing.
func TestFrozenParametersKeepTheirBitsAndOthersMoveAsWithout(t *testing.T) {
	patterns := map[string]func(name string) bool{
		"*q_proj*": func(n string) bool { return strings.Contains(n, "q_proj") }, // a part of a fused leaf
		"model.layers.[01].*": func(n string) bool {
			return strings.HasPrefix(n, "model.layers.0.") || strings.HasPrefix(n, "model.layers.1.")
		},
		"model.embed_tokens*": func(n string) bool { return n == "model.embed_tokens.weight" },
		"*norm.weight":        func(n string) bool { return strings.HasSuffix(n, "norm.weight") },
		"*_proj.*":            func(n string) bool { return strings.Contains(n, "_proj.") },
		"lm_head.*":           func(n string) bool { return n == "lm_head.weight" },
	}
	for _, name := range []string{"adamw", "muon"} {
		for _, path := range llamas(t) {
			if name == "muon" && path != llamas(t)[0] {
				continue
			}
			for _, d := range []torch.DType{torch.Float32, torch.BFloat16} {
				do(t, func(s *torch.Scope) {
					change := func(freeze ...string) func(*Config) {
						return func(c *Config) {
							c.Optim.Name, c.Optim.MaxNorm, c.Optim.WeightDecay, c.Optim.Freeze = name, 0, 0.1, freeze
						}
					}
					free := newPolicy(t, s, path, d, change())
					samples, before := rollouts(t, s, free, 6), weights(free.Masters())
					step(t, s, free, samples, 1e-2)
					moved := weights(free.Masters())
					for pattern, frozen := range patterns {
						if pattern == "lm_head.*" && free.master.Tied {
							continue
						}
						p := newPolicy(t, s, path, d, change(pattern))
						stats := step(t, s, p, samples, 1e-2)
						compute := weights(p.Params())
						for _, param := range p.Masters() {
							want := moved[param.Name]
							if frozen(param.Name) {
								want = before[param.Name]
							} else if slices.Equal(want, before[param.Name]) {
								t.Fatalf("%s does not move at all", param.Name)
							}
							if diff := cmp.Diff(want, torch.Values[float32](param.Tensor)); diff != "" {
								t.Errorf("%s %v, %s frozen: %s: %s", name, d, pattern, param.Name, diff)
							}
							half := torch.Values[float32](s.To(param.Tensor, d))
							if diff := cmp.Diff(half, compute[param.Name]); diff != "" || param.Frozen != frozen(param.Name) {
								t.Errorf("%s frozen: %s of the compute copy: %s", pattern, param.Name, diff)
							}
						}
						for _, state := range p.optim.State() {
							if _, param, _ := strings.Cut(state.Name, "."); frozen(param) {
								t.Errorf("%s frozen: there is state %s", pattern, state.Name)
							}
						}
						step(t, s, p, samples, 1e-2)
						if _, grads := gradients(t, s, p, samples, noLimit); math.IsNaN(stats.GradNorm) || len(grads) != len(p.trained) {
							t.Errorf("%s frozen: %d gradients", pattern, len(grads))
						}
					}
				})
			}
		}
	}
}

func TestBackwardSkipsLeavesThatAreFrozen(t *testing.T) {
	do(t, func(s *torch.Scope) {
		p := newPolicy(t, s, llamas(t)[2], torch.Float32, func(c *Config) {
			c.Optim.Freeze = []string{"lm_head.weight", "model.embed_tokens.weight", "*q_proj*", "model.layers.0.mlp.*", "model.norm.*"}
		})
		samples := rollouts(t, s, p, 6)
		plan := mustPack(t, samples, noLimit)
		err := within(s.Grad, func(s *torch.Scope) error {
			return p.backward(s, &plan.Micros[0], plan.Step, &Stats{Metrics: map[string]Metric{}})
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, param := range p.Params() {
			fused := strings.Contains(param.Name, "q_proj") // shares a leaf with keys and values, which train
			if has := param.Grad(s) != (torch.Tensor{}); has != (fused || !param.Frozen) {
				t.Errorf("%s: frozen %v, has a gradient %v", param.Name, param.Frozen, has)
			}
		}
		p.clearGrads()
	})
}

func TestFreezingThatCannotBeIsRefused(t *testing.T) {
	do(t, func(s *torch.Scope) {
		c := DefaultConfig()
		for want, freeze := range map[string][]string{
			`optim.freeze: "model.layer.*" matches no parameter; some are model.embed_tokens.weight, model.layers.`: {"*norm*", "model.layer.*"},
			`optim.freeze: ["*.weight" "*.bias"] leave no parameter to train`:                                       {"*.weight", "*.bias"},
		} {
			c.Optim.Freeze = freeze
			master, err := model.Load(s, filepath.Join("..", "testdata", "reference", "models", "llama_mha_bias"), torch.Float32)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := NewPolicy(s, master, torch.Float32, c.Optim, c.Loss); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		}
	})
}

// The engine takes what is frozen once; one that lacks it, whatever is frozen, is named.
func TestARefitTakesFrozenParametersOnce(t *testing.T) { // W2
	do(t, func(s *torch.Scope) {
		p := newPolicy(t, s, llamas(t)[0], torch.BFloat16, func(c *Config) { c.Optim.Freeze = []string{"model.layers.*"} })
		engine := model.New(s, p.master.Config, torch.BFloat16)
		samples := rollouts(t, s, p, 6)
		for range 2 {
			if err := engine.CopyFrom(s, p.Params()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(weights(p.Params()), weights(engine.Params())); diff != "" {
				t.Fatal(diff)
			}
			step(t, s, p, samples, 1e-2)
		}
		mark := s.Zero_(engine.Params()[3].Tensor) // copied again, it would not stay zero
		missing := slices.Delete(slices.Clone(p.Params()), 5, 6)
		if err := engine.CopyFrom(s, missing); err == nil || !strings.Contains(err.Error(), p.Params()[5].Name+" is missing") {
			t.Error("a refit without a frozen parameter:", err)
		}
		if err := engine.CopyFrom(s, p.Params()); err != nil || s.Norm(mark).Item() != 0 {
			t.Error("a frozen parameter was copied twice, or", err)
		}
	})
}

func TestAnotherOptimizerOrFreezingDoesNotTakeTheState(t *testing.T) {
	do(t, func(s *torch.Scope) {
		policy := func(name string, freeze ...string) *Policy {
			return newPolicy(t, s, llamas(t)[2], torch.Float32, func(c *Config) { c.Optim.Name, c.Optim.Freeze = name, freeze })
		}
		file := filepath.Join(t.TempDir(), "optimizer.safetensors")
		if err := errors.Join(policy("dion", "*embed*").SaveOptimizer(file), policy("dion", "*embed*").LoadOptimizer(file)); err != nil {
			t.Fatal(err)
		}
		for want, p := range map[string]*Policy{
			"exp_avg.model.embed_tokens.weight is missing": policy("dion"),
			"exp_avg.model.norm.weight is of no parameter": policy("dion", "*embed*", "model.norm.*"),
			"and 78 more": policy("adamw", "*embed*"),
		} {
			if err := p.LoadOptimizer(file); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		}
	})
}

// Every schedule of the reference can be asked for in a file; after the warm-up, which starts above 0 here, it gives the reference's rates.
func TestEveryScheduleOfTheReferenceCanBeChosen(t *testing.T) { // L14
	text, err := os.ReadFile(filepath.Join("..", "testdata", "reference", "lr_schedules.json"))
	if err != nil {
		t.Fatal(err)
	}
	var ref struct {
		Schedules []struct {
			Name   string
			Kwargs map[string]any
			Steps  int      `json:"num_training_steps"`
			Warmup int      `json:"num_warmup_steps"`
			LR     string   `json:"base_lr"`
			LRs    []string `json:"lr_steps_0_to_50"`
		}
	}
	if err := json.Unmarshal(text, &ref); err != nil || len(ref.Schedules) == 0 {
		t.Fatal("no schedules", err)
	}
	keys := map[string]string{"min_lr_ratio": "min_lr_rate", "num_decay_steps": "decay_steps"}
	for _, c := range ref.Schedules {
		sets := []string{"optim.schedule=" + c.Name, "optim.lr=" + c.LR, "optim.warmup_steps=" + strconv.Itoa(c.Warmup), "steps=" + strconv.Itoa(c.Steps)}
		peak, _ := strconv.ParseFloat(c.LR, 64)
		for k, v := range c.Kwargs {
			if k == "lr_end" {
				k, v = "min_lr_rate", v.(float64)/peak
			} else if keys[k] != "" {
				k = keys[k]
			}
			value, _ := json.Marshal(v)
			sets = append(sets, "optim."+k+"="+string(value))
		}
		config, err := decode(t, "", sets...)
		if err != nil || config.Validate() != nil {
			t.Fatal(sets, err, config.Validate())
		}
		s := config.Optim.schedule(config.Steps)
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		end := c.Steps
		if c.Name == "cosine_warmup_with_min_lr" { // ends one update earlier
			end--
		}
		for step := c.Warmup; step <= end; step++ {
			if want, _ := strconv.ParseFloat(c.LRs[step], 64); math.Abs(s.At(step)-want) > 1e-12*peak {
				t.Errorf("%v: step %d is %v, want %v", sets, step, s.At(step), want)
			}
		}
		if s.At(0) <= 0 {
			t.Errorf("%v: the first update learns nothing", sets)
		}
	}
}

func TestSchedulesHaveDefaultsAndMuonsIsOfTheMatricesRate(t *testing.T) {
	for _, name := range optim.Schedules() {
		c := DefaultConfig()
		c.Optim.Schedule, c.Optim.Name = name, "muon"
		s := c.Optim.schedule(c.Steps)
		if err := s.Validate(); err != nil || math.Abs(s.At(0)-0.02) > 1e-5 {
			t.Error(name, s.At(0), err)
		}
		if name == "warmup_stable_decay" && (s.At(90) != 0.02 || s.At(91) >= 0.02 || s.At(100) != 0) {
			t.Errorf("the last tenth: %v %v %v", s.At(90), s.At(91), s.At(100))
		}
	}
}

// Under Muon the rest moves as under AdamW at its own rate, and the matrices of the layers do not.
func TestMuonTakesTheMatricesOfTheLayersOnly(t *testing.T) {
	for _, path := range []string{llamas(t)[2], "../testdata/reference/models/qwen3_vl"} {
		do(t, func(s *torch.Scope) {
			policy := func(name string) *Policy {
				return newPolicy(t, s, path, torch.Float32, func(c *Config) { c.Optim.Name, c.Optim.LR = name, 1e-3 })
			}
			adam, muon := policy("adamw"), policy("muon")
			samples, before := rollouts(t, s, adam, 6), weights(adam.Masters())
			step(t, s, adam, samples, 1e-3)
			step(t, s, muon, samples, 0.02)
			want := weights(adam.Masters())
			for name, got := range weights(muon.Masters()) {
				diff, moved := distance(want[name], got), distance(before[name], got)
				if layers := strings.HasSuffix(name, "_proj.weight"); layers != (diff > 1e-3) || (moved < 1e-4) != strings.Contains(name, "visual") {
					t.Errorf("%s is %.2g from where AdamW brings it and has moved by %.2g", name, diff, moved)
				}
			}
		})
	}
}
