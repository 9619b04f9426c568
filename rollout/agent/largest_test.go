package agent

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/rollout"
)

// triple is the sorted numbers of a task.
func triple(t *testing.T, task rollout.Task) [3]int {
	t.Helper()
	var k []int
	for _, s := range regexp.MustCompile(`[0-9]+`).FindAllString(task.Messages[0].Content, -1) {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		k = append(k, n)
	}
	slices.Sort(k)
	if len(k) != 3 || k[0] < 10 || k[2] > 99 || k[0] == k[1] || k[1] == k[2] || strconv.Itoa(k[2]) != task.Answer {
		t.Fatalf("task %+v", task)
	}
	return [3]int(k)
}

func TestLargestTasksAreDisjointAndHaveNoGoodConstant(t *testing.T) {
	for _, seed := range []uint64{0, 1, 99} {
		for _, numEval := range []int{20, 64, 128, 500} {
			train, eval, err := openLargest(rollout.DataConfig{Seed: seed, Eval: numEval, Tasks: 5000})
			if err != nil {
				t.Fatal(err)
			}
			seen := map[[3]int]bool{}
			for i := range train.Len() {
				task, err := train.Task(i)
				if err != nil {
					t.Fatal(err)
				}
				seen[triple(t, task)] = true
			}
			answers, first := map[string]int{}, 0
			for i := range eval.Len() {
				task, err := eval.Task(i)
				if err != nil {
					t.Fatal(err)
				}
				if k := triple(t, task); seen[k] {
					t.Fatalf("%v is in both sets", k)
				}
				answers[task.Answer]++
				if strings.Contains(task.Messages[0].Content, ": "+task.Answer) {
					first++
				}
			}
			best := slices.Max(slices.Collect(maps.Values(answers)))
			if share := float64(best) / float64(eval.Len()); share > 0.05 {
				t.Errorf("seed %d: the best constant is right in %v of %d", seed, share, eval.Len())
			}
			if share := float64(first) / float64(eval.Len()); numEval > 100 && (share < 0.2 || share > 0.47) {
				t.Errorf("seed %d: the first number is the largest in %v", seed, share)
			}
			if len(seen) < 4000 {
				t.Errorf("only %d different triples to train on", len(seen))
			}
		}
	}
}

func TestLargestTasksAreAFunctionOfSeedAndNumber(t *testing.T) {
	a, b := newLargestTasks(50, false, 3), newLargestTasks(50, false, 4)
	for i := range 50 {
		x, _ := a.Task(i)
		y, _ := newLargestTasks(50, false, 3).Task(i)
		if diff := cmp.Diff(x, y); diff != "" {
			t.Error(diff)
		}
	}
	x, _ := a.Task(0)
	if y, _ := b.Task(0); cmp.Equal(x, y) || a.Digest() == b.Digest() {
		t.Error("another seed gives the same tasks")
	}
	if _, err := a.Task(50); err == nil {
		t.Error("a task behind the end")
	}
}

func TestLargestWantsExactlyOneInteger(t *testing.T) {
	env := &largest{}
	if _, err := env.Reset(t.Context(), rollout.Task{}, 0); err == nil {
		t.Error("a task without an answer was accepted")
	}
	if _, err := env.Reset(t.Context(), rollout.Task{Answer: "87"}, 0); err != nil {
		t.Fatal(err)
	}
	for reply, want := range map[string]float64{
		"87": 1, "The largest is 87.": 1, " 87\n": 1,
		"": 0, "12, 87, 34": 0, "12": 0, "187": 0, "-87": 0, "8 7": 0, "87 87": 0, "087": 0, "87.5": 0, "eighty-seven": 0, "８７": 0,
	} {
		res, err := env.Step(t.Context(), reply)
		if err != nil || res.Reward != want || !res.Terminated {
			t.Errorf("%q: %+v, %v", reply, res, err)
		}
	}
}
