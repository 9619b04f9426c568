package rollout

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// oneTurn is an agent that asks the generator once.
func oneTurn(gen Generator, reward func(Spec) float64) Runner {
	return RunnerFunc(func(ctx context.Context, s Spec) (*Rollout, error) {
		var tr Trajectory
		if err := tr.Context([]int32{1, 2}); err != nil {
			return nil, err
		}
		c, err := gen.Generate(ctx, tr.Request(s.Sampling, nil))
		if err != nil {
			return nil, err
		}
		if err := tr.Append(c); err != nil {
			return nil, err
		}
		tr.Seal()
		r := reward(s)
		return &Rollout{Samples: []*Trajectory{&tr}, Reward: r, Score: r}, nil
	})
}

// hello says one token.
var hello = Script{Reply: func(Request) ([]int32, []float32, error) { return []int32{3}, nil, nil }}

func collect(t *testing.T, p Plan, r Runner) *Collector {
	t.Helper()
	c, err := Collect(t.Context(), p, r)
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// Case S3 at full length: 10,000 rollouts of random latency, with and without failures. No trained token is older
// than the limit, batches come in order, the concurrency limit holds, and every prompt is trained equally often but
// for the groups lost.
func TestTenThousandRollouts(t *testing.T) {
	const tasks, epochs, samples = 125, 20, 4
	for limit := range 4 {
		for _, failures := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				p := testPlan(tasks, 5, samples, limit)
				p.Config.Concurrency, p.Config.Timeout = 30, 5*time.Second
				p.Data.Epochs, p.Data.Shuffle, p.Greedy = epochs, true, limit%2 == 1
				if failures {
					p.Config.MaxFailed, p.Config.MaxRefill = 10, 100
				}
				var version, running, started atomic.Int32
				lost := map[int64]bool{}
				p.OnEvent = func(e Event) {
					if e.Kind == Failed {
						lost[e.Spec.Group] = true
					}
				}
				gen := Script{Version: version.Load, Reply: func(r Request) ([]int32, []float32, error) {
					return []int32{3, 4}, nil, nil
				}}
				agent := oneTurn(gen, func(Spec) float64 { return 1 })
				c := collect(t, p, RunnerFunc(func(ctx context.Context, s Spec) (*Rollout, error) {
					started.Add(1)
					if n := running.Add(1); n > 30 {
						t.Errorf("%d run at once", n)
					}
					defer running.Add(-1)
					rng := rand.New(rand.NewPCG(s.Seed, 0))
					wait := time.Duration(rng.ExpFloat64() * float64(time.Second) / 4)
					switch kind := rng.IntN(100); {
					case failures && kind == 0:
						panic("agent")
					case failures && kind == 1:
						return nil, errors.New("agent")
					case failures && kind == 2:
						wait = time.Minute
					default:
						wait = min(wait, 4*time.Second)
					}
					select {
					case <-time.After(wait):
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					return agent.Run(ctx, s)
				}))
				trained := map[string]int{}
				var groups, numFailed, next int64
				for {
					b, err := c.Next(t.Context())
					if errors.Is(err, ErrEndOfData) {
						break
					}
					must(t, err)
					for i, g := range b.Groups {
						if len(g) != samples || p.Greedy && b.Greedy[i].Group != g[0].Group || len(b.Greedy) > 0 != p.Greedy {
							t.Fatalf("group of %d, greedy rollouts %v", len(g), b.Greedy)
						}
						if place := g[0].Place; place/5 != next {
							t.Fatalf("place %d in batch %d", place, next)
						}
						trained[g[0].Task.ID]++
						for _, r := range g {
							for _, v := range r.Samples[0].Tokens().Versions[2:] {
								if age := version.Load() - v; age < 0 || age > int32(limit) {
									t.Fatalf("age %d at limit %d", age, limit)
								}
							}
						}
					}
					next++
					groups += int64(len(b.Groups))
					numFailed += int64(b.Failed)
					time.Sleep(300 * time.Millisecond) // the optimizer step
					must(t, c.SetVersion(version.Add(1)))
				}
				if groups+int64(len(lost)) != tasks*epochs || failures == (len(lost) == 0) || started.Load() < 9500 {
					t.Errorf("%d groups trained, %d lost, %d rollouts started", groups, len(lost), started.Load())
				}
				missed := 0
				for i := range tasks {
					missed += epochs - trained[fmt.Sprint(i)]
				}
				if missed != len(lost) || !failures && numFailed != 0 {
					t.Errorf("%d trainings missed, %d groups lost, %d failures counted", missed, len(lost), numFailed)
				}
			})
		}
	}
}

// What a synchronous batch holds depends on which rollouts fail or are filtered, never on which ends first.
func TestASynchronousBatchDoesNotDependOnTiming(t *testing.T) {
	var want []Batch
	for timing := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			p := testPlan(200, 4, 2, 0)
			p.Config.FilterEqual, p.Config.MaxFailed, p.Config.MaxRefill, p.Config.Concurrency = true, 10, 50, 3
			agent := oneTurn(hello, func(s Spec) float64 { return float64(s.Seed % 2) })
			c := collect(t, p, RunnerFunc(func(ctx context.Context, s Spec) (*Rollout, error) {
				time.Sleep(time.Duration(MixSeed(timing, s.Seed) % uint64(time.Second)))
				if s.ID%7 == 0 {
					return nil, errors.New("boom")
				}
				return agent.Run(ctx, s)
			}))
			var got []Batch
			for version := range int32(5) {
				b, err := c.Next(t.Context())
				must(t, err)
				for _, g := range b.Groups {
					for _, r := range g {
						r.Samples, r.Place = nil, 0
					}
				}
				got = append(got, b)
				must(t, c.SetVersion(version+1))
			}
			if want == nil {
				want = got
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCancelStopsCleanlyWithTheStateKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := testPlan(100, 2, 4, 1)
		c, err := Collect(ctx, p, RunnerFunc(func(ctx context.Context, _ Spec) (*Rollout, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}))
		must(t, err)
		go func() {
			time.Sleep(time.Second)
			cancel()
		}()
		if _, err := c.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("next: %v", err)
		}
		c.Close()
		if s := c.State(); len(s.InFlight) != 4 || len(s.Out) > 0 && !cmp.Equal(s.Out[0], Tally{}) {
			t.Errorf("a cancelled rollout is not a failed one: %+v", s)
		}
	})
}

func TestAnAgentThatIgnoresItsContextHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		p := testPlan(100, 1, 1, 0)
		p.Config.Timeout, p.Config.MaxFailed = time.Second, 1
		agent := oneTurn(hello, func(Spec) float64 { return 0 })
		c, err := Collect(t.Context(), p, RunnerFunc(func(ctx context.Context, s Spec) (*Rollout, error) {
			if s.Group == 0 {
				<-release
			}
			return agent.Run(ctx, s)
		}))
		must(t, err)
		b, err := c.Next(t.Context())
		must(t, err)
		if b.Groups[0][0].Group != 1 || b.Failed != 1 {
			t.Errorf("batch %+v", b)
		}
		c.Close()
	})
}

func TestWhatAnAgentGetsWrongIsAFailureWithItsReason(t *testing.T) {
	sealed := func() *Trajectory {
		tr := &Trajectory{}
		must(t, tr.Context([]int32{1}))
		tr.Seal()
		return tr
	}
	for want, agent := range map[string]func(context.Context) (*Rollout, error){
		"panicked: ouch":            func(context.Context) (*Rollout, error) { panic("ouch") },
		"neither a rollout nor":     func(context.Context) (*Rollout, error) { return nil, nil },
		"no sample":                 func(context.Context) (*Rollout, error) { return &Rollout{}, nil },
		"sample 0 of 1 is empty or": func(context.Context) (*Rollout, error) { return &Rollout{Samples: []*Trajectory{{}}}, nil },
		"reward NaN": func(context.Context) (*Rollout, error) {
			zero := 0.0
			return &Rollout{Samples: []*Trajectory{sealed()}, Reward: zero / zero}, nil
		},
		"timed out after 10ms": func(ctx context.Context) (*Rollout, error) { <-ctx.Done(); return nil, ctx.Err() },
	} {
		run := RunnerFunc(func(ctx context.Context, _ Spec) (*Rollout, error) { return agent(ctx) })
		_, err := attempt(t.Context(), run, Spec{}, func() (Task, error) { return Task{}, nil }, 10*time.Millisecond)
		wantError(t, err, want)
	}
	_, err := attempt(t.Context(), RunnerFunc(nil), Spec{}, func() (Task, error) { return Task{}, errors.New("bad line") }, time.Second)
	wantError(t, err, "task: bad line")
}

func TestADeadEngineEndsTheRunAtOnce(t *testing.T) {
	p := testPlan(100, 2, 4, 0)
	c := collect(t, p, RunnerFunc(func(context.Context, Spec) (*Rollout, error) {
		return nil, fmt.Errorf("%w: engine gone", ErrDead)
	}))
	_, err := c.Next(t.Context())
	if !errors.Is(err, ErrDead) {
		t.Error(err)
	}
}

func TestNextWithoutAStepIsAnErrorNotAHang(t *testing.T) {
	p := testPlan(100, 1, 1, 0)
	agent := oneTurn(hello, func(Spec) float64 { return 0 })
	c := collect(t, p, agent)
	_, err := c.Next(t.Context())
	must(t, err)
	_, err = c.Next(t.Context())
	wantError(t, err, "before SetVersion")
}

func TestOneFailureEndsTheOthersOfItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cancelled atomic.Int32
		p := testPlan(100, 1, 4, 0)
		agent := oneTurn(hello, func(Spec) float64 { return 0 })
		c := collect(t, p, RunnerFunc(func(ctx context.Context, s Spec) (*Rollout, error) {
			if s.Group == 0 && s.ID == 3 {
				return nil, errors.New("boom")
			} else if s.Group == 0 {
				<-ctx.Done()
				cancelled.Add(1)
				return nil, ctx.Err()
			}
			return agent.Run(ctx, s)
		}))
		b, err := c.Next(t.Context())
		must(t, err)
		synctest.Wait()
		if cancelled.Load() != 3 || b.Failed != 1 {
			t.Errorf("%d cancelled, %d failed", cancelled.Load(), b.Failed)
		}
	})
}

// Cases A8 and M4: evaluation keeps what did not fail, in order, and touches nothing of a run.
func TestEvaluationIsInOrderAndCountsFailures(t *testing.T) {
	var most, running atomic.Int32
	agent := oneTurn(hello, func(s Spec) float64 { return float64(s.ID) })
	run := RunnerFunc(func(ctx context.Context, s Spec) (*Rollout, error) {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		if s.Task.ID == "1" {
			return nil, errors.New("boom")
		}
		return agent.Run(ctx, s)
	})
	c := DefaultConfig()
	c.Concurrency = 3
	e, err := Evaluate(t.Context(), run, numbered(4), Sampling{}, 1, c)
	must(t, err)
	if score, n := e.Score(); n != 3 || score != (0.0+2+3)/3 || e.Errs[1] == nil || e.Rollouts[3].Task.ID != "3" {
		t.Errorf("score %v of %d, errors %v", score, n, e.Errs)
	}
	if most.Load() > 3 {
		t.Errorf("%d at once", most.Load())
	}
	dead := RunnerFunc(func(context.Context, Spec) (*Rollout, error) { return nil, ErrDead })
	if _, err := Evaluate(t.Context(), dead, numbered(50), Sampling{}, 1, c); !errors.Is(err, ErrDead) {
		t.Error(err)
	}
}

func TestScriptEndsAsAnEngineDoes(t *testing.T) {
	s := Script{Reply: func(Request) ([]int32, []float32, error) {
		return []int32{10, 11, 2, 12}, []float32{-1, -2, -3, -4}, nil
	}}
	for _, c := range []struct {
		s       Sampling
		ids     []int32
		finish  Finish
		numStop int
	}{
		{Sampling{StopIDs: []int32{2}}, []int32{10, 11, 2}, FinishStop, 1}, // case T6
		{Sampling{StopIDs: []int32{2}, IgnoreEOS: true}, []int32{10, 11, 2, 12}, FinishStop, 0},
		{Sampling{StopIDs: []int32{2}, MaxTokens: 2}, []int32{10, 11}, FinishLength, 0},
		{Sampling{StopIDs: []int32{2}, MaxTokens: 3}, []int32{10, 11, 2}, FinishStop, 1},
	} {
		var heard []int32
		out, err := s.Generate(t.Context(), Request{Sampling: c.s, OnToken: func(g Generated) { heard = append(heard, g.ID()) }})
		must(t, err)
		if !slices.Equal(heard, c.ids) || len(out.Tokens) != len(c.ids) || out.Finish != c.finish || out.NumStop != c.numStop {
			t.Errorf("%+v: %v, %s, %d", c.s, heard, out.Finish, out.NumStop)
		}
	}
}
