package multimodal

import (
	"container/heap"
	"fmt"
	"hash/maphash"
	"sort"
	"strings"
	"sync/atomic"
)

const (
	cacheSlots = 1 << 15 // a power of two
	cacheWord  = 64      // longer words are rare and not kept, in bytes
)

// bpe merges the bytes of a word into tokens: again and again the pair of neighbours whose merge comes first in the
// list, the leftmost where it occurs more than once. Results are kept in a table of fixed size with one place for a
// word, overwritten by the next that falls there; entries are immutable, so readers need no lock.
type bpe struct {
	bytes   [256]int32 // byte → id, noID where the vocabulary has none
	unknown int32      // for those; noID drops them
	merges  map[uint64]merge
	words   map[string]int32 // whole words that skip the merges, in the byte-level alphabet; nil: none
	seed    maphash.Seed
	cache   []atomic.Pointer[cachedWord]
}

type merge struct{ rank, id int32 }

type cachedWord struct {
	word string
	ids  []int32
}

func pair(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

func newBPE(m bpeModel) (*bpe, error) {
	b := &bpe{merges: make(map[uint64]merge, len(m.Merges)), unknown: noID, seed: maphash.MakeSeed()}
	b.cache = make([]atomic.Pointer[cachedWord], cacheSlots)
	if m.Unknown != "" {
		id, ok := m.Vocab[m.Unknown]
		if !ok {
			return nil, fmt.Errorf("the unknown token %q is not in the vocabulary", m.Unknown)
		}
		b.unknown = id
	}
	for i, r := range byteRunes {
		id, ok := m.Vocab[string(r)]
		if !ok {
			id = b.unknown
		}
		b.bytes[i] = id
	}
	for rank, tokens := range m.Merges {
		if len(tokens) != 2 {
			return nil, fmt.Errorf("merge %d has the tokens %q, want two", rank, []string(tokens))
		}
		left, ok1 := m.Vocab[tokens[0]]
		right, ok2 := m.Vocab[tokens[1]]
		id, ok3 := m.Vocab[tokens[0]+tokens[1]]
		if !ok1 || !ok2 || !ok3 {
			return nil, fmt.Errorf("merge %d joins %q and %q: one of them or their union is no token", rank, tokens[0], tokens[1])
		}
		b.merges[pair(left, right)] = merge{int32(rank), id}
	}
	if m.IgnoreMerges {
		b.words = m.Vocab
	}
	return b, nil
}

// encode appends the ids of a word.
func (b *bpe) encode(ids []int32, word string) []int32 {
	if len(word) > cacheWord {
		return b.merge(ids, word)
	}
	slot := &b.cache[maphash.String(b.seed, word)%cacheSlots]
	if c := slot.Load(); c != nil && c.word == word {
		return append(ids, c.ids...)
	}
	from := len(ids)
	ids = b.merge(ids, word)
	slot.Store(&cachedWord{strings.Clone(word), append([]int32(nil), ids[from:]...)})
	return ids
}

// symbol is a token of the word in the making; prev and next are places of its neighbours, −1 at the ends.
type symbol struct{ id, prev, next int32 }

func (b *bpe) merge(ids []int32, word string) []int32 {
	if b.words != nil {
		if id, ok := b.words[alphabetOf(word)]; ok {
			return append(ids, id)
		}
	}
	symbols := make([]symbol, 0, cacheWord)
	for i := range len(word) {
		if id := b.bytes[word[i]]; id != noID {
			n := int32(len(symbols))
			symbols = append(symbols, symbol{id, n - 1, n + 1})
		}
	}
	if len(symbols) == 0 {
		return ids
	}
	symbols[len(symbols)-1].next = -1

	queue := minHeap{make([]int, 0, cacheWord)} // rank << 32 | place of the left symbol
	consider := func(left int32) {
		if left < 0 || symbols[left].next < 0 {
			return
		}
		if m, ok := b.merges[pair(symbols[left].id, symbols[symbols[left].next].id)]; ok {
			heap.Push(&queue, int(m.rank)<<32|int(left))
		}
	}
	for i := range symbols {
		consider(int32(i))
	}
	for queue.Len() > 0 {
		first := heap.Pop(&queue).(int)
		left := int32(uint32(first))
		l := &symbols[left]
		if l.id == noID || l.next < 0 { // merged away since, or last by now
			continue
		}
		r := &symbols[l.next]
		m, ok := b.merges[pair(l.id, r.id)]
		if !ok || int(m.rank) != first>>32 { // another pair stands there by now
			continue
		}
		l.id, r.id, l.next = m.id, noID, r.next
		if l.next >= 0 {
			symbols[l.next].prev = left
		}
		consider(l.prev)
		consider(left)
	}
	for i := int32(0); i >= 0; i = symbols[i].next {
		ids = append(ids, symbols[i].id)
	}
	return ids
}

// minHeap is a heap of numbers for container/heap, smallest first.
type minHeap struct{ sort.IntSlice }

func (h *minHeap) Push(x any) { h.IntSlice = append(h.IntSlice, x.(int)) }

func (h *minHeap) Pop() any {
	last := h.Len() - 1
	x := h.IntSlice[last]
	h.IntSlice = h.IntSlice[:last]
	return x
}
