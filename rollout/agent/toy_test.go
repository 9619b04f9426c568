package agent

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
	"go.uber.org/goleak"
)

// The test binary is also the programs that tests run: its first argument names one of programs.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && programs[os.Args[1]] != nil {
		programs[os.Args[1]]()
		return
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/dlclark/regexp2/v2.runClock"))
}

// toyChat is ChatML over one token a rune, with a token of its own for the end of a turn. Two ids decode to "a", of
// which encoding knows only the first, as with real tokenizers.
type toyChat struct{ dropThink bool }

const (
	imEnd    = 1
	secondA  = 2
	imEndStr = "<|im_end|>"
)

func encode(text string) (ids []int32) {
	for i, part := range strings.Split(text, imEndStr) {
		if i > 0 {
			ids = append(ids, imEnd)
		}
		for _, r := range part {
			ids = append(ids, r)
		}
	}
	return ids
}

func (toyChat) Decode(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		switch id {
		case imEnd:
			b.WriteString(imEndStr)
		case secondA:
			b.WriteRune('a')
		default:
			b.WriteRune(id)
		}
	}
	return b.String()
}

func (toyChat) StopIDs() []int32 { return []int32{imEnd} }

func (c toyChat) Prompt(ms []multimodal.Message, o multimodal.RenderOptions) ([]int32, error) {
	var b strings.Builder
	for i, m := range ms {
		if _, after, ok := strings.Cut(m.Content, "</think>"); ok && c.dropThink && i < len(ms)-1 {
			m.Content = after
		}
		fmt.Fprintf(&b, "<|im_start|>%s\n%s%s\n", m.Role, m.Content, imEndStr)
	}
	if o.AddGenerationPrompt {
		b.WriteString("<|im_start|>assistant\n")
	}
	return encode(b.String()), nil
}

func (c toyChat) Delta(_ []multimodal.Message, reply string, stopped bool, next []multimodal.Message,
	o multimodal.RenderOptions) ([]int32, error) {
	if c.dropThink && strings.Contains(reply, "</think>") {
		return nil, multimodal.ErrRewritten
	}
	ids := encode("\n")
	if !stopped {
		ids = encode(imEndStr + "\n")
	}
	more, err := c.Prompt(next, o)
	return append(ids, more...), err
}

// replies is a script that says one reply a turn and keeps the requests.
type replies struct {
	ids      [][]int32
	requests []rollout.Request
}

func (r *replies) script() rollout.Script {
	return rollout.Script{Reply: func(q rollout.Request) ([]int32, []float32, error) {
		r.requests = append(r.requests, q)
		ids := r.ids[len(r.requests)-1]
		logp := make([]float32, len(ids))
		for i := range logp {
			logp[i] = -float32(i+1) / 8
		}
		return ids, logp, nil
	}}
}

// stepEnv is an environment from a function.
type stepEnv func(turn int, action string) Result

type stepper struct {
	step stepEnv
	turn int
}

func (s *stepper) Reset(context.Context, rollout.Task, uint64) (Result, error) { return Result{}, nil }

func (s *stepper) Step(_ context.Context, action string) (Result, error) {
	s.turn++
	return s.step(s.turn, action), nil
}

func play(t *testing.T, chat Chat, r *replies, c EnvConfig, maxTokens int, step stepEnv) *rollout.Rollout {
	t.Helper()
	run, err := NewEnvRunner(chat, r.script(), c, func() Env { return &stepper{step: step} })
	if err != nil {
		t.Fatal(err)
	}
	out, err := run.Run(t.Context(), rollout.Spec{
		Task: rollout.Task{Messages: User("u1")}, Seed: 5, Sampling: rollout.Sampling{Temperature: 1, MaxTokens: maxTokens},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
