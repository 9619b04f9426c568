//go:build soak

package molt

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/molt-go/molt/trainer"
)

// The quickstart as users run it, on three seeds: the held-out score rises by 0.3 or more, and engine and trainer agree at every step.
func TestSoakQuickstartLearnsOnThreeSeeds(t *testing.T) {
	for seed := range 3 {
		c := DefaultConfig()
		sets := []string{fmt.Sprintf("seed=%d", seed), fmt.Sprintf("data.seed=%d", seed), "log.dir=" + t.TempDir()}
		if err := trainer.DecodeTOML("configs/quickstart.toml", sets, &c); err != nil {
			t.Fatal(err)
		}
		if err := Run(context.Background(), c, os.Stderr); err != nil {
			t.Fatal(err)
		}
		steps, evals := rows(t, c)
		before, after := evals[0]["eval_score"], evals[len(evals)-1]["eval_score"]
		t.Logf("seed %d: held-out %v → %v, rewards %v", seed, before, after, column(steps, "reward_mean"))
		if after < before+0.3 {
			t.Errorf("seed %d: the held-out score went from %v to %v", seed, before, after)
		}
		for _, row := range steps {
			if row["logprob_diff_max"] >= 1e-4 || row["logprob_diff_tokens"] == 0 {
				t.Errorf("seed %d: engine and trainer differ: %v", seed, row)
			}
		}
	}
}
