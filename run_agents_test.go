package molt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent"
	"github.com/molt-go/molt/rollout/agent/grade"
	"github.com/molt-go/molt/trainer"
)

// worth is what agents here give for a reply: texts differ, so do rewards.
func worth(reply string) float64 { return float64(len(reply)) }

// wordy is an environment of one turn.
type wordy struct{}

func (wordy) Reset(context.Context, rollout.Task, uint64) (agent.Result, error) {
	return agent.Result{}, nil
}

func (wordy) Step(_ context.Context, reply string) (agent.Result, error) {
	return agent.Result{Reward: worth(reply), Terminated: true}, nil
}

// endless is one that goes on and on.
type endless struct{ wordy }

func (endless) Step(_ context.Context, reply string) (agent.Result, error) {
	return agent.Result{Reward: worth(reply), Observation: agent.User("a")}, nil
}

// caller is a chat agent, or a program.
type caller struct{}

func (caller) Run(_ context.Context, c *agent.ChatContext) (agent.Result, error) {
	body, err := json.Marshal(object{"model": c.Model, "messages": c.Task.Messages})
	if err != nil {
		return agent.Result{}, err
	}
	request, err := http.NewRequest("POST", c.BaseURL+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return agent.Result{}, err
	}
	request.Header.Set("Authorization", "Bearer "+c.APIKey)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return agent.Result{}, err
	}
	defer response.Body.Close()
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || len(answer.Choices) == 0 {
		return agent.Result{}, fmt.Errorf("%s: %w", response.Status, err)
	}
	reply := answer.Choices[0].Message.Content
	return agent.Result{Reward: worth(reply), Info: map[string]float64{"reply": 1}}, nil
}

// program asks the model by what its environment and its input say, and prints the reward or, as the folder's name says, the reply. The
// first one of a folder fails.
func program(folder string) {
	c := &agent.ChatContext{BaseURL: os.Getenv("OPENAI_BASE_URL"), APIKey: os.Getenv("OPENAI_API_KEY"), Model: os.Getenv("MOLT_MODEL")}
	err := json.NewDecoder(os.Stdin).Decode(&c.Task)
	res, askErr := caller{}.Run(context.Background(), c)
	if err = errors.Join(err, askErr); err == nil {
		if _, err := os.OpenFile(filepath.Join(folder, "first"), os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			fmt.Fprintln(os.Stderr, "a bug in an agent")
			os.Exit(7)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if filepath.Base(folder) == "reply" {
		fmt.Println(strings.Repeat("x", int(res.Reward)))
	} else {
		fmt.Printf("{\"reward\": %g}\n", res.Reward)
	}
	os.Exit(0)
}

var registerAgents = sync.OnceValue(func() error {
	return errors.Join(agent.RegisterEnv("wordy", func() agent.Env { return wordy{} }),
		agent.RegisterEnv("endless", func() agent.Env { return endless{} }),
		agent.RegisterChatAgent("caller", func() agent.ChatAgent { return caller{} }),
		grade.Register("length", func(_ context.Context, _ rollout.Task, reply string) (float64, error) { return worth(reply), nil }))
})

// chatting is talking with a template.
func chatting(t *testing.T) string {
	t.Helper()
	path := talking(t)
	template := line(object{"eos_token": "<eos>",
		"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}b{% endif %}"})
	if err := os.WriteFile(filepath.Join(path, "tokenizer_config.json"), []byte(template), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A config names an environment, a chat agent or a program, and a grader by name; each of them learns from what the model said.
func TestTheAgentsOfAConfigTrain(t *testing.T) {
	if err := registerAgents(); err != nil {
		t.Fatal(err)
	}
	path := chatting(t)
	tasks := write(t, "tasks.jsonl", strings.Repeat(`{"messages": [{"role": "user", "content": "ab"}], "answer": "a"}`+"\n", 8))
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for name, c := range map[string]struct {
		table  string
		failed float64
	}{
		"environment": {`env = "wordy"`, 0},
		"chat agent":  {`env = "caller"`, 0},
		"grader":      {`env = "answer"` + "\n" + `grader = "length"`, 0},
		"reward":      {`command = ["PROGRAM", "program", "FOLDER/reward"]`, 1},
		"reply":       {`command = ["PROGRAM", "program", "FOLDER/reply"]` + "\n" + `grader = "length"`, 1},
	} {
		cfg, folder := tinyConfig(t.TempDir()), t.TempDir()
		cfg.Steps, cfg.Eval.Tasks, cfg.Model.Path, cfg.Data.Path, cfg.Rollout.Concurrency = 2, 0, path, tasks, 8
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			t.Fatal(err)
		}
		table := "[agent]\n" + strings.NewReplacer("PROGRAM", os.Args[0], "FOLDER", folder).Replace(c.table)
		if err := trainer.DecodeTOML(write(t, "run.toml", table), nil, &cfg); err != nil {
			t.Fatal(err)
		}
		if err := Run(t.Context(), cfg, null); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		steps, _ := rows(t, cfg)
		t.Log(name, column(steps, "reward_mean"), column(steps, "failed"))
		exit, counted := steps[0]["failed_exit"]
		if len(steps) != 2 || steps[0]["failed"] != c.failed || exit != c.failed || counted != (c.failed > 0) || steps[1]["failed"] != 0 {
			t.Errorf("%s: %v", name, steps)
		}
		for _, row := range steps {
			if row["reward_mean"] <= 0 || row["trained_tokens"] < 16 || row["logprob_diff_max"] != 0 || row["mismatch_abs"] != 0 {
				t.Errorf("%s: %v", name, row)
			}
		}
		log, err := os.ReadFile(filepath.Join(cfg.Log.Dir, cfg.Name, "agent.log"))
		if c.failed > 0 && (err != nil || !strings.HasSuffix(string(log), ": a bug in an agent\n")) || c.failed == 0 && err == nil {
			t.Errorf("%s: the log: %q, %v", name, log, err)
		}
	}
}

// A rollout that would not fit into a micro-batch, and could not be trained on, ends before; the run goes on.
func TestRolloutsEndWhereAMicroBatchDoes(t *testing.T) {
	if err := registerAgents(); err != nil {
		t.Fatal(err)
	}
	cfg := tinyConfig(t.TempDir())
	cfg.Steps, cfg.Eval.Tasks, cfg.Model.Path, cfg.Agent.Env, cfg.Optim.MicroTokens, cfg.Rollout.MaxTurns = 2, 0, chatting(t), "endless", 24, 99
	cfg.Data.Path = write(t, "tasks.jsonl", strings.Repeat(`{"messages": [{"role": "user", "content": "ab"}]}`+"\n", 8))
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := Run(t.Context(), cfg, null); err != nil {
		t.Fatal(err)
	}
	steps, _ := rows(t, cfg)
	if len(steps) != 2 || steps[0]["truncated"] != 16 || steps[0]["trained_tokens"] < 100 || steps[0]["failed"] != 0 {
		t.Errorf("%v", steps)
	}
	cfg.Engine.Context = 26
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "[engine] context = 26: rollouts of more than optim.micro_tokens = 24") {
		t.Error(err)
	}
}
