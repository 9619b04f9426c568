package gotorch

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
	"github.com/wangkuiyi/gotorch"
	"github.com/wangkuiyi/gotorch/nn"
)

func do(t *testing.T, f func(s *torch.Scope)) {
	t.Helper()
	if err := torch.Do(1, func(s *torch.Scope) error { f(s); return nil }); err != nil {
		t.Fatal(err)
	}
	if n := torch.Live(); n != 0 {
		t.Error(n, "handles alive after Do")
	}
}

func equal(t *testing.T, what string, x torch.Tensor, want ...float32) {
	t.Helper()
	if diff := cmp.Diff(want, torch.Values[float32](x)); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

// hold keeps gotorch's tensors until the caller returns: gotorch does not, and a finalizer may free one in the middle of a call.
func hold(ts ...gotorch.Tensor) func() { return func() { runtime.KeepAlive(ts) } }

func TestWriteOnOneSideIsSeenOnTheOther(t *testing.T) {
	do(t, func(s *torch.Scope) {
		ours := torch.New(s, []float32{1, 2, 3, 4}, 2, 2)
		theirs, one := To(ours), gotorch.Ones([]int64{2, 2}, false)
		defer hold(theirs, one)()
		torch.Write(ours, []float32{5, 6, 7, 8})
		if got := theirs.Index(1, 0).Item(); got != float32(7) {
			t.Error("gotorch reads", got)
		}
		theirs.AddI(one, 1)
		equal(t, "molt's tensor, written by gotorch", ours, 6, 7, 8, 9)

		x := From(s, one)
		torch.Write(x, []float32{0, 0, 0, 9})
		if got := one.Index(1, 1).Item(); got != float32(9) {
			t.Error("gotorch reads", got, "of its own tensor")
		}
		one.AddI(theirs, 2)
		equal(t, "gotorch's tensor, written by gotorch", x, 12, 14, 16, 27)
		equal(t, "a tensor that went to gotorch and back", From(s, To(ours)), 6, 7, 8, 9)
	})
}

// w is molt's; w² is made there, ·v and the sum by gotorch, which runs backward: d/dw = 2wv, d/dv = w².
func TestGradientsOfAGraphThatEndsInGotorch(t *testing.T) {
	do(t, func(s *torch.Scope) {
		w := torch.New(s, []float32{1, 2, 3}).RequireGrad(true)
		square := To(s.Mul(w, w))
		v := gotorch.Full([]int64{3}, 5, true)
		product := gotorch.Mul(square, v)
		loss := product.Sum()
		defer hold(square, v, product, loss)()
		loss.Backward()
		equal(t, "d/dw", s.GradOf(w), 10, 20, 30)
		equal(t, "d/dv by molt", s.GradOf(From(s, v)), 1, 4, 9)
		equal(t, "d/dv by gotorch", From(s, v.Grad()), 1, 4, 9)
	})
}

// v is gotorch's; v² is made there, ·w, again ·v and the sum in blocks of molt, which runs backward: d/dv = 3v²w, d/dw = v³.
func TestGradientsOfAGraphThatEndsInMolt(t *testing.T) {
	do(t, func(s *torch.Scope) {
		v := gotorch.Full([]int64{2}, 2, true)
		square := gotorch.Mul(v, v)
		defer hold(v, square)()
		w := torch.New(s, []float32{1, 10}).RequireGrad(true)
		loss := s.Block(func(s *torch.Scope) torch.Tensor {
			return s.Sum(s.Mul(s.Mul(From(s, square), w), From(s, v)))
		})
		s.Backward([]torch.Tensor{loss}, nil)
		equal(t, "d/dv", From(s, v.Grad()), 12, 120)
		equal(t, "d/dw", s.GradOf(w), 8, 8)
		s.NoGrad(func(s *torch.Scope) torch.Tensor {
			if y := s.Mul(From(s, v), w); y.RequiresGrad() {
				t.Error("a no-grad scope recorded for a tensor of gotorch")
			}
			return torch.Tensor{}
		})
	})
}

// A module of gotorch is trained by molt: y = xWᵀ + b, the loss is Σy, so W's gradient is Σx in each row and b's the number of rows.
func TestModuleOfGotorchInsideAGraphOfMolt(t *testing.T) {
	do(t, func(s *torch.Scope) {
		layer := nn.Linear(3, 2, true)
		x := torch.New(s, []float32{1, 2, 3, 4, 5, 6}, 2, 3).RequireGrad(true)
		in := To(x)
		out := layer.Forward(in)
		defer hold(in, out, layer.Weight, layer.Bias)()
		s.Backward([]torch.Tensor{s.Sum(From(s, out))}, nil)
		weight, bias := From(s, layer.Weight), From(s, layer.Bias)
		equal(t, "d/dW", s.GradOf(weight), 5, 7, 9, 5, 7, 9)
		equal(t, "d/db", s.GradOf(bias), 2, 2)
		sum := torch.Values[float32](s.Add(s.Narrow(weight, 0, 0, 1), s.Narrow(weight, 0, 1, 1)))
		equal(t, "d/dx", s.GradOf(x), append(sum, sum...)...)
	})
}

// Memory of 4 MB is in the caching allocator's count, whichever side asked for it.
func TestMemoryGoesWhenBothSidesLetGo(t *testing.T) {
	const size = 4 << 20
	before := torch.Memory().Used
	func() {
		var kept gotorch.Tensor
		do(t, func(s *torch.Scope) { kept = To(torch.New(s, make([]float32, size/4))) })
		runtime.GC()
		if used := torch.Memory().Used - before; used < size {
			t.Errorf("%d bytes in use while gotorch holds a tensor of %d", used, size)
		}
		do(t, func(s *torch.Scope) {
			given := From(s, gotorch.Ones([]int64{size / 4}, false)) // gotorch itself holds it no longer
			for range 3 {
				runtime.GC()
			}
			equal(t, "the sum of ones", s.Sum(given), size/4)
		})
		runtime.KeepAlive(kept.T)
	}()
	for deadline := time.Now().Add(10 * time.Second); torch.Memory().Used != before; time.Sleep(time.Millisecond) {
		if runtime.GC(); time.Now().After(deadline) {
			t.Fatalf("%d bytes in use that neither side holds", torch.Memory().Used-before)
		}
	}
}

func TestWhatHoldsNoTensorIsZeroOrAnError(t *testing.T) {
	do(t, func(s *torch.Scope) {
		undefined := gotorch.Full([]int64{1}, 1, true).Grad() // no backward has run
		defer hold(undefined)()
		for _, none := range []gotorch.Tensor{{}, {T: new(unsafe.Pointer)}, undefined} {
			if x := From(s, none); x != (torch.Tensor{}) {
				t.Errorf("From of no tensor is %v", x)
			}
		}
	})
	var closed torch.Tensor
	do(t, func(s *torch.Scope) { closed = torch.New(s, []float32{1}) })
	err := torch.Do(1, func(s *torch.Scope) error { To(closed); return nil })
	if err == nil || !strings.Contains(err.Error(), "after its scope was closed") {
		t.Error("To of a tensor of a closed scope:", err)
	}
}

func TestBothSidesMapTheSameLibtorch(t *testing.T) {
	do(t, func(*torch.Scope) {})
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]map[string]bool{}
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) == 6 {
			name, _, _ := strings.Cut(filepath.Base(f[5]), ".so")
			if paths[name] == nil {
				paths[name] = map[string]bool{}
			}
			paths[name][f[5]] = true
		}
	}
	for _, name := range []string{"libmolt", "libcgotorch", "libtorch_cpu", "libc10", "libgomp"} {
		if len(paths[name]) != 1 {
			t.Errorf("%s is mapped from %v, want one file", name, paths[name])
		}
	}
	if len(paths["libtorch_cuda"]) != 0 {
		t.Error("libtorch_cuda is mapped")
	}
}
