package trainer

import (
	"bytes"
	"math"
	"testing"
	"time"
)

func TestStatusLineByHand(t *testing.T) {
	full := Status{Step: 7, Steps: 100, Reward: 0.53125, TokensPerSecond: 1234.5, Left: 3*time.Minute + 20*time.Second, Note: "training"}
	tests := []struct {
		status Status
		width  int
		want   string
	}{
		{full, 0, "step   7/100  reward 0.531  1234 tok/s  left 3m20s  training"},
		{full, 60, "step   7/100  reward 0.531  1234 tok/s  left 3m20s  training"},
		{full, 59, "step   7/100  reward 0.531  1234 tok/s  left 3m20s  traini…"},
		{full, 1, "…"},
		{Status{Steps: 5, Reward: math.NaN(), TokensPerSecond: math.NaN(), Left: -1}, 0, "step 0/5  reward –  – tok/s  left –"},
	}
	for _, test := range tests {
		if got := test.status.Line(test.width); got != test.want {
			t.Errorf("width %d:\n got %q\nwant %q", test.width, got, test.want)
		}
	}
	for d, want := range map[time.Duration]string{0: "0s", 59400 * time.Millisecond: "59s", 59600 * time.Millisecond: "1m00s",
		3599 * time.Second: "59m59s", time.Hour: "1h00m", 26*time.Hour + 90*time.Second: "26h01m"} {
		if got := shortDuration(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

func TestTimeLeftIsTheMeanStepTimesTheRest(t *testing.T) {
	if got := TimeLeft(30*time.Second, 3, 7); got != 70*time.Second {
		t.Errorf("got %v, want 70s", got)
	}
	if TimeLeft(time.Second, 0, 7) >= 0 || TimeLeft(time.Second, 1, -2) != 0 {
		t.Error("no step done must be unknown, none left must be 0")
	}
}

func TestProgressRedrawsOnATerminalAndPrintsOneLineAStepElsewhere(t *testing.T) {
	show := func(width int) string {
		var out bytes.Buffer
		p := &Progress{out: &out, last: -1, width: func() int { return width }}
		p.Show(Status{Steps: 2, Left: -1})
		p.Show(Status{Steps: 2, Left: -1, Note: "x"})
		if n, err := p.Write([]byte("log\n")); n != 4 || err != nil {
			t.Errorf("Write: %d, %v", n, err)
		}
		p.Show(Status{Step: 1, Steps: 2})
		p.Done()
		p.Write([]byte("end\n"))
		return out.String()
	}
	want := "step 0/2  reward 0.000  0 tok/s  left –\nlog\nstep 1/2  reward 0.000  0 tok/s  left 0s\nend\n"
	if got := show(0); got != want {
		t.Errorf("plain:\n got %q\nwant %q", got, want)
	}
	want = eraseLine + "step 0/2…" + eraseLine + "step 0/2…" + eraseLine + "log\nstep 0/2…" + eraseLine + "step 1/2…\nend\n"
	if got := show(10); got != want {
		t.Errorf("terminal:\n got %q\nwant %q", got, want)
	}
}

func TestAFileIsNoTerminal(t *testing.T) {
	p := NewProgress(openRun(t).lock)
	if width := p.width(); width != 0 {
		t.Errorf("a file has width %d, want 0", width)
	}
}
