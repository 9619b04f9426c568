package engine

import (
	"fmt"
	"slices"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// checkImages compares a request's images with its tokens and the vision tower v: an error here is one request's, later it would be all's.
func checkImages(r rollout.Request, v *model.Vision) error {
	if v == nil && len(r.Images) > 0 {
		return fmt.Errorf("engine: the request has %d images; this model reads text only", len(r.Images))
	}
	if v == nil {
		return nil
	}
	rest, end := slices.Clone(r.IDs), 0 // without the placeholders of images so far, which end there
	for i, m := range r.Images {
		h, w := m.Grid[1], m.Grid[2]
		if m.Grid[0] != 1 || min(h, w) < 1 || max(h, w) > 1<<15 || h%v.Merge != 0 || w%v.Merge != 0 {
			return fmt.Errorf("engine: image %d has the grid %v: want 1 and two positive multiples of %d", i, m.Grid, v.Merge)
		}
		n := 0
		for j := m.Start; j >= end && j < len(rest) && rest[j] == v.Image && n < m.Len; j++ {
			rest[j] = -1
			n++
		}
		if tokens := h * w / (v.Merge * v.Merge); n != tokens || m.Len != tokens {
			return fmt.Errorf("engine: image %d stands for %d tokens; it has %d of its %d placeholders (token %d) from token %d on", i,
				tokens, n, m.Len, v.Image, m.Start)
		}
		if numbers := h * w * 3 * v.Frames * v.Patch * v.Patch; len(m.Pixels) != numbers {
			return fmt.Errorf("engine: image %d of %v patches has %d numbers, want %d", i, m.Grid, len(m.Pixels), numbers)
		}
		end = m.Start + n
	}
	if i := slices.Index(rest, v.Image); i >= 0 {
		return fmt.Errorf("engine: the placeholder (%d) at token %d belongs to none of the request's %d images", v.Image, i, len(r.Images))
	}
	return nil
}

// see gives the embeddings of a step's images. They are kept for the next step, which may go on within an image.
func (w *worker) see(s *torch.Scope, images []rollout.Image) ([]model.Seen, error) {
	now := map[[32]byte][][]float32{}
	out := make([]model.Seen, len(images))
	for i, m := range images {
		features := w.seen[m.Digest]
		if features == nil || len(features[0]) != m.Len*w.model.Width { // a digest that is wrong hurts its own request
			seen, err := w.model.See(s, m.Pixels, [][3]int{m.Grid})
			if err != nil {
				return nil, err
			}
			features = nil
			for _, t := range seen {
				features = append(features, torch.Values[float32](t))
			}
			w.engine.counts.Images++
		}
		now[m.Digest], w.seen[m.Digest] = features, features
		for _, f := range features {
			out[i] = append(out[i], s.To(torch.New(s, f, m.Len, w.model.Width), w.model.DType))
		}
	}
	w.seen = now
	return out, nil
}
