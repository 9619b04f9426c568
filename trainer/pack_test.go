package trainer

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// dialogue is a sample whose tokens are trained from the given index on.
func dialogue(group int64, from int, ids ...int32) Sample {
	x := Sample{Tokens: blank(len(ids)), Advantages: make([]float32, len(ids)), Group: group, Rollout: group*100 + int64(from)}
	copy(x.Tokens.IDs, ids)
	for i := from; i < len(ids); i++ {
		x.Tokens.Mask[i], x.Tokens.LogP[i], x.Advantages[i] = true, -1, 1
	}
	return x
}

func mustPack(t *testing.T, samples []Sample, budget int) Plan {
	t.Helper()
	plan, err := Pack(samples, budget)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func TestAGroupsPromptIsOneSequenceThatItsSamplesShare(t *testing.T) {
	a, b := dialogue(7, 3, 1, 2, 3, 4, 5), dialogue(7, 3, 1, 2, 3, 6)
	a.Tokens.Temp[4], b.Advantages[3] = 0.5, -2
	plan := mustPack(t, []Sample{a, b}, 100)
	m := plan.Micros[0]
	// Rows: 1 2 3 of both, 4 of a. Nothing is predicted from the last tokens, 5 and 6.
	if diff := cmp.Diff([]int32{1, 2, 3, 4}, m.Batch.IDs); diff != "" {
		t.Error("ids:", diff)
	}
	if diff := cmp.Diff([]int32{0, 3, 0, 3, 3, 1}, m.Batch.Ranges); diff != "" {
		t.Error("ranges:", diff)
	}
	if diff := cmp.Diff([]int32{0, 0, 1, 0, 0, 2, 0, 0, 3, 1, 0, 4}, m.Batch.Rows[:12]); diff != "" {
		t.Error("rows:", diff)
	}
	want := Micro{Batch: m.Batch, Rows: []int32{2, 3, 2}, IDs: []int32{4, 5, 6}, InvT: []float32{1, 2, 1},
		Behaviour: []float32{-1, -1, -1}, Advantages: []float32{1, 1, -2}, Places: []Place{{0, 3}, {0, 4}, {1, 3}}, Sample: []int32{0, 0, 1},
		Samples: []SampleInfo{{2, 3}, {1, 3}}}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Error(diff)
	}
	step := Step{Tokens: 3, Sequences: 2, Prompts: 1, Behaviour: m.Behaviour, Advantages: m.Advantages}
	if diff := cmp.Diff(step, plan.Step, cmpopts.IgnoreUnexported(step)); diff != "" {
		t.Error("step:", diff)
	}
}

func TestMasksGoByPositionWhereEOSIsPadding(t *testing.T) { // T5, T7
	const eos = 0
	plan := mustPack(t, []Sample{dialogue(0, 1, 7, 5, 6, eos), dialogue(1, 2, 3, 4, eos)}, 100)
	m := plan.Micros[0]
	if diff := cmp.Diff([]Place{{0, 1}, {0, 2}, {0, 3}, {1, 2}}, m.Places); diff != "" {
		t.Error("the end is trained like any token, also alone:", diff)
	}
}

func TestAGroupIsSplitOnlyIfItExceedsTheBudget(t *testing.T) {
	var samples []Sample
	for g := range int64(2) {
		for i := range int32(3) {
			samples = append(samples, dialogue(g, 4, int32(g), 1, 2, 3, 10+i, 20, 30)) // 4 rows in common, 2 of its own
		}
	}
	numRows := func(budget int) (rows []int) {
		for _, m := range mustPack(t, samples, budget).Micros {
			n := 0
			for i := range m.Batch.Len() {
				if m.Batch.Rows[3*i+2] > 0 {
					n++
				}
			}
			rows = append(rows, n)
		}
		return rows
	}
	for budget, want := range map[int][]int{20: {20}, 19: {10, 10}, 10: {10, 10}, 9: {8, 6, 8, 6}, 6: {6, 6, 6, 6, 6, 6}} {
		if diff := cmp.Diff(want, numRows(budget)); diff != "" {
			t.Errorf("budget %d: %s", budget, diff)
		}
	}
	_, err := Pack(samples, 5)
	if err == nil || !strings.Contains(err.Error(), "sample 0 (rollout 4) needs 6 rows, but optim.micro_tokens is 5") {
		t.Error("a sample that does not fit:", err)
	}
}

// Whatever the samples: each trained token is scored once, by a row that sees its predecessors and nothing else, in a budget.
func TestEveryTrainedTokenIsPredictedFromExactlyWhatCameBefore(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var samples []Sample
		for range 1 + r.IntN(8) {
			n := 1 + r.IntN(12)
			x := dialogue(r.Int64N(3), n, make([]int32, n)...)
			for i := range n {
				x.Tokens.IDs[i] = r.Int32N(2) // many common beginnings
				x.Tokens.Mask[i] = i > 0 && r.IntN(2) == 0
			}
			samples = append(samples, x)
		}
		budget := 11 + r.IntN(30)
		seen := map[Place]int{}
		for _, m := range mustPack(t, samples, budget).Micros {
			if m.Batch.Len() > max(8, budget+3) {
				t.Fatalf("%d rows, budget %d", m.Batch.Len(), budget)
			}
			for n, p := range m.Places {
				seen[p]++
				x := samples[p.Sample].Tokens
				if diff := cmp.Diff(x.IDs[:p.Token], sees(m, m.Rows[n])); diff != "" || m.IDs[n] != x.IDs[p.Token] || !x.Mask[p.Token] {
					t.Fatalf("place %v: %s", p, diff)
				}
				if position := m.Batch.Positions[m.Rows[n]]; int(position) != p.Token-1 {
					t.Fatalf("place %v is predicted at position %d", p, position)
				}
			}
		}
		for i, x := range samples {
			for j, on := range x.Tokens.Mask {
				want := 0
				if on {
					want = 1
				}
				if seen[Place{i, j}] != want {
					t.Fatalf("sample %d, token %d is scored %d times, want %d", i, j, seen[Place{i, j}], want)
				}
			}
		}
	}
}

// sees are the tokens that a row of m attends to, in order.
func sees(m Micro, row int32) []int32 {
	b, lo, hi := m.Batch.Rows[3*row], m.Batch.Rows[3*row+1], m.Batch.Rows[3*row+2]
	var keys []int32
	for r := m.Batch.Seqs[b]; r < m.Batch.Seqs[b+1]; r++ {
		first, n := m.Batch.Ranges[2*r], m.Batch.Ranges[2*r+1]
		keys = append(keys, m.Batch.IDs[first:first+n]...)
	}
	return keys[lo:hi]
}

func TestHostileSamplesAreRefusedByName(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for want, change := range map[string]func(*Sample){
		"token 2: advantage is NaN":             func(x *Sample) { x.Advantages[2] = nan },
		"token 2: log-prob is +Inf":             func(x *Sample) { x.Tokens.LogP[2] = inf },
		"token 1: old log-prob is NaN":          func(x *Sample) { x.Old = []float32{0, nan, 0} },
		"token 2: reference log-prob is NaN":    func(x *Sample) { x.Reference = []float32{nan, 0, nan} },
		"token 1: temperature is 0":             func(x *Sample) { x.Tokens.Temp[1] = 0 },
		"token 1: temperature is NaN":           func(x *Sample) { x.Tokens.Temp[1] = nan },
		"token 0 is to be trained, but nothing": func(x *Sample) { x.Tokens.Mask[0] = true },
		"3 tokens, but 2 masks":                 func(x *Sample) { x.Tokens.Mask = x.Tokens.Mask[1:] },
		"2 advantages":                          func(x *Sample) { x.Advantages = x.Advantages[1:] },
	} {
		x := dialogue(5, 1, 1, 2, 3)
		change(&x)
		_, err := Pack([]Sample{dialogue(4, 1, 1, 2), x}, 10)
		if err == nil || !strings.HasPrefix(err.Error(), "sample 1 (rollout 501): ") || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	for _, samples := range [][]Sample{nil, {dialogue(0, 2, 1, 2)}, {{}}} {
		if plan := mustPack(t, samples, 10); len(plan.Micros) != 0 || plan.Step.Tokens != 0 {
			t.Errorf("nothing to train in %v, but %d micro-batches", samples, len(plan.Micros))
		}
	}
}
