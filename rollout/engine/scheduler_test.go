package engine

import (
	stdcmp "cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch/model"
)

// toy runs a scheduler on a cache that remembers, for each slot, the whole prefix that its token was computed with. The "model" is
// a function of that prefix, and every read of a wrong or stale slot is an error, as is computing again what a running sequence has.
type toy struct {
	t     *testing.T
	s     *scheduler
	slots []state
	stays map[stay]int // epoch that the sequence was admitted in
	rows  int          // computed so far
}

// state is what a slot holds.
type state struct {
	prefix uint64 // hash of the tokens
	oldest int    // of the epochs that they were computed in
}

// stay is a sequence from its admission on, until it is done or preempted.
type stay struct {
	seq  *sequence
	leaf *node
}

func newToy(t *testing.T, pages, running, budget int) *toy {
	y := &toy{t: t, s: newScheduler(pages, running, budget), slots: make([]state, pages*pageSize)}
	y.s.routes = newRoutes(model.MoE{Chosen: 2, Layers: []bool{true, false, true}}, len(y.slots))
	return y
}

func text(ids []int32, max int) *sequence {
	return &sequence{ids: slices.Clone(ids), tokens: tokenKeys(ids, nil), prompt: len(ids), max: max, done: make(chan struct{})}
}

const noToken = 5555 // placeholder of images

// step runs one step and returns the sequences that are done.
func (y *toy) step() (finished []*sequence) {
	y.t.Helper()
	p := y.s.step()
	b := &p.batch
	if b.Len() > y.s.budget {
		y.t.Fatalf("%d rows in a step of at most %d", b.Len(), y.s.budget)
	}
	y.rows += b.Len()
	written := map[int64]bool{}
	for _, slot := range b.Slots {
		if written[slot] {
			y.t.Fatalf("slot %d is written twice in a step", slot)
		}
		written[slot] = true
	}
	stays := map[stay]int{}
	for _, q := range y.s.running {
		k := stay{q, q.leaf}
		stays[k] = y.s.epoch
		if since, ok := y.stays[k]; ok {
			stays[k] = since
		}
		for _, l := range q.chain(nil) {
			for i := range min(l.length, l.node.computed) {
				if written[int64(l.node.pages[i/pageSize])*pageSize+int64(i%pageSize)] {
					y.t.Fatalf("token %d of a running sequence is computed again", l.node.start+i)
				}
			}
		}
	}
	y.stays = stays
	keys := make([]uint64, b.Len())
	for _, n := range p.nodes {
		for i, row := range n.rows {
			keys[row] = n.tokens[n.computed+i]
		}
	}
	states := make([]state, b.Len())
	// Parents stand before their children, so that states of a step's own rows are there when they are read.
	for row, id := range b.IDs {
		seq, hi := b.Rows[3*row], b.Rows[3*row+2]
		before := state{0, y.s.epoch}
		if hi > 1 {
			before = y.slots[y.slot(b.Ranges, b.Seqs, seq, hi-2)]
		}
		if keys[row] != uint64(id) && id != noToken {
			y.t.Fatalf("row %d has token %d for %d", row, id, keys[row])
		}
		states[row] = state{rollout.MixSeed(before.prefix, keys[row]), before.oldest}
		if got := y.slot(b.Ranges, b.Seqs, seq, hi-1); int64(got) != b.Slots[row] {
			y.t.Fatalf("row %d writes slot %d and reads its own key in %d", row, b.Slots[row], got)
		}
		y.slots[b.Slots[row]] = states[row]
	}
	y.s.commit(p)
	chosen := make([][]int64, 2)
	for _, s := range states {
		for l := range chosen {
			chosen[l] = append(chosen[l], int64(s.prefix>>(32*l)&0xFFFF), int64(s.prefix>>(32*l+16)&0xFFFF))
		}
	}
	y.s.routes.put(b.Slots, chosen)
	for _, d := range p.draws {
		q, got := d.seq, states[d.row]
		want := uint64(0)
		for _, key := range q.tokens {
			want = rollout.MixSeed(want, key)
		}
		since, running := y.stays[stay{q, q.leaf}]
		if got.prefix != want || !running || got.oldest < since {
			y.t.Fatalf("token %d of a sequence is drawn after another prefix, or one of epoch %d; it runs since %d", len(q.ids), got.oldest, since)
		}
		id := int32(rollout.MixSeed(want, q.sampling.Seed) % 4)
		q.generated = append(q.generated, rollout.Generated{})
		if len(q.ids)-q.prompt+1 == q.max {
			y.s.drop(q)
			q.ids = append(q.ids, id)
			finished = append(finished, q)
			continue
		}
		y.s.extend(q, id)
	}
	for _, q := range finished {
		y.checkRouted(q)
	}
	y.check()
	return finished
}

// checkRouted: a row for each token but the last, which tells its prefix.
func (y *toy) checkRouted(q *sequence) {
	y.t.Helper()
	got, n := q.routed.Experts, q.prompt+len(q.generated)-1
	if len(q.generated) == 0 && got == nil {
		return
	}
	if len(got) != 4*n || q.routed.Layers != 2 || q.routed.K != 2 {
		y.t.Fatalf("%d experts of %d × %d for %d positions", len(got), q.routed.Layers, q.routed.K, n)
	}
	prefix := uint64(0)
	for i := range n {
		prefix = rollout.MixSeed(prefix, q.tokens[i])
		for j, e := range got[4*i : 4*i+4] {
			if uint64(e) != prefix>>(16*j)&0xFFFF {
				y.t.Fatalf("expert %d of position %d is another prefix's", j, i)
			}
		}
	}
}

func (y *toy) slot(ranges, seqs []int32, seq, key int32) int32 {
	for r := seqs[seq]; r < seqs[seq+1]; r++ {
		if key < ranges[2*r+1] {
			return ranges[2*r] + key
		}
		key -= ranges[2*r+1]
	}
	y.t.Fatal("a row sees a key that its ranges do not hold")
	return 0
}

// check: every page is free or in exactly one node, and nodes hold what they say.
func (y *toy) check() {
	y.t.Helper()
	inUse(y.t, y.s)
}

// inUse checks that every page is free or in exactly one node, that nodes hold what they say and are found where they should be, and
// counts the pages that running sequences need.
func inUse(t *testing.T, s *scheduler) (used int) {
	t.Helper()
	pages := slices.Clone(s.free)
	seen := map[*node]bool{}
	live := map[*node]int{} // tokens that running sequences need
	for _, q := range s.running {
		if q.leaf.seq != q {
			t.Fatal("a running sequence's leaf is another's")
		}
		for _, l := range q.chain(nil) {
			live[l.node] = max(live[l.node], l.length)
		}
	}
	for e := s.used.Front(); e != nil; e = e.Next() {
		n := e.Value.(*node)
		pages, seen[n] = append(pages, n.pages...), true
		used += pagesFor(live[n])
		if n.computed > len(n.pages)*pageSize || n.computed > len(n.tokens) || len(n.rows) > 0 || n.from > len(n.parent.tokens) ||
			n.start != n.parent.start+n.from || len(n.pages) > pagesFor(len(n.tokens)) {
			t.Fatalf("node of %d tokens, %d computed, %d pages, %d rows, from %d of %d", len(n.tokens), n.computed, len(n.pages), len(n.rows),
				n.from, len(n.parent.tokens))
		}
		if n.computed < len(n.tokens) && live[n] < len(n.tokens) ||
			n.seq == nil && (len(n.tokens) == 0 || live[n] == 0 && n.epoch != s.epoch) {
			t.Fatalf("a node of %d tokens, %d computed, %d needed was left behind", len(n.tokens), n.computed, live[n])
		}
		if seen[n.parent] || !slices.Contains(n.parent.children, n) {
			t.Fatal("a node stands before its child, or is not its parent's")
		}
		if !slices.IsSortedFunc(n.children, func(a, b *node) int {
			return stdcmp.Or(stdcmp.Compare(a.from, b.from), slices.Compare(a.first(), b.first()))
		}) {
			t.Fatal("children are out of order")
		}
	}
	slices.Sort(pages)
	for i, p := range pages {
		if int(p) != i {
			t.Fatalf("page %d of %d is lost or held twice", i, s.total)
		}
	}
	if len(pages) != s.total {
		t.Fatalf("%d pages, want %d", len(pages), s.total)
	}
	return used
}

func (y *toy) run(steps int) (finished []*sequence) {
	y.t.Helper()
	for range steps {
		if len(y.s.running)+len(y.s.waiting) == 0 {
			break
		}
		finished = append(finished, y.step()...)
	}
	return finished
}

func count(n, from int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(from + i)
	}
	return ids
}

func TestPromptsAreChunkedBesideDecoding(t *testing.T) {
	y := newToy(t, 100, 8, 10)
	y.s.add(text(count(4, 0), 50))
	y.step()
	long := text(count(25, 100), 50)
	y.s.add(long)
	for _, left := range []int{16, 7, 1} { // 9 rows of the prompt beside the one that decodes; then the first token waits
		y.step()
		if got := long.pending(); got != left {
			t.Errorf("%d rows of the prompt are left, want %d", got, left)
		}
	}
	if !long.decoding() {
		t.Error("no token after the last row of the prompt")
	}
}

func TestGroupComputesItsPromptOnce(t *testing.T) {
	for _, budget := range []int{32, 1000} { // with and without chunks
		y := newToy(t, 100, 16, budget)
		for range 16 {
			y.s.add(text(count(200, 0), 3))
		}
		y.run(100)
		if y.rows != 200+16*2 || y.s.counts.prefill != 200 || y.s.counts.hits != 15*200 {
			t.Errorf("budget %d: %d rows, %d of prompts, %d hits", budget, y.rows, y.s.counts.prefill, y.s.counts.hits)
		}
	}
}

func TestALateMemberComputesOneRowOfTheSharedPrompt(t *testing.T) {
	y := newToy(t, 100, 16, 1000)
	y.s.add(text(count(200, 0), 10))
	y.step()
	y.s.add(text(count(200, 0), 1))
	y.step()
	if y.rows != 202 {
		t.Errorf("%d rows, want 200 of the prompt, one that decodes and one for the late member's logits", y.rows)
	}
}

func TestAGroupOutlivesItsFirstMember(t *testing.T) {
	y := newToy(t, 100, 16, 50)
	first := text(count(200, 0), 5)
	y.s.add(first)
	y.s.add(text(count(200, 0), 5))
	y.s.add(text(count(120, 0), 5)) // a prefix of the prompt that is being computed
	y.step()
	y.s.drop(first)
	if done := y.run(20); len(done) != 2 || y.s.counts.prefill != 200 {
		t.Errorf("%d sequences finished, %d rows of prompts", len(done), y.s.counts.prefill)
	}
}

func TestTheNextTurnComputesOnlyTheDelta(t *testing.T) {
	y := newToy(t, 100, 4, 1000)
	q := text(count(100, 0), 30)
	y.s.add(q)
	y.run(100)
	before := y.rows
	again := append(slices.Clone(q.ids), count(20, 5000)...)
	q = text(again, 1)
	y.s.add(q)
	y.run(10)
	// The last token of a turn has not been through the model.
	if got := y.rows - before; got != 21 {
		t.Errorf("the second turn computed %d rows, want 20 and the last token", got)
	}
	other := slices.Clone(again)
	other[50] = 9999
	before = y.rows
	y.s.add(text(other, 1))
	y.run(10)
	if got := y.rows - before; got != len(other)-50 {
		t.Errorf("after a change at token 50 of %d, %d rows were computed", len(other), got)
	}
}

func TestTheNextTurnComputesOnlyTheDeltaAfterAPreemption(t *testing.T) {
	y := newToy(t, 100, 4, 1000)
	q, other := text(count(100, 0), 30), text(count(90, 500), 60)
	y.s.add(q)
	y.s.add(other)
	y.run(10)
	y.s.requeue(q) // before it is evicted
	before := y.rows
	y.run(100)
	if got := y.rows - before; got != 20+50 { // each step one row; 10 tokens were drawn, the last of them not computed
		t.Errorf("%d rows after the preemption", got)
	}
	before = y.rows
	y.s.add(text(append(slices.Clone(q.ids), count(20, 5000)...), 1))
	y.run(10)
	if got := y.rows - before; got != 21 {
		t.Errorf("the second turn computed %d rows, want 20 and the last token", got)
	}
}

func TestAdmissionLeavesAPageOfGrowthForEachThatRuns(t *testing.T) {
	for _, tc := range []struct{ shared, running int }{
		{0, 3},   // 2 pages each: 6 and 2 of growth of 10; a fourth would need 8 and 3
		{128, 9}, // 2 pages in all, and 8 of growth
	} {
		y := newToy(t, 10, 100, 1000)
		for i := range 20 {
			y.s.add(text(append(count(tc.shared, 0), count(100-100*min(tc.shared, 1), 1000*(i+1))...), 20))
		}
		for range 3 {
			y.step()
			if len(y.s.running) != tc.running {
				t.Fatalf("%d of prompts that share %d tokens run, want %d", len(y.s.running), tc.shared, tc.running)
			}
			if tc.shared == 0 {
				y.s.drop(y.s.running[1])
			}
		}
	}
}

func TestImagesWithOtherDigestsDoNotMatch(t *testing.T) {
	ids := []int32{1, noToken, noToken, noToken, 2}
	with := func(b byte) []uint64 {
		return tokenKeys(ids, []rollout.Image{{Start: 1, Len: 3, Digest: [32]byte{b}}})
	}
	if diff := cmp.Diff(with(1), with(1)); diff != "" {
		t.Error("equal images:", diff)
	}
	y := newToy(t, 10, 4, 100)
	for i, digest := range []byte{1, 2, 1} {
		q := text(ids, 1)
		q.tokens = with(digest)
		y.s.add(q)
		y.run(5)
		if want := []int64{0, 1, 5}[i]; y.s.counts.hits != want { // the token before the image; then all but the last
			t.Errorf("request %d: %d hits, want %d", i, y.s.counts.hits, want)
		}
	}
}

func TestTheYoungestGivesWayAndTheOldestFinishesFirst(t *testing.T) {
	y := newToy(t, 4, 8, 64)
	var qs []*sequence
	for i := range 4 {
		q := text(count(60, 1000*i), 100) // up to 160 tokens in a cache of 256
		qs = append(qs, q)
		y.s.add(q)
	}
	done := y.run(2000)
	if !slices.Equal(done, qs) {
		t.Errorf("%d of %d finished, in another order than they came", len(done), len(qs))
	}
	if y.s.counts.preemptions == 0 {
		t.Error("nothing was preempted")
	}
}

func TestASequenceThatFillsTheCacheStartsAfreshInWholePages(t *testing.T) {
	y := newToy(t, 4, 8, 256)
	stem := count(10, 0)
	y.s.add(text(append(slices.Clone(stem), 500), 1))
	y.run(10)
	q := text(append(slices.Clone(stem), count(240, 900)...), 7) // 256 slots: all four pages, none shared with the stem
	y.s.add(q)
	if done := y.run(20); len(done) != 1 {
		t.Error("it did not finish")
	}
}

// The group's first member is gone when the weights change, and the second computes the prompt: an older sequence that needs pages
// in the same step must not have the one that this row is written to.
func TestASequenceWithARowInTheStepKeepsItsPages(t *testing.T) {
	y := newToy(t, 2, 4, 100)
	long, first, second := text(count(100, 0), 1), text(count(1, 500), 3), text(count(1, 500), 3)
	for _, q := range []*sequence{long, first, second} { // more than would be admitted
		y.s.add(q)
		y.s.attach(q)
	}
	y.s.running, y.s.waiting = y.s.waiting, nil
	y.s.refit(true)
	y.s.drop(first)
	y.step()
	if len(second.ids) != 2 || y.s.counts.preemptions != 0 {
		t.Errorf("%d tokens, %d preemptions", len(second.ids), y.s.counts.preemptions)
	}
	if done := y.run(20); len(done) != 2 {
		t.Error("they did not finish")
	}
}

func TestRefitKeepsOrRecomputes(t *testing.T) {
	for _, keep := range []bool{false, true} {
		y := newToy(t, 100, 4, 1000)
		y.s.add(text(count(100, 0), 2))
		y.run(10) // leaves a prefix
		y.s.add(text(count(50, 1000), 20))
		y.step()
		before := y.s.counts
		y.s.refit(keep)
		y.check()
		y.s.add(text(count(100, 0), 1))
		y.step()
		if keep {
			if y.s.counts.prefill-before.prefill != 100 || y.s.counts.hits != before.hits {
				t.Errorf("keep: %+v after %+v", y.s.counts, before)
			}
			continue
		}
		if y.s.counts.prefill-before.prefill != 151 || y.s.counts.hits != before.hits {
			t.Errorf("recompute: %+v after %+v", y.s.counts, before)
		}
	}
}

// longest is what tree.longest finds, by comparing with every node.
func (y *toy) longest(tokens []uint64) (found int) {
	for e := y.s.used.Front(); e != nil; e = e.Next() {
		var path []uint64
		for n, length := e.Value.(*node), len(e.Value.(*node).tokens); n != y.s.root; n, length = n.parent, n.from {
			path = append(slices.Clone(n.tokens[:length]), path...)
			if n.epoch != y.s.epoch {
				path = nil
				break
			}
		}
		common := 0
		for common < min(len(path), len(tokens)) && path[common] == tokens[common] {
			common++
		}
		found = max(found, common)
	}
	return found
}

// Random requests with shared prefixes and images, cancellations and refits of both kinds in a small cache: each sequence finishes,
// with exactly the tokens and the weights that it must have, and no page is lost.
func TestRandomLoadComputesEverySequenceExactly(t *testing.T) {
	preemptions := int64(0)
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 1))
		y := newToy(t, 4+r.IntN(12), 1+r.IntN(8), 8+r.IntN(100))
		var live []*sequence
		finished, dropped := 0, map[*sequence]bool{}
		for range 600 {
			for range r.IntN(3) {
				ids := count(1+r.IntN(150), 1000*r.IntN(3))
				var images []rollout.Image
				if r.IntN(3) == 0 {
					ids[r.IntN(len(ids))] = int32(r.IntN(50))
				}
				if n := len(ids); n > 10 && r.IntN(3) == 0 {
					copy(ids[n-8:], slices.Repeat([]int32{noToken}, 5))
					images = []rollout.Image{{Start: n - 8, Len: 5, Digest: [32]byte{byte(r.IntN(2))}}}
				}
				q := text(ids, 1+r.IntN(pageSize))
				q.tokens = tokenKeys(ids, images)
				if n := len(live); n > 0 && r.IntN(2) == 0 { // continue what was there
					if last := live[n-1]; len(last.ids) < 150 {
						q = text(last.ids, 1+r.IntN(20))
						copy(q.tokens, last.tokens)
					}
				}
				q.sampling.Seed = r.Uint64N(2)
				for range 1 + r.IntN(4) {
					c := text(q.ids, q.max)
					copy(c.tokens, q.tokens)
					c.sampling.Seed = r.Uint64N(2)
					y.s.add(c)
					live = append(live, c)
				}
				if r.IntN(4) > 0 {
					continue
				}
				found, own := y.s.root.longest(q.tokens, y.s.epoch)
				if got, want := found.start+own, y.longest(q.tokens); got != want {
					t.Fatalf("seed %d: the cache has %d tokens of a prompt, %d were found", seed, want, got)
				}
			}
			if len(live) > 0 && r.IntN(4) == 0 {
				q := live[r.IntN(len(live))]
				y.s.drop(q)
				y.checkRouted(q)
				dropped[q] = true
				y.check()
			}
			if r.IntN(50) == 0 {
				y.s.refit(r.IntN(2) == 0)
				y.check()
			}
			for _, q := range y.step() {
				finished++
				y.checkRouted(q)
				dropped[q] = true
				if len(q.ids) != q.prompt+q.max {
					t.Fatalf("seed %d: %d tokens, want %d", seed, len(q.ids)-q.prompt, q.max)
				}
			}
		}
		finished += len(y.run(100_000))
		for _, q := range live {
			if !dropped[q] && len(q.ids) != q.prompt+q.max {
				t.Fatalf("seed %d: a sequence has %d of %d tokens at the end", seed, len(q.ids)-q.prompt, q.max)
			}
		}
		if used := inUse(t, y.s); used != 0 || finished == 0 || len(y.s.running)+len(y.s.waiting) != 0 {
			t.Errorf("seed %d: %d pages in use at the end, %d finished", seed, used, finished)
		}
		preemptions += y.s.counts.preemptions
	}
	if preemptions == 0 {
		t.Error("nothing was ever preempted")
	}
}
