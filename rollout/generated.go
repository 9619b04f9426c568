package rollout

import (
	"errors"
	"fmt"
	"math"
)

// Generated is one token that a policy generated. The zero value is not one: Trajectory.Append refuses it.
type Generated struct {
	id, version   int32
	logp, temp    float32
	exact, minted bool
}

// Mint makes a Generated. Generators call it, and nothing else may.
//
// logp is the log-prob under softmax(logits/temp); for a greedy token, temp 0, it is the one at temperature 1. exact
// says that the token was drawn from that softmax itself, with no truncation, penalty or bias: only such tokens are
// trained on. A NaN or infinite number, a negative one except logp, and exact at temperature 0 are errors.
func Mint(id, version int32, logp, temp float32, exact bool) (Generated, error) {
	switch {
	case id < 0:
		return Generated{}, fmt.Errorf("rollout: generated token id %d is negative", id)
	case version < 0:
		return Generated{}, fmt.Errorf("rollout: token %d: policy version %d is negative", id, version)
	case !finite(float64(logp)):
		return Generated{}, fmt.Errorf("rollout: token %d of policy version %d: log-prob is %v", id, version, logp)
	case !finite(float64(temp)) || temp < 0:
		return Generated{}, fmt.Errorf("rollout: token %d of policy version %d: temperature is %v", id, version, temp)
	case exact && temp == 0:
		return Generated{}, errors.New("rollout: a greedy token (temperature 0) is not an exact sample")
	}
	return Generated{id: id, version: version, logp: logp, temp: temp, exact: exact, minted: true}, nil
}

// ID is the token id.
func (g Generated) ID() int32 { return g.id }

// Version is the version of the policy that generated the token.
func (g Generated) Version() int32 { return g.version }

// LogP is the behaviour log-prob, in nats.
func (g Generated) LogP() float32 { return g.logp }

// Temp is the temperature that the token was sampled at, 0 for greedy.
func (g Generated) Temp() float32 { return g.temp }

// Exact reports whether the token was drawn from softmax(logits/Temp) itself, and so may be trained on.
func (g Generated) Exact() bool { return g.exact }

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
