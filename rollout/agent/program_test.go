package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent/grade"
)

var programs = map[string]func(){"asker": asker, "host": host, "judge": judge}

// asker is a program that asks the model twice, and tells on standard error what it was given.
func asker() {
	var task rollout.Task
	in, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = json.Unmarshal(in, &task)
	}
	env := os.Getenv
	c := ChatContext{BaseURL: env("OPENAI_BASE_URL"), APIKey: env("ANTHROPIC_API_KEY")}
	a, askErr := c.say(context.Background(), task.Messages[0].Content)
	b, againErr := c.say(context.Background(), task.Messages[0].Content, a, "more")
	if err := errors.Join(err, askErr, againErr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stderr, "%s\n%t %t %s %s", in, env("OPENAI_API_KEY") == c.APIKey, env("ANTHROPIC_BASE_URL")+"/v1" == c.BaseURL,
		env("MOLT_MODEL"), env("OF_THE_HOST"))
	fmt.Printf("{\"note\": 1}\n%s %s\n{\"reward\": 1, \"score\": 0.5, \"rewards\": {\"r\": 2}, \"info\": {\"i\": 3}, \"truncated\": true, \"mine\": []}\n", a, b)
}

// host is a process that runs a program, and is killed meanwhile.
func host() {
	p := Program{Command: []string{"sh", "-c", os.Args[2]}}
	_, err := p.Run(context.Background(), &ChatContext{})
	fmt.Println("ended:", err)
}

// judge is a program that grades.
func judge() {
	var in struct {
		Task   rollout.Task
		Output *string
	}
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil || in.Output == nil || len(in.Task.Messages) == 0 {
		fmt.Fprintln(os.Stderr, "no task or no output:", err)
		os.Exit(2)
	}
	fmt.Printf("thinking\n{\"score\": %d}\n", strings.Count(*in.Output, in.Task.Answer))
}

func sh(script string) Program { return Program{Command: []string{"sh", "-c", script}} }

// called is p behind one call of the model, as sh has no HTTP.
func (s *stand) called(p Program) rollout.Runner {
	return s.runner(func(ctx context.Context, c *ChatContext) (Result, error) {
		if _, err := c.say(ctx, "u"); err != nil {
			return Result{}, err
		}
		return p.Run(ctx, c)
	})
}

func kindOf(err error) string {
	var f *rollout.Failure
	errors.As(err, &f)
	if f == nil {
		return ""
	}
	return f.Kind
}

func TestAProgramIsAnAgent(t *testing.T) {
	t.Setenv("OF_THE_HOST", "inherited")
	s := newStand(t, chatML, &saying{texts: []string{"one<|im_end|>", "two<|im_end|>"}}, ServerConfig{})
	log := filepath.Join(t.TempDir(), "agent.log")
	a, err := Config{Command: []string{os.Args[0], "asker"}}.Open(log, nil)
	if err != nil {
		t.Fatal(err)
	}
	run, err := NewChatRunner(s.Server, a.Chat)
	if err != nil {
		t.Fatal(err)
	}
	spec := chatSpec
	spec.ID, spec.Task.Extra = 7, json.RawMessage(`{"x":[1,2]}`)
	for range 2 { // the second one appends
		s.gen.(*saying).asked = nil
		out, err := run.Run(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Samples) != 1 || out.Samples[0].NumTrained() != 8 || out.Reward != 1 || out.Score != 0.5 || out.Rewards["r"] != 2 ||
			out.Info["i"] != 3 || !out.Truncated {
			t.Errorf("%+v", out)
		}
	}
	const said = "rollout 7: {\"messages\":[{\"role\":\"user\",\"content\":\"u\"}],\"answer\":\"42\",\"extra\":{\"x\":[1,2]}}\n" +
		"rollout 7: \nrollout 7: true true policy inherited\n"
	if text, err := os.ReadFile(log); err != nil || string(text) != said+said {
		t.Errorf("%v: %s", err, text)
	}
}

func TestTheLastLineThatIsAJSONObjectIsTheResult(t *testing.T) {
	one, half := 1.0, 0.5
	for output, want := range map[string]struct {
		result
		err string
	}{
		"":                                {},
		"words\n":                         {},
		`{"reward": 1}`:                   {result: result{Reward: &one}},
		"{\"reward\": 1}\n\nbye\n\n":      {result: result{Reward: &one}},
		"  {\"reward\": 1}\r\n":           {result: result{Reward: &one}},
		"{\"reward\":0}\n{\"reward\": 1}": {result: result{Reward: &one}},
		"{\"reward\":0}\n{\"tokens\": 1}": {}, // an object of its own
		"{\"reward\": 1}\n{'a': 2}\n{":    {result: result{Reward: &one}},
		"{\"reward\": 1}\n[{}]\n3\nnull":  {result: result{Reward: &one}},
		`{"score": 0.5, "x": {}}`:         {result: result{Score: &half}},
		`{"reward": null}`:                {},
		`{"reward": 1, "truncated": true, "rewards": {"a": 0.5}, "info": {"b": 1}, "other": "x"}`: {result: result{Reward: &one,
			Truncated: true, Rewards: map[string]float64{"a": 0.5}, Info: map[string]float64{"b": 1}}},
		`{"reward": NaN}`:                     {err: "finite"},
		`{"reward": 1, "info": {"a": 1e999}}`: {err: "finite"},
		`{"reward": "high"}`:                  {err: `its result must be JSON with finite numbers: {"reward": "high"}: reward cannot be a string`},
		`{"reward": 1, "rewards": 2}`:         {err: "finite"},
	} {
		got, err := lastResult(output, "reward", "score")
		if want.err != "" {
			if err == nil || !strings.Contains(err.Error(), want.err) {
				t.Errorf("%q: %+v, %v", output, got, err)
			}
		} else if diff := cmp.Diff(want.result, got, cmp.AllowUnexported(result{})); diff != "" || err != nil {
			t.Errorf("%q: %v %s", output, err, diff)
		}
	}
	if got, err := lastResult(`{"score": 1}`, "reward"); got.Score != nil || err != nil {
		t.Errorf("an agent's score without a reward: %+v", got)
	}
}

func TestHowARolloutOfAProgramEnds(t *testing.T) {
	const full = "full"
	s := newStand(t, chatML, &saying{texts: []string{"a<|im_end|>"}}, ServerConfig{Context: 150})
	exact := func(_ context.Context, task rollout.Task, output string) (float64, error) {
		if output != "4\n2" || task.Answer != "42" {
			return 0, fmt.Errorf("graded %q", output)
		}
		return 7, nil
	}
	fails := func(context.Context, rollout.Task, string) (float64, error) { return 0, errors.New("no grade") }
	for name, c := range map[string]struct {
		Program
		kind, err string
		reward    float64
	}{
		"reward":                       {sh(`echo '{"reward": 2}'`), "", "", 2},
		"code":                         {sh(`echo '{"reward": 2}'; echo first >&2; echo the reason >&2; exit 3`), "exit", `exit status 3; its standard error ends with "first\nthe reason"`, 0},
		"signal":                       {sh(`kill -9 $$`), "exit", "signal: killed", 0},
		"kills group":                  {sh(`kill -9 0`), "exit", "signal: killed", 0},
		"not there":                    {Program{Command: []string{"/nowhere/program"}}, "exit", "/nowhere/program: no such file", 0},
		"no log":                       {Program{Command: []string{"true"}, Log: "/nowhere/agent.log"}, "", "open /nowhere/agent.log", 0},
		"no reward":                    {sh("echo 4"), "", `gave no reward: let the last line that it prints be {"reward": 1.0}, or name a grader`, 0},
		"no number":                    {sh(`echo '{"reward": NaN}'`), "", "finite numbers", 0},
		"graded":                       {Program{Command: sh("echo; echo ' 4'; echo 2; echo").Command, Grader: exact}, "", "", 7},
		"grader fails":                 {Program{Command: []string{"echo"}, Grader: fails}, "grader", "grader: no grade", 0},
		full + " and its grader fails": {Program{Command: []string{"echo"}, Grader: fails}, "grader", "grader: no grade", 0},
		full + " and it fails":         {sh("exit 1"), "", "", 0}, // cut off
	} {
		run := s.called(c.Program)
		if strings.HasPrefix(name, full) {
			run = s.runner(func(ctx context.Context, cc *ChatContext) (Result, error) {
				_, _ = cc.say(ctx, strings.Repeat("x", 300))
				return c.Run(ctx, cc)
			})
		}
		out, err := run.Run(t.Context(), chatSpec)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || kindOf(err) != c.kind {
				t.Errorf("%s: %q: %v", name, kindOf(err), err)
			}
		} else if err != nil || out.Reward != c.reward || out.Truncated != strings.HasPrefix(name, full) {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
	}
	a, b := s.runner(sh(`echo '{"reward": 1}'`).Run), s.runner(sh("exit 1").Run)
	_, err := a.Run(t.Context(), chatSpec)
	if kindOf(err) != "no_reply" {
		t.Error("without a call:", err)
	}
	if _, err = b.Run(t.Context(), chatSpec); kindOf(err) != "exit" {
		t.Error("without a call, and it fails:", err)
	}
}

// running tells whether a process is there and no zombie.
func running(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}

// gone waits for processes whose numbers lie in files to end.
func gone(t *testing.T, files ...string) {
	t.Helper()
	for _, file := range files {
		pid, err := os.ReadFile(file)
		for wait := 0; err == nil && running(strings.TrimSpace(string(pid))); wait++ {
			if time.Sleep(10 * time.Millisecond); wait == 1000 {
				t.Fatalf("process %s runs on", pid)
			}
		}
		if err != nil || strings.TrimSpace(string(pid)) == "" {
			t.Fatalf("no process in %s: %v", file, err)
		}
	}
}

// A child may hold the output open, and may have left the process group; neither holds up the rollout.
func TestAProgramLeavesNothingRunning(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	const leave = `(sleep 0.2; echo '{"reward": 2}'; sleep 1000) & echo $! >child; echo '{"reward": 1}'`
	res, err := sh(leave).Run(t.Context(), &ChatContext{})
	if err != nil || res.Reward != 1 {
		t.Errorf("%+v, %v", res, err)
	}
	gone(t, "child")
	const away = `setsid sh -c 'echo $$ >away; exec sleep 1000' & while [ ! -s away ]; do sleep 0.01; done; echo '{"reward": 1}'`
	res, err = sh(away).Run(t.Context(), &ChatContext{})
	if err != nil || res.Reward != 1 {
		t.Errorf("with a child elsewhere: %+v, %v", res, err)
	}
	defer exec.Command("sh", "-c", "kill -9 $(cat away)").Run()
	ctx, cancel := context.WithCancelCause(t.Context())
	late := errors.New("late")
	context.AfterFunc(t.Context(), func() { cancel(nil) })
	go func() {
		for {
			if text, _ := os.ReadFile("program"); len(text) > 1 {
				cancel(late)
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	_, err = sh(`trap "" TERM INT; sleep 1000 & echo $! >child; echo $$ >program; wait; sleep 1000`).Run(ctx, &ChatContext{})
	if !errors.Is(err, late) || !strings.HasPrefix(err.Error(), `the program ["sh" "-c" "trap`) {
		t.Error(err)
	}
	gone(t, "child", "program")
	if _, err := sh(`echo '{"reward": 1}'`).Run(ctx, &ChatContext{}); !errors.Is(err, late) {
		t.Error("after the end of its context:", err)
	}
}

func TestNoProgramOutlivesAHostThatIsKilled(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "host", `sleep 1000 & echo $! >child; echo $$ >program; echo ready >ready; wait`)
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for text := []byte(nil); len(text) == 0; time.Sleep(time.Millisecond) {
		text, _ = os.ReadFile(filepath.Join(dir, "ready"))
	}
	if pid, err := os.ReadFile(filepath.Join(dir, "child")); err != nil || !running(strings.TrimSpace(string(pid))) {
		t.Errorf("child %s: %v", pid, err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, filepath.Join(dir, "program"), filepath.Join(dir, "child"))
	if text, _ := io.ReadAll(out); len(text) > 0 {
		t.Errorf("the host said %q", text)
	}
}

func TestOutputWithoutEndFillsNoMemory(t *testing.T) {
	log := filepath.Join(t.TempDir(), "agent.log")
	p := sh(`head -c 4000000 /dev/zero | tr '\0' y >&2; echo >&2; echo short >&2; printf end >&2
		head -c 60000000 /dev/zero | tr '\0' x; echo; echo '{"reward": 1}'`)
	p.Log = log
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res, err := p.Run(t.Context(), &ChatContext{ID: 3})
	if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 20<<20 {
		t.Errorf("%d bytes", after.TotalAlloc-before.TotalAlloc)
	}
	if err != nil || res.Reward != 1 {
		t.Errorf("%+v, %v", res, err)
	}
	text, err := os.ReadFile(log)
	if err != nil || bytes.Count(text, []byte("y")) != 4000000 || !bytes.HasSuffix(text, []byte("y\nrollout 3: short\nrollout 3: end\n")) {
		t.Errorf("%v, %d bytes of log, ...%q", err, len(text), text[max(0, len(text)-80):])
	}
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("rollout 3: ")) || len(line) > 2*maxLine {
			t.Errorf("a line of %d bytes, %.20q", len(line), line)
		}
	}
	few := tail{most: 5}
	for _, part := range []string{"a", "bc", "defghijklm", "", "no", "pqr"} {
		if n, err := few.Write([]byte(part)); n != len(part) || err != nil || cap(few.data) > 32 {
			t.Error(n, err, cap(few.data))
		}
	}
	if got := string(few.bytes()); got != "nopqr" {
		t.Error(got)
	}
}

// All run at the same time; each is told its own task and gives its own result, and their lines in the log are whole.
func Test200ProgramsAtOnce(t *testing.T) {
	const n = 200
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "go"), 0o600); err != nil {
		t.Fatal(err)
	}
	start, err := os.OpenFile(filepath.Join(dir, "go"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer start.Close()
	s := newStand(t, chatML, &saying{texts: []string{"a<|im_end|>"}}, ServerConfig{})
	p := sh(`read -r task; me=${task##*\"answer\":\"}; me=${me%%\"*}; echo "started $me" >&2; read go <` + filepath.Join(dir, "go") + `
		for i in 1 2 3 4 5; do echo "line $i of $me" >&2; done; echo "{\"reward\": $me}"`)
	p.Log = filepath.Join(dir, "agent.log")
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			spec := chatSpec
			spec.ID, spec.Task.Answer = int64(i), fmt.Sprint(1000+i)
			out, err := s.called(p).Run(t.Context(), spec)
			if err != nil || out.Reward != float64(1000+i) || len(out.Samples) != 1 {
				t.Errorf("%d: %+v, %v", i, out, err)
			}
		})
	}
	read := func() []byte { text, _ := os.ReadFile(p.Log); return text }
	for wait := 0; bytes.Count(read(), []byte("started")) < n && !t.Failed(); wait++ {
		if time.Sleep(5 * time.Millisecond); wait == 6000 {
			t.Error("not all have started, or told so")
		}
	}
	_, err = start.Write(bytes.Repeat([]byte("\n"), n))
	all.Wait()
	form := regexp.MustCompile(`^rollout (\d+): (started|line [1-5] of) 1(\d{3})$`)
	lines := 0
	for scan := bufio.NewScanner(bytes.NewReader(read())); scan.Scan(); lines++ {
		if m := form.FindStringSubmatch(scan.Text()); m == nil || fmt.Sprintf("%03s", m[1]) != m[3] {
			t.Errorf("line %q", scan.Text())
		}
	}
	if lines != 6*n || err != nil || len(s.visits) != 1 { // the stand's own
		t.Errorf("%d lines, %d open sessions, %v", lines, len(s.visits), err)
	}
}

func TestAGraderScoresWhatAProgramPrinted(t *testing.T) {
	s := newStand(t, chatML, &saying{texts: []string{"a<|im_end|>"}}, ServerConfig{})
	judge := []string{os.Args[0], "judge"}
	for name, c := range map[string]struct {
		config    Config
		kind, err string
		reward    float64
	}{
		"registered":             {Config{Command: sh("echo; echo ' 42 '").Command, Grader: "exact"}, "", "", 1},
		"wrong":                  {Config{Command: sh("echo 41").Command, Grader: "exact"}, "", "", 0},
		"the program's reward":   {Config{Command: sh(`echo '42 {"reward": 9}'; echo '{"reward": 5}'`).Command, Grader: "exact"}, "", "", 5},
		"an object of its own":   {Config{Command: sh(`echo '{"tokens": 42}'`).Command, GraderCommand: judge}, "", "", 1},
		"command":                {Config{Command: sh("echo 42 42; echo 42").Command, GraderCommand: judge}, "", "", 3},
		"reward of the grader":   {Config{Command: sh("echo").Command, GraderCommand: sh(`echo '{"score": 1, "reward": 7}'`).Command}, "", "", 7},
		"grader exits":           {Config{Command: sh("echo").Command, GraderCommand: sh("echo why >&2; exit 4").Command}, "grader", `exit status 4; its standard error ends with "why"`, 0},
		"grader gives nothing":   {Config{Command: sh("echo").Command, GraderCommand: sh("echo 1").Command}, "grader", "gave neither reward nor score", 0},
		"grader gives no number": {Config{Command: sh("echo").Command, GraderCommand: sh(`echo '{"reward": Infinity}'`).Command}, "grader", "finite", 0},
		"program exits":          {Config{Command: sh("echo 42; exit 1").Command, Grader: "exact"}, "exit", "exit status 1", 0},
	} {
		a, err := c.config.Open("", nil)
		if err != nil {
			t.Fatal(err)
		}
		out, err := s.called(a.Chat().(Program)).Run(t.Context(), chatSpec)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || kindOf(err) != c.kind {
				t.Errorf("%s: %q: %v", name, kindOf(err), err)
			}
		} else if err != nil || out.Reward != c.reward || out.Score != c.reward {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
	}
}

func TestTheAnswerEnvironmentGradesOneReply(t *testing.T) {
	log := filepath.Join(t.TempDir(), "agent.log")
	for name, c := range map[string]struct {
		config    Config
		task      rollout.Task
		kind, err string
		reward    float64
	}{
		"right":   {Config{Grader: "exact"}, rollout.Task{Answer: "four"}, "", "", 1},
		"wrong":   {Config{Grader: "math"}, rollout.Task{Answer: "5"}, "", "", 0},
		"command": {Config{GraderCommand: []string{os.Args[0], "judge"}}, rollout.Task{Answer: "our"}, "", "", 1},
		"pattern": {Config{Grader: "regexp", GraderArg: "f(.*)r"}, rollout.Task{Answer: "ou"}, "", "", 1},
		"schema":  {Config{Grader: "json_schema", GraderArg: `{"type":"string"}`}, rollout.Task{}, "", "", 0},
		"judge":   {Config{Grader: "judge", GraderArg: "is {reply} right?"}, rollout.Task{}, "", "", 0.25},
		"fault":   {Config{Grader: "exact"}, rollout.Task{ID: "t"}, "grader", `grader: grade: task "t" has no answer`, 0},
		"exits":   {Config{GraderCommand: sh("echo why >&2; exit 1").Command}, rollout.Task{ID: "t"}, "grader", "exit status 1", 0},
	} {
		c.config.Env = "answer"
		asked := ""
		a, err := c.config.Open(log, func(_ context.Context, prompt string) (string, error) {
			asked = prompt
			return `well: {"score": 0.25}`, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if c.config.Grader == "judge" && asked != "is four right?" {
				t.Errorf("%s: the judge was asked %q", name, asked)
			}
		}()
		r := &replies{ids: [][]int32{encode("four" + imEndStr)}}
		run, err := NewEnvRunner(toyChat{}, r.script(), EnvConfig{MaxTurns: 3, Context: 100}, a.Env)
		if err != nil {
			t.Fatal(err)
		}
		c.task.Messages = []multimodal.Message{{Role: "user", Content: "2+2"}}
		out, err := run.Run(t.Context(), rollout.Spec{Task: c.task, Sampling: allRun})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || kindOf(err) != c.kind {
				t.Errorf("%s: %q: %v", name, kindOf(err), err)
			}
		} else if err != nil || out.Reward != c.reward || out.Truncated || len(r.requests) != 1 {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
	}
	if text, err := os.ReadFile(log); string(text) != "grader of task t: why\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestSettingsOfAgentsThatCannotBeAreRefused(t *testing.T) {
	run := []string{"sh"}
	for want, c := range map[string]Config{
		`[agent] env = "" and command = []: give one of the two`:                                                             {},
		`[agent] env = "largest" and command = ["sh"]: give one of the two`:                                                  {Env: "largest", Command: run},
		`[agent] grader = "math" and grader_command = ["sh"]: give one of the two`:                                           {Command: run, Grader: "math", GraderCommand: run},
		`[agent] env = "largest" gives its own rewards: leave out the grader`:                                                {Env: "largest", Grader: "math"},
		`[agent] env = "largest" gives its own rewards: leave out the grader, `:                                              {Env: "largest", GraderCommand: run},
		`[agent] grader_arg and judge are for graders that take them: json_schema, j`:                                        {Env: "answer", Grader: "math", GraderArg: "x"},
		`[agent] env = "anser" is not known; there are answer, largest`:                                                      {Env: "anser", Grader: "math"},
		`[agent] grader = "regexp" needs a grader_arg`:                                                                       {Env: "answer", Grader: "regexp"},
		`[agent] grader = "json_schema": grade: schema: `:                                                                    {Env: "answer", Grader: "json_schema", GraderArg: "{"},
		`[agent] grader = "regexp": grade: error parsing regexp`:                                                             {Env: "answer", Grader: "regexp", GraderArg: "("},
		`[agent] grader = "json_schema" needs a grader_arg`:                                                                  {Env: "answer", Grader: "json_schema"},
		`[agent] grader "x" is not known; there are exact, exact_fold, math, and with grader_arg json_schema, judge, regexp`: {Env: "answer", Grader: "x"},
		`[agent] grader = "judge": base_url = "": must be as http://`:                                                        {Env: "answer", Grader: "judge", Judge: grade.Endpoint{Model: "m"}},
		`[agent] grader = "judge": model is missing`:                                                                         {Env: "answer", Grader: "judge", Judge: grade.Endpoint{BaseURL: "http://a/v1"}},
		`[agent] grader = "judge": base_url = "a/v1": must be as http`:                                                       {Env: "answer", Grader: "judge", Judge: grade.Endpoint{BaseURL: "a/v1", Model: "m"}},
		`[agent] grader = "judge": key_env: set the environment variable NOT_SET_HERE`:                                       {Env: "answer", Grader: "judge", Judge: grade.Endpoint{BaseURL: "https://a", Model: "m", KeyEnv: "NOT_SET_HERE"}},
		`[agent] grader = "judge": grade: the prompt of a judge needs {reply}`:                                               {Env: "answer", Grader: "judge", GraderArg: "x"},
		`[agent] grader_arg and judge are for graders that take them: `:                                                      {Env: "answer", Grader: "math", Judge: grade.Endpoint{Model: "m"}},
		`[agent] template: messages is the conversation's own: leave it out`:                                                 {Env: "largest", Template: map[string]any{"messages": []any{}}},
		`[agent] env = "answer" needs a grader: give one as in grader = "math"`:                                              {Env: "answer"},
		`[agent] grader "maths" is not known; there are exact, exact_fold, math`:                                             {Env: "answer", Grader: "maths"},
		`[agent] command = ["no-such-program" "x"]: exec: "no-such-program": `:                                               {Command: []string{"no-such-program", "x"}},
		`[agent] grader_command = ["no-such-program"]: exec: "no-such-program": `:                                            {Env: "answer", GraderCommand: []string{"no-such-program"}},
		`[agent] command = [""]: exec: "": `:                                                                                 {Command: []string{""}},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	for _, c := range []Config{{Env: "largest"}, {Command: run}, {Command: run, Grader: "math"}, {Command: run, GraderCommand: run},
		{Env: "answer", Grader: "math"}, {Env: "answer", GraderCommand: run}, {Env: "largest", Command: []string{}, GraderCommand: []string{}}} {
		if err := c.Validate(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// What an agent makes of the answer to a call that failed does not hide whose failure it was; a later call that succeeded does.
func TestFailuresOfAgentsHaveTheirKind(t *testing.T) {
	broken := true
	gen := rollout.GeneratorFunc(func(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
		if broken {
			return rollout.Completion{}, errors.New("no memory")
		}
		return script("a<|im_end|>", r).Generate(ctx, r)
	})
	s := newStand(t, chatML, gen, ServerConfig{})
	fail := func(before, after bool) chatAgent {
		return func(ctx context.Context, c *ChatContext) (Result, error) {
			broken = before
			_, _ = c.say(ctx, "u")
			broken = after
			_, _ = c.say(ctx, "v")
			return Result{}, errors.New("oh no")
		}
	}
	for kind, agent := range map[string]chatAgent{
		"generator": fail(false, true), "": fail(true, false),
		"panic":    func(context.Context, *ChatContext) (Result, error) { panic("ouch") },
		"no_reply": func(context.Context, *ChatContext) (Result, error) { return Result{}, nil },
	} {
		if _, err := s.runner(agent).Run(t.Context(), chatSpec); err == nil || kindOf(err) != kind {
			t.Errorf("%q: %q, %v", kind, kindOf(err), err)
		}
	}
	broken = true
	run, err := NewEnvRunner(toyChat{}, gen, EnvConfig{MaxTurns: 1, Context: 100}, func() Env { return &stepper{} })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run.Run(t.Context(), chatSpec); kindOf(err) != "generator" || !strings.Contains(err.Error(), "no memory") {
		t.Error(err)
	}
}

// A program that floods standard error fills no disk, and the log says that something is missing.
func TestTheLogOfAProgramIsBounded(t *testing.T) {
	log := filepath.Join(t.TempDir(), "agent.log")
	p := sh(`head -c 12000000 /dev/zero | tr '\0' y | fold -w 1000 >&2; echo '{"reward": 1}'`)
	p.Log = log
	if res, err := p.Run(t.Context(), &ChatContext{ID: 3}); err != nil || res.Reward != 1 {
		t.Errorf("%+v, %v", res, err)
	}
	text, err := os.ReadFile(log)
	if err != nil || len(text) < maxLog || len(text) > maxLog+maxLog/8 || !bytes.HasSuffix(text, []byte("\nrollout 3: (the rest is left out)\n")) ||
		bytes.Count(text, []byte("left out")) != 1 {
		t.Errorf("%v, %d bytes of log, ...%q", err, len(text), text[max(0, len(text)-80):])
	}
}
