package model_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
	. "github.com/molt-go/molt/torch/model"
	"github.com/molt-go/molt/torch/model/gguf"
)

// python gives what a script of testdata prints in the environment that `make test` installs.
func python(t *testing.T, script string, args ...string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(cache, "molt", "testing", "bin", "python")
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: run `make test`, which installs it", err)
	}
	out, err := exec.Command(bin, append([]string{filepath.Join("testdata", script)}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
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
	types := []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q8_0,
		gguf.Q4_K, gguf.Q5_K, gguf.Q6_K}
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

// The files hold what llama.cpp's converter would write: rows of queries and keys in pairs, experts in one tensor, Gemma's norms plus 1,
// the factors of Llama 3's frequencies.
func TestGGUFFilesLoadAsTheFoldersThatTheyWereMadeFrom(t *testing.T) {
	dir := t.TempDir()
	args := []string{dir}
	byName := map[string]folder{}
	for _, f := range models(t) {
		args = append(args, f.path)
		byName[filepath.Base(f.path)] = f
	}
	left := python(t, "write_gguf.py", args...)
	files, _ := filepath.Glob(filepath.Join(dir, "*", "*.gguf"))
	if n := len(files)/8 + strings.Count(left, ": no "); len(files) == 0 || n != len(byName) { // of 8 types
		t.Fatalf("%d files of %d models; left out are\n%s", len(files), len(byName), left)
	}
	for _, file := range files {
		do(t, func(s *torch.Scope) {
			m := load(t, s, file, torch.Float32)
			same(t, load(t, s, strings.TrimSuffix(file, ".gguf"), torch.Float32), m)
			if f := byName[filepath.Base(filepath.Dir(file))]; filepath.Base(file) == "F32.gguf" {
				s.NoGrad(func(s *torch.Scope) torch.Tensor {
					_, b, at, _ := f.padded("right")
					logits := m.Logits(s, hidden(t, s, m, b, nil))
					near(t, file, f.floats("right.logits"), spread(torch.Values[float32](logits), at, m.Vocab), 5e-5)
					return torch.Tensor{}
				})
			}
		})
	}
}

// same compares configs and the bits of every parameter.
func same(t *testing.T, want, got *Model) {
	t.Helper()
	if diff := cmp.Diff(want.Config, got.Config); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	for i, p := range want.Params() {
		if q := got.Params()[i]; p.Name != q.Name || string(torch.Bytes(p.Tensor)) != string(torch.Bytes(q.Tensor)) {
			t.Errorf("%s is %s, or has other bits", p.Name, q.Name)
		}
	}
}
