package trainer

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
	"github.com/molt-go/molt/torch/optim"
)

// OptimConfig is the table [optim]: from gradients to weights.
type OptimConfig struct {
	// Name of the optimizer: "adamw", or for the matrices of the layers, with AdamW for all else, "muon" (torch.optim's),
	// "dion" or "dion_newton_schulz" (microsoft/dion's Muon with newer and older coefficients).
	Name        string  `toml:"name"`
	LR          float64 `toml:"lr"`        // AdamW's peak learning rate
	CriticLR    float64 `toml:"critic_lr"` // peak learning rate of a critic, which AdamW moves; it has the same schedule
	Beta1       float64 `toml:"beta1"`     // AdamW's, as are Beta2 and Eps
	Beta2       float64 `toml:"beta2"`
	Eps         float64 `toml:"eps"`
	WeightDecay float64 `toml:"weight_decay"` // decoupled: an update takes the learning rate times WeightDecay off each weight
	MuonLR      float64 `toml:"muon_lr"`      // peak learning rate of the matrices under Muon; that of the rest keeps its ratio to it
	Momentum    float64 `toml:"momentum"`     // Muon's decay of the running gradient
	Nesterov    bool    `toml:"nesterov"`     // Muon looks one step of momentum ahead
	MatchRMS    bool    `toml:"match_rms"`    // makes Muon's updates as large as AdamW's usual ones: MuonLR is then about what LR is
	// Freeze holds patterns of names of parameters that keep their values, with * for any characters: "model.embed_tokens.*", a vision
	// tower's "*visual.*" (see path.Match); the names are those of a checkpoint's tensors. A resumed run needs those that it began with.
	Freeze  []string `toml:"freeze"`
	MaxNorm float64  `toml:"max_norm"` // clips the global norm of the gradient; 0: off

	Schedule    string  `toml:"schedule"`       // of the learning rate, a name of optim.Schedules; "constant" has no warm-up
	WarmupSteps int     `toml:"warmup_steps"`   // updates until the rate is at its peak
	WarmupRate  float64 `toml:"warmup_lr_rate"` // of "cosine_warmup_with_min_lr": the first, as a share of the peak; 0: 1/WarmupSteps
	MinLRRate   float64 `toml:"min_lr_rate"`    // the last as a share of the peak: "…_min_lr", "polynomial", "warmup_stable_decay"
	NumCycles   int     `toml:"num_cycles"`     // how often "cosine_with_restarts" falls from the peak
	Power       float64 `toml:"power"`          // the exponent of "polynomial"
	DecaySteps  int     `toml:"decay_steps"`    // last updates, in which "warmup_stable_decay" falls; 0: a tenth of the run
	DecayType   string  `toml:"decay_type"`     // the shape of that fall: "cosine", "linear" or "1-sqrt"

	// MicroTokens is the largest number of tokens, prompts included, in one forward and backward: it bounds memory and
	// does not change the result. A rollout has room for one more: what is longer is cut off, see truncated in the metrics.
	MicroTokens int `toml:"micro_tokens"`
	// Recompute keeps only what goes into each layer and runs the layer again in backward: a third more work, a fraction of
	// the memory that grows with MicroTokens, the same result.
	Recompute bool `toml:"recompute"`
}

func (c OptimConfig) validate() error {
	names, schedules := append([]string{"adamw"}, optim.MuonVariants()...), optim.Schedules()
	decays := []string{"cosine", "linear", "1-sqrt"}
	errs := []error{
		check("optim.name", c.Name, slices.Contains(names, c.Name), "one of "+strings.Join(names, ", ")),
		check("optim.lr", c.LR, atLeast0(c.LR), "at least 0"),
		check("optim.critic_lr", c.CriticLR, atLeast0(c.CriticLR), "at least 0"),
		check("optim.beta1", c.Beta1, c.Beta1 >= 0 && c.Beta1 < 1, "0 up to, not including, 1"),
		check("optim.beta2", c.Beta2, c.Beta2 >= 0 && c.Beta2 < 1, "0 up to, not including, 1"),
		check("optim.eps", c.Eps, c.Eps > 0 && atLeast0(c.Eps), "above 0"),
		check("optim.weight_decay", c.WeightDecay, atLeast0(c.WeightDecay), "at least 0"),
		check("optim.muon_lr", c.MuonLR, c.MuonLR > 0 && atLeast0(c.MuonLR), "above 0"),
		check("optim.momentum", c.Momentum, c.Momentum >= 0 && c.Momentum < 1, "0 up to, not including, 1"),
		check("optim.max_norm", c.MaxNorm, atLeast0(c.MaxNorm), "at least 0 (0: off)"),
		check("optim.schedule", c.Schedule, slices.Contains(schedules, c.Schedule), "one of "+strings.Join(schedules, ", ")),
		check("optim.warmup_steps", c.WarmupSteps, c.WarmupSteps >= 0, "at least 0"),
		check("optim.warmup_lr_rate", c.WarmupRate, c.WarmupRate >= 0 && c.WarmupRate <= 1, "0 to 1"),
		check("optim.min_lr_rate", c.MinLRRate, c.MinLRRate >= 0 && c.MinLRRate <= 1, "0 to 1"),
		check("optim.num_cycles", c.NumCycles, c.NumCycles >= 1, "at least 1"),
		check("optim.power", c.Power, c.Power > 0 && atLeast0(c.Power), "above 0"),
		check("optim.decay_steps", c.DecaySteps, c.DecaySteps >= 0, "at least 0 (0: a tenth of the run)"),
		check("optim.decay_type", c.DecayType, slices.Contains(decays, c.DecayType), "one of "+strings.Join(decays, ", ")),
		check("optim.micro_tokens", c.MicroTokens, c.MicroTokens >= 1, "at least 1"),
	}
	for _, pattern := range c.Freeze {
		_, err := path.Match(pattern, "")
		errs = append(errs, check("optim.freeze", pattern, err == nil, "a pattern as path.Match knows them"))
	}
	return errors.Join(errs...)
}

// schedule is that of a run of so many steps. Its rates are those of the matrices where there is Muon.
func (c OptimConfig) schedule(steps int) optim.Schedule {
	s := optim.Schedule{Name: c.Schedule, LR: c.MuonLR, Steps: steps, Warmup: c.WarmupSteps, MinRate: c.MinLRRate,
		WarmupRate: c.WarmupRate, Cycles: c.NumCycles, Power: c.Power, DecaySteps: c.DecaySteps, Decay: c.DecayType}
	if c.Name == "adamw" {
		s.LR = c.LR
	}
	if s.DecaySteps == 0 {
		s.DecaySteps = max(1, steps/10)
	}
	return s
}

// frozen gives the names of params that Freeze matches.
func (c OptimConfig) frozen(params []model.Param) (map[string]bool, error) {
	frozen := map[string]bool{}
	for _, pattern := range c.Freeze {
		found := false
		for _, p := range params {
			if ok, _ := path.Match(pattern, p.Name); ok {
				frozen[p.Name], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("optim.freeze: %q matches no parameter; some are %s, %s, %s", pattern,
				params[0].Name, params[len(params)/2].Name, params[len(params)-1].Name)
		}
	}
	if len(frozen) == len(params) {
		return nil, fmt.Errorf("optim.freeze: %q leave no parameter to train", c.Freeze)
	}
	return frozen, nil
}

// optimizer makes the one that Name says for those of params that train. Muon's matrices are those of the decoder's layers, routers and
// each expert's among them.
func (c OptimConfig) optimizer(s *torch.Scope, params []model.Param) (optim.Optimizer, error) {
	adam := optim.AdamWConfig{Beta1: c.Beta1, Beta2: c.Beta2, Eps: c.Eps, WeightDecay: c.WeightDecay}
	var matrices, rest []optim.Named
	for _, p := range params {
		n := optim.Named{Name: p.Name, Tensor: p.Tensor}
		switch {
		case p.Frozen:
		case c.Name != "adamw" && strings.Contains(p.Name, ".layers.") && len(p.Tensor.Shape()) == 2:
			matrices = append(matrices, n)
		default:
			rest = append(rest, n)
		}
	}
	if c.Name == "adamw" {
		return optim.NewAdamW(s, rest, adam)
	}
	return optim.NewMuon(s, matrices, rest, optim.MuonConfig{Variant: c.Name, Momentum: c.Momentum, Nesterov: c.Nesterov,
		MatchRMS: c.MatchRMS, WeightDecay: c.WeightDecay, AdamW: adam, AdamWRate: c.LR / c.MuonLR})
}
