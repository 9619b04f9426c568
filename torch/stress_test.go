package torch_test

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	. "github.com/molt-go/molt/torch"
	"golang.org/x/sys/unix"
)

func TestScopesOfManyGoroutinesKeepTheirGradModesAndLeakNothing(t *testing.T) { stress(t, 200_000) }

// stress runs about so many operators from 8 goroutines that yield, each in its own Do, under scopes of mixed grad modes. Every
// result must have its scope's mode, nothing may stay alive and memory must stay flat.
func stress(t *testing.T, total int) {
	t.Helper()
	const workers, perRound = 8, 14
	rounds := total / workers / perRound
	var half, end atomic.Int64 // resident memory after half of the work, and after all
	var wg sync.WaitGroup
	var arrived atomic.Int32
	for w := range workers {
		wg.Go(func() {
			err := Do(1, func(s *Scope) error {
				x := New(s, []float32{1, 2, 3}).RequireGrad(true)
				for i := range rounds {
					mode := (i*7 + w) % 3
					open := []func(func(*Scope) Tensor) Tensor{s.Grad, s.NoGrad, s.Block}[mode]
					open(func(s *Scope) Tensor {
						want := mode != 1
						y := s.Mul(x, x)
						for range 6 {
							runtime.Gosched()
							if y = s.AddScalar(y, 1); y.RequiresGrad() != want {
								t.Errorf("in a scope with grad=%v a result has %v", want, !want)
							}
							inner := s.NoGrad(func(s *Scope) Tensor { return s.Grad(func(s *Scope) Tensor { return s.Neg(x) }) })
							if !inner.RequiresGrad() {
								t.Error("grad inside no-grad does not record")
							}
						}
						if want {
							s.Backward([]Tensor{s.Sum(y)}, nil)
							if g := Values[float32](s.GradOf(x)); g[2] != 6 {
								t.Errorf("gradient of x² at 3 is %v", g[2])
							}
							x.ClearGrad()
						}
						return Tensor{}
					})
					if i == rounds/2 && arrived.Add(1) == workers {
						half.Store(resident(t))
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	end.Store(resident(t))
	if Live() != 0 {
		t.Errorf("%d handles alive", Live())
	}
	if grown := end.Load() - half.Load(); grown > 48<<20 {
		t.Errorf("memory grew by %d MB over the second half", grown>>20)
	}
}

func resident(t *testing.T) int64 {
	t.Helper()
	stat, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(stat))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// 200 goroutines that wait in system calls keep 200 threads; those that run operators stay as many as there are Dos.
func TestBlockedGoroutinesDoNotSpreadOperatorsOverThreads(t *testing.T) {
	var blocked, wg sync.WaitGroup
	var writers []*os.File
	for range 200 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		fd := int(r.Fd()) // makes it blocking: a read takes a thread
		writers = append(writers, w)
		blocked.Go(func() {
			defer r.Close()
			var b [1]byte
			if _, err := unix.Read(fd, b[:]); err != nil && err != io.EOF {
				t.Error(err)
			}
		})
	}
	var mutex sync.Mutex
	ran := map[string]bool{}
	before := busy(t)
	for range 4 {
		wg.Go(func() {
			err := Do(1, func(s *Scope) error {
				x := s.Randn(512, 512)
				for range 100 {
					s.Block(func(s *Scope) Tensor { s.SiLUMul(s.MatMul(x, x)); return Tensor{} })
					runtime.Gosched()
					mutex.Lock()
					ran[fmt.Sprint(unix.Gettid())] = true
					mutex.Unlock()
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(ran) != 4 {
		t.Errorf("%d threads called operators, want 4", len(ran))
	}
	for id, ticks := range busy(t) { // a pool's threads would work as long as their callers
		if worked := ticks - before[id]; worked > 5 && !ran[id] {
			t.Errorf("another thread worked for %d ms", 10*worked)
		}
	}
	for _, w := range writers {
		w.Close()
	}
	blocked.Wait()
}

// busy is the processor time of each thread in hundredths of a second.
func busy(t *testing.T) map[string]int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	ticks := map[string]int{}
	for _, task := range tasks {
		stat, err := os.ReadFile("/proc/self/task/" + task.Name() + "/stat")
		if err != nil {
			continue // the thread has ended
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])) // after the name: state, …
		user, err := strconv.Atoi(fields[11])
		if err != nil {
			t.Fatal(err)
		}
		ticks[task.Name()] = user
	}
	return ticks
}

// A tensor of another goroutine may be gone at any moment: using it then is an error, and its numbers are right until then.
func TestATensorThatAnotherGoroutineFreesIsRightOrAnError(t *testing.T) {
	var shared atomic.Pointer[Tensor]
	var right, gone int
	stop := make(chan bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(stop)
		do(t, func(s *Scope) {
			for range 20_000 {
				s.Block(func(s *Scope) Tensor {
					x := New(s, []float32{1, 2, 3})
					shared.Store(&x)
					runtime.Gosched()
					return Tensor{}
				})
			}
		})
	})
	do(t, func(s *Scope) {
		for running := true; running; {
			select {
			case <-stop:
				running = false
			default:
			}
			x := shared.Load()
			if x == nil {
				continue
			}
			var err error
			func() {
				defer Catch(&err)
				s.Block(func(s *Scope) Tensor {
					if v := s.Sum(s.Add(*x, *x)).Item(); v != 12 {
						t.Errorf("the sum of twice 1, 2, 3 is %v", v)
					}
					return Tensor{}
				})
			}()
			if err == nil {
				right++
			} else if gone++; !strings.Contains(err.Error(), "use of a tensor after its scope was closed") {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	if right == 0 || gone == 0 {
		t.Errorf("%d uses went well, %d came late: want some of each", right, gone)
	}
}
