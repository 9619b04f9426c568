package engine

import "slices"

// pageSize is the number of tokens that a page of the cache holds.
const pageSize = 64

func pagesFor(tokens int) int { return (tokens + pageSize - 1) / pageSize }

// node is a run of tokens and the pages that hold their keys and values. It continues its parent after the parent's first
// `from` tokens, so nodes never split. A node's last tokens may still wait to be computed, by whichever sequence needs them.
type node struct {
	parent   *node
	from     int
	start    int      // position of its first token
	tokens   []uint64 // as tokenKeys gives them
	computed int      // of its tokens, by earlier steps
	rows     []int32  // batch rows of the tokens after those, planned in this step
	pages    []int32
	seq      *sequence // that writes here, if any
	children []*node
	epoch    int   // of the weights that its first token was computed with
	used     int64 // step of its last use
}

// done counts the tokens that are computed when this step has run.
func (n *node) done() int { return n.computed + len(n.rows) }

// kept counts the tokens that n's children continue from.
func (n *node) kept() int {
	kept := 0
	for _, c := range n.children {
		kept = max(kept, c.from)
	}
	return kept
}

// tree is the cache: every token whose keys and values are there, by prefix.
type tree struct {
	root  *node
	free  []int32 // pages
	total int     // pages
	epoch int     // counts refits: nodes of earlier ones are not matched
	clock int64   // steps
}

func newTree(pages int) *tree {
	t := &tree{total: pages}
	t.reset()
	return t
}

// reset empties the cache. No sequence may be attached.
func (t *tree) reset() {
	t.root, t.free = &node{}, t.free[:0]
	for p := t.total - 1; p >= 0; p-- {
		t.free = append(t.free, int32(p))
	}
}

// longest finds the node under n, n included, at whose first `own` tokens the longest prefix of tokens ends that starts with
// n's parent chain. own is 0 where n itself does not match.
func (n *node) longest(tokens []uint64, epoch int) (best *node, own int) {
	rest := tokens[n.start:]
	for own < len(n.tokens) && own < len(rest) && n.tokens[own] == rest[own] {
		own++
	}
	best, matched := n, own
	for _, c := range n.children {
		if c.from > matched || c.epoch != epoch {
			continue
		}
		if b, o := c.longest(tokens, epoch); o > 0 && b.start+o > best.start+own {
			best, own = b, o
		}
	}
	return best, own
}

// attach gives q a leaf that continues the longest prefix of its tokens in the cache, and returns that prefix's length. At least
// one token of q's is left to compute, as its logits are wanted: its own last one, or one that another sequence computes.
func (t *tree) attach(q *sequence) int {
	n, own := t.root.longest(q.tokens, t.epoch)
	if n.start+own == len(q.tokens) && own <= n.computed {
		own--
	}
	for own == 0 && n != t.root {
		n, own = n.parent, n.from
	}
	hit := n.start + own
	rest := q.tokens[hit:]
	if n != t.root && n.seq == nil && own == len(n.tokens) {
		n.tokens = append(n.tokens, rest...) // nobody's: go on writing where it ends
	} else {
		child := &node{parent: n, from: own, start: hit, tokens: slices.Clone(rest), epoch: t.epoch}
		n.children = append(n.children, child)
		n = child
	}
	n.seq, q.leaf = q, n
	for ; n != nil; n = n.parent {
		n.used = t.clock
	}
	return hit
}

// detach ends q's writing. What it computed stays for later prefixes, until its pages are needed.
func (t *tree) detach(q *sequence) {
	n := q.leaf
	n.seq, q.leaf, n.used = nil, nil, t.clock
	t.settle(n)
}

// settle drops what nobody will compute or use of a node that lost its sequence or a child.
func (t *tree) settle(n *node) {
	if n == t.root || n.seq != nil {
		return
	}
	length := n.done()
	if n.epoch != t.epoch {
		length = 0
	}
	t.cut(n, max(length, n.kept()))
}

// cut shortens n, and removes it when nothing is left.
func (t *tree) cut(n *node, length int) {
	n.tokens = n.tokens[:min(length, len(n.tokens))]
	n.computed = min(n.computed, length)
	if p := min(pagesFor(length), len(n.pages)); p < len(n.pages) {
		t.free = append(t.free, n.pages[p:]...)
		n.pages = n.pages[:p]
	}
	if len(n.tokens) == 0 && len(n.children) == 0 {
		n.parent.children = slices.DeleteFunc(n.parent.children, func(c *node) bool { return c == n })
		t.settle(n.parent)
	}
}

// page takes a free page, or the last page of the leaf that was unused for longest; false when all are in use.
func (t *tree) page() (int32, bool) {
	if len(t.free) == 0 {
		var oldest *node
		for n := range t.all {
			if n.seq == nil && len(n.rows) == 0 && len(n.pages) > pagesFor(n.kept()) && (oldest == nil || n.used < oldest.used) {
				oldest = n
			}
		}
		if oldest == nil {
			return 0, false
		}
		t.cut(oldest, max(oldest.kept(), (len(oldest.pages)-1)*pageSize))
	}
	last := len(t.free) - 1
	p := t.free[last]
	t.free = t.free[:last]
	return p, true
}

// pinned counts the pages that the running sequences use, and will when all their tokens are computed.
func (t *tree) pinned() int {
	var visit func(n *node) (pages int, live bool)
	visit = func(n *node) (pages int, live bool) {
		need := 0
		if n.seq != nil {
			need, live = len(n.tokens), true
		}
		for _, c := range n.children {
			p, l := visit(c)
			pages += p
			if l {
				need, live = max(need, c.from), true
			}
		}
		return pages + pagesFor(need), live
	}
	pages, _ := visit(t.root)
	return pages
}

// refit forgets what the old weights computed, but for what running sequences still use.
func (t *tree) refit() {
	t.epoch++
	for n := range t.all {
		t.settle(n)
	}
}

// all yields every node but the root, children first. The tree may be cut at the nodes that it yields.
func (t *tree) all(yield func(*node) bool) {
	var visit func(n *node) bool
	visit = func(n *node) bool {
		for _, c := range slices.Clone(n.children) {
			if !visit(c) || !yield(c) {
				return false
			}
		}
		return true
	}
	visit(t.root)
}
