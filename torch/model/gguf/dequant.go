package gguf

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Type is a ggml tensor type, with ggml's numbers.
type Type uint32

// The types that Dequantize knows.
const (
	F32, F16, BF16               Type = 0, 1, 30
	Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 Type = 2, 3, 6, 7, 8
	Q4_K, Q5_K, Q6_K             Type = 12, 13, 14
)

// format is how a type stores its values: blocks of elems values in size bytes each.
type format struct {
	name        string
	elems, size int
	block       func(dst []float32, b []byte) // decodes a block; any number of them where elems is 1
}

var formats = map[Type]format{
	F32:  {"F32", 1, 4, decodeF32},
	F16:  {"F16", 1, 2, decodeF16},
	BF16: {"BF16", 1, 2, decodeBF16},
	Q4_0: {"Q4_0", 32, 2 + 16, decodeQ4_0},
	Q4_1: {"Q4_1", 32, 2 + 2 + 16, decodeQ4_1},
	Q5_0: {"Q5_0", 32, 2 + 4 + 16, decodeQ5_0},
	Q5_1: {"Q5_1", 32, 2 + 2 + 4 + 16, decodeQ5_1},
	Q8_0: {"Q8_0", 32, 2 + 32, decodeQ8_0},
	Q4_K: {"Q4_K", 256, 2 + 2 + 12 + 128, decodeQ4_K},
	Q5_K: {"Q5_K", 256, 2 + 2 + 12 + 32 + 128, decodeQ5_K},
	Q6_K: {"Q6_K", 256, 128 + 64 + 16 + 2, decodeQ6_K},
}

func (t Type) String() string {
	if f, ok := formats[t]; ok {
		return f.name
	}
	return fmt.Sprintf("Type(%d)", uint32(t))
}

func (t TensorInfo) format() (format, error) {
	f, ok := formats[t.Type]
	if !ok {
		known := slices.Sorted(maps.Keys(formats))
		return f, fmt.Errorf("tensor %q has the unsupported type %d: supported are %v", t.Name, uint32(t.Type), known)
	}
	return f, nil
}

// Dequantize writes values of t, in row-major order from value at on, to all of dst; both are whole blocks of t's type. Then it lets go
// of the file's pages that they lie on. Products are rounded to float32 before they are added, as numpy does, so that a fused multiply-add
// cannot change a bit. Scales that are NaN or infinite give NaN or infinite values: whoever takes the weights checks them.
func (f *File) Dequantize(t TensorInfo, at int, dst []float32) error {
	if f.data == nil {
		return ErrClosed
	}
	format, err := t.format()
	switch {
	case err != nil:
		return fmt.Errorf("gguf: %w", err)
	case at < 0 || len(dst) > t.Len()-at || at%format.elems != 0 || len(dst)%format.elems != 0:
		return fmt.Errorf("gguf: %d values from %d on are no blocks of tensor %q, %v of shape %v", len(dst), at, t.Name, t.Type, t.Shape)
	case t.size != t.Len()/format.elems*format.size || t.offset+t.size > len(f.data):
		return fmt.Errorf("gguf: tensor %q is not of this file", t.Name)
	}
	first := t.offset + at/format.elems*format.size
	last := first + len(dst)/format.elems*format.size
	format.decode(dst, f.data[first:last])
	if f.mapped {
		_ = unix.Madvise(f.data[first&^(os.Getpagesize()-1):last], unix.MADV_DONTNEED) // only saves memory
	}
	return nil
}

// decode takes whole blocks: len(src)/f.size == len(dst)/f.elems.
func (f format) decode(dst []float32, src []byte) {
	if f.elems == 1 {
		f.block(dst, src)
		return
	}
	for ; len(dst) > 0; dst, src = dst[f.elems:], src[f.size:] {
		f.block(dst[:f.elems], src[:f.size])
	}
}

func decodeF32(dst []float32, b []byte)  { each(dst, b, 4, float) }
func decodeF16(dst []float32, b []byte)  { each(dst, b, 2, half) }
func decodeBF16(dst []float32, b []byte) { each(dst, b, 2, brain) }

func float(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
func half(b []byte) float32  { return halfFloat(binary.LittleEndian.Uint16(b)) }
func brain(b []byte) float32 {
	return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
}

func halfFloat(h uint16) float32 {
	bits := uint32(h>>15)<<31 | uint32(h&0x7fff)<<13
	if h&0x7c00 == 0x7c00 { // infinity and NaN
		return math.Float32frombits(bits | 0xff<<23)
	}
	return math.Float32frombits(bits) * 0x1p112 // the difference of the exponents' biases; exact, subnormals too
}

func each(dst []float32, b []byte, size int, value func([]byte) float32) {
	for i := range dst {
		dst[i] = value(b[size*i:])
	}
}

// scale writes d·(q − zero) + m, where q are signed bytes.
func scale(dst []float32, q []byte, zero int, d, m float32) {
	q = q[:len(dst)]
	for i := range dst {
		dst[i] = float32(d*float32(int(int8(q[i]))-zero)) + m
	}
}

// noMin is −0, the one number that, added, changes no bit of any other.
var noMin = float32(math.Copysign(0, -1))

// Blocks of 32: a scale d f16, in some a minimum m f16, in Q5 32 fifth bits, then the bytes or nibbles q.
func decodeQ8_0(dst []float32, b []byte) { scale(dst, b[2:], 0, half(b), noMin) }
func decodeQ4_0(dst []float32, b []byte) { decodeNibbles(dst, b[2:], nil, 8, half(b), noMin) }
func decodeQ4_1(dst []float32, b []byte) { decodeNibbles(dst, b[4:], nil, 0, half(b), half(b[2:])) }
func decodeQ5_0(dst []float32, b []byte) { decodeNibbles(dst, b[6:], b[2:], 16, half(b), noMin) }
func decodeQ5_1(dst []float32, b []byte) { decodeNibbles(dst, b[8:], b[4:], 0, half(b), half(b[2:])) }

// decodeNibbles: the low nibbles are values 0 to 15, the high ones 16 to 31.
func decodeNibbles(dst []float32, nibbles, fifth []byte, zero int, d, m float32) {
	lo, hi := dst[:16], dst[16:32]
	if fifth == nil { // apart, as it is a quarter faster
		for i, q := range nibbles[:16] {
			lo[i] = float32(d*float32(int(q&15)-zero)) + m
			hi[i] = float32(d*float32(int(q>>4)-zero)) + m
		}
		return
	}
	bits := binary.LittleEndian.Uint32(fifth)
	for i, q := range nibbles[:16] {
		lo[i] = float32(d*float32(int(uint32(q&15)|bits>>i&1<<4)-zero)) + m
		hi[i] = float32(d*float32(int(uint32(q>>4)|bits>>(i+16)&1<<4)-zero)) + m
	}
}

// The K types have blocks of 256 values in groups, each group with a small integer scale of its own.

// unpack sets width bits of each value q, from bit at on. The lowest bits of the bytes of packed are those of the first
// len(packed) values, the next ones those of as many more, and so on; eight bytes are taken at once.
func unpack(q, packed []byte, width, at int) {
	mask := 0x0101010101010101 * (uint64(1)<<width - 1)
	for shift := 0; shift < 8; shift += width {
		for i := 0; i < len(packed); i += 8 {
			bits := binary.LittleEndian.Uint64(packed[i:]) >> shift & mask << at
			binary.LittleEndian.PutUint64(q[i:], binary.LittleEndian.Uint64(q[i:])|bits)
		}
		q = q[len(packed):]
	}
}

// Q4_K: d f16, dmin f16, 12 bytes of group scales, 128 bytes of nibbles, each 32 of which hold one group in the low and
// the next in the high half; value (d·scale)·q − dmin·minimum. Q5_K has 32 bytes of fifth bits before the nibbles.
func decodeQ4_K(dst []float32, b []byte) { decodeGroups(dst, b, b[16:], nil) }
func decodeQ5_K(dst []float32, b []byte) { decodeGroups(dst, b, b[48:], b[16:48]) }

func decodeGroups(dst []float32, b, nibbles, fifth []byte) {
	var q [256]byte
	for i := range 4 {
		unpack(q[64*i:], nibbles[32*i:32*i+32], 4, 0)
	}
	unpack(q[:], fifth, 1, 4)
	d, dmin := half(b), half(b[2:])
	for j := range 8 {
		s, minimum := groupScale(b[4:16], j)
		scale(dst[32*j:32*j+32], q[32*j:], 0, d*s, dmin*-minimum)
	}
}

// groupScale unpacks the 6-bit scale and minimum of group j of 8 from 12 bytes: bytes 0-3 and 4-7 hold those of groups
// 0 to 3 in their low 6 bits and the top 2 bits of groups 4 to 7 above; bytes 8-11 hold the low 4 bits of groups 4 to 7,
// scale below minimum.
func groupScale(packed []byte, j int) (scale, minimum float32) {
	if j < 4 {
		return float32(packed[j] & 63), float32(packed[j+4] & 63)
	}
	low := packed[j+4]
	return float32(low&15 | packed[j-4]>>6<<4), float32(low>>4 | packed[j]>>6<<4)
}

// decodeQ6_K: 128 bytes of nibbles, 64 of high bit pairs, 16 signed scales, d f16; value (d·scale)·(q − 32). Each half of
// 128 values has 64 of the nibble bytes and 32 of the others; a scale is for 16 values.
func decodeQ6_K(dst []float32, b []byte) {
	var q [256]byte
	for h := range 2 {
		unpack(q[128*h:], b[64*h:64*h+64], 4, 0)
		unpack(q[128*h:], b[128+32*h:160+32*h], 2, 4)
	}
	d := half(b[208:])
	for j, s := range b[192:208] {
		scale(dst[16*j:16*j+16], q[16*j:], 32, d*float32(int8(s)), noMin)
	}
}
