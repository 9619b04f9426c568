package multimodal

// minHeap is a binary heap of numbers, smallest first, without the boxing of container/heap.
type minHeap []uint64

func (h *minHeap) push(x uint64) {
	q := append(*h, x)
	i := len(q) - 1
	for parent := (i - 1) / 2; i > 0 && x < q[parent]; i, parent = parent, (parent-1)/2 {
		q[i] = q[parent]
	}
	q[i] = x
	*h = q
}

func (h *minHeap) pop() uint64 {
	q := *h
	top, x := q[0], q[len(q)-1]
	q = q[:len(q)-1]
	*h = q
	if len(q) == 0 {
		return top
	}
	i := 0
	for {
		child := 2*i + 1
		if child+1 < len(q) && q[child+1] < q[child] {
			child++
		}
		if child >= len(q) || x <= q[child] {
			break
		}
		q[i] = q[child]
		i = child
	}
	q[i] = x
	return top
}
