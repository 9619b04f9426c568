package engine

import (
	"slices"

	"github.com/molt-go/molt/torch/model"
)

// routes are the experts that the routers chose for each token in the cache. They lie as its keys and values do, slot by slot, so that
// whoever finds a prefix finds its experts too. A slot takes 2·layers·k bytes: 768 where 48 layers choose 8, less than a hundredth of what
// such a model's keys and values take.
type routes struct {
	layers, k int // sparse layers, experts a token; 0 layers for a dense model
	experts   []uint16
}

func newRoutes(c model.MoE, slots int) routes {
	layers := c.NumSparse(len(c.Layers))
	return routes{layers, c.Chosen, make([]uint16, slots*layers*c.Chosen)}
}

// put stores what the routers chose for rows that were written to these slots, by sparse layer [rows, k].
func (r routes) put(slots []int64, chosen [][]int64) {
	for i, slot := range slots {
		at := int(slot) * r.layers * r.k
		for _, layer := range chosen {
			for _, e := range layer[i*r.k : (i+1)*r.k] {
				r.experts[at] = uint16(e)
				at++
			}
		}
	}
}

// collect takes over the experts of q's tokens before q leaves its pages, but for the last token, which has not been through the model,
// and those that q has: see rollout.Routed for what is computed again. Before its first token q has nothing to keep.
func (r routes) collect(q *sequence) {
	row, end := r.layers*r.k, q.prompt+len(q.generated)-1
	if row == 0 || len(q.generated) == 0 || len(q.routed.Experts) == end*row {
		return
	}
	q.routed.Layers, q.routed.K = r.layers, r.k
	known := len(q.routed.Experts) / row
	q.routed.Experts = slices.Grow(q.routed.Experts, (end-known)*row)
	for _, l := range q.chain(nil) {
		n := l.node
		for i := max(known-n.start, 0); i < min(l.length, end-n.start); i++ {
			slot := int(n.pages[i/pageSize])*pageSize + i%pageSize
			q.routed.Experts = append(q.routed.Experts, r.experts[slot*row:(slot+1)*row]...)
		}
	}
}
