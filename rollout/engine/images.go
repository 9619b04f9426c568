package engine

import (
	"fmt"
	"slices"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// picture is an image of a request.
type picture struct {
	model.Placed
	digest [32]byte
	pixels []float32
}

// pictures checks a request's images against its tokens and the vision tower v: an error here is one request's, later it would be all's.
func pictures(r rollout.Request, v *model.Vision) ([]picture, error) {
	if v == nil && len(r.Images) > 0 {
		return nil, fmt.Errorf("engine: the request has %d images; this model reads text only", len(r.Images))
	}
	if v == nil {
		return nil, nil
	}
	ps := make([]picture, len(r.Images))
	rest, end := slices.Clone(r.IDs), 0 // without the placeholders of images so far, which end there
	for i, m := range r.Images {
		h, w := m.Grid[1], m.Grid[2]
		if m.Grid[0] != 1 || min(h, w) < 1 || max(h, w) > 1<<15 || h%v.Merge != 0 || w%v.Merge != 0 {
			return nil, fmt.Errorf("engine: image %d has the grid %v: want 1 and two positive multiples of %d", i, m.Grid, v.Merge)
		}
		n := 0
		for j := m.Start; j >= end && j < len(rest) && rest[j] == v.Image && n < m.Len; j++ {
			rest[j] = -1
			n++
		}
		if tokens := h * w / (v.Merge * v.Merge); n != tokens || m.Len != tokens {
			return nil, fmt.Errorf("engine: image %d stands for %d tokens; it has %d of its %d placeholders (token %d) from token %d on", i,
				tokens, n, m.Len, v.Image, m.Start)
		}
		if numbers := h * w * 3 * v.Frames * v.Patch * v.Patch; len(m.Pixels) != numbers {
			return nil, fmt.Errorf("engine: image %d of %v patches has %d numbers, want %d", i, m.Grid, len(m.Pixels), numbers)
		}
		end = m.Start + n
		ps[i] = picture{model.Placed{Start: m.Start, Len: m.Len, Grid: m.Grid}, m.Digest, m.Pixels}
	}
	if i := slices.Index(rest, v.Image); i >= 0 {
		return nil, fmt.Errorf("engine: the placeholder (%d) at token %d belongs to none of the request's %d images", v.Image, i, len(ps))
	}
	return ps, nil
}

// place gives n rows of the batch, which are q's tokens from `from` on, their rotary positions and the embeddings of images.
func (p *plan) place(q *sequence, row, from, n int) {
	if len(q.images) == 0 {
		return
	}
	placed := make([]model.Placed, len(q.images))
	for i, m := range q.images {
		placed[i] = m.Placed
		if m.Start < from+n && from < m.Start+m.Len {
			placed[i].Feature = p.features
			p.features += int32(m.Len)
			p.images = append(p.images, m)
		}
	}
	p.batch.Place(q.merge, row, from, n, placed)
}

// see gives the embeddings of a step's images. They are kept for the next step, which may go on within an image.
func (w *worker) see(s *torch.Scope, images []picture) ([]model.Seen, error) {
	now := map[[32]byte][][]float32{}
	out := make([]model.Seen, len(images))
	for i, m := range images {
		if f := w.seen[m.digest]; f == nil || len(f[0]) != m.Len*w.model.Width { // a digest that is wrong hurts its own request
			seen, err := w.model.See(s, m.pixels, [][3]int{m.Grid})
			if err != nil {
				return nil, err
			}
			w.seen[m.digest] = nil
			for _, t := range append([]torch.Tensor{seen.Embeds}, seen.Deepstack...) {
				w.seen[m.digest] = append(w.seen[m.digest], torch.Values[float32](t))
			}
			w.engine.counts.Images++
		}
		now[m.digest] = w.seen[m.digest]
		var parts []torch.Tensor
		for _, f := range now[m.digest] {
			parts = append(parts, s.To(torch.New(s, f, m.Len, w.model.Width), w.model.DType))
		}
		out[i] = model.Seen{Embeds: parts[0], Deepstack: parts[1:]}
	}
	w.seen = now
	return out, nil
}
