package torch

/*
#include "molt.h"
*/
import "C"

import "unsafe"

// FromATen is a tensor of s that shares everything, memory, gradient and graph, with the at::Tensor at p, which another binding
// of libtorch made. The binding keeps p and must hold it until FromATen returns; later it may let go. A null p and an
// undefined at::Tensor give the zero Tensor. One libtorch_cpu.so must be in the process: p of another copy ends it.
func (s *Scope) FromATen(p unsafe.Pointer) Tensor {
	var e *C.char
	h := C.mt_from_aten(s.h, p, &e)
	check("FromATen", e)
	return Tensor{h}
}

// ATen is the address of a new at::Tensor that shares everything with t, for another binding of the same libtorch. It outlives t's
// scope; the binding frees it, with C++'s delete.
func (t Tensor) ATen() unsafe.Pointer {
	var e *C.char
	p := C.mt_to_aten(t.h, &e)
	check("ATen", e)
	return p
}
