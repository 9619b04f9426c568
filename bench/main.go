// Command bench measures molt against what a Python user would run on the same machine: transformers, PyTorch, TRL and vLLM with the
// same model, dtype and threads. Names as arguments choose what to measure. On standard output it prints one JSON line a figure; a ratio
// above 1 means that molt is better.
//
// The sides take turns, a process of its own each time: this same program with -run for ours, peers.py for the other; serve.py
// asks both servers. tasks.jsonl holds the first tasks that the quick start's source gives. It runs in the root of the checkout.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/molt-go/molt"
)

// job is one comparison, which each side reads from its standard input. Lengths are in tokens.
type job struct {
	Name    string   `json:"name"`    // of the figure
	Memory  string   `json:"memory"`  // name of the figure of peak memory, where that is one
	Figures []string `json:"figures"` // serve: those asked for, of which it has many
	Rounds  int      `json:"rounds"`  // processes of each side; medians count
	Kind    string   `json:"kind"`    // see ours and peers.py; "serve": see serve.py
	DType   string   `json:"dtype"`
	Threads int      `json:"threads"`
	Models  string   `json:"models"`  // the folder that scripts/fetch and scripts/peers fill
	Batch   int      `json:"batch"`   // sequences at once; grpo: prompts; estimate: rollouts
	Length  int      `json:"length"`  // of a prompt to continue, a rollout, or a row to train on; allreduce: numbers
	New     int      `json:"new"`     // generated
	Micro   int      `json:"micro"`   // train: rows in a micro-batch
	Samples int      `json:"samples"` // grpo: of one prompt
	Steps   int      `json:"steps"`   // measured, after one that is not
	LR      float64  `json:"lr"`
}

// jobs lists those that are always done, or all.
func jobs(all bool) []job {
	var list []job
	batches := []int{32}
	if all {
		batches = []int{1, 8, 32, 64}
	}
	for _, dtype := range []string{"float32", "bfloat16"} {
		for _, batch := range batches {
			name := fmt.Sprintf("generate_b%d_%s", batch, dtype)
			list = append(list, job{Name: name, Rounds: 3, Kind: "generate", DType: dtype, Batch: batch, Length: 64, New: 64})
		}
		list = append(list, job{Name: "refit_135m_" + dtype, Rounds: 3, Kind: "refit", DType: dtype, Steps: 20})
		list = append(list, job{Name: "train_" + dtype, Memory: "train_memory_" + dtype, Rounds: 2,
			Kind: "train", DType: dtype, Batch: 8, Length: 256, Micro: 2, Steps: 3, LR: 1e-5})
	}
	list = append(list, job{Name: "allreduce_64mb", Rounds: 5, Kind: "allreduce", DType: "float32", Length: 16 << 20, Steps: 20},
		job{Name: "op_add", Rounds: 5, Kind: "op", DType: "float32", Steps: 50_000, Threads: 1},
		job{Name: "op_linear", Rounds: 5, Kind: "op", DType: "float32", Steps: 50_000, Threads: 1},
		job{Name: "op_backward", Rounds: 5, Kind: "op", DType: "float32", Steps: 10_000, Threads: 1},
		job{Name: "encode_smollm2", Rounds: 5, Kind: "encode", DType: "float32", Steps: 50, Threads: 1},
		job{Name: "adamw_135m", Rounds: 5, Kind: "adamw", DType: "float32", Steps: 20, LR: 1e-3})
	list = append(list, job{Name: "grpo_step_float32", Rounds: 1,
		Kind: "grpo", DType: "float32", Batch: 8, Samples: 8, New: 12, Steps: 4, LR: 2e-5})
	// The peer is ours too: the prompt alone, then as many sequences without it. The group may take 1.3 times that: a ratio of 0.77.
	list = append(list, job{Name: "group_16", Rounds: 3, Kind: "group", DType: "bfloat16", Batch: 16, Length: 512, New: 64, Steps: 3})
	for _, name := range []string{"grpo", "reinforce", "gae"} {
		list = append(list, job{Name: "estimate_" + name, Rounds: 3,
			Kind: "estimate", DType: "float32", Batch: 1024, Length: 4096, Steps: 10, Threads: 1})
	}
	loss := job{Rounds: 3, Kind: "loss", Length: 2048, Steps: 3}
	for _, loss.DType = range []string{"float32", "bfloat16"} {
		loss.Name, loss.Memory = "loss_token_"+loss.DType, "loss_memory_"+loss.DType
		list = append(list, loss)
	}
	// Four times the tokens: beyond those and their gradients memory must not grow.
	list = append(list, job{Name: "loss_8192_float32", Memory: "loss_memory_8192_float32", Rounds: 1,
		Kind: "loss", DType: "float32", Length: 8192, Steps: 1})
	// The peer is ours too: a loss by tokens, which one by sequences must cost no more than.
	list = append(list, job{Name: "loss_sequence", Rounds: 3, Kind: "sequence", DType: "float32", Length: 2048, Steps: 3})
	serve := job{Rounds: 3, Kind: "serve", DType: "bfloat16", Length: 64, New: 64, Figures: strings.Fields("serve_b1_bfloat16 " +
		"serve_b8_bfloat16 serve_b32_bfloat16 serve_b64_bfloat16 serve_ttft_b1 serve_ttft_b8 serve_ttft_b32 serve_memory")}
	list = append(list, serve)
	serve.DType, serve.Figures = "float32", []string{"serve_b32_float32"}
	return append(list, serve)
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" { // be molt, which serve.py starts
		molt.Main()
		return
	}
	run := flag.Bool("run", false, "be our side of a job that comes on standard input")
	parts := flag.Bool("parts", false, "with -run: be the other side, where that is ours too")
	threads := flag.Int("threads", 2, "cores that each side may use")
	flag.Parse()
	var err error
	if *run {
		err = ours(*parts)
	} else {
		err = bench(flag.Args(), *threads)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench prints the named figures.
func bench(names []string, threads int) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	chosen := jobs(len(names) > 0)
	var known []string
	for _, j := range chosen {
		known = append(known, j.names()...)
	}
	if len(names) == 0 {
		names = known
	}
	if i := slices.IndexFunc(names, func(n string) bool { return !slices.Contains(known, n) }); i >= 0 {
		return fmt.Errorf("unknown name %q; known: %s", names[i], strings.Join(known, ", "))
	}
	ours := []string{os.Args[0], "-run"}
	peer := []string{filepath.Join(cache, "molt/peers/bin/python"), "bench/peers.py", "run"}
	var errs []error
	for _, j := range chosen {
		j.Figures = slices.DeleteFunc(j.names(), func(n string) bool { return !slices.Contains(names, n) })
		if len(j.Figures) == 0 {
			continue
		}
		j.Threads, j.Models = cmp.Or(j.Threads, threads), filepath.Join(cache, "molt/models")
		var figures []figure
		switch j.Kind {
		case "serve":
			figures, err = serve(j)
		case "group", "sequence":
			figures, err = compare(j, ours, append(slices.Clip(ours), "-parts"))
		default:
			figures, err = compare(j, ours, peer)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", j.Name, err))
		}
		for _, f := range figures {
			if slices.Contains(j.Figures, f.Name) {
				errs = append(errs, json.NewEncoder(os.Stdout).Encode(f))
			}
		}
	}
	return errors.Join(errs...)
}

// names lists the figures of j.
func (j job) names() []string { return append(strings.Fields(j.Name+" "+j.Memory), j.Figures...) }

// report is what a process measured.
type report struct {
	Value float64 `json:"value"` // tokens/s, µs of an operator, ms of a refit or an estimate, or seconds
	Loss  float64 `json:"loss"`  // of the first training step; others: a number that the same work gives
	Bound float64 `json:"bound"` // of the value, from the peer: the matrix products alone; 0: not known
	peak  float64 // resident memory, MiB
}

// compare lets the sides, ours first, take turns. Sides whose losses differ did not do the same work: that is an error.
func compare(j job, commands ...[]string) (figures []figure, err error) {
	var values, peaks [2][]float64
	var r [2]report
	for range j.Rounds {
		for i, command := range commands {
			if r[i], err = measure(j, command); err != nil {
				return nil, err
			}
			values[i], peaks[i] = append(values[i], r[i].Value), append(peaks[i], r[i].peak)
		}
		fmt.Fprintf(os.Stderr, "%s: ours %+v, peer %+v\n", j.Name, r[0], r[1])
		tolerance := map[string]float64{"float32": 1e-4, "bfloat16": 1e-2}[j.DType]
		if diff := math.Abs(r[0].Loss - r[1].Loss); !(diff <= tolerance*r[1].Loss) {
			return nil, fmt.Errorf("not the same work: first loss %v, the peer's %v; allowed: %v relative", r[0].Loss, r[1].Loss, tolerance)
		}
	}
	unit := map[string]string{"generate": "tokens/s", "train": "tokens/s", "encode": "tokens/s", "op": "µs",
		"refit": "ms", "group": "s", "estimate": "ms", "loss": "s", "sequence": "s"}[j.Kind]
	figures = append(figures, newFigure(j.Name, cmp.Or(unit, "s/step"), values, r[1].Bound))
	if j.Memory != "" {
		figures = append(figures, newFigure(j.Memory, "MiB", peaks, 0))
	}
	return figures, nil
}

// measure runs one side.
func measure(j job, command []string) (r report, err error) {
	usage, err := call(j, command, &r)
	r.peak = float64(usage.Maxrss) / 1024
	return r, err
}

// serve compares the servers, in one process that starts and asks both.
func serve(j job) (figures []figure, err error) {
	find := exec.Command("scripts/vllm")
	find.Stderr = os.Stderr
	venv, err := find.Output()
	if err != nil {
		return nil, fmt.Errorf("scripts/vllm: %w", err)
	}
	var answer []struct {
		Name, Unit string
		Sides      [2][]float64
		Bound      float64
	}
	_, err = call(j, []string{filepath.Join(strings.TrimSpace(string(venv)), "bin/python"), "bench/serve.py", os.Args[0],
		"serve", "-model", j.model(), "-dtype", j.DType, "-threads", strconv.Itoa(j.Threads)}, &answer)
	for _, a := range answer {
		figures = append(figures, newFigure(a.Name, a.Unit, a.Sides, a.Bound))
	}
	return figures, err
}

// call gives a job to a process that has only the job's number of cores, and takes its answer.
func call(j job, command []string, answer any) (usage syscall.Rusage, err error) {
	in, err := json.Marshal(j)
	if err != nil {
		return usage, err
	}
	cmd := exec.Command("taskset", append([]string{"-c", fmt.Sprintf("0-%d", j.Threads-1)}, command...)...)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // no server is left behind
	out, err := cmd.Output()
	if err == nil {
		usage = *cmd.ProcessState.SysUsage().(*syscall.Rusage)
		err = json.Unmarshal(out, answer)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	return usage, err
}

// figure is a line of the output.
type figure struct {
	Name  string  `json:"name"`
	Ours  float64 `json:"ours"`
	Peer  float64 `json:"peer"`
	Ratio float64 `json:"ratio"`
	Unit  string  `json:"unit"`
	Bound float64 `json:"bound,omitempty"`
	CPU   string  `json:"cpu"`
}

func newFigure(name, unit string, sides [2][]float64, bound float64) figure {
	f := figure{Name: name, Ours: median(sides[0]), Peer: median(sides[1]), Unit: unit, Bound: bound}
	if f.Ratio = f.Peer / f.Ours; unit == "tokens/s" { // the only unit of which more is better
		f.Ratio = f.Ours / f.Peer
	}
	info, _ := os.ReadFile("/proc/cpuinfo") // without it, or without its names, the processor has none
	if model := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(info); model != nil {
		f.CPU = string(model[1])
	}
	return f
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}
