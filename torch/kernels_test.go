package torch_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/molt-go/molt/torch"
)

func random(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// layout is one packed batch: two sequences that share a prompt, one with a window, one padding row that sees nothing.
type layout struct{ rows, seqs, ranges []int32 }

var shared = func() layout {
	var l layout
	see := func(b, lo, hi int) { l.rows = append(l.rows, int32(b), int32(lo), int32(hi)) }
	const prompt, own = 70, 5 // the prompt crosses a tile
	for i := range prompt {
		see(0, 0, i+1)
	}
	for b := 1; b <= 2; b++ {
		for i := range own {
			lo := 0
			if b == 2 {
				lo = max(0, prompt+i+1-9)
			}
			see(b, lo, prompt+i+1)
		}
	}
	see(2, 0, 0)
	l.ranges = []int32{0, prompt, 0, prompt, prompt, own, 0, prompt, prompt + own, own + 1}
	l.seqs = []int32{0, 1, 3, 5}
	return l
}()

func (l layout) n() int { return len(l.rows) / 3 }

func (l layout) tensors(s *Scope) (rows, seqs, ranges Tensor) {
	return New(s, l.rows, l.n(), 3), New(s, l.seqs), New(s, l.ranges, len(l.ranges)/2, 2)
}

// mask [N,S] is 0 where a row sees a slot and a large negative number elsewhere.
func (l layout) mask() []float32 {
	n := l.n()
	m := make([]float32, n*n)
	for i := range m {
		m[i] = -1e30
	}
	for i := range n {
		b, lo, hi := l.rows[3*i], int(l.rows[3*i+1]), int(l.rows[3*i+2])
		j := 0
		for r := l.seqs[b]; r < l.seqs[b+1]; r++ {
			for k := range l.ranges[2*r+1] {
				if j >= lo && j < hi {
					m[i*n+int(l.ranges[2*r]+k)] = 0
				}
				j++
			}
		}
	}
	return m
}

// plainAttention computes the same with ATen's products: q [N,Hq,D], k and v [N,Hkv,D].
func plainAttention(s *Scope, q, k, v, mask Tensor, scale, softcap float64) Tensor {
	hq, hkv := q.Dim(1), k.Dim(1)
	var heads []Tensor
	for h := range hq {
		one := func(x Tensor, h int) Tensor { return s.Reshape(s.Narrow(x, 1, h, 1), x.Dim(0), x.Dim(2)) }
		w := s.MulScalar(s.MatMul(one(q, h), s.Transpose(one(k, h*hkv/hq), 0, 1)), scale)
		if softcap != 0 {
			w = s.MulScalar(s.Call("aten::tanh", s.MulScalar(w, 1/softcap))[0], softcap)
		}
		p := s.Exp(s.LogSoftmax(s.Add(w, mask), -1))
		heads = append(heads, s.MatMul(p, one(v, h*hkv/hq)))
	}
	return s.Call("aten::stack", heads, 1)[0]
}

func TestAttentionAndItsGradientsEqualPlainProducts(t *testing.T) {
	for _, c := range []struct {
		hq, hkv, d int
		softcap    float64
	}{{4, 2, 16, 0}, {9, 3, 64, 0}, {3, 3, 24, 0}, {10, 2, 8, 5}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			do(t, func(s *Scope) {
				r := rand.New(rand.NewPCG(1, 2))
				n := shared.n()
				q := New(s, random(r, n*c.hq*c.d), n, c.hq, c.d).RequireGrad(true)
				k := New(s, random(r, n*c.hkv*c.d), n, c.hkv, c.d).RequireGrad(true)
				v := New(s, random(r, n*c.hkv*c.d), n, c.hkv, c.d).RequireGrad(true)
				g := random(r, n*c.hq*c.d)
				clear(g[(n-1)*c.hq*c.d:]) // the padding row's plain softmax is uniform, ours is 0
				dout := New(s, g, n, c.hq, c.d)
				rows, seqs, ranges := shared.tensors(s)
				scale := 1 / math.Sqrt(float64(c.d))
				ours := s.Attention(q, k, v, rows, seqs, ranges, scale, c.softcap)
				plain := plainAttention(s, q, k, v, New(s, shared.mask(), n, n), scale, c.softcap)
				real := (n - 1) * c.hq * c.d
				if diff := cmp.Diff(Values[float32](plain)[:real], Values[float32](ours)[:real], approx(2e-5)); diff != "" {
					t.Error("outputs differ:", diff)
				}
				for _, x := range Values[float32](ours)[real:] {
					if x != 0 {
						t.Fatal("a row that sees no key gives", x)
					}
				}
				a := s.Gradients([]Tensor{ours}, []Tensor{dout}, []Tensor{q, k, v})
				b := s.Gradients([]Tensor{plain}, []Tensor{dout}, []Tensor{q, k, v})
				for i, name := range []string{"q", "k", "v"} {
					if diff := cmp.Diff(Values[float32](b[i]), Values[float32](a[i]), approx(1e-4)); diff != "" {
						t.Errorf("gradients of %s differ: %s", name, diff)
					}
				}
			})
		})
	}
}

// A row alone gives the same bits as among others, in both dtypes: the engine's decode step and the trainer's packed rows agree.
func TestAttentionRowDoesNotDependOnTheBatch(t *testing.T) {
	for _, d := range []DType{Float32, BFloat16} {
		do(t, func(s *Scope) {
			r := rand.New(rand.NewPCG(3, 4))
			n, hq, hkv, dim := shared.n(), 9, 3, 64
			q := s.To(New(s, random(r, n*hq*dim), n, hq, dim), d)
			k, v := s.To(New(s, random(r, n*hkv*dim), n, hkv, dim), d), s.To(New(s, random(r, n*hkv*dim), n, hkv, dim), d)
			rows, seqs, ranges := shared.tensors(s)
			all := s.Attention(q, k, v, rows, seqs, ranges, 0.125, 0)
			for _, i := range []int{0, 63, 64, 69, 72, n - 2} {
				alone := s.Attention(s.Narrow(q, 0, i, 1), k, v, New(s, shared.rows[3*i:3*i+3], 1, 3), seqs, ranges, 0.125, 0)
				if diff := cmp.Diff(Values[float32](s.Narrow(all, 0, i, 1)), Values[float32](alone)); diff != "" {
					t.Errorf("%v row %d: %s", d, i, diff)
				}
			}
		})
	}
}

func TestPointwiseKernelsAndTheirGradientsEqualATen(t *testing.T) {
	do(t, func(s *Scope) {
		r := rand.New(rand.NewPCG(5, 6))
		const n, h = 70, 40 // not a multiple of 16
		x, y, w := New(s, random(r, n*h), n, h).RequireGrad(true), New(s, random(r, n*h), n, h).RequireGrad(true), New(s, random(r, h)).RequireGrad(true)
		ga, gb := New(s, random(r, n*h), n, h), New(s, random(r, n*h), n, h)
		total, normed := s.AddRMSNorm(x, y, w, 1e-5)
		plainTotal := s.Add(x, y)
		plain := s.Call("aten::rms_norm", plainTotal, []int{h}, w, 1e-5)[0]
		compare(t, s, "add_rms_norm", []Tensor{total, normed}, []Tensor{plainTotal, plain}, []Tensor{ga, gb}, []Tensor{x, y, w})
		_, normed = s.AddRMSNorm(x, Tensor{}, w, 1e-5)
		compare(t, s, "rms_norm", []Tensor{normed}, []Tensor{s.Call("aten::rms_norm", x, []int{h}, w, 1e-5)[0]}, []Tensor{ga}, []Tensor{x, w})

		gu := s.Cat(1, x, y)
		compare(t, s, "silu", []Tensor{s.SiLUMul(gu)}, []Tensor{s.Mul(s.Call("aten::silu", x)[0], y)}, []Tensor{ga}, []Tensor{x, y})
		gelu := s.Mul(s.Call("aten::gelu", x, "tanh")[0], y)
		compare(t, s, "gelu", []Tensor{s.GELUMul(gu)}, []Tensor{gelu}, []Tensor{ga}, []Tensor{x, y})
		capped := s.MulScalar(s.Call("aten::tanh", s.MulScalar(x, 0.5))[0], 2)
		if diff := cmp.Diff(Values[float32](capped), Values[float32](s.SoftCap(x, 2)), approx(1e-6)); diff != "" {
			t.Error("softcap:", diff)
		}

		const d = h / 4 // 4 heads
		angle := New(s, random(r, n*d/2), n, d/2)
		cos, sin := s.Call("aten::cos", angle)[0], s.Call("aten::sin", angle)[0]
		x3 := s.Reshape(x, n, 4, d)
		a, b := s.Narrow(x3, 2, 0, d/2), s.Narrow(x3, 2, d/2, d/2)
		c3, s3 := s.Reshape(cos, n, 1, d/2), s.Reshape(sin, n, 1, d/2)
		turned := s.Cat(2, s.Sub(s.Mul(a, c3), s.Mul(b, s3)), s.Add(s.Mul(b, c3), s.Mul(a, s3)))
		compare(t, s, "rotary", []Tensor{s.Rotary(x3, cos, sin)}, []Tensor{turned}, []Tensor{s.Reshape(ga, n, 4, d)}, []Tensor{x})
	})
}

func compare(t *testing.T, s *Scope, name string, ours, plain, grads, inputs []Tensor) {
	t.Helper()
	for i := range ours {
		if diff := cmp.Diff(Values[float32](plain[i]), Values[float32](ours[i]), approx(1e-5)); diff != "" {
			t.Errorf("%s, output %d: %s", name, i, diff)
		}
	}
	a, b := s.Gradients(ours, grads, inputs), s.Gradients(plain, grads, inputs)
	for i := range inputs {
		if diff := cmp.Diff(Values[float32](b[i]), Values[float32](a[i]), approx(5e-5)); diff != "" {
			t.Errorf("%s, gradient %d: %s", name, i, diff)
		}
	}
}

func TestLMLogPAndItsGradientsEqualLogSoftmaxWhateverTheChunk(t *testing.T) {
	for _, c := range []struct {
		chunk   int
		softcap float64
	}{{100, 0}, {7, 0}, {16, 3}} {
		do(t, func(s *Scope) {
			r := rand.New(rand.NewPCG(7, 8))
			const n, d, v, k = 21, 12, 1500, 2
			h, w := New(s, random(r, n*d), n, d).RequireGrad(true), New(s, random(r, v*d), v, d).RequireGrad(true)
			ids, invT := make([]int64, n*k), make([]float32, n)
			for i := range ids {
				ids[i] = r.Int64N(v)
			}
			for i := range invT {
				invT[i] = 0.5 + r.Float32()
			}
			id, it := New(s, ids, n, k), New(s, invT)
			logp, entropy := s.LMLogP(h, w, id, it, c.softcap, c.chunk)
			l := s.MatMul(h, s.Transpose(w, 0, 1))
			if c.softcap != 0 {
				l = s.MulScalar(s.Call("aten::tanh", s.MulScalar(l, 1/c.softcap))[0], c.softcap)
			}
			lsm := s.LogSoftmax(s.Mul(l, s.Reshape(it, n, 1)), -1)
			plainLogp := s.Call("aten::gather", lsm, 1, id)[0]
			plainEntropy := s.Neg(s.Call("aten::sum.dim_IntList", s.Mul(s.Exp(lsm), lsm), []int{-1})[0])
			ga, gb := New(s, random(r, n*k), n, k), New(s, random(r, n))
			compare(t, s, fmt.Sprint("lm_logp ", c), []Tensor{logp, entropy}, []Tensor{plainLogp, plainEntropy}, []Tensor{ga, gb}, []Tensor{h, w})
		})
	}
}

// For logits [1,0,-1,-2] and token 0: log-prob -0.4401897 at T=1, -0.1450779 at T=0.5.
func TestLogProbIsOfTheSampledTemperature(t *testing.T) {
	do(t, func(s *Scope) {
		logits := New(s, []float32{1, 0, -1, -2, 1, 0, -1, -2}, 2, 4)
		eye := s.Call("aten::eye", 4, Float32)[0]
		logp, _ := s.LMLogP(logits, eye, New(s, []int64{0, 0}, 2, 1), New(s, []float32{1, 2}), 0, 8)
		if diff := cmp.Diff([]float32{-0.4401897, -0.1450779}, Values[float32](logp), approx(1e-6)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSampleInvertsTheCumulativeDistribution(t *testing.T) {
	do(t, func(s *Scope) {
		p := []float64{0.1, 0.2, 0.3, 0.4}
		row := make([]float32, 4)
		for i := range p {
			row[i] = float32(math.Log(p[i]))
		}
		us := []float64{0, 0.099, 0.101, 0.299, 0.301, 0.599, 0.601, 0.999999999, 0.5}
		invT := []float32{1, 1, 1, 1, 1, 1, 1, 1, 0}
		var all []float32
		for range us {
			all = append(all, row...)
		}
		ids, logp, _ := s.Sample(New(s, all, len(us), 4), New(s, invT), New(s, us), Tensor{})
		want := []int64{0, 0, 1, 1, 2, 2, 3, 3, 3}
		if diff := cmp.Diff(want, Values[int64](ids)); diff != "" {
			t.Error(diff)
		}
		for i, lp := range Values[float32](logp) {
			if math.Abs(float64(lp)-math.Log(p[want[i]])) > 1e-6 {
				t.Errorf("log-prob %d is %v", i, lp)
			}
		}
	})
}

// A min-p above 1 would leave no token at all.
func TestTheLargestLogitStaysWhateverTheMinP(t *testing.T) {
	do(t, func(s *Scope) {
		row := make([]float32, 5000)
		row[4321] = 3
		for _, cuts := range [][]float64{{0, 0, 1.5}, {0, 0.9, math.Inf(1)}, {10, 0, 2}} {
			ids, _, _ := s.Sample(New(s, row, 1, len(row)), New(s, []float32{1}), New(s, []float64{0.7}), New(s, cuts, 1, 3))
			if ids.Item() != 4321 {
				t.Errorf("cuts %v: token %v", cuts, ids.Item())
			}
		}
	})
}

// However small the temperature, log-probs are right to float32's last digits, in Sample and LMLogP with the same bits, and so are the
// entropy and the gradient.
func TestLogProbsKeepTheirDigitsAtAnyTemperature(t *testing.T) {
	do(t, func(s *Scope) {
		r := rand.New(rand.NewPCG(9, 10))
		const v = 1500
		eye := s.Call("aten::eye", v, Float32)[0]
		for _, temperature := range []float64{1e-6, 1e-3, 0.05, 1, 30} {
			x := random(r, v)
			for i := range x {
				x[i] = 20 + 3*x[i]
			}
			near := slices.Max(x) // some are near the largest
			for i := range 5 {
				x[300*i] = float32(float64(near) - float64(i)*temperature)
			}
			x[7] = near - float32(15*temperature) // leaves 1 - 1e-7 and less to the rest where few others are near
			invT := float32(1 / temperature)
			top, sum, mean := float64(slices.Max(x)), 0.0, 0.0
			z := func(i int) float64 { return (float64(x[i]) - top) * float64(invT) }
			for i := range x {
				sum += math.Exp(z(i))
				mean += math.Exp(z(i)) * z(i)
			}
			entropy := math.Log(sum) - mean/sum
			for _, i := range []int{0, 300, 600, 900, 7} {
				h := New(s, x, 1, v).RequireGrad(true)
				logp, ent := s.LMLogP(h, eye, New(s, []int64{int64(i)}, 1, 1), New(s, []float32{invT}), 0, 8)
				_, _, stats := s.Sample(New(s, x, 1, v), New(s, []float32{invT}), New(s, []float64{0.5}), Tensor{})
				st := Values[float32](stats)
				want := z(i) - math.Log(sum)
				if got := logp.Item(); math.Abs(got-want) > 2e-7*(1+math.Abs(want)) {
					t.Errorf("temperature %v: log-prob %v, want %v", temperature, got, want)
				}
				if got := float64(float32(math.FMA(float64(x[i])-float64(st[0]), float64(invT), -float64(st[1])))); got != logp.Item() {
					t.Errorf("temperature %v: log-prob %v by Sample's stats, %v by LMLogP", temperature, got, logp.Item())
				}
				if got := ent.Item(); math.Abs(got-entropy) > 1e-6*(1+entropy) {
					t.Errorf("temperature %v: entropy %v, want %v", temperature, got, entropy)
				}
				for j, g := range Values[float32](s.Gradients([]Tensor{logp}, []Tensor{New(s, []float32{1}, 1, 1)}, []Tensor{h})[0]) {
					p := math.Exp(z(j)) / sum
					if d := -p; j != i && math.Abs(float64(g)-d*float64(invT)) > 1e-6*float64(invT)*p*(1-z(j))+1e-30 {
						t.Fatalf("temperature %v: gradient %d is %v, want %v", temperature, j, g, d*float64(invT))
					}
				}
			}
		}
	})
}

// A logit of -Inf has probability 0, and what else is computed stays finite.
func TestInfinitelySmallLogitsHaveNoPart(t *testing.T) {
	do(t, func(s *Scope) {
		inf := float32(math.Inf(1))
		h := New(s, []float32{1, 0, -1e38, -1}, 1, 4).RequireGrad(true)
		logp, entropy := s.LMLogP(h, s.Call("aten::eye", 4, Float32)[0], New(s, []int64{0}, 1, 1), New(s, []float32{1e3}), 0, 8)
		for _, g := range Values[float32](s.Gradients([]Tensor{logp, entropy}, []Tensor{New(s, []float32{1}, 1, 1), New(s, []float32{1})}, []Tensor{h})[0]) {
			if g != 0 {
				t.Errorf("gradient %v of a certain token", g)
			}
		}
		ids, lp, _ := s.Sample(New(s, []float32{-inf, 2, -inf}, 1, 3), New(s, []float32{1}), New(s, []float64{0.3}), Tensor{})
		if ids.Item() != 1 || lp.Item() != 0 || entropy.Item() != 0 {
			t.Errorf("token %v with log-prob %v; entropy %v", ids.Item(), lp.Item(), entropy.Item())
		}
	})
}

// What the kernels use as an index is checked, whoever calls them.
func TestAttentionRefusesIndicesOutOfBounds(t *testing.T) {
	for want, c := range map[string]struct{ rows, seqs, ranges []int32 }{
		"row 0 is of sequence 1, seqs has 1":                      {[]int32{1, 0, 1}, []int32{0, 1}, []int32{0, 2}},
		"row 0 is of sequence -1, seqs has 1":                     {[]int32{-1, 0, 1}, []int32{0, 1}, []int32{0, 2}},
		"row 0 is of sequence 0, seqs has 0":                      {[]int32{0, 0, 1}, []int32{0}, []int32{0, 2}},
		"row 0 is of sequence 0, seqs has -1":                     {[]int32{0, 0, 1}, []int32{}, []int32{0, 2}},
		"sequence 0 has ranges 0 to 2 of 1":                       {[]int32{0, 0, 1}, []int32{0, 2}, []int32{0, 2}},
		"sequence 0 has ranges 1 to 0 of 1":                       {[]int32{0, 0, 1}, []int32{1, 0}, []int32{0, 2}},
		"range 0 is slots 1 to 3 of 2":                            {[]int32{0, 0, 1}, []int32{0, 1}, []int32{1, 2}},
		"range 0 is slots -2 to 0 of 2":                           {[]int32{0, 0, 1}, []int32{0, 1}, []int32{-2, 2}},
		"range 0 is slots 2147483647 to 4294967294 of 2":          {[]int32{0, 0, 1}, []int32{0, 1}, []int32{1<<31 - 1, 1<<31 - 1}},
		"row 0 sees keys 0 to 3; sequence 0 has 0 to 2":           {[]int32{0, 0, 3}, []int32{0, 1}, []int32{0, 2}},
		"row 0 sees keys 2 to 1; sequence 0 has 0 to 2":           {[]int32{0, 2, 1}, []int32{0, 1}, []int32{0, 2}},
		"row 0 sees keys -1 to 1; sequence 0 has 0 to 2":          {[]int32{0, -1, 1}, []int32{0, 1}, []int32{0, 2}},
		"row 0 sees keys 1 to 4; sequence 0 has 2 to 4":           {[]int32{0, 1, 4}, []int32{0, 2}, []int32{-1, 2, 0, 2}},
		"sequence 0 has 2147483647 keys":                          {[]int32{0, 1<<31 - 3, 1<<31 - 1}, []int32{0, 2}, []int32{-1, 1<<31 - 3, 0, 2}},
		"rows must be contiguous int32 of 3 columns":              {[]int32{0, 0}, []int32{0, 1}, []int32{0, 2}},
		"rows must have a line for each of the 1 query rows, not": {[]int32{0, 0, 1, 0, 0, 1}, []int32{0, 1}, []int32{0, 2}},
	} {
		fails(t, want, func(s *Scope) {
			table := func(x []int32, columns int) Tensor { return New(s, x, len(x)/columns, columns) }
			columns := 3
			if len(c.rows) == 2 {
				columns = 2
			}
			q, kv := s.Randn(1, 2, 8), s.Randn(2, 1, 8)
			s.Attention(q, kv, kv, table(c.rows, columns), New(s, c.seqs), table(c.ranges, 2), 1, 0)
		})
	}
	fails(t, "the query heads (2) must be a multiple of the key heads (0)", func(s *Scope) {
		kv := s.Randn(2, 0, 8)
		s.Attention(s.Randn(1, 2, 8), kv, kv, New(s, []int32{0, 0, 1}, 1, 3), New(s, []int32{0, 1}), New(s, []int32{0, 2}, 1, 2), 1, 0)
	})
	fails(t, "cuts must be contiguous float64 [2,3]", func(s *Scope) {
		s.Sample(s.Randn(2, 5), New(s, []float32{1, 1}), New(s, []float64{0, 0}), New(s, []float64{0, 0, 0}))
	})
	fails(t, "logits must be contiguous [rows, vocabulary]", func(s *Scope) {
		s.Call("molt::sample", s.Randn(2, 0), New(s, []float32{1, 1}), New(s, []float64{0, 0}))
	})
}

// One head lies anyhow: the stride between heads says nothing.
func TestOneHeadNeedsNoStride(t *testing.T) {
	do(t, func(s *Scope) {
		angles := s.Randn(5, 2)
		x := s.Randn(1, 5, 4)
		plain := s.Rotary(s.Reshape(x, 5, 1, 4), angles, angles)
		if diff := cmp.Diff(Values[float32](plain), Values[float32](s.Rotary(s.Transpose(x, 0, 1), angles, angles))); diff != "" {
			t.Error(diff)
		}
		y := s.Rotary(s.Randn(5, 1, 4).RequireGrad(true), angles, angles)
		s.Backward([]Tensor{s.Transpose(y, 0, 1)}, []Tensor{s.Randn(1, 5, 4)})
	})
}
