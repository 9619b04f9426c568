package torch_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/molt-go/molt/torch"
)

func TestATensorOfAFileIsItsPagesAndOutlivesTheFilesClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	const n = 1 << 20
	do(t, func(s *Scope) {
		big, half := s.Call("aten::arange", n, Float32)[0], s.To(New(s, []float32{1, -2}, 2, 1), BFloat16)
		odd := New(s, []float64{0.5}) // begins at an odd byte: after it there is one of uint8
		if err := WriteSafeTensors(path, []Entry{EntryOf("half", half), EntryOf("big", big), EntryOf("none", s.Zeros(Int64, 0, 3)),
			EntryOf("byte", New(s, []uint8{7})), EntryOf("odd", odd)}, nil); err != nil {
			t.Fatal(err)
		}
	})
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	do(t, func(s *Scope) {
		f, err := OpenSafeTensors(path)
		if err != nil {
			t.Fatal(err)
		}
		get := func(name string) Tensor {
			x, err := f.Tensor(s, name)
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		used := Memory().Used
		big, half, none, odd := get("big"), get("half"), get("none"), get("odd")
		if grown := Memory().Used - used; grown != 0 {
			t.Errorf("a mapped tensor took %d bytes", grown)
		}
		if _, err := f.Tensor(s, "absent"); err == nil {
			t.Error("an absent tensor is no error")
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Tensor(s, "big"); err == nil {
			t.Error("a tensor of a closed file is no error")
		}
		got := []any{big.String(), half.String(), none.String(), Values[float32](half), Values[float64](odd), s.Call("aten::amax", big)[0].Item()}
		want := []any{"float32[1048576]", "bfloat16[2,1]", "int64[0,3]", []float32{1, -2}, []float64{0.5}, float64(n - 1)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		s.NoGrad(func(s *Scope) Tensor { return s.Add_(big, big) })
		if v := s.Narrow(big, 0, 3, 1).Item(); v != 6 {
			t.Error("doubled to", v)
		}
	})
	after, err := os.ReadFile(path)
	if err != nil || !cmp.Equal(before, after) {
		t.Error("writing to a mapped tensor changed the file", err)
	}
}
