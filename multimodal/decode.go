package multimodal

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"image"
	"image/color"
	_ "image/gif" // formats that image.Decode knows
	_ "image/jpeg"
	_ "image/png"
	"strings"

	_ "golang.org/x/image/bmp"
	_ "golang.org/x/image/webp"
)

// maxPixels bounds what a small file can make decoding allocate: photographs have less, and models see a fraction.
const maxPixels = 1 << 26

// readImage reads an image from a file, a data: URL or its base64.
func readImage(source string) (raster, error) {
	data, err := folder("")(source)
	encoded := source
	if head, body, ok := strings.Cut(source, ","); ok && strings.HasPrefix(head, "data:") && strings.HasSuffix(head, ";base64") {
		encoded = body
	}
	if err != nil && len(encoded) > 64 { // no image is that small, but names may look like base64
		if raw, e := base64.StdEncoding.DecodeString(encoded); e == nil {
			data, err = raw, nil
		}
	}
	if err != nil {
		return raster{}, fmt.Errorf("it is neither a file that can be read nor a data: URL in base64: %w", err)
	}
	return decodeImage(data)
}

func decodeImage(data []byte) (raster, error) {
	size, format, err := image.DecodeConfig(bytes.NewReader(data))
	if err == nil && (size.Width < 1 || size.Height < 1 || size.Width > maxPixels/size.Height) {
		err = fmt.Errorf("%d×%d pixels: there must be some, at most %d", size.Width, size.Height, maxPixels)
	}
	if err != nil {
		return raster{}, err
	}
	decoded, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return raster{}, err
	}
	frame, indexed := decoded.(*image.Paletted) // a GIF's frame may be a part of its screen
	if b := decoded.Bounds(); !indexed && b != image.Rect(0, 0, size.Width, size.Height) {
		return raster{}, fmt.Errorf("its frame %v is not its size, %d×%d", b, size.Width, size.Height)
	}
	m := raster{make([]uint8, 3*size.Width*size.Height), size.Width, size.Height}
	switch d := decoded.(type) {
	case *image.YCbCr:
		m.convert(d, format == "webp")
	case *image.NYCbCrA:
		m.convert(&d.YCbCr, format == "webp")
	default:
		keyed := indexed && keyed(frame.Palette)
		if _, ok := decoded.(*image.NRGBA); ok {
			keyed = size.ColorModel != color.NRGBAModel
		}
		for i := range size.Width * size.Height {
			switch c := decoded.At(i%size.Width, i/size.Width).(type) {
			case color.Gray16: // Pillow clips them, but takes the upper half of other 16 bits
				v := uint8(min(c.Y, 255))
				m.set(i, v, v, v)
			case color.NRGBA64:
				m.set(i, uint8(c.R>>8), uint8(c.G>>8), uint8(c.B>>8))
			default:
				if c := color.NRGBAModel.Convert(c).(color.NRGBA); keyed && c.A == 0 {
					m.set(i, 255, 255, 255)
				} else {
					m.set(i, c.R, c.G, c.B)
				}
			}
		}
	}
	if i := bytes.LastIndex(data, []byte("EXIF")); format == "webp" && i >= 0 && i+8 < len(data) { // a chunk, of a size
		data = append([]byte("eXIf"), data[i+8:]...)
	}
	return m.upright(orientation(data)), nil
}

func (m raster) set(i int, r, g, b uint8) { m.pix[3*i], m.pix[3*i+1], m.pix[3*i+2] = r, g, b }

// keyed tells whether one colour of a palette is transparent and all others are opaque.
func keyed(palette color.Palette) bool {
	clear := 0
	for _, c := range palette {
		switch _, _, _, a := c.RGBA(); a {
		case 0:
			clear++
		case 0xFFFF:
		default:
			return false
		}
	}
	return clear == 1
}

// convert fills m with the colours of d as libjpeg and, for levels of video, libwebp have them, which Pillow and torchvision decode
// with: where chroma has half the resolution, the nearest sample weighs 3 and the next one 1.
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

// orientation is what EXIF data near the start of a JPEG or PNG file says, 1 to 8; 1, upright, where there is none.
func orientation(file []byte) int {
	for head, order := range map[string]binary.ByteOrder{
		"Exif\x00\x00II*\x00": binary.LittleEndian, "eXIfII*\x00": binary.LittleEndian,
		"Exif\x00\x00MM\x00*": binary.BigEndian, "eXIfMM\x00*": binary.BigEndian,
	} {
		i := bytes.Index(file[:min(len(file), 1<<17)], []byte(head))
		if i < 0 || i+len(head)+4 > len(file) {
			continue
		}
		at := i + len(head) - 4 + int(order.Uint32(file[i+len(head):])) // of the list of entries: their number, then 12 bytes each
		for at += 2; at+10 <= len(file); at += 12 {
			if v := int(order.Uint16(file[at+8:])); order.Uint16(file[at:]) == 0x0112 && v >= 1 && v <= 8 {
				return v
			}
		}
	}
	return 1
}

// upright turns an image as its EXIF orientation asks: from 5 on lines become columns.
func (m raster) upright(orientation int) raster {
	if orientation == 1 {
		return m
	}
	mirrored, flipped := [9]bool{2: true, 3: true, 7: true, 8: true}, [9]bool{3: true, 4: true, 6: true, 7: true}
	out := raster{make([]uint8, 0, len(m.pix)), m.width, m.height}
	if orientation >= 5 {
		out.width, out.height = m.height, m.width
	}
	for i := range m.width * m.height {
		x, y := i%out.width, i/out.width
		if orientation >= 5 {
			x, y = y, x
		}
		if mirrored[orientation] {
			x = m.width - 1 - x
		}
		if flipped[orientation] {
			y = m.height - 1 - y
		}
		out.pix = append(out.pix, m.pix[3*(y*m.width+x):][:3]...)
	}
	return out
}
