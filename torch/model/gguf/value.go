package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Metadata types as the file numbers them.
const (
	metaUint8 = iota
	metaInt8
	metaUint16
	metaInt16
	metaUint32
	metaInt32
	metaFloat32
	metaBool
	metaString
	metaArray
	metaUint64
	metaInt64
	metaFloat64
)

// minSize is the least number of bytes that one array element takes; a string has at least its length.
var minSize = map[uint32]uint64{
	metaUint8: 1, metaInt8: 1, metaUint16: 2, metaInt16: 2, metaUint32: 4, metaInt32: 4, metaFloat32: 4,
	metaBool: 1, metaString: 8, metaUint64: 8, metaInt64: 8, metaFloat64: 8,
}

// value reads one value of the given type as one of the eight Go types of File.Meta. Truncation is left to r.err.
func (r *reader) value(kind uint32) (any, error) {
	switch kind {
	case metaString:
		return r.str(), nil
	case metaBool:
		return r.bool()
	case metaFloat32, metaFloat64:
		return r.float(kind)
	case metaArray:
		elem := r.u32()
		return r.array(elem, r.u64())
	}
	return r.int(kind)
}

func (r *reader) array(elem uint32, n uint64) (any, error) {
	size, ok := minSize[elem]
	if !ok {
		return nil, fmt.Errorf("arrays of type %d are not supported", elem)
	}
	if n > uint64(len(r.data)-r.pos)/size {
		return nil, fmt.Errorf("%w: an array of %d elements at offset %d of %d", errTruncated, n, r.pos, len(r.data))
	}
	switch elem {
	case metaString:
		return list(n, func() (string, error) { return r.str(), r.err })
	case metaBool:
		return list(n, r.bool)
	case metaFloat32, metaFloat64:
		return list(n, func() (float64, error) { return r.float(elem) })
	}
	return list(n, func() (int64, error) { return r.int(elem) })
}

func list[T any](n uint64, next func() (T, error)) ([]T, error) {
	values := make([]T, n)
	for i := range values {
		v, err := next()
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		values[i] = v
	}
	return values, nil
}

func (r *reader) bool() (bool, error) {
	b := r.take(1)
	if b != nil && b[0] > 1 {
		return false, fmt.Errorf("a boolean with the value %d", b[0])
	}
	return b != nil && b[0] == 1, r.err
}

func (r *reader) float(kind uint32) (float64, error) {
	if kind == metaFloat32 {
		return float64(math.Float32frombits(r.u32())), r.err
	}
	return math.Float64frombits(r.u64()), r.err
}

func (r *reader) int(kind uint32) (int64, error) {
	size, ok := minSize[kind]
	if !ok {
		return 0, fmt.Errorf("unknown value type %d", kind)
	}
	var raw [8]byte
	copy(raw[:], r.take(size))
	u := binary.LittleEndian.Uint64(raw[:])
	switch kind {
	case metaInt8:
		return int64(int8(u)), r.err
	case metaInt16:
		return int64(int16(u)), r.err
	case metaInt32:
		return int64(int32(u)), r.err
	case metaUint64:
		if u > math.MaxInt64 {
			return 0, errors.New("the number does not fit into 64 bits with a sign")
		}
	}
	return int64(u), r.err
}
