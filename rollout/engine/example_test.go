package engine_test

import (
	"context"
	"fmt"
	"log"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/engine"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// An engine beside the owner of the weights, which here is a model read from a folder and in training the trainer.
func Example() {
	const path = "../../testdata/reference/models/llama_untied_gqa"
	config, err := model.PeekConfig(path)
	if err != nil {
		log.Fatal(err)
	}
	cfg := engine.DefaultConfig()
	cfg.CacheMB = 16
	e, err := engine.New(cfg, config, torch.Float32, 1)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- e.Run(ctx) }()

	if err := torch.Do(1, func(s *torch.Scope) error {
		m, err := model.Load(s, path, torch.Float32)
		if err != nil {
			return err
		}
		return e.Load(ctx, 1, m.Params())
	}); err != nil {
		log.Fatal(err)
	}
	c, err := e.Generate(ctx, rollout.Request{
		IDs:      []int32{12, 60, 7},
		Sampling: rollout.Sampling{MaxTokens: 4, IgnoreEOS: true}, // greedy
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range c.Tokens {
		fmt.Printf("%d (version %d) ", g.ID(), g.Version())
	}
	fmt.Println(c.Finish)

	stop()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output: 102 (version 1) 126 (version 1) 293 (version 1) 11 (version 1) length
}
