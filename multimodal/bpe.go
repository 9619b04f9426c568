package multimodal

import (
	"container/heap"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

const (
	cacheSlots = 1 << 15
	cacheWord  = 64 // bytes; longer words are rare and not kept
)

// bpe merges the symbols of a word into tokens: again and again the pair of neighbours whose merge comes first in the
// list, the leftmost where it occurs more than once. Symbols are bytes where a ByteLevel pre-tokenizer made the words, else
// characters. Results are kept in a table with one place for a word, overwritten by the next that falls there; entries do not change,
// so readers need no lock.
type bpe struct {
	byteLevel   bool
	bytes       [256]int32     // byte → id of its character in the byte-level alphabet, or of its token <0x0A>
	chars       map[rune]int32 // character → id
	fallback    bool           // a character without a token is its bytes, where each has one
	unknown     int32          // for the others; noID drops them
	fuseUnknown bool           // a run of them is one token
	merges      map[uint64]merge
	words       map[string]int32 // whole words that skip the merges; nil: none
	seed        maphash.Seed
	cache       []atomic.Pointer[cachedWord]
}

type cachedWord struct {
	word string
	ids  []int32
}

func newBPE(m *bpeModel, byteLevel bool) (*bpe, error) {
	b := &bpe{byteLevel: byteLevel, chars: map[rune]int32{}, fallback: m.ByteFallback, unknown: noID, fuseUnknown: m.FuseUnknown,
		merges: make(map[uint64]merge, len(m.Merges)), seed: maphash.MakeSeed(), cache: make([]atomic.Pointer[cachedWord], cacheSlots)}
	find := func(token string) int32 {
		if id, ok := m.Vocab[token]; ok {
			return id
		}
		return noID
	}
	if m.Unknown != "" {
		if b.unknown = find(m.Unknown); b.unknown == noID {
			return nil, fmt.Errorf("the unknown token %q is not in the vocabulary", m.Unknown)
		}
	}
	for i, r := range byteRunes {
		if b.bytes[i] = find(string(r)); !byteLevel {
			b.bytes[i] = find(fmt.Sprintf("<0x%02X>", i))
		}
	}
	for token, id := range m.Vocab {
		if r, n := utf8.DecodeRuneInString(token); n == len(token) {
			b.chars[r] = id
		}
	}
	for rank, p := range m.Merges {
		left, right, union := find(p.left), find(p.right), find(p.left+p.right)
		if left == noID || right == noID || union == noID {
			return nil, fmt.Errorf("merge %d joins %q and %q: one of them or their union is no token", rank, p.left, p.right)
		}
		b.merges[pair(left, right)] = merge{int32(rank) + 1, union}
	}
	if m.IgnoreMerges && !byteLevel {
		b.words = maps.Clone(m.Vocab) // which gets the added tokens
	} else if m.IgnoreMerges {
		b.words = make(map[string]int32, len(m.Vocab))
		for token, id := range m.Vocab {
			if word, ok := bytesOf(token); ok {
				b.words[word] = id
			}
		}
	}
	return b, nil
}

// encode appends the ids of a word; m is room for it, used again and again.
func (b *bpe) encode(m *merging, ids []int32, word string) []int32 {
	if id, ok := b.words[word]; ok {
		return append(ids, id)
	}
	if len(word) > cacheWord {
		return b.merge(m, ids, word)
	}
	slot := &b.cache[maphash.String(b.seed, word)%cacheSlots]
	if c := slot.Load(); c != nil && c.word == word {
		return append(ids, c.ids...)
	}
	from := len(ids)
	ids = b.merge(m, ids, word)
	slot.Store(&cachedWord{strings.Clone(word), slices.Clone(ids[from:])})
	return ids
}

func (b *bpe) merge(m *merging, ids []int32, word string) []int32 {
	m.symbols, m.queue = m.symbols[:0], minHeap{m.queue.IntSlice[:0]}
	waits := false // an unknown token; byte tokens overtake it, as they do in the reference
	for word != "" {
		id, n := b.symbol(word)
		switch {
		case id != noID:
			if waits {
				m.add(b.unknown)
			}
			waits = false
			m.add(id)
		case b.fallback && !slices.ContainsFunc([]byte(word[:n]), func(c byte) bool { return b.bytes[c] == noID }):
			for _, c := range []byte(word[:n]) {
				m.add(b.bytes[c])
			}
		case b.unknown != noID:
			if waits && !b.fuseUnknown {
				m.add(b.unknown)
			}
			waits = true
		}
		word = word[n:]
	}
	if waits {
		m.add(b.unknown)
	}
	return m.run(ids, b.merges)
}

// symbol is the id of the first byte or character of word, noID where the vocabulary has none, and its length.
func (b *bpe) symbol(word string) (id int32, n int) {
	if b.byteLevel {
		return b.bytes[word[0]], 1
	}
	r, n := utf8.DecodeRuneInString(word)
	id, ok := b.chars[r]
	if !ok {
		id = noID
	}
	return id, n
}

// merging is a word in the making.
type merging struct {
	symbols []symbol
	queue   minHeap // of rank << 32 | place of the left symbol
}

// symbol is a token of the word; prev and next are places of its neighbours, −1 at the ends.
type symbol struct{ id, prev, next int32 }

func (m *merging) add(id int32) {
	n := int32(len(m.symbols))
	m.symbols = append(m.symbols, symbol{id, n - 1, n + 1})
}

// run merges the symbols and appends what is left of them to ids.
func (m *merging) run(ids []int32, merges map[uint64]merge) []int32 {
	if len(m.symbols) == 0 {
		return ids
	}
	m.symbols[len(m.symbols)-1].next = -1
	for i := range m.symbols {
		m.consider(int32(i), merges)
	}
	for m.queue.Len() > 0 {
		first := heap.Pop(&m.queue).(int)
		left := int32(uint32(first))
		l := &m.symbols[left]
		if l.id == noID || l.next < 0 { // merged away since, or last by now
			continue
		}
		r := &m.symbols[l.next]
		found := merges[pair(l.id, r.id)]
		if int(found.rank) != first>>32 { // another pair stands there by now
			continue
		}
		l.id, r.id, l.next = found.union, noID, r.next
		if l.next >= 0 {
			m.symbols[l.next].prev = left
		}
		m.consider(l.prev, merges)
		m.consider(left, merges)
	}
	for i := int32(0); i >= 0; i = m.symbols[i].next {
		ids = append(ids, m.symbols[i].id)
	}
	return ids
}

// consider queues the merge of the symbol at a place with the next, where there is one.
func (m *merging) consider(left int32, merges map[uint64]merge) {
	if left < 0 || m.symbols[left].next < 0 {
		return
	}
	if found := merges[pair(m.symbols[left].id, m.symbols[m.symbols[left].next].id)]; found.rank > 0 {
		heap.Push(&m.queue, int(found.rank)<<32|int(left))
	}
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

// merge makes union of two tokens. Rank counts from 1, the first of the list; 0 is no merge.
type merge struct{ rank, union int32 }

func pair(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }
