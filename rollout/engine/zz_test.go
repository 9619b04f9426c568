package engine

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

func TestZZ(t *testing.T) {
	p := os.Getenv("HOME") + "/.cache/molt/models/SmolLM2-135M-Instruct.Q4_1.gguf"
	c, err := model.PeekConfig(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dtypes {
		e, err := New(DefaultConfig(), c, d, 2)
		if err != nil {
			t.Fatal(err)
		}
		run(t, e)
		do(t, func(s *torch.Scope) error {
			m, err := model.Load(s, p, d)
			if err != nil {
				return err
			}
			if err := e.Load(context.Background(), 0, m.Params()); err != nil {
				return err
			}
			out := make([]rollout.Completion, 40)
			var wg sync.WaitGroup
			for i := range out {
				wg.Go(func() { out[i] = generate(t, e, request(count(10+i*7%90, i*100), 10+i, 1, uint64(i))) })
			}
			wg.Wait()
			n, bad := 0, 0
			for i, c := range out {
				lp, err := trainer(s, m, count(10+i*7%90, i*100), c, 1)
				if err != nil {
					return err
				}
				for j, g := range c.Tokens {
					n++
					if g.LogP() != lp[j] {
						bad++
					}
				}
			}
			fmt.Println(d, n, "tokens", bad, "differ")
			return nil
		})
	}
}
