package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/molt-go/molt/rollout"
)

// largest is the environment of the quickstart: one turn, "which of three two-digit numbers is the largest". The
// reward is 1 if the reply holds exactly one integer and it is the right one, else 0. (Credit for a reply that merely
// mentions it teaches a model to list all three.)
type largest struct{ answer string }

var integer = regexp.MustCompile(`-?[0-9]+`)

// Reset keeps the answer: the task's message says the rest.
func (l *largest) Reset(_ context.Context, task rollout.Task, _ uint64) (Result, error) {
	if l.answer = task.Answer; l.answer == "" {
		return Result{}, errors.New("the task has no answer to compare with")
	}
	return Result{}, nil
}

// Step grades the reply and ends the episode.
func (l *largest) Step(_ context.Context, action string) (Result, error) {
	res := Result{Terminated: true}
	if found := integer.FindAllString(action, -1); len(found) == 1 && found[0] == l.answer {
		res.Reward = 1
	}
	return res, nil
}

const (
	minLargest, numLargest = 20, 80 // answers run from 20 to 99: below, too few triples are left
	defaultTrain           = 10_000 // of 117,480 triples
	defaultEval            = 128
)

// largestTasks generates triples. A triple is held out by a hash of its sorted numbers, whatever the seed, so the two
// sets are disjoint by construction. Answers go round in shuffled order, so none is the answer to more than one in 80.
type largestTasks struct {
	n       int
	held    bool
	seed    uint64
	answers []int // a permutation of all
}

func newLargestTasks(n int, held bool, seed uint64) largestTasks {
	return largestTasks{n: n, held: held, seed: seed, answers: rand.New(rand.NewPCG(seed, 1)).Perm(numLargest)}
}

// Len is the number of tasks.
func (l largestTasks) Len() int { return l.n }

// Digest names the set.
func (l largestTasks) Digest() string {
	return fmt.Sprintf("largest n=%d held=%t seed=%d", l.n, l.held, l.seed)
}

// Task is task i, a pure function of seed and i.
func (l largestTasks) Task(i int) (rollout.Task, error) {
	if i < 0 || i >= l.n {
		return rollout.Task{}, fmt.Errorf("task %d of %d", i, l.n)
	}
	rng := rand.New(rand.NewPCG(l.seed, uint64(i)+2))
	largest := minLargest + l.answers[i%numLargest]
	for {
		a, b := 10+rng.IntN(largest-10), 10+rng.IntN(largest-10)
		if a == b || heldOut(a, b, largest) != l.held {
			continue
		}
		t := []int{a, b, largest}
		rng.Shuffle(3, func(i, j int) { t[i], t[j] = t[j], t[i] })
		text := fmt.Sprintf("Which is the largest of these numbers: %d, %d, %d? Reply with the number only.", t[0], t[1], t[2])
		id := fmt.Sprintf("largest-%d-%d-%d", t[0], t[1], t[2])
		return rollout.Task{ID: id, Source: "largest", Messages: User(text), Answer: strconv.Itoa(largest)}, nil
	}
}

// heldOut keeps one triple in four from training.
func heldOut(a, b, c int) bool {
	t := []int{a, b, c}
	slices.Sort(t)
	return rollout.MixSeed(0, uint64(t[0]), uint64(t[1]), uint64(t[2]))%4 == 0
}

func openLargest(c rollout.DataConfig) (train, eval rollout.Source, err error) {
	numTrain, numEval := c.Tasks, c.Eval
	if numTrain == 0 {
		numTrain = defaultTrain
	}
	if numEval == 0 {
		numEval = defaultEval
	}
	return newLargestTasks(numTrain, false, c.Seed), newLargestTasks(numEval, true, c.Seed), nil
}

var registerSources = sync.OnceValue(func() error { return rollout.RegisterSource("largest", openLargest) })

// RegisterSources makes the tasks of the built-in environments known as [data] source. It may be called again.
func RegisterSources() error { return registerSources() }
