package model_test

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/molt-go/molt/torch"
	. "github.com/molt-go/molt/torch/model"
)

// folder is one model of the reference: its tensors by name.
type folder struct {
	t      *testing.T
	path   string
	config Config
	file   *torch.SafeTensors
	ref    struct {
		NLL   float64 `json:"right_mean_nll"`
		Grads map[string]struct {
			Norm  float64   `json:"norm"`
			Sum   float64   `json:"sum"`
			Dot   float64   `json:"dot_weight"`
			First []float32 `json:"first"`
			Max   float64   `json:"max_abs"`
		} `json:"grad_of_right_mean_nll"`
		RightAux *float64           `json:"right_aux_loss_unscaled"`
		LeftAux  *float64           `json:"left_aux_loss_unscaled"`
		AuxGrads map[string]float64 `json:"grad_norm_of_right_aux_loss"`
	}
}

// models are the folders of the reference.
func models(t *testing.T) []folder {
	t.Helper()
	paths, _ := filepath.Glob(reference + "/models/*")
	var fs []folder
	for _, p := range paths {
		f := folder{t: t, path: p}
		var err error
		if f.config, err = ReadConfig(filepath.Join(p, "config.json")); err != nil {
			t.Fatal(err)
		}
		if f.file, err = torch.OpenSafeTensors(filepath.Join(p, "ref.safetensors")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.file.Close() })
		readJSON(t, filepath.Join(p, "ref.json"), &f.ref)
		fs = append(fs, f)
	}
	if len(fs) == 0 {
		t.Fatal("no models in the reference")
	}
	return fs
}

// eachModel runs f on every folder of the reference, with its model loaded in d.
func eachModel(t *testing.T, d torch.DType, f func(t *testing.T, s *torch.Scope, r folder, m *Model)) {
	for _, r := range models(t) {
		t.Run(filepath.Base(r.path), func(t *testing.T) {
			r.t = t
			do(t, func(s *torch.Scope) { f(t, s, r, load(t, s, r.path, d)) })
		})
	}
}

func (f folder) ints(name string) []int64     { return entry[int64](f, name) }
func (f folder) floats(name string) []float32 { return entry[float32](f, name) }
func (f folder) shape(name string) (rows, columns int) {
	e, ok := f.file.Lookup(name)
	if !ok {
		f.t.Fatalf("%s: no tensor %s", f.path, name)
	}
	return e.Shape[0], e.Shape[1]
}

func entry[T torch.Number](f folder, name string) []T {
	e, ok := f.file.Lookup(name)
	if !ok {
		f.t.Fatalf("%s: no tensor %s", f.path, name)
	}
	var out []T
	do(f.t, func(s *torch.Scope) {
		x := s.Empty(e.DType, e.Shape...)
		torch.WriteBytes(x, e.DType, unsafe.Pointer(unsafe.SliceData(e.Data)), x.Numel())
		out = torch.Values[T](x)
	})
	return out
}

// padded is a side's batch of padded rows, [rows, width]: packed, with each place's row.
func (f folder) padded(side string) (ids []int32, b *Batch, at []int32, width int) {
	_, width = f.shape(side + ".input_ids")
	ids32, mask := f.ints(side+".input_ids"), f.ints(side+".attention_mask")
	real := make([]bool, len(mask))
	for i, id := range ids32 {
		ids, real[i] = append(ids, int32(id)), mask[i] != 0
	}
	b = &Batch{Routing: &Routing{Weights: true}}
	for i := 0; i < len(ids); i += width {
		at = append(at, b.AddPadded(ids[i:i+width], real[i:i+width])...)
	}
	f.place(b, side, at)
	return ids, b, at, width
}

// spread puts rows of n values back to their places, 0 at padding.
func spread[T any](rows []T, at []int32, n int) []T {
	out := make([]T, len(at)*n)
	for i, row := range at {
		if row >= 0 {
			copy(out[i*n:(i+1)*n], rows[int(row)*n:])
		}
	}
	return out
}

// entropy is the reference's of the right-padded batch; where it has none, that of its logits at the rows at.
func (f folder) entropy(at []int32) []float32 {
	if _, ok := f.file.Lookup("right.entropy"); ok {
		return f.floats("right.entropy")
	}
	out, logits := make([]float32, len(at)), f.floats("right.logits")
	for i := range out {
		if at[i] < 0 {
			continue
		}
		row := logits[i*f.config.Vocab : (i+1)*f.config.Vocab]
		var sum, weighted float64
		for _, x := range row {
			e := math.Exp(float64(x))
			sum, weighted = sum+e, weighted+e*float64(x)
		}
		out[i] = float32(math.Log(sum) - weighted/sum)
	}
	return out
}

func TestModelsEqualTransformers(t *testing.T) {
	eachModel(t, torch.Float32, func(t *testing.T, s *torch.Scope, f folder, m *Model) {
		for _, side := range []string{"right", "left"} {
			s.NoGrad(func(s *torch.Scope) torch.Tensor {
				ids, b, at, width := f.padded(side)
				h := hidden(t, s, m, b, nil, f.seen(s, m)...)
				logits := torch.Values[float32](m.Logits(s, h))
				near(t, side+" logits", f.floats(side+".logits"), spread(logits, at, m.Vocab), 5e-5)
				for i, p := range f.pages(side) {
					n := len(p.ids) * m.Vocab
					alone := torch.Values[float32](m.Logits(s, hidden(t, s, m, p.alone(), nil, p.seen(t, s, m)...)))[:n]
					if !slices.Equal(alone, logits[:n]) {
						t.Errorf("%s: sequence %d alone gives other bits than packed", side, i)
					}
					logits = logits[n:]
				}
				next := append(slices.Clone(ids[1:]), 0) // by place; of no meaning at the end of a row
				byRow := make([]int32, b.Len())
				for i, row := range at {
					if row >= 0 {
						byRow[row] = next[i]
					}
				}
				lp, e := m.LogP(s, h, byRow, slices.Repeat([]float32{1}, b.Len()))
				if side == "right" {
					near(t, "entropy", f.entropy(at), spread(torch.Values[float32](e), at, 1), 5e-5)
				}
				got, valid := spread(torch.Values[float32](lp), at, 1), f.floats(side+".log_probs_valid")
				var dense []float32
				for i := range got {
					if i%width < width-1 {
						dense = append(dense, got[i]*valid[i/width*(width-1)+i%width])
					}
				}
				near(t, side+" log-probs", f.floats(side+".log_probs"), dense, 3e-5)
				return torch.Tensor{}
			})
		}
	})
}

func TestLayersEqualTransformers(t *testing.T) {
	eachModel(t, torch.Float32, func(t *testing.T, s *torch.Scope, f folder, m *Model) {
		s.NoGrad(func(s *torch.Scope) torch.Tensor {
			_, b, at, _ := f.padded("right")
			for i, x := range m.Stream(s, b, f.seen(s, m)...) {
				got, want := spread(torch.Values[float32](x), at, m.Width), f.floats(fmt.Sprintf("right.hidden.%d", i))
				for j := range want {
					if at[j/m.Width] < 0 {
						want[j] = 0
					}
				}
				f.deepen(i, want, at, b)
				near(t, fmt.Sprintf("hidden states %d", i), want, got, 5e-5)
			}
			return torch.Tensor{}
		})
	})
}

func TestModelsGenerateAsTransformers(t *testing.T) {
	eachModel(t, torch.Float32, func(t *testing.T, s *torch.Scope, f folder, m *Model) {
		_, n := f.shape("gen.new_ids")
		tokens, logp, margins := f.ints("gen.new_ids"), f.floats("gen.log_probs"), f.floats("gen.margin")
		for i, p := range f.pages("gen") {
			got, lp := p.greedy(t, s, m, n, 7)
			want := make([]int32, n)
			for j := range want {
				want[j] = int32(tokens[i*n+j])
			}
			k := sameUntilClose(t, "greedy", want, got, margins[i*n:])
			near(t, "log-probs", logp[i*n:i*n+k], lp[:k], 3e-5)
		}
	})
}

// packed is all right-padded sequences as one batch: the rows that predict a real token, and that token.
func (f folder) packed() (b *Batch, at, next []int32) {
	ids, b, rows, width := f.padded("right")
	b.Routing = nil
	for i := range ids {
		if i%width > 0 && rows[i] >= 0 {
			at, next = append(at, rows[i]-1), append(next, ids[i])
		}
	}
	return b, at, next
}

func requireGrad(m *Model) {
	for _, leaf := range m.Leaves() {
		leaf.RequireGrad(true)
	}
}

// meanNLL is the mean negative log-prob of next at the rows at.
func meanNLL(s *torch.Scope, m *Model, h torch.Tensor, at, next []int32) torch.Tensor {
	logp, _ := m.LogP(s, s.IndexSelect(h, 0, torch.New(s, at)), next, slices.Repeat([]float32{1}, len(next)))
	return s.Neg(s.Mean(logp))
}

// grad is a parameter's gradient; that of an expert without rows is not there.
func grad(s *torch.Scope, p Param) []float32 {
	if g := p.Grad(s); g != (torch.Tensor{}) {
		return torch.Values[float32](g)
	}
	return make([]float32, p.Tensor.Numel())
}

// The gradient of the mean negative log-prob over all real next tokens of the right-padded batch, per named parameter.
func TestGradientsEqualTransformers(t *testing.T) {
	eachModel(t, torch.Float32, func(t *testing.T, s *torch.Scope, f folder, m *Model) {
		requireGrad(m)
		b, at, next := f.packed()
		loss := meanNLL(s, m, hidden(t, s, m, b, nil, f.seen(s, m)...), at, next)
		if math.Abs(loss.Item()-f.ref.NLL) > 3e-5 {
			t.Errorf("mean NLL %v, want %v", loss.Item(), f.ref.NLL)
		}
		s.Backward([]torch.Tensor{loss}, nil)
		for _, p := range m.Params() {
			want, ok := f.ref.Grads[p.Name]
			if !ok {
				t.Errorf("no reference gradient for %s", p.Name)
				continue
			}
			delete(f.ref.Grads, p.Name)
			g, w := grad(s, p), torch.Values[float32](p.Tensor)
			var sum, square, dot float64
			for i, x := range g {
				sum += float64(x)
				square += float64(x) * float64(x)
				dot += float64(x) * float64(w[i])
			}
			scale := 1e-4*want.Norm + 1e-7
			if math.Abs(math.Sqrt(square)-want.Norm) > scale || math.Abs(sum-want.Sum) > scale*math.Sqrt(float64(len(g))) ||
				math.Abs(dot-want.Dot) > scale*10 {
				t.Errorf("%s: norm %v sum %v dot %v, want %v %v %v", p.Name, math.Sqrt(square), sum, dot, want.Norm, want.Sum, want.Dot)
			}
			if diff := cmp.Diff(want.First, g[:len(want.First)], cmpopts.EquateApprox(1e-4, 1e-4*want.Max+1e-8)); diff != "" {
				t.Errorf("%s: first entries: %s", p.Name, diff)
			}
		}
		for name := range f.ref.Grads {
			t.Errorf("%s has a gradient in the reference and is no parameter", name)
		}
	})
}

func TestBFloat16IsNearFloat32(t *testing.T) {
	eachModel(t, torch.BFloat16, func(t *testing.T, s *torch.Scope, f folder, m *Model) {
		exact := load(t, s, f.path, torch.Float32)
		b, at, next := f.packed()
		var logp [2][]float32
		for i, m := range []*Model{exact, m} {
			h := s.IndexSelect(hidden(t, s, m, b, nil, f.seen(s, m)...), 0, torch.New(s, at))
			lp, _ := m.LogP(s, h, next, slices.Repeat([]float32{1}, len(next)))
			logp[i] = torch.Values[float32](lp)
		}
		mean := 0.0
		for i := range next {
			mean += math.Abs(float64(logp[0][i]-logp[1][i])) / float64(len(next))
		}
		if mean > 0.1 {
			t.Errorf("log-probs differ by %v on average", mean)
		}
	})
}
