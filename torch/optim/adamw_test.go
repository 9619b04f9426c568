package optim

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/molt-go/molt/torch"
)

// Every test that makes tensors ends with none alive.
func TestMain(m *testing.M) {
	code := m.Run()
	if n := torch.Live(); n != 0 {
		println("tensors still alive after all tests:", n)
		code = 1
	}
	os.Exit(code)
}

func do(t *testing.T, f func(s *torch.Scope)) {
	t.Helper()
	if err := torch.Do(1, func(s *torch.Scope) error { f(s); return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestAdamWEqualsTheReference(t *testing.T) {
	ref := readOptimizers(t)
	for _, name := range ref.names(t, "adamw/") {
		t.Run(name, func(t *testing.T) {
			do(t, func(s *torch.Scope) {
				c, params := ref.Results[name], ref.Initial.named(s)
				o, err := NewAdamW(s, params, c.Args.config())
				if err != nil {
					t.Fatal(err)
				}
				ref.replay(t, s, c, params, o, func(Named, int) float64 { return 1e-6 })
			})
		})
	}
}

func TestAdamWMinimisesTheReferencesQuadratic(t *testing.T) {
	q := readOptimizers(t).Quadratic
	do(t, func(s *torch.Scope) {
		a, b, x := q.A.tensor(s), q.B.tensor(s), q.X0.tensor(s).RequireGrad(true)
		o, err := NewAdamW(s, []Named{{"x", x}}, q.AdamW.config())
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range q.X {
			s.Block(func(s *torch.Scope) torch.Tensor {
				ax := s.Reshape(s.MatMul(a, s.Reshape(x, len(q.X0.data), 1)), len(q.X0.data))
				loss := s.Sub(s.MulScalar(s.Sum(s.Mul(x, ax)), 0.5), s.Sum(s.Mul(b, x)))
				if got := loss.Item(); math.Abs(got-q.Loss[i]) > 1e-5 {
					t.Errorf("loss before step %d is %v, want %v", i, got, q.Loss[i])
				}
				if err := o.Step(s, []Named{{"x", s.Gradients([]torch.Tensor{loss}, nil, []torch.Tensor{x})[0]}}, q.AdamW.LR); err != nil {
					t.Fatal(err)
				}
				return torch.Tensor{}
			})
			arrays{"x": want}.equal(t, fmt.Sprintf("after step %d", i+1), []Named{{"x", x}}, exact)
		}
	})
}

func TestClippingEqualsTheReferenceAndReturnsTheNormBefore(t *testing.T) {
	for _, c := range readOptimizers(t).Clipping {
		t.Run(c.Name, func(t *testing.T) {
			do(t, func(s *torch.Scope) {
				grads := c.Grads.named(s)
				for _, max := range []float64{0, c.Max} { // 0 measures and scales nothing
					norm, err := ClipGradNorm(s, grads, max)
					if err != nil || math.Abs(norm-c.Norm) > 1e-6*c.Norm {
						t.Errorf("norm %v, want %v (%v)", norm, c.Norm, err)
					}
				}
				c.Clipped.equal(t, "clipped", grads, exact)
			})
		})
	}
}

func TestGradientsThatAreNotFiniteAreNamedAndLeftAlone(t *testing.T) {
	do(t, func(s *torch.Scope) {
		nan, inf := float32(math.NaN()), float32(math.Inf(1))
		good := Named{"good", torch.New(s, []float32{3, 4})}
		grads := []Named{good, {"a", torch.New(s, []float32{1, nan})}, {Name: "absent"}, {"b", torch.New(s, []float32{inf, 1})}}
		_, err := ClipGradNorm(s, grads, 1)
		if err == nil || !strings.Contains(err.Error(), "a (norm NaN), b (norm +Inf)") || strings.Contains(err.Error(), "good") {
			t.Error("error", err)
		}
		if got := torch.Values[float32](good.Tensor); got[0] != 3 {
			t.Error("scaled to", got)
		}
	})
}

// Design, decision 13: a master in float32 takes steps that are too small for bfloat16. The plain AdamW beside it is the formula
// in float64; the fused call on gradients that were never bfloat16 gives the very same bits.
func TestTinyStepsOnBFloat16GradientsMoveTheMasterAsFloat32AdamW(t *testing.T) {
	do(t, func(s *torch.Scope) {
		const n, steps, lr = 37, 100, 1e-6
		c := AdamWConfig{0.9, 0.95, 1e-8, 0.1}
		r := rand.New(rand.NewPCG(1, 2))
		start := make([]float32, n)
		for i := range start {
			start[i] = float32(1 + r.Float64()) // bfloat16 neighbours are 2^-7 apart here
		}
		master, plain, half := torch.New(s, start), torch.New(s, start), s.To(torch.New(s, start), torch.BFloat16)
		want, m, v := torch.Values[float64](master), make([]float64, n), make([]float64, n)
		before := torch.Values[float32](half)
		o, err := NewAdamW(s, []Named{{"w", master}}, c)
		p, err2 := NewAdamW(s, []Named{{"w", plain}}, c)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		for step := 1; step <= steps; step++ {
			g := make([]float32, n)
			for i := range g {
				g[i] = float32(r.NormFloat64())
			}
			rounded := s.To(torch.New(s, g), torch.BFloat16)
			sum := s.Add_(s.Zeros(torch.Float32, n), rounded) // as gradients add up over micro-batches
			numbers, moved := torch.Values[float32](rounded), torch.Values[float32](half)
			if err := o.Step(s, []Named{{"w", sum}}, lr); err != nil {
				t.Fatal(err)
			}
			if err := p.Step(s, []Named{{"w", torch.New(s, numbers)}}, lr); err != nil {
				t.Fatal(err)
			}
			for i, x := range numbers {
				g, k := float64(x), float64(step)
				m[i], v[i] = c.Beta1*m[i]+(1-c.Beta1)*g, c.Beta2*v[i]+(1-c.Beta2)*g*g
				update := m[i] / (1 - math.Pow(c.Beta1, k)) / (math.Sqrt(v[i]/(1-math.Pow(c.Beta2, k))) + c.Eps)
				want[i] -= lr * (c.WeightDecay*want[i] + update)
				moved[i] -= float32(lr * update)
			}
			torch.Write(half, moved)
		}
		if diff := cmp.Diff(torch.Values[float32](plain), torch.Values[float32](master)); diff != "" {
			t.Error("bits differ from float32 AdamW:", diff)
		}
		if diff := cmp.Diff(want, torch.Values[float64](master), cmpopts.EquateApprox(0, 1e-5)); diff != "" {
			t.Error("far from AdamW in float64:", diff)
		}
		if diff := cmp.Diff(before, torch.Values[float32](half)); diff != "" {
			t.Error("a bfloat16 master was expected to stand still:", diff)
		}
	})
}

func TestAnOffloadedOptimizerMovesParametersAsTheOneItHolds(t *testing.T) {
	do(t, func(s *torch.Scope) {
		values, grad := torch.Values[float32](s.Randn(12)), s.Randn(3, 4)
		var moved [2][]float32
		var state [2][]string
		for i := range moved {
			list := []Named{{"w", torch.New(s, values, 3, 4)}, {"still", torch.New(s, values, 3, 4)}}
			create := func(list []Named) (Optimizer, error) {
				return NewMuon(s, list[:1], list[1:], MuonConfig{Variant: "muon", Momentum: 0.9, AdamW: AdamWConfig{0.9, 0.95, 1e-8, 0}})
			}
			o, err := create(list)
			if i == 1 {
				o, err = Offload(s, list, create)
			}
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := o.Step(s, []Named{{"w", grad}}, 0.1); err != nil {
					t.Fatal(err)
				}
			}
			if err := o.Step(s, []Named{{"w", grad}, {"w", grad}}, 0.1); err == nil {
				t.Error("a gradient that is there twice is no error")
			}
			s.Call("aten::mul_.Scalar", list[0].Tensor, 0.5) // as a checkpoint that is read
			if err := o.Step(s, []Named{{"w", grad}}, 0.1); err != nil {
				t.Fatal(err)
			}
			moved[i] = append(torch.Values[float32](list[0].Tensor), torch.Values[float32](list[1].Tensor)...)
			for _, n := range o.State() {
				state[i] = append(state[i], fmt.Sprint(n.Name, torch.Values[float32](n.Tensor)))
			}
		}
		if diff := cmp.Diff(moved[0], moved[1]) + cmp.Diff(state[0], state[1]); diff != "" {
			t.Error(diff)
		}
	})
}

func TestOptimizerStateSurvivesACheckpoint(t *testing.T) {
	do(t, func(s *torch.Scope) {
		c := AdamWConfig{0.9, 0.95, 1e-8, 0}
		fresh := func() (torch.Tensor, *AdamW) {
			w := torch.New(s, []float32{1, 2, 3})
			o, err := NewAdamW(s, []Named{{"w", w}}, c)
			if err != nil {
				t.Fatal(err)
			}
			return w, o
		}
		g := []Named{{"w", torch.New(s, []float32{1, -2, 0.5})}}
		step := func(o *AdamW) {
			if err := o.Step(s, g, 0.1); err != nil {
				t.Fatal(err)
			}
		}
		w, o := fresh()
		step(o)
		w2, o2 := fresh()
		s.Copy_(w2, w)
		path := filepath.Join(t.TempDir(), "optimizer.safetensors")
		if err := errors.Join(Save(path, o), Load(path, o2)); err != nil {
			t.Fatal(err)
		}
		step(o)
		step(o2)
		if diff := cmp.Diff(torch.Values[float32](w), torch.Values[float32](w2)); diff != "" {
			t.Error(diff)
		}
		other, err := NewAdamW(s, []Named{{"w", torch.New(s, []float32{1})}, {"v", w}}, c)
		if err != nil {
			t.Fatal(err)
		}
		err = Load(path, other)
		for _, want := range []string{"exp_avg.v is missing", "exp_avg.w is float32[3], want float32[1]", "step.v is missing"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		}
	})
}

func TestHostileOptimizerInputIsRefused(t *testing.T) {
	do(t, func(s *torch.Scope) {
		c, w := AdamWConfig{0.9, 0.95, 1e-8, 0}, torch.New(s, []float32{1, 2})
		for _, params := range [][]Named{{{"w", w}, {"w", w}}, {{"w", s.To(w, torch.BFloat16)}}} {
			if _, err := NewAdamW(s, params, c); err == nil {
				t.Errorf("%v accepted", params)
			}
		}
		if _, err := NewAdamW(s, []Named{{"w", w}}, AdamWConfig{Beta1: 1, Eps: 1}); err == nil {
			t.Error("beta1 = 1 accepted")
		}
		o, err := NewAdamW(s, []Named{{"w", w}}, c)
		if err != nil {
			t.Fatal(err)
		}
		for want, grads := range map[string][]Named{
			"for no parameter": {{"v", w}}, "there twice": {{"w", w}, {"w", w}}, "float32[1]": {{"w", torch.New(s, []float32{1})}},
			"bfloat16[2]": {{"w", s.To(w, torch.BFloat16)}},
		} {
			if err := o.Step(s, grads, 1); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		}
		if err := o.Step(s, []Named{{"w", w}}, math.NaN()); err == nil {
			t.Error("learning rate NaN accepted")
		}
		if diff := cmp.Diff([]float32{1, 2}, torch.Values[float32](w)); diff != "" {
			t.Error("a refused step moved the weights:", diff)
		}
	})
}

func TestGradientsOfAnyLayoutMoveTheirParametersAlike(t *testing.T) {
	do(t, func(s *torch.Scope) {
		grad := torch.New(s, []float32{1, -2, 3, 4, -5, 6}, 2, 3)
		turned := s.Transpose(s.Call("aten::contiguous", s.Transpose(grad, 0, 1))[0], 0, 1)
		one := torch.New(s, []float32{2})
		for name, g := range map[string][2]torch.Tensor{
			"transposed": {grad, turned},
			"expanded":   {torch.New(s, []float32{2, 2, 2, 2, 2, 2}, 2, 3), s.Call("aten::expand", one, []int{2, 3})[0]},
		} {
			var moved [2][]float32
			for i := range g {
				w := torch.New(s, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
				o, err := NewAdamW(s, []Named{{"w", w}}, AdamWConfig{0.9, 0.95, 1e-8, 0})
				if err != nil {
					t.Fatal(err)
				}
				alive := torch.Live()
				for range 2 {
					if err := o.Step(s, []Named{{"w", g[i]}}, 0.1); err != nil {
						t.Fatal(err)
					}
				}
				if n := torch.Live() - alive; n != 0 {
					t.Errorf("%s: steps left %d tensors in the caller's scope", name, n)
				}
				moved[i] = append(torch.Values[float32](w), torch.Values[float32](o.mean[0])...)
			}
			if diff := cmp.Diff(moved[0], moved[1]); diff != "" {
				t.Error(name, diff)
			}
		}
		c := AdamWConfig{0.9, 0.95, 1e-8, 0}
		if _, err := NewAdamW(s, []Named{{"w", turned}}, c); err == nil || !strings.Contains(err.Error(), "contiguous") {
			t.Error("a parameter that is not contiguous:", err)
		}
		w := torch.New(s, []float32{1, 2})
		o, err := NewAdamW(s, []Named{{"w", w}}, c)
		if err != nil {
			t.Fatal(err)
		}
		sparse := s.Call("aten::_to_sparse", torch.New(s, []float32{1, 0}))[0]
		if err := o.Step(s, []Named{{"w", sparse}}, 0.1); err == nil || !strings.Contains(err.Error(), `gradient of "w"`) || o.step[0].Item() != 0 {
			t.Errorf("a sparse gradient: %v, step %v", err, o.step[0].Item())
		}
		if _, err := ClipGradNorm(s, []Named{{"w", w}}, math.NaN()); err == nil {
			t.Error("clipping to NaN is no error")
		}
	})
}

// torch.optim.Muon divides a matrix by its norm, however small, down to 1e-7.
func TestMuonOrthogonalisesSmallGradientsAsLargeOnes(t *testing.T) {
	do(t, func(s *torch.Scope) {
		x := s.Randn(1, 3, 5)
		large := torch.Values[float32](variants["muon"].orthogonalise(s, x))
		small := torch.Values[float32](variants["muon"].orthogonalise(s, s.MulScalar(x, 1.0/(1<<20))))
		if diff := cmp.Diff(large, small); diff != "" {
			t.Error(diff)
		}
	})
}
