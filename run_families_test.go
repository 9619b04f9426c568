package molt

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
)

// A step may leave experts without a token, and hence without a gradient.
func TestEveryFamilyTrainsAsItsEngineGeneratesAndResumes(t *testing.T) {
	models, _ := filepath.Glob("testdata/reference/models/*")
	if len(models) == 0 {
		t.Fatal("no reference models")
	}
	for _, path := range models {
		config := func() Config {
			c := tinyConfig(t.TempDir())
			c.Model.Path, c.Steps, c.Eval.Tasks, c.Model.DType, c.Optim.Recompute = path, 4, 0, "bfloat16", true
			return c
		}
		whole, halves := config(), config()
		halves.Steps = 2
		if err := errors.Join(runTiny(context.Background(), whole, nil), runTiny(context.Background(), halves, nil)); err != nil {
			t.Fatal(path, err)
		}
		halves.Steps, halves.Resume = 4, true
		if err := runTiny(context.Background(), halves, nil); err != nil {
			t.Fatal(path, err)
		}
		if digest(t, whole, 4) != digest(t, halves, 4) {
			t.Errorf("%s: weights or optimizer state differ after a resume", path)
		}
		steps, _ := rows(t, whole)
		for _, row := range steps {
			if row["logprob_diff_max"] != 0 || row["logprob_diff_tokens"] == 0 || !(row["grad_norm"] > 0) {
				t.Errorf("%s: engine and trainer differ, or nothing is learned: %v", path, row)
			}
		}
	}
}
