package torch

import (
	"fmt"
	"math"
	"runtime"
	"strings"
)

// Above printAll elements Describe leaves out the middle of every dimension longer than two edges.
const printAll, edge = 1000, 3

// Describe is t as a person wants to read it: type, shape, whether backward reaches it; of floating numbers the smallest, the mean
// and the largest finite one and how many are not finite; then the numbers in rows, without the middle where there are many.
func (t Tensor) Describe() string {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := open(0, 0)
	defer s.close()
	var b strings.Builder
	b.WriteString(t.String())
	if t.RequiresGrad() {
		b.WriteString(", requires grad")
	}
	x, n := s.ToDevice(s.Detach(t), CPU), t.Numel()
	switch {
	case s.Call("aten::is_complex", x)[0].Item() != 0:
		x = s.Call("aten::view_as_real", x)[0] // pairs of numbers, in one more dimension
	case s.Call("aten::is_floating_point", x)[0].Item() != 0 && t.DType().Size() == 0:
		x = s.To(x, Float32) // what float8 has no operators for
	}
	floating := s.Call("aten::is_floating_point", x)[0].Item() != 0
	if finite := s.IsFinite(x); floating && n > 1 {
		if good := s.Call("aten::masked_select", x, finite)[0]; good.Numel() > 0 {
			lo, hi := s.Call("aten::min", good)[0].Item(), s.Call("aten::max", good)[0].Item()
			fmt.Fprintf(&b, ", min %.5g, mean %.5g, max %.5g", lo, s.Call("aten::mean", good, Float64)[0].Item(), hi)
		}
		if bad := float64(n) - s.Sum(finite).Item(); bad > 0 {
			fmt.Fprintf(&b, ", %v NaN or Inf", bad)
		}
	}
	shape, elided := x.Shape(), make([]bool, len(x.Shape()))
	for d, size := range shape {
		if n > printAll && size > 2*edge {
			ids := []int64{0, 1, 2, int64(size - 3), int64(size - 2), int64(size - 1)}
			x, shape[d], elided[d] = s.IndexSelect(x, d, New(s, ids)), 2*edge, true
		}
	}
	words := words(x, floating)
	b.WriteString("\n")
	rows(&b, words, shape, elided, " ")
	return b.String()
}

// words are the numbers of x, all equally wide: whole ones without a fraction, others with four digits of it, in exponents where
// those would hide the small or stretch the large.
func words(x Tensor, floating bool) []string {
	var ws []string
	if !floating {
		for _, v := range Values[int64](x) {
			w := fmt.Sprint(v)
			if x.DType() == Bool {
				w = fmt.Sprint(v != 0)
			}
			ws = append(ws, w)
		}
	} else {
		vs, format, whole := Values[float64](x), "%.4f", true
		for _, v := range vs {
			if a := math.Abs(v); a > 0 && a < 1e-3 || a >= 1e5 && !math.IsInf(v, 0) {
				format = "%.4e"
			}
			whole = whole && (v == math.Trunc(v) || v != v)
		}
		if whole && format == "%.4f" {
			format = "%.0f"
		}
		for _, v := range vs {
			ws = append(ws, fmt.Sprintf(format, v))
		}
	}
	width := 0
	for _, w := range ws {
		width = max(width, len(w))
	}
	for i, w := range ws {
		ws[i] = strings.Repeat(" ", width-len(w)) + w
	}
	return ws
}

// rows writes words in brackets by shape, one line for each of the last dimension.
func rows(b *strings.Builder, words []string, shape []int, elided []bool, indent string) {
	if len(shape) == 0 {
		b.WriteString(words[0])
		return
	}
	b.WriteString("[")
	separator := ", "
	if len(shape) > 1 {
		separator = ",\n" + indent
	}
	for i := range shape[0] {
		if i > 0 {
			b.WriteString(separator)
		}
		if i == edge && elided[0] {
			b.WriteString("..." + separator)
		}
		n := len(words) / shape[0]
		rows(b, words[i*n:(i+1)*n], shape[1:], elided[1:], indent+" ")
	}
	b.WriteString("]")
}
