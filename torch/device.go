package torch

/*
#include "molt.h"
*/
import "C"

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Device is where a tensor lies: "cpu", or "cuda:0" and so on. The first use of a CUDA device opens libmolt_cuda.so, which
// `make cuda` builds. It must come before the process's first backward, [Seed] or convolution, at which libtorch settles for the
// devices that it knows: call [Device.Check] or [DeviceCount] when the program starts.
type Device string

// CPU is where [New] and operators make tensors unless [Scope.On] says otherwise.
const CPU Device = "cpu"

// ParseDevice reads a name as configs write it: "cpu", "cuda:1", or "cuda" for "cuda:0". Whether there is one, Check tells.
func ParseDevice(name string) (Device, error) {
	if name == "cuda" {
		name = "cuda:0"
	}
	_, err := Device(name).index()
	return Device(name), err
}

// index is -1 for the CPU.
func (d Device) index() (i C.int32_t, err error) {
	if d == CPU {
		return -1, nil
	}
	if fmt.Sscanf(string(d), "cuda:%d", &i); i < 0 || i > 127 || fmt.Sprintf("cuda:%d", i) != string(d) {
		return 0, &Error{Op: fmt.Sprintf("device %q", string(d)), Msg: "not known; known are cpu, cuda and cuda:0 to cuda:127"}
	}
	return i, nil
}

// Check tells whether tensors can be made on d; if not, the error says what is missing.
func (d Device) Check() error {
	_, err := d.open()
	return err
}

func (d Device) open() (i C.int32_t, err error) {
	if i, err = d.index(); err != nil || i < 0 {
		return i, err
	}
	n, err := DeviceCount()
	if err == nil && int(i) >= n {
		err = &Error{Op: "CUDA", Msg: fmt.Sprintf("no device %s: this machine has cuda:0 to cuda:%d", d, n-1)}
	}
	return i, err
}

// must is open inside a Do, where libmolt is loaded and every error is an *Error.
func (d Device) must() C.int32_t {
	i, err := d.open()
	if err != nil {
		panic(err)
	}
	return i
}

var cuda struct {
	sync.Mutex
	count int // 0: not known
}

// DeviceCount is the number of CUDA devices, never 0: the error says what is missing, the library (with every place tried), the
// driver or a device.
func DeviceCount() (int, error) {
	if err := Load(); err != nil {
		return 0, err
	}
	cuda.Lock()
	defer cuda.Unlock()
	if cuda.count > 0 {
		return cuda.count, nil
	}
	paths := []string{os.Getenv("MOLT_CUDA_LIB")} // alone when it is set
	if paths[0] == "" {
		paths[0] = filepath.Join(filepath.Dir(libmolt), "libmolt_cuda.so")
		if cache, err := os.UserCacheDir(); err == nil {
			paths = append(paths, filepath.Join(cache, "molt", Version, "libmolt_cuda.so"))
		}
	}
	path, tried := search(paths, func(path *C.char) (string, bool) {
		var e *C.char
		if C.mt_cuda_open(path, &e); e != nil {
			return message(e), false
		}
		return "", false
	})
	if path == "" {
		return 0, &Error{Op: "CUDA", Msg: "libmolt_cuda.so cannot be opened; run `make cuda` in a checkout of molt, or set MOLT_CUDA_LIB " +
			"to its path. Tried:" + tried}
	}
	var e *C.char
	n := int(C.mt_cuda_count(&e))
	if e != nil {
		return 0, &Error{Op: "CUDA", Msg: message(e)}
	}
	cuda.count = n
	return n, nil
}

// On is [Scope.Block] with d as the place where tensors are made: by New, Zeros and every operator that takes no tensor.
func (s *Scope) On(d Device, f func(s *Scope) Tensor) Tensor { return s.on("On", d, 0, f) }

// OnStream is On with a stream of its own, for work that runs beside that of other goroutines on d. Its operators wait for those
// that s has queued, and what s queues after it waits for them. On the CPU it is On.
func (s *Scope) OnStream(d Device, f func(s *Scope) Tensor) Tensor { return s.on("OnStream", d, 1, f) }

func (s *Scope) on(op string, d Device, ownStream C.int32_t, f func(s *Scope) Tensor) Tensor {
	i := d.must()
	return s.Block(func(s *Scope) Tensor {
		var e *C.char
		C.mt_scope_on(s.h, i, ownStream, &e)
		check(op, e)
		return f(s)
	})
}

// ToDevice is t itself, where it lies on d, else a copy there, which gradients flow through. A copy to a CUDA device runs beside the
// caller where t lies in pinned memory.
func (s *Scope) ToDevice(t Tensor, d Device) Tensor {
	i := d.must()
	return s.Call("aten::to.dtype_layout", t, nil, nil, string(d), nil, i >= 0)[0]
}

// PinMemory is a copy of t, a tensor on the CPU, in memory that CUDA devices read and write themselves.
func (s *Scope) PinMemory(t Tensor) Tensor {
	Device("cuda:0").must()
	return s.Call("aten::pin_memory", t)[0]
}

// Device is where t lies.
func (t Tensor) Device() Device {
	switch i := t.info(); i.device {
	case 0:
		return CPU
	case 1:
		return Device(fmt.Sprintf("cuda:%d", i.index))
	default:
		return Device(fmt.Sprintf("device(%d)", i.device))
	}
}

// Synchronize returns when everything is done that any goroutine has queued on d.
func (d Device) Synchronize() error {
	i, err := d.open()
	if err != nil || i < 0 {
		return err
	}
	var e *C.char
	C.mt_synchronize(i, &e)
	return failed(e)
}

// Memory is [Memory] of a device: the bytes of its caching allocator.
func (d Device) Memory() (MemoryInfo, error) {
	i, err := d.open()
	if err != nil || i < 0 {
		return Memory(), err
	}
	var m C.mt_memory_info
	var e *C.char
	C.mt_device_memory(i, &m, &e)
	return MemoryInfo{int64(m.used), int64(m.cached), int64(m.peak)}, failed(e)
}
