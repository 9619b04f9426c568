package optim_test

import (
	"fmt"

	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/optim"
)

// A training loop: y = 2·x₀ − x₁ + 1 is learned from four points.
func Example() {
	err := torch.Do(1, func(s *torch.Scope) error {
		x := torch.New(s, []float32{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2)
		y := torch.New(s, []float32{1, 0, 3, 2}, 4, 1)
		w := s.Zeros(torch.Float32, 1, 2).RequireGrad(true)
		b := s.Zeros(torch.Float32, 1).RequireGrad(true)
		params := []optim.Named{{Name: "w", Tensor: w}, {Name: "b", Tensor: b}}
		adam, err := optim.NewAdamW(s, params, optim.AdamWConfig{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8})
		if err != nil {
			return err
		}
		schedule := optim.Schedule{Name: "cosine", LR: 0.1, Steps: 200}
		for step := range 200 {
			var loss float64
			s.Block(func(s *torch.Scope) torch.Tensor { // frees what the step made
				diff := s.Sub(s.Linear(x, w, b), y)
				mse := s.Mean(s.Mul(diff, diff))
				g := s.Gradients([]torch.Tensor{mse}, nil, []torch.Tensor{w, b})
				grads := []optim.Named{{Name: "w", Tensor: g[0]}, {Name: "b", Tensor: g[1]}}
				if _, err = optim.ClipGradNorm(s, grads, 1); err == nil {
					err = adam.Step(s, grads, schedule.At(step))
				}
				loss = mse.Item()
				return torch.Tensor{}
			})
			if err != nil {
				return err
			}
			if step%100 == 0 {
				fmt.Printf("step %d: loss %.3f\n", step, loss)
			}
		}
		fmt.Printf("w = %.3f, b = %.3f\n", torch.Values[float32](w), torch.Values[float32](b))
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// step 0: loss 3.500
	// step 100: loss 0.000
	// w = [2.000 -1.000], b = [1.000]
}
