package estimators_test

import (
	"fmt"
	"log"

	"github.com/molt-go/molt/estimators"
)

// Bounded is dr_grpo with advantages of at most 1 each way, so that one outlier cannot carry a batch.
func Bounded(b estimators.Batch) (estimators.Result, error) {
	return b.Broadcast(b.PerGroup(func(r []float64) {
		estimators.Center(r)
		for i := range r {
			r[i] = min(max(r[i], -1), 1)
		}
	})), nil
}

// A new estimator is one function and one Register in the program's own main; the config then names it.
func ExampleRegister() {
	if err := estimators.Register("bounded", estimators.PerRollout, Bounded); err != nil {
		log.Fatal(err)
	}
	out, err := estimators.Estimate("bounded", estimators.Input{
		Rewards: []float32{0.5, 0, 10},
		Groups:  []int64{7, 7, 7},
		Masks:   [][]bool{{false, true, true}, {false, false, true}, {true}},
		Options: estimators.DefaultOptions(),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(out.Advantages)
	// Output: [[0 -1 -1] [0 0 -1] [1]]
}
