package molt

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// maxLine is the longest line that is read, in bytes; a longer one is answered by an error.
const maxLine = 64 << 20

// answerer makes the answer to a line, which is written as JSON. It is called for several lines at once.
type answerer func(ctx context.Context, line []byte) (any, error)

// answer is a line of output.
type answer struct {
	text   []byte
	failed bool
}

// serve answers the lines of in on out, in their order and up to parallel at once; an error as {"error": its text}. What there is to
// write is written whenever the next answer is not ready. The error at the end counts the errors.
func serve(ctx context.Context, in io.Reader, out io.Writer, parallel int, f answerer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan chan answer, parallel-1) // of those in work, beside the one that is waited for
	go func() {
		defer close(queue)
		for r := bufio.NewReader(in); ; {
			line, err := readLine(r)
			if err == io.EOF {
				return
			}
			if err != nil {
				cancel(fmt.Errorf("standard input: %w", err))
				return
			}
			a := make(chan answer, 1)
			select {
			case queue <- a:
				go func() { a <- f.answer(ctx, line) }()
			case <-ctx.Done():
				return
			}
		}
	}()
	w, bad := bufio.NewWriter(out), 0
	for lines := 0; ; lines++ {
		next, ok, err := receive(ctx, queue, w)
		if err == nil && !ok {
			if err = w.Flush(); err == nil && bad > 0 {
				err = fmt.Errorf("%d of %d lines gave an error", bad, lines)
			}
			return err
		}
		var a answer
		if err == nil {
			a, _, err = receive(ctx, next, w)
		}
		if err == nil {
			_, err = w.Write(a.text)
		}
		if err != nil {
			return err
		}
		if a.failed {
			bad++
		}
	}
}

// answer is f's answer as it is written.
func (f answerer) answer(ctx context.Context, line []byte) answer {
	value, err := any(nil), fmt.Errorf("the line is longer than %d MB", maxLine>>20)
	if len(line) <= maxLine {
		value, err = f(ctx, line)
	}
	var text []byte
	if err == nil {
		text, err = encode(value)
	}
	if err != nil {
		text, _ = encode(map[string]string{"error": err.Error()}) // of a text: cannot fail
	}
	return answer{text, err != nil}
}

// encode is a line of JSON, in which the characters of HTML stay readable.
func encode(value any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return b.Bytes(), err
}

// readLine reads a line; the last may lack its end. Of one that is too long it keeps a little more than maxLine bytes.
func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if len(line) <= maxLine {
			line = append(line, part...)
		}
		if err == io.EOF && len(line) > 0 {
			err = nil
		}
		if err != bufio.ErrBufferFull {
			return line, err
		}
	}
}

// receive waits for c, and before that writes out what w holds.
func receive[T any](ctx context.Context, c <-chan T, w *bufio.Writer) (v T, ok bool, err error) {
	select {
	case v, ok = <-c:
	default:
		if err = w.Flush(); err != nil {
			return v, false, err
		}
		select {
		case v, ok = <-c:
		case <-ctx.Done():
		}
	}
	return v, ok, context.Cause(ctx)
}
