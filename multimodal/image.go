package multimodal

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"strings"
)

// Image is what a vision-language model sees of an image.
type Image struct {
	Pixels []float32 // [patches, 3·temporal·patch·patch], the patches of a merge window together
	Grid   [3]int    // patches: time, height, width
	Digest [32]byte  // of the pixels
}

// ImageProcessor turns images into patches as the Qwen2.5-VL and Qwen3-VL models take them, with the numbers of transformers'
// Qwen2VLImageProcessor, whose files give its fields.
type ImageProcessor struct {
	Patch, Temporal, Merge int        // pixels of a patch's side, frames of a patch, patches of a merge window's side
	MinPixels, MaxPixels   int        // of the image after resizing
	Rescale                float64    // factor of the bytes
	Mean, Std              [3]float32 // of the channels after that
	Token                  int32      // id of the placeholder
}

// hfProcessor is what counts of preprocessor_config.json.
type hfProcessor struct {
	Type      string     `json:"image_processor_type"`
	Patch     int        `json:"patch_size"`
	Temporal  int        `json:"temporal_patch_size"`
	Merge     int        `json:"merge_size"`
	MinPixels int        `json:"min_pixels"` // the older form of size, which it precedes
	MaxPixels int        `json:"max_pixels"`
	Size      edges      `json:"size"`
	Rescale   float64    `json:"rescale_factor"`
	Mean      [3]float32 `json:"image_mean"`
	Std       [3]float32 `json:"image_std"`
	Resize    bool       `json:"do_resize"`
	DoRescale bool       `json:"do_rescale"`
	Normalise bool       `json:"do_normalize"`
	Resample  any        `json:"resample"`
}

// edges bound the pixels, whatever their names say.
type edges struct {
	Shortest int `json:"shortest_edge"`
	Longest  int `json:"longest_edge"`
}

// OpenImageProcessor reads how the model in a Hugging Face folder takes images: preprocessor_config.json (or what transformers 5
// makes of it, processor_config.json), and the placeholder's id in config.json.
func OpenImageProcessor(dir string) (*ImageProcessor, error) {
	p, err := folder(dir).imageProcessor()
	if err != nil {
		return nil, fmt.Errorf("model %s: images: %w", dir, err)
	}
	return p, nil
}

func (s source) imageProcessor() (*ImageProcessor, error) {
	h := hfProcessor{ // what Qwen2VLImageProcessor has where the file is silent
		Patch: 14, Temporal: 2, Merge: 2, Size: edges{56 * 56, 28 * 28 * 1280}, Rescale: 1. / 255, Resize: true, DoRescale: true, Normalise: true,
		Mean: [3]float32{0.48145466, 0.4578275, 0.40821073}, Std: [3]float32{0.26862954, 0.26130258, 0.27577711},
	}
	var config struct {
		Token *int32 `json:"image_token_id"`
	}
	nested := struct {
		Image *hfProcessor `json:"image_processor"`
	}{&h}
	err := s.read("preprocessor_config.json", &h)
	if err != nil && optional(err) == nil {
		err = s.read("processor_config.json", &nested)
	}
	if err = errors.Join(err, s.read("config.json", &config)); err != nil {
		return nil, err
	}
	if h.MinPixels == 0 {
		h.MinPixels = h.Size.Shortest
	}
	if h.MaxPixels == 0 {
		h.MaxPixels = h.Size.Longest
	}
	resample, given := h.Resample.(float64)
	switch {
	case h.Type != "" && !strings.HasPrefix(h.Type, "Qwen2VLImageProcessor"):
		return nil, fmt.Errorf("image_processor_type %q is not supported; known: Qwen2VLImageProcessor", h.Type)
	case given && resample != 3 || !h.Resize || !h.DoRescale || !h.Normalise:
		return nil, errors.New("only bicubic resizing (resample 3), rescaling and normalising, all of them, are supported")
	case config.Token == nil:
		return nil, errors.New("config.json has no image_token_id: the model reads text only")
	case h.Patch < 1 || h.Temporal < 1 || h.Merge < 1 || h.Patch > 256 || h.Temporal > 256 || h.Merge > 256:
		return nil, fmt.Errorf("patch_size %d, temporal_patch_size %d, merge_size %d: must be from 1 to 256", h.Patch, h.Temporal, h.Merge)
	case h.MinPixels < 1 || h.MinPixels > h.MaxPixels || h.MaxPixels > maxPixels:
		return nil, fmt.Errorf("images of %d to %d pixels: must be at least 1, at most %d", h.MinPixels, h.MaxPixels, maxPixels)
	case !(h.Std[0] > 0 && h.Std[1] > 0 && h.Std[2] > 0 && h.Rescale > 0):
		return nil, fmt.Errorf("image_std %v, rescale_factor %v: must be positive", h.Std, h.Rescale)
	}
	return &ImageProcessor{h.Patch, h.Temporal, h.Merge, h.MinPixels, h.MaxPixels, h.Rescale, h.Mean, h.Std, *config.Token}, nil
}

// Open reads an image, a PNG, JPEG, GIF, WebP or BMP file or a data: URL of one, and gives its patches. As transformers does, it
// takes the first frame, upright by its EXIF orientation, and leaves transparency out.
func (p *ImageProcessor) Open(source string) (Image, error) {
	m, err := readImage(source)
	if err != nil {
		return Image{}, err
	}
	return p.patches(m)
}

// Process gives the patches of an image of bytes [height, width, RGB].
func (p *ImageProcessor) Process(rgb []uint8, height, width int) (Image, error) {
	if height < 1 || width < 1 || height > maxPixels/width || len(rgb) != 3*height*width {
		return Image{}, fmt.Errorf("image: %d bytes are not %d×%d×3, at most %d pixels", len(rgb), height, width, maxPixels)
	}
	return p.patches(raster{rgb, width, height})
}

func (p *ImageProcessor) patches(m raster) (Image, error) {
	height, width, err := p.size(m.height, m.width)
	if err != nil {
		return Image{}, err
	}
	m = m.resize(width, height)
	side := p.Patch * p.Merge
	out := Image{Grid: [3]int{1, height / p.Patch, width / p.Patch}, Digest: p.digest(m)}
	out.Pixels = make([]float32, 0, height*width*3*p.Temporal)
	levels := p.levels()
	for window := range (height / side) * (width / side) {
		top, left := window/(width/side)*side, window%(width/side)*side
		for patch := range p.Merge * p.Merge {
			y0, x0 := top+patch/p.Merge*p.Patch, left+patch%p.Merge*p.Patch
			for channel := range 3 {
				first := len(out.Pixels)
				for y := y0; y < y0+p.Patch; y++ {
					for x := x0; x < x0+p.Patch; x++ {
						out.Pixels = append(out.Pixels, levels[channel][m.pix[3*(y*width+x)+channel]])
					}
				}
				for range p.Temporal - 1 { // a still image is every frame of its patches
					out.Pixels = append(out.Pixels, out.Pixels[first:first+p.Patch*p.Patch]...)
				}
			}
		}
	}
	return out, nil
}

// size is that of an image after resizing: multiples of a merge window's sides, near the given ones, within the bounds of pixels.
func (p *ImageProcessor) size(height, width int) (h, w int, err error) {
	if longer, shorter := max(height, width), min(height, width); longer > 200*shorter {
		return 0, 0, fmt.Errorf("image of %d×%d pixels: one side may be at most 200 times the other", height, width)
	}
	factor := float64(p.Patch * p.Merge)
	multiples := func(round func(float64) float64, scale func(float64) float64) (h, w int) {
		return int(round(scale(float64(height))/factor) * factor), int(round(scale(float64(width))/factor) * factor)
	}
	h, w = multiples(math.RoundToEven, func(side float64) float64 { return side })
	pixels := float64(height * width)
	switch {
	case h*w > p.MaxPixels:
		shrink := math.Sqrt(pixels / float64(p.MaxPixels))
		h, w = multiples(math.Floor, func(side float64) float64 { return side / shrink })
		h, w = max(h, int(factor)), max(w, int(factor))
	case h*w < p.MinPixels:
		grow := math.Sqrt(float64(p.MinPixels) / pixels)
		h, w = multiples(math.Ceil, func(side float64) float64 { return side * grow })
	}
	return h, w, nil
}

// levels are the pixel values of each channel's bytes, in float32 operation by operation as torchvision has them.
func (p *ImageProcessor) levels() (levels [3][256]float32) {
	unit := float32(1 / p.Rescale)
	for c := range levels {
		mean, std := p.Mean[c]*unit, p.Std[c]*unit
		for v := range levels[c] {
			levels[c][v] = (float32(v) - mean) / std
		}
	}
	return levels
}

func (p *ImageProcessor) digest(m raster) [32]byte {
	h := sha256.New()
	fmt.Fprintln(h, *p, m.width, m.height)
	h.Write(m.pix)
	return [32]byte(h.Sum(nil))
}
