package engine

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/molt-go/molt/rollout"
)

const reference = "../../testdata/reference"

// probabilities is softmax(x) as float32, as transformers computes it.
func probabilities(x []float32) (p []float32, support int) {
	lse := logSumExp(x, 1)
	for _, v := range x {
		p = append(p, float32(math.Exp(float64(v)-lse)))
		if p[len(p)-1] > 0 {
			support++
		}
	}
	return p, support
}

func TestSamplingEqualsTransformers(t *testing.T) {
	var ref struct {
		Previous []int32              `json:"previous_ids"`
		Logits   map[string][]float32 `json:"logits"`
		Results  []struct {
			Logits string `json:"logits"`
			Args   struct {
				Temperature float32 `json:"temperature"`
				TopK        int     `json:"top_k"`
				TopP        float32 `json:"top_p"`
				MinP        float32 `json:"min_p"`
				Penalty     float32 `json:"repetition_penalty"`
			} `json:"args"`
			Probs   []float32 `json:"probs"`
			Support int       `json:"support"`
		} `json:"results"`
	}
	data, err := os.ReadFile(reference + "/sampling.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &ref); err != nil {
		t.Fatal(err)
	}
	if len(ref.Results) == 0 {
		t.Fatal("the reference holds no cases")
	}
	for _, r := range ref.Results {
		s := rollout.Sampling{Temperature: r.Args.Temperature, TopK: r.Args.TopK, TopP: r.Args.TopP, MinP: r.Args.MinP, Penalty: r.Args.Penalty}
		if s.Temperature == 0 {
			s.Temperature = 1
		}
		x := slices.Clone(ref.Logits[r.Logits])
		distinct := len(slices.Compact(slices.Sorted(slices.Values(x))))
		warp(x, s, ref.Previous)
		got, support := probabilities(x)
		want := slices.Clone(r.Probs)
		if distinct < len(x) && s.TopP > 0 { // which of equal logits the nucleus keeps depends on the sort
			slices.Sort(got)
			slices.Sort(want)
		}
		if support != r.Support {
			t.Errorf("%s %+v: %d tokens are left, want %d", r.Logits, r.Args, support, r.Support)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
			t.Errorf("%s %+v: %s", r.Logits, r.Args, diff)
		}
	}
}

// Cases L11 and L12 of what users reported: log-probs are those of the whole distribution at T.
func TestLogProbsAreOfTheDistributionBeforeTruncation(t *testing.T) {
	for _, tc := range []struct {
		logits []float32
		s      rollout.Sampling
		want   float64
	}{
		{[]float32{2, 1, 0}, rollout.Sampling{Temperature: 1, TopK: 2}, -0.4076060},
		{[]float32{1, 0, -1, -2}, rollout.Sampling{Temperature: 1, TopK: 1}, -0.4401897},
		{[]float32{1, 0, -1, -2}, rollout.Sampling{Temperature: .5, TopK: 1}, -0.1450779},
		{[]float32{1, 0, -1, -2}, rollout.Sampling{Penalty: 1.1}, -0.4401897}, // greedy: at temperature 1
		{[]float32{1, 0, -1, -2}, rollout.Sampling{Temperature: 1, Bias: map[int32]float32{0: 50}}, -0.4401897},
	} {
		id, logp := drawRow(slices.Clone(tc.logits), tc.s, nil, 0)
		if id != 0 || math.Abs(float64(logp)-tc.want) > 1e-6 {
			t.Errorf("%v %+v: token %d with log-prob %v, want 0 with %v", tc.logits, tc.s, id, logp, tc.want)
		}
	}
}

func TestPickFollowsTheQuantiles(t *testing.T) {
	x := []float32{float32(math.Inf(-1)), 0, float32(math.Inf(-1)), float32(math.Log(3)), float32(math.Inf(-1))} // 1/4 and 3/4
	for u, want := range map[float64]int32{0: 1, 0.2499: 1, 0.2501: 3, 1 - 1e-16: 3, 1: 3} {
		if got := pick(x, u); got != want {
			t.Errorf("quantile %v is token %d, want %d", u, got, want)
		}
	}
}

func TestPenaltyCountsEachIDOnceAndBiasComesFirst(t *testing.T) {
	x := []float32{2, -2, 1}
	warp(x, rollout.Sampling{Penalty: 2, Bias: map[int32]float32{0: 2}}, []int32{0, 0, 1, 1, 1})
	if diff := cmp.Diff([]float32{2, -4, 1}, x); diff != "" {
		t.Error(diff)
	}
}

func TestTopLogPListsTheLikeliestInOrder(t *testing.T) {
	got := topLogP([]float32{0, 3, 1, 3, 2}, 1, 4)
	lse := math.Log(1 + 2*math.Exp(3) + math.E + math.Exp(2))
	want := []rollout.TopLogP{
		{ID: 1, LogP: float32(3 - lse)}, {ID: 3, LogP: float32(3 - lse)}, {ID: 4, LogP: float32(2 - lse)}, {ID: 2, LogP: float32(1 - lse)},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
		t.Error(diff)
	}
	if got := topLogP([]float32{1, 2}, 1, 5); len(got) != 2 {
		t.Error("more than the vocabulary:", got)
	}
}

func TestUniformIsAFunctionOfSeedAndIndex(t *testing.T) {
	var mean float64
	seen := map[float64]bool{}
	for seed := range uint64(100) {
		for i := range 100 {
			u := uniform(seed, i)
			if u < 0 || u >= 1 || seen[u] || u != uniform(seed, i) {
				t.Fatalf("uniform(%d, %d) = %v", seed, i, u)
			}
			seen[u] = true
			mean += u / 10000
		}
	}
	if math.Abs(mean-.5) > .01 {
		t.Error("mean", mean)
	}
}
