package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// worker is the engine's side of the tensors: it lives on the goroutine of Run.
type worker struct {
	engine  *Engine
	scope   *torch.Scope
	model   *model.Model
	cache   *model.Cache
	version int32                    // of the weights; negative before the first
	seen    map[[32]byte][][]float32 // what the vision tower made of the last step's images, by digest
}

func newWorker(s *torch.Scope, e *Engine) *worker {
	m := model.New(s, e.limits.Config, e.dtype)
	slots := e.limits.pages * pageSize
	cache := m.NewCache(s, slots)
	e.sched.routes = newRoutes(e.limits.MoE, slots)
	return &worker{engine: e, scope: s, model: m, cache: cache, version: -1, seen: map[[32]byte][][]float32{}}
}

// load puts new weights in place. Where they do not fit the old ones still serve.
func (w *worker) load(l *load) {
	err := errors.New("the engine failed while it took the weights")
	defer func() {
		if err != nil {
			err = fmt.Errorf("engine: weights of version %d: %w", l.version, err)
		}
		l.done <- err
	}()
	if err = l.fill(w.scope, w.model); err == nil {
		w.version = l.version
		clear(w.seen)
		w.engine.sched.refit(w.engine.config.RefitKV == RefitKeep)
	}
}

// step runs one step and reports whether there was anything to do.
func (w *worker) step() (bool, error) {
	if w.version < 0 {
		return false, nil
	}
	e := w.engine
	p := e.sched.step()
	if p.batch.Len() == 0 {
		return false, nil
	}
	var drawn []drawn
	var err error
	w.scope.NoGrad(func(s *torch.Scope) torch.Tensor {
		p.batch.Routing = &model.Routing{}
		var seen []model.Seen
		var out model.Output
		if seen, err = w.see(s, p.images); err == nil {
			out, err = w.model.Hidden(s, &p.batch, w.cache, seen...)
		}
		if err == nil && len(p.draws) > 0 {
			drawn = w.draw(s, out.Hidden, p.draws)
		}
		return torch.Tensor{}
	})
	if err != nil {
		return false, err
	}
	e.sched.commit(p)
	e.sched.routes.put(p.batch.Slots, p.batch.Routing.Experts)
	e.counts.Steps++
	for i, d := range p.draws {
		e.counts.Generated++
		if d.seq.accept(drawn[i], w.version) {
			e.sched.drop(d.seq)
			close(d.seq.done)
		} else {
			e.sched.extend(d.seq, drawn[i].id)
		}
	}
	return true, nil
}

// drawn is a sampled token; id -1: the logits are no numbers to draw by.
type drawn struct {
	id   int32
	logp float32
	top  []rollout.TopLogP
}

// draw samples the next token of each sequence from the hidden states h [rows, hidden].
func (w *worker) draw(s *torch.Scope, h torch.Tensor, draws []draw) []drawn {
	rows := make([]int32, len(draws))
	asked, u := make([]rollout.Sampling, len(draws)), make([]float64, len(draws))
	for i, d := range draws {
		rows[i], asked[i] = d.row, d.seq.sampling
		u[i] = uniform(d.seq.sampling.Seed, len(d.seq.generated))
	}
	logits := w.model.Logits(s, s.IndexSelect(h, 0, torch.New(s, rows)))
	return sample(s, logits, asked, u, func(i int) []int32 { return draws[i].seq.ids })
}

// accept takes q's next token and reports whether q is finished with it.
func (q *sequence) accept(t drawn, version int32) bool {
	if t.id < 0 {
		q.err = fmt.Errorf("engine: token %d of a request: the logits are NaN or infinite; weights of version %d",
			len(q.generated), version)
		return true
	}
	g, err := rollout.Mint(t.id, version, t.logp, q.sampling.Temperature, q.sampling.Exact())
	if err != nil {
		q.err = fmt.Errorf("engine: token %d of a request: %w", len(q.generated), err)
		return true
	}
	q.generated = append(q.generated, g)
	if q.sampling.TopLogP > 0 {
		q.top = append(q.top, t.top)
	}
	if q.wake != nil {
		q.mu.Lock()
		q.fresh = append(q.fresh, g)
		q.mu.Unlock()
		signal(q.wake)
	}
	stopped, err := q.matches(t.id)
	switch {
	case err != nil:
		q.err = err
	case slices.Contains(q.stops, t.id):
		q.finish, q.numStop = rollout.FinishStop, 1
	case stopped:
		q.finish, q.numStop = rollout.FinishStop, 1
		if m, ok := q.matcher.(interface{ Stops() int }); ok {
			q.numStop = m.Stops()
		}
	case len(q.generated) == q.max:
		q.finish = rollout.FinishLength
	default:
		return false
	}
	return true
}

// matches asks the request's own matcher, whose panic is the request's error.
func (q *sequence) matches(id int32) (stop bool, err error) {
	if q.matcher == nil {
		return false, nil
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("engine: the request's stop matcher panicked: %v", r)
		}
	}()
	return q.matcher.Next(id), nil
}
