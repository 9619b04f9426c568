// Package examples tests that every example is what its reader expects: small, and right as it stands.
package examples

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// programs are the folders that hold a main.go.
func programs(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*/main.go")
	if err != nil || len(files) < 6 {
		t.Fatalf("only %q, %v", files, err)
	}
	var names []string
	for _, f := range files {
		names = append(names, filepath.Dir(f))
	}
	return names
}

func TestAnExampleIsAtMost100LinesAndSaysHowToRunIt(t *testing.T) {
	for _, name := range programs(t) {
		code, err := os.ReadFile(filepath.Join(name, "main.go"))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(code, []byte("\n")); n > 100 {
			t.Errorf("%s: %d lines, at most 100", name, n)
		}
		doc, _, _ := strings.Cut(string(code), "\npackage main\n")
		if run := "cd examples && go run ./" + name; !strings.HasPrefix(doc, "// Command "+name) || !strings.Contains(doc, run) {
			t.Errorf("%s: its comment does not say %q", name, run)
		}
	}
}

// Each example comes as far as its model, which is not there: it builds, its file parses and is valid, and the agent and the tasks that
// the file names are registered.
func TestEachExampleRunsAsFarAsItsModel(t *testing.T) {
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, "./...").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range append(programs(t), "python") {
		program := name
		if name == "save" || name == "service" { // a tool without a file, and a service with a test of its own
			continue
		} else if name == "python" { // which molt itself runs
			program = "math"
		}
		run := exec.Command(filepath.Join(bin, program), "-config", filepath.Join("examples", name, "run.toml"), "-set", "model.path=/no/model")
		run.Dir = ".."
		out, err := run.CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "molt: ") || !strings.Contains(string(out), "/no/model") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
