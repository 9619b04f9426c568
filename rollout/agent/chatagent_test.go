package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/molt-go/molt/rollout"
)

// chatAgent is an agent that is a function.
type chatAgent func(ctx context.Context, c *ChatContext) (Result, error)

func (f chatAgent) Run(ctx context.Context, c *ChatContext) (Result, error) { return f(ctx, c) }

// say asks the model, as any client does, and gives its text; the error has the code of the answer's.
func (c *ChatContext) say(ctx context.Context, texts ...string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, "POST", c.BaseURL+"/chat/completions", strings.NewReader(talk("", texts...)))
	if err != nil {
		return "", err
	}
	r.Header.Set("Authorization", "Bearer "+c.APIKey)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var a answered
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		return "", err
	}
	if response.StatusCode != 200 {
		return "", fmt.Errorf("status %d: %s", response.StatusCode, a.Error.Message)
	}
	return a.text(), nil
}

func (s *stand) runner(f chatAgent) rollout.Runner {
	r, err := NewChatRunner(s.Server, func() ChatAgent { return f })
	if err != nil {
		s.Fatal(err)
	}
	return r
}

var chatSpec = rollout.Spec{Task: rollout.Task{Messages: User("u"), Answer: "42"}, Seed: 9, Sampling: allRun}

func TestAChatAgentsCallsAreTheSamplesOfItsRollout(t *testing.T) {
	s := newStand(t, chatML, &saying{texts: []string{"one<|im_end|>", "two<|im_end|>"}}, ServerConfig{})
	var key string
	out, err := s.runner(func(ctx context.Context, c *ChatContext) (Result, error) {
		key = c.APIKey
		a, err := c.say(ctx, c.Task.Messages[0].Content)
		if err != nil {
			return Result{}, err
		}
		b, err := c.say(ctx, "u", a, "v")
		score := 0.25
		if c.Task.Answer != "42" || c.Seed != 9 || c.Model == "" || a+b != "onetwo" {
			t.Errorf("%+v: %q, %q", c, a, b)
		}
		return Result{Reward: 1, Score: &score, Rewards: map[string]float64{"r": 2}, Info: map[string]float64{"i": 3}}, err
	}).Run(t.Context(), chatSpec)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Samples) != 1 || out.Samples[0].NumTrained() != 8 || out.Reward != 1 || out.Score != 0.25 || out.Rewards["r"] != 2 ||
		out.Info["i"] != 3 || out.Truncated || out.Seed != 9 {
		t.Errorf("%+v", out)
	}
	if a, _ := s.ask(key, talk("", "u")); a.status != 401 {
		t.Errorf("after the rollout: %+v", a)
	}
	if out.Samples[0].Context(nil) == nil {
		t.Error("the sample is not sealed")
	}
}

func TestHowARolloutOfAChatAgentEnds(t *testing.T) {
	boom := errors.New("boom")
	long := strings.Repeat("x", 300)
	for name, c := range map[string]struct {
		said      string
		run       chatAgent
		err       string
		truncated bool
		reward    float64
		samples   int
	}{
		"fails": {"a<|im_end|>", func(ctx context.Context, c *ChatContext) (Result, error) {
			_, err := c.say(ctx, "u")
			return Result{}, errors.Join(err, boom)
		}, "boom", false, 0, 0},
		"never calls": {"a<|im_end|>", func(context.Context, *ChatContext) (Result, error) { return Result{Reward: 1}, nil },
			"without a whole reply of the model", false, 0, 0},
		"panics": {"a<|im_end|>", func(ctx context.Context, c *ChatContext) (Result, error) {
			_, _ = c.say(ctx, "u")
			panic("oh no")
		}, "oh no", false, 0, 0},
		"last reply cut": {long, func(ctx context.Context, c *ChatContext) (Result, error) {
			_, err := c.say(ctx, "u")
			return Result{Reward: 0.5}, err
		}, "", true, 0.5, 1},
		"says so": {"a<|im_end|>", func(ctx context.Context, c *ChatContext) (Result, error) {
			_, err := c.say(ctx, "u")
			return Result{Truncated: true}, err
		}, "", true, 0, 1},
		"no room at all": {"a<|im_end|>", func(ctx context.Context, c *ChatContext) (Result, error) {
			_, err := c.say(ctx, long)
			return Result{Reward: -1}, err
		}, "", true, -1, 1},
		"no room in the second turn": {"a<|im_end|>", func(ctx context.Context, c *ChatContext) (Result, error) {
			a, err := c.say(ctx, "u")
			if err == nil {
				_, err = c.say(ctx, "u", a, long)
			}
			return Result{}, err
		}, "", true, 0, 1},
		"makes room": {"a<|im_end|>", func(ctx context.Context, c *ChatContext) (Result, error) {
			_, _ = c.say(ctx, long)
			_, err := c.say(ctx, "u")
			return Result{Reward: 1}, err
		}, "", false, 1, 2},
	} {
		s := newStand(t, chatML, &saying{texts: []string{c.said}}, ServerConfig{Context: 150})
		out, err := s.runner(c.run).Run(t.Context(), chatSpec)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || name == "fails" && !errors.Is(err, boom) {
				t.Errorf("%s: %v", name, err)
			}
		} else if err != nil || out.Truncated != c.truncated || out.Reward != c.reward || len(out.Samples) != c.samples {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
		if len(s.visits) != 1 { // the stand's own
			t.Errorf("%s: %d sessions are open", name, len(s.visits))
		}
	}
}

func TestAnAgentThatEndsItsGoroutineLeavesNoSession(t *testing.T) {
	s := newStand(t, chatML, &saying{texts: []string{"a"}}, ServerConfig{})
	ended := make(chan bool)
	go func() {
		defer close(ended)
		_, _ = s.runner(func(context.Context, *ChatContext) (Result, error) { runtime.Goexit(); return Result{}, nil }).Run(t.Context(), chatSpec)
	}()
	<-ended
	if len(s.visits) != 1 { // the stand's own
		t.Errorf("%d sessions are open", len(s.visits))
	}
}

// The run ends when the engine is gone, whatever the agent makes of the answer.
func TestADeadGeneratorEndsTheRun(t *testing.T) {
	gen := rollout.GeneratorFunc(func(context.Context, rollout.Request) (rollout.Completion, error) {
		return rollout.Completion{}, fmt.Errorf("gone: %w", rollout.ErrDead)
	})
	s := newStand(t, chatML, gen, ServerConfig{})
	_, err := s.runner(func(ctx context.Context, c *ChatContext) (Result, error) {
		_, _ = c.say(ctx, "u")
		return Result{Reward: 1}, nil
	}).Run(t.Context(), chatSpec)
	if !errors.Is(err, rollout.ErrDead) {
		t.Error(err)
	}
}

// Case P5: many rollouts at once over a generator that takes one request at a time; each gets its own replies, none is lost, and nothing
// is left open.
func Test256SessionsAtOnce(t *testing.T) {
	var slot sync.Mutex
	gen := rollout.GeneratorFunc(func(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
		slot.Lock()
		defer slot.Unlock()
		name := bytes.Buffer{} // who asks, from the ids
		for _, id := range r.IDs {
			if id >= '0' && id <= '9' {
				name.WriteByte(byte(id))
			}
		}
		return script("<"+name.String()+"<|im_end|>", r).Generate(ctx, r)
	})
	s := newStand(t, chatML, gen, ServerConfig{})
	run := s.runner(func(ctx context.Context, c *ChatContext) (Result, error) {
		me := c.Task.Answer
		a, err := c.say(ctx, me)
		if err != nil {
			return Result{}, err
		}
		b, err := c.say(ctx, me, a, ".")
		if a != "<"+me || b != "<"+me+me {
			err = errors.Join(err, fmt.Errorf("%s got %q and %q", me, a, b))
		}
		return Result{Reward: 1}, err
	})
	var all sync.WaitGroup
	for i := range 256 {
		all.Go(func() {
			spec := chatSpec
			spec.Task.Answer = fmt.Sprint(1000 + i)
			out, err := run.Run(t.Context(), spec)
			if err != nil || len(out.Samples) != 1 || out.Samples[0].NumTrained() != 6+10 {
				t.Errorf("%d: %+v, %v", i, out, err)
			}
		})
	}
	all.Wait()
	if len(s.visits) != 1 {
		t.Errorf("%d sessions are open", len(s.visits))
	}
}

func TestEitherKindOfAgentIsFoundByItsName(t *testing.T) {
	make := func() ChatAgent { return chatAgent(nil) }
	if err := RegisterChatAgent("TestEitherKind", make); err != nil {
		t.Fatal(err)
	}
	defer delete(agents, "TestEitherKind")
	a, err := Find("TestEitherKind")
	if b, _ := Find("largest"); err != nil || a.Chat == nil || a.Env != nil || b.Env == nil || b.Chat != nil {
		t.Errorf("%+v, %+v, %v", a, b, err)
	}
	if err := (Config{Env: "TestEitherKind"}).Validate(); err != nil {
		t.Error(err)
	}
	for _, err := range []error{RegisterChatAgent("largest", make), RegisterEnv("TestEitherKind", func() Env { return nil }),
		RegisterChatAgent("", make), RegisterChatAgent("nil", nil), RegisterEnv("nil", nil)} {
		if err == nil {
			t.Error("registered")
		}
	}
	if _, err := Find("x"); err == nil || !strings.Contains(err.Error(), "there are TestEitherKind, answer, largest") {
		t.Error(err)
	}
	if _, err := NewChatRunner(nil, make); err == nil {
		t.Error("a runner without a server")
	}
	if _, err := NewServer(nil, nil, ServerConfig{Context: math.MaxInt}); err == nil {
		t.Error("a server without a chat")
	}
}
