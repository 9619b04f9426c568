package trainer

import (
	"bufio"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func openRun(t *testing.T) *RunDir {
	t.Helper()
	d, err := OpenRunDir(t.TempDir(), "r")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func readRows(t *testing.T, d *RunDir) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.Path, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestMetricsAreOneObjectALineAndAResumeCutsWhatIsLater(t *testing.T) {
	d := openRun(t)
	write := func(keep int, rows ...map[string]float64) {
		t.Helper()
		m, err := d.OpenMetrics(keep)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		for _, row := range rows {
			if err := m.Write(row); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(0, map[string]float64{KeyStep: 0, KeyEvalScore: 0.25}, map[string]float64{KeyStep: 1, KeyLoss: -1e-7, "z \"q\"": 2, "a": 1},
		map[string]float64{KeyStep: 2}, map[string]float64{KeyStep: 3})
	want := "{\"step\":0,\"eval_score\":0.25}\n{\"step\":1,\"a\":1,\"loss\":-1e-7,\"z \\\"q\\\"\":2}\n"
	if got := readRows(t, d); got != want+"{\"step\":2}\n{\"step\":3}\n" {
		t.Errorf("got %s", got)
	}
	write(1, map[string]float64{KeyStep: 2, KeyLoss: 5})
	if got := readRows(t, d); got != want+"{\"step\":2,\"loss\":5}\n" {
		t.Errorf("resumed after step 1: got %s", got)
	}
	if err := os.WriteFile(filepath.Join(d.Path, "metrics.jsonl"), []byte("{\"step\":1}\n{\"step\":2,\"lo"), 0o644); err != nil {
		t.Fatal(err)
	}
	write(9)
	if got := readRows(t, d); got != "{\"step\":1}\n" {
		t.Errorf("an unfinished row stays: %s", got)
	}
	if _, err := d.OpenMetrics(-1); err == nil || readRows(t, d) != "{\"step\":1}\n" {
		t.Errorf("a new run over the rows of another: %v", err)
	}
	write(0)
	write(0, map[string]float64{KeyStep: 0})
	write(-1)
	if got := readRows(t, d); got != "" {
		t.Errorf("a fresh start keeps %s", got)
	}
}

func TestMetricsRefuseWhatIsNoNumberAndWriteNothing(t *testing.T) {
	d := openRun(t)
	m, err := d.OpenMetrics(0)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for want, row := range map[string]map[string]float64{
		"step 3: grad_norm is NaN":   {KeyStep: 3, KeyGradNorm: math.NaN()},
		"step 3: reward_mean is -In": {KeyStep: 3, KeyRewardMean: math.Inf(-1)},
		"a row without a step":       {KeyLoss: 1},
	} {
		if err := m.Write(row); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
	if got := readRows(t, d); got != "" {
		t.Errorf("wrote %s", got)
	}
	for _, text := range []string{"null\n", "{\"loss\":1}\n", "step\n"} {
		if err := os.WriteFile(filepath.Join(d.Path, "metrics.jsonl"), []byte("{\"step\":1}\n"+text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := d.OpenMetrics(5); err == nil || !strings.Contains(err.Error(), "line 2 is not a row with a step") {
			t.Errorf("%q: got error %v", text, err)
		}
	}
}

func TestAnUnwritableRunFolderIsAClearError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenRunDir(file, "r"); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "log.dir") {
		t.Errorf("got error %v, want one that names %s and the key", err, file)
	}
}

// TestHoldRunFolder is the other process of the next test, which sets the variable; alone it does nothing.
func TestHoldRunFolder(t *testing.T) {
	root := os.Getenv("MOLT_TEST_HOLD")
	if root == "" {
		return
	}
	if _, err := OpenRunDir(root, "r"); err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString("held\n")
	select {}
}

func TestTwoRunsCannotShareAFolderAndAKilledOneLeavesNoLock(t *testing.T) {
	root := t.TempDir()
	other := exec.Command(os.Args[0], "-test.run=^TestHoldRunFolder$")
	other.Env = append(os.Environ(), "MOLT_TEST_HOLD="+root)
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Process.Kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "held\n" {
		t.Fatalf("the other process: %q, %v", line, err)
	}
	if _, err := OpenRunDir(root, "r"); err == nil || !strings.Contains(err.Error(), "in use by process ") {
		t.Errorf("got error %v, want one that names the other process", err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	other.Wait()
	d, err := OpenRunDir(root, "r")
	if err != nil {
		t.Fatalf("after kill -9: %v", err)
	}
	d.Close()
	if d, err = OpenRunDir(root, "r"); err != nil {
		t.Fatalf("after Close: %v", err)
	}
	d.Close()
}
