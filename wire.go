package molt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent"
	"github.com/molt-go/molt/rollout/agent/grade"
	"github.com/molt-go/molt/rollout/engine"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
	"github.com/molt-go/molt/trainer"
)

// Run runs what cfg says until it is done or ctx ends, writing progress to out. To embed a run in a service, call it with a
// context of your own.
func Run(ctx context.Context, cfg Config, out *os.File) error {
	if err := agent.RegisterSources(); err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := torch.Load(); err != nil {
		return err
	}
	path, err := expand(cfg.Model.Path)
	if err != nil {
		return err
	}
	reference, err := expand(cfg.Model.Reference)
	if err != nil {
		return err
	}
	train, held, err := rollout.OpenData(cfg.Data)
	if err != nil {
		return err
	}
	shape, err := model.PeekConfig(path)
	if err != nil {
		return err
	}
	text := openText(path, shape.Vision)
	if text.noChat != nil {
		return text.noChat
	}
	chat := text.chat
	dtype, err := torch.ParseDType(cfg.Model.DType)
	if err != nil {
		return err
	}
	cores := &shares{all: runtime.GOMAXPROCS(0)} // which knows the quota of a container
	cores.train, cores.generate = cfg.Async.Threads(cores.all)
	if cfg.Async.TrainThreads > 0 && cfg.Async.EngineThreads > 0 {
		cores.all = cores.train + cores.generate
	}
	eng, err := engine.New(cfg.Engine, shape, dtype, cores.generate)
	if err != nil {
		return err
	}
	cores.engine = eng
	self := grade.Generator(eng, chat, rollout.Sampling{MaxTokens: 512})
	found, err := cfg.Agent.Open(filepath.Join(cfg.Log.Dir, cfg.Name, "agent.log"), self)
	if err != nil {
		return err
	}
	window := min(shape.Context, cfg.Optim.MicroTokens+1) // a longer rollout could not be trained on
	if cfg.Engine.Context > 0 {
		window = min(window, cfg.Engine.Context)
	}
	var runner rollout.Runner
	if found.Chat != nil {
		server, err := agent.NewServer(chat, eng, agent.ServerConfig{Context: window, Template: cfg.Agent.Template, Images: text.images,
			Sampling: cfg.Rollout.ClientSampling})
		if err != nil {
			return err
		}
		defer server.Close()
		if runner, err = agent.NewChatRunner(server, found.Chat); err != nil {
			return err
		}
	} else {
		episode := agent.EnvConfig{MaxTurns: cfg.Rollout.MaxTurns, Context: window, Template: cfg.Agent.Template,
			Images: text.images}
		if runner, err = agent.NewEnvRunner(chat, eng, episode, found.Env); err != nil {
			return err
		}
	}
	t, err := trainer.New(cfg.Config, trainer.Parts{
		Model: path, Reference: reference, DType: dtype, Rollout: cfg.Rollout, Data: cfg.Data, Train: train, Held: held,
		Runner: runner, Generator: eng, Sink: eng, Context: window,
		Share: cores.share, Decode: chat.Decode, SaveText: func(dir string) error { return multimodal.SaveText(path, dir) },
		Console: trainer.NewProgress(out), Resume: cfg.Resume,
	})
	if err != nil {
		return err
	}
	return together(ctx, eng.Run, t.Run)
}

// together runs the engine for as long as the trainer runs. The engine outlives ctx until the trainer has saved its state; if it
// fails, the trainer is stopped and its cause is the error.
func together(ctx context.Context, engine, train func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	engineCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() {
		err := engine(engineCtx)
		if err != nil {
			cancel(err)
		}
		done <- err
	}()
	err := train(ctx)
	stop()
	failed := <-done
	if failed == nil || errors.Is(err, failed) {
		return err
	}
	if errors.Is(err, context.Canceled) { // the trainer was only stopped
		return failed
	}
	return errors.Join(failed, err)
}

// shares divides the cores between trainer and engine: each has its own, and whoever the other waits for has all.
type shares struct {
	all, train, generate int
	engine               *engine.Engine
	waiting              atomic.Bool
}

// share is told whether the trainer waits, and says how many cores it may use now.
func (c *shares) share(waiting bool) int {
	if c.waiting.Swap(waiting) != waiting {
		n := c.generate
		if waiting {
			n = c.all
		}
		c.engine.SetThreads(n)
	}
	if s := c.engine.Stats(); s.Running+s.Waiting == 0 {
		return c.all
	}
	return c.train
}
