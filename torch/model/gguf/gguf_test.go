package gguf

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const metaInt8, metaUint32, metaInt32, metaUint64 = 1, 4, 5, 10

// builder writes GGUF files for tests, well-formed or not.
type builder struct{ b []byte }

func (w *builder) u32(v uint32) *builder { w.b = binary.LittleEndian.AppendUint32(w.b, v); return w }
func (w *builder) u64(v uint64) *builder { w.b = binary.LittleEndian.AppendUint64(w.b, v); return w }
func (w *builder) str(s string) *builder { w.u64(uint64(len(s))); w.b = append(w.b, s...); return w }
func (w *builder) raw(s string) *builder { w.b = append(w.b, s...); return w }
func header(version uint32, numTensors, numMeta uint64) *builder {
	return new(builder).u32(magic).u32(version).u64(numTensors).u64(numMeta)
}
func (w *builder) tensor(name string, kind Type, offset uint64, dims ...uint64) *builder {
	w.str(name).u32(uint32(len(dims)))
	for _, d := range dims {
		w.u64(d)
	}
	return w.u32(uint32(kind)).u64(offset)
}
func (w *builder) data(s string) []byte {
	for len(w.b)%defaultAlignment != 0 {
		w.b = append(w.b, 0)
	}
	return append(w.b, s...)
}

// small has every kind of metadata and a Q8_0 tensor of shape [2, 32].
func small() []byte {
	w := header(3, 1, 9)
	w.str("s").u32(metaString).str("text")
	w.str("b").u32(metaBool).raw("\x01")
	w.str("i8").u32(metaInt8).raw("\xff")
	w.str("u64").u32(metaUint64).u64(7)
	w.str("f").u32(metaFloat32).u32(math.Float32bits(.5))
	w.str("as").u32(metaArray).u32(metaString).u64(2).str("x").str("")
	w.str("ab").u32(metaArray).u32(metaBool).u64(2).raw("\x00\x01")
	w.str("ai").u32(metaArray).u32(metaInt32).u64(2).u32(3).u32(0xffffffff)
	w.str("af").u32(metaArray).u32(metaFloat64).u64(1).u64(math.Float64bits(-2))
	w.tensor("w", Q8_0, 0, 32, 2)
	return w.data(one + strings.Repeat("\x01", 32) + two + strings.Repeat("\xff", 32))
}

func TestParseGivesTypedMetadataAndRowMajorShapes(t *testing.T) {
	f, err := parse(small())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"s": "text", "b": true, "i8": int64(-1), "u64": int64(7), "f": .5,
		"as": []string{"x", ""}, "ab": []bool{false, true}, "ai": []int64{3, -1}, "af": []float64{-2}}
	if d := cmp.Diff(want, f.Meta); d != "" {
		t.Error(d)
	}
	w, ok := f.Lookup("w")
	if !ok || !cmp.Equal(w.Shape, []int{2, 32}) || w.Type != Q8_0 || w.Len() != 64 {
		t.Fatalf("%+v", w)
	}
	dst := make([]float32, 64)
	if err := f.Dequantize(w, 0, dst); err != nil || dst[0] != 1 || dst[31] != 1 || dst[32] != -2 || dst[63] != -2 {
		t.Error(err, dst)
	}
	if err := f.Dequantize(w, 32, dst[:32]); err != nil || dst[0] != -2 || dst[32] != -2 {
		t.Error("the second block:", err, dst[:32])
	}
	for at, n := range map[int]int{0: 63, 1: 32, 32: 64, -32: 32, 64: 32} {
		if err := f.Dequantize(w, at, make([]float32, n)); err == nil || !strings.Contains(err.Error(), `"w"`) {
			t.Errorf("%d values from %d on: %v", n, at, err)
		}
	}
}

func TestGetNamesTheKeyAndBothTypes(t *testing.T) {
	f, err := parse(small())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := Get[int64](f, "u64"); n != 7 || err != nil {
		t.Error(n, err)
	}
	if _, err := Get[int64](f, "llama.block_count"); err == nil || !strings.Contains(err.Error(), `"llama.block_count"`) {
		t.Error(err)
	}
	if _, err := Get[int64](f, "f"); err == nil || err.Error() != `gguf: metadata "f" is a float64, want int64` {
		t.Error(err)
	}
}

func TestHostileFilesAreErrorsAtOnce(t *testing.T) {
	huge := uint64(math.MaxUint64)
	tests := map[string][]byte{
		"wrong magic":                         append([]byte("GGML"), make([]byte, 20)...),
		"version 1":                           header(1, 0, 0).b,
		"version":                             header(99, 0, 0).b,
		"big-endian":                          header(0x03000000, 0, 0).b,
		"truncated":                           small()[:100],
		"needs 68 bytes":                      small()[:len(small())-1],
		"bytes wanted":                        header(3, huge, 0).b,
		"1844674407370955161":                 header(3, 0, 1).u64(huge).b,
		"18446744073709551615 array elements": header(3, 0, 1).str("k").u32(metaArray).u32(metaString).u64(huge).b,
		"arrays of type 9":                    header(3, 0, 1).str("k").u32(metaArray).u32(metaArray).u64(1).b,
		"unknown value type 77":               header(3, 0, 1).str("k").u32(77).raw("12345678").b,
		`"k": a boolean`:                      header(3, 0, 1).str("k").u32(metaBool).raw("\x02").b,
		`"k": the number`:                     header(3, 0, 1).str("k").u32(metaUint64).u64(huge).b,
		`metadata "k": is there`:              header(3, 0, 2).str("k").u32(metaBool).raw("\x01").str("k").u32(metaBool).raw("\x01").b,
		"one of 3 parts":                      header(3, 0, 1).str("split.count").u32(metaUint32).u32(3).b,
		`ww" has 5 dimensions`:                header(3, 1, 0).tensor(strings.Repeat("w", 1<<20), F32, 0, 1, 1, 1, 1, 1).data("1234"),
		`tensor "w" is there twice`:           header(3, 2, 0).tensor("w", F32, 0, 1).tensor("w", F32, 0, 1).data("1234"),
		"has 5 dimensions":                    header(3, 1, 0).tensor("w", F32, 0, 1, 1, 1, 1, 1).data("1234"),
		"dimension 1 of size 0":               header(3, 1, 0).tensor("w", F32, 0, 4, 0).data("1234"),
		"dimension 1 of size 9":               header(3, 1, 0).tensor("w", F32, 0, 1<<40, 9<<40).data("1234"),
		"no whole blocks of 32":               header(3, 1, 0).tensor("w", Q4_1, 0, 16, 2).data("1234"),
		`"w" has the unsupported`:             header(3, 1, 0).tensor("w", 10, 0, 256).data("1234"),
		"offset 18446744073709":               header(3, 1, 0).tensor("w", F32, huge, 1).data("1234"),
		"not a multiple of 32":                header(3, 1, 0).tensor("w", F32, 4, 1).data("12345678"),
		"the one before it ends at 40":        header(3, 2, 0).tensor("v", F32, 0, 10).tensor("w", F32, 32, 1).data(strings.Repeat("1", 64)),
		"at offset 32":                        header(3, 1, 0).tensor("w", F32, 32, 1).data("1234"),
		"the data is 0 bytes":                 header(3, 1, 0).tensor("w", F32, 0, 1).b,
		"header over 33554432":                header(3, 0, 1).str("k").u32(metaArray).u32(0).u64(maxHeader).data(strings.Repeat("1", maxHeader)),
		"want a power of two":                 header(3, 0, 1).str(alignmentKey).u32(metaUint32).u32(24).b,
		"alignment\" is a string":             header(3, 0, 1).str(alignmentKey).u32(metaString).str("32").b,
	}
	start := time.Now()
	for want, data := range tests {
		if _, err := parse(data); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 1000 {
			t.Errorf("want a short error with %q, got %.2000v", want, err)
		}
	}
	if d := time.Since(start); d > time.Second {
		t.Error("took", d)
	}
}

func TestOpenRefusesWhatIsNoFileOfItsKind(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.gguf")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe.gguf")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, empty, pipe, filepath.Join(dir, "none.gguf")} {
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestAClosedFileGivesErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "small.gguf")
	if err := os.WriteFile(path, small(), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Dequantize(f.Tensors[0], 0, make([]float32, 64)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := f.Close(); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(small())
	f.Add(header(2, 1, 0).tensor("k", Q6_K, 0, 256).data(strings.Repeat("\x01", 210)))
	f.Add(header(3, 1, 1).str("a").u32(metaArray).u32(metaString).u64(1 << 60).b)
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parse(data)
		if err != nil {
			return
		}
		for _, info := range file.Tensors {
			if err := file.Dequantize(info, 0, make([]float32, info.Len())); err != nil {
				t.Error(err)
			}
		}
	})
}
