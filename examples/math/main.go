// Command math trains a model to solve arithmetic word problems in one reply: the smallest agent there is.
//
//	cd examples && go run ./math -config math/run.toml
//
// It shows an environment of one turn, a grader from the library, and tasks that a Go function makes. Every pair of
// numbers is either in the tasks to train on or in the held-out ones, so the score shows what was learned and not what
// was remembered. `make quickstart`, once, fetches the model that the configuration names.
//
// One sees the mean reward rise step by step, and before and after it the score on held-out problems with ten of the
// replies. At first most replies talk until they are cut off; at the end they are short sums.
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"

	"github.com/molt-go/molt"
	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent"
	"github.com/molt-go/molt/rollout/agent/grade"
)

// problem is the environment: it looks at one reply. A new one is made for each rollout.
type problem struct{ task rollout.Task }

func (p *problem) Reset(_ context.Context, task rollout.Task, _ uint64) (agent.Result, error) {
	p.task = task
	return agent.Result{}, nil
}

func (p *problem) Step(ctx context.Context, reply string) (agent.Result, error) {
	reward, err := grade.Math(ctx, p.task, reply) // 1 if the last number of the reply is the answer
	return agent.Result{Reward: reward, Terminated: true}, err
}

// problems makes a problem of every pair of numbers, in an order that the seed decides; every fourth is held out.
func problems(c rollout.DataConfig) (train, held rollout.Source, err error) {
	const least, most = 2, 20
	names := []string{"Tom", "Anna", "Ben", "Mia", "Sam"}
	things := []string{"apples", "books", "pens", "coins", "eggs"}
	var list []rollout.Task
	for a := least; a <= most; a++ {
		for b := least; b <= most; b++ {
			name, thing := names[(7*a+b)%len(names)], things[(a+3*b)%len(things)]
			list = append(list, rollout.Task{
				ID:       fmt.Sprintf("%d+%d", a, b),
				Messages: ask(fmt.Sprintf("%[1]s has %[2]d %[3]s and gets %[4]d more. How many %[3]s does %[1]s have?", name, a, thing, b)),
				Answer:   fmt.Sprint(a + b),
			})
		}
	}
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	cut := len(list) / 4
	digest := fmt.Sprintf("sums of %d to %d, seed %d", least, most, c.Seed)
	return rollout.Tasks{List: list[cut:], Name: digest}, rollout.Tasks{List: list[:cut], Name: digest + ", held out"}, nil
}

// ask puts a solved problem before the one to solve, as a small model understands an example best.
func ask(question string) []multimodal.Message {
	return []multimodal.Message{
		{Role: "user", Content: "Lisa has 5 cups and gets 8 more. How many cups does Lisa have?"},
		{Role: "assistant", Content: "5 + 8 = 13"},
		{Role: "user", Content: question},
	}
}

func main() {
	if err := rollout.RegisterSource("problems", problems); err != nil {
		log.Fatal(err)
	}
	if err := agent.RegisterEnv("problem", func() agent.Env { return &problem{} }); err != nil {
		log.Fatal(err)
	}
	molt.Main()
}
