package rollout

import (
	"context"
	"crypto/sha256"
	"encoding/binary"

	"github.com/molt-go/molt/multimodal"
)

// Image is a placeholder span of a token sequence.
type Image struct {
	Start, Len int    // first placeholder token and their number
	Grid       [3]int // patches: time, height, width
	Digest     [32]byte
	Pixels     []float32 // what Digest is of: shared by all who hold the image, and never changed
}

// Images are those of a prompt.
func Images(p multimodal.ImagePrompt) []Image {
	images := make([]Image, len(p.Images))
	for i, m := range p.Images {
		images[i] = Image{Start: p.Spans[i].Start, Len: p.Spans[i].Len, Grid: m.Grid, Digest: m.Digest, Pixels: m.Pixels}
	}
	return images
}

// UnknownExpert stands in Routed where a position has not been through the model.
const UnknownExpert = 0xFFFF

// Routed holds the experts chosen at each position of a sequence: 2·Layers·K bytes a token.
//
// Row i is of the pass that token i+1 was drawn from, so it has the policy version of that token's log-prob, also where new weights made a
// generator compute position i again; the rows of a prompt are of the pass of the first token after it. A replay of the rows then is what
// the log-probs came from, but for a token drawn after a refit that recomputed the cache: it saw the earlier positions under the new
// weights, whose rows at those positions are not kept.
type Routed struct {
	Layers, K int      // sparse layers, experts a token; both 0 for a dense model
	Experts   []uint16 // [positions, Layers, K]
}

func (r Routed) row() int { return r.Layers * r.K }

// TopLogP is one of a position's most likely tokens.
type TopLogP struct {
	ID   int32
	LogP float32
}

// Sampling says how to draw tokens. The zero value is greedy, to the end of the context.
type Sampling struct {
	Temperature float32 // 0: greedy
	TopP        float32 // 0 or 1: off
	MinP        float32 // 0: off
	Penalty     float32 // repetition penalty; 0 or 1: off
	TopK        int     // 0: off
	MaxTokens   int     // new tokens; 0: to the end of the context
	TopLogP     int     // most likely tokens to report at each position
	Seed        uint64
	StopIDs     []int32
	IgnoreEOS   bool              // generate on over StopIDs
	Bias        map[int32]float32 // added to the logits
}

// Exact reports whether tokens are drawn from softmax(logits/Temperature) itself: temperature above 0 and no
// truncation, penalty or bias.
func (s Sampling) Exact() bool {
	return s.Temperature > 0 && (s.TopP == 0 || s.TopP == 1) && s.MinP == 0 && s.TopK == 0 &&
		(s.Penalty == 0 || s.Penalty == 1) && len(s.Bias) == 0
}

// Matcher finds stop strings: Next takes one generated token and reports whether to stop after it. A Matcher has
// state and belongs to one request.
type Matcher interface{ Next(id int32) bool }

// Request asks for the continuation of IDs.
type Request struct {
	IDs      []int32
	Images   []Image
	Sampling Sampling
	Stop     Matcher         // may be nil
	OnToken  func(Generated) // called for each token as it comes, in order; may be nil
}

// Prefix is a digest of IDs and Images: what was continued. It takes about 4 ns a token.
func (r Request) Prefix() [32]byte { return prefix(r.IDs, r.Images) }

func prefix(ids []int32, images []Image) [32]byte {
	buf := make([]byte, 0, 8+4*len(ids)+72*len(images))
	buf = binary.LittleEndian.AppendUint64(buf, uint64(len(ids))) // ids and images cannot be taken for each other
	for _, id := range ids {
		buf = binary.LittleEndian.AppendUint32(buf, uint32(id))
	}
	for _, m := range images {
		for _, n := range [...]int{m.Start, m.Len, m.Grid[0], m.Grid[1], m.Grid[2]} {
			buf = binary.LittleEndian.AppendUint64(buf, uint64(n))
		}
		buf = append(buf, m.Digest[:]...)
	}
	return sha256.Sum256(buf)
}

// Finish says why a completion ended.
type Finish string

// The values of Finish.
const (
	FinishStop      Finish = "stop"      // a stop id or stop string
	FinishLength    Finish = "length"    // MaxTokens, or the end of the context
	FinishCancelled Finish = "cancelled" // the caller's context ended first
)

// Completion is what a generator made of a Request.
type Completion struct {
	Prefix  [32]byte // Request.Prefix of what was continued
	Tokens  []Generated
	Finish  Finish
	NumStop int         // last tokens that belong to the stop
	Top     [][]TopLogP // [tokens], where asked for
	Routed  Routed      // positions 0 … prompt+tokens−2: the last token has not been through the model; may be zero without tokens
}

// Generator continues token sequences. It is called from many goroutines at once. With an error no token counts.
type Generator interface {
	Generate(context.Context, Request) (Completion, error)
}

// GeneratorFunc is a function as a Generator.
type GeneratorFunc func(context.Context, Request) (Completion, error)

// Generate calls f.
func (f GeneratorFunc) Generate(ctx context.Context, r Request) (Completion, error) { return f(ctx, r) }
