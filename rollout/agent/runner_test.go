package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/rollout"
)

var wide = EnvConfig{MaxTurns: 8, Context: 1000}

// trained decodes the tokens with mask 1.
func trained(tr *rollout.Trajectory) string {
	k := tr.Tokens()
	var ids []int32
	for i, m := range k.Mask {
		if m {
			ids = append(ids, k.IDs[i])
		}
	}
	return toyChat{}.Decode(ids)
}

// Cases T1 and T3: what was sampled stays as it was sampled, and between two replies stands the template's delta once,
// with mask 0. The stop token that the policy generated is trained on.
func TestTheNextTurnIsThePreviousIDsPlusTheDelta(t *testing.T) {
	r := &replies{ids: [][]int32{{'h', secondA, imEnd}, {'b', imEnd}}}
	out := play(t, toyChat{}, r, wide, 10, func(turn int, action string) Result {
		if turn == 1 {
			if action != "ha" {
				t.Errorf("action %q", action)
			}
			return Result{Observation: User("hi"), Reward: 0.25}
		}
		return Result{Terminated: true, Reward: 0.5, Info: map[string]float64{"x": 1}}
	})
	first := encode("<|im_start|>user\nu1<|im_end|>\n<|im_start|>assistant\n")
	delta := encode("\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
	want := slices.Concat(first, []int32{'h', secondA, imEnd}, delta)
	if diff := cmp.Diff(want, r.requests[1].IDs); diff != "" {
		t.Error(diff)
	}
	k := out.Samples[0].Tokens()
	for i, m := range k.Mask {
		sampled := i >= len(first) && i < len(first)+3 || i >= len(want)
		if m != sampled || (k.LogP[i] != 0) != sampled {
			t.Errorf("position %d: mask %t, log-prob %v", i, m, k.LogP[i])
		}
	}
	if out.Reward != 0.75 || out.Score != 0.75 || out.Truncated || out.Info["x"] != 1 || len(out.Samples) != 1 {
		t.Errorf("rollout %+v", out)
	}
}

// Case T2: a template that drops earlier reasoning gives two segments of one rollout.
func TestARewrittenHistoryOpensANewSegment(t *testing.T) {
	think := append(encode("<think>x</think>y"), imEnd)
	r := &replies{ids: [][]int32{think, {'z', imEnd}}}
	out := play(t, toyChat{dropThink: true}, r, wide, 50, func(turn int, _ string) Result {
		return Result{Observation: User("u2"), Terminated: turn == 2, Reward: float64(turn - 1)}
	})
	if len(out.Samples) != 2 {
		t.Fatalf("%d segments", len(out.Samples))
	}
	if got := trained(out.Samples[0]); got != "<think>x</think>y<|im_end|>" {
		t.Errorf("first segment trains %q", got)
	}
	if got := trained(out.Samples[1]); got != "z<|im_end|>" {
		t.Errorf("second segment trains %q", got)
	}
	prompt := toyChat{}.Decode(r.requests[1].IDs)
	if strings.Contains(prompt, "think") || !strings.Contains(prompt, "assistant\ny") || !strings.Contains(prompt, "u2") {
		t.Errorf("second prompt %q", prompt)
	}
	if out.Reward != 1 {
		t.Errorf("reward %v", out.Reward)
	}
}

// Case P6: the request is clamped to the room left; without room the episode is truncated and trains on nothing; a
// finished episode keeps its reward.
func TestBudgetsOfTokensAndTurns(t *testing.T) {
	end := func(int, string) Result { return Result{Terminated: true, Reward: 1} }
	prompt := len(encode("<|im_start|>user\nu1<|im_end|>\n<|im_start|>assistant\n"))

	r := &replies{ids: [][]int32{{'a', 'b', 'c', 'd'}}}
	out := play(t, toyChat{}, r, EnvConfig{MaxTurns: 1, Context: prompt + 2}, 8, end)
	if got := r.requests[0].Sampling.MaxTokens; got != 2 || out.Samples[0].NumTrained() != 2 || !out.Truncated || out.Reward != 1 {
		t.Errorf("asked for %d, trained %d, truncated %t, reward %v", got, out.Samples[0].NumTrained(), out.Truncated, out.Reward)
	}

	for _, room := range []int{0, -1} {
		r = &replies{}
		out = play(t, toyChat{}, r, EnvConfig{MaxTurns: 1, Context: prompt + room}, 8, end)
		if len(r.requests) != 0 || !out.Truncated || out.Samples[0].NumTrained() != 0 || out.Reward != 0 {
			t.Errorf("room %d: %d requests, rollout %+v", room, len(r.requests), out)
		}
	}

	r = &replies{ids: [][]int32{{'a', imEnd}}} // ends exactly at the edge
	out = play(t, toyChat{}, r, EnvConfig{MaxTurns: 1, Context: prompt + 2}, 8, end)
	if out.Truncated || out.Reward != 1 {
		t.Errorf("finished episode: %+v", out)
	}

	r = &replies{ids: [][]int32{{'a', imEnd}, {'b', imEnd}, {'c', imEnd}}}
	out = play(t, toyChat{}, r, EnvConfig{MaxTurns: 2, Context: 1000}, 8, func(int, string) Result {
		return Result{Observation: User("more")}
	})
	if k := out.Samples[0].Tokens(); len(r.requests) != 2 || !out.Truncated || !k.Mask[len(k.Mask)-1] {
		t.Errorf("%d turns, truncated %t: nothing may follow the last reply", len(r.requests), out.Truncated)
	}

	r = &replies{ids: [][]int32{{'a', imEnd}}}
	out = play(t, toyChat{}, r, EnvConfig{MaxTurns: 9, Context: prompt + 10}, 8, func(int, string) Result {
		return Result{Observation: User("too long for the room that is left"), Reward: 0.5}
	})
	if out.Samples[0].Len() != prompt+2 || !out.Truncated || out.Reward != 0.5 {
		t.Errorf("length %d, truncated %t, reward %v", out.Samples[0].Len(), out.Truncated, out.Reward)
	}
}

// Case T1: a reply cut by its limit trains exactly that many tokens, and its turn is closed with mask 0.
func TestACutReplyIsClosedByTheTemplate(t *testing.T) {
	r := &replies{ids: [][]int32{{'a', 'b', 'c', 'd'}, {'e', imEnd}}}
	out := play(t, toyChat{}, r, wide, 3, func(turn int, _ string) Result {
		return Result{Observation: User("x"), Terminated: turn == 2}
	})
	text := toyChat{}.Decode(r.requests[1].IDs)
	if want := "abc<|im_end|>\n<|im_start|>user\nx"; !strings.Contains(text, want) || out.Truncated {
		t.Errorf("second prompt %q, truncated %t", text, out.Truncated)
	}
	if got := trained(out.Samples[0]); got != "abce<|im_end|>" {
		t.Errorf("trained %q", got)
	}
}

func TestAnEnvCanSetScoreAndSampling(t *testing.T) {
	r := &replies{ids: [][]int32{{'a', imEnd}, {'b', imEnd}, {'c', imEnd}}}
	score := 0.5
	out := play(t, toyChat{}, r, wide, 7, func(turn int, _ string) Result {
		res := Result{Observation: User("x"), Terminated: turn == 3, Reward: 1}
		if turn == 1 {
			res.Score, res.Sampling = &score, &rollout.Sampling{} // a greedy turn: in the history, not trained on
		}
		return res
	})
	if out.Reward != 3 || out.Score != 0.5 || trained(out.Samples[0]) != "a<|im_end|>c<|im_end|>" {
		t.Errorf("reward %v, score %v, trained %q", out.Reward, out.Score, trained(out.Samples[0]))
	}
	a, b, c := r.requests[0].Sampling, r.requests[1].Sampling, r.requests[2].Sampling
	own := b.Temperature == 0 && b.MaxTokens == 7 && slices.Equal(b.StopIDs, []int32{imEnd}) && c.Temperature == 1
	if a.Seed == b.Seed || a.Seed == c.Seed || !own {
		t.Errorf("sampling %+v, %+v, %+v", a, b, c)
	}
}

// What an Env asks for in a turn must not make a baseline out of chance; that its reply is short is still its to say.
func TestAGreedyRolloutIsGreedyInEveryTurn(t *testing.T) {
	r := &replies{ids: [][]int32{{'a', imEnd}, {'b', imEnd}, {'c', imEnd}}}
	run, err := NewEnvRunner(toyChat{}, r.script(), wide, func() Env {
		return &stepper{step: func(turn int, _ string) Result {
			res := Result{Observation: User("x"), Terminated: turn == 3}
			if turn == 1 {
				res.Sampling = &rollout.Sampling{Temperature: 1.5, MaxTokens: 4}
			}
			return res
		}}
	})
	if err != nil {
		t.Fatal(err)
	}
	out, err := run.Run(t.Context(), rollout.Spec{
		Task: rollout.Task{Messages: User("u")}, Greedy: true, Sampling: rollout.Sampling{MaxTokens: 9},
	})
	if err != nil {
		t.Fatal(err)
	}
	var asked []float32
	var most []int
	for _, q := range r.requests {
		asked, most = append(asked, q.Sampling.Temperature), append(most, q.Sampling.MaxTokens)
	}
	if !slices.Equal(asked, []float32{0, 0, 0}) || !slices.Equal(most, []int{9, 4, 9}) {
		t.Errorf("temperatures %v, max_tokens %v", asked, most)
	}
	if n := out.Samples[0].NumTrained(); n != 0 {
		t.Errorf("%d tokens to train on", n)
	}
}

func TestRewardsInPartsAreSumsOverTheSteps(t *testing.T) {
	r := &replies{ids: [][]int32{{'a', imEnd}, {'b', imEnd}}}
	out := play(t, toyChat{}, r, wide, 7, func(turn int, _ string) Result {
		parts := map[string]float64{"right": float64(turn), "format": 0.25}
		if turn == 2 {
			parts["late"] = -1
		}
		return Result{Observation: User("x"), Terminated: turn == 2, Reward: 0.5, Rewards: parts}
	})
	if diff := cmp.Diff(map[string]float64{"right": 3, "format": 0.5, "late": -1}, out.Rewards); diff != "" || out.Reward != 1 {
		t.Errorf("reward %v, parts %s", out.Reward, diff)
	}
}

// badEnv fails where it is told to.
type badEnv struct {
	reset, step error
	first, then Result
	closed      *bool
}

func (b badEnv) Reset(context.Context, rollout.Task, uint64) (Result, error) { return b.first, b.reset }
func (b badEnv) Step(context.Context, string) (Result, error)                { return b.then, b.step }
func (b badEnv) Close() error                                                { *b.closed = true; return nil }

func TestWhatAnEnvGetsWrongIsAnError(t *testing.T) {
	boom := errors.New("boom")
	task := rollout.Task{Messages: User("u")}
	for _, c := range []struct {
		env  badEnv
		task rollout.Task
		want string
	}{
		{badEnv{reset: boom}, task, "reset: boom"},
		{badEnv{step: boom}, task, "turn 1: step: boom"},
		{badEnv{}, rollout.Task{}, "neither the task nor the environment"},
		{badEnv{}, task, "has not ended and says nothing"},
		{badEnv{then: Result{Images: []string{"x"}}}, task, "no user message"},
		{badEnv{}, rollout.Task{Messages: User("u"), Images: []string{"x"}}, "reads only text"},
	} {
		c.env.closed = new(bool)
		gen := (&replies{ids: [][]int32{{'a', imEnd}}}).script()
		run, err := NewEnvRunner(toyChat{}, gen, wide, func() Env { return c.env })
		if err != nil {
			t.Fatal(err)
		}
		_, err = run.Run(t.Context(), rollout.Spec{Task: c.task, Sampling: rollout.Sampling{Temperature: 1}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
		if !*c.env.closed {
			t.Error("not closed")
		}
	}
	if _, err := NewEnvRunner(toyChat{}, rollout.Script{}, EnvConfig{}, func() Env { return nil }); err == nil {
		t.Error("no error for an empty config")
	}
}

func TestAnUnknownEnvListsTheKnown(t *testing.T) {
	err := Config{Env: "largst"}.Validate()
	if err == nil || !strings.Contains(err.Error(), `env = "largst" is not known; there are answer, largest`) {
		t.Error(err)
	}
	if RegisterEnv("largest", func() Env { return nil }) == nil {
		t.Error("a taken name was accepted")
	}
}

// A whole rollout through the Collector, as the trainer will see it.
func Example() {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	must(RegisterSources())
	data := rollout.DataConfig{Source: "largest", Tasks: 100, Eval: 10}
	train, _, err := rollout.OpenData(data)
	must(err)
	found, err := Find("largest")
	must(err)
	gen := rollout.Script{Reply: func(r rollout.Request) ([]int32, []float32, error) { return []int32{'9', '9', imEnd}, nil, nil }}
	runner, err := NewEnvRunner(toyChat{}, gen, EnvConfig{MaxTurns: 1, Context: 500}, found.Env)
	must(err)
	c, err := rollout.Collect(context.Background(), rollout.Plan{Config: rollout.DefaultConfig(), Data: data, Source: train}, runner)
	must(err)
	defer c.Close()
	b, err := c.Next(context.Background())
	must(err)
	fmt.Println(len(b.Groups), "groups of", len(b.Groups[0]))
	// Output: 8 groups of 8
}
