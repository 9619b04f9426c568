package multimodal

import "image"

// convert fills m with the colours of d as libjpeg and, for levels of video, libwebp have them, which Pillow and torchvision decode
// with: chroma of half the resolution is interpolated between its samples, and each colour is rounded once.
func (m raster) convert(d *image.YCbCr, video bool) {
	color := func(y, cb, cr int32) (r, g, b int32) {
		y = y<<16 + 1<<15
		return (y + 91881*cr) >> 16, (y - 22554*cb - 46802*cr) >> 16, (y + 116130*cb) >> 16
	}
	if video {
		color = func(y, cb, cr int32) (r, g, b int32) {
			y = (y-16)*19077 + 1<<13
			return (y + 26149*cr) >> 14, (y - 6419*cb - 13320*cr) >> 14, (y + 33050*cb) >> 14
		}
	}
	fx, fy := 1, 1
	switch d.SubsampleRatio {
	case image.YCbCrSubsampleRatio422:
		fx = 2
	case image.YCbCrSubsampleRatio420:
		fx, fy = 2, 2
	case image.YCbCrSubsampleRatio440:
		fy = 2
	}
	chroma := [2][]int32{make([]int32, m.width), make([]int32, m.width)}
	for y := range m.height {
		for i, plane := range [2][]uint8{d.Cb, d.Cr} {
			if fx == 1 && fy == 1 {
				for x := range chroma[i] {
					chroma[i][x] = int32(plane[d.COffset(x, y)])
				}
			} else {
				interpolate(chroma[i], plane, d.CStride, (m.height+fy-1)/fy, fx, fy, y)
			}
		}
		out := m.pix[3*y*m.width:][:3*m.width]
		for x, luma := range d.Y[d.YOffset(0, y):][:m.width] {
			r, g, b := color(int32(luma), chroma[0][x]-128, chroma[1][x]-128)
			out[3*x], out[3*x+1], out[3*x+2] = toByte(r), toByte(g), toByte(b)
		}
	}
}

// interpolate fills a row of chroma at full resolution: each sample weighs 3/4 where it is the nearest and 1/4 where it is the next.
// Halves are rounded up and down in turn.
func interpolate(out []int32, plane []uint8, stride, rows, fx, fy, y int) {
	near, next := plane[y/fy*stride:], plane[y/fy*stride:]
	if fy == 2 {
		next = plane[min(max(y/2-1+y%2*2, 0), rows-1)*stride:]
	}
	samples := (len(out) + fx - 1) / fx
	column := func(x int) int32 {
		if fy == 1 {
			return int32(near[x])
		}
		return 3*int32(near[x]) + int32(next[x])
	}
	for x := range out {
		if fx == 1 {
			out[x] = (column(x) + 1 + int32(y%2)) >> 2
			continue
		}
		v := 3*column(x/2) + column(min(max(x/2-1+x%2*2, 0), samples-1))
		if fy == 1 {
			out[x] = (v + 1 + int32(x%2)) >> 2
		} else {
			out[x] = (v + 8 - int32(x%2)) >> 4
		}
	}
}
