package engine

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch/model"
)

// sequence is a request on its way. The scheduler owns the first group of fields, the engine's goroutine the second; the request's
// own goroutine reads the third, whose lock it takes, and the outcome once done is closed.
type sequence struct {
	ids     []int32  // the prompt and what was generated
	tokens  []uint64 // ids as the cache knows them
	prompt  int      // tokens of the prompt
	images  []rollout.Image
	placed  []model.Placed // images
	merge   int            // patches on a side of what is a token of an image
	arrival int64
	leaf    *node // nil while it waits
	behind  bool  // it has got no token since the last refit

	sampling  rollout.Sampling
	max       int // tokens to generate
	stops     []int32
	matcher   rollout.Matcher
	generated []rollout.Generated
	top       [][]rollout.TopLogP
	routed    rollout.Routed // as far as q has left its pages

	mu    sync.Mutex
	fresh []rollout.Generated // for OnToken
	wake  chan struct{}       // nil without OnToken

	finish  rollout.Finish
	numStop int
	err     error
	done    chan struct{}
}

// newSequence checks r against what the model and the cache can do.
func newSequence(r rollout.Request, l limits) (*sequence, error) {
	if len(r.IDs) == 0 {
		return nil, fmt.Errorf("engine: the request has no tokens to continue")
	}
	for i, id := range r.IDs {
		if id < 0 || int(id) >= l.Vocab {
			return nil, fmt.Errorf("engine: token %d of the request, %d, is not in the vocabulary of %d", i, id, l.Vocab)
		}
	}
	if err := checkSampling(r.Sampling, l.Vocab); err != nil {
		return nil, err
	}
	if err := checkImages(r, l.Vision); err != nil {
		return nil, err
	}
	q := &sequence{
		ids: slices.Clone(r.IDs), tokens: tokenKeys(r.IDs, r.Images), prompt: len(r.IDs), sampling: r.Sampling, matcher: r.Stop,
		images: slices.Clone(r.Images), done: make(chan struct{}),
	}
	for _, m := range r.Images {
		q.merge = l.Vision.Merge
		q.placed = append(q.placed, model.Placed{Start: m.Start, Len: m.Len, Grid: m.Grid})
	}
	if !r.Sampling.IgnoreEOS {
		q.stops = slices.Concat(r.Sampling.StopIDs, l.EOS)
	}
	if r.OnToken != nil {
		q.wake = make(chan struct{}, 1)
	}
	q.max = max(l.Context-len(r.IDs), 0)
	if m := r.Sampling.MaxTokens; m > 0 {
		q.max = min(q.max, m)
	}
	// The last token that is generated does not go through the model.
	if need := len(r.IDs) + q.max - 1; q.max > 0 && pagesFor(need) > l.pages {
		return nil, fmt.Errorf("engine: a prompt of %d tokens and %d new ones can never fit the cache of %d tokens; "+
			"raise [engine] cache_mb or lower max_tokens", len(r.IDs), q.max, l.pages*pageSize)
	}
	return q, nil
}

func checkSampling(s rollout.Sampling, vocab int) error {
	for _, f := range []struct {
		name      string
		v, lo, hi float64
	}{
		{"temperature", float64(s.Temperature), 0, math.MaxFloat32}, {"top_p", float64(s.TopP), 0, 1}, {"min_p", float64(s.MinP), 0, 1},
		{"penalty", float64(s.Penalty), 0, math.MaxFloat32}, {"top_k", float64(s.TopK), 0, math.MaxInt32},
		{"max_tokens", float64(s.MaxTokens), 0, math.MaxInt32},
		{"number of top log-probs", float64(s.TopLogP), 0, float64(min(vocab, maxTop))},
	} {
		if !(f.v >= f.lo && f.v <= f.hi) {
			return fmt.Errorf("engine: %s = %v: must be from %v to %v", f.name, f.v, f.lo, f.hi)
		}
	}
	if s.Temperature > 0 && math.IsInf(float64(1/s.Temperature), 0) {
		return fmt.Errorf("engine: temperature = %v: too close to 0; 0 itself is greedy", s.Temperature)
	}
	for id, b := range s.Bias {
		if id < 0 || int(id) >= vocab || math.IsNaN(float64(b)) || math.IsInf(float64(b), 0) {
			return fmt.Errorf("engine: bias %v of token %d: must be finite, and the token in the vocabulary of %d", b, id, vocab)
		}
	}
	return nil
}

// tokenKeys tells tokens apart as a prefix match must: by id, and placeholders of an image by its digest and their place in it.
func tokenKeys(ids []int32, images []rollout.Image) []uint64 {
	keys := make([]uint64, len(ids))
	for i, id := range ids {
		keys[i] = uint64(id)
	}
	for _, m := range images {
		for i := range m.Len {
			keys[m.Start+i] = 1<<63 | rollout.MixSeed(binary.LittleEndian.Uint64(m.Digest[:]), uint64(i))
		}
	}
	return keys
}

// link is a node on the way to a sequence's leaf, and how many of its tokens belong to the sequence.
type link struct {
	node   *node
	length int
}

// chain appends the nodes that hold q's tokens to links, which are none yet, first to last.
func (q *sequence) chain(links []link) []link {
	for n, length := q.leaf, len(q.leaf.tokens); n.parent != nil; n, length = n.parent, n.from {
		links = append(links, link{n, length})
	}
	slices.Reverse(links)
	return links
}

// pending counts the tokens of q that no step has computed or planned.
func (q *sequence) pending() int {
	p := 0
	for n, length := q.leaf, len(q.leaf.tokens); n.parent != nil; n, length = n.parent, n.from {
		p += max(0, length-n.done())
	}
	return p
}

// decoding tells whether q has generated a token.
func (q *sequence) decoding() bool { return len(q.ids) > q.prompt }

// lastRow is the batch row of q's last token, if it is planned.
func (q *sequence) lastRow() (int32, bool) {
	n, last := q.leaf, len(q.leaf.tokens)-1
	if last < 0 {
		n, last = n.parent, n.from-1
	}
	if i := last - n.computed; i >= 0 && i < len(n.rows) {
		return n.rows[i], true
	}
	return 0, false
}

// planned tells whether the step computes q's last token or others of its own.
func (q *sequence) planned() bool {
	_, last := q.lastRow()
	return last || len(q.leaf.rows) > 0
}
