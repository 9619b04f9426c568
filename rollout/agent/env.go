package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent/grade"
)

// Env is a task in turns, in the manner of Gymnasium. One value serves one rollout and one goroutine. If it has a
// Close method (io.Closer), that is called at the end. An error means that the rollout failed and does not count; what
// the model did wrong is not an error but an observation or a reward.
type Env interface {
	// Reset starts the task. Its observation follows the task's messages, which may be all there is to say; seed is
	// the rollout's.
	Reset(ctx context.Context, task rollout.Task, seed uint64) (Result, error)
	// Step takes the model's reply: the text without its stop token.
	Step(ctx context.Context, action string) (Result, error)
}

// Result is what an Env answers, and how a ChatAgent ends: of its Result, Observation, Terminated, Images and Sampling say nothing.
type Result struct {
	Observation []multimodal.Message // what the model sees next; see User
	Reward      float64              // of this step; a rollout's reward is the sum
	Terminated  bool                 // the task has ended
	Truncated   bool                 // it was cut off
	Score       *float64             // what groups are filtered by, shown and evaluated, if not the reward; the last one given holds
	Rewards     map[string]float64   // parts of Reward by name, for estimators that weigh them apart; of each name a rollout has the sum
	Info        map[string]float64   // numbers for the metrics; of each name the last one holds
	Images      []string             // paths or data URLs, for the image parts of Observation that name none; see multimodal.Illustrate
	// Sampling is for the next turn only, instead of the run's. MaxTokens 0 keeps the run's, and a greedy rollout stays greedy.
	Sampling *rollout.Sampling
}

// User is an observation of one user message.
func User(text string) []multimodal.Message {
	return []multimodal.Message{{Role: "user", Content: text}}
}

// Agent makes the agents of a registered name, one for each rollout: one of the two functions is set.
type Agent struct {
	Env  func() Env
	Chat func() ChatAgent
}

var (
	agentsMu sync.Mutex
	agents   = map[string]Agent{"largest": {Env: func() Env { return &largest{} }}, "answer": {}} // the latter is made of a grader, in Open
)

// RegisterEnv makes an environment known as [agent] env = name. make is called once for each rollout. A name that is
// taken is an error.
func RegisterEnv(name string, make func() Env) error {
	return register(name, Agent{Env: make}, make != nil)
}

// RegisterChatAgent does the same for an agent that owns its loop.
func RegisterChatAgent(name string, make func() ChatAgent) error {
	return register(name, Agent{Chat: make}, make != nil)
}

func register(name string, a Agent, whole bool) error {
	agentsMu.Lock()
	defer agentsMu.Unlock()
	if _, taken := agents[name]; taken || name == "" || !whole {
		return fmt.Errorf("agent: %q is registered already, or has no name or function", name)
	}
	agents[name] = a
	return nil
}

// Find is the registered agent of that name.
func Find(name string) (Agent, error) {
	agentsMu.Lock()
	defer agentsMu.Unlock()
	if a, ok := agents[name]; ok {
		return a, nil
	}
	return Agent{}, fmt.Errorf("[agent] env = %q is not known; there are %s", name, strings.Join(slices.Sorted(maps.Keys(agents)), ", "))
}

// Config is the [agent] table. One of Env and Command is set, and Grader or GraderCommand where it is of use.
type Config struct {
	Env           string         `toml:"env"`            // a registered environment or chat agent
	Command       []string       `toml:"command"`        // a program and its arguments: see Program
	Grader        string         `toml:"grader"`         // for env = "answer" and for programs that give no reward: see grade.Find;
	GraderArg     string         `toml:"grader_arg"`     // or "regexp" with this pattern, "json_schema" with this, "judge" with this prompt
	Judge         grade.Endpoint `toml:"judge"`          // whom to ask; default: the policy itself, greedily
	GraderCommand []string       `toml:"grader_command"` // a program instead: it reads {"task": …, "output": …}, prints {"reward": 1}
	Template      map[string]any `toml:"template"`       // variables for the chat template, as enable_thinking = false
}

// Validate lists what is wrong with c. It changes nothing.
func (c Config) Validate() error {
	_, err := c.Open("", func(context.Context, string) (string, error) { return "", nil })
	return err
}

// Open finds what c names. The standard error of programs is appended to the file log, if there is one; self asks the policy.
func (c Config) Open(log string, self grade.Asker) (a Agent, err error) {
	graded := c.Grader != "" || len(c.GraderCommand) > 0
	for _, key := range []string{"messages", "tools", "add_generation_prompt"} {
		if _, ok := c.Template[key]; ok {
			return a, fmt.Errorf("[agent] template: %s is the conversation's own: leave it out", key)
		}
	}
	switch {
	case (c.Env == "") == (len(c.Command) == 0):
		return a, fmt.Errorf("[agent] env = %q and command = %q: give one of the two, a registered agent or a program", c.Env, c.Command)
	case c.Grader != "" && len(c.GraderCommand) > 0:
		return a, fmt.Errorf("[agent] grader = %q and grader_command = %q: give one of the two", c.Grader, c.GraderCommand)
	case graded && c.Env != "" && c.Env != "answer":
		if _, err := Find(c.Env); err != nil {
			return a, err
		}
		return a, fmt.Errorf(`[agent] env = %q gives its own rewards: leave out the grader, or take env = "answer"`, c.Env)
	case !graded && c.Env == "answer":
		return a, errors.New(`[agent] env = "answer" needs a grader: give one as in grader = "math", or a program as grader_command`)
	}
	for key, command := range map[string][]string{"command": c.Command, "grader_command": c.GraderCommand} {
		if len(command) == 0 {
			continue
		}
		if _, err := exec.LookPath(command[0]); err != nil {
			return a, fmt.Errorf("[agent] %s = %q: %w", key, command, err)
		}
	}
	grader, err := c.grader(log, self)
	if err != nil {
		return a, fmt.Errorf("[agent] %w", err)
	}
	switch {
	case c.Env == "":
		return Agent{Chat: func() ChatAgent { return Program{c.Command, grader, log} }}, nil
	case c.Env == "answer":
		return Agent{Env: func() Env { return &answer{grader: grader} }}, nil
	}
	return Find(c.Env)
}
