package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Dequantize writes the values of t to dst, which has t.Len() elements, in row-major order. Products are rounded to
// float32 before they are added, as numpy does, so that a fused multiply-add cannot change a bit. Scales that are NaN
// or infinite give NaN or infinite values: whoever takes the weights checks them.
func (f *File) Dequantize(t TensorInfo, dst []float32) error {
	switch format, ok := formats[t.Type]; {
	case f.data == nil:
		return ErrClosed
	case !ok:
		return fmt.Errorf("gguf: tensor %q has the unsupported type %d: supported are %s", t.Name, uint32(t.Type), typeNames())
	case len(dst) != t.Len() || len(dst)/format.elems*format.size != t.size:
		return fmt.Errorf("gguf: tensor %q has shape %v, so %d values, not the %d of the destination", t.Name, t.Shape, t.Len(), len(dst))
	case t.offset+t.size > len(f.data):
		return fmt.Errorf("gguf: tensor %q is not of this file", t.Name)
	default:
		format.decode(dst, f.data[t.offset:t.offset+t.size])
		return nil
	}
}

func half(b []byte) float32 { return halfFloat(binary.LittleEndian.Uint16(b)) }

func halfFloat(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10)&31, uint32(h&0x3ff)
	switch exp {
	case 0: // zero and subnormal: frac · 2⁻²⁴ is exact
		return math.Float32frombits(math.Float32bits(float32(frac)*(1.0/(1<<24))) | sign)
	case 31: // infinity and NaN
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

func decodeF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func decodeF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = half(src[2*i:])
	}
}

func decodeBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

// In the blocks of 32 the low nibbles are values 0 to 15, the high ones 16 to 31.

// decodeQ4_0: block = scale d f16, 16 bytes of nibbles q; value d·(q − 8).
func decodeQ4_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[18:] {
		d, lo, hi := half(src), dst[:16], dst[16:32]
		for i, q := range src[2:18] {
			lo[i] = d * float32(int(q&15)-8)
			hi[i] = d * float32(int(q>>4)-8)
		}
	}
}

// decodeQ4_1: block = scale d f16, minimum m f16, 16 bytes of nibbles q; value d·q + m.
func decodeQ4_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[20:] {
		d, m, lo, hi := half(src), half(src[2:]), dst[:16], dst[16:32]
		for i, q := range src[4:20] {
			lo[i] = float32(d*float32(q&15)) + m
			hi[i] = float32(d*float32(q>>4)) + m
		}
	}
}

// decodeQ5_0: block = scale d f16, 32 fifth bits, 16 bytes of nibbles; value d·(q − 16).
func decodeQ5_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[22:] {
		d, fifth, lo, hi := half(src), binary.LittleEndian.Uint32(src[2:]), dst[:16], dst[16:32]
		for i, q := range src[6:22] {
			lo[i] = d * float32(int(uint32(q&15)|fifth>>i&1<<4)-16)
			hi[i] = d * float32(int(uint32(q>>4)|fifth>>(i+16)&1<<4)-16)
		}
	}
}

// decodeQ5_1: block = scale d f16, minimum m f16, 32 fifth bits, 16 bytes of nibbles; value d·q + m.
func decodeQ5_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[24:] {
		d, m, fifth, lo, hi := half(src), half(src[2:]), binary.LittleEndian.Uint32(src[4:]), dst[:16], dst[16:32]
		for i, q := range src[8:24] {
			lo[i] = float32(d*float32(uint32(q&15)|fifth>>i&1<<4)) + m
			hi[i] = float32(d*float32(uint32(q>>4)|fifth>>(i+16)&1<<4)) + m
		}
	}
}

// decodeQ8_0: block = scale d f16, 32 signed bytes q; value d·q.
func decodeQ8_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[34:] {
		d, out := half(src), dst[:32]
		for i, q := range src[2:34] {
			out[i] = d * float32(int8(q))
		}
	}
}
