//go:build cuda

package torch_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	. "github.com/molt-go/molt/torch"
)

// With the library there, a CUDA device is found or the error says what else is missing; and the CPU is as before.
func TestCUDALibraryOpensAndSaysWhatElseIsMissing(t *testing.T) {
	n, err := DeviceCount()
	if err == nil && n == 0 || err != nil && !strings.Contains(err.Error(), "no NVIDIA driver: libcuda.so.1 was not found") &&
		!strings.Contains(err.Error(), "no CUDA device") {
		t.Errorf("%d devices, error %v", n, err)
	}
	t.Logf("%d devices, error %v", n, err)
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"libtorch_cpu", "libc10", "libtorch_cuda", "libmolt_cuda", "libgomp", "libcudart"} {
		files := map[string]bool{}
		for _, file := range regexp.MustCompile(`/\S*/`+name+`\.so\S*`).FindAllString(string(maps), -1) {
			files[file] = true
		}
		if len(files) != 1 {
			t.Errorf("%s is mapped from %v, want one file", name, files)
		}
	}
	do(t, func(s *Scope) {
		w := New(s, []float32{3}).RequireGrad(true)
		s.Backward([]Tensor{s.Mul(w, w)}, nil)
		if g := s.GradOf(w).Item(); g != 6 {
			t.Error("gradient of w² at 3:", g)
		}
	})
}

func TestCUDAAfterABackwardIsAnErrorThatNamesTheFix(t *testing.T) {
	if os.Getenv("MOLT_TEST_LATE") == "" { // a process of its own, where nothing has asked for a device yet
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "MOLT_TEST_LATE=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	do(t, func(s *Scope) { s.Backward([]Tensor{s.Sum(New(s, []float32{3}).RequireGrad(true))}, nil) })
	if _, err := DeviceCount(); err == nil || !strings.Contains(err.Error(), "ask for a device before that") {
		t.Error(err)
	}
}
