package engine

import (
	"cmp"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

const reference = "../../testdata/reference"

// drawAll draws from the same row of logits as asked, at each quantile.
func drawAll(t *testing.T, x []float32, q rollout.Sampling, seen []int32, u ...float64) (out []drawn) {
	t.Helper()
	do(t, func(s *torch.Scope) error {
		rows := torch.New(s, slices.Repeat(x, len(u)), len(u), len(x))
		out = sample(s, rows, slices.Repeat([]rollout.Sampling{q}, len(u)), u, func(int) []int32 { return seen })
		return nil
	})
	return out
}

// probabilities finds those that tokens are drawn with, by where the drawn token changes as the quantile goes from 0 to 1.
func probabilities(t *testing.T, x []float32, q rollout.Sampling, seen []int32) []float32 {
	p := make([]float32, len(x))
	ends := drawAll(t, x, q, seen, 0, 1-1e-15)
	type span struct {
		lo, hi float64
		a, b   int32
	}
	spans := []span{{0, 1, ends[0].id, ends[1].id}}
	for range 40 {
		var next []span
		var u []float64
		for _, s := range spans {
			u = append(u, (s.lo+s.hi)/2)
		}
		for i, d := range drawAll(t, x, q, seen, u...) {
			for _, half := range []span{{spans[i].lo, u[i], spans[i].a, d.id}, {u[i], spans[i].hi, d.id, spans[i].b}} {
				if half.a > half.b {
					t.Fatalf("%+v: token %d, then %d at a higher quantile", q, half.a, half.b)
				}
				if half.a == half.b {
					p[half.a] += float32(half.hi - half.lo)
				} else {
					next = append(next, half)
				}
			}
		}
		if spans = next; len(spans) == 0 {
			break
		}
	}
	return p
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
	if len(ref.Results) < 110 {
		t.Fatalf("the reference holds %d cases", len(ref.Results))
	}
	for _, r := range ref.Results {
		s := rollout.Sampling{Temperature: r.Args.Temperature, TopK: r.Args.TopK, TopP: r.Args.TopP, MinP: r.Args.MinP, Penalty: r.Args.Penalty}
		if s.Temperature == 0 {
			s.Temperature = 1
		}
		x := slices.Clone(ref.Logits[r.Logits])
		distinct := len(slices.Compact(slices.Sorted(slices.Values(x))))
		got := probabilities(t, x, s, ref.Previous)
		want := slices.Clone(r.Probs)
		if distinct < len(x) && s.TopP > 0 { // which of equal logits the nucleus keeps depends on the sort
			slices.Sort(got)
			slices.Sort(want)
		}
		for i, p := range want { // the smallest are between quantiles
			if p == 0 && got[i] > 0 || p > 1e-9 && got[i] == 0 {
				t.Errorf("%s %+v: token %d has probability %v, want %v", r.Logits, r.Args, i, got[i], p)
			}
		}
		if diff := gocmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
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
		d := drawAll(t, tc.logits, tc.s, nil, 0)[0]
		if d.id != 0 || math.Abs(float64(d.logp)-tc.want) > 1e-7 {
			t.Errorf("%v %+v: token %d with log-prob %v, want 0 with %v", tc.logits, tc.s, d.id, d.logp, tc.want)
		}
	}
}

// shape is what is asked, done plainly: the probabilities after bias, penalty, temperature, top-k, top-p and min-p.
func shape(x []float32, q rollout.Sampling, seen []int32) []float64 {
	y := make([]float32, len(x))
	edit(y, x, q, seen)
	order := make([]int, len(x)) // likeliest first, of equal ones the highest id
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(y[b], y[a]), cmp.Compare(b, a)) })
	p, total := make([]float64, len(x)), 0.0
	n, top := len(x), float64(y[order[0]])
	if q.TopK > 0 {
		for n = min(q.TopK, n); n < len(x) && y[order[n]] == y[order[n-1]]; n++ {
		}
	}
	for _, i := range order[:n] {
		p[i] = math.Exp((float64(y[i]) - top) / float64(q.Temperature))
		total += p[i]
	}
	if q.TopP > 0 && q.TopP < 1 {
		sum := 0.0
		for j, i := range order[:n] {
			if sum >= float64(q.TopP)*total {
				n = j
				break
			}
			sum += p[i]
		}
	}
	total = 0
	for j, i := range order {
		if j >= n || p[i] < float64(q.MinP) {
			p[i] = 0
		}
		total += p[i]
	}
	for i := range p {
		p[i] /= total
	}
	return p
}

// Quantiles on a grid find each token as often as its probability says, within one step at either end.
func TestQuantilesFindEachTokenByItsProbability(t *testing.T) {
	const vocab, grid = 1203, 2000
	r := rand.New(rand.NewPCG(1, 2))
	normal, coarse, flat := make([]float32, vocab), make([]float32, vocab), make([]float32, vocab)
	for i := range normal {
		normal[i] = float32(3 * r.NormFloat64())
		coarse[i] = float32(math.Round(float64(2 * normal[i]))) // many are equal
	}
	u := make([]float64, grid)
	for i := range u {
		u[i] = (float64(i) + 0.5) / grid
	}
	seen := []int32{5, 7, 7, 1200, 7, 5}
	bias := map[int32]float32{5: 3, 1202: 8, 0: -2}
	for name, x := range map[string][]float32{"normal": normal, "coarse": coarse, "flat": flat} {
		for _, q := range []rollout.Sampling{
			{Temperature: 1}, {Temperature: 0.3}, {Temperature: 7, TopK: 10}, {Temperature: 1, TopK: 50}, {Temperature: 1, TopK: 1200},
			{Temperature: 1, TopK: 9999}, {Temperature: 1.2, TopP: 0.95}, {Temperature: 1, TopP: 0.3}, {Temperature: 1, TopP: 1e-7},
			{Temperature: 1, TopP: 1}, {Temperature: 1, MinP: 0.03}, {Temperature: 1, MinP: 1}, {Temperature: 1, TopK: 1},
			{Temperature: 0.8, TopK: 300, TopP: 0.9, MinP: 0.01}, {Temperature: 1, TopP: 0.9, MinP: 0.2},
			{Temperature: 0.9, TopK: 200, TopP: 0.8, MinP: 0.001, Penalty: 1.7, Bias: bias}, {Temperature: 1, Bias: bias}, {Temperature: 1, Penalty: 0.1},
		} {
			count := make([]int, vocab)
			for at := 0; at < grid; at += 1000 {
				for _, d := range drawAll(t, x, q, seen, u[at:at+1000]...) {
					count[d.id]++
				}
			}
			for i, p := range shape(x, q, seen) {
				if got := float64(count[i]); math.Abs(got-p*grid) > 1.01 {
					t.Fatalf("%s %+v: token %d came %v times of %d, its probability is %v", name, q, i, got, grid, p)
				}
			}
		}
	}
}

func TestGreedyIsTheFirstOfTheLargest(t *testing.T) {
	x := make([]float32, 3000)
	x[1100], x[1300], x[2999] = 4, 4, 4
	for _, q := range []rollout.Sampling{{}, {TopK: 1, TopP: 0.1, MinP: 1}, {Penalty: 2}, {Bias: map[int32]float32{1300: 0, 7: 3}}} {
		if d := drawAll(t, x, q, nil, 0.9)[0]; d.id != 1100 || d.logp != drawAll(t, x, rollout.Sampling{}, nil, 0)[0].logp {
			t.Errorf("%+v: %+v", q, d)
		}
	}
}

func TestExtremeLogitsGiveTokensThatCanBe(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	one, huge, most := slices.Repeat([]float32{-inf}, 37), slices.Repeat([]float32{-1e38}, 37), slices.Repeat([]float32{-inf}, 37)
	one[35], huge[20], most[3], most[36] = -5, 3e38, 1, 1
	for _, tc := range []struct {
		name  string
		x     []float32
		first int32 // at quantile 0; the other at the last quantile below 1
		last  int32
		logp  float64
	}{
		{"all equal", make([]float32, 37), 0, 36, -math.Log(37)},
		{"one finite", one, 35, 35, 0},
		{"huge", huge, 20, 20, 0},
		{"two finite", most, 3, 36, -math.Ln2},
		{"a vocabulary of one", []float32{-3}, 0, 0, 0},
		{"NaN", append(slices.Clone(one), nan), -1, -1, 0},
		{"infinite", append(slices.Clone(one), inf), -1, -1, 0},
		{"none finite", []float32{-inf, -inf}, -1, -1, 0},
	} {
		for _, temperature := range []float32{1, 1e-6, 1e30} {
			for _, q := range []rollout.Sampling{{}, {TopP: 0.999}, {MinP: 0.5}, {TopK: 36}, {Penalty: 1.2}, {TopLogP: 1}} {
				q.Temperature = temperature
				if temperature == 1e30 && tc.name == "huge" {
					continue // there its logit is nothing extreme
				}
				d := drawAll(t, tc.x, q, nil, 0, 1-1e-16)
				if got := d[0].id; got != tc.first && (q.TopP == 0 || tc.name != "all equal" && tc.name != "two finite") {
					t.Errorf("%s %+v: token %d at quantile 0, want %d", tc.name, q, got, tc.first)
				}
				if d[1].id != tc.last || tc.last >= 0 && math.Abs(float64(d[1].logp)-tc.logp) > 1e-7*math.Abs(tc.logp) {
					t.Errorf("%s %+v: token %d with log-prob %v, want %d with %v", tc.name, q, d[1].id, d[1].logp, tc.last, tc.logp)
				}
			}
		}
		q := rollout.Sampling{}
		if d := drawAll(t, tc.x, q, nil, 0.5)[0]; d.id != tc.first {
			t.Errorf("%s: greedy is %d, want %d", tc.name, d.id, tc.first)
		}
	}
}

func TestLogitsThatAreNoNumbersAreAnError(t *testing.T) {
	e := start(t, tiny, tinyConfig(), torch.Float32, 0)
	do(t, func(s *torch.Scope) error {
		return weights(s, tiny, 1, func(m *model.Model) error {
			s.NoGrad(func(s *torch.Scope) torch.Tensor {
				norm := m.Params()[len(m.Params())-1].Tensor
				s.Copy_(norm, s.MulScalar(norm, math.NaN()))
				return torch.Tensor{}
			})
			return e.Load(t.Context(), 1, m.Params())
		})
	})
	for _, q := range []rollout.Sampling{{}, {Temperature: 1}, {Temperature: 1, TopP: 0.9, Penalty: 1.1, TopLogP: 3}} {
		_, err := e.Generate(t.Context(), rollout.Request{IDs: count(5, 0), Sampling: q})
		if err == nil || !strings.Contains(err.Error(), "token 0 of a request: the logits are NaN or infinite; weights of version 1") {
			t.Errorf("%+v: error %v", q, err)
		}
	}
	refit(t, e, tiny, 2)
	generate(t, e, request(count(5, 0), 3, 1, 0)) // and the engine goes on
}

func TestPenaltyCountsEachIDOnceAndBiasComesFirst(t *testing.T) {
	y := make([]float32, 3)
	edit(y, []float32{2, -2, 1}, rollout.Sampling{Penalty: 2, Bias: map[int32]float32{0: 2}}, []int32{0, 0, 1, 1, 1})
	if diff := gocmp.Diff([]float32{2, -4, 1}, y); diff != "" {
		t.Error(diff)
	}
}

func TestTopLogPListsTheLikeliestInOrderWithTheDrawsOwnBits(t *testing.T) {
	x := []float32{0, 3, 1, 3, 2}
	lse := math.Log(1 + 2*math.Exp(3) + math.E + math.Exp(2))
	want := []rollout.TopLogP{
		{ID: 1, LogP: float32(3 - lse)}, {ID: 3, LogP: float32(3 - lse)}, {ID: 4, LogP: float32(2 - lse)}, {ID: 2, LogP: float32(1 - lse)},
	}
	got := drawAll(t, x, rollout.Sampling{Temperature: 1, TopLogP: 4}, nil, 0)[0].top
	if diff := gocmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
		t.Error(diff)
	}
	if got := drawAll(t, x, rollout.Sampling{TopLogP: 9}, nil, 0)[0].top; len(got) != 5 {
		t.Error("more than the vocabulary:", got)
	}
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 200 {
		x := make([]float32, 300)
		for j := range x {
			x[j] = float32(5 * r.NormFloat64())
		}
		q := rollout.Sampling{Temperature: 0.1 + r.Float32(), TopLogP: 256, MinP: float32(i%2) / 10, Bias: map[int32]float32{7: float32(i % 3)}}
		d := drawAll(t, x, q, nil, r.Float64())[0]
		k := slices.IndexFunc(d.top, func(l rollout.TopLogP) bool { return l.ID == d.id })
		plain := drawAll(t, x, rollout.Sampling{Temperature: q.Temperature}, nil, 0.5)[0]
		same := slices.IndexFunc(d.top, func(l rollout.TopLogP) bool { return l.ID == plain.id })
		if k < 0 || d.top[k].LogP != d.logp || d.top[same].LogP != plain.logp {
			t.Fatalf("token %d with log-prob %v is not among the likeliest, %v; nor %d with %v", d.id, d.logp, d.top, plain.id, plain.logp)
		}
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
