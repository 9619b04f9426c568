// Command bench measures molt against what a Python user would run on the same machine: transformers, PyTorch and TRL with the same
// model, dtype and threads. Names as arguments choose what to measure. On standard output it prints one JSON line a figure; a ratio
// above 1 means that molt is better.
//
// The sides take turns, a process of its own each time: this same program with -run for ours, peers.py for the other.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/molt-go/molt/rollout"
)

// job is one comparison, which each side reads from its standard input. Lengths are in tokens.
type job struct {
	Name    string         `json:"name"`   // of the figure
	Memory  string         `json:"memory"` // name of the figure of peak memory, where that is one
	Asked   bool           `json:"asked"`  // measured only when it is asked for
	Rounds  int            `json:"rounds"` // processes of each side; medians count
	Kind    string         `json:"kind"`   // "generate", "train" or "grpo"
	DType   string         `json:"dtype"`
	Threads int            `json:"threads"`
	Cache   string         `json:"cache"`   // the folder with the model, as scripts/fetch and scripts/peers leave it
	Batch   int            `json:"batch"`   // sequences at once
	Length  int            `json:"length"`  // of a prompt to continue, or of a row to train on
	New     int            `json:"new"`     // generated
	Micro   int            `json:"micro"`   // train: rows in a micro-batch
	Samples int            `json:"samples"` // grpo: of one prompt; Batch is prompts times samples
	Steps   int            `json:"steps"`   // train, grpo: measured, after one that is not
	LR      float64        `json:"lr"`
	Tasks   []rollout.Task `json:"tasks"` // grpo
}

func jobs() []job {
	var all []job
	for _, dtype := range []string{"float32", "bfloat16"} {
		for _, batch := range []int{1, 8, 32, 64} {
			all = append(all, job{Name: fmt.Sprintf("generate_b%d_%s", batch, dtype), Asked: batch != 32, Rounds: 3,
				Kind: "generate", DType: dtype, Batch: batch, Length: 64, New: 64})
		}
		all = append(all, job{Name: "train_" + dtype, Memory: "train_memory_" + dtype, Rounds: 2,
			Kind: "train", DType: dtype, Batch: 8, Length: 256, Micro: 2, Steps: 3, LR: 1e-5})
	}
	return append(all, job{Name: "grpo_step_float32", Rounds: 1, Kind: "grpo", DType: "float32", Batch: 64, Samples: 8, New: 12, Steps: 4, LR: 2e-5})
}

// report is what a process measured.
type report struct {
	Value float64 `json:"value"` // tokens/s or seconds a step
	Loss  float64 `json:"loss"`  // of the first training step
	Bound float64 `json:"bound"` // of the value; 0: not known
	peak  float64 // resident memory, MiB
}

// figure is a line of the output.
type figure struct {
	Name  string  `json:"name"`
	Ours  float64 `json:"ours"`
	Peer  float64 `json:"peer"`
	Ratio float64 `json:"ratio"` // above 1: ours is better
	Unit  string  `json:"unit"`
	Bound float64 `json:"bound,omitempty"`
	CPU   string  `json:"cpu"`
}

func main() {
	run := flag.Bool("run", false, "be our side of a job that comes on standard input")
	threads := flag.Int("threads", 2, "cores that each side may use")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	bench := func() error { return bench(ctx, flag.Args(), *threads) }
	if *run {
		bench = func() error { return ours(ctx) }
	}
	if err := bench(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench makes the named figures; without names, those that need not be asked for.
func bench(ctx context.Context, names []string, threads int) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	tasks, err := firstTasks(64)
	if err != nil {
		return err
	}
	_, source, _, _ := runtime.Caller(0)
	python, script := filepath.Join(cache, "molt/peers/bin/python"), filepath.Join(filepath.Dir(source), "peers.py")
	known, unknown := []string(nil), slices.Clone(names)
	var chosen []job
	for _, j := range jobs() {
		known = append(known, strings.Fields(j.Name+" "+j.Memory)...)
		if len(names) == 0 && !j.Asked || slices.Contains(names, j.Name) || slices.Contains(names, j.Memory) {
			j.Threads, j.Cache, j.Tasks = threads, filepath.Join(cache, "molt/models"), tasks
			chosen = append(chosen, j)
		}
	}
	if unknown = slices.DeleteFunc(unknown, func(n string) bool { return slices.Contains(known, n) }); len(unknown) > 0 {
		return fmt.Errorf("unknown name %q; there are %s", unknown[0], strings.Join(known, ", "))
	}
	var errs []error
	for _, j := range chosen {
		figures, err := compare(ctx, j, []string{program, "-run"}, []string{python, script, "run"})
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", j.Name, err))
		}
		for _, f := range figures {
			if len(names) == 0 || slices.Contains(names, f.Name) {
				errs = append(errs, json.NewEncoder(os.Stdout).Encode(f))
			}
		}
	}
	return errors.Join(errs...)
}

// compare lets the sides take turns. Sides whose losses differ did not do the same work: that is an error.
func compare(ctx context.Context, j job, ours, peer []string) ([]figure, error) {
	var a, b []report
	for range j.Rounds {
		x, err := measure(ctx, j, ours)
		if err != nil {
			return nil, err
		}
		y, err := measure(ctx, j, peer)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "%s: ours %+v, peer %+v\n", j.Name, x, y)
		tolerance := map[string]float64{"float32": 1e-4, "bfloat16": 1e-2}[j.DType]
		if diff := math.Abs(x.Loss - y.Loss); !(diff <= tolerance*y.Loss) {
			return nil, fmt.Errorf("not the same work: the first losses, %v ours and %v the peer's, differ by more than %v relative", x.Loss, y.Loss, tolerance)
		}
		a, b = append(a, x), append(b, y)
	}
	value, peak := func(r report) float64 { return r.Value }, func(r report) float64 { return r.peak }
	f := figure{Name: j.Name, Unit: "tokens/s", Ours: median(a, value), Peer: median(b, value), Bound: a[0].Bound, CPU: processor()}
	f.Ratio = f.Ours / f.Peer
	if j.Kind == "grpo" {
		f.Unit, f.Ratio = "s/step", f.Peer/f.Ours
	}
	if j.Memory == "" {
		return []figure{f}, nil
	}
	m := figure{Name: j.Memory, Unit: "MiB", Ours: median(a, peak), Peer: median(b, peak), CPU: f.CPU}
	m.Ratio = m.Peer / m.Ours
	return []figure{f, m}, nil
}

// measure runs one side in a process that has only the job's number of cores.
func measure(ctx context.Context, j job, command []string) (r report, err error) {
	in, err := json.Marshal(j)
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, "taskset", append([]string{"-c", fmt.Sprintf("0-%d", j.Threads-1)}, command...)...)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	r.peak = float64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss) / 1024
	return r, nil
}

func median(reports []report, of func(report) float64) float64 {
	var x []float64
	for _, r := range reports {
		x = append(x, of(r))
	}
	slices.Sort(x)
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

func processor() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	if model := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(info); model != nil {
		return string(model[1])
	}
	return "unknown"
}
