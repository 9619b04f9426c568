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

// PromptImages is Prompt for a conversation with images, which it reads as p does. The template must write one placeholder for each.
func (c *Chat) PromptImages(msgs []Message, opts RenderOptions, p *ImageProcessor) (ImagePrompt, error) {
	sources, err := Images(msgs)
	if err != nil {
		return ImagePrompt{}, err
	}
	ids, err := c.Prompt(msgs, opts)
	if err != nil {
		return ImagePrompt{}, err
	}
	images, err := p.Open(sources...)
	if err != nil {
		return ImagePrompt{}, err
	}
	return p.Expand(ids, images)
}

// Expand makes a prompt of ids that have one placeholder for each image: it becomes as many as the image has windows of patches.
// Other ids stay as they are.
func (p *ImageProcessor) Expand(ids []int32, images []Image) (ImagePrompt, error) {
	if n := p.placeholders(ids); n != len(images) {
		return ImagePrompt{}, fmt.Errorf("there are %d images, and %d placeholders (token %d) for them: give one for each", len(images), n, p.Token)
	}
	var expanded []int32
	for next := 0; len(ids) > 0; ids = ids[1:] {
		n := 1
		if ids[0] == p.Token {
			n, next = p.windows(images[next]), next+1
		}
		expanded = append(expanded, slices.Repeat(ids[:1], n)...)
	}
	return p.Find(expanded, images)
}

// Find makes a prompt of ids whose placeholders are expanded already. Their number must be that of the images' windows of patches, and
// those of an image stand together.
func (p *ImageProcessor) Find(ids []int32, images []Image) (ImagePrompt, error) {
	prompt, need := ImagePrompt{IDs: ids, Images: images}, 0
	for _, m := range images {
		need += p.windows(m)
	}
	if n := p.placeholders(ids); n != need {
		return ImagePrompt{}, fmt.Errorf("the %d images stand for %d tokens, and there are %d placeholders (token %d)", len(images), need, n, p.Token)
	}
	start := 0
	for i, m := range images {
		for start < len(ids) && ids[start] != p.Token {
			start++
		}
		span := Span{start, p.windows(m)}
		start += span.Len
		if n := p.placeholders(ids[span.Start:start]); n < span.Len {
			return ImagePrompt{}, fmt.Errorf("image %d stands for %d tokens, and of those from %d on %d are placeholders", i, span.Len, span.Start, n)
		}
		prompt.Spans = append(prompt.Spans, span)
	}
	return prompt, nil
}

// windows counts an image's windows of patches: each is a row of what the vision tower gives.
func (p *ImageProcessor) windows(m Image) int {
	return m.Grid[0] * m.Grid[1] * m.Grid[2] / (p.Merge * p.Merge)
}

func (p *ImageProcessor) placeholders(ids []int32) (n int) {
	for _, id := range ids {
		if id == p.Token {
			n++
		}
	}
	return n
}
