package torch

import (
	"errors"
	"math"
	"testing"
)

// attempt runs f and tells whether it ended in an operator's error; any other panic goes on.
func attempt(f func()) bool {
	var err error
	func() {
		defer Catch(&err)
		f()
	}()
	var e *Error
	return errors.As(err, &e)
}

func fuzzDo(t *testing.T, f func(s *Scope)) {
	t.Helper()
	if err := Do(1, func(s *Scope) error { f(s); return nil }); err != nil {
		t.Fatal(err)
	}
	if Live() != 0 {
		t.Fatal(Live(), "handles alive")
	}
}

func FuzzAHandleThatIsNoLiveTensorIsAnError(f *testing.F) {
	for _, h := range []uint64{0, 1, 1 << 32, 2 << 32, 3<<32 | 5, 1<<32 | 4096, 1<<32 | 0xFFFFFFFF, math.MaxUint64, 1<<63 | 7} {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, h uint64) {
		fuzzDo(t, func(s *Scope) {
			x := New(s, []float32{1, 2})
			bad := Tensor{handle(h)}
			if bad == x {
				return
			}
			for name, use := range map[string]func(){
				"info": func() { bad.Shape() }, "read": func() { Read(bad, make([]float32, 1)) },
				"write": func() { Write(bad, []float32{1}) }, "require": func() { bad.RequireGrad(true) },
				"grad": func() { s.GradOf(bad) }, "clear": func() { bad.ClearGrad() }, "move": func() { s.Move(s, bad) },
				"operator": func() { s.Add(x, bad) }, "list": func() { s.Cat(0, x, bad) }, "in place": func() { s.Add_(bad, x) },
				"backward": func() { s.Backward([]Tensor{bad}, nil) }, "gradients": func() { s.Gradients([]Tensor{x}, nil, []Tensor{bad}) },
				"label": func() { s.SetDebug(true); defer s.SetDebug(false); s.Add_(bad, x) }, "describe": func() { bad.Describe() },
			} {
				if !attempt(use) {
					t.Errorf("%s of handle %#x is no error", name, h)
				}
			}
			if s := (&Scope{h: s.h ^ 1<<40}); !attempt(func() { s.Add(x, x) }) || !attempt(s.close) {
				t.Errorf("scope %#x is no error", s.h)
			}
		})
	})
}

// Operators that check their arguments themselves: those with names in underscores leave it to their callers.
var fuzzed = []string{
	"aten::add.Tensor", "aten::sum.dim_IntList", "aten::cat", "aten::stack", "aten::index_select", "aten::gather", "aten::scatter.src",
	"aten::narrow", "aten::reshape", "aten::permute", "aten::transpose.int", "aten::matmul", "aten::linear", "aten::embedding",
	"aten::layer_norm", "aten::softmax.int", "aten::topk", "aten::sort", "aten::where.self", "aten::index.Tensor", "aten::index_put_",
	"aten::masked_fill.Scalar", "aten::constant_pad_nd", "aten::unbind.int", "aten::split_with_sizes", "aten::zeros", "aten::arange",
	"aten::full", "aten::div.Tensor_mode", "aten::to.dtype", "aten::einsum", "aten::expand", "aten::repeat", "aten::clamp",
	"aten::cumsum", "aten::cross_entropy_loss", "aten::item", "aten::randn.generator", "aten::_foreach_add.ScalarList", "aten::no_such",
	"molt::linear", "molt::attention", "molt::add_rms_norm", "molt::rotary", "molt::act_mul", "molt::softcap", "molt::lm_logp", "molt::sample",
}

// fuzzArgs turns bytes into arguments of every kind, small enough that no result fills the memory.
func fuzzArgs(s *Scope, data []byte) (args []any) {
	next := func() int {
		if len(data) == 0 {
			return 0
		}
		b := int(data[0])
		data = data[1:]
		return b
	}
	small := func() int { return next()%8 - 2 }
	tensor := func() Tensor {
		shape := make([]int, next()%4)
		for i := range shape {
			shape[i] = next() % 4
		}
		d := []DType{Float32, Float32, BFloat16, Int64, Int32, Bool, Float64}[next()%7]
		return s.AddScalar(s.Zeros(d, shape...), 1)
	}
	for len(data) > 0 && len(args) < 9 {
		switch n := next(); n % 12 {
		case 0, 1, 2:
			args = append(args, tensor())
		case 3:
			args = append(args, small())
		case 4:
			args = append(args, []float64{0, 1, -1, 0.5, math.NaN(), math.Inf(1), 1e300, -1e-300}[next()%8])
		case 5:
			args = append(args, n > 127)
		case 6:
			args = append(args, []string{"", "floor", "cpu", "ij,jk->ik", "cuda:99", "\x00\xff"}[next()%6])
		case 7:
			ints := make([]int, next()%5)
			for i := range ints {
				ints[i] = small()
			}
			args = append(args, ints)
		case 8:
			ts := make([]Tensor, next()%4)
			for i := range ts {
				if next()%4 > 0 {
					ts[i] = tensor()
				}
			}
			args = append(args, ts)
		case 9:
			args = append(args, nil)
		case 10:
			args = append(args, []any{[]float64{1, 2}, []bool{true}, []string{"a", ""}, struct{}{}, DType(next())}[next()%5])
		case 11:
			args = append(args, Tensor{})
		}
	}
	return args
}

func FuzzCallWithAnyArgumentsReturnsOrIsAnError(f *testing.F) {
	for i := range fuzzed {
		f.Add(uint8(i), []byte{0, 2, 2, 2, 0, 0, 2, 2, 2, 0, 3, 3})
		f.Add(uint8(i), []byte{8, 2, 1, 1, 2, 0, 1, 1, 2, 0, 3, 2, 7, 2, 3, 4})
		f.Add(uint8(i), []byte{0, 1, 3, 3, 7, 1, 3, 5, 6, 1, 9, 11, 10, 1})
	}
	f.Fuzz(func(t *testing.T, i uint8, data []byte) {
		fuzzDo(t, func(s *Scope) {
			args := fuzzArgs(s, data)
			attempt(func() { s.Call(fuzzed[int(i)%len(fuzzed)], args...) })
			if got := s.Add(New(s, []float32{1}), New(s, []float32{2})).Item(); got != 3 {
				t.Error("1 + 2 is", got, "afterwards")
			}
		})
	})
}
