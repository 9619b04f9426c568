// Command tools trains a model to use a calculator over several turns.
//
//	cd examples && go run ./tools -config tools/run.toml
//
// It shows an environment that answers the model: what the reply has in brackets goes to tool.Calculator, the result is
// the next message, and a reply without brackets is the answer. The problems are beyond what the model can compute, so
// the reward, 1 for the right answer, can only be earned with the right question to the tool. Templates of larger models
// know tools; the one of this model does not, so the format is shown in the first messages.
//
// One sees the score on held-out problems before and after training, and replies such as [955 - 32]. `make quickstart`,
// once, fetches the model that the configuration names.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"math/rand/v2"
	"regexp"

	"github.com/molt-go/molt"
	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent"
	"github.com/molt-go/molt/rollout/agent/grade"
	"github.com/molt-go/molt/rollout/agent/tool"
)

// desk has a calculator on it.
type desk struct{ task rollout.Task }

func (d *desk) Reset(_ context.Context, task rollout.Task, _ uint64) (agent.Result, error) {
	d.task = task
	return agent.Result{}, nil
}

var (
	calculator = tool.Calculator()
	brackets   = regexp.MustCompile(`\[([^\]]*)\]`)
)

// Step lets the model use the calculator as often as [rollout] max_turns allows. What is wrong with an expression is in the
// result, for the model to read.
func (d *desk) Step(ctx context.Context, reply string) (agent.Result, error) {
	if call := brackets.FindStringSubmatch(reply); call != nil {
		arguments, err := json.Marshal(map[string]string{"expression": call[1]})
		if err != nil {
			return agent.Result{}, err
		}
		result, err := calculator.Call(ctx, arguments)
		said := agent.User(fmt.Sprintf("The calculator says %.40s.", result)) // of 2 ** 5000 not all digits
		return agent.Result{Observation: said, Info: map[string]float64{"calls": 1}}, err
	}
	reward, err := grade.Math(ctx, d.task, reply)
	return agent.Result{Reward: reward, Terminated: true}, err
}

// problems makes tasks of three kinds. An ID names the numbers, and by its hash a problem is held out or not.
func problems(c rollout.DataConfig) (train, held rollout.Source, err error) {
	tasks := map[bool][]rollout.Task{}
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	for range 2000 {
		a, b := 100+rng.Uint64N(900), 11+rng.Uint64N(89)
		kind := rng.IntN(3)
		text := []string{
			fmt.Sprintf("A box holds %d pens. How many pens do %d boxes hold?", b, a),
			fmt.Sprintf("A shop has %d pens and sells %d. How many are left?", a, b),
			fmt.Sprintf("A shop has %d pens and gets %d more. How many has it now?", a, b),
		}[kind]
		isHeld := rollout.MixSeed(0, a, b)%4 == 0
		tasks[isHeld] = append(tasks[isHeld], rollout.Task{ID: fmt.Sprintf("%d-%d-%d", kind, a, b),
			Messages: append(shown, agent.User(text)...), Answer: fmt.Sprint([]uint64{a * b, a - b, a + b}[kind])})
	}
	digest := fmt.Sprintf("calculator, seed %d", c.Seed)
	return rollout.Tasks{List: tasks[false], Name: digest}, rollout.Tasks{List: tasks[true], Name: digest + ", held out"}, nil
}

// shown is how the calculator is used: three solved problems. Its capacity is its length, so that append copies it.
var shown = []multimodal.Message{
	{Role: "user", Content: "You have a calculator. Write what it must compute in brackets.\n\n" +
		"A shop has 31 pens and gets 7 more. How many has it now?"},
	{Role: "assistant", Content: "[31 + 7]"}, {Role: "user", Content: "The calculator says 38."}, {Role: "assistant", Content: "38"},
	{Role: "user", Content: "A box holds 31 pens. How many pens do 7 boxes hold?"},
	{Role: "assistant", Content: "[31 * 7]"}, {Role: "user", Content: "The calculator says 217."}, {Role: "assistant", Content: "217"},
	{Role: "user", Content: "A shop has 31 pens and sells 7. How many are left?"},
	{Role: "assistant", Content: "[31 - 7]"}, {Role: "user", Content: "The calculator says 24."}, {Role: "assistant", Content: "24"},
}

func main() {
	if err := rollout.RegisterSource("problems", problems); err != nil {
		log.Fatal(err)
	}
	if err := agent.RegisterEnv("desk", func() agent.Env { return &desk{} }); err != nil {
		log.Fatal(err)
	}
	molt.Main()
}
