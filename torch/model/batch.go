package model

import (
	"fmt"
	"slices"

	"github.com/molt-go/molt/torch"
)

// Batch is one packed batch without padding between sequences: each row is a token, and says which keys it sees. It is made by
// pure code; the layout is that of [torch.Scope.Attention]. Rows of one sequence stand together.
type Batch struct {
	IDs       []int32
	Positions []int32  // for the rotary only
	Rows      []int32  // (sequence, lo, hi) per token: it sees the sequence's logical keys lo ≤ j < hi
	Seqs      []int32  // ranges of sequence b are Seqs[b] to Seqs[b+1]
	Ranges    []int32  // (first slot, length)
	Slots     []int64  // with a cache: where each row's key and value are written
	Routing   *Routing // if not nil, the model leaves there what its routers chose
	Images    []ImageRow
	Features  int32 // embeddings of all images that Images has rows of
}

// ImageRow is a row that stands for a part of an image: its embedding is a row of what the model has seen.
type ImageRow struct {
	Row     int32    // of the batch; they ascend
	Feature int32    // row of the embeddings of all Seen that go with the batch, end to end
	At      [3]int32 // its time, height and width for the rotary, in place of Positions
}

// Len is the number of rows.
func (b *Batch) Len() int { return len(b.IDs) }

// AddSequence appends a sequence whose keys are the given ranges, (first slot, length) pairs end to end, and whose queries are
// ids, the last of its logical keys: each sees all keys up to its own. It returns the first row.
func (b *Batch) AddSequence(ids []int32, ranges ...int32) int {
	if len(b.Seqs) == 0 {
		b.Seqs = append(b.Seqs, 0)
	}
	keys := int32(0)
	for i := 1; i < len(ranges); i += 2 {
		keys += ranges[i]
	}
	first, seq := len(b.IDs), int32(len(b.Seqs)-1)
	b.Ranges = append(b.Ranges, ranges...)
	b.Seqs = append(b.Seqs, int32(len(b.Ranges)/2))
	start := keys - int32(len(ids))
	for i, id := range ids {
		position := start + int32(i)
		b.IDs = append(b.IDs, id)
		b.Positions = append(b.Positions, position)
		b.Rows = append(b.Rows, seq, 0, position+1)
	}
	return first
}

// AddPadded appends the tokens of a padded sequence where mask is true, on whichever side the padding is. It returns each place's
// row, −1 at padding.
func (b *Batch) AddPadded(ids []int32, mask []bool) (rows []int32) {
	var real []int32
	for i, id := range ids {
		row := int32(-1)
		if i < len(mask) && mask[i] {
			row = int32(b.Len() + len(real))
			real = append(real, id)
		}
		rows = append(rows, row)
	}
	b.AddSequence(real, int32(b.Len()), int32(len(real)))
	return rows
}

// check finds what would make a kernel read outside its arguments: slots is the number of key rows, vocab that of ids.
func (b *Batch) check(slots, vocab int) error {
	n := b.Len()
	if n == 0 || len(b.Positions) != n || len(b.Rows) != 3*n || (b.Slots != nil && len(b.Slots) != n) || len(b.Seqs) < 2 {
		return fmt.Errorf("model: batch of %d ids has %d positions, %d row entries, %d slots, %d sequences", n, len(b.Positions),
			len(b.Rows), len(b.Slots), len(b.Seqs)-1)
	}
	lengths := make([]int32, len(b.Seqs)-1)
	for s := range lengths {
		if b.Seqs[s] < 0 || b.Seqs[s+1] < b.Seqs[s] || int(b.Seqs[s+1])*2 > len(b.Ranges) {
			return fmt.Errorf("model: sequence %d has the ranges %d to %d of %d", s, b.Seqs[s], b.Seqs[s+1], len(b.Ranges)/2)
		}
		for r := 2 * b.Seqs[s]; r < 2*b.Seqs[s+1]; r += 2 {
			first, length := b.Ranges[r], b.Ranges[r+1]
			if first < 0 || length < 0 || int(first)+int(length) > slots {
				return fmt.Errorf("model: sequence %d has the range (%d, %d) over %d slots", s, first, length, slots)
			}
			lengths[s] += length
		}
	}
	for i, id := range b.IDs {
		if id < 0 || int(id) >= vocab {
			return fmt.Errorf("model: token %d at row %d is not in the vocabulary of %d", id, i, vocab)
		}
		s, lo, hi := b.Rows[3*i], b.Rows[3*i+1], b.Rows[3*i+2]
		if s < 0 || int(s) >= len(lengths) || lo < 0 || hi > lengths[s] {
			return fmt.Errorf("model: row %d sees keys %d to %d of sequence %d, which is not there", i, lo, hi, s)
		}
		if b.Slots != nil && (b.Slots[i] < 0 || b.Slots[i] >= int64(slots)) {
			return fmt.Errorf("model: row %d writes to slot %d of %d", i, b.Slots[i], slots)
		}
	}
	return nil
}

// checkImages finds what would give a row a wrong embedding: token is the id of an image's rows, features how many embeddings there
// are, all of which must have their row where complete is set.
func (b *Batch) checkImages(token int32, features int, complete bool) error {
	taken, last := map[int32]bool{}, int32(-1)
	for _, i := range b.Images {
		if i.Row <= last || int(i.Row) >= b.Len() || b.IDs[i.Row] != token {
			return fmt.Errorf("model: row %d of %d stands for a part of an image; it must have the id %d and come after row %d", i.Row,
				b.Len(), token, last)
		}
		if i.Feature < 0 || int(i.Feature) >= features {
			return fmt.Errorf("model: row %d takes image embedding %d, but %d rows of images have %d embeddings", i.Row, i.Feature,
				len(b.Images), features)
		}
		last, taken[i.Feature] = i.Row, true
	}
	if complete && len(taken) != features {
		return fmt.Errorf("model: %d rows of images take %d of their %d embeddings; all must be taken", len(b.Images), len(taken), features)
	}
	return nil
}

// input is a batch as tensors, made once and shared by all layers.
type input struct {
	ids, seqs, ranges, slots torch.Tensor
	all, local               view
	routing                  *Routing
	imageRows, features      torch.Tensor // rows that stand for images, and which of their embeddings they take
}

// view is what the layers of a kind see: their key ranges and angles.
type view struct{ rows, cos, sin torch.Tensor }

func (m *Model) input(s *torch.Scope, b *Batch) input {
	in := input{
		ids: torch.New(s, b.IDs), seqs: torch.New(s, b.Seqs), ranges: torch.New(s, b.Ranges, len(b.Ranges)/2, 2),
		all: m.view(s, b, b.Rows, m.Rope), routing: b.Routing,
	}
	if m.Local != nil {
		rows := slices.Clone(b.Rows)
		for i := 0; i < len(rows); i += 3 {
			rows[i+1] = max(rows[i+1], rows[i+2]-int32(m.Window))
		}
		in.local = m.view(s, b, rows, m.LocalRope)
	}
	if b.Slots != nil {
		in.slots = torch.New(s, b.Slots)
	}
	if in.routing != nil {
		layers := m.MoE.NumSparse(len(m.MoE.Layers))
		*in.routing = Routing{b.Routing.Weights, make([][]int64, layers), make([][]float32, layers), make([][]float32, layers)}
	}
	if len(b.Images) > 0 {
		rows, features := make([]int64, len(b.Images)), make([]int32, len(b.Images))
		for k, i := range b.Images {
			rows[k], features[k] = int64(i.Row), i.Feature
		}
		in.imageRows, in.features = torch.New(s, rows), torch.New(s, features)
	}
	return in
}

func (m *Model) view(s *torch.Scope, b *Batch, rows []int32, r Rope) view {
	cos, sin := r.angles(b, m.HeadDim)
	n, half := b.Len(), m.HeadDim/2
	return view{torch.New(s, rows, n, 3), torch.New(s, cos, n, half), torch.New(s, sin, n, half)}
}
