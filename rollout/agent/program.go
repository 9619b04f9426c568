package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent/grade"
)

// Program is a ChatAgent in any language. It gets the task as a JSON object on standard input, the model's address in OPENAI_BASE_URL and
// ANTHROPIC_BASE_URL, the key for it in OPENAI_API_KEY and ANTHROPIC_API_KEY, its name in MOLT_MODEL, and else the environment of this
// process. If the last line of its standard output that is a JSON object has a "reward", that is the result: {"reward": 1, "score": 1,
// "rewards": {"name": 1}, "info": {"name": 1}, "truncated": false}, all but the reward optional. An exit code other than 0, or a signal,
// is a failed rollout. What it leaves running in its process group is killed, and so is it itself at the end of ctx or of this process.
type Program struct {
	Command []string
	Grader  grade.Grader // scores the output of a program that gives no reward; nil: that is a failed rollout
	Log     string       // a file that gets each line of standard error, behind the rollout's id; "": none
}

// result is what a program says at its end.
type result struct {
	Reward, Score *float64
	Rewards, Info map[string]float64
	Truncated     bool
}

const (
	maxOutput = 1 << 20 // last bytes of a program's output that are looked at
	maxLine   = 1 << 16 // bytes of a line in the log; a longer one is cut into several
	maxLog    = 1 << 23 // bytes of a program in the log; it may write more, which is left out
	maxReason = 400     // last bytes of standard error in the error of a program
)

// Run runs the program.
func (p Program) Run(ctx context.Context, c *ChatContext) (Result, error) {
	output, err := p.run(ctx, fmt.Sprint("rollout ", c.ID), c.Task, "OPENAI_BASE_URL="+c.BaseURL, "OPENAI_API_KEY="+c.APIKey,
		"ANTHROPIC_BASE_URL="+strings.TrimSuffix(c.BaseURL, "/v1"), "ANTHROPIC_API_KEY="+c.APIKey, "MOLT_MODEL="+c.Model)
	if err != nil {
		return Result{}, err
	}
	res, err := lastResult(output, "reward")
	switch {
	case err != nil:
		return Result{}, fmt.Errorf("the program %q: %w", p.Command, err)
	case res.Reward != nil:
		return Result{Reward: *res.Reward, Score: res.Score, Rewards: res.Rewards, Info: res.Info, Truncated: res.Truncated}, nil
	case p.Grader == nil:
		return Result{}, fmt.Errorf(`the program %q gave no reward: let the last line that it prints be {"reward": 1.0}, or name a grader `+
			"in [agent] grader or grader_command", p.Command)
	}
	score, err := graded(ctx, p.Grader, c.Task, strings.TrimSpace(output))
	return Result{Reward: score}, err
}

// lastResult is what the last line that is a JSON object says, nothing if it has none of the keys.
func lastResult(output string, keys ...string) (res result, err error) {
	for _, line := range slices.Backward(strings.Split(output, "\n")) {
		var object map[string]json.RawMessage
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "{") {
			continue
		}
		err := json.Unmarshal([]byte(line), &object)
		has := func(key string) bool { return object[key] != nil || err != nil && strings.Contains(line, `"`+key+`"`) }
		if slices.ContainsFunc(keys, has) {
			if err = json.Unmarshal([]byte(line), &res); err != nil {
				err = fmt.Errorf("its result must be JSON with finite numbers: %.200s: %w", line, brief(err))
			}
			return res, err
		}
		if err == nil {
			break
		}
	}
	return result{}, nil
}

// run runs the program to its end and returns what it printed.
func (p Program) run(ctx context.Context, name string, input any, environment ...string) (string, error) {
	text, err := json.Marshal(input)
	log, logErr := os.OpenFile(cmp.Or(p.Log, os.DevNull), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err = cmp.Or(err, logErr); err != nil {
		return "", err
	}
	defer log.Close()
	fail := func(err error) error {
		err = fmt.Errorf("the program %q: %w", p.Command, cmp.Or(context.Cause(ctx), err))
		if ctx.Err() == nil {
			err = &rollout.Failure{Kind: "exit", Err: err}
		}
		return err
	}
	// All that the program starts is in the process group of a guard, which kills it when the guard's input ends, as with this process.
	// Until the guard is waited for, the number of the group is not given to others.
	guard := exec.Command("sh", "-c", "read line; kill -9 0")
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err = guard.StdinPipe(); err == nil { // closed by Wait
		err = guard.Start()
	}
	if err != nil {
		return "", fail(err)
	}
	defer guard.Wait()
	kill := func() error { return unix.Kill(-guard.Process.Pid, unix.SIGKILL) }
	defer kill()
	printed, said := &tail{most: maxOutput}, &lines{log: log, name: name, last: tail{most: maxReason}}
	defer said.flush()
	cmd := exec.CommandContext(ctx, p.Command[0], p.Command[1:]...)
	here := "127.0.0.1,localhost" // no proxy leads to the model
	cmd.Env = append(os.Environ(), "NO_PROXY="+here+","+os.Getenv("NO_PROXY"), "no_proxy="+here+","+os.Getenv("no_proxy"))
	cmd.Env = append(cmd.Env, environment...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(text, '\n')), printed, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: guard.Process.Pid}
	cmd.Cancel, cmd.WaitDelay = kill, time.Second // for a process that has left the group and holds the output open
	if err = cmd.Start(); err == nil {
		for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
		kill() // what it left running
		err = cmd.Wait()
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return string(printed.bytes()), nil
	}
	return "", fmt.Errorf("%w; its standard error ends with %q", fail(err), bytes.TrimSpace(said.last.bytes()))
}

// tail keeps the last bytes that are written to it.
type tail struct {
	most int
	data []byte
}

func (t *tail) Write(p []byte) (int, error) {
	if t.data = append(t.data, p...); len(t.data) > 2*t.most {
		t.data = append(t.data[:0], t.bytes()...)
	}
	return len(p), nil
}

func (t *tail) bytes() []byte { return t.data[max(0, len(t.data)-t.most):] }

// lines appends what is written to it to a log, each line in one write and behind a name. A full disk stops no program.
type lines struct {
	log  *os.File
	name string
	part []byte // a line so far
	cut  bool   // what was written last was the start of it
	size int    // written so far
	last tail
}

func (l *lines) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if l.part = append(l.part, line...); line[len(line)-1] == '\n' || len(l.part) > maxLine {
			l.flush()
		}
	}
	return l.last.Write(p)
}

func (l *lines) flush() {
	line := bytes.TrimRight(l.part, "\r\n")
	if l.size <= maxLog && (len(line) > 0 || len(l.part) > 0 && !l.cut) { // a line break right after a cut is no line
		if l.size += len(line) + 1; l.size > maxLog {
			line = []byte("(the rest is left out)")
		}
		fmt.Fprintf(l.log, "%s: %s\n", l.name, line)
	}
	l.cut = len(line) == len(l.part) && len(line) > 0
	l.part = l.part[:0]
}
