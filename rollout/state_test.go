package rollout

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// resume saves q as JSON and makes a queue of it.
func resume(t *testing.T, q *Queue, p Plan) *Queue {
	t.Helper()
	text, err := json.Marshal(q.State())
	must(t, err)
	p.State = &State{}
	must(t, json.Unmarshal(text, p.State))
	p.Version = q.version
	return newQueue(t, p)
}

// Case R1: saved state is what was trained and what is in flight, so a resumed epoch trains every prompt once.
func TestAResumedEpochTrainsEveryPromptOnce(t *testing.T) {
	for _, midStep := range []bool{false, true} {
		p := testPlan(8, 2, 1, 1)
		p.Data.Epochs, p.Data.Shuffle, p.Data.Seed = 1, true, 7
		q := newQueue(t, p)
		trained := map[string]int{}
		train := func(b Batch) {
			for _, g := range b.Groups {
				task, _, _ := q.order.at(g[0].Group)
				trained[fmt.Sprint(task)]++
			}
		}
		for _, s := range admitAll(q) { // 0 and 1 to train, 2 and 3 buffered
			q.Put(done(s, 0))
		}
		train(take(t, q))
		must(t, q.SetVersion(1))
		admitAll(q) // 4 and 5 in flight
		if midStep {
			take(t, q) // taken, but its step never came
		}
		state := q.State()
		if want := []Flight{{2, 2}, {3, 3}, {4, 4}, {5, 5}}; !cmp.Equal(state.InFlight, want) {
			t.Fatalf("in flight %v", state.InFlight)
		}
		q = resume(t, q, p)
		for version := int32(2); ; version++ {
			for _, s := range admitAll(q) {
				q.Put(done(s, 0))
			}
			b, ok, err := q.Take()
			if errors.Is(err, ErrEndOfData) {
				break
			}
			if !ok {
				t.Fatal(err)
			}
			train(b)
			must(t, q.SetVersion(version))
		}
		for i := range 8 {
			if trained[fmt.Sprint(i)] != 1 {
				t.Errorf("mid-step %t: task %d trained %d times", midStep, i, trained[fmt.Sprint(i)])
			}
		}
	}
}

// Cases R2 and R4: a synchronous run stopped after any step goes on with the same tasks and seeds, also at the border
// of an epoch, and with failures on the way.
func TestASynchronousRunResumesExactly(t *testing.T) {
	p := testPlan(8, 2, 2, 0)
	p.Data = DataConfig{Source: "test", Epochs: 2, Shuffle: true, Seed: 3}
	p.Config.FilterEqual, p.Seed = true, 11
	checkResume(t, p)
	p.Greedy = true
	checkResume(t, p)
}

func checkResume(t *testing.T, p Plan) {
	t.Helper()
	type row struct {
		Tasks  []int
		Seeds  []uint64
		Reward float64
		Failed int
	}
	run := func(stop int) (rows []row) {
		q := newQueue(t, p)
		for version := int32(1); ; version++ {
			for s := admitAll(q); len(s) > 0; s = admitAll(q) {
				for _, x := range s {
					if x.Group == 3 || x.Group == 12 {
						q.Put(failed(x))
					} else {
						q.Put(done(x, float64(x.Seed%2)))
					}
				}
			}
			b, ok, err := q.Take()
			if errors.Is(err, ErrEndOfData) {
				return rows
			}
			if !ok {
				t.Fatal(err)
			}
			r := row{Reward: b.RewardMean, Failed: b.Failed}
			for _, g := range b.Groups {
				task, _, _ := q.order.at(g[0].Group)
				r.Tasks = append(r.Tasks, task)
				r.Seeds = append(r.Seeds, g[0].Seed, g[1].Seed)
			}
			for _, greedy := range b.Greedy {
				r.Seeds = append(r.Seeds, greedy.Seed)
			}
			rows = append(rows, r)
			must(t, q.SetVersion(version))
			if int(version) == stop {
				admitAll(q)
				q = resume(t, q, p)
			}
		}
	}
	want := run(-1)
	if len(want) < 2 {
		t.Fatalf("only %d batches", len(want))
	}
	for stop := range len(want) {
		if diff := cmp.Diff(want, run(stop+1)); diff != "" {
			t.Errorf("greedy %t, stopped after step %d: %s", p.Greedy, stop+1, diff)
		}
	}
}

func TestAStateForOtherDataOrOutOfRangeIsRefused(t *testing.T) {
	p := testPlan(8, 2, 1, 1)
	q := newQueue(t, p)
	admitAll(q)
	good := q.State()
	for name, damage := range map[string]func(*State){
		"data":     func(s *State) { s.Data = "other" },
		"cursor":   func(s *State) { s.Cursor = -1 },
		"place":    func(s *State) { s.InFlight[0].Place = 99 },
		"position": func(s *State) { s.InFlight[0].Position = 1 << 40 },
		"double":   func(s *State) { s.InFlight[0] = s.InFlight[1] },
		"too many": func(s *State) { s.Admitted = 1 },
	} {
		s := good
		s.InFlight = slices.Clone(good.InFlight)
		damage(&s)
		p.State = &s
		if _, err := NewQueue(p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	p.State = &good
	newQueue(t, p)
	p.Source = numbered(9)
	_, err := NewQueue(p)
	wantError(t, err, "cannot resume: the data is numbered 9 (9 tasks")
}

// The limit of the resumed run holds, also for groups that were in flight under a larger one.
func TestAResumedRunKeepsToASmallerLimit(t *testing.T) {
	p := testPlan(16, 2, 2, 3)
	q := newQueue(t, p)
	if n := len(admitAll(q)); n != 16 { // (0 + 3 + 1) batches of 2 groups of 2
		t.Fatalf("%d rollouts admitted", n)
	}
	p.Limit = 0
	q = resume(t, q, p)
	for version := int32(1); version <= 4; version++ {
		specs := admitAll(q)
		if len(specs) != 4 {
			t.Fatalf("%d rollouts run before version %d, want one batch of 4", len(specs), version)
		}
		for _, s := range specs {
			q.Put(done(s, 0))
		}
		take(t, q)
		must(t, q.SetVersion(version))
	}
}
