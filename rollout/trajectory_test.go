package rollout

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustMint(t *testing.T, id, version int32, logp, temp float32, exact bool) Generated {
	t.Helper()
	g, err := Mint(id, version, logp, temp, exact)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err error, part string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Fatalf("error %v, want one that says %q", err, part)
	}
}

func TestMintRefusesWhatCannotBeTrusted(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for _, c := range []struct {
		id, version int32
		logp, temp  float32
		exact       bool
		want        string
	}{
		{-1, 0, -1, 1, true, "id -1"},
		{1, -1, -1, 1, true, "version -1"},
		{1, 0, nan, 1, true, "log-prob is NaN"},
		{1, 0, inf, 1, true, "log-prob is -Inf"},
		{1, 0, -1, nan, false, "temperature is NaN"},
		{1, 0, -1, -1, false, "temperature is -1"},
		{1, 0, -1, 0, true, "greedy"},
	} {
		_, err := Mint(c.id, c.version, c.logp, c.temp, c.exact)
		wantError(t, err, c.want)
	}
	g := mustMint(t, 7, 3, -0.5, 0.7, true)
	if g.ID() != 7 || g.Version() != 3 || g.LogP() != -0.5 || g.Temp() != 0.7 || !g.Exact() {
		t.Errorf("minted %+v", g)
	}
}

func TestExactMeansNoTruncationPenaltyOrBias(t *testing.T) {
	for _, c := range []struct {
		s    Sampling
		want bool
	}{
		{Sampling{}, false},
		{Sampling{Temperature: 0.5}, true},
		{Sampling{Temperature: 1, TopP: 1, Penalty: 1}, true},
		{Sampling{Temperature: 1, TopP: 0.9}, false},
		{Sampling{Temperature: 1, TopK: 5}, false},
		{Sampling{Temperature: 1, MinP: 0.1}, false},
		{Sampling{Temperature: 1, Penalty: 1.1}, false},
		{Sampling{Temperature: 1, Bias: map[int32]float32{1: -1}}, false},
	} {
		if got := c.s.Exact(); got != c.want {
			t.Errorf("%+v: exact %t", c.s, got)
		}
	}
}

// Case T1: sampled ids are kept as they were, and the next prompt begins with them.
func TestSampledIDsAreNeverDerivedAgain(t *testing.T) {
	var tr Trajectory
	must(t, tr.Context([]int32{5, 6}))
	r := tr.Request(Sampling{Temperature: 1}, nil)
	must(t, tr.Append(Completion{Prefix: r.Prefix(), Finish: FinishLength,
		Tokens: []Generated{mustMint(t, 0, 2, -0.7, 1, true), mustMint(t, 1, 3, -0.2, 1, true)}}))
	must(t, tr.Context([]int32{9}))
	want := Tokens{
		IDs: []int32{5, 6, 0, 1, 9}, Versions: []int32{-1, -1, 2, 3, -1}, Mask: []bool{false, false, true, true, false},
		LogP: []float32{0, 0, -0.7, -0.2, 0}, Temp: []float32{1, 1, 1, 1, 1},
	}
	if diff := cmp.Diff(want, tr.Tokens()); diff != "" {
		t.Error(diff)
	}
	if got := tr.Request(Sampling{}, nil).IDs; !slices.Equal(got, want.IDs) {
		t.Errorf("next prompt %v", got)
	}
}

func TestAppendIsAllOrNothing(t *testing.T) {
	var tr Trajectory
	must(t, tr.Context([]int32{1, 2, 3, 4}, Image{Start: 1, Len: 2}))
	before := tr.Tokens()
	good := mustMint(t, 5, 0, -1, 1, true)
	here, elsewhere := tr.Request(Sampling{}, nil).Prefix(), Request{IDs: []int32{1, 2, 3, 4}}.Prefix() // not the image
	two := Routed{Layers: 1, K: 2, Experts: make([]uint16, 8)}
	nan := float32(math.NaN())
	for _, c := range []struct {
		completion Completion
		want       string
	}{
		{Completion{Prefix: elsewhere, Tokens: []Generated{good}, Finish: FinishStop}, "another prefix"},
		{Completion{Prefix: here, Tokens: []Generated{good, {}}, Finish: FinishStop}, "token 1 of the completion was not minted"},
		{Completion{Prefix: here, Tokens: []Generated{good}}, "unknown finish"},
		{Completion{Prefix: here, Tokens: []Generated{good}, Finish: FinishStop, NumStop: 2}, "2 of 1 tokens"},
		{Completion{Prefix: here, Tokens: []Generated{good}, Finish: FinishStop, Top: make([][]TopLogP, 2)}, "2 of 1"},
		{Completion{Prefix: here, Tokens: []Generated{good}, Finish: FinishStop, Top: [][]TopLogP{{{1, nan}}}}, "NaN"},
		{Completion{Prefix: here, Tokens: []Generated{good, good}, Finish: FinishStop, Routed: two}, "want 5 positions"},
		{Completion{Prefix: here, Tokens: []Generated{good}, Finish: FinishStop, Routed: Routed{Layers: 1}}, "1 layers, 0"},
	} {
		wantError(t, tr.Append(c.completion), c.want)
		if diff := cmp.Diff(before, tr.Tokens()); diff != "" {
			t.Fatalf("after %q: %s", c.want, diff)
		}
	}
	wantError(t, tr.Context([]int32{1, -2}), "negative")
	wantError(t, tr.Context([]int32{1, 2}, Image{Start: 1, Len: 2}), "image 0")
	wantError(t, tr.Context([]int32{1, 2, 3}, Image{Start: 0, Len: 2}, Image{Start: 1, Len: 1}), "image 1")
	wantError(t, tr.Context([]int32{1}, Image{Start: math.MaxInt, Len: 1}), "image 0")
	tr.Seal()
	wantError(t, tr.Append(Completion{Prefix: here, Finish: FinishStop}), "sealed")
	wantError(t, tr.Context(nil), "sealed")
	if diff := cmp.Diff(before, tr.Tokens()); diff != "" {
		t.Error(diff)
	}
}

func TestAGreedyTokenStaysWithMaskZero(t *testing.T) {
	var tr Trajectory
	must(t, tr.Append(Completion{Prefix: Request{}.Prefix(), Finish: FinishStop, Tokens: []Generated{mustMint(t, 5, 1, -1, 0, false)}}))
	want := Tokens{IDs: []int32{5}, Versions: []int32{1}, Mask: []bool{false}, LogP: []float32{-1}, Temp: []float32{1}}
	if diff := cmp.Diff(want, tr.Tokens()); diff != "" || tr.NumTrained() != 0 {
		t.Error(diff)
	}
}

// Case X1: row t belongs to token t; the row at the border of two turns comes with the second, to each branch its own; rows of earlier
// calls stay; what no completion covers is unknown.
func TestRoutedRowsBelongToTheirTokens(t *testing.T) {
	var tr Trajectory
	must(t, tr.Context([]int32{1, 2, 3}))
	g := mustMint(t, 9, 0, -1, 1, true)
	call := func(n int, experts ...uint16) {
		t.Helper()
		must(t, tr.Append(Completion{Prefix: tr.Request(Sampling{}, nil).Prefix(), Finish: FinishStop, Tokens: slices.Repeat([]Generated{g}, n),
			Routed: Routed{Layers: 1, K: 1, Experts: experts}}))
	}
	call(2, 10, 11, 12, 13)
	if got, want := tr.Tokens().Routed.Experts, []uint16{10, 11, 12, 13, UnknownExpert}; !slices.Equal(got, want) {
		t.Fatalf("after turn 1: %v", got)
	}
	must(t, tr.Context([]int32{4}))
	call(1, 20, 21, 22, 23, 24, 25)
	if got, want := tr.Tokens().Routed.Experts, []uint16{10, 11, 12, 13, 24, 25, UnknownExpert}; !slices.Equal(got, want) {
		t.Errorf("after turn 2: %v", got)
	}
	fork, err := tr.Fork(3)
	must(t, err)
	must(t, fork.Context([]int32{5, 6}))
	must(t, fork.Append(Completion{Prefix: fork.Request(Sampling{}, nil).Prefix(), Finish: FinishStop, Tokens: []Generated{g}})) // without
	if got, want := fork.Tokens().Routed.Experts, []uint16{10, 11, 12, UnknownExpert, UnknownExpert, UnknownExpert}; !slices.Equal(got, want) {
		t.Errorf("a branch: %v", got)
	}
	tr.Seal()
	if got, want := tr.Tokens().Routed.Experts, []uint16{10, 11, 12, 13, 24, 25, UnknownExpert}; !slices.Equal(got, want) {
		t.Errorf("sealed, after the branch: %v", got)
	}
}

func TestForkInsideAnImageIsRefused(t *testing.T) {
	var tr Trajectory
	must(t, tr.Context([]int32{1, 2, 3, 4, 5}, Image{Start: 1, Len: 3}))
	for _, n := range []int{2, 3, -1, 6} {
		if _, err := tr.Fork(n); err == nil {
			t.Errorf("fork at %d", n)
		}
	}
	for n, images := range map[int]int{0: 0, 1: 0, 4: 1, 5: 1} {
		f, err := tr.Fork(n)
		must(t, err)
		if parent, shared := f.Parent(); len(f.Tokens().Images) != images || parent != &tr || shared != n {
			t.Errorf("fork at %d: %d images", n, len(f.Tokens().Images))
		}
	}
}

func TestPrefixSeparatesIDsAndImages(t *testing.T) {
	seen := map[[32]byte]string{}
	for _, r := range []Request{
		{}, {IDs: []int32{1}}, {IDs: []int32{1, 2}}, {IDs: []int32{2, 1}}, {IDs: []int32{1}, Images: []Image{{Len: 1}}},
		{IDs: []int32{1}, Images: []Image{{Len: 1, Digest: [32]byte{1}}}}, {IDs: []int32{1}, Images: []Image{{Len: 1, Grid: [3]int{1}}}},
	} {
		key := fmt.Sprintf("%v %v", r.IDs, r.Images)
		if other, ok := seen[r.Prefix()]; ok {
			t.Errorf("%s and %s share a digest", key, other)
		}
		seen[r.Prefix()] = key
	}
}

// Random conversations with forks: every trajectory only grows, all per-token slices keep one length, and every
// token with mask 1 was generated at that position under that prefix.
func TestRandomOperationsKeepTheInvariants(t *testing.T) {
	type tracked struct {
		tr      *Trajectory
		before  Tokens
		trained map[int]int32 // position → id, from the generator's own book
	}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		all := []*tracked{{tr: &Trajectory{}, trained: map[int]int32{}}}
		for range 60 {
			k := all[rng.IntN(len(all))]
			n := rng.IntN(4)
			switch rng.IntN(5) {
			case 0, 1:
				ids := make([]int32, n)
				for i := range ids {
					ids[i] = rng.Int32N(50)
				}
				_ = k.tr.Context(ids)
			case 2, 3:
				c := Completion{Prefix: k.tr.Request(Sampling{}, nil).Prefix(), Finish: FinishLength}
				bad := rng.IntN(4) == 0
				for i := range n {
					g := mustMint(t, rng.Int32N(50), rng.Int32N(9), -rng.Float32(), 1, rng.IntN(3) > 0)
					c.Tokens = append(c.Tokens, g)
					if g.Exact() && !bad && !k.tr.sealed {
						k.trained[k.tr.Len()+i] = g.ID()
					}
				}
				if rng.IntN(2) == 0 {
					c.Top = make([][]TopLogP, n)
				}
				if rows := max(k.tr.Len()+n-1, 0); rng.IntN(2) == 0 {
					c.Routed = Routed{Layers: 1, K: 2, Experts: slices.Repeat([]uint16{uint16(rng.IntN(100)), 7}, rows)}
				}
				if bad {
					c.Prefix[0]++
				}
				if err := k.tr.Append(c); (err == nil) != (!bad && !k.tr.sealed) {
					t.Fatalf("seed %d: append: %v", seed, err)
				}
			case 4:
				if f, err := k.tr.Fork(rng.IntN(k.tr.Len() + 1)); err != nil {
					t.Fatal(err)
				} else {
					all = append(all, &tracked{tr: f, before: f.Tokens(), trained: map[int]int32{}})
				}
				if rng.IntN(8) == 0 {
					k.tr.Seal()
				}
			}
			for _, k := range all {
				now := k.tr.Tokens()
				checkGrown(t, k.before, now)
				for i, m := range now.Mask {
					if id, ok := k.trained[i]; ok != m || m && id != now.IDs[i] {
						t.Fatalf("seed %d: position %d: mask %t, id %d; generated %t, %d", seed, i, m, now.IDs[i], ok, id)
					}
				}
				k.before = now
			}
		}
	}
}

func checkGrown(t *testing.T, old, now Tokens) {
	t.Helper()
	n := len(now.IDs)
	if len(now.Versions) != n || len(now.Mask) != n || len(now.LogP) != n || len(now.Temp) != n || now.Top != nil && len(now.Top) != n {
		t.Fatalf("lengths differ: %+v", now)
	}
	m := len(old.IDs)
	if m > n {
		t.Fatalf("shrank from %d to %d tokens", m, n)
	}
	now.IDs, now.Versions, now.Mask, now.LogP, now.Temp = now.IDs[:m], now.Versions[:m], now.Mask[:m], now.LogP[:m], now.Temp[:m]
	if row := now.Routed.row(); len(now.Routed.Experts) != n*row {
		t.Fatalf("%d routed experts for %d tokens of %d", len(now.Routed.Experts), n, row)
	}
	for i, e := range old.Routed.Experts {
		if e != UnknownExpert && e != now.Routed.Experts[i] {
			t.Fatalf("expert %d was %d and became %d", i, e, now.Routed.Experts[i])
		}
	}
	old.Top, now.Top = nil, nil
	old.Routed, now.Routed = Routed{}, Routed{}
	if m > 0 {
		if diff := cmp.Diff(old, now); diff != "" {
			t.Fatal(diff)
		}
	}
}
