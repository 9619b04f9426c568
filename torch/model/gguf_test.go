package model_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/molt-go/molt/torch/model/gguf"
)

// python runs a script of testdata in the environment that `make test` installs.
func python(t *testing.T, script string, args ...string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(cache, "molt", "testing", "bin", "python")
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: run `make test`, which installs it", err)
	}
	if out, err := exec.Command(bin, append([]string{filepath.Join("testdata", script)}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// Every bit pattern of a block is fair: scales are subnormal, infinite or NaN too. A NaN may be any.
func TestRandomBlocksDequantiseBitForBitAsTheGGUFPackageDoes(t *testing.T) {
	dir, seed := t.TempDir(), strconv.FormatUint(rand.Uint64(), 10)
	python(t, "blocks.py", dir, seed)
	f, err := gguf.Open(filepath.Join(dir, "blocks.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	types := []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q8_0, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K}
	for _, kind := range types {
		info, ok := f.Lookup(kind.String())
		want, err := os.ReadFile(filepath.Join(dir, kind.String()))
		if err != nil || !ok || info.Type != kind || len(want) != 4*info.Len() {
			t.Fatalf("%v: %v, %+v, %d bytes of values", kind, err, info, len(want))
		}
		got := make([]float32, info.Len())
		if err := f.Dequantize(info, 0, got); err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			bits := binary.LittleEndian.Uint32(want[4*i:])
			if w := math.Float32frombits(bits); math.Float32bits(v) != bits && (v == v || w == w) {
				t.Fatalf("%v, seed %s: value %d is %g (%#x), want %g (%#x)", kind, seed, i, v, math.Float32bits(v), w, bits)
			}
		}
	}
}
