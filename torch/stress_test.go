package torch_test

import (
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	ran := map[int]bool{}
	var before int
	var warm, measured sync.WaitGroup
	warm.Add(4)
	measured.Add(1)
	for range 4 {
		wg.Go(func() {
			err := Do(1, func(s *Scope) error {
				x := s.Randn(256, 256)
				warm.Done() // this thread is there, and those of the blocked
				measured.Wait()
				for range 50 {
					s.Block(func(s *Scope) Tensor { s.SiLUMul(s.MatMul(x, x)); return Tensor{} })
					runtime.Gosched()
					mutex.Lock()
					ran[unix.Gettid()] = true
					mutex.Unlock()
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	warm.Wait()
	for started := threads(t); ; time.Sleep(50 * time.Millisecond) { // until no more threads begin to wait
		if before = threads(t); before == started && before > 200 {
			break
		}
		started = before
	}
	measured.Done()
	wg.Wait()
	if len(ran) != 4 {
		t.Errorf("%d threads ran operators, want 4", len(ran))
	}
	// Go's runtime may start one for itself; a pool for each operator's thread would make four.
	if grown := threads(t) - before; grown > 2 {
		t.Errorf("operators started %d threads", grown)
	}
	for _, w := range writers {
		w.Close()
	}
	blocked.Wait()
}

func threads(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
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
