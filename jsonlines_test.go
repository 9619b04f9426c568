package molt

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// echo answers a line by itself, the later the longer it is; "bad" is an error.
func echo(_ context.Context, line []byte) (any, error) {
	text := strings.TrimSpace(string(line))
	time.Sleep(time.Duration(len(text)) * time.Second)
	if text == "bad" {
		return nil, errors.New("<bad>")
	}
	return text, nil
}

func TestAnswersComeInTheOrderOfTheLinesAndErrorsInTheirPlace(t *testing.T) {
	for _, parallel := range []int{1, 2, 100} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			err := serve(t.Context(), strings.NewReader("long line\nbad\n\nb\r\nbad\nlast"), &out, parallel, echo)
			want := "\"long line\"\n{\"error\":\"<bad>\"}\n\"\"\n\"b\"\n{\"error\":\"<bad>\"}\n\"last\"\n"
			if d := cmp.Diff(want, out.String()); d != "" || err == nil || err.Error() != "2 of 6 lines gave an error" {
				t.Errorf("%d at once: %v\n%s", parallel, err, d)
			}
		})
	}
}

func TestParallelIsTheMostLinesInWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := serve(t.Context(), strings.NewReader(strings.Repeat("1\n", 40)), io.Discard, 10, echo); err != nil ||
			time.Since(began) != 4*time.Second {
			t.Error(err, time.Since(began))
		}
	})
}

func TestAnAnswerIsThereBeforeTheNextLineIs(t *testing.T) {
	in, ask := io.Pipe()
	answers, out := io.Pipe()
	ended := make(chan error)
	go func() { ended <- serve(t.Context(), in, out, 8, echo) }()
	for i, r := 0, bufio.NewReader(answers); i < 3; i++ {
		fmt.Fprintln(ask, "")
		if got, err := r.ReadString('\n'); got != "\"\"\n" || err != nil {
			t.Fatal(got, err)
		}
	}
	ask.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestALineThatIsTooLongIsOneError(t *testing.T) {
	var out bytes.Buffer
	huge := io.MultiReader(strings.NewReader("\n"), io.LimitReader(zeros{}, 3*maxLine), strings.NewReader("\n\n"))
	err := serve(t.Context(), huge, &out, 1, echo)
	want := "\"\"\n{\"error\":\"the line is longer than 64 MB\"}\n\"\"\n"
	if d := cmp.Diff(want, out.String()); d != "" || err == nil {
		t.Error(err, d)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestServingEndsWhenItsContextOrItsReaderDoes(t *testing.T) {
	endless := io.MultiReader(strings.NewReader("\n"), zeros{})
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	time.AfterFunc(10*time.Millisecond, func() { cancel(stopped) })
	if err := serve(ctx, endless, io.Discard, 2, echo); !errors.Is(err, stopped) {
		t.Error("a stop:", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	if err := serve(t.Context(), strings.NewReader("\n\n"), w, 2, echo); !errors.Is(err, syscall.EPIPE) {
		t.Error("nobody reads:", err)
	}
	if err := serve(t.Context(), w, io.Discard, 2, echo); err == nil || !strings.Contains(err.Error(), "standard input: read") {
		t.Error("an input that cannot be read:", err)
	}
}
