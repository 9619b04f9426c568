package multimodal

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
)

// visionModels are the folders of the reference's models that see images.
func visionModels(t *testing.T) []string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join("..", "testdata", "reference", "models", "*", "preprocessor.json"))
	if len(files) == 0 {
		t.Fatal("no models with images in the reference")
	}
	for i, f := range files {
		files[i] = filepath.Dir(f)
	}
	return files
}

func TestImagesEqualTransformers(t *testing.T) {
	for _, dir := range visionModels(t) {
		ref := openReference(t, dir)
		p, err := OpenImageProcessor(dir)
		if err != nil {
			t.Fatal(err)
		}
		var cases struct {
			Preprocess []struct {
				Height, Width int
				Grid          [3]int `json:"image_grid_thw"`
				Resized       bool   `json:"needs_resize"`
			}
		}
		data, err := os.ReadFile(filepath.Join(dir, "ref.json"))
		if err == nil {
			err = json.Unmarshal(data, &cases)
		}
		if err != nil || len(cases.Preprocess) == 0 {
			t.Fatal("no images in the reference", err)
		}
		for i, c := range cases.Preprocess {
			m, err := p.patches(raster{values[uint8](t, ref, "pre."+strconv.Itoa(i)+".image"), c.Width, c.Height})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.Grid, m.Grid); diff != "" {
				t.Error(diff)
			}
			worst := 0.
			for j, v := range values[float32](t, ref, "pre."+strconv.Itoa(i)+".pixel_values") {
				worst = max(worst, math.Abs(float64(v-m.Pixels[j])))
			}
			t.Log(c, worst)
		}
	}
}

func openReference(t *testing.T, dir string) *torch.SafeTensors {
	t.Helper()
	f, err := torch.OpenSafeTensors(filepath.Join(dir, "ref.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// values are those of a tensor in the reference.
func values[T any](t *testing.T, f *torch.SafeTensors, name string) []T {
	t.Helper()
	e, ok := f.Lookup(name)
	if !ok {
		t.Fatalf("no %s in the reference", name)
	}
	var v T
	return slices.Clone(unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(e.Data))), len(e.Data)/int(unsafe.Sizeof(v))))
}
