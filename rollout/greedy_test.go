package rollout

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func greedyPlan(n, prompts, samples, limit int) Plan {
	p := testPlan(n, prompts, samples, limit)
	p.Greedy = true
	return p
}

// split parts greedy rollouts from the others.
func split(specs []Spec) (sampled, greedy []Spec) {
	for _, s := range specs {
		if s.Greedy {
			greedy = append(greedy, s)
		} else {
			sampled = append(sampled, s)
		}
	}
	return sampled, greedy
}

// One greedy rollout a group, numbered so that those of the samples are what they are without it.
func TestAGroupHasOneGreedyRolloutBesideItsSamples(t *testing.T) {
	sampled, greedy := split(admitAll(newQueue(t, greedyPlan(100, 3, 4, 1))))
	if diff := cmp.Diff(admitAll(newQueue(t, testPlan(100, 3, 4, 1))), sampled); diff != "" {
		t.Error("samples differ from those of a run without greedy rollouts:", diff)
	}
	seen := map[int64]bool{}
	seeds := map[uint64]bool{}
	for _, s := range slices.Concat(sampled, greedy) {
		if seen[s.ID] || seeds[s.Seed] {
			t.Errorf("ID %d or seed %d is double", s.ID, s.Seed)
		}
		seen[s.ID], seeds[s.Seed] = true, true
	}
	for i, s := range greedy {
		if s.Group != int64(i) || s.Place != int64(i) || s.Sampling.Temperature != 0 || s.Sampling.Exact() || s.Sampling.MaxTokens != 256 {
			t.Errorf("greedy rollout %d: %+v", i, s)
		}
	}
	if len(greedy) != 6 {
		t.Errorf("%d greedy rollouts, want one for each of 6 groups", len(greedy))
	}
}

// Case M2: a baseline is no sample. It stands beside the groups in their order, and the mean does not see it.
func TestAGreedyRolloutCountsInNoStatisticOfTheGroup(t *testing.T) {
	q := newQueue(t, greedyPlan(100, 2, 2, 0))
	sampled, greedy := split(admitAll(q))
	q.Put(done(greedy[1], 100))
	for i, s := range sampled {
		q.Put(done(s, float64(i)))
	}
	if _, ok, err := q.Take(); ok || err != nil || !q.Running(0) {
		t.Fatal("a batch before its last greedy rollout:", err)
	}
	q.Put(done(sampled[0], 50))                                                // again
	q.Put(Event{Kind: Done, Spec: Spec{ID: 2, Group: 0}, Rollout: &Rollout{}}) // the number behind the group's last
	q.Put(Event{Kind: Done, Spec: Spec{Greedy: true, Group: 9}, Rollout: nil}) // of no group
	q.Put(done(greedy[0], -100))
	b := take(t, q)
	if len(b.Groups[0]) != 2 || len(b.Groups[1]) != 2 || b.RewardMean != (0.0+1+2+3)/4 || b.Failed != 0 || b.Filtered != 0 {
		t.Errorf("batch %+v", b)
	}
	if len(b.Greedy) != 2 || b.Greedy[0].Reward != -100 || b.Greedy[1].Reward != 100 || b.Greedy[1].Group != b.Groups[1][0].Group {
		t.Errorf("greedy %+v", b.Greedy)
	}
	if q.State().InFlight == nil {
		t.Error("the batch is in flight until its step is done")
	}

	q = newQueue(t, testPlan(100, 1, 2, 0))
	for _, s := range admitAll(q) {
		q.Put(Event{Kind: Done, Spec: Spec{Greedy: true, Group: s.Group}, Rollout: &Rollout{}}) // never asked for
		q.Put(done(s, 1))
	}
	if b := take(t, q); b.Greedy != nil {
		t.Errorf("greedy rollouts %v in a run without", b.Greedy)
	}
}

func TestTheFilterDoesNotLookAtTheGreedyRollout(t *testing.T) {
	p := greedyPlan(100, 1, 2, 0)
	p.Config.FilterEqual = true
	rewards := map[int64][3]float64{0: {.5, .5, 1}, 1: {0, 1, .5}} // two samples, then greedy
	for _, order := range [][]int{{0, 1, 2}, {2, 0, 1}} {
		q := newQueue(t, p)
		for s := admitAll(q); len(s) > 0; s = admitAll(q) {
			for _, i := range order {
				q.Put(done(s[i], rewards[s[i].Group][i]))
			}
		}
		if b := take(t, q); groupsOf(b)[0] != 1 || b.Filtered != 1 || b.RewardMean != 0.5 || b.Greedy[0].Group != 1 {
			t.Errorf("order %v: groups %v, %d filtered, mean %v", order, groupsOf(b), b.Filtered, b.RewardMean)
		}
	}
}

// Case A8 for baselines: without one a group is lost, also where a group may lose samples.
func TestAGroupThatLostItsGreedyRolloutIsReplaced(t *testing.T) {
	for _, partial := range []bool{false, true} {
		p := greedyPlan(100, 1, 4, 0)
		p.Config.PartialGroups = partial
		q := newQueue(t, p)
		sampled, greedy := split(admitAll(q))
		for _, s := range sampled {
			q.Put(done(s, 1))
		}
		q.Put(failed(greedy[0]))
		if q.Running(0) {
			t.Error("the group still waits")
		}
		refill := admitAll(q)
		if _, greedy := split(refill); len(refill) != 5 || refill[0].Place != 0 || refill[0].Group != 1 || len(greedy) != 1 {
			t.Fatalf("refill %+v", refill)
		}
		for _, s := range refill {
			q.Put(done(s, 0))
		}
		if b := take(t, q); b.Failed != 1 || groupsOf(b)[0] != 1 || len(b.Groups[0]) != 4 || b.RewardMean != 0 {
			t.Errorf("partial %t: groups %v, %d failed, mean %v", partial, groupsOf(b), b.Failed, b.RewardMean)
		}
	}
}

func TestAPartialGroupKeepsItsGreedyRollout(t *testing.T) {
	for _, greedyFirst := range []bool{false, true} {
		p := greedyPlan(100, 1, 4, 0)
		p.Config.PartialGroups = true
		q := newQueue(t, p)
		sampled, greedy := split(admitAll(q))
		if greedyFirst {
			q.Put(done(greedy[0], 9))
		}
		q.Put(failed(sampled[2]))
		for _, i := range []int{0, 1, 3} {
			q.Put(done(sampled[i], 1))
		}
		if !greedyFirst {
			q.Put(done(greedy[0], 9))
		}
		if b := take(t, q); len(b.Groups[0]) != 3 || b.Failed != 1 || b.Greedy[0].Reward != 9 || b.RewardMean != 1 {
			t.Errorf("greedy first %t: %d in the group, %d failed, mean %v", greedyFirst, len(b.Groups[0]), b.Failed, b.RewardMean)
		}
	}
}

// A group whose samples all failed has nothing to compare with its baseline.
func TestAGroupOfAGreedyRolloutAloneIsReplaced(t *testing.T) {
	p := greedyPlan(100, 2, 2, 0)
	p.Config.PartialGroups = true
	q := newQueue(t, p)
	sampled, greedy := split(admitAll(q))
	q.Put(done(greedy[0], 1))
	q.Put(failed(sampled[0]))
	q.Put(failed(sampled[1]))
	if s := admitAll(q); len(s) != 3 || s[0].Group != 2 || s[0].Place != 0 {
		t.Errorf("refill %+v", s)
	}
}

// Failures are counted and bounded over all that runs: a batch of 2 × (1 + 1) rollouts takes 2 at a share of 0.5.
func TestGreedyRolloutsCountWhereFailuresAre(t *testing.T) {
	p := greedyPlan(100, 2, 1, 1)
	q := newQueue(t, p)
	for range 3 {
		for _, s := range admitAll(q) {
			if s.Place == 0 && s.Greedy {
				q.Put(failed(s))
			}
		}
	}
	_, _, err := q.Take()
	wantError(t, err, "3 rollouts failed for one batch of 4, more than max_failed = 0.5 allows: [agent:3]; the last: boom")
}

func TestARunResumesWithGreedyRolloutsInFlight(t *testing.T) {
	p := greedyPlan(100, 2, 2, 1)
	q := newQueue(t, p)
	before := admitAll(q)
	sampled, _ := split(before)
	for _, s := range sampled {
		q.Put(done(s, 1))
	}
	for _, greedy := range []bool{true, false} {
		p.Greedy = greedy
		resumed := resume(t, q, p)
		after := admitAll(resumed)
		want := before
		if !greedy { // the setting of the resumed run holds, and no rollout has another number or seed
			want = sampled
		}
		if diff := cmp.Diff(want, after); diff != "" {
			t.Errorf("greedy %t: %s", greedy, diff)
		}
		for _, s := range after {
			resumed.Put(done(s, 0))
		}
		if b := take(t, resumed); b.Greedy != nil != greedy || !slices.Equal(groupsOf(b), []int64{0, 1}) {
			t.Errorf("greedy %t: groups %v, %d greedy rollouts", greedy, groupsOf(b), len(b.Greedy))
		}
	}
	p = testPlan(100, 2, 2, 1) // and the other way round
	q = newQueue(t, p)
	admitAll(q)
	p.Greedy = true
	if diff := cmp.Diff(before, admitAll(resume(t, q, p))); diff != "" {
		t.Error(diff)
	}
}

func TestTheCollectorBringsGreedyRolloutsThatNothingCanBeTrainedOn(t *testing.T) {
	var mu sync.Mutex
	asked := map[float32]int{}
	gen := Script{Reply: func(r Request) ([]int32, []float32, error) {
		mu.Lock()
		defer mu.Unlock()
		asked[r.Sampling.Temperature]++
		return []int32{3, 4}, []float32{-1, -2}, nil
	}}
	c := collect(t, greedyPlan(100, 3, 2, 0), oneTurn(gen, func(s Spec) float64 { return float64(s.ID) }))
	b, err := c.Next(t.Context())
	must(t, err)
	if diff := cmp.Diff(map[float32]int{0: 3, 1: 6}, asked); diff != "" {
		t.Error("requests by temperature:", diff)
	}
	for i, g := range b.Groups {
		for _, r := range g {
			if r.Greedy || r.Samples[0].NumTrained() != 2 {
				t.Errorf("rollout %d: greedy %t, %d tokens to train on", r.ID, r.Greedy, r.Samples[0].NumTrained())
			}
		}
		r := b.Greedy[i]
		k := r.Samples[0].Tokens()
		if !r.Greedy || r.Group != g[0].Group || r.Task.ID != g[0].Task.ID || r.Samples[0].NumTrained() != 0 {
			t.Errorf("greedy rollout of group %d: %+v", g[0].Group, r)
		}
		if !slices.Equal(k.IDs, []int32{1, 2, 3, 4}) || k.LogP[3] != -2 {
			t.Errorf("what the policy said is kept: %+v", k)
		}
	}
}

func TestAnAgentThatSamplesItsBaselineFailsWithTheReason(t *testing.T) {
	agent := oneTurn(hello, func(Spec) float64 { return 1 })
	stubborn := RunnerFunc(func(ctx context.Context, s Spec) (*Rollout, error) {
		s.Sampling.Temperature = 1
		return agent.Run(ctx, s)
	})
	task := func() (Task, error) { return Task{}, nil }
	_, err := attempt(t.Context(), stubborn, Spec{ID: -1, Greedy: true}, task, time.Second)
	wantError(t, err, "rollout -1: sample 0 of a greedy rollout was not sampled greedily: ask the generator for Spec.Sampling")
	_, err = attempt(t.Context(), stubborn, Spec{}, task, time.Second)
	must(t, err)
}
