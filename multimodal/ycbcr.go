package multimodal

import "image"

// convert fills m with the colours of d as libjpeg and, for levels of video, libwebp have them, which Pillow and torchvision decode
// with: where chroma has half the resolution, the nearest sample weighs 3 and the next one 1, and halves go up and down in turn.
func (m raster) convert(d *image.YCbCr, video bool) {
	luma, black, red, blue, greenB, greenR := int32(1<<16), int32(0), int32(91881), int32(116130), int32(22554), int32(46802)
	if video {
		luma, black, red, blue, greenB, greenR = 76308, 16, 104596, 132200, 25676, 53280
	}
	halfX := d.SubsampleRatio == image.YCbCrSubsampleRatio422 || d.SubsampleRatio == image.YCbCrSubsampleRatio420
	halfY := d.SubsampleRatio == image.YCbCrSubsampleRatio440 || d.SubsampleRatio == image.YCbCrSubsampleRatio420
	out := m.pix
	for y := range m.height {
		next := d.COffset(0, neighbour(y, m.height, halfY)) - d.COffset(0, y)
		for x := range m.width {
			at, beside := d.COffset(x, y), d.COffset(neighbour(x, m.width, halfX), y)
			chroma := func(c []uint8) int32 {
				return (9*int32(c[at])+3*int32(c[beside])+3*int32(c[at+next])+int32(c[beside+next])+8)>>4 - 128
			}
			l, cb, cr := (int32(d.Y[d.YOffset(x, y)])-black)*luma+1<<15, chroma(d.Cb), chroma(d.Cr)
			out[0], out[1], out[2] = toByte((l+red*cr)>>16), toByte((l-greenB*cb-greenR*cr)>>16), toByte((l+blue*cb)>>16)
			out = out[3:]
		}
	}
}

// neighbour is a place, of n, whose chroma sample is next to that of place i.
func neighbour(i, n int, half bool) int {
	if !half {
		return i
	}
	return min(max(i-1+i%2*2, 0), n-1)
}
