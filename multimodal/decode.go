package multimodal

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	_ "image/gif" // formats that image.Decode knows
	_ "image/jpeg"
	_ "image/png"
	"os"
	"strings"

	_ "golang.org/x/image/bmp"
	_ "golang.org/x/image/webp"
)

// maxPixels bounds what a small file can make decoding allocate: photographs have less, and models see a fraction.
const maxPixels = 1 << 26

// readImage reads a PNG, JPEG, GIF, WebP or BMP file, or a data: URL of one, as transformers does: the first frame, upright, as
// its EXIF orientation says, and without its transparency.
func readImage(source string) (raster, error) {
	name := source
	var data []byte
	var err error
	if head, body, ok := strings.Cut(source, ","); ok && strings.HasPrefix(source, "data:") {
		name = head
		if !strings.HasSuffix(head, ";base64") {
			err = errors.New("only base64 data is read")
		} else {
			data, err = base64.StdEncoding.DecodeString(body)
		}
	} else if data, err = readFile(source); err != nil && strings.Contains(source, "://") {
		err = fmt.Errorf("%w; images are read from files and data: URLs: save it and give its path", err)
	}
	var m raster
	if err == nil {
		m, err = decodeImage(data)
	}
	if err != nil {
		return m, fmt.Errorf("image %s: %w", name, err)
	}
	return m, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > maxFile:
		return nil, fmt.Errorf("it must be a file of at most %d bytes", maxFile)
	}
	return os.ReadFile(path)
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
	m := raster{make([]uint8, 3*size.Width*size.Height), size.Width, size.Height}
	switch d := decoded.(type) {
	case *image.NRGBA:
		m.copy(d.Pix, d.Stride)
	case *image.RGBA: // opaque, from these decoders
		m.copy(d.Pix, d.Stride)
	case *image.YCbCr:
		m.convert(d, format == "webp")
	case *image.NYCbCrA:
		m.convert(&d.YCbCr, format == "webp")
	default:
		for i := range size.Width * size.Height {
			c := color.NRGBAModel.Convert(decoded.At(i%size.Width, i/size.Width)).(color.NRGBA)
			m.pix[3*i], m.pix[3*i+1], m.pix[3*i+2] = c.R, c.G, c.B
		}
	}
	return m.upright(orientation(data)), nil
}

// copy takes the colours of pixels of four bytes.
func (m raster) copy(pix []uint8, stride int) {
	for y := range m.height {
		for x := range m.width {
			copy(m.pix[3*(y*m.width+x):][:3], pix[y*stride+4*x:])
		}
	}
}

// orientation is the EXIF orientation of a JPEG file, 1 to 8; 1, upright, where it says none.
func orientation(data []byte) int {
	for data = data[min(2, len(data)):]; len(data) > 4 && data[0] == 0xFF; {
		kind, length := data[1], 2+int(binary.BigEndian.Uint16(data[2:]))
		if kind == 0xDA || length > len(data) { // the scan begins
			break
		}
		if tiff, ok := bytes.CutPrefix(data[4:length], []byte("Exif\x00\x00")); ok && kind == 0xE1 && len(tiff) >= 8 {
			return tiffOrientation(tiff)
		}
		data = data[length:]
	}
	return 1
}

func tiffOrientation(tiff []byte) int {
	var order binary.ByteOrder = binary.BigEndian
	if tiff[0] == 'I' {
		order = binary.LittleEndian
	}
	at := int(order.Uint32(tiff[4:]))
	if at > len(tiff)-2 {
		return 1
	}
	entries := tiff[at+2:]
	for range order.Uint16(tiff[at:]) {
		if len(entries) < 12 {
			break
		}
		if value := int(order.Uint16(entries[8:])); order.Uint16(entries) == 0x0112 && value >= 1 && value <= 8 {
			return value
		}
		entries = entries[12:]
	}
	return 1
}

// upright undoes an EXIF orientation: from 5 on rows and columns are exchanged, and sides are flipped.
func (m raster) upright(orientation int) raster {
	if orientation == 1 {
		return m
	}
	out := raster{make([]uint8, len(m.pix)), m.width, m.height}
	if orientation >= 5 {
		out.width, out.height = m.height, m.width
	}
	for i := range m.width * m.height {
		x, y := i%out.width, i/out.width
		if orientation >= 5 {
			x, y = y, x
		}
		switch orientation {
		case 2, 3, 7, 8:
			x = m.width - 1 - x
		}
		switch orientation {
		case 3, 4, 6, 7:
			y = m.height - 1 - y
		}
		copy(out.pix[3*i:3*i+3], m.pix[3*(y*m.width+x):])
	}
	return out
}
