package torch_test

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	. "github.com/molt-go/molt/torch"
	"golang.org/x/sys/unix"
)

// Every test that makes tensors ends with none alive.
func TestMain(m *testing.M) {
	code := m.Run()
	if n := Live(); n != 0 {
		println("tensors still alive after all tests:", n)
		code = 1
	}
	os.Exit(code)
}

func do(t *testing.T, f func(s *Scope)) {
	t.Helper()
	if err := Do(1, func(s *Scope) error { f(s); return nil }); err != nil {
		t.Fatal(err)
	}
}

// fails runs f and checks that Do returns an operator error that says want.
func fails(t *testing.T, want string, f func(s *Scope)) {
	t.Helper()
	err := Do(1, func(s *Scope) error { f(s); return nil })
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
		t.Errorf("error %q (%T), want one that says %q", err, err, want)
	}
}

func TestBlockFreesWhatItMadeAndMovesItsResult(t *testing.T) {
	do(t, func(s *Scope) {
		before := Live()
		y := s.Block(func(s *Scope) Tensor {
			x := New(s, []float32{1, 2})
			for range 10 {
				x = s.Add(x, x)
			}
			return x
		})
		if Live() != before+1 {
			t.Errorf("%d tensors alive after the block, want its result alone", Live()-before)
		}
		if got := Values[float32](y); got[1] != 2048 {
			t.Error("result", got)
		}
	})
	if Live() != 0 {
		t.Error(Live(), "tensors alive after Do")
	}
}

func TestBlockFreesOnPanic(t *testing.T) {
	fails(t, "mat1 and mat2", func(s *Scope) {
		s.Block(func(s *Scope) Tensor {
			a := New(s, []float32{1, 2}, 1, 2)
			return s.MatMul(a, a)
		})
	})
	if Live() != 0 {
		t.Error(Live(), "tensors alive after a failed Do")
	}
}

func TestErrorNamesOperatorAndShapes(t *testing.T) {
	err := Do(1, func(s *Scope) error {
		s.Add(New(s, []float32{1, 2}), New(s, []float32{1, 2, 3}))
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "aten::add.Tensor(float32[2], float32[3]): The size of tensor a (2) must match") {
		t.Error(err)
	}
}

func TestMisuseOfScopesIsAnErrorThatNamesTheFix(t *testing.T) {
	fails(t, "use the child's scope inside the block", func(s *Scope) {
		x := New(s, []float32{1})
		s.Block(func(*Scope) Tensor { return s.Add(x, x) })
	})
	var stale *Scope
	var old Tensor
	do(t, func(s *Scope) {
		stale = s
		old = New(s, []float32{1})
	})
	fails(t, "use of a scope after its scope was closed", func(s *Scope) { New(stale, []float32{1}) })
	fails(t, "use of a tensor after its scope was closed", func(s *Scope) { s.Add(old, old) })
	fails(t, "no such tensor", func(s *Scope) { Values[float32](Tensor{}) })
	fails(t, "scope used on another thread", func(s *Scope) {
		errs := make(chan any)
		go func() {
			defer func() { errs <- recover() }()
			New(s, []float32{1})
		}()
		if e := <-errs; e != nil {
			panic(e)
		}
	})
}

func TestGradModeIsTheScopesWhateverTheThreadDidBefore(t *testing.T) {
	do(t, func(s *Scope) {
		w := New(s, []float32{1}).RequireGrad(true)
		if s.NoGrad(func(s *Scope) Tensor { return s.Mul(w, w) }).RequiresGrad() {
			t.Error("a result of NoGrad requires grad")
		}
		nested := s.NoGrad(func(s *Scope) Tensor {
			return s.Block(func(s *Scope) Tensor { return s.Grad(func(s *Scope) Tensor { return s.Mul(w, w) }) })
		})
		if !nested.RequiresGrad() {
			t.Error("a result of Grad inside NoGrad does not require grad")
		}
		if !s.Mul(w, w).RequiresGrad() {
			t.Error("the root scope is not in grad mode again")
		}
	})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 200 {
				do(t, func(s *Scope) {
					w := New(s, []float32{1}).RequireGrad(true)
					grad := i%2 == 0
					block := s.NoGrad
					if grad {
						block = s.Grad
					}
					if got := block(func(s *Scope) Tensor { return s.Mul(w, w) }).RequiresGrad(); got != grad {
						t.Errorf("in a scope with grad=%v a result has RequiresGrad %v", grad, got)
					}
				})
			}
		})
	}
	wg.Wait()
}

func TestInPlaceReturnsItsTargetsHandle(t *testing.T) {
	do(t, func(s *Scope) {
		x := New(s, []float32{1, 2})
		before := Live()
		y := s.NoGrad(func(s *Scope) Tensor { return s.Add_(x, x) })
		if y != x || Live() != before {
			t.Errorf("in-place result %v is not its target %v, %d new tensors", y, x, Live()-before)
		}
	})
}

func TestNumbersSurviveTheRoundTripInEveryType(t *testing.T) {
	do(t, func(s *Scope) {
		for d, got := range map[DType][]float64{
			Float32:  Values[float64](New(s, []float32{1.5, -2})),
			Float64:  Values[float64](New(s, []float64{1.5, -2})),
			BFloat16: Values[float64](s.To(New(s, []float64{1.5, -2}), BFloat16)),
			Float16:  Values[float64](s.To(New(s, []float64{1.5, -2}), Float16)),
		} {
			if diff := cmp.Diff([]float64{1.5, -2}, got); diff != "" {
				t.Error(d, diff)
			}
		}
		if diff := cmp.Diff([]int32{7, -8}, Values[int32](New(s, []int64{7, -8}))); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]bool{true, false}, Values[bool](New(s, []uint8{2, 0}))); diff != "" {
			t.Error(diff)
		}
		x := s.Zeros(BFloat16, 2, 2)
		Write(x, []float32{1, 2, 3, 4})
		if diff := cmp.Diff([]float32{1, 2, 3, 4}, Values[float32](x)); diff != "" || x.String() != "bfloat16[2,2]" {
			t.Error(x, diff)
		}
	})
	fails(t, "3 numbers do not fill the shape [2]", func(s *Scope) { New(s, []float32{1, 2, 3}, 2) })
	fails(t, "the slice holds 1 numbers, the tensor 2", func(s *Scope) { Write(s.Zeros(Float32, 2), []float32{1}) })
}

func TestAllocatorReusesLargeBlocks(t *testing.T) {
	do(t, func(s *Scope) {
		s.Block(func(s *Scope) Tensor { s.Zeros(Float32, 1<<20); return Tensor{} })
		first := Memory()
		for range 50 {
			s.Block(func(s *Scope) Tensor { s.Zeros(Float32, 1<<20); return Tensor{} })
		}
		if m := Memory(); m != first {
			t.Errorf("memory went from %+v to %+v over equal blocks", first, m)
		}
	})
}

func approx(tol float64) cmp.Option { return cmpopts.EquateApprox(tol, tol) }

// A Do of one core keeps to it when another takes two after it has begun.
func TestDoKeepsToItsShareOfTheCores(t *testing.T) {
	do(t, func(s *Scope) {
		begun, taken, done := make(chan bool), make(chan bool), make(chan error)
		go func() {
			done <- Do(1, func(s *Scope) error {
				close(begun)
				<-taken
				x := s.Randn(768, 768)
				s.SiLUMul(x) // the first parallel work on this thread
				start, begin := cpuTime(t), time.Now()
				for range 12 {
					s.Block(func(s *Scope) Tensor { s.MatMul(x, x); return Tensor{} })
				}
				if cores := (cpuTime(t) - start).Seconds() / time.Since(begin).Seconds(); cores > 1.3 {
					t.Errorf("a Do of one core used %.2f", cores)
				}
				return nil
			})
		}()
		<-begun
		s.SetThreads(2)
		close(taken)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestAnAllocationThatFailsLeavesTheAllocatorAsItWas(t *testing.T) {
	cached := func() int64 {
		do(t, func(s *Scope) {
			for n := range 40 {
				s.Block(func(s *Scope) Tensor { return s.Zeros(Float32, 1<<18+n<<16) })
			}
		})
		return Memory().Cached
	}
	cached()
	before := cached()
	fails(t, "memory", func(s *Scope) { s.Empty(Float32, 1<<50) })
	if after := cached(); after > before+before/8 {
		t.Errorf("%d bytes kept before, %d after", before, after)
	}
}

func TestTensorsOfManyDimensionsAreTensors(t *testing.T) {
	do(t, func(s *Scope) {
		if got := s.Zeros(Float32, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1).Shape(); len(got) != 10 || got[2] != 2 {
			t.Error(got)
		}
	})
}
