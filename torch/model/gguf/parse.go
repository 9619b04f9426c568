package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

const (
	magic            = 0x46554747 // "GGUF"
	headerSize       = 4 + 4 + 8 + 8
	maxDims          = 4 // ggml's own limit
	defaultAlignment = 32
	alignmentKey     = "general.alignment"
)

var errTruncated = errors.New("file is truncated")

// parse reads the header: magic, version, counts, metadata, tensor descriptions. Every loop consumes bytes of the file
// in each round, so no count in the header can make it run or allocate for longer than the file is.
func parse(data []byte) (*File, error) {
	r := &reader{data: data}
	if m := r.u32(); r.err != nil || m != magic {
		return nil, errors.New("not a GGUF file: wrong magic number")
	}
	if v := r.u32(); v != 2 && v != 3 {
		if s := bits.ReverseBytes32(v); s == 2 || s == 3 {
			return nil, errors.New("big-endian GGUF files are not supported: convert it to little-endian")
		}
		return nil, fmt.Errorf("GGUF version %d is not supported: want 2 or 3", v)
	}
	numTensors, numMeta := r.u64(), r.u64()
	f := &File{Meta: map[string]any{}, byName: map[string]int{}, data: data}
	for i := uint64(0); i < numMeta && r.err == nil; i++ {
		r.meta(f.Meta)
	}
	for i := uint64(0); i < numTensors && r.err == nil; i++ {
		t := r.tensor()
		if _, ok := f.byName[t.Name]; ok && r.err == nil {
			return nil, fmt.Errorf("tensor %q is there twice", t.Name)
		}
		f.byName[t.Name] = len(f.Tensors)
		f.Tensors = append(f.Tensors, t)
	}
	if r.err != nil {
		return nil, r.err
	}
	return f, f.place(r.pos)
}

// place turns the tensors' offsets, relative to the aligned end of the header, into offsets in the file.
func (f *File) place(headerEnd int) error {
	align := int64(defaultAlignment)
	if _, ok := f.Meta[alignmentKey]; ok {
		var err error
		if align, err = Get[int64](f, alignmentKey); err != nil {
			return err
		}
	}
	if align <= 0 || align&(align-1) != 0 || align > 1<<30 {
		return fmt.Errorf("metadata %q is %d, want a power of two", alignmentKey, align)
	}
	base := (headerEnd + int(align) - 1) &^ (int(align) - 1)
	for i := range f.Tensors {
		t := &f.Tensors[i]
		if t.offset%int(align) != 0 {
			return fmt.Errorf("tensor %q starts at offset %d, not a multiple of %d", t.Name, t.offset, align)
		}
		if room := len(f.data) - base; t.offset > room || t.size > room-t.offset {
			return fmt.Errorf("%w: tensor %q needs %d bytes at offset %d, the data is %d bytes",
				errTruncated, t.Name, t.size, t.offset, max(room, 0))
		}
		t.offset += base
	}
	return nil
}

// reader reads little-endian values; after its first error it returns zeros.
type reader struct {
	data []byte
	pos  int
	err  error
}

func (r *reader) take(n uint64) []byte {
	if r.err == nil && n > uint64(len(r.data)-r.pos) {
		r.err = fmt.Errorf("%w: %d bytes wanted at offset %d of %d", errTruncated, n, r.pos, len(r.data))
	}
	if r.err != nil {
		return nil
	}
	b := r.data[r.pos : r.pos+int(n)]
	r.pos += int(n)
	return b
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) str() string { return string(r.take(r.u64())) }

func (r *reader) meta(into map[string]any) {
	key := r.str()
	value, err := r.value(r.u32())
	if _, ok := into[key]; ok && r.err == nil && err == nil {
		err = errors.New("is there twice")
	}
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("metadata %q: %w", key, err)
	}
	into[key] = value
}

func (r *reader) tensor() TensorInfo {
	t := TensorInfo{Name: r.str()}
	numDims := r.u32()
	if numDims > maxDims && r.err == nil {
		r.err = fmt.Errorf("tensor %q has %d dimensions, want at most %d", t.Name, numDims, maxDims)
	}
	elems := uint64(1)
	for i := uint32(0); i < numDims && r.err == nil; i++ {
		d := r.u64()
		hi, lo := bits.Mul64(elems, d)
		if d == 0 || hi != 0 || lo > math.MaxInt64/8 {
			r.err = fmt.Errorf("tensor %q: dimension %d of size %d is empty or too large", t.Name, i, d)
		}
		elems = lo
		t.Shape = append(t.Shape, int(d))
	}
	t.Type = Type(r.u32())
	offset := r.u64()
	if r.err != nil {
		return t
	}
	format, ok := formats[t.Type]
	row := uint64(1) // ggml's first dimension: blocks never cross a row
	if len(t.Shape) > 0 {
		row = uint64(t.Shape[0])
	}
	switch {
	case !ok:
		r.err = fmt.Errorf("tensor %q has the unsupported type %d: supported are %s", t.Name, uint32(t.Type), typeNames())
	case row%uint64(format.elems) != 0:
		r.err = fmt.Errorf("tensor %q: rows of %d values are no whole blocks of %d (%v)", t.Name, row, format.elems, t.Type)
	case offset > math.MaxInt64/8:
		r.err = fmt.Errorf("tensor %q: its offset %d overflows", t.Name, offset)
	}
	if r.err == nil {
		t.offset, t.size = int(offset), int(elems)/format.elems*format.size
		slices.Reverse(t.Shape)
	}
	return t
}
