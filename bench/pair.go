package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

// figure is a line of the output.
type figure struct {
	Name  string  `json:"name"`
	Ours  float64 `json:"ours"`
	Peer  float64 `json:"peer"`
	Ratio float64 `json:"ratio"` // above 1: ours is better
	Unit  string  `json:"unit"`
	Bound float64 `json:"bound,omitempty"` // what no implementation on this libtorch can pass
	CPU   string  `json:"cpu"`
}

const perSecond = "tokens/s" // the one unit of which more is better

func newFigure(name, unit string, ours, peer, bound float64) figure {
	ratio := peer / ours
	if unit == perSecond {
		ratio = ours / peer
	}
	round := func(x float64) float64 { return math.Round(x*1000) / 1000 }
	return figure{name, round(ours), round(peer), round(ratio), unit, round(bound), processor()}
}

// side is how to start one of the two processes.
type side struct {
	name    string
	job     job
	command []string
}

// process is a side at work: it answers each line of input with a report.
type process struct {
	name    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
	reports []float64
	ready   report
}

// report is what a side says when it is ready, and after each round.
type report struct {
	Value float64 `json:"value"`           // tokens/s or seconds a step
	Loss  float64 `json:"loss,omitempty"`  // of the first training step
	Bound float64 `json:"bound,omitempty"` // tokens/s
}

// pair lets both sides of a job take turns and compares the medians of their rounds. Sides whose first losses differ did not do the
// same work: that is an error.
func pair(ctx context.Context, ours, peer side, rounds int) ([]figure, error) {
	j := ours.job
	if j.Kind == "grpo" {
		rounds = 1 // of several steps
	}
	a, err := start(ctx, ours)
	if err != nil {
		return nil, err
	}
	defer a.stop()
	b, err := start(ctx, peer)
	if err != nil {
		return nil, err
	}
	defer b.stop()
	if j.Kind == "train" {
		fmt.Fprintf(os.Stderr, "%s: loss of the first step: ours %.7g, peer %.7g\n", j.name, a.ready.Loss, b.ready.Loss)
		tolerance := map[string]float64{"float32": 1e-4, "bfloat16": 1e-2}[j.DType]
		if diff := math.Abs(a.ready.Loss/b.ready.Loss - 1); !(diff <= tolerance) {
			return nil, fmt.Errorf("the losses differ by %.2g relative, allowed are %g: this is not the same work", diff, tolerance)
		}
	}
	turns := []*process{a, b}
	for range rounds {
		for _, p := range turns {
			if err := p.round(j.name); err != nil {
				return nil, err
			}
		}
		slices.Reverse(turns)
	}
	if err := errors.Join(a.stop(), b.stop()); err != nil {
		return nil, err
	}
	unit := perSecond
	if j.Kind == "grpo" {
		unit = "s/step"
	}
	figures := []figure{newFigure(j.name, unit, median(a.reports), median(b.reports), a.ready.Bound)}
	if j.memory != "" {
		figures = append(figures, newFigure(j.memory, "MiB", a.peak(), b.peak(), 0))
	}
	return figures, nil
}

// start starts a side and waits until it is ready.
func start(ctx context.Context, s side) (*process, error) {
	p := &process{name: s.name, cmd: exec.CommandContext(ctx, s.command[0], s.command[1:]...)}
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		p.in, err = p.cmd.StdinPipe()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	p.out = json.NewDecoder(out)
	if p.ready, err = p.ask(s.job); err != nil {
		return nil, err
	}
	return p, nil
}

// ask sends a line and waits for the report. A side that ends instead has said why on standard error.
func (p *process) ask(line any) (r report, err error) {
	if err = json.NewEncoder(p.in).Encode(line); err == nil {
		err = p.out.Decode(&r)
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", p.name, errors.Join(err, p.stop()))
	}
	return r, nil
}

func (p *process) round(name string) error {
	r, err := p.ask("round")
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s: %s %.4g\n", name, p.name, r.Value)
	p.reports = append(p.reports, r.Value)
	return nil
}

// stop ends the process; it may be called again.
func (p *process) stop() error {
	if p.cmd.ProcessState != nil {
		return nil
	}
	p.in.Close() // that it is closed already is no matter
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// peak is the largest resident memory of the ended process, in MiB.
func (p *process) peak() float64 {
	return float64(p.cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss) / 1024
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

// processor is the name of the machine's processor.
func processor() string {
	info, _ := os.ReadFile("/proc/cpuinfo") // without it the name is unknown
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}
