package multimodal

import "math"

// taps are the weights of one output position: source positions from first on.
type taps struct {
	first   int
	weights []int32
}

// bicubic gives the taps that resample in to out positions: the cubic filter with a = −1/2, stretched where the image shrinks
// (Pillow's antialiased bicubic), in the fixed point of torch's kernel for bytes: the largest weight just fits 16 bits.
func bicubic(in, out int) (all []taps, shift int) {
	scale := float64(in) / float64(out)
	stretch := max(scale, 1)
	real := make([][]float64, out)
	all = make([]taps, out)
	largest := 0.0
	for i := range all {
		center := scale * (float64(i) + 0.5)
		first := max(int(center-2*stretch+0.5), 0)
		w := make([]float64, min(int(center+2*stretch+0.5), in)-first)
		sum := 0.0
		for j := range w {
			w[j] = cubic((float64(j+first) - center + 0.5) / stretch)
			sum += w[j]
		}
		for j := range w {
			w[j] /= sum
			largest = max(largest, w[j])
		}
		real[i], all[i].first = w, first
	}
	for shift < 22 && int(0.5+largest*float64(int(2)<<shift)) < 1<<15 {
		shift++
	}
	for i, w := range real {
		all[i].weights = make([]int32, len(w))
		for j, v := range w {
			all[i].weights[j] = int32(math.Round(v * float64(int(1)<<shift)))
		}
	}
	return all, shift
}

func cubic(x float64) float64 {
	const a = -0.5
	switch x = math.Abs(x); {
	case x < 1:
		return ((a+2)*x-(a+3))*x*x + 1
	case x < 2:
		return ((a*x-5*a)*x+8*a)*x - 4*a
	}
	return 0
}

// raster is an image of bytes, RGB a pixel, row by row.
type raster struct {
	pix           []uint8 // [height, width, 3]
	width, height int
}

// resize resamples m, columns first, each pass rounded to bytes.
func (m raster) resize(width, height int) raster {
	if width != m.width {
		m = m.resizeRows(width)
	}
	if height != m.height {
		m = m.resizeColumns(height)
	}
	return m
}

func (m raster) resizeRows(width int) raster {
	out := raster{make([]uint8, width*m.height*3), width, m.height}
	all, shift := bicubic(m.width, width)
	i := 0
	for y := range m.height {
		row := m.pix[y*m.width*3:][:m.width*3]
		for _, t := range all {
			r := int32(1) << (shift - 1)
			g, b := r, r
			src := row[t.first*3:][:len(t.weights)*3]
			for k, w := range t.weights {
				r += w * int32(src[3*k])
				g += w * int32(src[3*k+1])
				b += w * int32(src[3*k+2])
			}
			out.pix[i], out.pix[i+1], out.pix[i+2] = toByte(r>>shift), toByte(g>>shift), toByte(b>>shift)
			i += 3
		}
	}
	return out
}

func (m raster) resizeColumns(height int) raster {
	line := m.width * 3
	out := raster{make([]uint8, line*height), m.width, height}
	all, shift := bicubic(m.height, height)
	sums := make([]int32, line)
	for y, t := range all {
		for i := range sums {
			sums[i] = 1 << (shift - 1)
		}
		for k, w := range t.weights {
			for i, v := range m.pix[(t.first+k)*line:][:line] {
				sums[i] += w * int32(v)
			}
		}
		for i, v := range sums {
			out.pix[y*line+i] = toByte(v >> shift)
		}
	}
	return out
}

func toByte(v int32) uint8 { return uint8(min(max(v, 0), 255)) }
