package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Script is a Generator that says what it is told: to try an agent without a model, and in tests.
type Script struct {
	// Reply gives the token ids that follow r.IDs, the stop id included, and their log-probs; nil log-probs are 0.
	// It is called from many goroutines at once.
	Reply func(r Request) (ids []int32, logp []float32, err error)
	// Version gives the policy version of the next token; nil is version 0.
	Version func() int32
}

// Generate ends as an engine does: at a stop id, a stop string or MaxTokens. Where the script ends first, it has stopped.
func (s Script) Generate(ctx context.Context, r Request) (Completion, error) {
	c := Completion{Prefix: r.Prefix(), Finish: FinishStop}
	if err := context.Cause(ctx); err != nil {
		return Completion{}, err
	}
	if s.Reply == nil {
		return Completion{}, errors.New("rollout: the script has no Reply")
	}
	ids, logp, err := s.Reply(r)
	if err != nil {
		return Completion{}, err
	}
	if logp == nil {
		logp = make([]float32, len(ids))
	}
	if len(logp) != len(ids) {
		return Completion{}, fmt.Errorf("rollout: the script has %d tokens and %d log-probs", len(ids), len(logp))
	}
	for i, id := range ids {
		var version int32
		if s.Version != nil {
			version = s.Version()
		}
		g, err := Mint(id, version, logp[i], r.Sampling.Temperature, r.Sampling.Exact())
		if err != nil {
			return Completion{}, err
		}
		c.Tokens = append(c.Tokens, g)
		if r.OnToken != nil {
			r.OnToken(g)
		}
		stop := !r.Sampling.IgnoreEOS && slices.Contains(r.Sampling.StopIDs, id)
		if stop || r.Stop != nil && r.Stop.Next(id) {
			c.NumStop = 1
			if m, ok := r.Stop.(interface{ Stops() int }); ok && !stop {
				c.NumStop = m.Stops()
			}
			break
		}
		if i+1 == r.Sampling.MaxTokens {
			c.Finish = FinishLength
			break
		}
	}
	return c, nil
}
