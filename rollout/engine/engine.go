// Package engine generates: an embedded inference engine with continuous batching over a paged, prefix-shared cache, for thousands of
// requests at once. It knows no agents, no trainer and no text: stop strings come as a matcher with the request.
//
// Pure code decides (scheduler, tree, sample), one goroutine computes (Run, worker), and any number of goroutines ask (Generate,
// Load). Every sequence's tokens live in a tree of prefixes whose nodes hold pages of the cache: requests with one prompt compute it once,
// and the next turn of a conversation computes only what is new. A token is a function of the weights, the tokens before it and the
// request's seed, bit for bit: not of what else is in the batch, the order of requests, chunking, preemption or threads.
package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// Engine generates tokens with a model of its own. It is a rollout.Generator and takes new weights through Load; all methods may
// be called from many goroutines at once.
type Engine struct {
	config Config
	dtype  torch.DType
	limits limits
	wake   chan struct{} // there is something in the inbox

	sched  *scheduler // of the goroutine of Run, as is counts
	counts Stats

	mu      sync.Mutex
	threads int
	inbox   inbox
	stats   Stats
	running bool
	stopped error // why nothing is taken any more
}

// inbox is what others ask of the engine's goroutine between two steps.
type inbox struct {
	requests, cancels []*sequence
	loads             []*load
	threads           int // 0: as it is
}

type load struct {
	version int32
	fill    func(*torch.Scope, *model.Model) error
	done    chan error
}

// Stats are totals since the start and the state after the last step.
type Stats struct {
	Steps       int64
	Generated   int64 // tokens
	PrefillRows int64 // tokens of prompts, and of what was recomputed, that went through the model
	PrefixHits  int64 // tokens that did not have to, as they were in the cache or on their way into it
	Images      int64 // that went through the vision tower
	Preemptions int64 // sequences that gave way to older ones
	Running     int   // sequences
	Waiting     int   // sequences
	FreePages   int   // without the prefixes that are kept for later
	Pages       int
	Version     int32 // of the weights; −1 before the first
}

// New makes an engine for models of shape m, in dtype d, that computes on so many threads. It makes no tensors: Run does.
func New(cfg Config, m model.Config, d torch.DType, threads int) (*Engine, error) {
	l, err := cfg.limits(m, d)
	if err != nil {
		return nil, err
	}
	if threads < 1 {
		return nil, fmt.Errorf("engine: %d threads: must be at least 1", threads)
	}
	return &Engine{
		config: cfg, dtype: d, limits: l, threads: threads, wake: make(chan struct{}, 1),
		sched: newScheduler(l.pages, cfg.MaxRunning, cfg.StepTokens), stats: Stats{FreePages: l.pages, Pages: l.pages, Version: -1},
	}, nil
}

// Run makes the model and its cache and generates until ctx ends, and then returns nil. It serves nothing before the first Load.
// Requests that are not finished by then get an error that wraps rollout.ErrDead. An engine runs once.
func (e *Engine) Run(ctx context.Context) error {
	e.mu.Lock()
	err, threads := e.stopped, e.threads
	if err == nil && e.running {
		err = errors.New("engine: it runs already")
	}
	e.running = true
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if err = torch.Do(threads, func(s *torch.Scope) error { return e.loop(ctx, newWorker(s, e)) }); err != nil {
		err = fmt.Errorf("engine: %w", err)
	}
	e.stop(err)
	return err
}

func (e *Engine) loop(ctx context.Context, w *worker) error {
	for ctx.Err() == nil {
		e.receive(w)
		worked, err := w.step()
		if err != nil {
			return err
		}
		e.publish(w.version)
		if !worked {
			select {
			case <-e.wake:
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// receive does what the inbox asks.
func (e *Engine) receive(w *worker) {
	e.mu.Lock()
	in := e.inbox
	e.inbox = inbox{loads: in.loads} // until it is their turn: their callers may give up
	e.mu.Unlock()
	if in.threads > 0 {
		w.scope.SetThreads(in.threads)
	}
	for _, q := range in.requests {
		e.sched.add(q)
	}
	for _, q := range in.cancels {
		if q.finish == "" && q.err == nil {
			e.sched.drop(q)
			q.finish = rollout.FinishCancelled
			close(q.done)
		}
	}
	for range in.loads { // those that come meanwhile wait for the next step
		if l := e.nextLoad(); l != nil {
			w.load(l)
		}
	}
}

func (e *Engine) nextLoad() *load {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.inbox.loads) == 0 || !e.sched.refittable() {
		return nil
	}
	l := e.inbox.loads[0]
	e.inbox.loads = e.inbox.loads[1:]
	return l
}

func (e *Engine) publish(version int32) {
	s, c := e.counts, e.sched.counts
	s.PrefillRows, s.PrefixHits, s.Preemptions = c.prefill, c.hits, c.preemptions
	s.Running, s.Waiting = len(e.sched.running), len(e.sched.waiting)
	s.FreePages, s.Pages, s.Version = len(e.sched.free), e.sched.total, version
	e.mu.Lock()
	e.stats = s
	e.mu.Unlock()
}

// stop answers everyone who still waits.
func (e *Engine) stop(cause error) {
	if cause == nil {
		cause = errors.New("engine: it was stopped")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = fmt.Errorf("%w: %w", rollout.ErrDead, cause)
	for _, q := range slices.Concat(e.inbox.requests, e.sched.waiting, e.sched.running) {
		q.err = e.stopped
		close(q.done)
	}
	for _, l := range e.inbox.loads {
		l.done <- e.stopped
	}
	e.inbox = inbox{}
}
