package multimodal

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"strings"
)

// Image is what a vision-language model sees of an image.
type Image struct {
	Pixels []float32 // [patches, 3·frames·patch·patch], the patches of a square together
	Grid   [3]int    // patches: time, height, width
	Digest [32]byte  // of the pixels
}

// ImageProcessor turns images into patches as the Qwen2.5-VL and Qwen3-VL models take them, with the numbers of transformers'
// Qwen2VLImageProcessor, whose file gives most of its fields.
type ImageProcessor struct {
	Patch     int        `json:"patch_size"`          // pixels on a side of a patch
	Frames    int        `json:"temporal_patch_size"` // pictures one behind the other in a patch: a still image is repeated
	Merge     int        `json:"merge_size"`          // patches on a side of the square that a placeholder stands for
	MinPixels int        `json:"min_pixels"`          // of the image after resizing
	MaxPixels int        `json:"max_pixels"`
	Rescale   float64    `json:"rescale_factor"` // of the bytes
	Mean      [3]float32 `json:"image_mean"`     // of the channels after that
	Std       [3]float32 `json:"image_std"`
	Token     int32      `json:"-"` // id of the placeholder
}

// hfProcessor is preprocessor_config.json; its flags must all be on.
type hfProcessor struct {
	ImageProcessor
	Type     string         `json:"image_processor_type"`
	Size     map[string]int `json:"size"` // the bounds of pixels, where min_pixels and max_pixels do not say them
	Resize   bool           `json:"do_resize"`
	Factor   bool           `json:"do_rescale"`
	Norm     bool           `json:"do_normalize"`
	Resample any            `json:"resample"`
}

// OpenImageProcessor reads how the model in a Hugging Face folder takes images: preprocessor_config.json or, as transformers 5 writes
// it, processor_config.json, and the placeholder's id in config.json.
func OpenImageProcessor(dir string) (*ImageProcessor, error) {
	h := hfProcessor{Resize: true, Factor: true, Norm: true, // the defaults are transformers'
		Size: map[string]int{"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
		ImageProcessor: ImageProcessor{Patch: 14, Frames: 2, Merge: 2, Rescale: 1. / 255,
			Mean: [3]float32{0.48145466, 0.4578275, 0.40821073}, Std: [3]float32{0.26862954, 0.26130258, 0.27577711}}}
	file := struct {
		*hfProcessor
		Nested *hfProcessor `json:"image_processor"`
	}{&h, &h}
	var config struct {
		Token *int32 `json:"image_token_id"`
	}
	err, found := folder(dir).read("config.json", &config), false
	for _, name := range []string{"preprocessor.json", "preprocessor_config.json", "processor_config.json"} {
		e := folder(dir).read(name, &file)
		found = found || e == nil
		err = errors.Join(err, optional(e))
	}
	if err == nil && !found {
		err = errors.New("preprocessor_config.json is missing")
	}
	if err == nil && config.Token == nil {
		err = errors.New("config.json has no image_token_id: the model reads text only")
	}
	if err == nil {
		h.Token = *config.Token
		err = h.check()
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: images: %w", dir, err)
	}
	return &h.ImageProcessor, nil
}

func (h *hfProcessor) check() error {
	h.MinPixels, h.MaxPixels = cmp.Or(h.MinPixels, h.Size["shortest_edge"]), cmp.Or(h.MaxPixels, h.Size["longest_edge"])
	resample, given := h.Resample.(float64)
	switch {
	case h.Type != "" && !strings.HasPrefix(h.Type, "Qwen2VLImageProcessor"):
		return fmt.Errorf("image_processor_type %q is not supported; known: Qwen2VLImageProcessor", h.Type)
	case given && resample != 3 || !h.Resize || !h.Factor || !h.Norm:
		return errors.New("images are always resized (bicubic, resample 3), rescaled and normalised: other settings are not supported")
	case min(h.Patch, h.Frames, h.Merge) < 1 || max(h.Patch, h.Frames, h.Merge) > 32:
		return fmt.Errorf("patch_size %d, temporal_patch_size %d, merge_size %d: must be from 1 to 32", h.Patch, h.Frames, h.Merge)
	case h.MinPixels < 1 || h.MinPixels > h.MaxPixels || h.MaxPixels > maxPixels:
		return fmt.Errorf("images of %d to %d pixels: must be from 1 to %d", h.MinPixels, h.MaxPixels, maxPixels)
	case !(min(h.Std[0], h.Std[1], h.Std[2]) > 0 && h.Rescale > 0):
		return fmt.Errorf("image_std %v, rescale_factor %v: must be positive", h.Std, h.Rescale)
	}
	return nil
}

// Open reads images, each a PNG, JPEG, GIF, WebP or BMP file or a data: URL of one. As transformers does, it takes the first frame,
// upright as its EXIF data say, leaves an alpha channel out, and makes white what one transparent colour marks.
func (p *ImageProcessor) Open(sources ...string) ([]Image, error) {
	images := make([]Image, len(sources))
	for i, source := range sources {
		m, err := readImage(source)
		if err == nil {
			images[i], err = p.patches(m)
		}
		if err != nil {
			return nil, fmt.Errorf("image %d (%.80s): %w", i, source, err)
		}
	}
	return images, nil
}

func (p *ImageProcessor) patches(m raster) (Image, error) {
	height, width, err := p.size(m.height, m.width)
	if err != nil {
		return Image{}, err
	}
	m = m.resize(width, height)
	side := p.Patch * p.Merge
	out := Image{Grid: [3]int{1, height / p.Patch, width / p.Patch}, Pixels: make([]float32, 0, height*width*3*p.Frames)}
	digest := sha256.New()
	fmt.Fprintln(digest, *p, out.Grid)
	digest.Write(m.pix)
	digest.Sum(out.Digest[:0])
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
				for range p.Frames - 1 { // a still image is every frame of its patches
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
		return 0, 0, fmt.Errorf("%d×%d pixels: one side may be at most 200 times the other", height, width)
	}
	f, y, x := float64(p.Patch*p.Merge), float64(height), float64(width)
	h, w = int(math.RoundToEven(y/f)*f), int(math.RoundToEven(x/f)*f)
	switch {
	case h*w > p.MaxPixels:
		b := math.Sqrt(y * x / float64(p.MaxPixels))
		h, w = int(max(f, math.Floor(y/b/f)*f)), int(max(f, math.Floor(x/b/f)*f))
	case h*w < p.MinPixels:
		b := math.Sqrt(float64(p.MinPixels) / (y * x))
		h, w = int(math.Ceil(y*b/f)*f), int(math.Ceil(x*b/f)*f)
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
