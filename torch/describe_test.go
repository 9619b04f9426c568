package torch_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/molt-go/molt/torch"
)

func TestDescribePrintsATensorAsAPersonReadsIt(t *testing.T) {
	long := make([]float32, 5000)
	for i := range long {
		long[i] = float32(i)
	}
	do(t, func(s *Scope) {
		for _, c := range []struct {
			x    Tensor
			want string
		}{
			{New(s, []float32{1, -2, 3.5, 0, 1, 2.5}, 2, 3).RequireGrad(true), `
float32[2,3], requires grad, min -2, mean 1, max 3.5
[[ 1.0000, -2.0000,  3.5000],
 [ 0.0000,  1.0000,  2.5000]]`},
			{New(s, []float64{1, math.NaN(), math.Inf(1)}), `
float64[3], min 1, mean 1, max 1, 2 NaN or Inf
[   1,  NaN, +Inf]`},
			{New(s, []float32{1e-5, 1}), `
float32[2], min 1e-05, mean 0.5, max 1
[1.0000e-05, 1.0000e+00]`},
			{New(s, []int64{1<<53 + 1, -1}), `
int64[2]
[9007199254740993,               -1]`},
			{New(s, []bool{true, false}), `
bool[2]
[ true, false]`},
			{s.To(s.Sum(New(s, []float32{2.5})), BFloat16), `
bfloat16[]
2.5000`},
			{New(s, []float32{}), `
float32[0]
[]`},
			{New(s, []float32{}, 2, 0), `
float32[2,0]
[[],
 []]`},
			{New(s, long), `
float32[5000], min 0, mean 2499.5, max 4999
[   0,    1,    2, ..., 4997, 4998, 4999]`},
			{New(s, long, 2, 2500), `
float32[2,2500], min 0, mean 2499.5, max 4999
[[   0,    1,    2, ..., 2497, 2498, 2499],
 [2500, 2501, 2502, ..., 4997, 4998, 4999]]`},
		} {
			before := Live()
			if diff := cmp.Diff(strings.Split(c.want[1:], "\n"), strings.Split(c.x.Describe(), "\n")); diff != "" {
				t.Error(diff)
			}
			if Live() != before {
				t.Errorf("%d tensors left", Live()-before)
			}
		}
	})
}

func TestDescribeShowsUnusualTypes(t *testing.T) {
	do(t, func(s *Scope) {
		z := s.Call("aten::complex", New(s, []float32{1, 2}), New(s, []float32{0, -1}))[0]
		eighth := s.To(New(s, []float32{1, 2}), DType(24)) // float8_e4m3fn
		for x, want := range map[Tensor]string{z: "[[ 1,  0],\n [ 2, -1]]", eighth: "[1, 2]"} {
			if got := x.Describe(); !strings.HasSuffix(got, want) {
				t.Errorf("%s\ndoes not end in\n%s", got, want)
			}
		}
	})
}
