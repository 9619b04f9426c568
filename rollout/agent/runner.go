package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

// Chat is the text side of a model: its tokenizer and chat template.
type Chat interface {
	// Prompt renders a conversation.
	Prompt([]multimodal.Message, multimodal.RenderOptions) ([]int32, error)
	// Delta renders what follows a reply to history: the end of its turn, unless a stop token that the model wrote is
	// that already (stopped), the next messages, and the opening of the next reply. The error is multimodal.ErrRewritten where the
	// template renders history otherwise once these follow.
	Delta(history []multimodal.Message, reply string, stopped bool, next []multimodal.Message,
		opts multimodal.RenderOptions) ([]int32, error)
	Decode(ids []int32) string
	// StopIDs are the tokens that end a reply.
	StopIDs() []int32
}

var _ Chat = (*multimodal.Chat)(nil)

// EnvConfig bounds an episode.
type EnvConfig struct {
	MaxTurns int                        // model calls; then the rollout is truncated
	Context  int                        // positions that the model has; then too
	Template map[string]any             // variables for the chat template
	Images   *multimodal.ImageProcessor // nil: the model reads only text
}

// NewEnvRunner makes a Runner of an environment. env is called once for each rollout.
func NewEnvRunner(chat Chat, gen rollout.Generator, c EnvConfig, env func() Env) (rollout.Runner, error) {
	if chat == nil || gen == nil || env == nil {
		return nil, errors.New("agent: an environment needs a chat, a generator and a function that makes it")
	}
	if c.MaxTurns < 1 || c.Context < 1 {
		return nil, fmt.Errorf("agent: max_turns = %d and a context of %d tokens must be at least 1", c.MaxTurns, c.Context)
	}
	return rollout.RunnerFunc(func(ctx context.Context, s rollout.Spec) (*rollout.Rollout, error) {
		e := &episode{config: c, env: env(), session: NewSession(chat, gen, c.Images, c.Context)}
		e.out = &rollout.Rollout{Spec: s, Rewards: map[string]float64{}, Info: map[string]float64{}}
		e.opts = multimodal.RenderOptions{AddGenerationPrompt: true, Tools: s.Task.Tools, Extra: c.Template}
		if closer, ok := e.env.(io.Closer); ok {
			defer closer.Close()
		}
		if err := e.play(ctx); err != nil {
			return nil, err
		}
		return e.out, nil
	}), nil
}

// episode is one rollout while it runs.
type episode struct {
	config  EnvConfig
	env     Env
	session *Session
	opts    multimodal.RenderOptions
	out     *rollout.Rollout
	history []multimodal.Message
	score   *float64
	turns   int
	cut     bool // the last reply reached its limit of tokens
}

func (e *episode) play(ctx context.Context) error {
	task := e.out.Task
	res, err := e.env.Reset(ctx, task, e.out.Seed)
	if err != nil {
		return fmt.Errorf("agent: reset: %w", err)
	}
	messages, err := multimodal.Illustrate(task.Messages, task.Images...)
	if err != nil {
		return fmt.Errorf("agent: task %q: %w", task.ID, err)
	}
	observation, err := e.take(res)
	if err != nil {
		return err
	}
	e.history = slices.Concat(messages, observation)
	if len(e.history) == 0 {
		return errors.New("agent: neither the task nor the environment says anything to the model")
	}
	for !res.Terminated && !e.out.Truncated {
		if res, err = e.turn(ctx, e.sampling(res.Sampling)); err != nil {
			return fmt.Errorf("agent: turn %d: %w", e.turns, err)
		}
	}
	e.out.Samples = e.session.Close()
	e.out.Truncated = e.out.Truncated || e.cut
	e.out.Score = e.out.Reward
	if e.score != nil {
		e.out.Score = *e.score
	}
	return nil
}

// sampling is what to ask for in the next turn.
func (e *episode) sampling(own *rollout.Sampling) rollout.Sampling {
	s := e.out.Sampling
	if own != nil {
		s = *own
		if s.MaxTokens <= 0 {
			s.MaxTokens = e.out.Sampling.MaxTokens
		}
		s.TopLogP = max(s.TopLogP, e.out.Sampling.TopLogP)
		if e.out.Greedy {
			s.Temperature = 0
		}
	}
	if s.Seed == 0 {
		s.Seed = rollout.MixSeed(e.out.Seed, uint64(e.turns))
	}
	return s
}

// turn has the model reply and the environment answer. Where the context has no room for a reply, the rollout is truncated.
func (e *episode) turn(ctx context.Context, s rollout.Sampling) (Result, error) {
	e.turns++
	reply, err := e.session.Call(ctx, Call{Messages: e.history, Options: e.opts, Sampling: s})
	if errors.Is(err, ErrNoRoom) {
		e.out.Truncated = true
		return Result{}, nil
	}
	if err != nil {
		return Result{}, err
	}
	e.cut = reply.Finish == rollout.FinishLength
	res, err := e.env.Step(ctx, reply.Text)
	if err != nil {
		return Result{}, fmt.Errorf("step: %w", err)
	}
	observation, err := e.take(res)
	if err != nil {
		return Result{}, err
	}
	if !res.Terminated && e.turns == e.config.MaxTurns {
		e.out.Truncated = true
	}
	if !res.Terminated && !e.out.Truncated && len(res.Observation) == 0 {
		return Result{}, errors.New("the environment has not ended and says nothing to the model")
	}
	e.history = slices.Concat(e.history, []multimodal.Message{reply.Message}, observation)
	return res, nil
}

// take books what the environment answered, and gives what the model is to see of it.
func (e *episode) take(res Result) ([]multimodal.Message, error) {
	e.out.Reward += res.Reward
	e.out.Truncated = e.out.Truncated || res.Truncated
	if res.Score != nil {
		e.score = res.Score
	}
	for name, v := range res.Rewards {
		e.out.Rewards[name] += v
	}
	maps.Copy(e.out.Info, res.Info)
	return multimodal.Illustrate(res.Observation, res.Images...)
}
