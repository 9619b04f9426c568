package gguf

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// one is the float16 1.0, little-endian; the other float16 constants are named alike.
const (
	one   = "\x00\x3c"
	two   = "\x00\x40"
	three = "\x00\x42"
)

// Each block has few set fields; the wanted values are worked out from the block layouts.
func TestBlocksDecodeAsTheirLayoutSays(t *testing.T) {
	zeros := func(n int) string { return strings.Repeat("\x00", n) }
	type run struct { // want values from and up to these indices
		from, to int
		value    float32
	}
	tests := []struct {
		kind  Type
		block string
		rest  float32 // every value that no run gives
		runs  []run
	}{
		{F32, "\x00\x00\xc0\x3f", 1.5, nil},
		{F16, "\x01\x00", 1.0 / (1 << 24), nil}, // the smallest subnormal
		{BF16, "\xc0\xbf", -1.5, nil},
		// 2·(15−8) and 2·(1−8)
		{Q4_0, two + "\x1f" + zeros(15), -16, []run{{0, 1, 14}, {16, 17, -14}}},
		// 2·15+3 and 2·1+3
		{Q4_1, two + three + "\x1f" + zeros(15), 3, []run{{0, 1, 33}, {16, 17, 5}}},
		// 2·(31−16) and 2·(17−16)
		{Q5_0, two + "\x01\x00\x01\x00" + "\x1f" + zeros(15), -32, []run{{0, 1, 30}, {16, 17, 2}}},
		// 2·17+3 and 2·18+3
		{Q5_1, two + three + "\x00\x80\x00\x80" + zeros(15) + "\x21", 3, []run{{15, 16, 37}, {31, 32, 39}}},
		// 2·127 and 2·−128
		{Q8_0, two + "\x7f\x80" + zeros(30), 0, []run{{0, 1, 254}, {1, 2, -256}}},
		// group 4: scale 5, minimum 3, so 5·q − 2·3; its nibbles are the low ones of bytes 64 to 95
		{Q4_K, one + two + zeros(8) + "\x35\x00\x00\x00" + zeros(64) + "\x42" + zeros(63), 0, []run{{128, 129, 4}, {129, 160, -6}}},
		// group 0: scale 2, so 3·2·(63−32) once and 3·2·(0−32) fifteen times; the other groups have scale 0
		{Q6_K, "\x0f" + zeros(127) + "\x03" + zeros(63) + "\x02" + zeros(15) + three, 0, []run{{0, 1, 186}, {1, 16, -192}}},
	}
	for _, test := range tests {
		f := formats[test.kind]
		got, want := make([]float32, f.elems), make([]float32, f.elems)
		for i := range want {
			want[i] = test.rest
		}
		for _, r := range test.runs {
			for i := r.from; i < r.to; i++ {
				want[i] = r.value
			}
		}
		if len(test.block) != f.size {
			t.Fatalf("%v: a block of %d bytes, want %d", test.kind, len(test.block), f.size)
		}
		f.decode(got, []byte(test.block))
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%v:\n%s", test.kind, d)
		}
	}
}

// TestGroupsOfQ5K: d 1, dmin 2; group 1 has scale 4 and minimum 1, group 7 scale 33 and minimum 18 (top bits elsewhere).
func TestGroupsOfQ5K(t *testing.T) {
	block := make([]byte, formats[Q5_K].size)
	copy(block, one+two)
	copy(block[4:], []byte{0, 4, 0, 0x80, 0, 1, 0, 0x40, 0, 0, 0, 0x21}) // 33 = 2<<4|1, 18 = 1<<4|2
	block[16+3] = 1<<1 | 1<<7                                            // fifth bit of value 3 in groups 1 and 7
	block[48+3], block[48+96+3] = 0xe0, 0x50                             // the high nibbles: 14 in group 1, 5 in group 7
	got := make([]float32, 256)
	formats[Q5_K].decode(got, block)
	want := map[int]float32{32: -2, 35: 4*30 - 2, 224: -36, 227: 33*21 - 36, 0: 0, 128: 0}
	for i, v := range want {
		if got[i] != v {
			t.Errorf("value %d is %v, want %v", i, got[i], v)
		}
	}
}

func TestHalfFloatsAreExact(t *testing.T) {
	for h := range 1 << 16 {
		exp, frac, want := h>>10&31, float64(h&1023), 0.0
		switch exp {
		case 0:
			want = math.Ldexp(frac, -24)
		case 31:
			want = math.Inf(1)
		default:
			want = math.Ldexp(1024+frac, exp-25)
		}
		if h>>15 == 1 {
			want = math.Copysign(want, -1)
		}
		got := float64(halfFloat(uint16(h)))
		if exp == 31 && frac != 0 {
			if !math.IsNaN(got) {
				t.Fatalf("%#04x is %v, want NaN", h, got)
			}
		} else if math.Float64bits(got) != math.Float64bits(want) {
			t.Fatalf("%#04x is %v, want %v", h, got, want)
		}
	}
}

// Two heads of width 4: stored rows 0 1 2 3 of a head are rows 0 2 1 3.
func TestUnpermuteRotaryRestoresHalfSplitRows(t *testing.T) {
	w := []float32{0, .5, 2, 2.5, 1, 1.5, 3, 3.5, 4, 4.5, 6, 6.5, 5, 5.5, 7, 7.5}
	if err := UnpermuteRotary(w, 2, 8, 2); err != nil {
		t.Fatal(err)
	}
	want := []float32{0, .5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5}
	if d := cmp.Diff(want, w); d != "" {
		t.Error(d)
	}
	for _, bad := range [][3]int{{0, 8, 2}, {3, 8, 2}, {8, 8, 2}, {2, 8, 3}, {2, -8, -2}} {
		if err := UnpermuteRotary(w, bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("heads, rows, cols %v: no error", bad)
		}
	}
}
