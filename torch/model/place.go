package model

// Placed is an image among the tokens of a sequence.
type Placed struct {
	Start, Len int    // its placeholders
	Grid       [3]int // patches: time, height, width
}

// Place gives rows first to first+n of b, which are the tokens of a sequence with images from its token `from` on, their rotary
// positions, and rows of images their embeddings. As transformers' get_rope_index has it, an image's rows stand at their time, line
// and column past the text's position, and the text goes on past its longer side, in squares of merge·merge patches. The images are
// in the order of their places. It returns which of them have rows: what is Seen of these must be next in what [Model.Hidden] is given.
func (b *Batch) Place(merge, first, from, n int, images []Placed) (shown []int) {
	shift, done, end := 0, from, from+n // of the text's positions; tokens that have theirs
	text := func(to int) {
		for ; done < min(to, end); done++ {
			b.Positions[first+done-from] = int32(done + shift)
		}
	}
	for k, m := range images {
		text(m.Start)
		h, w := m.Grid[1]/merge, m.Grid[2]/merge
		for ; done < min(m.Start+m.Len, end); done++ {
			i, origin := done-m.Start, m.Start+shift
			b.Images = append(b.Images, ImageRow{
				Row: int32(first + done - from), Feature: b.Features + int32(i),
				At: [3]int32{int32(origin + i/(h*w)), int32(origin + i/w%h), int32(origin + i%w)},
			})
		}
		if from < m.Start+m.Len && m.Start < end {
			shown = append(shown, k)
			b.Features += int32(m.Len)
		}
		shift += max(h, w) - m.Len
	}
	text(end)
	return shown
}
