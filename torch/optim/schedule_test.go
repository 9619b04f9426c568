package optim

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type scheduleCase struct {
	Name   string
	Kwargs struct {
		MinRate    float64 `json:"min_lr_rate"`
		MinRatio   float64 `json:"min_lr_ratio"`
		WarmupRate float64 `json:"warmup_lr_rate"`
		Cycles     int     `json:"num_cycles"`
		End        float64 `json:"lr_end"`
		Power      float64
		DecaySteps int    `json:"num_decay_steps"`
		DecayType  string `json:"decay_type"`
	}
	Steps  int      `json:"num_training_steps"`
	Warmup int      `json:"num_warmup_steps"`
	BaseLR string   `json:"base_lr"`
	LRs    []string `json:"lr_steps_0_to_50"`
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestSchedulesEqualTheReferenceUpToTheirEndAndStayThere(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "reference", "lr_schedules.json"))
	if err != nil {
		t.Fatal(err)
	}
	var ref struct{ Schedules []scheduleCase }
	if err := json.Unmarshal(text, &ref); err != nil {
		t.Fatal(err)
	}
	if len(ref.Schedules) == 0 {
		t.Fatal("the reference has no schedules")
	}
	for _, c := range ref.Schedules {
		kw, lr := c.Kwargs, number(t, c.BaseLR)
		s := Schedule{Name: c.Name, LR: lr, Steps: c.Steps, Warmup: c.Warmup, FromZero: true, MinRate: kw.MinRate + kw.MinRatio + kw.End/lr,
			WarmupRate: kw.WarmupRate, Cycles: kw.Cycles, Power: kw.Power, DecaySteps: kw.DecaySteps, Decay: kw.DecayType}
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		end := c.Steps
		if c.Name == "cosine_warmup_with_min_lr" { // one update ahead: it ends, and rises again, one earlier
			end--
		}
		for step, want := range c.LRs {
			if got, want := s.At(step), number(t, want); step <= end && !(math.Abs(got-want) <= 1e-12*lr) {
				t.Errorf("%s %+v, %d steps, warm-up %d: step %d is %.17g, want %.17g", c.Name, kw, c.Steps, c.Warmup, step, got, want)
			}
			if step > end && s.At(step) != s.At(end) {
				t.Errorf("%s: step %d after the end is %v, want %v", c.Name, step, s.At(step), s.At(end))
			}
		}
	}
}

func TestTheFirstUpdateOfAWarmUpLearns(t *testing.T) { // L14
	for _, name := range []string{"constant_with_warmup", "linear", "cosine", "cosine_with_min_lr",
		"cosine_warmup_with_min_lr", "inverse_sqrt"} {
		s := Schedule{Name: name, LR: 1, Steps: 1_000_000_000, Warmup: 4}
		var got []float64
		for completed := range 4 {
			got = append(got, s.At(completed))
		}
		if diff := cmp.Diff([]float64{0.25, 0.5, 0.75, 1}, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	s := Schedule{Name: "constant_with_warmup", LR: 1, Steps: 10, Warmup: 4}
	if s.At(4) != 1 || s.At(3) != 1 { // a run that stopped after 3 updates goes on with the fourth
		t.Errorf("updates 4 and 5 use %v and %v, want 1", s.At(3), s.At(4))
	}
}

func TestBadSchedulesAreRefusedByName(t *testing.T) {
	good := Schedule{Name: "linear", LR: 1, Steps: 10}
	tests := []struct {
		change func(*Schedule)
		want   string
	}{
		{func(s *Schedule) { s.Name = "cosin" }, `unknown schedule "cosin"; known: constant, constant_with_warmup, cosine`},
		{func(s *Schedule) { s.LR = math.NaN() }, "learning rate is NaN"},
		{func(s *Schedule) { s.Steps = 0 }, "0 steps"},
		{func(s *Schedule) { s.Warmup = -1 }, "-1 warm-up steps"},
		{func(s *Schedule) { s.MinRate = 2 }, "minimum rate 2"},
		{func(s *Schedule) { s.Name = "cosine_with_restarts" }, "0 cycles"},
		{func(s *Schedule) { s.Name = "polynomial" }, "power is 0"},
		{func(s *Schedule) { s.Name, s.DecaySteps = "warmup_stable_decay", 11 }, "11 decay steps do not fit"},
		{func(s *Schedule) { s.Decay = "log" }, `unknown decay "log"`},
	}
	for _, test := range tests {
		s := good
		test.change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got error %v, want one with %q", err, test.want)
		}
	}
}
