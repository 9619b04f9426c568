package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

// refitting loads the weights of version 0 without a pause from so many goroutines, as ever new versions, while f runs.
func refitting(t *testing.T, e *Engine, goroutines int, f func()) {
	t.Helper()
	do(t, func(s *torch.Scope) error {
		return weights(s, tiny, 0, func(m *model.Model) error {
			ctx, cancel := context.WithCancel(context.Background())
			var loads sync.WaitGroup
			for range goroutines {
				loads.Go(func() {
					for v := int32(0); ctx.Err() == nil; v++ {
						if err := e.Load(ctx, v, m.Params()); err != nil && !errors.Is(err, context.Canceled) {
							t.Error(err)
							return
						}
					}
				})
			}
			f()
			cancel()
			loads.Wait()
			return nil
		})
	})
}

func TestRefitsWithoutAPauseNeitherStopRequestsNorChangeTokens(t *testing.T) {
	for _, kv := range []string{RefitRecompute, RefitKeep} {
		cfg := tinyConfig()
		cfg.RefitKV, cfg.MaxRunning, cfg.StepTokens = kv, 8, 16
		requests := make([]rollout.Request, 8)
		for i := range requests {
			requests[i] = request(slices.Concat(count(60, 1), count(20+9*i, i)), 5+(i%3)*10, 1, uint64(i))
		}
		calm := start(t, tiny, cfg, torch.Float32, 0)
		var want []rollout.Completion
		for _, r := range requests {
			want = append(want, generate(t, calm, r))
		}
		e := idle(t, tiny, cfg, torch.Float32, 12)
		run(t, e)
		refitting(t, e, 3, func() {
			var wg sync.WaitGroup
			for i, r := range requests {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					c, err := e.Generate(ctx, r)
					if err = errors.Join(err, same(want[i], c)); err != nil {
						t.Errorf("%s: request %d: %v", kv, i, err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// broken is a folder with the tiny model's files, whose weights have other signs, as change leaves them.
func broken(t *testing.T, change func(weights []byte) []byte) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "model.safetensors")
	err := os.CopyFS(dir, os.DirFS(path(tiny)))
	data, e := os.ReadFile(file)
	if err = errors.Join(err, e); err != nil {
		t.Fatal(err)
	}
	for i := 8 + int(binary.LittleEndian.Uint64(data)) + 3; i < len(data); i += 4 {
		data[i] ^= 0x80
	}
	if err = os.WriteFile(file, change(data), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAFileThatDoesNotFitChangesNoWeight(t *testing.T) {
	e := start(t, tiny, tinyConfig(), torch.Float32, 0)
	r := request(count(9, 0), 5, 0, 0)
	before := generate(t, e, r)
	replace := func(old, new string) func([]byte) []byte {
		return func(b []byte) []byte {
			if len(old) != len(new) || bytes.Count(b, []byte(old)) != 1 {
				t.Fatalf("%q is not there once", old)
			}
			return bytes.Replace(b, []byte(old), []byte(new), 1)
		}
	}
	for want, change := range map[string]func([]byte) []byte{
		"is the file cut off?":  func(b []byte) []byte { return b[:len(b)-1] },
		"the header is cut off": func(b []byte) []byte { return b[:len(b)/500] },
		"model.norm.weight must be [64], not [32 2]": replace(`[64],"data_offsets":[570880,571136]}}  `,
			`[32,2],"data_offsets":[570880,571136]}}`),
	} {
		if err := e.LoadFile(context.Background(), 1, broken(t, change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		after := generate(t, e, r)
		if err := same(before, after); err != nil || after.Tokens[0].Version() != 0 {
			t.Errorf("%s: the old version serves something else: %v", want, err)
		}
	}
	if err := e.LoadFile(context.Background(), 1, broken(t, func(b []byte) []byte { return b })); err != nil || same(before, generate(t, e, r)) == nil {
		t.Error("other weights are the same:", err)
	}
}
