// Command bench measures molt against what a Python user would run on the same machine: transformers, PyTorch and TRL with the same
// model, dtype and threads. Names as arguments choose what to measure. On standard output it prints one JSON line a figure;
// ratios above 1 mean that molt is better.
//
// Each side is a process of its own, which loads and warms up and then waits: this same program with -run for ours (see session),
// peers.py for the other. They take turns, a round each, so that a change in the machine's speed meets both.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent"
	"golang.org/x/sys/unix"
)

// peerModel is what scripts/peers makes of the .gguf file beside it.
const (
	gguf      = "SmolLM2-135M-Instruct.Q4_1.gguf"
	peerModel = "SmolLM2-135M-Instruct-hf"
)

func main() {
	ours := flag.Bool("run", false, "be our side of a job that comes on standard input")
	threads := flag.Int("threads", 2, "`cores` that each side may use")
	rounds := flag.Int("rounds", 3, "measured `rounds`, of which the median counts")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *ours {
		err = serve(ctx, os.Stdin, os.Stdout)
	} else {
		err = bench(ctx, flag.Args(), *threads, *rounds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(ctx context.Context, names []string, threads, rounds int) error {
	jobs, err := choose(names)
	if err != nil {
		return err
	}
	if err := pin(threads); err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "molt-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	tasks := filepath.Join(tmp, "tasks.jsonl")
	if err := writeTasks(tasks, 64); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	_, source, _, _ := runtime.Caller(0)
	python, script := filepath.Join(cache, "molt/peers/bin/python"), filepath.Join(filepath.Dir(source), "peers.py")
	var failed []error
	for _, j := range jobs {
		j.Threads, j.Tasks = threads, tasks
		a, b := j, j
		a.Model, b.Model = filepath.Join(cache, "molt/models", gguf), filepath.Join(cache, "molt/models", peerModel)
		figures, err := pair(ctx, side{"ours", a, []string{program, "-run"}}, side{"peer", b, []string{python, script, "run"}}, rounds)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", j.name, err))
		}
		for _, f := range figures {
			if len(names) > 0 && !slices.Contains(names, f.Name) {
				continue
			}
			if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
				return err
			}
		}
	}
	return errors.Join(failed...)
}

// job is one comparison. Both sides get it as JSON; lengths are in tokens.
type job struct {
	name, memory string // of the figures: speed, and peak memory where that is one
	asked        bool   // only measured when it is asked for

	Kind    string  `json:"kind"` // "generate", "train" or "grpo"
	DType   string  `json:"dtype"`
	Threads int     `json:"threads"`
	Model   string  `json:"model"`
	Batch   int     `json:"batch"`             // sequences at once
	Length  int     `json:"length,omitempty"`  // of a prompt to continue or a row to train on
	New     int     `json:"new,omitempty"`     // generated
	Micro   int     `json:"micro,omitempty"`   // train: rows in a micro-batch
	Samples int     `json:"samples,omitempty"` // grpo: of one prompt; Batch is prompts times samples
	Steps   int     `json:"steps,omitempty"`   // grpo: measured, after one that is not
	LR      float64 `json:"lr,omitempty"`
	Tasks   string  `json:"tasks"` // grpo: a file with one task a line
}

func jobs() []job {
	var all []job
	for _, dtype := range []string{"float32", "bfloat16"} {
		for _, batch := range []int{1, 8, 32, 64} {
			all = append(all, job{name: fmt.Sprintf("generate_b%d_%s", batch, dtype), asked: batch != 32,
				Kind: "generate", DType: dtype, Batch: batch, Length: 64, New: 64})
		}
		all = append(all, job{name: "train_" + dtype, memory: "train_memory_" + dtype,
			Kind: "train", DType: dtype, Batch: 8, Length: 256, Micro: 2, LR: 1e-5})
	}
	return append(all, job{name: "grpo_step_float32", Kind: "grpo", DType: "float32", Batch: 64, Samples: 8, New: 12, Steps: 4, LR: 2e-5})
}

// choose gives the jobs that make the named figures; none: those that are not only for asking.
func choose(names []string) ([]job, error) {
	var chosen []job
	var known []string
	for _, j := range jobs() {
		known = append(known, j.name)
		if j.memory != "" {
			known = append(known, j.memory)
		}
		if len(names) == 0 && !j.asked || slices.Contains(names, j.name) || j.memory != "" && slices.Contains(names, j.memory) {
			chosen = append(chosen, j)
		}
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, fmt.Errorf("unknown name %q; there are %s", n, strings.Join(known, ", "))
		}
	}
	return chosen, nil
}

// pin leaves this thread, and so what it starts, the first n of its cores: both sides then see a machine of that size.
func pin(n int) error {
	runtime.LockOSThread()
	var has, want unix.CPUSet
	if err := unix.SchedGetaffinity(0, &has); err != nil {
		return err
	}
	if n < 1 || n > has.Count() {
		return fmt.Errorf("-threads %d: there are %d cores", n, has.Count())
	}
	for cpu := 0; want.Count() < n; cpu++ {
		if has.IsSet(cpu) {
			want.Set(cpu)
		}
	}
	return unix.SchedSetaffinity(0, &want)
}

// writeTasks writes the first n tasks of the quick start, for both sides to train on in this order.
func writeTasks(path string, n int) error {
	if err := agent.RegisterSources(); err != nil {
		return err
	}
	train, _, err := rollout.OpenData(rollout.DataConfig{Source: "largest"})
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for i := range n {
		task, err := train.Task(i)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(f).Encode(task); err != nil {
			return err
		}
	}
	return nil
}
