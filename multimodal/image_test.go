package multimodal

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
)

// values are those of a tensor in the reference.
func values[T any](t *testing.T, f *torch.SafeTensors, name string) []T {
	t.Helper()
	e, ok := f.Lookup(name)
	if !ok {
		t.Fatalf("no %s in the reference", name)
	}
	v := make([]T, len(e.Data)/int(unsafe.Sizeof(*new(T))))
	copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(e.Data)), e.Data)
	return v
}

// processors are the image processors of the reference.
func processors(t *testing.T) []string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join("..", "testdata", "reference", "models", "*", "preprocessor.json"))
	if len(files) == 0 {
		t.Fatal("no models with images in the reference")
	}
	return files
}

func TestImagesEqualTransformers(t *testing.T) {
	for _, f := range processors(t) {
		dir := filepath.Dir(f)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var cases struct {
				Preprocess []struct {
					Height, Width int
					Grid          [3]int `json:"image_grid_thw"`
					Resized       bool   `json:"needs_resize"`
				}
			}
			readReference(t, filepath.Join("models", filepath.Base(dir), "ref.json"), &cases)
			if len(cases.Preprocess) == 0 {
				t.Fatal("no images")
			}
			ref, err := torch.OpenSafeTensors(filepath.Join(dir, "ref.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			defer ref.Close()
			p, err := OpenImageProcessor(dir)
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range cases.Preprocess {
				name := "pre." + strconv.Itoa(i)
				m, err := p.patches(raster{values[uint8](t, ref, name+".image"), c.Width, c.Height})
				want := values[float32](t, ref, name+".pixel_values")
				if err != nil || m.Grid != c.Grid || len(m.Pixels) != len(want) {
					t.Fatalf("%s: grid %v of %d numbers, %v; want %v of %d", name, m.Grid, len(m.Pixels), err, c.Grid, len(want))
				}
				tolerance := 1e-6
				if c.Resized { // four levels of grey, by which implementations of resizing may differ
					tolerance = 4 / (255 * float64(min(p.Std[0], p.Std[1], p.Std[2])))
				}
				for j := range want {
					if d := math.Abs(float64(want[j] - m.Pixels[j])); d > tolerance {
						t.Fatalf("%s: number %d is %v, want %v", name, j, m.Pixels[j], want[j])
					}
				}
			}
		})
	}
}

// The first channel of what torchvision's antialiased bicubic makes of an image whose numbers have a formula.
func TestResizingEqualsTorchvisionByteForByte(t *testing.T) {
	in := raster{width: 5, height: 4}
	for y := range in.height {
		for x := range in.width {
			for c := range 3 {
				in.pix = append(in.pix, uint8(37*y*y+91*x+53*c+11*x*y))
			}
		}
	}
	for _, want := range [][][]uint8{
		{{61, 154, 112}, {105, 132, 139}},
		{{79, 91}, {125, 162}, {86, 150}, {131, 121}},
		{{0, 42, 121, 178, 49, 41, 108}, {7, 66, 158, 217, 79, 79, 158}, {49, 85, 158, 230, 136, 133, 186},
			{146, 58, 30, 136, 209, 172, 96}, {118, 109, 92, 85, 197, 162, 59}, {64, 161, 184, 66, 166, 141, 51}},
	} {
		out := in.resize(len(want[0]), len(want))
		got := make([][]uint8, out.height)
		for i := 0; i < len(out.pix); i += 3 {
			got[i/3/out.width] = append(got[i/3/out.width], out.pix[i])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

// As transformers' smart_resize: sides that end in halves of 28 go to the even multiple.
func TestSizesOfImages(t *testing.T) {
	p := &ImageProcessor{Patch: 14, Merge: 2, MinPixels: 3136, MaxPixels: 1003520}
	for in, want := range map[[2]int][2]int{
		{56, 84}: {56, 84}, {70, 98}: {56, 112}, {1, 1}: {56, 56}, {1, 150}: {28, 700}, {13, 2000}: {28, 700}, {1024, 1024}: {980, 980},
		{3000, 2000}: {1204, 812}, {480, 640}: {476, 644}, {5, 1000}: {28, 812},
	} {
		if h, w, err := p.size(in[0], in[1]); err != nil || [2]int{h, w} != want {
			t.Errorf("%v becomes %d×%d, %v; want %v", in, h, w, err, want)
		}
	}
	if _, _, err := p.size(3, 601); err == nil || !strings.Contains(err.Error(), "200 times") {
		t.Error("a line is taken for an image:", err)
	}
}

func TestImageProcessorsOfBothKeyStyles(t *testing.T) {
	clip := ImageProcessor{Patch: 14, Frames: 2, Merge: 2, MinPixels: 3136, MaxPixels: 1003520, Rescale: 1. / 255, Token: 9,
		Mean: [3]float32{0.48145466, 0.4578275, 0.40821073}, Std: [3]float32{0.26862954, 0.26130258, 0.27577711}}
	bounded, half := clip, clip
	bounded.MinPixels, bounded.MaxPixels = 784, 50176
	half.Patch, half.MinPixels, half.MaxPixels = 16, 65536, 16777216
	half.Mean = [3]float32{0.5, 0.5, 0.5}
	half.Std = half.Mean
	const (
		old   = `"min_pixels": 784, "max_pixels": 50176`
		size  = `"size": {"shortest_edge": 65536, "longest_edge": 16777216}`
		qwen3 = `"patch_size": 16, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], ` + size
	)
	for _, tc := range []struct {
		name, text string
		want       ImageProcessor
	}{
		{"preprocessor_config.json", `{}`, clip},
		{"preprocessor_config.json", `{` + old + `, "resample": 3, "image_processor_type": "Qwen2VLImageProcessor"}`, bounded},
		{"preprocessor_config.json", `{` + old + `, ` + size + `}`, bounded},
		{"preprocessor_config.json", `{"min_pixels": null, ` + qwen3 + `}`, half},
		{"processor_config.json", `{"image_processor": {"image_processor_type": "Qwen2VLImageProcessorFast", ` + qwen3 +
			`}, "processor_class": "Qwen3VLProcessor"}`, half},
	} {
		p, err := OpenImageProcessor(write(t, map[string]string{tc.name: tc.text, "config.json": `{"image_token_id": 9}`}))
		if err != nil {
			t.Error(tc.text, err)
		} else if diff := cmp.Diff(tc.want, *p); diff != "" {
			t.Error(tc.text, diff)
		}
	}
}

func TestWrongImageProcessorsAreErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{"image_processor_type": "Gemma3ImageProcessor"}`: "Gemma3ImageProcessor", `{"resample": 2}`: "resample 3",
		`{"do_normalize": false}`: "normalised", `{"patch_size": 0}`: "patch_size 0", `{"merge_size": 4096}`: "merge_size 4096",
		`{"min_pixels": 99, "max_pixels": 98}`: "99 to 98", `{"size": {"longest_edge": 1000000000000}}`: "1000000000000",
		`{"image_std": [1, 0, 1]}`: "image_std", `{"rescale_factor": -1}`: "rescale_factor -1",
		`{"patch_size": "x"}`: "patch_size", `[`: "JSON",
	} {
		_, err := OpenImageProcessor(write(t, map[string]string{"preprocessor_config.json": text, "config.json": `{"image_token_id": 9}`}))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want an error that names %q", text, err, want)
		}
	}
	for want, files := range map[string]map[string]string{
		"preprocessor_config.json is missing": {"config.json": `{"image_token_id": 9}`},
		"no image_token_id":                   {"config.json": `{}`, "preprocessor_config.json": `{}`},
		"config.json: no such file":           {"preprocessor_config.json": `{}`},
	} {
		if _, err := OpenImageProcessor(write(t, files)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want an error that names %q", err, want)
		}
	}
}

func TestACheckpointTakesImagesAsItsModelDoes(t *testing.T) {
	for _, f := range processors(t) {
		dir, saved := filepath.Dir(f), t.TempDir()
		want, err := OpenImageProcessor(dir)
		if err != nil {
			t.Fatal(err)
		}
		config, err := os.ReadFile(filepath.Join(dir, "config.json")) // which a checkpoint has from its model
		err = errors.Join(err, os.WriteFile(filepath.Join(saved, "config.json"), config, 0o644), SaveText(dir, saved))
		if err != nil {
			t.Fatal(err)
		}
		got, err := OpenImageProcessor(saved)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(err, diff)
		}
	}
}
