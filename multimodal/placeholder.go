package multimodal

import (
	"fmt"
	"slices"
)

// Span is where the placeholders of an image stand among ids.
type Span struct{ Start, Len int }

// ImagePrompt is a prompt with images, whose spans are in the order of the images.
type ImagePrompt struct {
	IDs    []int32
	Images []Image
	Spans  []Span
}

// Expand makes a prompt of ids that have one placeholder for each image: it becomes as many as the image has squares of patches.
// Other ids stay as they are.
func (p *ImageProcessor) Expand(ids []int32, images []Image) (ImagePrompt, error) {
	var expanded []int32
	found := 0
	for _, id := range ids {
		n := 1
		if id == p.Token {
			if found < len(images) {
				n = p.tokens(images[found])
			}
			found++
		}
		for range n {
			expanded = append(expanded, id)
		}
	}
	if found != len(images) {
		return ImagePrompt{}, fmt.Errorf("there are %d images, and %d placeholders (token %d) for them", len(images), found, p.Token)
	}
	return p.Find(expanded, images)
}

// Find makes a prompt of ids whose placeholders are expanded already: each image's stand together, and there are no others.
func (p *ImageProcessor) Find(ids []int32, images []Image) (ImagePrompt, error) {
	prompt, end := ImagePrompt{IDs: ids, Images: images}, 0
	for i, m := range images {
		start, n := end+max(0, slices.Index(ids[end:], p.Token)), p.tokens(m)
		for end = start; end < len(ids) && ids[end] == p.Token && end-start < n; {
			end++
		}
		if end-start < n {
			return ImagePrompt{}, fmt.Errorf("image %d of %d stands for %d tokens, and there are %d placeholders (token %d) for it", i,
				len(images), n, end-start, p.Token)
		}
		prompt.Spans = append(prompt.Spans, Span{start, n})
	}
	if i := slices.Index(ids[end:], p.Token); i >= 0 {
		return ImagePrompt{}, fmt.Errorf("the placeholder (%d) at token %d belongs to none of the %d images", p.Token, end+i, len(images))
	}
	return prompt, nil
}

// tokens are those that an image stands for, one for each square of patches.
func (p *ImageProcessor) tokens(m Image) int {
	return m.Grid[0] * m.Grid[1] * m.Grid[2] / (p.Merge * p.Merge)
}
