package torch

/*
#cgo noescape mt_backward
#cgo noescape mt_gradients
#cgo noescape mt_grad
#cgo noescape mt_label
#include <stdlib.h>
#include "molt.h"
*/
import "C"

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"unsafe"
)

// SetDebug makes operators of s, and of blocks opened in it from now on, leave their name and the line that called them in the
// graph. An error in a later backward, and the first NaN or Inf that it makes, then name both. It slows backward down.
func (s *Scope) SetDebug(on bool) { s.debug = on }

// label names o and the first caller outside this package as the origin of results.
func (s *Scope) label(o *op, results []handle) {
	var pc [32]uintptr
	frames := runtime.CallersFrames(pc[:runtime.Callers(3, pc[:])])
	where := o.String()
	for f, more := frames.Next(); more; f, more = frames.Next() {
		if !strings.HasPrefix(f.Function, pkg) {
			where = fmt.Sprintf("%s at %s:%d", where, f.File, f.Line)
			break
		}
	}
	c := C.CString(where)
	defer C.free(unsafe.Pointer(c))
	var e *C.char
	C.mt_label(s.h, unsafe.SliceData(results), C.int32_t(len(results)), c, &e)
	check("SetDebug", e)
}

// pkg is how the names of this package's own functions begin.
var pkg = reflect.TypeFor[Scope]().PkgPath() + "."

// RequireGrad makes t a leaf that backward accumulates a gradient for (or no longer), and returns it.
func (t Tensor) RequireGrad(on bool) Tensor {
	var e *C.char
	C.mt_require_grad(t.h, C.int32_t(truth(on).v), &e)
	check("RequireGrad", e)
	return t
}

// Backward adds the gradients of roots to their leaves' .grad. grads[i] is the gradient of roots[i]; none (or a short list) stands
// for 1 and needs a root of one element. Scopes of the blocks that made the graph may be closed: the graph holds what it needs.
func (s *Scope) Backward(roots, grads []Tensor) {
	r, g := pair("Backward", roots, grads)
	var e *C.char
	C.mt_backward(s.h, unsafe.SliceData(r), unsafe.SliceData(g), C.int32_t(len(r)), &e)
	check("Backward", e)
}

// Gradients returns the gradients of roots by inputs, in s, each in memory of its own, and leaves every .grad alone. An input that no
// root depends on gets the zero Tensor.
func (s *Scope) Gradients(roots, grads, inputs []Tensor) []Tensor {
	r, g := pair("Gradients", roots, grads)
	in, out := handles(inputs), make([]handle, len(inputs))
	var e *C.char
	C.mt_gradients(s.h, unsafe.SliceData(r), unsafe.SliceData(g), C.int32_t(len(r)), unsafe.SliceData(in), C.int32_t(len(in)),
		unsafe.SliceData(out), &e)
	check("Gradients", e)
	return wrap(out)
}

// GradOf is the gradient that backward left at leaf t, as a tensor of s that shares its memory, or the zero Tensor.
func (s *Scope) GradOf(t Tensor) Tensor {
	var e *C.char
	h := C.mt_grad(s.h, t.h, &e)
	check("GradOf", e)
	return Tensor{h}
}

// ClearGrad drops t's gradient and frees it.
func (t Tensor) ClearGrad() {
	var e *C.char
	C.mt_clear_grad(t.h, &e)
	check("ClearGrad", e)
}

// Stage is a part of a model between two points where a few floating tensors carry all that is known; some may be the zero Tensor.
type Stage func(s *Scope, in []Tensor) []Tensor

// Recompute is activation checkpointing: it runs in through the stages without recording and keeps, in s, only what goes into each.
// back takes the gradients of the results: it runs the stages again, recorded one at a time from the last to the first, adds up the
// gradients of their leaves, and returns those of in, in its scope. A stage must do the same both times: random ones need seeds.
func (s *Scope) Recompute(stages []Stage, in ...Tensor) (out []Tensor, back func(s *Scope, grads []Tensor) []Tensor) {
	ins := [][]Tensor{in}
	for i, stage := range stages {
		s.NoGrad(func(b *Scope) Tensor {
			ins = append(ins, stage(b, ins[i]))
			b.Move(s, defined(ins[i+1])...)
			return Tensor{}
		})
	}
	return ins[len(stages)], func(s *Scope, grads []Tensor) []Tensor {
		if n := len(ins[len(stages)]); len(grads) != n {
			panic(&Error{Op: "Recompute", Msg: fmt.Sprintf("%d gradients for %d results", len(grads), n)})
		}
		for i, stage := range slices.Backward(stages) {
			s.Grad(func(b *Scope) Tensor {
				leaves := make([]Tensor, len(ins[i]))
				for k, t := range ins[i] {
					if t != (Tensor{}) {
						leaves[k] = b.Detach(t).RequireGrad(true)
					}
				}
				outs := stage(b, leaves)
				var roots, given []Tensor
				for k, g := range grads {
					if g != (Tensor{}) && outs[k].RequiresGrad() {
						roots, given = append(roots, outs[k]), append(given, g)
					}
				}
				if len(roots) > 0 {
					b.Backward(roots, given)
				}
				grads = make([]Tensor, len(leaves))
				for k, t := range leaves {
					if t != (Tensor{}) {
						grads[k] = b.GradOf(t)
					}
				}
				b.Move(s, defined(grads)...)
				return Tensor{}
			})
		}
		return grads
	}
}

func defined(ts []Tensor) []Tensor {
	return slices.DeleteFunc(slices.Clone(ts), func(t Tensor) bool { return t == Tensor{} })
}

func pair(op string, roots, grads []Tensor) (r, g []handle) {
	if len(grads) > len(roots) {
		panic(&Error{Op: op, Msg: fmt.Sprintf("%d gradients for %d roots", len(grads), len(roots))})
	}
	r, g = handles(roots), make([]handle, len(roots))
	copy(g, handles(grads))
	return r, g
}

func handles(ts []Tensor) []handle {
	hs := make([]handle, len(ts))
	for i, t := range ts {
		hs[i] = t.h
	}
	return hs
}

func wrap(hs []handle) []Tensor {
	ts := make([]Tensor, len(hs))
	for i, h := range hs {
		ts[i] = Tensor{h}
	}
	return ts
}
