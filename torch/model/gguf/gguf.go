// Package gguf reads GGUF files (versions 2 and 3, little-endian) and turns their quantised tensors into float32.
// It knows nothing of libtorch, of models or of text: names, shapes, metadata and numbers only.
//
// The format is the one that ggml documents; the values are bit-identical to those of the gguf-py package.
package gguf

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrClosed is returned for a tensor of a file that was closed.
var ErrClosed = errors.New("gguf: file is closed")

// File is an open GGUF file, mapped into memory. Its methods may be called from many goroutines, except for Close.
type File struct {
	// Meta holds the metadata. Values are of the types of Value, whatever width the file has.
	Meta map[string]any
	// Tensors lists the tensors in file order.
	Tensors []TensorInfo

	byName map[string]TensorInfo
	data   []byte // the whole file
	mapped bool   // data is a mapping, whose pages may be let go
}

// TensorInfo describes one tensor.
type TensorInfo struct {
	Name  string
	Shape []int // row-major, outermost dimension first, as in torch: ggml's order reversed
	Type  Type

	offset, size int // of its bytes in the file; checked by Open
}

// Len is the number of elements.
func (t TensorInfo) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Open maps the file and reads its header. Everything the header claims is checked against the size of the file here,
// so that a damaged file is an error of Open, in time and memory proportional to the size of its header.
func Open(path string) (*File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not block
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() < headerSize {
		return nil, fmt.Errorf("gguf: %s: not a GGUF file: no regular file of at least %d bytes", path, headerSize)
	}
	data, err := unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("gguf: map %s: %w", path, err)
	}
	f, err := parse(data)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("gguf: %s: %w", path, err), unix.Munmap(data))
	}
	f.mapped = true
	return f, nil
}

// Close unmaps the file. Meta and Tensors stay valid; Dequantize returns ErrClosed from then on.
func (f *File) Close() error {
	if f.data == nil {
		return ErrClosed
	}
	data := f.data
	f.data = nil
	return unix.Munmap(data)
}

// Lookup finds a tensor by name.
func (f *File) Lookup(name string) (TensorInfo, bool) {
	t, ok := f.byName[name]
	return t, ok
}

// Value is a type that metadata can have.
type Value interface {
	string | bool | int64 | float64 | []string | []bool | []int64 | []float64
}

// Get returns the metadata under key as a T. A missing key and a value of another type are errors that name the key.
func Get[T Value](f *File, key string) (T, error) {
	v, found := f.Meta[key]
	t, ok := v.(T)
	switch {
	case !found:
		return t, fmt.Errorf("gguf: no metadata %q in this file", key)
	case !ok:
		return t, fmt.Errorf("gguf: metadata %q is a %T, want %T", key, v, t)
	}
	return t, nil
}

// UnpermuteRotary puts the rows of a query or key projection w [rows, cols] of heads heads back into the order of the
// half-split rotary embedding, in place. Files of the llama layout store each head for the interleaved rotary: stored
// row 2i+j of a head is row j·(headDim/2)+i, j in {0, 1}. A bias is a projection with cols 1.
func UnpermuteRotary(w []float32, heads, rows, cols int) error {
	if heads <= 0 || rows <= 0 || cols <= 0 || rows%(2*heads) != 0 || len(w) != rows*cols {
		return fmt.Errorf("gguf: %d values are no [%d, %d] projection of %d heads of an even width", len(w), rows, cols, heads)
	}
	dim := rows / heads
	stored := make([]float32, dim*cols)
	for ; len(w) > 0; w = w[dim*cols:] {
		copy(stored, w)
		for r := range dim {
			to := r%2*(dim/2) + r/2
			copy(w[to*cols:(to+1)*cols], stored[r*cols:(r+1)*cols])
		}
	}
	return nil
}
