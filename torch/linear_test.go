package torch_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"testing"

	. "github.com/molt-go/molt/torch"
)

// Shapes with rests: rows of 1 to 200, lengths and columns that no register divides, and those that tiles take.
var products = []struct{ m, n, k int }{
	{1, 1, 1}, {2, 3, 5}, {3, 49, 33}, {7, 16, 32}, {16, 48, 64}, {17, 50, 96}, {33, 112, 31}, {70, 96, 160}, {200, 33, 17}, {129, 208, 576},
}

func TestProductsEqualThoseInDoublePrecision(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	do(t, func(s *Scope) {
		for _, c := range products {
			for _, d := range []DType{Float32, BFloat16} {
				xT, wT := s.To(New(s, random(r, c.m*c.k), c.m, c.k), d), s.To(New(s, random(r, c.n*c.k), c.n, c.k), d)
				bT := s.To(New(s, random(r, c.n)), d)
				x, w, b := Values[float32](s.To(xT, Float32)), Values[float32](s.To(wT, Float32)), Values[float32](s.To(bT, Float32))
				plain, biased := Values[float32](s.To(s.Linear(xT, wT, Tensor{}), Float32)), Values[float32](s.To(s.Linear(xT, wT, bT), Float32))
				for i := range c.m * c.n {
					sum, size := 0.0, 0.0
					for l := range c.k {
						p := float64(x[i/c.n*c.k+l]) * float64(w[i%c.n*c.k+l])
						sum, size = sum+p, size+math.Abs(p)
					}
					bias := float64(b[i%c.n])
					tolerance := map[DType]float64{Float32: 1e-7, BFloat16: 1.0 / 256}[d] // half a step
					for _, f := range []struct{ got, want float64 }{{float64(plain[i]), sum}, {float64(biased[i]), sum + bias}} {
						if off := math.Abs(f.got - f.want); !(off <= tolerance*math.Abs(f.want)+1e-6*size) {
							t.Fatalf("%v %s: element %d is %v, want %v", c, d, i, f.got, f.want)
						}
					}
				}
			}
		}
	})
}

func TestARowOfAProductDependsOnNoOther(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range products {
		x, w := random(r, c.m*c.k), random(r, c.n*c.k)
		for _, d := range []DType{Float32, BFloat16} {
			product := func(threads, first, rows int) (y []float32) {
				if err := Do(threads, func(s *Scope) error {
					xT, wT := s.To(New(s, x[first*c.k:(first+rows)*c.k], rows, c.k), d), s.To(New(s, w, c.n, c.k), d)
					y = Values[float32](s.To(s.Linear(xT, wT, Tensor{}), Float32))
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				return y
			}
			all := product(2, 0, c.m)
			for first := 0; first < c.m; first += 1 + c.m/9 {
				for _, rows := range []int{1, (c.m - first + 1) / 2, c.m - first} {
					if got := product(1, first, rows); !slices.Equal(got, all[first*c.n:(first+rows)*c.n]) {
						t.Fatalf("%v %s: rows %d to %d alone have other bits than among all", c, d, first, first+rows)
					}
				}
			}
		}
	}
}

// Sequences that decode after one prompt fetch its keys together; a row has the bits that it has alone, with windows too.
func TestARowThatSharesItsKeysHasTheBitsThatItHasAlone(t *testing.T) {
	const prompt, hq, hkv, dim = 150, 9, 3, 64
	for _, d := range []DType{Float32, BFloat16} {
		do(t, func(s *Scope) {
			r := rand.New(rand.NewPCG(5, 6))
			var rows, ranges []int32
			seqs, slots := []int32{0}, int32(2*prompt)
			for i := range int32(21) {
				own, first := 1+7*i%90, prompt*int32(max(0, i-18)/2) // the last two have another prompt
				cut := 64 + 8*(i/12)                                 // ranges of the prompt break at several places
				ranges = append(ranges, first, cut, first+cut, prompt-cut, slots, own)
				slots += own
				seqs = append(seqs, int32(len(ranges)/2))
				rows = append(rows, i, i%3*60, prompt+own)
			}
			n := len(rows) / 3
			q := s.To(New(s, random(r, n*hq*dim), n, hq, dim), d)
			k := s.To(New(s, random(r, int(slots)*hkv*dim), int(slots), hkv, dim), d)
			v := s.To(New(s, random(r, int(slots)*hkv*dim), int(slots), hkv, dim), d)
			seqsT, rangesT := New(s, seqs), New(s, ranges, len(ranges)/2, 2)
			all := s.Attention(q, k, v, New(s, rows, n, 3), seqsT, rangesT, 0.125, 0)
			for i := range n {
				alone := s.Attention(s.Narrow(q, 0, i, 1), k, v, New(s, rows[3*i:3*i+3], 1, 3), seqsT, rangesT, 0.125, 0)
				if !slices.Equal(Values[float32](s.To(s.Narrow(all, 0, i, 1), Float32)), Values[float32](s.To(alone, Float32))) {
					t.Errorf("%v: row %d has other bits among others", d, i)
				}
			}
		})
	}
}

// The kernels of older processors, as far as this one has their instructions.
func TestKernelsOfEveryInstructionSet(t *testing.T) {
	if os.Getenv("MOLT_ISA") != "" {
		return
	}
	for isa := range 4 {
		cmd := exec.Command(os.Args[0], "-test.run=^Test(Product|ARow|AttentionAnd|AttentionRow|Pointwise|LMLogP|LogProb|Sample|Infinitely)")
		cmd.Env = append(os.Environ(), fmt.Sprint("MOLT_ISA=", isa))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("instruction set %d: %v\n%s", isa, err, out)
		}
	}
}

func TestMOLTISAOutsideItsNumbersIsAnError(t *testing.T) {
	if os.Getenv("MOLT_ISA") == "" {
		for _, isa := range []string{"-1", "5", "avx2", "12"} {
			cmd := exec.Command(os.Args[0], "-test.run=^TestMOLTISA")
			cmd.Env = append(os.Environ(), "MOLT_ISA="+isa)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("MOLT_ISA=%s: %v\n%s", isa, err, out)
			}
		}
		return
	}
	fails(t, "MOLT_ISA must be 0 to 4, not '"+os.Getenv("MOLT_ISA")+"'", func(s *Scope) {
		x := New(s, []float32{1}, 1, 1)
		s.Linear(x, x, Tensor{})
	})
}
