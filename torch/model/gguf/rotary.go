package gguf

import "fmt"

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
