package trainer

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Status is what the console shows of a run.
type Status struct {
	Step, Steps     int           // completed and all optimizer steps
	Reward          float64       // mean of the last batch; NaN: not known yet
	TokensPerSecond float64       // NaN: not known yet
	Left            time.Duration // until the last step; negative: not known yet
	Note            string        // what is being done, "collecting 40/64"; may be empty
}

// Line formats s as one line of at most width characters; 0 or less: of any length.
func (s Status) Line(width int) string {
	digits := len(fmt.Sprint(s.Steps))
	parts := []string{fmt.Sprintf("step %*d/%d", digits, s.Step, s.Steps), "reward " + known(s.Reward, "%.3f"),
		known(s.TokensPerSecond, "%.0f") + " tok/s", "left " + shortDuration(s.Left)}
	if s.Note != "" {
		parts = append(parts, s.Note)
	}
	line := strings.Join(parts, "  ")
	if width > 0 && utf8.RuneCountInString(line) > width {
		line = string([]rune(line)[:width-1]) + "…"
	}
	return line
}

func known(x float64, format string) string {
	if math.IsNaN(x) {
		return "–"
	}
	return fmt.Sprintf(format, x)
}

// shortDuration gives the two largest of hours, minutes and seconds; a dash if d is negative.
func shortDuration(d time.Duration) string {
	if d < 0 {
		return "–"
	}
	d = d.Round(time.Second)
	h, m, s := int(d.Hours()), int(d.Minutes())%60, int(d.Seconds())%60
	switch {
	case h > 0:
		return fmt.Sprintf("%dh%02dm", h, m)
	case m > 0:
		return fmt.Sprintf("%dm%02ds", m, s)
	}
	return fmt.Sprintf("%ds", s)
}

// TimeLeft is the time for the steps that remain if they take as long as the done ones did; negative if none is done.
func TimeLeft(elapsed time.Duration, done, remaining int) time.Duration {
	if done <= 0 {
		return -1
	}
	return time.Duration(float64(elapsed) / float64(done) * float64(max(remaining, 0)))
}

// Progress shows a run on a console: on a terminal one line that is redrawn in place, elsewhere one line a step.
// It is safe for several goroutines.
type Progress struct {
	mu    sync.Mutex
	out   io.Writer
	width func() int // columns of the terminal, 0 if out is none
	line  string     // the live line on the terminal now
	last  int        // the step of the last plain line
}

// NewProgress shows progress on f.
func NewProgress(f *os.File) *Progress {
	return &Progress{out: f, last: -1, width: func() int {
		size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		if err != nil {
			return 0
		}
		return cmp.Or(int(size.Col), 80) // some terminals do not know their width
	}}
}

const eraseLine = "\r\x1b[K"

// Show redraws the live line, or prints a plain one if s has another step than the last.
func (p *Progress) Show(s Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	width := p.width()
	if width > 0 {
		p.line = s.Line(max(width-1, 1)) // the last column would wrap
		fmt.Fprint(p.out, eraseLine, p.line)
	} else if s.Step != p.last {
		fmt.Fprintln(p.out, s.Line(0))
	}
	p.last = s.Step
}

// Write prints whole lines above the live line, so that a log handler can share the console.
func (p *Progress) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line == "" {
		return p.out.Write(text)
	}
	if _, err := io.WriteString(p.out, eraseLine); err != nil {
		return 0, err
	}
	n, err := p.out.Write(text)
	if err == nil {
		_, err = io.WriteString(p.out, p.line)
	}
	return n, err
}

// Done ends the live line; what is printed next starts on a line of its own.
func (p *Progress) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line != "" {
		fmt.Fprintln(p.out)
		p.line = ""
	}
}
