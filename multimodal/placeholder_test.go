package multimodal

import (
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const pad = 7

var toyProcessor = &ImageProcessor{Merge: 2, Token: pad}

func grids(grids ...[3]int) (images []Image) {
	for _, g := range grids {
		images = append(images, Image{Grid: g})
	}
	return images
}

// Hand values: 1×4×6 patches merge to 6 tokens, 1×2×2 to one. Ids that would be encoded otherwise stay as they are.
func TestOnlyPlaceholdersAreExpanded(t *testing.T) {
	images := grids([3]int{1, 4, 6}, [3]int{1, 2, 2})
	got, err := toyProcessor.Expand([]int32{1, 2, pad, 3, pad, 4}, images)
	if err != nil {
		t.Fatal(err)
	}
	want := ImagePrompt{IDs: []int32{1, 2, pad, pad, pad, pad, pad, pad, 3, pad, 4}, Images: images, Spans: []Span{{2, 6}, {9, 1}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if again, err := toyProcessor.Find(want.IDs, images); err != nil || !cmp.Equal(want, again) {
		t.Errorf("%v, %v", again, err)
	}
	side := slices.Repeat([]int32{pad}, 7) // two images with nothing between them
	if got, err := toyProcessor.Find(side, images); err != nil || !cmp.Equal(got.Spans, []Span{{0, 6}, {6, 1}}) {
		t.Errorf("%v, %v", got.Spans, err)
	}
	if got, err := toyProcessor.Expand([]int32{1, 2}, nil); err != nil || !cmp.Equal(got.IDs, []int32{1, 2}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestAMismatchOfPlaceholdersAndImagesNamesBoth(t *testing.T) {
	for _, tc := range []struct {
		expand bool
		ids    []int32
		want   string
	}{
		{true, []int32{1, 2}, "1 images, and 0 placeholders"},
		{true, []int32{pad, pad}, "1 images, and 2 placeholders"},
		{false, []int32{pad, pad, pad, pad, pad}, "image 0 of 1 stands for 6 tokens, and there are 5 placeholders"}, // cut inside the image
		{false, slices.Repeat([]int32{pad}, 7), "at token 6 belongs to none of the 1 images"},
		{false, []int32{pad, pad, 1, pad, pad, pad, pad}, "6 tokens, and there are 2 placeholders"},
	} {
		f := toyProcessor.Find
		if tc.expand {
			f = toyProcessor.Expand
		}
		if _, err := f(tc.ids, grids([3]int{1, 4, 6})); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %v; want an error that names %q", tc.ids, err, tc.want)
		}
	}
}

func TestPromptsWithImages(t *testing.T) {
	large, small := image.NewGray(image.Rect(0, 0, 56, 84)), image.NewGray(image.Rect(0, 0, 28, 28))
	dir := write(t, map[string]string{"a.png": string(encodePNG(t, large)), "b.png": string(encodePNG(t, small))})
	tok := byteTokenizer(t, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|end|>")
	c, err := NewChat(tok, "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"+
		"{% if p.type == 'text' %}{{ p.text }}{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}{% endif %}"+
		"<|end|>{% endfor %}", nil, false)
	if err != nil {
		t.Fatal(err)
	}
	p := smallProcessor()
	p.Token = 258
	parts := fmt.Sprintf(`[{"type":"image","path":%q},{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":%q}}]`,
		filepath.Join(dir, "a.png"), filepath.Join(dir, "b.png"))
	msgs := []Message{{Role: "user", Content: "x", Parts: json.RawMessage(parts)}, {Role: "user", Content: "y"}}
	expanded := func() (ImagePrompt, error) {
		sources, err := Images(msgs)
		ids, failed := c.Prompt(msgs, RenderOptions{})
		images, unread := p.Open(sources...)
		if err := errors.Join(err, failed, unread); err != nil {
			t.Fatal(err)
		}
		return p.Expand(ids, images)
	}
	got, err := expanded()
	if err != nil {
		t.Fatal(err)
	}
	ids := slices.Concat([]int32{256}, slices.Repeat([]int32{258}, 6), []int32{257, 'x', 256, 258, 257, 259, 'y', 259})
	if diff := cmp.Diff(ids, got.IDs) + cmp.Diff([]Span{{1, 6}, {10, 1}}, got.Spans); diff != "" {
		t.Error(diff)
	}
	if len(got.Images) != 2 || got.Images[0].Grid != [3]int{1, 6, 4} || got.Images[1].Grid != [3]int{1, 2, 2} {
		t.Errorf("%d images", len(got.Images))
	}
	msgs[1].Content = "<|image_pad|>"
	if _, err := expanded(); err == nil || !strings.Contains(err.Error(), "2 images, and 3 placeholders") {
		t.Error("a placeholder without an image:", err)
	}
}
