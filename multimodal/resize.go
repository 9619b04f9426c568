package multimodal

import "math"

// raster is an image of bytes.
type raster struct {
	pix           []uint8 // [height, width, RGB]
	width, height int
}

// resize resamples m with the antialiased bicubic filter of torchvision on bytes: first along its rows, then along its columns.
func (m raster) resize(width, height int) raster {
	if width != m.width {
		m = raster{resample(m.pix, m.width, width, 3), width, m.height}
	}
	if height != m.height {
		m = raster{resample(m.pix, m.height, height, 3*m.width), m.width, height}
	}
	return m
}

// resample turns pix [n, in, line] into [n, out, line]: sums of lines in fixed point, rounded to bytes.
func resample(pix []uint8, in, out, line int) []uint8 {
	all, shift := bicubic(in, out)
	result := make([]uint8, 0, len(pix)/in*out)
	sums := make([]int32, line)
	for ; len(pix) > 0; pix = pix[in*line:] {
		for _, t := range all {
			for i := range sums {
				sums[i] = 1 << (shift - 1)
			}
			for k, w := range t.weights {
				src := pix[(t.first+k)*line:][:len(sums)]
				for i := range sums {
					sums[i] += w * int32(src[i])
				}
			}
			for _, v := range sums {
				result = append(result, toByte(v>>shift))
			}
		}
	}
	return result
}

func toByte(v int32) uint8 { return uint8(min(max(v, 0), 255)) }

// taps are the weights of one output position: input positions from first on.
type taps struct {
	first   int
	weights []int32
}

// bicubic gives the taps that resample in to out positions: the cubic filter with a = −1/2, stretched where the image shrinks, in
// fixed point with so many binary places that the largest weight just fits 16 bits.
func bicubic(in, out int) (all []taps, shift int) {
	scale := float64(in) / float64(out)
	stretch := max(scale, 1)
	exact := make([][]float64, out)
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
		exact[i], all[i].first = w, first
	}
	for shift < 22 && int(0.5+largest*float64(int(2)<<shift)) < 1<<15 {
		shift++
	}
	for i, w := range exact {
		for _, v := range w {
			all[i].weights = append(all[i].weights, int32(math.Round(v*float64(int(1)<<shift))))
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
