package trainer

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

func criticOf(t *testing.T, s *torch.Scope, path string, saved bool, d torch.DType, change func(*Config)) *Policy {
	t.Helper()
	c := DefaultConfig()
	if change != nil {
		change(&c)
	}
	out, err := openCritic(s, path, saved, d, c.Optim, c.Loss)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// returning gives the samples values of the critic now, and returns 1, 2, 3 … on from each one's first trained token.
func returning(t *testing.T, s *torch.Scope, c *Policy, samples ...Sample) []Sample {
	t.Helper()
	samples = slices.Clone(samples)
	if _, err := c.consult(t.Context(), s, samples, false); err != nil {
		t.Fatal(err)
	}
	for i := range samples {
		samples[i].returns = make([]float32, len(samples[i].values))
		next := float32(1)
		for j, on := range samples[i].Tokens.Mask {
			if on {
				samples[i].returns[j], next = next, next+1
			}
		}
	}
	return samples
}

func learn(t *testing.T, s *torch.Scope, c *Policy, samples []Sample, lr float64) map[string]Metric {
	t.Helper()
	metrics := map[string]Metric{}
	if err := c.learn(s, samples, lr, nil, metrics); err != nil {
		t.Fatal(err)
	}
	return metrics
}

// states are the hidden states of the positions that predict x's tokens, but for the first.
func states(t *testing.T, s *torch.Scope, net *model.Model, x Sample) (rows [][]float64) {
	t.Helper()
	var b model.Batch
	b.AddSequence(x.Tokens.IDs, 0, int32(len(x.Tokens.IDs)))
	err := within(s.NoGrad, func(s *torch.Scope) error {
		h, err := net.Hidden(s, &b, nil)
		if err == nil {
			rows = slices.Collect(slices.Chunk(torch.Values[float64](h.Hidden), net.Width))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// A value is head · h at the position before the token.
func TestAValueIsThatOfThePositionBeforeTheToken(t *testing.T) {
	do(t, func(s *torch.Scope) {
		for _, d := range []torch.DType{torch.Float32, torch.BFloat16} {
			c := criticOf(t, s, llamas(t)[0], false, d, nil)
			head := make([]float32, c.master.Width)
			for i := range head {
				head[i] = float32(i%5) - 2
			}
			torch.Write(c.heads[0].Tensor, head)
			samples := []Sample{dialogue(0, 2, 5, 9, 30, 31), dialogue(0, 3, 5, 9, 8, 7, 6)}
			got, err := c.perToken(t.Context(), s, samples)
			if err != nil {
				t.Fatal(err)
			}
			for i, x := range samples {
				for j, row := range states(t, s, c.compute, x) {
					want := 0.0
					for k, h := range row {
						want += h * float64(head[k])
					}
					if at := j + 1; at < len(x.Tokens.IDs) && x.Tokens.Mask[at] && math.Abs(float64(got[i][at])-want) > 1e-4 {
						t.Errorf("%v: sample %d, token %d: value %v, want %v", d, i, at, got[i][at], want)
					}
				}
			}
			if got[0][1] != 0 || got[1][2] != 0 {
				t.Error("tokens that are not trained have values")
			}
		}
	})
}

// What comes after the last trained token is valued at that token's own position, whatever else follows or the batch holds.
func TestTheValueBehindTheLastTrainedTokenIsThatOfItsOwnPosition(t *testing.T) { // A6
	do(t, func(s *torch.Scope) {
		c := criticOf(t, s, llamas(t)[0], false, torch.Float32, nil)
		head := make([]float32, c.master.Width)
		for i := range head {
			head[i] = float32(i%5) - 2
		}
		torch.Write(c.heads[0].Tensor, head)
		full, tail, none := dialogue(0, 2, 5, 9, 30, 31), dialogue(0, 2, 5, 9, 8, 7, 6), dialogue(1, 1, 4)
		tail.Tokens.Mask[4], none.Tokens.Mask = false, []bool{false}
		samples, plain := []Sample{full, tail, none}, []Sample{full, tail, none}
		after, err := c.consult(t.Context(), s, samples, true)
		if err != nil || len(after) != 3 {
			t.Fatal(after, err)
		}
		if _, err := c.consult(t.Context(), s, plain, false); err != nil {
			t.Fatal(err)
		}
		for i, last := range []int{3, 3, 0} {
			want := 0.0
			for k, h := range states(t, s, c.compute, samples[i])[last] {
				want += h * float64(head[k])
			}
			if math.Abs(float64(after[i])-want) > 1e-4 {
				t.Errorf("sample %d: %v behind its end, want %v", i, after[i], want)
			}
			if diff := cmp.Diff(plain[i].values, samples[i].values, close64(1e-5, 1e-5)); diff != "" {
				t.Errorf("sample %d: other values: %s", i, diff)
			}
		}
		if diff := cmp.Diff(dialogue(0, 2, 5, 9, 8, 7, 6).Tokens.IDs, tail.Tokens.IDs); diff != "" || tail.Tokens.Mask[4] {
			t.Error("a sample was changed:", diff)
		}
	})
}

// At a head of zeros values are 0: the loss is the mean of R²/2, and its gradient by the head the mean of −R · h.
func TestTheFirstStepOfACriticEqualsThatWorkedOutByHand(t *testing.T) {
	for _, d := range []torch.DType{torch.Float32, torch.BFloat16} {
		for _, budget := range []int{noLimit, 5} {
			do(t, func(s *torch.Scope) {
				c := criticOf(t, s, llamas(t)[0], false, d, func(c *Config) { c.Optim.MicroTokens, c.Optim.Name = budget, "dion" })
				samples := returning(t, s, c, dialogue(0, 2, 5, 9, 30, 31, 32), dialogue(1, 2, 5, 9, 40, 41))
				want := make([]float64, c.master.Width)
				for _, x := range samples {
					for j, row := range states(t, s, c.compute, x)[:len(x.Tokens.IDs)-1] {
						for k, h := range row {
							want[k] -= float64(x.returns[j+1]) * h / 5
						}
					}
				}
				metrics := learn(t, s, c, samples, 1e-3)
				// R is 1 2 3 1 2: half the mean square is 19/10; residuals spread as the returns do.
				wantMetrics := map[string]float64{"value_loss": 1.9, "value_clip_ratio": 0, "explained_variance": 0}
				for name, v := range wantMetrics {
					if diff := cmp.Diff(v, metrics[name].Mean(), close64(1e-6, 1e-6)); diff != "" {
						t.Errorf("%v, %d rows: %s: %s", d, budget, name, diff)
					}
				}
				for k, v := range torch.Values[float64](c.heads[0].Tensor) { // AdamW's first step is the rate, against the gradient
					if diff := cmp.Diff(math.Copysign(1e-3, -want[k]), v, close64(1e-6, 0)); diff != "" {
						t.Errorf("%v, %d rows: head %d: %s", d, budget, k, diff)
					}
				}
			})
		}
	}
}

func TestValueGradientsReachEveryLayerAndDoNotDependOnMicroBatchesOrRecomputing(t *testing.T) {
	do(t, func(s *torch.Scope) {
		for _, path := range llamas(t) {
			var runs []map[string][]float32
			for _, o := range []OptimConfig{{MicroTokens: noLimit}, {MicroTokens: 5}, {MicroTokens: 5, Recompute: true}} {
				c := criticOf(t, s, path, false, torch.Float32, func(c *Config) { c.Optim.MicroTokens, c.Optim.Recompute = o.MicroTokens, o.Recompute })
				samples := []Sample{dialogue(0, 2, 5, 9, 30, 31, 32), dialogue(1, 2, 5, 9, 40, 41)}
				learn(t, s, c, returning(t, s, c, samples...), 1e-2) // from here on the head passes gradients on
				for i, x := range returning(t, s, c, samples...) {
					samples[i] = Sample{Tokens: x.Tokens, Advantages: x.returns, Old: x.values, Group: x.Group}
				}
				grads := map[string][]float32{}
				stats := Stats{Metrics: map[string]Metric{}}
				err := within(s.Grad, func(s *torch.Scope) error {
					all, err := c.gradients(t.Context(), s, mustPack(t, samples, c.config.MicroTokens), nil, &stats)
					for _, g := range all {
						grads[g.Name] = torch.Values[float32](g.Tensor)
					}
					return err
				})
				c.clearGrads()
				if err != nil {
					t.Fatal(err)
				}
				runs = append(runs, grads)
			}
			for name, g := range runs[0] {
				if name == "lm_head.weight" || slices.Max(g) == 0 {
					t.Errorf("%s: %s is trained, or has no gradient", path, name)
				}
				for i, run := range runs[1:] {
					if d := distance(g, run[name]); d > 1e-4 {
						t.Errorf("%s: run %d: the gradient of %s differs by %.2g of its norm", path, i+1, name, d)
					}
				}
			}
			if _, ok := runs[0]["value_head.weight"]; !ok {
				t.Error("the head has no gradient")
			}
		}
	})
}

func TestACriticLearnsItsReturnsAndSurvivesACheckpoint(t *testing.T) {
	for _, d := range []torch.DType{torch.Float32, torch.BFloat16} {
		var runs []map[string][]float32
		for _, stop := range []int{-1, 10} {
			do(t, func(s *torch.Scope) {
				unclipped := func(c *Config) { c.Loss.ValueClip = 0 }
				c := criticOf(t, s, llamas(t)[0], false, d, unclipped)
				var losses, explained []float64
				for i := range 20 {
					if i == stop {
						dir := t.TempDir()
						if err := c.save(dir); err != nil {
							t.Fatal(err)
						}
						c = criticOf(t, s, dir, true, d, unclipped)
					}
					metrics := learn(t, s, c, returning(t, s, c, dialogue(0, 2, 5, 9, 30, 31, 32), dialogue(1, 2, 5, 9, 40, 41)), 3e-3)
					losses, explained = append(losses, metrics["value_loss"].Mean()), append(explained, metrics["explained_variance"].Mean())
				}
				if losses[19] > losses[0]/10 || explained[19] < 0.7 {
					t.Errorf("%v: losses %v, explained variance %v", d, losses, explained)
				}
				run := weights(c.Masters())
				run["head"] = torch.Values[float32](c.heads[0].Tensor)
				runs = append(runs, run)
			})
		}
		if diff := cmp.Diff(runs[0], runs[1]); diff != "" {
			t.Errorf("%v: a checkpoint changes the run", d)
		}
	}
}

func TestACriticsValueThatIsNotFiniteIsNamed(t *testing.T) {
	do(t, func(s *torch.Scope) {
		c := criticOf(t, s, llamas(t)[0], false, torch.Float32, nil)
		samples := returning(t, s, c, dialogue(0, 2, 5, 9, 30))
		torch.Write(c.heads[0].Tensor, slices.Repeat([]float32{float32(math.Inf(1))}, c.master.Width))
		_, err := c.consult(t.Context(), s, samples, false)
		learned := c.learn(s, samples, 1, nil, map[string]Metric{})
		for _, err := range []error{err, learned} {
			if err == nil || err.Error() != "sample 0, token 2: the critic's value is NaN" {
				t.Error(err)
			}
		}
		_, err = openCritic(s, llamas(t)[0], true, torch.Float32, c.config, c.loss)
		if err == nil || !strings.Contains(err.Error(), optimizerFile) {
			t.Error("a critic was read from a folder without a head:", err)
		}
	})
}
