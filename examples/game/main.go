// Command game trains a model to play Nim against an opponent in Go: players take 1, 2 or 3 stones in turn, and whoever
// takes the last one wins.
//
//	cd examples && go run ./game -config game/run.toml
//
// It shows an environment with state and chance: the opponent moves at random, by the seed of the rollout, until it can
// win at once. A move that the rules forbid loses. Held-out games start from heaps that no game to train on starts from.
//
// One sees the share of games won, in training and held out, rise from what a player gets who hardly knows the rules.
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

	"github.com/molt-go/molt"
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
	found := number.FindAllString(reply, -1)
	if len(found) != 1 || !n.take(found[0]) {
		return agent.Result{Terminated: true, Info: map[string]float64{"illegal": 1}}, nil
	}
	if n.heap == 0 {
		return agent.Result{Terminated: true, Reward: 1, Info: map[string]float64{"illegal": 0}}, nil
	}
	move := n.heap
	if move > 3 {
		move = 1 + n.rng.IntN(3)
	}
	if n.heap -= move; n.heap == 0 {
		return agent.Result{Terminated: true, Info: map[string]float64{"illegal": 0}}, nil
	}
	return agent.Result{Observation: agent.User(fmt.Sprintf("I take %d. %s", move, n.question()))}, nil
}

func (n *nim) take(stones string) bool {
	move, err := strconv.Atoi(stones)
	if err != nil || move < 1 || move > min(3, n.heap) {
		return false
	}
	n.heap -= move
	return true
}

func (n *nim) question() string {
	return fmt.Sprintf("There are %d stones left. Do you take 1, 2 or 3? Reply with the number only.", n.heap)
}

// games is one game of each heap. As [rollout] samples asks for several rollouts of a game, which differ in the opponent's
// moves, a game that was lost is compared with those that were won.
func games(c rollout.DataConfig) (train, held rollout.Source, err error) {
	tasks := map[bool][]rollout.Task{}
	for i := range 640 {
		n := nim{heap: 4 + i%16}
		rules := "We take stones from a heap in turn. Whoever takes the last stone wins. "
		isHeld := n.heap%4 == 3 // the heaps of 7, 11, 15 and 19 stones
		tasks[isHeld] = append(tasks[isHeld], rollout.Task{ID: fmt.Sprintf("nim-%d-%d", n.heap, i/16),
			Messages: agent.User(rules + n.question()), Extra: fmt.Append(nil, n.heap)})
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
