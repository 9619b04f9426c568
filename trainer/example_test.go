package trainer_test

import (
	"fmt"

	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/trainer"
)

// A new policy loss in a program's own main: REINFORCE, minus the log-prob times the advantage, over the step's tokens.
func ExampleRegisterLoss() {
	err := trainer.RegisterLoss("reinforce", func(s *torch.Scope, in trainer.LossInput) trainer.LossOutput {
		loss := s.Neg(s.Mul(in.LogP, in.Advantages))
		return trainer.LossOutput{
			Loss:    in.Aggregate(s, loss),
			Metrics: map[string]trainer.Metric{"policy_loss": in.Metric(s, loss)},
		}
	})
	fmt.Println(err, trainer.FindLoss("reinforce"))
	// Output: <nil> <nil>
}
