package multimodal

import (
	"errors"
	"fmt"
	"slices"
)

// markers are what a template writes around an assistant's reply.
type markers struct {
	open   []int32
	closed int32
	isStop bool // closed ends the reply itself; it is not just the start of what follows
}

// findMarkers compares renderings of small conversations, as Molt's SFTDataset does, so that nothing is known of any model.
// Templates may write more before the last reply, so a reply is opened by what the generation prompt and a reply amid a
// conversation have in common.
func (c *Chat) findMarkers() (m markers, err error) {
	encode := func(prompt bool, turns ...string) []int32 {
		msgs := make([]Message, len(turns))
		for i, text := range turns {
			msgs[i] = Message{Role: []string{"user", "assistant"}[i%2], Content: text}
		}
		var text string
		if err == nil { // a template that loops does so once
			text, err = c.Render(msgs, RenderOptions{AddGenerationPrompt: prompt})
		}
		return c.tok.Encode(text)
	}
	after := func(ids []int32, n int) []int32 { return ids[min(n, len(ids)):] }
	user, a, b, whole := encode(false, "x"), encode(false, "x", "aaa"), encode(false, "x", "bbb"), encode(false, "x", "aaa", "z")
	m.open = after(encode(true, "x"), len(user))
	if n := numCommon(m.open, after(whole, len(user))); n > 0 {
		m.open = m.open[:n]
	}
	slices.Reverse(b)
	backwards := slices.Clone(a)
	slices.Reverse(backwards)
	end := numCommon(backwards, b)
	closing := after(whole, len(a))
	if m.isStop = end > 0; m.isStop {
		closing = a[len(a)-end:]
	}
	switch {
	case err != nil:
		return m, fmt.Errorf("assistant spans: %w", err)
	case len(m.open) == 0:
		return m, errors.New("assistant spans: the chat template has no generation prompt that would show where a reply starts")
	case len(closing) == 0:
		return m, errors.New("assistant spans: the chat template writes nothing after a reply that would show where it ends")
	}
	m.closed = closing[0]
	return m, nil
}

func numCommon(a, b []int32) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// Spans are the replies of assistants in a conversation's ids as half-open ranges of tokens: what stands behind the ids that
// the template opens a reply with, wherever they occur, up to the one that closes it; that one is part of the reply where the
// model must generate it to stop. The markers come from the template itself; the error says why it shows none.
func (c *Chat) Spans(ids []int32) ([][2]int, error) {
	m, err := c.markers()
	if err != nil {
		return nil, err
	}
	spans, ended := [][2]int{}, 0
	for i := len(m.open); i <= len(ids); i++ {
		if i < ended || !slices.Equal(ids[i-len(m.open):i], m.open) {
			continue
		}
		before := ended
		if n := slices.Index(ids[i:], m.closed); n < 0 {
			ended = len(ids)
		} else if ended = i + n; m.isStop {
			ended++
		}
		if last := len(spans) - 1; last >= 0 && i == before {
			spans[last][1] = ended
		} else if i < ended {
			spans = append(spans, [2]int{i, ended})
		}
	}
	return spans, nil
}

// LossMask has an entry per id: true where the next id belongs to an assistant's reply, to the last one only if so wanted.
// It goes by position, so an end-of-turn id that also pads batches counts. Cut ids that are too long before.
func (c *Chat) LossMask(ids []int32, lastOnly bool) ([]bool, error) {
	spans, err := c.Spans(ids)
	if err != nil {
		return nil, err
	}
	if lastOnly && len(spans) > 1 {
		spans = spans[len(spans)-1:]
	}
	mask := make([]bool, len(ids))
	for _, s := range spans {
		for t := max(s[0]-1, 0); t < s[1]-1; t++ {
			mask[t] = true
		}
	}
	return mask, nil
}
