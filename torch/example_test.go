package torch_test

import (
	"fmt"

	"github.com/molt-go/molt/torch"
)

// Tensors live in scopes; operators are methods of the scope that owns the result.
func Example() {
	err := torch.Do(1, func(s *torch.Scope) error {
		x := torch.New(s, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
		w := torch.New(s, []float32{1, 0, -1, 0.5, 0.5, 0.5}, 2, 3)
		y := s.Block(func(s *torch.Scope) torch.Tensor {
			h := s.Linear(x, w, torch.Tensor{}) // x·wᵀ, freed with the block
			return s.Call("aten::relu", h)[0]   // any operator by its name; the result of a block outlives it
		})
		fmt.Println(y.Describe())
		fmt.Println(torch.Values[float32](s.Sum(y)))

		s.Add(x, y) // shapes that do not fit end the Do
		return nil
	})
	fmt.Println(err)
	// Output:
	// float32[2,2], min 0, mean 2.625, max 7.5
	// [[0.0000, 3.0000],
	//  [0.0000, 7.5000]]
	// [10.5]
	// torch: aten::add.Tensor(float32[2,3], float32[2,2]): The size of tensor a (3) must match the size of tensor b (2) at non-singleton dimension 1
}

// Gradients add up at the leaves, or are returned and leave them alone.
func ExampleScope_Backward() {
	err := torch.Do(1, func(s *torch.Scope) error {
		w := torch.New(s, []float32{2, 3}).RequireGrad(true)
		cube := func(s *torch.Scope) torch.Tensor { return s.Mul(w, s.Mul(w, w)) }

		s.Backward([]torch.Tensor{s.Sum(s.Block(cube))}, nil) // the graph outlives the block
		fmt.Println("d sum(w³) =", torch.Values[float32](s.GradOf(w)))

		weights := torch.New(s, []float32{1, 10}) // the gradient that flows into each result
		g := s.Gradients([]torch.Tensor{cube(s)}, []torch.Tensor{weights}, []torch.Tensor{w})
		fmt.Println("weighted  =", torch.Values[float32](g[0]))
		fmt.Println("recorded without grad:", s.NoGrad(cube).RequiresGrad())
		return nil
	})
	fmt.Println(err)
	// Output:
	// d sum(w³) = [12 27]
	// weighted  = [12 270]
	// recorded without grad: false
	// <nil>
}
