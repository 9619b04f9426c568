package trainer

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
)

// Design, decision 13: what is refitted is the masters rounded to the compute type, and it learns.
func TestBFloat16ComputeTrainsItsMasters(t *testing.T) {
	do(t, func(s *torch.Scope) {
		p := newPolicy(t, s, llamas(t)[0], torch.BFloat16, nil)
		samples := rollouts(t, s, p, 12, 5)
		for i := range samples {
			for j := range samples[i].Advantages {
				samples[i].Advantages[j] = 1
			}
		}
		mean := func() (sum float64) {
			for _, x := range samples {
				scores, err := p.Score(s, [][]int32{x.Tokens.IDs}, []float32{1})
				if err != nil {
					t.Fatal(err)
				}
				for i, on := range x.Tokens.Mask {
					if on {
						sum += float64(scores[0][i-1])
					}
				}
			}
			return sum
		}
		before := mean()
		for range 5 {
			step(t, s, p, samples, 1e-3)
		}
		if after := mean(); !(after > before+1) {
			t.Errorf("log-prob of tokens with advantage 1: %v → %v", before, after)
		}
		for i, master := range p.Masters() {
			rounded, got := torch.Values[float32](s.To(master.Tensor, torch.BFloat16)), p.Params()[i].Tensor
			if diff := cmp.Diff(rounded, torch.Values[float32](got)); diff != "" || got.DType() != torch.BFloat16 {
				t.Errorf("%s is not its master, rounded", master.Name)
			}
		}
	})
}

// The float32 gradient is the bfloat16 ones added up in float32, not in bfloat16.
func TestBFloat16GradientsAddUpInFloat32(t *testing.T) {
	do(t, func(s *torch.Scope) {
		p := newPolicy(t, s, llamas(t)[0], torch.BFloat16, nil)
		samples := rollouts(t, s, p, 20, 9)
		plan := mustPack(t, samples, 40)
		want := map[string][]float32{}
		for i := range plan.Micros {
			one := plan
			one.Micros = plan.Micros[i : i+1]
			if err := within(s.Grad, func(s *torch.Scope) error {
				grads, err := p.gradients(t.Context(), s, one, nil, &Stats{Metrics: map[string]Metric{}})
				for _, g := range grads {
					if g.Tensor.DType() != torch.Float32 {
						t.Fatalf("gradient of %s is %v", g.Name, g.Tensor)
					}
					for k, v := range torch.Values[float32](g.Tensor) {
						if i == 0 {
							want[g.Name] = append(want[g.Name], 0)
						}
						want[g.Name][k] += v
					}
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		if _, got := gradients(t, s, p, samples, 40); len(plan.Micros) < 2 || !cmp.Equal(want, got) {
			t.Error("sums differ")
		}
	})
}
