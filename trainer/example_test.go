package trainer_test

import (
	"fmt"

	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/trainer"
)

// A new policy loss in a program's own main: REINFORCE that punishes less than it rewards. The trainer weighs, aggregates and
// reports the token losses; [loss] name = "lenient" and [loss.params] lenience = 0.5 choose it.
func ExampleRegisterLoss() {
	lenient := func(s *torch.Scope, in trainer.LossInput) trainer.LossOutput {
		worse := s.Less(in.Advantages, torch.New(s, []float32{0}))
		advantages := s.Where(worse, s.MulScalar(in.Advantages, in.Param("lenience")), in.Advantages)
		return trainer.LossOutput{
			Loss:    s.Neg(s.Mul(in.LogP, advantages)),
			Metrics: map[string]trainer.Metric{"worse": in.Metric(s, worse)},
		}
	}
	err := trainer.RegisterLoss("lenient", lenient, trainer.Param{Name: "lenience", Default: 0.5, Min: 0, Max: 1})
	fmt.Println(err, trainer.FindLoss("lenient"))
	// Output: <nil> <nil>
}
