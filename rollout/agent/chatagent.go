package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/molt-go/molt/rollout"
)

// ChatAgent is an agent that owns its loop. One value serves one rollout. It calls the model as often as it likes, also at the same time,
// with a client of OpenAI's or Anthropic's API; a call that is still running when Run returns does not count. An error, or a panic, means
// that the rollout failed and does not count; after a call for which the context has no room, though, it ends a rollout that was cut off.
type ChatAgent interface {
	Run(ctx context.Context, c *ChatContext) (Result, error)
}

// ChatContext is what a ChatAgent gets to know.
type ChatContext struct {
	Task    rollout.Task
	BaseURL string // of the API, as http://127.0.0.1:1234/v1; clients of Anthropic want it without /v1
	APIKey  string // good until Run returns
	Model   string // what to call the model; any other name does too
	ID      int64  // the rollout's
	Seed    uint64 // the rollout's
}

// NewChatRunner makes a Runner of an agent that calls the model at server. make is called once for each rollout.
func NewChatRunner(server *Server, make func() ChatAgent) (rollout.Runner, error) {
	if server == nil || make == nil {
		return nil, errors.New("agent: a chat agent needs a server and a function that makes it")
	}
	return rollout.RunnerFunc(func(ctx context.Context, spec rollout.Spec) (*rollout.Rollout, error) {
		v := server.open(ctx, spec)
		defer v.close()
		var res Result
		ended := false
		err := contain(func() (err error) {
			res, err = make().Run(v.ctx, &ChatContext{spec.Task, server.url + "/v1", v.token, modelName, spec.ID, spec.Seed})
			ended = true
			return err
		})
		if !ended {
			err = &rollout.Failure{Kind: "panic", Err: err}
		}
		samples := v.close()
		v.mu.Lock()
		defer v.mu.Unlock()
		var fault *rollout.Failure
		final := ctx.Err() != nil || errors.As(err, &fault) && fault.Kind == "grader" // also after a call that found no room
		switch {
		case v.dead != nil || err != nil && (final || !v.full):
			return nil, fmt.Errorf("agent: %w", errors.Join(v.dead, v.fault, err))
		case len(samples) == 0:
			return nil, &rollout.Failure{Kind: "no_reply",
				Err: errors.New("agent: it ended without a whole reply of the model: let it call the API at BaseURL with APIKey, for a " +
					"program OPENAI_BASE_URL with OPENAI_API_KEY, and read to the end")}
		}
		out := &rollout.Rollout{Spec: spec, Samples: samples, Reward: res.Reward, Score: res.Reward, Rewards: res.Rewards, Info: res.Info,
			Truncated: res.Truncated || v.full || v.cut}
		if res.Score != nil {
			out.Score = *res.Score
		}
		return out, nil
	}), nil
}
