package trainer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// llamas are the folders of the reference's small Llama models.
func llamas(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("..", "testdata", "reference", "models", "llama_*"))
	if err != nil || len(paths) == 0 {
		t.Fatal("no reference models:", err)
	}
	return paths
}

func newPolicy(t *testing.T, s *torch.Scope, path string, d torch.DType, change func(*Config)) *Policy {
	t.Helper()
	c := DefaultConfig()
	if change != nil {
		change(&c)
	}
	master, err := model.Load(s, path, torch.Float32)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPolicy(s, master, d, c.Optim, c.Loss)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// rollouts are groups of samples with a common prompt, whose old log-probs are near the policy's own.
func rollouts(t *testing.T, s *torch.Scope, p *Policy, prompts ...int) []Sample {
	t.Helper()
	r := rand.New(rand.NewPCG(5, 6))
	random := func(n int) []int32 {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = r.Int32N(300)
		}
		return ids
	}
	var samples []Sample
	for g, n := range prompts {
		prompt := random(n)
		for range 3 {
			x := dialogue(int64(g), n, slices.Concat(prompt, random(2+r.IntN(5)))...)
			scores, err := p.Score(s, [][]int32{x.Tokens.IDs}, []float32{1})
			if err != nil {
				t.Fatal(err)
			}
			for i := n; i < len(x.Tokens.IDs); i++ {
				x.Tokens.LogP[i] = scores[0][i-1] + float32(r.NormFloat64()/10)
				x.Advantages[i] = float32(r.NormFloat64())
			}
			samples = append(samples, x)
		}
	}
	return samples
}

func step(t *testing.T, s *torch.Scope, p *Policy, samples []Sample, lr float64) Stats {
	t.Helper()
	stats, err := p.Step(t.Context(), s, samples, lr, nil)
	if err != nil {
		t.Fatal(err)
	}
	return stats
}

func weights(params []model.Param) map[string][]float32 {
	w := map[string][]float32{}
	for _, param := range params {
		w[param.Name] = torch.Values[float32](param.Tensor)
	}
	return w
}

// gradients runs everything of a step but the update.
func gradients(t *testing.T, s *torch.Scope, p *Policy, samples []Sample, budget int) (Stats, map[string][]float32) {
	t.Helper()
	stats, out := Stats{Metrics: map[string]Metric{}}, map[string][]float32{}
	plan := mustPack(t, samples, budget)
	err := within(s.Grad, func(s *torch.Scope) error {
		grads, err := p.gradients(t.Context(), s, plan, nil, &stats)
		for _, g := range grads {
			out[g.Name] = torch.Values[float32](g.Tensor)
		}
		return err
	})
	p.clearGrads()
	if err != nil {
		t.Fatal(err)
	}
	return stats, out
}

func TestSharedPromptsAndMicroBatchesChangeNeitherLossNorGradient(t *testing.T) {
	for _, path := range llamas(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			do(t, func(s *torch.Scope) {
				p := newPolicy(t, s, path, torch.Float32, func(c *Config) { c.Loss.EntropyCoef = 0.01 })
				samples := rollouts(t, s, p, 70, 9) // 70 crosses a tile of the attention
				want, wantGrads := gradients(t, s, p, samples, noLimit)
				alone := slices.Clone(samples)
				for i := range alone {
					alone[i].Group = int64(i)
				}
				for name, c := range map[string]struct {
					samples   []Sample
					budget, n int
				}{"unshared, one a micro-batch": {alone, 77, 0}, "a group a micro-batch": {samples, 90, 2}, "groups split": {samples, 77, 0}} {
					got, grads := gradients(t, s, p, c.samples, c.budget)
					if n := len(mustPack(t, c.samples, c.budget).Micros); n < 2 || c.n > 0 && n != c.n {
						t.Errorf("%s: %d micro-batches", name, n)
					}
					if diff := cmp.Diff(want.Loss, got.Loss, close64(0, 1e-6)); diff != "" {
						t.Errorf("%s: loss: %s", name, diff)
					}
					if diff := cmp.Diff(want.Metrics, got.Metrics, close64(1e-5, 1e-5)); diff != "" {
						t.Errorf("%s: metrics: %s", name, diff)
					}
					for param, g := range grads {
						if d := distance(wantGrads[param], g); d > 1e-6 {
							t.Errorf("%s: the gradient of %s differs by %.2g of its norm", name, param, d)
						}
					}
				}
			})
		})
	}
}

// distance is |a-b| / |a|.
func distance(a, b []float32) float64 {
	var num, den float64
	for i := range a {
		num += math.Pow(float64(a[i])-float64(b[i]), 2)
		den += math.Pow(float64(a[i]), 2)
	}
	return math.Sqrt(num / den)
}

func TestPackedSequencesAreScoredAsAlone(t *testing.T) { // B3
	do(t, func(s *torch.Scope) {
		p := newPolicy(t, s, llamas(t)[0], torch.Float32, nil)
		ids, one := [][]int32{{1, 2, 3}, {4, 5, 6, 7, 8}, {9, 10}}, []float32{1, 1, 1}
		packed, err := p.Score(s, ids, one)
		if err != nil {
			t.Fatal(err)
		}
		for i := range ids {
			alone, err := p.Score(s, ids[i:i+1], one[:1])
			if err != nil || len(alone[0]) != len(ids[i])-1 {
				t.Fatal(alone, err)
			}
			if diff := cmp.Diff(alone[0], packed[i], close64(1e-6, 0)); diff != "" {
				t.Errorf("sequence %d: %s", i, diff)
			}
		}
		ids[0][1] = 11
		changed, err := p.Score(s, ids, one)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(packed[1:], changed[1:]); diff != "" {
			t.Error("another sequence moves this one:", diff)
		}
		cold, err := p.Score(s, ids, []float32{1, 2, 1})
		if err != nil || cold[0][0] != changed[0][0] || cold[1][0] == changed[1][0] {
			t.Error("temperature belongs to one sequence:", cold, changed, err)
		}
	})
}

func TestATokenThatEndsAtOnceIsTrained(t *testing.T) { // T7
	do(t, func(s *torch.Scope) {
		p := newPolicy(t, s, llamas(t)[0], torch.Float32, nil)
		end, other := dialogue(0, 2, 3, 4, 0), dialogue(0, 2, 3, 4, 9, 0)
		end.Advantages[2], other.Advantages[2], other.Advantages[3] = -0.7, 0.7, 0.7
		before, err := p.Score(s, [][]int32{{3, 4, 0}}, []float32{1})
		if err != nil {
			t.Fatal(err)
		}
		end.Tokens.LogP[2] = before[0][1]
		if stats := step(t, s, p, []Sample{end}, 1e-4); stats.Tokens != 1 || stats.GradNorm == 0 {
			t.Errorf("%+v", stats)
		}
		after, err := p.Score(s, [][]int32{{3, 4, 0}}, []float32{1})
		if err != nil || after[0][1] >= before[0][1] {
			t.Errorf("log-prob %v → %v under a negative advantage, %v", before[0][1], after, err)
		}
		if stats := step(t, s, p, []Sample{end, other}, 1e-4); stats.Tokens != 3 {
			t.Errorf("%+v", stats)
		}
	})
}

func TestABatchWithNothingToTrainChangesNothing(t *testing.T) { // F3, L10
	do(t, func(s *torch.Scope) {
		p := newPolicy(t, s, llamas(t)[0], torch.Float32, func(c *Config) { c.Optim.WeightDecay = 0.1 })
		before := weights(p.Masters())
		for _, samples := range [][]Sample{nil, {dialogue(0, 3, 1, 2, 3)}} {
			if diff := cmp.Diff(Stats{}, step(t, s, p, samples, 1)); diff != "" {
				t.Error(diff)
			}
		}
		if diff := cmp.Diff(before, weights(p.Masters())); diff != "" {
			t.Error("weights moved")
		}
		if stats := step(t, s, p, rollouts(t, s, p, 3), 1e-3); !stats.Stepped {
			t.Error("the next batch was not trained")
		}
	})
}

func TestWhatIsNotFiniteIsNamedAndUpdatesNothing(t *testing.T) {
	broken := func(s *torch.Scope, in LossInput) LossOutput { // 0, with gradient 0 · ∞
		gap := s.Sub(in.LogP, s.Detach(in.LogP))
		return LossOutput{Loss: s.Call("aten::sqrt", s.Mul(gap, gap))[0]}
	}
	if err := RegisterLoss("test_broken", broken); err != nil {
		t.Fatal(err)
	}
	defer delete(losses, "test_broken")
	do(t, func(s *torch.Scope) {
		for _, d := range []torch.DType{torch.Float32, torch.BFloat16} {
			p := newPolicy(t, s, llamas(t)[0], d, nil)
			samples := rollouts(t, s, p, 6)
			refuse := func(want string, ctx context.Context) {
				t.Helper()
				before := weights(p.Params())
				stats, err := p.Step(ctx, s, samples, 1e-3, nil)
				if err == nil || !strings.Contains(err.Error(), want) || stats.Stepped {
					t.Errorf("%v: %+v, error %v, want one with %q", d, stats, err, want)
				}
				if diff := cmp.Diff(fmt.Sprint(before), fmt.Sprint(weights(p.Params()))); diff != "" {
					t.Errorf("%v: weights moved", d)
				}
			}
			p.loss.Name = "test_broken"
			refuse("gradients are not finite: model.embed_tokens.weight (norm NaN)", t.Context())
			p.loss = DefaultConfig().Loss
			p.loss.KLCoef = 0.1
			refuse("loss.kl_coef is 0.1, but the samples have no log-probs under a reference model", t.Context())
			p.loss.KLCoef = 0
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			refuse("context canceled", gone)
			norm := p.Params()[len(p.Params())-1]
			kept := torch.Values[float32](norm.Tensor)
			torch.Write(norm.Tensor, slices.Repeat([]float32{float32(math.NaN())}, len(kept)))
			refuse("sample 0, token 6: the policy's log-prob is NaN", t.Context())
			if _, err := p.Score(s, [][]int32{{1, 2}}, []float32{1}); err == nil {
				t.Error("Score hides NaN")
			}
			torch.Write(norm.Tensor, kept)
			if stats := step(t, s, p, samples, 1e-3); math.IsNaN(stats.GradNorm) || !stats.Stepped {
				t.Errorf("%v: the step after: %+v", d, stats)
			}
		}
	})
}

func TestRecomputingLayersChangesNoBit(t *testing.T) {
	for _, d := range []torch.DType{torch.Float32, torch.BFloat16} {
		var runs []map[string][]float32
		for _, recompute := range []bool{false, true} {
			do(t, func(s *torch.Scope) {
				p := newPolicy(t, s, llamas(t)[0], d, func(c *Config) { c.Optim.MicroTokens, c.Optim.Recompute = 40, recompute })
				samples := rollouts(t, s, p, 20, 9)
				for range 2 {
					step(t, s, p, samples, 1e-3)
				}
				runs = append(runs, weights(p.Masters()))
			})
		}
		if diff := cmp.Diff(runs[0], runs[1]); diff != "" {
			t.Errorf("%v: %s", d, diff)
		}
	}
}

// Weights after k steps, a checkpoint, and the rest equal those of an uninterrupted run; and two runs equal each other.
func TestStepsAreBitIdenticalAlsoAcrossACheckpoint(t *testing.T) {
	const steps, lr = 4, 1e-3
	for _, d := range []torch.DType{torch.Float32, torch.BFloat16} {
		var runs []map[string][]float32
		for _, stop := range []int{-1, -1, 2} {
			do(t, func(s *torch.Scope) {
				p := newPolicy(t, s, llamas(t)[0], d, func(c *Config) { c.Optim.MicroTokens = 40 })
				samples := rollouts(t, s, p, 20, 9)
				for i := range steps {
					if i == stop {
						path := filepath.Join(t.TempDir(), "optimizer.safetensors")
						fresh := newPolicy(t, s, llamas(t)[0], d, func(c *Config) { c.Optim.MicroTokens = 40 })
						for j, param := range p.Masters() {
							torch.Write(fresh.Masters()[j].Tensor, torch.Values[float32](param.Tensor))
						}
						err := errors.Join(p.SaveOptimizer(path), fresh.LoadOptimizer(path))
						if fresh.compute != fresh.master {
							err = errors.Join(err, fresh.compute.CopyFrom(s, fresh.Masters()))
						}
						if err != nil {
							t.Fatal(err)
						}
						p = fresh
					}
					step(t, s, p, samples, lr)
				}
				runs = append(runs, weights(p.Masters()))
			})
		}
		for i, run := range runs[1:] {
			if diff := cmp.Diff(runs[0], run); diff != "" {
				t.Errorf("%v: run %d differs", d, i+1)
			}
		}
	}
}

func TestAPolicyNeedsFloat32MastersAndAKnownLoss(t *testing.T) {
	do(t, func(s *torch.Scope) {
		c := DefaultConfig()
		half, err := model.Load(s, llamas(t)[0], torch.BFloat16)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewPolicy(s, half, torch.BFloat16, c.Optim, c.Loss); err == nil || !strings.Contains(err.Error(), "want float32") {
			t.Error(err)
		}
		master, err := model.Load(s, llamas(t)[0], torch.Float32)
		if err != nil {
			t.Fatal(err)
		}
		c.Loss.Name = "pop"
		_, err = NewPolicy(s, master, torch.Float32, c.Optim, c.Loss)
		if err == nil || !strings.Contains(err.Error(), `unknown loss "pop"; known: cispo, clip_cov, `) {
			t.Error(err)
		}
	})
}

// Score gives the log-probs of every token but the first of each sequence, given those before it, under the weights that the
// policy computes with now: row i has len(ids[i])-1 entries, at temperature 1/invT[i].
func (p *Policy) Score(s *torch.Scope, ids [][]int32, invT []float32) ([][]float32, error) {
	samples := make([]Sample, len(ids))
	for i, x := range ids {
		n := len(x)
		t := rollout.Tokens{IDs: x, Mask: make([]bool, n), LogP: make([]float32, n), Temp: make([]float32, n)}
		for j := 1; j < n; j++ {
			t.Mask[j], t.Temp[j] = true, 1/invT[i]
		}
		samples[i] = Sample{Tokens: t, Group: int64(i)}
	}
	out, err := p.perToken(context.Background(), s, samples)
	for i := range out {
		out[i] = out[i][min(1, len(out[i])):]
	}
	return out, err
}
