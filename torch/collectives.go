package torch

/*
#cgo noescape mt_collective
#include "molt.h"
*/
import "C"

import (
	"fmt"
	"slices"
)

// Reduction is how numbers of several ranks become one.
type Reduction int32

// The reductions, in c10d's numbering. Mean is for floating types.
const (
	Sum Reduction = iota
	Mean
	Product
	Min
	Max
)

// Collectives run under no-grad in any scope: backward does not pass through them. Those in place may write to a leaf that requires
// grad. The tensors of all ranks have one type and shape, unless said otherwise, and need not be contiguous.

// AllReduce_ replaces t by the reduction of all ranks' t.
func (s *Scope) AllReduce_(g *Group, t Tensor, op Reduction) Tensor {
	return s.collective(g, C.MT_ALL_REDUCE, "all-reduce", t, int(op))
}

// AllGather puts the t [n,…] of all ranks end to end: [size·n,…].
func (s *Scope) AllGather(g *Group, t Tensor) Tensor {
	return s.collective(g, C.MT_ALL_GATHER, "all-gather", t, 0)
}

// ReduceScatter sums the t [size·n,…] of all ranks and gives each its own n rows.
func (s *Scope) ReduceScatter(g *Group, t Tensor) Tensor {
	return s.collective(g, C.MT_REDUCE_SCATTER, "reduce-scatter", t, 0)
}

// Broadcast_ replaces t by that of the root.
func (s *Scope) Broadcast_(g *Group, t Tensor, root int) Tensor {
	return s.collective(g, C.MT_BROADCAST, "broadcast", t, root)
}

// AllToAll cuts t [size·n,…] into n rows for each rank, in order; the result [size·n,…] is what the ranks cut for this one, in order.
func (s *Scope) AllToAll(g *Group, t Tensor) Tensor {
	return s.collective(g, C.MT_ALL_TO_ALL, "all-to-all", t, 0)
}

// Send gives t to rank to, which calls Receive_ with a tensor of the same type and shape.
func (s *Scope) Send(g *Group, t Tensor, to int) { s.collective(g, C.MT_SEND, "send", t, to) }

// Receive_ replaces t by what rank from sends.
func (s *Scope) Receive_(g *Group, t Tensor, from int) Tensor {
	return s.collective(g, C.MT_RECEIVE, "receive", t, from)
}

func (s *Scope) collective(g *Group, kind C.int32_t, name string, t Tensor, arg int) Tensor {
	fail := func(format string, args ...any) {
		panic(g.failure(name, t.String()+": "+fmt.Sprintf(format, args...)))
	}
	switch kind {
	case C.MT_ALL_REDUCE:
		if op := Reduction(arg); op < Sum || op > Max {
			fail("no reduction %d", arg)
		}
		if d := t.DType(); Reduction(arg) == Mean && !slices.Contains([]DType{Float16, Float32, Float64, BFloat16}, d) {
			fail("the mean of integers is no integer: use Sum")
		}
	case C.MT_BROADCAST, C.MT_SEND, C.MT_RECEIVE:
		if arg < 0 || arg >= g.Size() || kind != C.MT_BROADCAST && arg == g.Rank() {
			fail("no rank %d on the other side", arg)
		}
	case C.MT_REDUCE_SCATTER, C.MT_ALL_TO_ALL:
		if shape := t.Shape(); len(shape) == 0 || shape[0]%g.Size() != 0 {
			fail("dimension 0 does not divide into %d equal parts", g.Size())
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var e *C.char
	h := C.mt_collective(s.h, g.c(), kind, t.h, C.int32_t(arg), &e)
	if e != nil {
		fail("%s", message(e))
	}
	return Tensor{h}
}
