package gguf

// The K types have blocks of 256 values in groups, each group with a small integer scale of its own.

// groupScale unpacks the 6-bit scale and minimum of group j of 8 from the 12 bytes that Q4_K and Q5_K share: bytes 0-3
// and 4-7 hold those of groups 0 to 3 in their low 6 bits and the top 2 bits of groups 4 to 7 above; bytes 8-11 hold
// the low 4 bits of groups 4 to 7, scale below minimum.
func groupScale(packed []byte, j int) (scale, minimum float32) {
	if j < 4 {
		return float32(packed[j] & 63), float32(packed[j+4] & 63)
	}
	low := packed[j+4]
	return float32(low&15 | packed[j-4]>>6<<4), float32(low>>4 | packed[j]>>6<<4)
}

// decodeQ4_K: block = d f16, dmin f16, 12 bytes of group scales, 128 bytes of nibbles, each 32 of which hold one group
// in the low and the next in the high half; value (d·scale)·q − dmin·minimum.
func decodeQ4_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[144:] {
		d, dmin, scales, nibbles := half(src), half(src[2:]), src[4:16], src[16:144]
		for j := range 8 {
			scale, minimum := groupScale(scales, j)
			dj, mj, out, shift := d*scale, dmin*minimum, dst[32*j:32*j+32], 4*(j&1)
			for i, q := range nibbles[j/2*32 : j/2*32+32] {
				out[i] = float32(dj*float32(q>>shift&15)) - mj
			}
		}
	}
}

// decodeQ5_K: as Q4_K, with 32 bytes of fifth bits before the nibbles: bit j of byte i belongs to value i of group j.
func decodeQ5_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[176:] {
		d, dmin, scales, fifth, nibbles := half(src), half(src[2:]), src[4:16], src[16:48], src[48:176]
		for j := range 8 {
			scale, minimum := groupScale(scales, j)
			dj, mj, out, shift := d*scale, dmin*minimum, dst[32*j:32*j+32], 4*(j&1)
			for i, q := range nibbles[j/2*32 : j/2*32+32] {
				out[i] = float32(dj*float32(q>>shift&15|fifth[i]>>j&1<<4)) - mj
			}
		}
	}
}

// decodeQ6_K: block = 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, d f16; value (d·scale)·(q − 32).
// Each half of 128 values has 64 nibble bytes (its values 0-63 in the low, 64-127 in the high halves) and 32 bytes of
// pairs (pair k of byte i is that of value 32k + i); a scale is for 16 values.
func decodeQ6_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[210:] {
		scales, d := src[192:208], half(src[208:])
		for h := range 2 {
			low, high, out := src[64*h:64*h+64], src[128+32*h:128+32*h+32], dst[128*h:128*h+128]
			for i := range out {
				q := low[i%64]>>(i/64*4)&15 | high[i%32]>>(i/32*2)&3<<4
				out[i] = float32(d*float32(int8(scales[8*h+i/16]))) * float32(int(q)-32)
			}
		}
	}
}
