package gguf

import (
	"fmt"
	"slices"
	"strings"
)

// Type is a ggml tensor type, with ggml's numbers.
type Type uint32

// The types that Dequantize knows.
const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2
	Q4_1 Type = 3
	Q5_0 Type = 6
	Q5_1 Type = 7
	Q8_0 Type = 8
	Q4_K Type = 12
	Q5_K Type = 13
	Q6_K Type = 14
	BF16 Type = 30
)

// format is how a type stores its values: blocks of elems values in size bytes each.
type format struct {
	name        string
	elems, size int
	decode      func(dst []float32, src []byte) // whole blocks; len(src)/size == len(dst)/elems
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

func typeNames() string {
	var names []string
	for _, f := range formats {
		names = append(names, f.name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
