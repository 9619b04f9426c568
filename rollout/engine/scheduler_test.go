package engine

import (
	stdcmp "cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/rollout"
)

// toy runs a scheduler on a cache that remembers, for each slot, the whole prefix that its token was computed with. The "model" is
// a function of that prefix, and every read of a wrong or stale slot is an error.
type toy struct {
	t     *testing.T
	s     *scheduler
	slots []uint64
	epoch uint64
	rows  int // computed so far
}

func newToy(t *testing.T, pages, running, budget int) *toy {
	return &toy{t: t, s: newScheduler(pages, running, budget), slots: make([]uint64, pages*pageSize)}
}

func text(ids []int32, max int) *sequence {
	return &sequence{ids: slices.Clone(ids), tokens: tokenKeys(ids, nil), prompt: len(ids), max: max, done: make(chan struct{})}
}

// next is the token after ids.
func next(ids []int32, epoch uint64) int32 { return int32(hash(ids, epoch) % 1000) }

func hash(ids []int32, epoch uint64) uint64 {
	h := rollout.MixSeed(epoch)
	for _, id := range ids {
		h = rollout.MixSeed(h, uint64(id))
	}
	return h
}

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
	states := make([]uint64, b.Len())
	// Parents stand before their children, so that states of a step's own rows are there when they are read.
	for row, id := range b.IDs {
		seq, hi := b.Rows[3*row], b.Rows[3*row+2]
		h := rollout.MixSeed(y.epoch)
		if hi > 1 {
			h = y.slots[y.slot(b.Ranges, b.Seqs, seq, hi-2)]
		}
		states[row] = rollout.MixSeed(h, uint64(id))
		if got := y.slot(b.Ranges, b.Seqs, seq, hi-1); int64(got) != b.Slots[row] {
			y.t.Fatalf("row %d writes slot %d and reads its own key in %d", row, b.Slots[row], got)
		}
		y.slots[b.Slots[row]] = states[row]
	}
	y.s.commit(p)
	for _, d := range p.draws {
		q := d.seq
		if states[d.row] != hash(q.ids, y.epoch) {
			y.t.Fatalf("token %d of a sequence is drawn after another prefix", len(q.ids))
		}
		if len(q.ids)-q.prompt+1 == q.max {
			y.s.drop(q)
			q.ids = append(q.ids, next(q.ids, y.epoch))
			finished = append(finished, q)
			continue
		}
		y.s.extend(q, next(q.ids, y.epoch))
	}
	y.check()
	return finished
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
		if n.computed < len(n.tokens) && live[n] < len(n.tokens) || n.seq == nil && len(n.tokens) == 0 {
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

func TestImagesWithOtherDigestsDoNotMatch(t *testing.T) {
	ids := []int32{1, 7, 7, 7, 2}
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

func TestRefitKeepsOrRecomputes(t *testing.T) {
	for _, keep := range []bool{false, true} {
		y := newToy(t, 100, 4, 1000)
		y.s.add(text(count(100, 0), 2))
		y.run(10) // leaves a prefix
		y.s.add(text(count(50, 1000), 20))
		y.step()
		before := y.s.counts
		y.s.refit(keep)
		if !keep {
			y.epoch++
		}
		y.check()
		y.s.add(text(count(100, 0), 1))
		if keep {
			y.s.step() // the toy's check is for one epoch
			if y.s.counts.prefill-before.prefill != 100 || y.s.counts.hits != before.hits {
				t.Errorf("keep: %+v after %+v", y.s.counts, before)
			}
			continue
		}
		y.step()
		if y.s.counts.prefill-before.prefill != 151 || y.s.counts.hits != before.hits {
			t.Errorf("recompute: %+v after %+v", y.s.counts, before)
		}
	}
}

// Random requests with shared prefixes, cancellations and refits in a small cache: each finished sequence has exactly the tokens
// that it has alone, and no page is lost.
func TestRandomLoadComputesEverySequenceExactly(t *testing.T) {
	preemptions := int64(0)
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		y := newToy(t, 4+r.IntN(12), 1+r.IntN(8), 8+r.IntN(100))
		var live []*sequence
		finished := 0
		for step := 0; step < 600; step++ {
			for range r.IntN(3) {
				ids := count(1+r.IntN(150), 1000*r.IntN(3))
				if r.IntN(3) == 0 {
					ids[r.IntN(len(ids))] = int32(r.IntN(50))
				}
				q := text(ids, 1+r.IntN(pageSize))
				if r.IntN(2) == 0 { // continue what was there
					if n := len(live); n > 0 && len(live[n-1].ids) < 150 {
						q = text(live[n-1].ids, 1+r.IntN(20))
					}
				}
				y.s.add(q)
				live = append(live, q)
			}
			if len(live) > 0 && r.IntN(4) == 0 {
				y.s.drop(live[r.IntN(len(live))])
				y.check()
			}
			if r.IntN(50) == 0 {
				y.s.refit(false)
				y.epoch++
			}
			for _, q := range y.step() {
				finished++
				if len(q.ids) != q.prompt+q.max {
					t.Fatalf("seed %d: %d tokens, want %d", seed, len(q.ids)-q.prompt, q.max)
				}
			}
		}
		for len(y.s.running)+len(y.s.waiting) > 0 {
			finished += len(y.step())
		}
		if finished == 0 {
			t.Errorf("seed %d: %d finished", seed, finished)
		}
		preemptions += y.s.counts.preemptions
	}
	if preemptions == 0 {
		t.Error("nothing was ever preempted")
	}
}
