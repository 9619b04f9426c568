package engine

import (
	"cmp"
	"slices"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch/model"
)

// scheduler decides what each step computes. It is pure code: no tensors, goroutines or time. Sequences are served in the order
// of their arrival. Each step first takes one row of every sequence that decodes, oldest first, then rows of prompts up
// to the budget. When pages run out, the youngest sequence gives way: it waits again, and what of it was evicted meanwhile is recomputed.
type scheduler struct {
	*tree
	maxRunning, budget int
	waiting, running   []*sequence // each by arrival
	arrivals           int64
	counts             counts
	routes             routes // by slot of the cache
}

// counts are totals since the start.
type counts struct{ prefill, hits, preemptions int64 }

func newScheduler(pages, maxRunning, budget int) *scheduler {
	return &scheduler{tree: newTree(pages), maxRunning: maxRunning, budget: budget}
}

// plan is what one step computes.
type plan struct {
	batch  model.Batch
	draws  []draw
	nodes  []*node         // with rows in the batch
	images []rollout.Image // with rows in the batch
	links  []link          // scratch
	ranges []int32         // scratch
}

// draw says that the logits of a batch row give q's next token.
type draw struct {
	seq *sequence
	row int32
}

func byArrival(a, b *sequence) int { return cmp.Compare(a.arrival, b.arrival) }

func insert(list []*sequence, q *sequence) []*sequence {
	i, _ := slices.BinarySearchFunc(list, q, byArrival)
	return slices.Insert(list, i, q)
}

func remove(list []*sequence, q *sequence) []*sequence {
	if i, ok := slices.BinarySearchFunc(list, q, byArrival); ok {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// add puts a new sequence last in the queue. Its tokens, with those that it may still generate, must fit the cache.
func (s *scheduler) add(q *sequence) {
	s.arrivals++
	q.arrival = s.arrivals
	s.waiting = append(s.waiting, q)
}

// drop takes a sequence out that has finished or was cancelled.
func (s *scheduler) drop(q *sequence) {
	if q.leaf == nil {
		s.waiting = remove(s.waiting, q)
		return
	}
	s.running = remove(s.running, q)
	s.routes.collect(q)
	s.detach(q)
}

// requeue takes q off its pages and lets it wait at its old place.
func (s *scheduler) requeue(q *sequence) {
	s.drop(q)
	s.waiting = insert(s.waiting, q)
}

// extend appends a token to a running sequence.
func (s *scheduler) extend(q *sequence, id int32) {
	q.ids, q.tokens, q.behind = append(q.ids, id), append(q.tokens, uint64(id)), false
	n := q.leaf
	if len(n.tokens) == 0 {
		n.unlink()
		defer n.link()
	}
	n.tokens = append(n.tokens, uint64(id))
}

// refittable tells whether the oldest sequence has got a token since the last refit. Otherwise refits that come faster than it is
// recomputed would keep it from ever getting one; so each sequence finishes, as it becomes the oldest.
func (s *scheduler) refittable() bool {
	for _, list := range [][]*sequence{s.running, s.waiting} { // those that wait came after those that run
		if len(list) > 0 {
			return !list[0].behind
		}
	}
	return true
}

// refit takes note of new weights, see Config.RefitKV.
func (s *scheduler) refit(keep bool) {
	for _, q := range slices.Concat(s.running, s.waiting) {
		q.behind = true
	}
	if !keep {
		for _, q := range slices.Clone(s.running) {
			s.requeue(q)
		}
	}
	s.tree.refit()
}

// admit starts waiting sequences while there is room for all their tokens and a page of growth for each one that runs.
func (s *scheduler) admit() {
	if len(s.waiting) == 0 || len(s.running) == s.maxRunning {
		return
	}
	pinned := 0
	for _, q := range s.running {
		pinned += s.pin(q)
	}
	for len(s.waiting) > 0 && len(s.running) < s.maxRunning {
		q := s.waiting[0]
		hit := s.attach(q)
		if pinned += s.pin(q); len(s.running) > 0 && pinned+len(s.running) > s.total {
			s.detach(q)
			return
		}
		s.counts.hits += int64(hit)
		s.waiting[0], s.waiting = nil, s.waiting[1:]
		s.running = insert(s.running, q)
	}
}

// step plans the next step. It is empty when there is nothing to do.
func (s *scheduler) step() *plan {
	s.clock++
	p := s.plan()
	if len(p.nodes) == 0 && len(s.running) > 0 {
		// The oldest sequence holds shared pages that it fills in part and cannot grow: it starts afresh, in whole pages.
		for _, q := range slices.Clone(s.running) {
			s.requeue(q)
			s.counts.preemptions++
		}
		s.reset()
		p = s.plan()
	}
	return p
}

func (s *scheduler) plan() *plan {
	s.admit()
	p := &plan{}
	budget := s.budget
	for _, decode := range []bool{true, false} {
		for i := 0; i < len(s.running); i++ { // advance may take younger ones out
			if q := s.running[i]; (q.pending() == 1) == decode {
				budget -= s.advance(p, q, budget)
			}
		}
	}
	for _, q := range s.running {
		if row, ok := q.lastRow(); ok {
			p.draws = append(p.draws, draw{q, row})
		}
	}
	return p
}

// advance plans at most budget of the rows that q waits for, in order, and returns their number.
func (s *scheduler) advance(p *plan, q *sequence, budget int) (planned int) {
	p.links = q.chain(p.links[:0])
	for i, l := range p.links {
		n := s.reserve(q, l.node, min(l.length-l.node.done(), budget-planned))
		if n > 0 {
			p.add(q, p.links[:i+1], n)
			planned += n
		}
		if l.node.done() < l.length {
			break
		}
	}
	if planned > 1 || !q.decoding() {
		s.counts.prefill += int64(planned)
	}
	return planned
}

// reserve finds pages for n more rows of a node, taking them from sequences younger than q if need be, and returns for how many
// it has. Sequences with rows in this step keep their pages.
func (s *scheduler) reserve(q *sequence, nd *node, n int) int {
	for len(nd.pages)*pageSize < nd.done()+n {
		if page, ok := s.page(); ok {
			nd.pages = append(nd.pages, page)
			continue
		}
		i := len(s.running) - 1
		for i >= 0 && s.running[i].planned() {
			i--
		}
		if i < 0 || s.running[i].arrival <= q.arrival {
			return len(nd.pages)*pageSize - nd.done()
		}
		s.requeue(s.running[i])
		s.counts.preemptions++
	}
	return n
}

// add puts the next n rows of the last of links into the batch.
func (p *plan) add(q *sequence, links []link, n int) {
	nd := links[len(links)-1].node
	own := nd.done()
	p.ranges = p.ranges[:0]
	for i, l := range links {
		length := l.length
		if i == len(links)-1 {
			length = own + n
		}
		for page := 0; length > 0; page++ {
			size := min(length, pageSize)
			p.ranges = append(p.ranges, l.node.pages[page]*pageSize, int32(size))
			length -= size
		}
	}
	row := p.batch.AddSequence(q.ids[nd.start+own:nd.start+own+n], p.ranges...)
	for _, i := range p.batch.Place(q.merge, row, nd.start+own, n, q.placed) {
		p.images = append(p.images, q.images[i])
	}
	if len(nd.rows) == 0 {
		p.nodes = append(p.nodes, nd)
	}
	for i := range n {
		nd.rows = append(nd.rows, int32(row+i))
		p.batch.Slots = append(p.batch.Slots, int64(nd.pages[(own+i)/pageSize])*pageSize+int64((own+i)%pageSize))
	}
}

// commit notes that the step has run.
func (s *scheduler) commit(p *plan) {
	for _, n := range p.nodes {
		n.computed, n.rows = n.done(), n.rows[:0]
	}
}
