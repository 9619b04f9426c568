package torch_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/molt-go/molt/torch"
)

func TestCallFillsDefaultsAndChecksArgumentsAgainstTheSchema(t *testing.T) {
	do(t, func(s *Scope) {
		x := New(s, []float32{3, 1, 2})
		sorted := s.Call("aten::sort", x)
		if diff := cmp.Diff([]float32{1, 2, 3}, Values[float32](sorted[0])); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]int64{1, 2, 0}, Values[int64](sorted[1])); diff != "" {
			t.Error(diff)
		}
		parts := s.Call("aten::split_with_sizes", x, []int{1, 2})
		if len(parts) != 2 || parts[1].Dim(0) != 2 {
			t.Error("split", parts)
		}
		if v := s.Call("aten::_local_scalar_dense", s.Sum(x))[0].Item(); v != 6 {
			t.Error("a scalar result", v)
		}
		norms := s.Call("aten::_foreach_norm.Scalar", make20(x), 2)
		if len(norms) != 20 || math.Abs(norms[19].Item()-math.Sqrt(14)) > 1e-6 {
			t.Error("a list of 20 results:", len(norms))
		}
	})
	fails(t, "argument 2 (other) must be Tensor, not a float; the schema is "+
		"aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1)", func(s *Scope) {
		s.Call("aten::add.Tensor", New(s, []float32{1}), 2.5)
	})
	fails(t, "too many arguments", func(s *Scope) { s.Call("aten::relu", New(s, []float32{1}), 1, 2, 3) })
	fails(t, "argument 2 (other) must be Tensor, not missing", func(s *Scope) { s.Call("aten::add.Tensor", New(s, []float32{1})) })
	fails(t, "no_such", func(s *Scope) { s.Call("aten::no_such") })
	fails(t, "argument 1 (self) must be Tensor, not a Go struct {} (Call takes Tensor, int,", func(s *Scope) { s.Call("aten::relu", struct{}{}) })
}

func make20(x Tensor) []Tensor {
	ts := make([]Tensor, 20)
	for i := range ts {
		ts[i] = x
	}
	return ts
}

func TestCallTakesEveryKindOfArgument(t *testing.T) {
	do(t, func(s *Scope) {
		x, y := New(s, []float32{1, 2}), New(s, []float32{3, 4})
		for name, c := range map[string]struct {
			got  []Tensor
			want []float64
		}{
			"a list of numbers from ints":   {s.Call("aten::_foreach_add.ScalarList", []Tensor{x, y}, []int{1, 2}), []float64{2, 3, 5, 6}},
			"a list of numbers from floats": {s.Call("aten::_foreach_mul.ScalarList", []Tensor{x, y}, []float64{.5, 2}), []float64{.5, 1, 6, 8}},
			"a list of numbers from bools":  {s.Call("aten::_foreach_add.ScalarList", []Tensor{x, y}, []bool{true, false}), []float64{2, 3, 3, 4}},
			"a list of optional tensors": {s.Call("aten::index.Tensor", New(s, []float32{1, 2, 3, 4}, 2, 2),
				[]Tensor{{}, New(s, []int64{1})}), []float64{2, 4}},
			"an optional tensor and a string": {s.Call("aten::div.Tensor_mode", y, New(s, []float32{2, 3}), "floor"), []float64{1, 1}},
			"a dtype and a device":            {s.Call("aten::zeros", []int{2}, Int64, nil, "cpu"), []float64{0, 0}},
			"an optional float":               {s.Call("aten::logit", New(s, []float64{0.5}), 0.25), []float64{0}},
			"a list of strings": {s.Call("aten::sum.dim_DimnameList",
				s.Call("aten::rename", x, []string{"dimname::n"})[0], []string{"dimname::n"}), []float64{3}},
		} {
			var got []float64
			for _, t := range c.got {
				got = append(got, Values[float64](t)...)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(name, diff)
			}
		}
	})
	fails(t, "argument 2 (scalars) must be Scalar[], not a list of strings", func(s *Scope) {
		s.Call("aten::_foreach_add.ScalarList", []Tensor{New(s, []float32{1})}, []string{"a"})
	})
	fails(t, "nonsense", func(s *Scope) { s.Call("aten::zeros", []int{2}, nil, nil, "nonsense") })
}

func TestCallReturnsAsManyResultsAsThereAre(t *testing.T) {
	do(t, func(s *Scope) {
		before := Live()
		x := New(s, make([]int64, 1000))
		s.Call("aten::add_.Tensor", x, s.Call("aten::arange", 1000)[0])
		parts := s.Call("aten::unbind.int", x)
		if len(parts) != 1000 || parts[3].Item() != 3 || parts[999].Item() != 999 {
			t.Errorf("%d results of unbind", len(parts))
		}
		if n := Live() - before; n != 1002 {
			t.Errorf("%d handles for 1002 tensors", n)
		}
		if n := len(s.Call("aten::_foreach_add_.Scalar", parts, 1)); n != 0 {
			t.Errorf("%d results of an operator without", n)
		}
	})
}

func TestAGeneratorIsTheSeedOfItsOwn(t *testing.T) {
	do(t, func(s *Scope) {
		draw := func(seed any) []float32 { return Values[float32](s.Call("aten::randn.generator", []int{4}, seed)[0]) }
		if diff := cmp.Diff(draw(7), draw(7)); diff != "" {
			t.Error("equal seeds draw different numbers:", diff)
		}
		if cmp.Equal(draw(7), draw(8)) || cmp.Equal(draw(nil), draw(nil)) {
			t.Error("different draws are equal")
		}
		var twice [2][]float32
		for i := range twice {
			if err := Seed(5); err != nil {
				t.Fatal(err)
			}
			twice[i] = Values[float32](s.Randn(4))
		}
		if diff := cmp.Diff(twice[0], twice[1]); diff != "" {
			t.Error("Seed does not repeat:", diff)
		}
	})
}

func TestOneIntStandsForAListOfTheSchemasLength(t *testing.T) {
	do(t, func(s *Scope) {
		x := s.Randn(1, 2, 6, 6)
		a, b := s.Call("aten::adaptive_avg_pool2d", x, 2)[0], s.Call("aten::adaptive_avg_pool2d", x, []int{2, 2})[0]
		if diff := cmp.Diff(Values[float32](b), Values[float32](a)); diff != "" {
			t.Error(diff)
		}
	})
	fails(t, "argument 2 (output_size) must be int[], not a list of another length", func(s *Scope) {
		s.Call("aten::adaptive_avg_pool2d", s.Randn(1, 2, 6, 6), []int{2, 2, 2})
	})
}

func TestCallRefusesWhatLibtorchWouldTrust(t *testing.T) {
	for want, f := range map[string]func(s *Scope){
		"argument 2 (memory_format) must be int?, not a number that stands for none": func(s *Scope) {
			s.Call("aten::clone", s.Randn(2, 3), 4)
		},
		"no operator has a NUL in its name": func(s *Scope) { s.Call("aten::relu\x00more", s.Randn(1)) },
		"not with none at 1":                func(s *Scope) { s.Call("aten::cat", []Tensor{s.Randn(1), {}}) },
		"0 threads: want at least 1":        func(s *Scope) { s.SetThreads(0) },
		"more numbers than a slice holds": func(s *Scope) {
			Values[float32](s.Call("aten::expand", s.Randn(1), []int{1 << 50})[0])
		},
		"this type has no known size": func(s *Scope) { Bytes(s.Call("aten::complex", s.Randn(2), s.Randn(2))[0]) },
		"view_as_real":                func(s *Scope) { Values[float32](s.Call("aten::complex", s.Randn(2), s.Randn(2))[0]) },
	} {
		fails(t, want, f)
	}
	if err := Do(0, func(*Scope) error { return nil }); err == nil {
		t.Error("Do of no thread is no error")
	}
	if err := Do(1<<40, func(s *Scope) error { s.MatMul(s.Randn(512, 512), s.Randn(512, 512)); return nil }); err != nil {
		t.Error(err)
	}
}

func TestNamedTypesOfNumbersAreNumbers(t *testing.T) {
	type celsius float32
	do(t, func(s *Scope) {
		if diff := cmp.Diff([]celsius{20.5}, Values[celsius](New(s, []celsius{20.5}))); diff != "" {
			t.Error(diff)
		}
	})
}
