package multimodal

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func encodePNG(t testing.TB, m image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func encodeJPEG(t testing.TB, m image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := jpeg.Encode(&b, m, &jpeg.Options{Quality: 100}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Colours become RGB as Pillow and transformers convert them: grey three times, those of a palette looked up, an alpha channel dropped,
// not blended, and white what a transparent colour marks.
func TestPixelsOfEveryKindBecomeRGB(t *testing.T) {
	box := image.Rect(0, 0, 2, 1)
	palette := color.Palette{color.NRGBA{10, 20, 30, 255}, color.NRGBA{200, 100, 50, 0}}
	frame, next := image.NewPaletted(box, palette), image.NewPaletted(box, palette)
	frame.Pix[0] = 1
	var moving bytes.Buffer
	if err := gif.EncodeAll(&moving, &gif.GIF{Image: []*image.Paletted{frame, next}, Delay: []int{1, 1}}); err != nil {
		t.Fatal(err)
	}
	opaque := &image.RGBA{Pix: []uint8{1, 2, 3, 255, 4, 5, 6, 255}, Stride: 8, Rect: box}
	clear := &image.NRGBA{Pix: []uint8{1, 2, 3, 0, 4, 5, 6, 128}, Stride: 8, Rect: box}
	wide := &image.Gray16{Pix: []uint8{0x00, 0x12, 0xAB, 0x00}, Stride: 4, Rect: box}
	deep := &image.NRGBA64{Pix: []uint8{0xAB, 1, 0xCD, 2, 0xEF, 3, 0, 1, 9, 9, 8, 8, 7, 7, 0xFF, 0xFF}, Stride: 16, Rect: box}
	shades := image.NewPaletted(box, color.Palette{color.NRGBA{10, 20, 30, 255}, color.NRGBA{200, 100, 50, 0}, color.NRGBA{9, 9, 9, 99}})
	shades.Pix[0] = 1
	marked := binary.BigEndian.AppendUint32([]byte("tRNS\x00\x01\x00\x02\x00\x03"), crc32.ChecksumIEEE([]byte("tRNS\x00\x01\x00\x02\x00\x03")))
	plain := encodePNG(t, opaque) // whose header is 33 bytes
	for name, tc := range map[string]struct {
		file []byte
		want []uint8
	}{
		"opaque":      {encodePNG(t, opaque), []uint8{1, 2, 3, 4, 5, 6}},
		"transparent": {encodePNG(t, clear), []uint8{1, 2, 3, 4, 5, 6}},
		"grey":        {encodePNG(t, &image.Gray{Pix: []uint8{7, 250}, Stride: 2, Rect: box}), []uint8{7, 7, 7, 250, 250, 250}},
		"marked":      {slices.Concat(plain[:33], []byte{0, 0, 0, 6}, marked, plain[33:]), []uint8{255, 255, 255, 4, 5, 6}},
		"palette":     {encodePNG(t, frame), []uint8{255, 255, 255, 10, 20, 30}},
		"shades":      {encodePNG(t, shades), []uint8{200, 100, 50, 10, 20, 30}},
		"first frame": {moving.Bytes(), []uint8{255, 255, 255, 10, 20, 30}},
		"16 bits":     {encodePNG(t, wide), []uint8{18, 18, 18, 255, 255, 255}}, // clipped, as Pillow does
		"deep":        {encodePNG(t, deep), []uint8{0xAB, 0xCD, 0xEF, 9, 8, 7}},
	} {
		m, err := decodeImage(tc.file)
		if err != nil || m.width != 2 || m.height != 1 || !slices.Equal(m.pix, tc.want) {
			t.Errorf("%s: %+v, %v; want %v", name, m, err, tc.want)
		}
	}
}

// Worked out by hand from libjpeg's triangle filter: chroma 0 and 160 side by side is 0, 40, 120, 160 at full resolution.
func TestHalvedChromaIsInterpolated(t *testing.T) {
	d := image.NewYCbCr(image.Rect(0, 0, 4, 2), image.YCbCrSubsampleRatio420)
	for i := range d.Y {
		d.Y[i] = 100
	}
	copy(d.Cb, []uint8{128, 128})
	copy(d.Cr, []uint8{0, 160})
	m := raster{make([]uint8, 24), 4, 2}
	m.convert(d, false)
	reds := []uint8{m.pix[0], m.pix[3], m.pix[6], m.pix[9]}
	if diff := cmp.Diff([]uint8{0, 0, 89, 145}, reds); diff != "" { // 100 + 1.402·(Cr − 128)
		t.Error(diff)
	}
	d.Y[0], d.Y[1], d.Cr[0], d.Cr[1] = 16, 235, 128, 128
	m.convert(d, true)
	if m.pix[0] != 0 || m.pix[3] != 255 {
		t.Errorf("black and white of video are %d and %d", m.pix[0], m.pix[3])
	}
}

// exif is EXIF data with the tag of the orientation alone.
func exif(order binary.AppendByteOrder, head string, orientation int) []byte {
	b := order.AppendUint32([]byte(head), 8)
	b = order.AppendUint16(b, 1)
	b = order.AppendUint16(b, 0x0112)
	b = order.AppendUint16(b, 3)
	b = order.AppendUint32(b, 1)
	return append(order.AppendUint16(b, uint16(orientation)), 0, 0, 0, 0, 0, 0)
}

func TestImagesStandUpright(t *testing.T) {
	grey := image.NewGray(image.Rect(0, 0, 16, 8)) // dark, but for a light corner
	for y := range 4 {
		for x := range 4 {
			grey.SetGray(x, y, color.Gray{Y: 255})
		}
	}
	file := encodeJPEG(t, grey)
	corners := []string{"top left", "top right", "bottom right", "bottom left"}
	for i, corner := range append(corners, corners...) {
		orientation := i + 1
		little := exif(binary.LittleEndian, "Exif\x00\x00II*\x00", orientation)
		for _, data := range [][]byte{little, exif(binary.BigEndian, "Exif\x00\x00MM\x00*", orientation)} {
			app1 := binary.BigEndian.AppendUint16([]byte{0xFF, 0xE1}, uint16(len(data)+2))
			m, err := decodeImage(slices.Concat(file[:2], app1, data, file[2:]))
			if err != nil {
				t.Fatal(err)
			}
			x, y := 0, 0
			if strings.Contains(corner, "right") {
				x = m.width - 1
			}
			if strings.Contains(corner, "bottom") {
				y = m.height - 1
			}
			light := m.pix[3*(y*m.width+x)] > 200
			if !light || (orientation >= 5) != (m.height == 16) {
				t.Errorf("orientation %d: %d×%d, the %s corner is light: %t", orientation, m.width, m.height, corner, light)
			}
		}
	}
	webp, err := base64.StdEncoding.DecodeString("UklGRh4AAABXRUJQVlA4TBEAAAAvAQAAAAdQhCb0oP+BiOh/AAA=")
	if err != nil {
		t.Fatal(err)
	}
	webp = append(webp, exif(binary.LittleEndian, "EXIF\x1A\x00\x00\x00II*\x00", 6)...)
	if m, err := decodeImage(webp); err != nil || m.width != 1 || m.height != 2 {
		t.Errorf("a WebP of 2×1 pixels on its side: %+v, %v", m, err)
	}
	for _, damaged := range []string{"Exif\x00\x00II*\x00", "Exif\x00\x00II*\x00\xFF\xFF\xFF\xFF", "eXIfMM\x00*\x00\x00\x00\x08\xFF\xFF"} {
		if got := orientation([]byte(damaged)); got != 1 {
			t.Errorf("%q: orientation %d", damaged, got)
		}
	}
}

func smallProcessor() *ImageProcessor {
	return &ImageProcessor{Patch: 14, Frames: 2, Merge: 2, MinPixels: 784, MaxPixels: 50176, Rescale: 1. / 255, Std: [3]float32{1, 1, 1}}
}

func TestImagesComeFromFilesAndDataURLs(t *testing.T) {
	file := encodePNG(t, image.NewGray(image.Rect(0, 0, 30, 60)))
	path := filepath.Join(write(t, map[string]string{"a.png": string(file)}), "a.png")
	text := base64.StdEncoding.EncodeToString(file)
	p := smallProcessor()
	images, err := p.Open(path, "data:image/png;base64,"+text, text)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range images {
		if diff := cmp.Diff(images[0], m); diff != "" || m.Grid != [3]int{1, 4, 2} {
			t.Error(m.Grid, diff)
		}
	}
	p.Mean[1] = 0.5
	if other, err := p.Open(path); err != nil || other[0].Digest == images[0].Digest {
		t.Error("other pixels have the same digest", err)
	}
}

func TestHostileImagesAreErrorsWithinASecond(t *testing.T) {
	file := encodePNG(t, image.NewGray(image.Rect(0, 0, 900, 900)))
	huge := slices.Clone(file)
	binary.BigEndian.PutUint32(huge[16:], 1<<20) // the width
	binary.BigEndian.PutUint32(huge[29:], crc32.ChecksumIEEE(huge[12:29]))
	line := encodePNG(t, image.NewGray(image.Rect(0, 0, 1, 500)))
	dir := write(t, map[string]string{"truncated": string(file[:len(file)/2]), "huge": string(huge), "empty": "", "text": "hello",
		"line": string(line)})
	p := smallProcessor()
	for source, want := range map[string]string{
		"truncated": "not enough pixel data", "huge": "1048576×900 pixels", "empty": "unknown format", "text": "unknown format",
		"line": "200 times", "missing": "no such file",
		".": "is not a file", "https://example.com/a.png": "neither a file", "data:image/png;base64,!!!!": "neither a file",
	} {
		began := time.Now()
		name := source
		if !strings.Contains(source, ":") {
			name = filepath.Join(dir, source)
		}
		if _, err := p.Open(name); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "image 0") {
			t.Errorf("%s: %v; want an error that names %q", source, err, want)
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("%s: %v", source, d)
		}
	}
}

func FuzzImage(f *testing.F) {
	grey := image.NewGray(image.Rect(0, 0, 9, 7))
	f.Add(encodePNG(f, grey))
	f.Add(encodeJPEG(f, grey))
	f.Add(append(exif(binary.LittleEndian, "Exif\x00\x00II*\x00", 6), encodeJPEG(f, image.NewYCbCr(grey.Rect, image.YCbCrSubsampleRatio420))...))
	f.Add([]byte("BM\x3a\x00\x00\x00\x00\x00\x00\x00\x3a\x00\x00\x00\x28\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01\x00\x08\x00" +
		"\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x02\x03\x00\xc8\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, file []byte) {
		if m, err := decodeImage(file); err == nil && len(m.pix) != 3*m.width*m.height {
			t.Errorf("%d bytes for %d×%d pixels", len(m.pix), m.width, m.height)
		}
	})
}
