package torch_test

import (
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	. "github.com/molt-go/molt/torch"
)

func TestATenSharesMemoryAndGraphAndOutlivesTheScope(t *testing.T) {
	do(t, func(s *Scope) {
		w := New(s, []float32{2, 3}).RequireGrad(true)
		x := New(s, []float32{0, 0})
		var square unsafe.Pointer
		s.Block(func(s *Scope) Tensor {
			square = s.Mul(w, w).ATen()
			Write(s.FromATen(x.ATen()), []float32{5, 7})
			return Tensor{}
		})
		s.Backward([]Tensor{s.Sum(s.Mul(s.FromATen(square), x))}, nil)
		if diff := cmp.Diff([]float32{20, 42}, Values[float32](s.GradOf(w))); diff != "" {
			t.Error("gradient of xw² is 2xw:", diff)
		}
	})
}

func TestATenOfNoTensor(t *testing.T) {
	do(t, func(s *Scope) {
		if x := s.FromATen(nil); x != (Tensor{}) {
			t.Error("FromATen of nil is", x)
		}
	})
	fails(t, "no such tensor", func(*Scope) { Tensor{}.ATen() })
	var closed Tensor
	do(t, func(s *Scope) { closed = New(s, []float32{1}) })
	fails(t, "after its scope was closed", func(*Scope) { closed.ATen() })
}
