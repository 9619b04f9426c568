package torch

/*
#cgo noescape mt_from
#cgo noescape mt_read
#cgo noescape mt_write
#cgo noescape mt_info
#include "molt.h"
*/
import "C"

import (
	"fmt"
	"reflect"
	"strings"
	"unsafe"
)

// DType is a tensor's element type, in ATen's numbering.
type DType int8

// The element types.
const (
	Uint8    DType = 0
	Int8     DType = 1
	Int16    DType = 2
	Int32    DType = 3
	Int64    DType = 4
	Float16  DType = 5
	Float32  DType = 6
	Float64  DType = 7
	Bool     DType = 11
	BFloat16 DType = 15
)

var dtypes = map[DType]struct {
	name string
	size int
}{
	Uint8: {"uint8", 1}, Int8: {"int8", 1}, Int16: {"int16", 2}, Int32: {"int32", 4}, Int64: {"int64", 8},
	Float16: {"float16", 2}, Float32: {"float32", 4}, Float64: {"float64", 8}, Bool: {"bool", 1}, BFloat16: {"bfloat16", 2},
}

// Size is the bytes of one element, 0 for an unknown type.
func (d DType) Size() int { return dtypes[d].size }

func (d DType) String() string {
	if t, ok := dtypes[d]; ok {
		return t.name
	}
	return fmt.Sprintf("dtype(%d)", int8(d))
}

// ParseDType reads a name as configs write it: "float32", "bfloat16", …
func ParseDType(name string) (DType, error) {
	var known []string
	for d := DType(0); d < 16; d++ {
		t, ok := dtypes[d]
		if ok && t.name == name {
			return d, nil
		}
		if ok {
			known = append(known, t.name)
		}
	}
	return 0, fmt.Errorf("torch: unknown dtype %q; known: %s", name, strings.Join(known, ", "))
}

// Tensor is a handle on a tensor that a scope owns. The zero Tensor is none: operators take it for an absent optional.
type Tensor struct{ h handle }

// Number is an element type that Go slices and tensors share.
type Number interface {
	~float32 | ~float64 | ~int64 | ~int32 | ~int16 | ~int8 | ~uint8 | ~bool
}

var kinds = map[reflect.Kind]DType{
	reflect.Float32: Float32, reflect.Float64: Float64, reflect.Int64: Int64, reflect.Int32: Int32, reflect.Int16: Int16,
	reflect.Int8: Int8, reflect.Uint8: Uint8, reflect.Bool: Bool,
}

func dtypeOf[T Number]() DType { return kinds[reflect.TypeFor[T]().Kind()] }

// New makes a tensor of data in s, in row-major order. The data is copied; no shape means [len(data)].
func New[T Number](s *Scope, data []T, shape ...int) Tensor {
	if len(shape) == 0 {
		shape = []int{len(data)}
	}
	n := 1
	for _, d := range shape {
		n *= d
	}
	if n != len(data) {
		panic(&Error{Op: "New", Msg: fmt.Sprintf("%d numbers do not fill the shape %v", len(data), shape)})
	}
	var e *C.char
	h := C.mt_from(s.h, unsafe.Pointer(unsafe.SliceData(data)), C.int32_t(dtypeOf[T]()), dims(shape), C.int32_t(len(shape)), &e)
	check("New", e)
	return Tensor{h}
}

// Read copies t's numbers, converted to T, into dst in row-major order; dst must have t's length.
func Read[T Number](t Tensor, dst []T) {
	var e *C.char
	C.mt_read(t.h, unsafe.Pointer(unsafe.SliceData(dst)), C.int64_t(len(dst)), C.int32_t(dtypeOf[T]()), &e)
	check("Read", e)
}

// maxSlice is past any memory: views of one number may have any size.
const maxSlice = 1 << 40

// Values is a copy of t's numbers, converted to T, in row-major order.
func Values[T Number](t Tensor) []T {
	n := t.Numel()
	if n > maxSlice {
		panic(&Error{Op: "Values", Shapes: []string{t.String()}, Msg: "more numbers than a slice holds"})
	}
	dst := make([]T, n)
	Read(t, dst)
	return dst
}

// Item is the number of a tensor of one element.
func (t Tensor) Item() float64 {
	var v [1]float64
	Read(t, v[:])
	return v[0]
}

// Write copies data, converted to t's type, into t, whatever its grad mode. The length must be t's.
func Write[T Number](t Tensor, data []T) {
	WriteBytes(t, dtypeOf[T](), unsafe.Pointer(unsafe.SliceData(data)), len(data))
}

// WriteBytes is Write from raw memory that holds n elements of type d, such as a mapped file.
func WriteBytes(t Tensor, d DType, data unsafe.Pointer, n int) {
	if d.Size() == 0 {
		panic(&Error{Op: "WriteBytes", Shapes: []string{t.String()}, Msg: fmt.Sprintf("the size of %v is not known", d)})
	}
	var e *C.char
	C.mt_write(t.h, data, C.int64_t(n), C.int32_t(d), &e)
	check("Write", e)
}

// Shape lists t's dimensions.
func (t Tensor) Shape() []int {
	i := t.info()
	shape := make([]int, i.ndim)
	for k := range shape {
		shape[k] = int(i.shape[k])
	}
	return shape
}

// Dim is the size of dimension d; negative d counts from the last.
func (t Tensor) Dim(d int) int {
	i := t.info()
	if d < 0 {
		d += int(i.ndim)
	}
	if d < 0 || d >= int(i.ndim) {
		panic(&Error{Op: "Dim", Shapes: []string{t.String()}, Msg: fmt.Sprintf("no dimension %d", d)})
	}
	return int(i.shape[d])
}

// Numel is the number of elements.
func (t Tensor) Numel() int {
	n := 1
	for _, d := range t.Shape() {
		n *= d
	}
	return n
}

// DType is the element type.
func (t Tensor) DType() DType { return DType(t.info().dtype) }

// IsContiguous tells whether t's elements lie in row-major order without gaps.
func (t Tensor) IsContiguous() bool { return t.info().contiguous != 0 }

// RequiresGrad tells whether backward reaches t.
func (t Tensor) RequiresGrad() bool { return t.info().requires_grad != 0 }

// String is t's type and shape: "float32[2,3]".
func (t Tensor) String() string {
	var i C.mt_tensor_info
	var e *C.char
	if C.mt_info(t.h, &i, &e); e != nil {
		return "(" + message(e) + ")"
	}
	s := make([]string, i.ndim)
	for k := range s {
		s[k] = fmt.Sprint(int(i.shape[k]))
	}
	return DType(i.dtype).String() + "[" + strings.Join(s, ",") + "]"
}

func (t Tensor) info() (i C.mt_tensor_info) {
	var e *C.char
	C.mt_info(t.h, &i, &e)
	check("tensor", e)
	return i
}

func dims(shape []int) *C.int64_t { return (*C.int64_t)(unsafe.Pointer(unsafe.SliceData(shape))) }

// Bytes is a copy of t's memory in row-major order, Numel·DType.Size long: what a file of weights holds.
func Bytes(t Tensor) []byte {
	size := t.DType().Size()
	if size == 0 || t.Numel() > maxSlice {
		panic(&Error{Op: "Bytes", Shapes: []string{t.String()}, Msg: "this type has no known size, or there is no memory for so many"})
	}
	dst := make([]byte, t.Numel()*size)
	var e *C.char
	C.mt_read(t.h, unsafe.Pointer(unsafe.SliceData(dst)), C.int64_t(t.Numel()), C.int32_t(t.DType()), &e)
	check("Bytes", e)
	return dst
}
