package torch_test

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/molt-go/molt/torch"
)

func TestParseDeviceTakesTheNamesOfConfigsAndNoOthers(t *testing.T) {
	for name, want := range map[string]Device{"cpu": CPU, "cuda": "cuda:0", "cuda:0": "cuda:0", "cuda:12": "cuda:12"} {
		if d, err := ParseDevice(name); d != want || err != nil {
			t.Errorf("%q is %q, error %v; want %q", name, d, err, want)
		}
	}
	for _, name := range []string{"", "CPU", "cpu:0", "cuda:", "cuda:-1", "cuda:01", "cuda:+1", "cuda: 1", "cuda:0 ", "cuda:128",
		"cuda:99999999999999999999", "gpu", "meta", "cuda:0\x00"} {
		if d, err := ParseDevice(name); err == nil || !strings.Contains(err.Error(), "known are cpu, cuda and cuda:0") {
			t.Errorf("%q is %q, error %v; want one that lists what is known", name, d, err)
		}
	}
}

func TestCUDAWithoutItsLibraryIsAnErrorThatNamesThePlacesAndTheFix(t *testing.T) {
	place := filepath.Join(t.TempDir(), "libmolt_cuda.so")
	t.Setenv("MOLT_CUDA_LIB", place)
	want := "run `make cuda` in a checkout of molt, or set MOLT_CUDA_LIB to its path. Tried:\n  " + place + ": not there"
	for _, f := range []func(s *Scope){
		func(s *Scope) { s.ToDevice(New(s, []float32{1}), "cuda:0") },
		func(s *Scope) { s.On("cuda:0", func(s *Scope) Tensor { return s.Zeros(Float32, 1) }) },
		func(s *Scope) { s.OnStream("cuda:1", func(*Scope) Tensor { return Tensor{} }) },
		func(s *Scope) { s.PinMemory(New(s, []float32{1})) },
		func(*Scope) { panic(Device("cuda:0").Synchronize()) },
	} {
		fails(t, "CUDA: libmolt_cuda.so cannot be opened; "+want, f)
	}
	if _, err := Device("cuda:0").Memory(); err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	fails(t, `device "gpu": not known`, func(s *Scope) { s.On("gpu", func(*Scope) Tensor { return Tensor{} }) })
	if n, err := DeviceCount(); n != 0 || err == nil || Live() != 0 {
		t.Errorf("%d devices, error %v, %d tensors alive", n, err, Live())
	}
	do(t, func(s *Scope) { // the CPU is as before
		w := New(s, []float32{3}).RequireGrad(true)
		s.Backward([]Tensor{s.Mul(w, w)}, nil)
		if g := s.GradOf(w).Item(); g != 6 {
			t.Error("gradient of w² at 3:", g)
		}
	})
}

func TestAFileThatIsNotTheCUDALibraryIsAnErrorThatSaysWhatItIs(t *testing.T) {
	damaged := filepath.Join(t.TempDir(), "libmolt_cuda.so")
	if err := os.WriteFile(damaged, []byte("\x7fELF, but no more"), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		damaged: "unreadable or damaged",
		cmp.Or(os.Getenv("MOLT_LIB"), "../build/lib/libmolt.so"): "it was built for another version of torch/molt.h", // it is open already
	} {
		t.Setenv("MOLT_CUDA_LIB", path)
		if _, err := DeviceCount(); err == nil || !strings.Contains(err.Error(), path+": ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that says %q", path, err, want)
		}
	}
}

func TestTheCPUIsADevice(t *testing.T) {
	do(t, func(s *Scope) {
		x := s.On(CPU, func(s *Scope) Tensor {
			return s.OnStream(CPU, func(s *Scope) Tensor { return s.Add(s.Zeros(Float32, 2), New(s, []float32{1, 2})) })
		})
		if x.Device() != CPU || s.ToDevice(x, CPU).Device() != CPU || Values[float32](x)[1] != 2 {
			t.Error(x, x.Device())
		}
	})
	m, err := CPU.Memory()
	if err != nil || m != Memory() || CPU.Check() != nil || CPU.Synchronize() != nil {
		t.Error(m, err)
	}
}

// Tensors of another kind of device, which have shapes but no numbers, take the ways that those of a CUDA device take.
func TestOperatorsTakeTensorsOfOtherDevices(t *testing.T) {
	do(t, func(s *Scope) {
		meta := func(shape ...int) Tensor {
			return s.Call("aten::empty.memory_format", shape, Float32, nil, "meta")[0].RequireGrad(true)
		}
		w := meta(4, 3)
		y := s.Linear(meta(2, 3), w, meta(4))
		s.Backward([]Tensor{s.Sum(y)}, nil)
		if y.String() != "float32[2,4]" || s.GradOf(w).Device() != w.Device() || w.Device() == CPU {
			t.Error(y, w.Device())
		}
	})
	fails(t, "Cannot copy out of meta tensor", func(s *Scope) {
		Values[float32](s.Call("aten::empty.memory_format", []int{2}, Float32, nil, "meta")[0])
	})
}

// A test process of its own, with a libmolt beside which a CUDA library of another version lies; the cache has one that fits.
func TestTheNextCUDALibraryIsTriedAfterOneOfAnotherVersion(t *testing.T) {
	if os.Getenv("MOLT_TWO_CUDA") != "" {
		_, err := DeviceCount()
		if err == nil || !strings.Contains(err.Error(), "CUDA: ") || strings.Contains(err.Error(), "cannot be opened") {
			t.Errorf("error %v, want one about the driver or the device: the second library is good", err)
		}
		return
	}
	dir := t.TempDir()
	cache := filepath.Join(dir, "molt", Version)
	header, err := os.ReadFile("molt.h")
	if err == nil {
		err = os.MkdirAll(cache, 0o755)
	}
	lib, absErr := filepath.Abs("../build/lib/libmolt.so")
	if err = errors.Join(err, absErr, os.Symlink(lib, filepath.Join(dir, "libmolt.so"))); err != nil {
		t.Fatal(err)
	}
	for place, abi := range map[string]string{dir: "another", cache: fmt.Sprintf("%x", sha256.Sum256(header))} {
		source := filepath.Join(place, "cuda.c")
		text := fmt.Sprintf("const char* molt_cuda(void** backend) { *backend = 0; return %q; }", abi)
		if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", filepath.Join(place, "libmolt_cuda.so"), source).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "MOLT_TWO_CUDA=1", "MOLT_CUDA_LIB=", "MOLT_LIB="+filepath.Join(dir, "libmolt.so"), "XDG_CACHE_HOME="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
