package multimodal

// Stream decodes a reply token by token. The pieces, put together, equal Decode of all ids: a character whose bytes lie
// in several tokens comes out with the last of them. A Stream belongs to one goroutine.
type Stream struct {
	t    *Tokenizer
	tail []byte // start of a character that is not complete
}

// NewStream starts the text of one reply.
func NewStream(t *Tokenizer) *Stream { return &Stream{t: t} }

// Next returns the text that id completes, which may be empty.
func (s *Stream) Next(id int32) string {
	s.tail = append(s.tail, s.t.bytes(id)...)
	n := complete(s.tail)
	text := lossy(string(s.tail[:n]))
	s.tail = append(s.tail[:0], s.tail[n:]...)
	return text
}

// Flush ends the text: a character left incomplete becomes one U+FFFD.
func (s *Stream) Flush() string {
	if len(s.tail) == 0 {
		return ""
	}
	s.tail = s.tail[:0]
	return replacement
}
