//go:build gpu

package torch_test

import (
	"math"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/molt-go/molt/torch"
)

const gpu Device = "cuda:0"

// onGPU is do, after the devices are known: libtorch must learn of them before the first backward.
func onGPU(t *testing.T, f func(s *Scope)) {
	t.Helper()
	if err := gpu.Check(); err != nil {
		t.Fatal(err)
	}
	do(t, f)
}

// same checks the numbers of got, on a device, against those of want, relative to the largest.
func same(t *testing.T, name string, got, want Tensor, tol float64) {
	t.Helper()
	g, w := Values[float64](got), Values[float64](want)
	largest, diff := 0.0, 0.0
	for i := range w {
		largest, diff = max(largest, math.Abs(w[i])), max(diff, math.Abs(g[i]-w[i]))
	}
	if len(g) != len(w) || largest == 0 || !(diff <= tol*largest) {
		t.Errorf("%s: %v and %v differ by %g of %g", name, got, want, diff, largest)
	}
}

func TestGPUOperatorsAndGradientsEqualThoseOfTheCPU(t *testing.T) {
	onGPU(t, func(s *Scope) {
		x, w, b, table := s.Randn(64, 96), s.Randn(80, 96), s.Randn(80), s.Randn(50, 80)
		ids := New(s, []int64{3, 49, 0, 3})
		// The loss and its gradients by x, w, b and table, computed where they lie.
		run := func(d Device) []Tensor {
			var in []Tensor
			for _, p := range []Tensor{x, w, b, table} {
				in = append(in, s.Detach(s.ToDevice(p, d)).RequireGrad(true))
			}
			h := s.Linear(in[0], in[1], in[2])
			rows := s.IndexSelect(h, 0, s.ToDevice(ids, d))
			logits := s.MatMul(s.Add(rows, s.Embedding(in[3], s.ToDevice(ids, d))), s.Transpose(in[3], 0, 1))
			loss := s.Neg(s.Mean(s.LogSoftmax(s.Clamp(s.MulScalar(logits, 0.1), -20, 20), 1)))
			if loss.Device() != d {
				t.Errorf("the loss lies on %s, its tensors on %s", loss.Device(), d)
			}
			return append(s.Gradients([]Tensor{loss}, nil, in), loss)
		}
		cpu, cuda := run(CPU), run(gpu)
		for i, name := range []string{"dx", "dw", "db", "dtable", "loss"} {
			same(t, name, cuda[i], cpu[i], 1e-3) // products may be TF32 where that is the default
		}
		leaf := s.ToDevice(x, gpu).RequireGrad(true)
		s.Backward([]Tensor{s.Sum(s.Mul(leaf, leaf))}, nil)
		same(t, "backward", s.GradOf(leaf), s.MulScalar(x, 2), 1e-6)
	})
}

func TestGPUCopiesBothWaysInEveryType(t *testing.T) {
	onGPU(t, func(s *Scope) {
		for _, d := range []DType{Float32, Float64, BFloat16, Float16, Int64, Int32, Int16, Int8, Uint8, Bool} {
			x := s.To(New(s, []float32{0, 1, 1, 0, 1, 0}, 2, 3), d)
			y := s.ToDevice(x, gpu)
			back := s.ToDevice(s.Transpose(y, 0, 1), CPU)
			if y.Device() != gpu || y.DType() != d || back.Device() != CPU || string(Bytes(y)) != string(Bytes(x)) {
				t.Errorf("%v became %v on %s, and %v on %s", x, y, y.Device(), back, back.Device())
			}
			if diff := cmp.Diff([]float32{0, 0, 1, 1, 1, 0}, Values[float32](back)); diff != "" {
				t.Error(d, diff)
			}
			Write(y, []float32{1, 1, 1, 0, 0, 0})
			if diff := cmp.Diff([]float32{1, 1, 1, 0, 0, 0}, Values[float32](y)); diff != "" {
				t.Error(d, "after Write:", diff)
			}
		}
	})
}

func TestGPUScopesMakeTensorsOnTheirDevice(t *testing.T) {
	onGPU(t, func(s *Scope) {
		y := s.On(gpu, func(s *Scope) Tensor {
			for _, x := range []Tensor{s.Zeros(Int32, 2), s.Empty(Float32, 2), s.Randn(2), s.Call("aten::arange", 2)[0]} {
				if x.Device() != gpu {
					t.Errorf("%v was made on %s", x, x.Device())
				}
			}
			inner := s.On(CPU, func(s *Scope) Tensor { return s.Zeros(Float32, 2) })
			if like := s.Call("aten::zeros_like", inner)[0]; inner.Device() != CPU || like.Device() != CPU {
				t.Errorf("a tensor of the CPU's scope lies on %s, one like it on %s", inner.Device(), like.Device())
			}
			return s.Block(func(s *Scope) Tensor { return New(s, []float32{1, 2}) })
		})
		if y.Device() != gpu || s.Zeros(Float32, 1).Device() != CPU {
			t.Error(y.Device(), "and the scope outside makes tensors on", s.Zeros(Float32, 1).Device())
		}
	})
}

func TestGPUStreamsWaitForWhatTheyNeed(t *testing.T) {
	onGPU(t, func(s *Scope) {
		n := 2048
		x := s.On(gpu, func(s *Scope) Tensor { return s.Call("aten::eye", n)[0] })
		for range 40 { // more than a pool's 32 streams
			x = s.Block(func(s *Scope) Tensor {
				y := s.Add(x, x) // on the default stream, still under way when the next one starts
				z := s.OnStream(gpu, func(s *Scope) Tensor {
					two := s.OnStream(gpu, func(s *Scope) Tensor { return s.MatMul(y, y) }) // 4·x²
					if first := s.Narrow(s.Reshape(two, n*n), 0, 0, 1).Item(); first != 4 {
						t.Errorf("read %v inside the stream's scope, want 4", first)
					}
					return s.MulScalar(two, 0.25)
				})
				return s.Add(z, s.Zero_(s.Clone(z)))
			})
		}
		same(t, "the identity after forty rounds", x, s.Call("aten::eye", n)[0], 0)
	})
	if err := gpu.Synchronize(); err != nil {
		t.Error(err)
	}
}

func TestGPUStreamsCarryGradients(t *testing.T) {
	onGPU(t, func(s *Scope) {
		w := s.On(gpu, func(s *Scope) Tensor { return New(s, []float32{2, 3}) }).RequireGrad(true)
		y := s.OnStream(gpu, func(s *Scope) Tensor { return s.Mul(s.Mul(w, w), w) })
		s.Backward([]Tensor{s.Sum(y)}, nil)
		if diff := cmp.Diff([]float32{12, 27}, Values[float32](s.GradOf(w))); diff != "" {
			t.Error("gradient of w³ is 3w²:", diff)
		}
	})
}

func TestGPUMemoryGoesUpAndDown(t *testing.T) {
	memory := func() MemoryInfo {
		m, err := gpu.Memory()
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	onGPU(t, func(s *Scope) {
		const size = 256 << 20
		before := memory()
		s.On(gpu, func(s *Scope) Tensor {
			s.Zeros(Uint8, size)
			if m := memory(); m.Used != before.Used+size || m.Peak < m.Used {
				t.Errorf("memory went from %+v to %+v over a tensor of %d bytes", before, m, size)
			}
			return Tensor{}
		})
		if m := memory(); m.Used != before.Used || m.Cached < size || m.Peak < m.Cached {
			t.Errorf("memory went from %+v to %+v once the tensor was gone", before, m)
		}
	})
	fails(t, "out of memory", func(s *Scope) { s.On(gpu, func(s *Scope) Tensor { return s.Empty(Uint8, 1<<45) }) })
}

func TestGPUPinnedMemory(t *testing.T) {
	onGPU(t, func(s *Scope) {
		x := s.Randn(1 << 20)
		p := s.PinMemory(x)
		if pinned := s.Call("aten::is_pinned", p)[0].Item(); pinned != 1 || p.Device() != CPU {
			t.Errorf("is_pinned %v on %s", pinned, p.Device())
		}
		same(t, "through pinned memory", s.ToDevice(p, gpu), x, 0)
	})
}

func TestGPUErrorsNameWhatIsWrong(t *testing.T) {
	onGPU(t, func(s *Scope) {})
	if err := Device("cuda:99").Check(); err == nil || !strings.Contains(err.Error(), "no device cuda:99: this machine has cuda:0 to") {
		t.Error(err)
	}
	fails(t, "no device cuda:99", func(s *Scope) { s.ToDevice(New(s, []float32{1}), "cuda:99") })
	fails(t, "Expected all tensors to be on the same device", func(s *Scope) {
		x := New(s, []float32{1, 2})
		s.Add(x, s.ToDevice(x, gpu))
	})
}

func TestGPUGroupOfOneRank(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	onGPU(t, func(s *Scope) {
		g, err := NewGroup(GroupConfig{Backend: "nccl", Size: 1, Address: address})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		x := s.ToDevice(New(s, []float32{1, 2, 3}), gpu)
		s.AllReduce_(g, x, Sum)
		s.OnStream(gpu, func(s *Scope) Tensor { return s.AllReduce_(g, s.Add_(x, x), Mean) })
		if diff := cmp.Diff([]float32{2, 4, 6}, Values[float32](x)); diff != "" {
			t.Error(diff)
		}
		if err := g.Barrier(); err != nil {
			t.Error(err)
		}
	})
}
