package torch

/*
#cgo noescape mt_scope_open
#cgo noescape mt_scope_close
#cgo noescape mt_scope_move
#include <stdlib.h>
#include "molt.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"
)

// Scope owns tensors: the results of the operators called on it. They are freed when it closes, at a known time.
// A scope belongs to the goroutine of its [Do] and takes no results while a child of it is open.
type Scope struct {
	h     C.mt_scope
	debug bool
}

// Error is what an operator reports: a wrong argument, shapes that do not fit, no memory.
type Error struct {
	Op     string   // "aten::add.Tensor"
	Shapes []string // of its tensor arguments, "float32[2,3]"
	Msg    string
}

func (e *Error) Error() string {
	if len(e.Shapes) == 0 {
		return "torch: " + e.Op + ": " + e.Msg
	}
	return "torch: " + e.Op + "(" + strings.Join(e.Shapes, ", ") + "): " + e.Msg
}

// Do runs f on an OS thread of its own with a root scope in grad mode, whose operators use up to threads cores, at least 1 and never
// more than there are, and frees everything that the scope holds. A panic of type *Error inside f becomes Do's error.
func Do(threads int, f func(*Scope) error) (err error) {
	if err := Load(); err != nil {
		return err
	}
	if threads < 1 {
		return &Error{Op: "Do", Msg: fmt.Sprintf("%d threads: want at least 1", threads)}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := C.mt_threads(cores(threads))
	defer C.mt_threads(before)
	defer Catch(&err)
	s := open(0, 1)
	defer s.close()
	return f(s)
}

// Catch, deferred, turns an operator's panic into *err. Do does so itself; use it where a function inside must go on after one.
func Catch(err *error) {
	if r := recover(); r != nil {
		e, ok := r.(*Error)
		if !ok {
			panic(r)
		}
		*err = e
	}
}

// SetThreads changes how many cores the operators of this Do may use, as Do's argument.
func (s *Scope) SetThreads(n int) {
	if n < 1 {
		panic(&Error{Op: "SetThreads", Msg: fmt.Sprintf("%d threads: want at least 1", n)})
	}
	C.mt_threads(cores(n))
}

// cores is n, but not more than the machine has: a pool of thousands of threads takes minutes for what one does in a blink.
func cores(n int) C.int32_t { return C.int32_t(min(n, runtime.NumCPU())) }

// Block runs f in a child scope of the same grad mode, frees what f made and moves its result (if any) to s.
func (s *Scope) Block(f func(s *Scope) Tensor) Tensor { return s.child(-1, f) }

// Grad is Block in grad mode.
func (s *Scope) Grad(f func(s *Scope) Tensor) Tensor { return s.child(1, f) }

// NoGrad is Block without recording for backward.
func (s *Scope) NoGrad(f func(s *Scope) Tensor) Tensor { return s.child(0, f) }

func (s *Scope) child(grad int, f func(s *Scope) Tensor) Tensor {
	c := open(s.h, grad)
	c.debug = s.debug
	defer c.close()
	t := f(c)
	if t != (Tensor{}) {
		c.Move(s, t)
	}
	return t
}

// Move hands tensors of s over to an enclosing scope, so that they outlive s: for blocks with several results.
// Tensors that s does not own stay where they are.
func (s *Scope) Move(to *Scope, ts ...Tensor) {
	for _, t := range ts {
		var e *C.char
		C.mt_scope_move(s.h, to.h, t.h, &e)
		check("Scope.Move", e)
	}
}

// open opens a scope: grad is 1, 0 or, as the parent's, -1.
func open(parent C.mt_scope, grad int) *Scope {
	var e *C.char
	h := C.mt_scope_open(parent, C.int32_t(grad), &e)
	check("open a scope", e)
	return &Scope{h: h}
}

func (s *Scope) close() {
	var e *C.char
	C.mt_scope_close(s.h, &e)
	check("close a scope", e)
}

// Seed seeds libtorch's own generators, one per device, that random operators without a seed of their own draw from. They are
// shared by all goroutines: numbers repeat only where one of them draws at a time.
func Seed(seed uint64) error {
	if err := Load(); err != nil {
		return err
	}
	var e *C.char
	C.mt_seed(C.uint64_t(seed), &e)
	return failed(e)
}

// Live is the number of tensors that open scopes hold: 0 when no Do is running.
func Live() int {
	if load() != nil {
		return 0
	}
	return int(C.mt_live())
}

// MemoryInfo counts bytes of the caching allocator: tensors below 256 KB are not in it.
type MemoryInfo struct{ Used, Cached, Peak int64 }

// Memory reports what tensors hold now, what is kept for re-use, and the highest sum of the two so far.
func Memory() MemoryInfo {
	if load() != nil {
		return MemoryInfo{}
	}
	m := C.mt_memory()
	return MemoryInfo{int64(m.used), int64(m.cached), int64(m.peak)}
}

func check(op string, e *C.char) {
	if e != nil {
		panic(&Error{Op: op, Msg: message(e)})
	}
}

func message(e *C.char) string {
	defer C.free(unsafe.Pointer(e))
	return strings.TrimSpace(C.GoString(e))
}
