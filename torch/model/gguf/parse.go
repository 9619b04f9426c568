package gguf

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

const (
	magic            = 0x46554747 // "GGUF"
	headerSize       = 4 + 4 + 8 + 8
	maxDims          = 4 // ggml's own limit
	defaultAlignment = 32
	alignmentKey     = "general.alignment"
	maxBytes         = math.MaxInt64 / 8 // of a tensor and of its offset
	maxHeader        = 32 << 20          // the largest vocabularies need a half
)

// reader reads little-endian values; after its first error it returns zeros.
type reader struct {
	data []byte
	pos  int
	err  error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

func (r *reader) cut(n uint64, what string) {
	r.fail("file is truncated, or its header over %d bytes: %d %s wanted at offset %d of %d", maxHeader, n, what, r.pos, len(r.data))
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.data)-r.pos) {
		r.cut(n, "bytes")
	}
	if r.err != nil {
		return nil
	}
	r.pos += int(n)
	return r.data[r.pos-int(n) : r.pos]
}

// uint reads an integer of at most 8 bytes.
func (r *reader) uint(size uint64) (v uint64) {
	for i, b := range r.take(size) {
		v |= uint64(b) << (8 * i)
	}
	return v
}

func (r *reader) str() string { return string(r.take(r.uint(8))) }

// parse reads the header: magic, version, counts, metadata, tensor descriptions. Every loop consumes bytes of the file
// in each round, so no count in the header can make it run or allocate for longer than the file is.
func parse(data []byte) (*File, error) {
	r := &reader{data: data[:min(len(data), maxHeader)]}
	if r.uint(4) != magic {
		return nil, errors.New("not a GGUF file: wrong magic number")
	}
	switch v := r.uint(4); v {
	case 2, 3:
	case 2 << 24, 3 << 24:
		return nil, errors.New("big-endian GGUF files are not supported: convert it to little-endian")
	default:
		return nil, fmt.Errorf("GGUF version %d is not supported: want 2 or 3", v)
	}
	f := &File{Meta: map[string]any{}, byName: map[string]TensorInfo{}, data: data}
	numTensors, numMeta := r.uint(8), r.uint(8)
	for i := uint64(0); i < numMeta && r.err == nil; i++ {
		r.meta(f.Meta)
	}
	for i := uint64(0); i < numTensors && r.err == nil; i++ {
		f.Tensors = append(f.Tensors, r.tensor())
	}
	if r.err != nil {
		return nil, r.err
	}
	if n, _ := f.Meta["split.count"].(int64); n > 1 {
		return nil, fmt.Errorf("this is one of %d parts of a model: join them, as llama-gguf-split --merge does", n)
	}
	return f, f.place(r.pos)
}

func (r *reader) tensor() TensorInfo {
	t := TensorInfo{Name: r.str()}
	numDims := r.uint(4)
	if numDims > maxDims {
		r.fail("tensor %.200q has %d dimensions, want at most %d", t.Name, numDims, maxDims)
	}
	elems := uint64(1)
	for i := range min(numDims, maxDims) {
		d := r.uint(8)
		if d == 0 || elems > maxBytes/d {
			r.fail("tensor %.200q: dimension %d of size %d is empty or too large", t.Name, i, d)
		}
		elems *= d
		t.Shape = append(t.Shape, int(d))
	}
	row := append(t.Shape, 1)[0] // ggml's first dimension: blocks never cross a row
	slices.Reverse(t.Shape)
	t.Type = Type(r.uint(4))
	offset := r.uint(8)
	format, err := t.format()
	switch {
	case r.err != nil:
	case err != nil:
		r.err = err
	case row%format.elems != 0:
		r.fail("tensor %.200q: rows of %d values are no whole blocks of %d (%v)", t.Name, row, format.elems, t.Type)
	case offset > maxBytes:
		r.fail("tensor %.200q: its offset %d overflows", t.Name, offset)
	default:
		t.offset, t.size = int(offset), int(elems)/format.elems*format.size
	}
	return t
}

// place turns the tensors' offsets, relative to the aligned end of the header, into offsets in the file.
func (f *File) place(headerEnd int) error {
	var value any = int64(defaultAlignment)
	if v, ok := f.Meta[alignmentKey]; ok {
		value = v
	}
	align, _ := value.(int64)
	if align <= 0 || align&(align-1) != 0 || align > 1<<30 {
		return fmt.Errorf("metadata %q is a %T, as a number %d, want a power of two", alignmentKey, value, align)
	}
	base := (headerEnd + int(align) - 1) &^ (int(align) - 1)
	room, end := len(f.data)-base, 0
	for i := range f.Tensors {
		t := &f.Tensors[i]
		_, double := f.byName[t.Name]
		switch {
		case double:
			return fmt.Errorf("tensor %.200q is there twice", t.Name)
		case t.offset%int(align) != 0:
			return fmt.Errorf("tensor %.200q starts at offset %d, not a multiple of %d", t.Name, t.offset, align)
		case t.offset < end:
			return fmt.Errorf("tensor %.200q starts at offset %d, but the one before it ends at %d", t.Name, t.offset, end)
		case t.offset > room || t.size > room-t.offset:
			return fmt.Errorf("file is truncated: tensor %.200q needs %d bytes at offset %d, the data is %d bytes",
				t.Name, t.size, t.offset, max(room, 0))
		}
		end = t.offset + t.size
		t.offset += base
		f.byName[t.Name] = *t
	}
	return nil
}

// Metadata types as the file numbers them; all others are integers, of which the odd ones have a sign.
const metaFloat32, metaBool, metaString, metaArray, metaFloat64 = 6, 7, 8, 9, 12

// metaSizes are the bytes that one array element takes, by type; a string has at least its length.
var metaSizes = [...]uint64{1, 1, 2, 2, 4, 4, 4, 1, 8, metaArray: 0, 8, 8, 8}

func (r *reader) meta(into map[string]any) {
	key := r.str()
	if r.err != nil {
		return
	}
	if _, ok := into[key]; ok {
		r.fail("is there twice")
	}
	into[key] = r.value()
	if r.err != nil {
		r.err = fmt.Errorf("metadata %.200q: %w", key, r.err)
	}
}

func (r *reader) value() any {
	kind, n := r.uint(4), uint64(1)
	array := kind == metaArray
	if array {
		kind, n = r.uint(4), r.uint(8)
	}
	switch known := kind < uint64(len(metaSizes)); {
	case !known && !array:
		r.fail("unknown value type %d", kind)
	case !known || kind == metaArray:
		r.fail("arrays of type %d are not supported", kind)
	case n > uint64(len(r.data)-r.pos)/metaSizes[kind]:
		r.cut(n, "array elements")
	case kind == metaString:
		return list(r, n, array, r.str)
	case kind == metaBool:
		return list(r, n, array, r.bool)
	case kind == metaFloat32:
		return list(r, n, array, func() float64 { return float64(math.Float32frombits(uint32(r.uint(4)))) })
	case kind == metaFloat64:
		return list(r, n, array, func() float64 { return math.Float64frombits(r.uint(8)) })
	default:
		return list(r, n, array, func() int64 { return r.int(kind) })
	}
	return nil
}

// list reads n values, the only one of them where it is no array.
func list[T Value](r *reader, n uint64, array bool, next func() T) any {
	values := make([]T, n)
	for i := range values {
		if values[i] = next(); r.err != nil {
			return nil
		}
	}
	if array {
		return values
	}
	return values[0]
}

func (r *reader) bool() bool {
	b := r.uint(1)
	if b > 1 {
		r.fail("a boolean at offset %d with the value %d", r.pos-1, b)
	}
	return b == 1
}

func (r *reader) int(kind uint64) int64 {
	size := metaSizes[kind]
	v := r.uint(size)
	if kind%2 == 1 {
		unused := 64 - 8*size
		return int64(v<<unused) >> unused
	}
	if v > math.MaxInt64 {
		r.fail("the number at offset %d does not fit into 64 bits with a sign", r.pos-8)
	}
	return int64(v)
}
