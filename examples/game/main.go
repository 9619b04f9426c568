// Command game trains a model to play Nim against an opponent in Go: players take 1, 2 or 3 stones in turn, and whoever
// takes the last one wins.
//
//	cd examples && go run ./game -config game/run.toml
//
// It shows an environment with state and chance: the opponent moves at random, by the seed of the rollout, until it can
// win at once. A game that is won earns 1, one that is lost by the rules a little, and a forbidden move nothing; the score,
// which is shown for held-out games, is the share of games won. These start from heaps that no other game starts from.
//
// One sees the mean reward of each step, and the share of held-out games won before and after.
// `make quickstart`, once, fetches the model that the configuration names.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"

	"github.com/molt-go/molt"
	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent"
)

// nim is one game; the model moves first.
type nim struct {
	heap int
	rng  *rand.Rand
}

func (n *nim) Reset(_ context.Context, task rollout.Task, seed uint64) (agent.Result, error) {
	n.rng = rand.New(rand.NewPCG(seed, 0))
	return agent.Result{}, json.Unmarshal(task.Extra, &n.heap)
}

var number = regexp.MustCompile(`\d+`)

// Step makes the model's move, which is the only number of its reply, and the opponent's.
func (n *nim) Step(_ context.Context, reply string) (agent.Result, error) {
	move, err := strconv.Atoi(strings.Join(number.FindAllString(reply, -1), " ")) // an error unless there is one number
	if err != nil || move < 1 || move > min(3, n.heap) {
		return end(0, 0, 1), nil
	}
	if n.heap -= move; n.heap == 0 {
		return end(1, 1, 0), nil
	}
	if move = n.heap; move > 3 {
		move = 1 + n.rng.IntN(3)
	}
	if n.heap -= move; n.heap == 0 {
		return end(0.2, 0, 0), nil
	}
	return agent.Result{Observation: agent.User(fmt.Sprintf("I take %d. %s", move, n.question()))}, nil
}

func end(reward, won, illegal float64) agent.Result {
	return agent.Result{Terminated: true, Reward: reward, Score: &won, Info: map[string]float64{"illegal": illegal}}
}

func (n *nim) question() string {
	return fmt.Sprintf("There are %d stones left. Do you take 1, 2 or 3?", n.heap)
}

// shown is a game, as a small model understands an example best. append copies it, as its capacity is its length.
var shown = []multimodal.Message{
	{Role: "user", Content: "We take stones in turn. Whoever takes the last one wins. There are 10 stones left. Do you take 1, 2 or 3?"},
	{Role: "assistant", Content: "2"}, {Role: "user", Content: "I take 3. There are 5 stones left. Do you take 1, 2 or 3?"},
	{Role: "assistant", Content: "1"}, {Role: "user", Content: "I take 2. There are 2 stones left. Do you take 1, 2 or 3?"},
	{Role: "assistant", Content: "2"},
}

// games has the same heaps again and again: the rollouts of each differ in the opponent's moves.
func games(c rollout.DataConfig) (train, held rollout.Source, err error) {
	tasks := map[bool][]rollout.Task{}
	for i := range 640 {
		n := nim{heap: 4 + i%16}
		isHeld := n.heap%4 == 3 // the heaps of 7, 11, 15 and 19 stones
		tasks[isHeld] = append(tasks[isHeld], rollout.Task{ID: fmt.Sprintf("nim-%d-%d", n.heap, i/16),
			Messages: append(shown, agent.User("You win. A new game. "+n.question())...), Extra: fmt.Append(nil, n.heap)})
	}
	return rollout.Tasks{List: tasks[false], Name: "nim"}, rollout.Tasks{List: tasks[true], Name: "nim, held out"}, nil
}

func main() {
	if err := rollout.RegisterSource("games", games); err != nil {
		log.Fatal(err)
	}
	if err := agent.RegisterEnv("nim", func() agent.Env { return &nim{} }); err != nil {
		log.Fatal(err)
	}
	molt.Main()
}
