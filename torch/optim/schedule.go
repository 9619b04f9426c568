package optim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Schedule gives the learning rate of every update as a pure function of the number of completed updates, so that a
// resumed run continues it without any saved state. Names and formulas are those of transformers' get_scheduler, with
// two differences:
//
//   - the first update of a warm-up moves the weights: update n of w uses n/w of the peak. transformers uses (n-1)/w, hence 0
//     at first; FromZero asks for that. ("cosine_warmup_with_min_lr" starts above 0 in transformers too; FromZero changes nothing there.)
//   - after Steps updates the rate stays at its last value. transformers' cosine rises again.
type Schedule struct {
	Name     string  // one of Schedules()
	LR       float64 // peak learning rate
	Steps    int     // updates of the whole run; the decaying schedules end here
	Warmup   int     // updates in which the rate rises to the peak; 0: none. "constant" has none
	FromZero bool    // warm up from 0 as transformers does

	MinRate    float64 // rate at the end, as a share of LR, for *_min_lr, warmup_stable_decay and polynomial
	WarmupRate float64 // share of LR at the first update of cosine_warmup_with_min_lr; 0: 1/Warmup
	Cycles     int     // hard restarts of cosine_with_restarts
	Power      float64 // exponent of polynomial
	DecaySteps int     // last updates, in which warmup_stable_decay falls
	Decay      string  // shape of that fall: "cosine" (or ""), "linear", "1-sqrt"
}

// decays holds for each name the share of the peak after the warm-up, before MinRate lifts it; p runs from 0 to 1.
var decays = map[string]func(s Schedule, p float64) float64{
	"constant":                  func(Schedule, float64) float64 { return 1 },
	"constant_with_warmup":      func(Schedule, float64) float64 { return 1 },
	"linear":                    func(_ Schedule, p float64) float64 { return 1 - p },
	"cosine":                    func(_ Schedule, p float64) float64 { return halfCosine(p) },
	"cosine_with_min_lr":        func(_ Schedule, p float64) float64 { return halfCosine(p) },
	"cosine_warmup_with_min_lr": func(_ Schedule, p float64) float64 { return halfCosine(p) },
	"cosine_with_restarts": func(s Schedule, p float64) float64 {
		if p == 1 {
			return 0
		}
		_, within := math.Modf(p * float64(s.Cycles))
		return halfCosine(within)
	},
	"polynomial": func(s Schedule, p float64) float64 { return math.Pow(1-p, s.Power) },
	"inverse_sqrt": func(s Schedule, p float64) float64 {
		scale := float64(s.Warmup)
		if s.Warmup == 0 {
			scale = 10_000 // as transformers
		}
		return 1 / math.Sqrt(1+p*float64(s.Steps-s.Warmup)/scale)
	},
	"warmup_stable_decay": func(s Schedule, p float64) float64 {
		span, fall := float64(s.Steps-s.Warmup), float64(s.DecaySteps)
		p = max(0, p*span-(span-fall)) / fall
		switch s.Decay {
		case "linear":
			return 1 - p
		case "1-sqrt":
			return 1 - math.Sqrt(p)
		}
		return halfCosine(p)
	},
}

// halfCosine falls from 1 to 0 along half a period.
func halfCosine(p float64) float64 { return (1 + math.Cos(math.Pi*p)) / 2 }

// Schedules lists the known names in alphabetical order.
func Schedules() []string { return slices.Sorted(maps.Keys(decays)) }

// Validate returns an error that names the field and what it must be.
func (s Schedule) Validate() error {
	share := func(x float64) bool { return x >= 0 && x <= 1 }
	switch {
	case decays[s.Name] == nil:
		return fmt.Errorf("unknown schedule %q; known: %s", s.Name, strings.Join(Schedules(), ", "))
	case !(s.LR >= 0) || math.IsInf(s.LR, 0):
		return fmt.Errorf("schedule %s: learning rate is %v, want at least 0", s.Name, s.LR)
	case s.Steps < 1:
		return fmt.Errorf("schedule %s: the run has %d steps, want at least 1", s.Name, s.Steps)
	case s.Warmup < 0:
		return fmt.Errorf("schedule %s: %d warm-up steps, want at least 0", s.Name, s.Warmup)
	case !share(s.MinRate) || !share(s.WarmupRate):
		return fmt.Errorf("schedule %s: minimum rate %v and warm-up rate %v are shares of the peak, want 0 to 1", s.Name, s.MinRate,
			s.WarmupRate)
	case s.Name == "cosine_with_restarts" && s.Cycles < 1:
		return fmt.Errorf("schedule %s: %d cycles, want at least 1", s.Name, s.Cycles)
	case s.Name == "polynomial" && !(s.Power > 0):
		return fmt.Errorf("schedule %s: power is %v, want above 0", s.Name, s.Power)
	case s.Name == "warmup_stable_decay" && (s.DecaySteps < 1 || s.DecaySteps > s.Steps-s.Warmup):
		return fmt.Errorf("schedule %s: %d decay steps do not fit into %d steps after %d of warm-up", s.Name, s.DecaySteps, s.Steps,
			s.Warmup)
	case !slices.Contains([]string{"", "cosine", "linear", "1-sqrt"}, s.Decay):
		return fmt.Errorf("schedule %s: unknown decay %q; known: cosine, linear, 1-sqrt", s.Name, s.Decay)
	}
	return nil
}

// At returns the learning rate of the next update after completed ones; s must be valid.
func (s Schedule) At(completed int) float64 {
	return s.LR * s.share(float64(min(completed, s.Steps)))
}

func (s Schedule) share(step float64) float64 {
	warmup, early := float64(s.Warmup), s.Name == "cosine_warmup_with_min_lr"
	lifted := func(x float64) float64 { return s.MinRate + (1-s.MinRate)*x }
	if step < warmup && s.Name != "constant" {
		rise := (step + 1) / warmup
		if s.FromZero && !early {
			rise = step / warmup
		}
		switch {
		case s.Name == "warmup_stable_decay":
			return lifted(rise)
		case early && s.WarmupRate > 0:
			return s.WarmupRate + (1-s.WarmupRate)*step/max(1, warmup-1)
		}
		return rise
	}
	if early { // its decay starts with the first update after the peak
		step++
	}
	p := min(1, max(0, step-warmup)/max(1, float64(s.Steps)-warmup))
	return lifted(decays[s.Name](s, p))
}
