package torch_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/molt-go/molt/torch"
)

func TestGradientsFlowThroughClosedBlocks(t *testing.T) {
	do(t, func(s *Scope) {
		w := New(s, []float32{2, 3}).RequireGrad(true)
		y := s.Block(func(s *Scope) Tensor {
			x := s.Block(func(s *Scope) Tensor { return s.Mul(w, w) })
			return s.Mul(x, w) // w³
		})
		s.Backward([]Tensor{s.Sum(y)}, nil)
		if diff := cmp.Diff([]float32{12, 27}, Values[float32](s.GradOf(w))); diff != "" {
			t.Error("gradient of w³ is 3w²:", diff)
		}
	})
}

func TestGradientsOfChosenInputsLeaveGradAlone(t *testing.T) {
	do(t, func(s *Scope) {
		a, b := New(s, []float32{2}).RequireGrad(true), New(s, []float32{5}).RequireGrad(true)
		c := New(s, []float32{1}).RequireGrad(true)
		g := s.Gradients([]Tensor{s.Mul(a, b)}, []Tensor{New(s, []float32{10})}, []Tensor{a, b, c})
		if g[0].Item() != 50 || g[1].Item() != 20 || g[2] != (Tensor{}) || s.GradOf(a) != (Tensor{}) {
			t.Error(g, s.GradOf(a))
		}
	})
}

func TestDebugNamesTheOperatorAndTheLineWhoseBackwardMakesTheFirstNaN(t *testing.T) {
	var line int
	err := Do(1, func(s *Scope) error {
		s.SetDebug(true)
		x := New(s, []float32{0, 1}).RequireGrad(true)
		y := s.Block(func(s *Scope) Tensor {
			_, _, line, _ = runtime.Caller(0)
			return s.Call("aten::sqrt", x)[0] // d√x is 0/0 at 0 when nothing flows in
		})
		s.Backward([]Tensor{s.Sum(s.MulScalar(s.Mul(y, y), 0))}, nil)
		return nil
	})
	want := fmt.Sprintf("aten::sqrt at %s:%d: its backward made a NaN or Inf, the first one, in the gradient of its differentiable input 1",
		thisFile(), line+1)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %q, want %q", err, want)
	}
}

func TestDebugNamesTheOperatorAndTheLineOfAnErrorInBackward(t *testing.T) {
	for _, debug := range []bool{true, false} {
		var line int
		err := Do(1, func(s *Scope) error {
			s.SetDebug(debug)
			w := New(s, []float32{1, 2}).RequireGrad(true)
			x := s.MulScalar(w, 3)
			_, _, line, _ = runtime.Caller(0)
			y := s.Exp(x) // backward needs the result as it was
			s.NoGrad(func(s *Scope) Tensor { return s.Add_(y, y) })
			s.Gradients([]Tensor{s.Sum(s.Mul(y, w))}, nil, []Tensor{w})
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "modified by an inplace operation") {
			t.Fatal(err)
		}
		where := fmt.Sprintf("aten::exp at %s:%d: ", thisFile(), line+1)
		if strings.Contains(err.Error(), where) != debug {
			t.Errorf("debug=%v: error %q, where %q", debug, err, where)
		}
	}
}

func thisFile() string { _, file, _, _ := runtime.Caller(0); return file }

func TestDebugChangesNoGradient(t *testing.T) {
	do(t, func(s *Scope) {
		var grads [2][]float32
		for i := range grads {
			s.Block(func(s *Scope) Tensor {
				s.SetDebug(i == 1)
				w := New(s, []float32{1, 2, 3, 4}, 2, 2).RequireGrad(true)
				h := s.Linear(w, w, Tensor{})
				y := s.AddScalar(s.Call("aten::chunk", s.LogSoftmax(h, 1), 2, 1)[1], 1)
				s.Backward([]Tensor{y}, []Tensor{New(s, []float32{1, 2}, 2, 1)})
				grads[i] = Values[float32](s.GradOf(w))
				return Tensor{}
			})
		}
		if diff := cmp.Diff(grads[0], grads[1]); diff != "" {
			t.Error(diff)
		}
	})
}

func TestRecomputedGradientsEqualRecordedOnesAndKeepOnlyWhatGoesIntoEachStage(t *testing.T) {
	do(t, func(s *Scope) {
		w := []Tensor{s.Randn(4, 4).RequireGrad(true), s.Randn(4, 4).RequireGrad(true), s.Randn(4, 4).RequireGrad(true)}
		var stages []Stage
		for _, w := range w {
			stages = append(stages, func(s *Scope, x []Tensor) []Tensor {
				h := s.Linear(x[0], w, Tensor{})
				if x[1] != (Tensor{}) {
					h = s.Add(h, x[1])
				}
				return []Tensor{s.Call("aten::tanh", h)[0], s.MulScalar(x[0], 0.5)}
			})
		}
		x, g := s.Randn(2, 4), s.Randn(2, 4)
		run := func(s *Scope, f func(s *Scope, leaf Tensor) Tensor) (grads [][]float32) {
			leaf := s.Detach(x).RequireGrad(true)
			grads = append(grads, Values[float32](f(s, leaf)))
			for _, t := range w {
				grads = append(grads, Values[float32](s.GradOf(t)))
				t.ClearGrad()
			}
			return grads
		}
		recorded := run(s, func(s *Scope, leaf Tensor) Tensor {
			y := []Tensor{leaf, {}}
			for _, stage := range stages {
				y = stage(s, y)
			}
			s.Backward([]Tensor{y[0]}, []Tensor{g}) // the second result has no gradient
			return s.GradOf(leaf)
		})
		recomputed := run(s, func(s *Scope, leaf Tensor) Tensor {
			before := Live()
			out, back := s.Recompute(stages, leaf, Tensor{})
			if n := Live() - before; n != 6 || out[0].RequiresGrad() {
				t.Errorf("%d tensors kept of 3 stages with 2 results, requires grad: %v", n, out[0].RequiresGrad())
			}
			return back(s, []Tensor{g, {}})[0]
		})
		if diff := cmp.Diff(recorded, recomputed); diff != "" {
			t.Error(diff)
		}
	})
}

func TestDebugDoesNotBlameAnOperatorForWhatWasThereBefore(t *testing.T) {
	err := Do(1, func(s *Scope) error {
		x := New(s, []float32{0}).RequireGrad(true)
		y := s.Call("aten::sqrt", x)[0] // its gradient is Inf
		s.SetDebug(true)
		s.Backward([]Tensor{s.Sum(s.MulScalar(y, 2))}, nil)
		return nil
	})
	if err != nil {
		t.Error("blamed:", err)
	}
}

func TestDebugLetsSparseGradientsPass(t *testing.T) {
	do(t, func(s *Scope) {
		s.SetDebug(true)
		w := s.Randn(4, 2).RequireGrad(true)
		const sparse = true
		s.Backward([]Tensor{s.Sum(s.Call("aten::embedding", w, New(s, []int64{1, 1}), -1, false, sparse)[0])}, nil)
		if g := Values[float32](s.Call("aten::to_dense", s.GradOf(w))[0]); g[2] != 2 || g[0] != 0 {
			t.Error(g)
		}
	})
}

func TestReturnedGradientsShareNoMemory(t *testing.T) {
	do(t, func(s *Scope) {
		a, b := s.Zeros(Float32, 2).RequireGrad(true), s.Zeros(Float32, 2).RequireGrad(true)
		up := New(s, []float32{3, 4})
		g := s.Gradients([]Tensor{s.Add(a, b)}, []Tensor{up}, []Tensor{a, b, a})
		s.Add_(g[0], up)
		got := [][]float32{Values[float32](g[0]), Values[float32](g[1]), Values[float32](g[2]), Values[float32](up)}
		if diff := cmp.Diff([][]float32{{6, 8}, {3, 4}, {3, 4}, {3, 4}}, got); diff != "" {
			t.Error(diff)
		}
		wide := s.Gradients([]Tensor{s.Sum(a)}, nil, []Tensor{a})[0] // autograd's own is one number, expanded
		if got := Values[float32](s.Call("aten::mul_.Scalar", wide, 2)[0]); got[0] != 2 || got[1] != 2 {
			t.Error(got)
		}
	})
}
