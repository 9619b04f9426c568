package model_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
	. "github.com/molt-go/molt/torch/model"
)

func TestRoutersEqualTransformers(t *testing.T) {
	sparse := 0
	eachModel(t, torch.Float32, func(t *testing.T, s *torch.Scope, f folder, m *Model) {
		for side, want := range map[string]*float64{"right": f.ref.RightAux, "left": f.ref.LeftAux} {
			_, b, at, _ := f.padded(side)
			out, err := m.Hidden(s, b, nil, f.seen(s, m)...)
			if err != nil {
				t.Fatal(err)
			}
			if (want == nil) != (out.Aux == torch.Tensor{}) {
				t.Fatalf("%s: the reference's auxiliary loss is %v, the model has %d experts", side, want, m.MoE.Experts)
			}
			if want == nil {
				continue
			}
			sparse++
			near(t, side+" auxiliary loss", []float32{float32(*want)}, torch.Values[float32](out.Aux), 1e-5)
			for i, experts := range b.Routing.Experts {
				name := fmt.Sprintf("%s.router.%d.", side, i)
				k := m.MoE.Chosen
				for j, e := range f.ints(name + "indices") {
					if row := int(at[j/k]); row >= 0 && experts[row*k+j%k] != e {
						t.Fatalf("%s: choice %d of place %d is expert %d, want %d", name, j%k, j/k, experts[row*k+j%k], e)
					}
				}
				near(t, name+"weights", f.floats(name+"weights"), spread(b.Routing.Gates[i], at, k), 1e-5)
				near(t, name+"logits", f.floats(name+"logits"), spread(b.Routing.Logits[i], at, m.MoE.Experts), 5e-5)
			}
			if _, more := f.file.Lookup(fmt.Sprintf("%s.router.%d.logits", side, len(b.Routing.Experts))); more {
				t.Errorf("%d sparse layers, the reference has more", len(b.Routing.Experts))
			}
		}
		if f.ref.RightAux == nil {
			return
		}
		requireGrad(m)
		b, _, _ := f.packed()
		out, err := m.Hidden(s, b, nil, f.seen(s, m)...)
		if err != nil {
			t.Fatal(err)
		}
		s.Backward([]torch.Tensor{out.Aux}, nil)
		seen := 0
		for _, p := range m.Params() {
			name := strings.Replace(p.Name, "block_sparse_moe", "mlp", 1) // transformers 5 has one name for all
			if want, ok := f.ref.AuxGrads[name]; ok {
				seen++
				if got := s.Norm(p.Grad(s)).Item(); math.Abs(got-want) > 1e-4*want {
					t.Errorf("%s: norm of the auxiliary loss's gradient is %v, want %v", p.Name, got, want)
				}
			}
		}
		if seen == 0 || seen != len(f.ref.AuxGrads) {
			t.Errorf("%d gradients compared, the reference has %d", seen, len(f.ref.AuxGrads))
		}
	})
	if sparse == 0 {
		t.Error("no model of the reference has experts")
	}
}

// Recomputed layers give the values and gradients of stored ones, for the log-probs and the routers' balance together.
func TestRecomputeEqualsOnePass(t *testing.T) {
	eachModel(t, torch.Float32, func(t *testing.T, s *torch.Scope, f folder, m *Model) {
		requireGrad(m)
		b, at, next := f.packed()
		roots := func(s *torch.Scope, out Output) []torch.Tensor {
			roots := []torch.Tensor{meanNLL(s, m, out.Hidden, at, next)}
			if out.Aux != (torch.Tensor{}) {
				roots = append(roots, out.Aux)
			}
			return roots
		}
		out, err := m.Hidden(s, b, nil, f.seen(s, m)...)
		if err != nil {
			t.Fatal(err)
		}
		s.Backward(roots(s, out), nil)
		want := map[string][]float32{}
		for _, p := range m.Params() {
			want[p.Name] = grad(s, p)
		}
		for _, leaf := range m.Leaves() {
			leaf.ClearGrad()
		}
		again, back, err := m.HiddenAgain(s, b, f.seen(s, m)...)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(torch.Values[float32](out.Hidden), torch.Values[float32](again.Hidden)); diff != "" {
			t.Error("hidden states:", diff)
		}
		var aux torch.Tensor
		again.Hidden.RequireGrad(true)
		if again.Aux != (torch.Tensor{}) {
			again.Aux.RequireGrad(true)
		}
		s.Backward(roots(s, again), nil)
		if again.Aux != (torch.Tensor{}) {
			aux = s.GradOf(again.Aux)
		}
		back(s, s.GradOf(again.Hidden), aux)
		for _, p := range m.Params() {
			near(t, "gradient of "+p.Name, want[p.Name], grad(s, p), 1e-6)
		}
	})
}
