package estimators_test

import (
	"fmt"
	"log"

	"github.com/molt-go/molt/estimators"
)

// BestOfGroup pushes towards the best rollout of a group and away from all others.
func BestOfGroup(b estimators.Batch) (estimators.Result, error) {
	return b.Broadcast(b.PerGroup(func(r []float64) {
		best := 0
		for i := range r {
			if r[i] > r[best] {
				best = i
			}
		}
		for i := range r {
			r[i] = -1
		}
		r[best] = 1
	})), nil
}

// A new estimator is one function and one Register in the program's own main.
func ExampleRegister() {
	if err := estimators.Register("best_of_group", estimators.PerRollout, BestOfGroup); err != nil {
		log.Fatal(err)
	}
	out, err := estimators.Estimate("best_of_group", estimators.Input{
		Rewards: []float32{0.2, 0.9},
		Groups:  []int64{0, 0},
		Masks:   [][]bool{{false, true, true}, {false, false, true}},
		Options: estimators.DefaultOptions(),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(out.Advantages)
	// Output: [[0 -1 -1] [0 0 1]]
}
