package molt

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

const scoreFormat = `  {"ids": [9, 17, 3]}         {"logprobs": [-11.4, -4.7], "entropy": [3.6, 4.4, 2.9], "top": [[[id, logprob], ..], ..]}
  {"messages": [..], ..}      as in molt tokens
  "images": ["a.png"]         beside messages, for their images without a source of their own; beside ids, whose placeholders are expanded

logprobs has an entry less than the line has tokens: entry t is the log-prob of token t+1 given those up to t, at temperature 1. entropy
and top, which only -top gives, have an entry for each token: position t predicts token t+1. top lists the likeliest tokens, best first.
All are in nats. What a line gives does not depend on the lines beside it.`

const (
	maxTop    = 255  // beside the token that comes next, what molt::lm_logp takes
	batchRows = 2048 // tokens from which on a batch takes no further line
	topRows   = 512  // rows of logits that are held at once to find the likeliest
)

// scorer scores lines, several in a batch, on a goroutine of its own.
type scorer struct {
	options
	jobs chan *job
}

// job is the ids of a line and what becomes of them.
type job struct {
	ids      []int32
	images   []rollout.Image
	LogProbs []number   `json:"logprobs"` // [T-1]
	Entropy  []number   `json:"entropy"`  // [T]
	Top      [][][2]any `json:"top,omitempty"`
	done     chan struct{}
}

func scoreVerb(ctx context.Context, o options, serve server) error {
	shape, err := model.PeekConfig(o.model)
	if err != nil {
		return err
	}
	o.top = min(o.top, shape.Vocab)
	text, c := openText(o.model, shape.Vision), &scorer{options: o, jobs: make(chan *job)}
	return together(ctx, c.run, func(ctx context.Context) error {
		return serve(ctx, maxParallel, func(ctx context.Context, line []byte) (any, error) {
			var p prompt
			if err := p.decode(line, map[string]any{"images": &p.images}); err != nil {
				return nil, err
			}
			r, err := text.request(p, shape.Vocab, shape.Context)
			if err != nil {
				return nil, err
			}
			j := &job{ids: r.IDs, images: r.Images, LogProbs: []number{}, done: make(chan struct{})}
			select {
			case c.jobs <- j:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			select {
			case <-j.done:
				return j, nil
			case <-ctx.Done(): // or the scorer has failed
				return nil, context.Cause(ctx)
			}
		})
	})
}

// run loads the model and scores until ctx ends.
func (c *scorer) run(ctx context.Context) error {
	return torch.Do(c.threads, func(s *torch.Scope) error {
		m, err := model.Load(s, c.model, c.dtype)
		for err == nil {
			batch := c.next(ctx)
			if batch == nil {
				return nil
			}
			s.NoGrad(func(s *torch.Scope) torch.Tensor {
				err = c.score(s, m, batch)
				return torch.Tensor{}
			})
		}
		return err
	})
}

// next waits for a job and takes with it those that wait too, as far as a batch goes; nil when ctx ends.
func (c *scorer) next(ctx context.Context) (batch []*job) {
	var j *job
	select {
	case j = <-c.jobs:
	case <-ctx.Done():
		return nil
	}
	for rows := 0; ; {
		batch, rows = append(batch, j), rows+len(j.ids)
		if rows >= batchRows {
			return batch
		}
		select {
		case j = <-c.jobs:
		default:
			return batch
		}
	}
}

func (c *scorer) score(s *torch.Scope, m *model.Model, batch []*job) error {
	var b model.Batch
	var seen []model.Seen
	for _, j := range batch {
		var placed []model.Placed
		for _, image := range j.images {
			x, err := m.See(s, image.Pixels, [][3]int{image.Grid})
			if err != nil {
				return err
			}
			seen, placed = append(seen, x), append(placed, model.Placed{Start: image.Start, Len: image.Len, Grid: image.Grid})
		}
		first := b.AddSequence(j.ids, int32(b.Len()), int32(len(j.ids)))
		if len(placed) > 0 {
			b.Place(m.Vision.Merge, first, 0, len(j.ids), placed)
		}
	}
	out, err := m.Hidden(s, &b, nil, seen...)
	if err != nil {
		return err
	}
	// A row asks for the token that comes next, whatever that is behind a sequence's last, and for the likeliest.
	n, k := b.Len(), 1+c.top
	ids, best := make([]int32, n*k), c.likeliest(s, m, out.Hidden)
	for row := range n {
		ids[row*k] = b.IDs[(row+1)%n]
		copy(ids[row*k+1:(row+1)*k], best[row*c.top:])
	}
	logpT, entropyT := m.LogP(s, out.Hidden, ids, slices.Repeat([]float32{1}, n))
	logp, entropy := torch.Values[float32](logpT), torch.Values[float32](entropyT)
	row := 0
	for _, j := range batch {
		for range j.ids {
			j.LogProbs = append(j.LogProbs, number(logp[row*k]))
			j.Entropy = append(j.Entropy, number(entropy[row]))
			if c.top > 0 {
				top := make([][2]any, c.top)
				for i := range top {
					top[i] = [2]any{ids[row*k+1+i], number(logp[row*k+1+i])}
				}
				j.Top = append(j.Top, top)
			}
			row++
		}
		j.LogProbs = j.LogProbs[:len(j.ids)-1]
		close(j.done)
	}
	return nil
}

// likeliest gives the ids of the c.top largest logits of each row of h, largest first.
func (c *scorer) likeliest(s *torch.Scope, m *model.Model, h torch.Tensor) []int32 {
	n := h.Dim(0)
	best := make([]int32, n*c.top)
	for from := 0; c.top > 0 && from < n; from += topRows {
		s.Block(func(s *torch.Scope) torch.Tensor {
			logits := m.Logits(s, s.Narrow(h, 0, from, min(topRows, n-from)))
			copy(best[from*c.top:], torch.Values[int32](s.Call("aten::topk", logits, c.top, -1, true, true)[1]))
			return torch.Tensor{}
		})
	}
	return best
}

// number is written with 9 significant digits, enough for a float32 to survive.
type number float32

func (x number) MarshalJSON() ([]byte, error) {
	if f := float64(x); math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, fmt.Errorf("a log-prob or entropy is %v", f)
	}
	return strconv.AppendFloat(nil, float64(x), 'g', 9, 32), nil
}
