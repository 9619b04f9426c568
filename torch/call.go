package torch

/*
#cgo noescape mt_call
#cgo nocallback mt_call
#cgo noescape mt_more
#include <stdlib.h>
#include "molt.h"
*/
import "C"

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"unsafe"
)

// op is an operator of the dispatcher, looked up at its first use.
type op struct {
	name, overload string
	once           sync.Once
	id             C.int32_t
	err            string
}

func (o *op) String() string {
	if o.overload == "" {
		return o.name
	}
	return o.name + "." + o.overload
}

func (o *op) lookup() C.int32_t {
	o.once.Do(func() {
		if strings.Contains(o.name+o.overload, "\x00") {
			o.err = "no operator has a NUL in its name"
			return
		}
		name, overload := C.CString(o.name), C.CString(o.overload)
		defer C.free(unsafe.Pointer(name))
		defer C.free(unsafe.Pointer(overload))
		var e *C.char
		if o.id = C.mt_op(name, overload, &e); e != nil {
			o.err = message(e)
		}
	})
	if o.err != "" {
		panic(&Error{Op: o.String(), Msg: o.err})
	}
	return o.id
}

type handle = C.mt_tensor

// Arguments of an operator; the lists' numbers lie in the pool that is passed beside them.
type arg = C.mt_arg

func tensor(t Tensor) arg {
	if t.h == 0 {
		return arg{}
	}
	return arg{tag: C.MT_TENSOR, v: C.int64_t(t.h)}
}
func num(i int) arg         { return arg{tag: C.MT_INT, v: C.int64_t(i)} }
func float(f float64) arg   { return arg{tag: C.MT_DOUBLE, v: C.int64_t(math.Float64bits(f))} }
func dtype(d DType) arg     { return num(int(d)) }
func list(at, n int) arg    { return arg{tag: C.MT_INTS, n: C.int32_t(n), v: C.int64_t(at)} }
func tensors(at, n int) arg { return arg{tag: C.MT_TENSORS, n: C.int32_t(n), v: C.int64_t(at)} }
func truth(b bool) arg {
	if b {
		return arg{tag: C.MT_BOOL, v: 1}
	}
	return arg{tag: C.MT_BOOL}
}

// call runs o, puts the handles of its results into out and returns how many it has.
func (s *Scope) call(o *op, pool []int, out []handle, args ...arg) int {
	var e *C.char
	n := C.mt_call(s.h, o.lookup(), unsafe.SliceData(args), C.int32_t(len(args)), dims(pool), unsafe.SliceData(out),
		C.int32_t(len(out)), &e)
	if e != nil {
		panic(failure(o, pool, args, message(e)))
	}
	if s.debug {
		s.label(o, out[:min(int(n), len(out))])
	}
	return int(n)
}

// one is call for operators with one result.
func (s *Scope) one(o *op, pool []int, args ...arg) Tensor {
	var out [1]handle
	s.call(o, pool, out[:], args...)
	return Tensor{out[0]}
}

func failure(o *op, pool []int, args []arg, msg string) *Error {
	err := &Error{Op: o.String(), Msg: msg}
	for _, a := range args {
		switch a.tag {
		case C.MT_TENSOR:
			err.Shapes = append(err.Shapes, Tensor{C.mt_tensor(a.v)}.String())
		case C.MT_TENSORS:
			err.Shapes = append(err.Shapes, fmt.Sprintf("%d tensors", a.n))
		}
	}
	return err
}

var called sync.Map // operator name → *op

// Call runs any operator of the dispatcher by name, "aten::add.Tensor" or "aten::relu", and returns its results in order.
// Arguments are Tensor, int, float64, bool, string, slices of these, DType, or nil (the schema's default); those left out take their
// defaults too. A device is its name, "cpu"; a random generator is the seed of a new one, an int; one int stands for a list of equal
// ones where the schema gives its length. They are checked against the operator's schema, which errors name: a few of libtorch's own
// backward kernels trust the rest of their arguments. Results that are numbers come as tensors of one element.
func (s *Scope) Call(name string, args ...any) []Tensor {
	v, known := called.Load(name)
	if !known { // a name without an operator is not kept
		base, overload, _ := strings.Cut(name, ".")
		o := &op{name: base, overload: overload}
		o.lookup()
		v, _ = called.LoadOrStore(name, o)
	}
	o := v.(*op)
	var pool []int
	packed := make([]arg, len(args))
	for i, a := range args {
		packed[i] = pack(a, &pool)
	}
	out := make([]handle, 4+len(pool)) // an operator on a list of tensors may return as many
	if n := s.call(o, pool, out, packed...); n > len(out) {
		more := make([]handle, n-len(out))
		var e *C.char
		C.mt_more(s.h, unsafe.SliceData(more), C.int32_t(len(more)), &e)
		check(name, e)
		out = append(out, more...)
	} else {
		out = out[:n]
	}
	return wrap(out)
}

func pack(a any, pool *[]int) arg {
	at := len(*pool)
	switch a := a.(type) {
	case nil:
		return arg{}
	case Tensor:
		return tensor(a)
	case int:
		return num(a)
	case int64:
		return num(int(a))
	case float64:
		return float(a)
	case float32:
		return float(float64(a))
	case bool:
		return truth(a)
	case DType:
		return dtype(a)
	case []int:
		*pool = append(*pool, a...)
		return list(at, len(a))
	case []Tensor:
		return tensors(at, poolTensors(pool, a))
	case []float64:
		for _, f := range a {
			*pool = append(*pool, int(math.Float64bits(f)))
		}
		return arg{tag: C.MT_DOUBLES, n: C.int32_t(len(a)), v: C.int64_t(at)}
	case []bool:
		for _, b := range a {
			*pool = append(*pool, int(truth(b).v))
		}
		return arg{tag: C.MT_BOOLS, n: C.int32_t(len(a)), v: C.int64_t(at)}
	case string:
		poolString(pool, a)
		return arg{tag: C.MT_STRING, n: C.int32_t(len(a)), v: C.int64_t(at)}
	case []string:
		*pool = append(*pool, make([]int, 2*len(a))...)
		for k, text := range a {
			(*pool)[at+2*k], (*pool)[at+2*k+1] = len(*pool), len(text)
			poolString(pool, text)
		}
		return arg{tag: C.MT_STRINGS, n: C.int32_t(len(a)), v: C.int64_t(at)}
	}
	what := fmt.Sprintf("a Go %T (Call takes Tensor, int, float64, bool, string, DType, slices of the first five, and nil)", a)
	poolString(pool, what)
	return arg{tag: C.MT_OTHER, n: C.int32_t(len(what)), v: C.int64_t(at)} // an error that names the schema
}

func poolString(pool *[]int, text string) {
	at := len(*pool)
	*pool = append(*pool, make([]int, (len(text)+7)/8)...)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData((*pool)[at:]))), len(text)), text)
}

func poolTensors(pool *[]int, ts []Tensor) int {
	for _, t := range ts {
		*pool = append(*pool, int(t.h))
	}
	return len(ts)
}
