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

// An engine with the weights of a folder; in training they come from the trainer, by Load.
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

	if err := e.LoadFile(ctx, 1, path); err != nil {
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
