package engine

import (
	"cmp"
	"container/list"
	"slices"
)

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
	children []*node   // sorted by from, then by their first token
	epoch    int       // of the weights that its first token was computed with
	place    *list.Element
	pinned   int   // pages that the admission of step counted saw pinned
	counted  int64 // step
}

// done counts the tokens that are computed when this step has run.
func (n *node) done() int { return n.computed + len(n.rows) }

// kept counts the tokens that n's children continue from.
func (n *node) kept() int {
	if last := len(n.children) - 1; last >= 0 {
		return n.children[last].from
	}
	return 0
}

func (n *node) first() []uint64 { return n.tokens[:min(1, len(n.tokens))] }

// child is the place among n's children of one that continues n after `from` tokens with the token first.
func (n *node) child(from int, first []uint64) int {
	i, _ := slices.BinarySearchFunc(n.children, from, func(c *node, from int) int {
		return cmp.Or(cmp.Compare(c.from, from), slices.Compare(c.first(), first))
	})
	return i
}

// link puts n among its parent's children. Its first token changes only while it is not there.
func (n *node) link() {
	n.parent.children = slices.Insert(n.parent.children, n.parent.child(n.from, n.first()), n)
}

func (n *node) unlink() {
	i := n.parent.child(n.from, n.first())
	i += slices.Index(n.parent.children[i:], n)
	n.parent.children = slices.Delete(n.parent.children, i, i+1)
}

// tree is the cache: every token whose keys and values are there, by prefix.
type tree struct {
	root  *node
	used  list.List // the nodes, the one unused for longest first, and each before its parent
	free  []int32   // pages
	total int       // pages
	epoch int       // counts refits: nodes of earlier ones are not matched
	clock int64     // steps
}

func newTree(pages int) *tree {
	t := &tree{total: pages}
	t.reset()
	return t
}

// reset empties the cache. No sequence may be attached.
func (t *tree) reset() {
	t.root, t.free = &node{}, t.free[:0]
	t.used.Init()
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
	if own == len(rest) {
		return n, own
	}
	best, matched := n, own
	for i := 0; i < len(n.children) && n.children[i].from <= matched; {
		from := n.children[i].from
		for i = n.child(from, rest[from:from+1]); i < len(n.children); i++ {
			c := n.children[i]
			if c.from != from || c.tokens[0] != rest[from] {
				break
			}
			if b, o := c.longest(tokens, epoch); c.epoch == epoch && b.start+o > best.start+own {
				best, own = b, o
			}
		}
		i = n.child(from+1, nil)
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
		n = &node{parent: n, from: own, start: hit, tokens: slices.Clone(rest), epoch: t.epoch}
		n.link()
		n.place = t.used.PushBack(n)
	}
	n.seq, q.leaf = q, n
	t.touch(n)
	return hit
}

// touch makes n, and what it continues, the last used.
func (t *tree) touch(n *node) {
	for ; n != t.root; n = n.parent {
		t.used.MoveToBack(n.place)
	}
}

// detach ends q's writing. What it computed stays for later prefixes, until its pages are needed.
func (t *tree) detach(q *sequence) {
	n := q.leaf
	n.seq, q.leaf = nil, nil
	t.touch(n)
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
	if length == 0 {
		n.unlink()
		t.used.Remove(n.place)
	}
	n.tokens = n.tokens[:length]
	n.computed = min(n.computed, length)
	if p := min(pagesFor(length), len(n.pages)); p < len(n.pages) {
		t.free = append(t.free, n.pages[p:]...)
		n.pages = n.pages[:p]
	}
	if length == 0 {
		t.settle(n.parent)
	}
}

// page takes a free page, or the last page of the leaf that was unused for longest; false when all are in use.
func (t *tree) page() (int32, bool) {
	for e := t.used.Front(); e != nil && len(t.free) == 0; e = e.Next() { // past those in use only
		n := e.Value.(*node)
		if kept := n.kept(); n.seq == nil && len(n.pages) > pagesFor(kept) {
			t.cut(n, max(kept, (len(n.pages)-1)*pageSize))
		}
	}
	if len(t.free) == 0 {
		return 0, false
	}
	last := len(t.free) - 1
	p := t.free[last]
	t.free = t.free[:last]
	return p, true
}

// pin counts the pages that q uses, and will when all its tokens are computed, without those that this step has counted already.
func (t *tree) pin(q *sequence) (pages int) {
	for n, length := q.leaf, len(q.leaf.tokens); n != t.root; n, length = n.parent, n.from {
		if n.counted != t.clock {
			n.counted, n.pinned = t.clock, 0
		}
		if more := pagesFor(length) - n.pinned; more > 0 {
			pages, n.pinned = pages+more, n.pinned+more
		}
	}
	return pages
}

// refit forgets what the old weights computed, but for what running sequences still use.
func (t *tree) refit() {
	t.epoch++
	for e := t.used.Back(); e != nil; { // settle removes none that stand before its node
		n := e.Value.(*node)
		e = e.Prev()
		t.settle(n)
	}
}
