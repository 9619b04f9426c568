package rollout

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func numbered(n int) Tasks {
	t := Tasks{Name: fmt.Sprint("numbered ", n)}
	for i := range n {
		t.List = append(t.List, Task{ID: fmt.Sprint(i)})
	}
	return t
}

// testPlan has batches of prompts × samples over n tasks, in their order.
func testPlan(n, prompts, samples, limit int) Plan {
	c := DefaultConfig()
	c.Prompts, c.Samples = prompts, samples
	return Plan{Config: c, Data: DataConfig{Source: "test"}, Source: numbered(n), Limit: limit}
}

func newQueue(t *testing.T, p Plan) *Queue {
	t.Helper()
	q, err := NewQueue(p)
	must(t, err)
	return q
}

// admitAll admits until the queue says no.
func admitAll(q *Queue) (specs []Spec) {
	for {
		s, _, ok := q.Admit()
		if !ok {
			return specs
		}
		specs = append(specs, s)
	}
}

func done(s Spec, reward float64) Event {
	return Event{Kind: Done, Spec: s, Rollout: &Rollout{Spec: s, Reward: reward, Score: reward}}
}

func failed(s Spec) Event { return Event{Kind: Failed, Spec: s, Err: errors.New("boom")} }

// groupsOf lists the positions of a batch's groups.
func groupsOf(b Batch) (groups []int64) {
	for _, g := range b.Groups {
		groups = append(groups, g[0].Group)
	}
	return groups
}

func take(t *testing.T, q *Queue) Batch {
	t.Helper()
	b, ok, err := q.Take()
	if !ok || err != nil {
		t.Fatalf("no batch: %v", err)
	}
	return b
}

// Case S3: with limit 2 and batches of 8, 24 rollouts are admitted, fresh or resumed at version 100.
func TestAdmissionCountsFromTheRestoredVersion(t *testing.T) {
	for _, version := range []int32{0, 100} {
		for _, samples := range []int{1, 4} {
			p := testPlan(1000, 8/samples, samples, 2)
			p.Version = version
			q := newQueue(t, p)
			first := admitAll(q)
			if len(first) != 24 {
				t.Errorf("version %d, groups of %d: %d admitted, want 24", version, samples, len(first))
			}
			for _, s := range first[:8] {
				q.Put(done(s, 1))
			}
			take(t, q)
			if more := admitAll(q); len(more) != 0 {
				t.Errorf("%d admitted before the step", len(more))
			}
			must(t, q.SetVersion(version+1))
			if more := admitAll(q); len(more) != 8 {
				t.Errorf("version %d: %d admitted after the step, want 8", version, len(more))
			}
		}
	}
}

func TestBatchesAreTakenInTheOrderOfAdmission(t *testing.T) {
	q := newQueue(t, testPlan(100, 2, 1, 1))
	s := admitAll(q)
	for _, i := range []int{3, 2, 1} {
		q.Put(done(s[i], 0))
	}
	if _, ok, err := q.Take(); ok || err != nil {
		t.Fatal("the second batch must wait for the first")
	}
	q.Put(done(s[0], 0))
	if got := [][]int64{groupsOf(take(t, q)), groupsOf(take(t, q))}; !cmp.Equal(got, [][]int64{{0, 1}, {2, 3}}) {
		t.Errorf("batches %v", got)
	}
}

// Case A8: a group with a failure goes out whole and the next task inherits its place; the batch does not shrink.
func TestAGroupWithAFailureIsReplaced(t *testing.T) {
	p := testPlan(100, 2, 4, 1)
	q := newQueue(t, p)
	s := admitAll(q)
	for _, x := range slices.Concat(s[:3], s[4:8]) {
		q.Put(done(x, 1))
	}
	q.Put(failed(s[3]))
	if q.Running(0) {
		t.Error("the group still waits")
	}
	q.Put(done(s[2], 1)) // late, of the group that is out
	refill := admitAll(q)
	if len(refill) != 4 || refill[0].Place != 0 || refill[0].Group != 4 {
		t.Fatalf("refill %+v", refill)
	}
	for _, x := range refill {
		q.Put(done(x, 0))
	}
	b := take(t, q)
	if got := groupsOf(b); !cmp.Equal(got, []int64{1, 4}) || b.Failed != 1 || len(b.Groups[1]) != 4 || b.RewardMean != 0.5 {
		t.Errorf("groups %v, %d failed, mean %v", got, b.Failed, b.RewardMean)
	}
}

// Cases F2 and A8: where partial groups are allowed, 8 rollouts with 2 failures leave 6, and 2 are counted.
func TestPartialGroupsKeepTheRest(t *testing.T) {
	p := testPlan(100, 1, 8, 0)
	p.Config.PartialGroups = true
	q := newQueue(t, p)
	for i, s := range admitAll(q) {
		if i < 2 {
			q.Put(failed(s))
		} else {
			q.Put(done(s, float64(i%2)))
		}
	}
	b := take(t, q)
	if len(b.Groups[0]) != 6 || b.Failed != 2 || b.RewardMean != 0.5 {
		t.Errorf("%d trained, %d failed, mean %v", len(b.Groups[0]), b.Failed, b.RewardMean)
	}
}

// Case F2: when all fail there is no batch, and the error names counts and the last cause.
func TestTooManyFailuresEndTheRun(t *testing.T) {
	for _, partial := range []bool{false, true} {
		p := testPlan(100, 2, 4, 0)
		p.Config.PartialGroups = partial
		var kinds []Kind
		p.OnEvent = func(e Event) { kinds = append(kinds, e.Kind) }
		q := newQueue(t, p)
		for s := admitAll(q); len(s) > 0; s = admitAll(q) {
			for _, x := range s {
				q.Put(failed(x))
			}
		}
		_, ok, err := q.Take()
		if ok {
			t.Fatal("a batch of failures")
		}
		wantError(t, err, "5 rollouts failed for one batch of 8, more than max_failed = 0.5 allows: [agent:5]; the last: boom")
		if want := []Kind{Failed, Failed, Failed, Failed, Failed, Dead}; !slices.Equal(kinds, want) {
			t.Errorf("events %v", kinds)
		}
	}
}

// Case A7: groups go by the spread of their rollouts' scores, the batch size stays exact, and the mean is of all.
func TestFilterDropsZeroSpreadOnly(t *testing.T) {
	p := testPlan(100, 2, 4, 0)
	p.Config.FilterEqual = true
	var filtered []int64
	p.OnEvent = func(e Event) {
		if e.Kind == Filtered {
			filtered = append(filtered, e.Place)
		}
	}
	rewards := [][]float64{{.25, .5, .5, .75}, {0, 1, 0, 1}, {0, 0, .5, .5}}
	q := newQueue(t, p)
	for s := admitAll(q); len(s) > 0; s = admitAll(q) {
		for _, x := range s {
			e := done(x, rewards[x.Group][x.ID%4])
			if x.Group == 0 {
				e.Rollout.Score = 0.5 // the rewards differ by something else
			}
			e.Rollout.Samples = make([]*Trajectory, 1+4*int(x.ID%2)) // segments do not count
			q.Put(e)
		}
	}
	b := take(t, q)
	if got := groupsOf(b); !cmp.Equal(got, []int64{1, 2}) || b.Filtered != 1 || !slices.Equal(filtered, []int64{0}) {
		t.Errorf("groups %v, filtered %d at places %v", got, b.Filtered, filtered)
	}
	if want := (2.0 + 2 + 1) / 12; b.RewardMean != want {
		t.Errorf("reward mean %v, want %v", b.RewardMean, want)
	}
}

// Case A7: data without any signal ends with an error that names counts, not in an endless loop.
func TestRefillIsBounded(t *testing.T) {
	p := testPlan(1000, 2, 2, 0)
	p.Config.FilterEqual = true
	q := newQueue(t, p)
	groups := 0
	for s := admitAll(q); len(s) > 0; s = admitAll(q) {
		for _, x := range s {
			q.Put(done(x, 1))
			groups++
		}
	}
	_, _, err := q.Take()
	wantError(t, err, "9 groups taken out for one batch of 2 (9 with equal scores, 0 with failures: []), more than max_refill = 4")
	if groups > 20 {
		t.Errorf("%d rollouts", groups)
	}
}

// Case F3: a batch without an optimizer step leaves the version alone, and the next one comes.
func TestASkippedBatchDoesNotStopAdmission(t *testing.T) {
	q := newQueue(t, testPlan(100, 2, 1, 0))
	for k := range 3 {
		for _, s := range admitAll(q) {
			q.Put(done(s, 0))
		}
		if got, want := groupsOf(take(t, q)), []int64{int64(2 * k), int64(2*k + 1)}; !slices.Equal(got, want) {
			t.Fatalf("batch %d: %v", k, got)
		}
		q.Skip()
	}
	if s := q.State(); s.First != 6 || len(s.InFlight) != 0 {
		t.Errorf("state %+v", s)
	}
}

func TestFiniteDataEndsWithAShortBatch(t *testing.T) {
	p := testPlan(5, 2, 1, 1)
	p.Data.Epochs = 1
	var ends int
	p.OnEvent = func(e Event) {
		if e.Kind == EndOfData {
			ends++
		}
	}
	q := newQueue(t, p)
	var batches [][]int64
	for version := int32(1); ; version++ {
		for _, s := range admitAll(q) {
			if s.Group == 2 {
				q.Put(failed(s)) // nothing is left to replace it
			} else {
				q.Put(done(s, 0))
			}
		}
		b, ok, err := q.Take()
		if errors.Is(err, ErrEndOfData) {
			break
		}
		if !ok {
			t.Fatal(err)
		}
		batches = append(batches, groupsOf(b))
		must(t, q.SetVersion(version))
	}
	// Task 4 was the next one when 2 failed, so it took the place.
	if want := [][]int64{{0, 1}, {3, 4}}; !cmp.Equal(batches, want) || ends != 1 {
		t.Errorf("batches %v, %d ends", batches, ends)
	}
}

func TestEveryPlaceEmptyAtTheEndIsTheEnd(t *testing.T) {
	p := testPlan(2, 2, 1, 1)
	p.Data.Epochs, p.Config.MaxFailed = 1, 1
	q := newQueue(t, p)
	for _, s := range admitAll(q) {
		q.Put(failed(s))
	}
	if _, ok, err := q.Take(); ok || !errors.Is(err, ErrEndOfData) {
		t.Errorf("batch %t, error %v", ok, err)
	}
}

func TestEpochsAreShuffledEachInItsOwnWay(t *testing.T) {
	o := order{n: 50, shuffle: true, seed: 1, epochs: 2}
	var epochs [2][]int
	for pos := range int64(100) {
		i, e, ok := o.at(pos)
		if !ok {
			t.Fatal(pos)
		}
		epochs[e] = append(epochs[e], i)
	}
	if slices.Equal(epochs[0], epochs[1]) || slices.IsSorted(epochs[0]) {
		t.Error("order repeats or is sorted")
	}
	for _, e := range epochs {
		slices.Sort(e)
		for i, v := range e {
			if i != v {
				t.Fatal("an epoch must hold every task once")
			}
		}
	}
	if _, _, ok := o.at(100); ok {
		t.Error("a third epoch")
	}
}
