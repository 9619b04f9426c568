package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/molt-go/molt/rollout"
)

// talker plays three turns in one of the dialects. What it says is its own, and so must be what it hears.
type talker struct {
	client *http.Client
	number int
}

// dialectOf gives the path, and how to write a conversation and to read a reply, in turn.
func dialectOf(n int) (path string, body func(turns []string) any, read func(answer object) string) {
	messages := func(turns []string) (list []any) {
		for i, text := range turns {
			list = append(list, object{"role": []string{"user", "assistant"}[i%2], "content": text})
		}
		return list
	}
	said := func(answer object, path ...any) string { s, _ := at(answer, path...).(string); return s }
	switch n % 4 {
	case 0:
		return "chat/completions", func(t []string) any { return object{"messages": messages(t)} },
			func(a object) string { return said(a, "choices", 0, "message", "content") }
	case 1:
		return "messages", func(t []string) any { return object{"messages": messages(t), "max_tokens": 40} },
			func(a object) string { return said(a, "content", 0, "text") }
	case 2:
		return "responses", func(t []string) any { return object{"input": messages(t)} },
			func(a object) string { return said(a, "output", 0, "content", 0, "text") }
	}
	return "completions", func(t []string) any { return object{"prompt": strings.Join(t, "|")} },
		func(a object) string { return said(a, "choices", 0, "text") }
}

// heard is what the model is to say to text, and the session's last words in it.
func heard(text string) string { return "re " + text }

func (a *talker) Run(ctx context.Context, c *ChatContext) (Result, error) {
	path, body, read := dialectOf(a.number)
	var turns []string
	for i := range 3 {
		turns = append(turns, fmt.Sprintf("n%d.%d", a.number, i))
		b, _ := json.Marshal(body(turns))
		r, err := http.NewRequestWithContext(ctx, "POST", c.BaseURL+"/"+path, bytes.NewReader(b))
		if err != nil {
			return Result{}, err
		}
		r.Header.Set("Authorization", "Bearer "+c.APIKey)
		response, err := a.client.Do(r)
		if err != nil {
			return Result{}, err
		}
		raw, err := io.ReadAll(response.Body)
		response.Body.Close()
		var answer object
		if err == nil {
			err = json.Unmarshal(raw, &answer)
		}
		if text := read(answer); err != nil || text != heard(turns[len(turns)-1]) {
			return Result{}, fmt.Errorf("%s: turn %d: %w: %s", path, i, err, raw)
		}
		turns = append(turns, read(answer))
	}
	return Result{Reward: float64(a.number)}, nil
}

// Two thousand rollouts at once, in four dialects: every one has its own tokens, all of them and no other's; and nothing is left of them.
func TestTwoThousandSessionsKeepTheirTokensApart(t *testing.T) {
	const sessions = 2000
	var running atomic.Int32
	full := make(chan struct{}) // closed when all are within their first call
	var together int32          // how many that must be
	gen := rollout.GeneratorFunc(func(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
		if running.Add(1) == together {
			close(full)
		}
		defer running.Add(-1)
		<-full
		var b []byte
		for _, id := range r.IDs {
			if id < 256 {
				b = append(b, byte(id))
			}
		}
		last := b[bytes.LastIndexByte(b, 'n'):] // "nNUMBER.TURN", then the template's words
		end := bytes.IndexFunc(last[1:], func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
		if end >= 0 {
			last = last[:1+end]
		}
		return script(heard(string(last))+"<|im_end|>", r).Generate(ctx, r)
	})
	template := strings.NewReplacer("<|im_start|>", "#", "assistant", "A").Replace(chatML)
	s := newStand(t, template, gen, ServerConfig{})
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: sessions}}
	defer client.CloseIdleConnections()
	var memory [2]uint64
	for wave, n := range []int{100, sessions} {
		full, together = make(chan struct{}), int32(n)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				run, err := NewChatRunner(s.Server, func() ChatAgent { return &talker{client, i} })
				if err != nil {
					t.Error(err)
					return
				}
				out, err := run.Run(t.Context(), rollout.Spec{ID: int64(i), Sampling: allRun})
				if err != nil {
					t.Error(err)
					return
				}
				var said []string
				for _, sample := range out.Samples {
					k := sample.Tokens()
					var ids []int32
					for j, id := range k.IDs {
						if k.Mask[j] {
							ids = append(ids, id)
						}
					}
					said = append(said, s.chat.Decode(ids))
				}
				var want strings.Builder
				for turn := range 3 {
					want.WriteString(heard(fmt.Sprintf("n%d.%d<|im_end|>", i, turn)))
				}
				if got := strings.Join(said, ""); got != want.String() || out.Reward != float64(i) {
					t.Errorf("session %d was trained on %q", i, got)
				}
			})
		}
		all.Wait()
		client.CloseIdleConnections()
		var m runtime.MemStats
		for wait := time.Now(); time.Since(wait) < 20*time.Second; time.Sleep(50 * time.Millisecond) { // for the server to see the hang-ups
			runtime.GC()
			runtime.ReadMemStats(&m)
			if memory[wave] = m.HeapAlloc; wave == 0 && runtime.NumGoroutine() < 20 || wave > 0 && memory[1] < memory[0]+8<<20 {
				break
			}
		}
		s.mu.Lock()
		if len(s.visits) != 1 { // the stand's own
			t.Errorf("%d sessions are left", len(s.visits)-1)
		}
		s.mu.Unlock()
	}
	// The runtime keeps about 2 KB of every goroutine that was; a session that stayed would be ten times that.
	if grown := int64(memory[1]) - int64(memory[0]); grown > 8<<20 {
		t.Errorf("they left %d MB", grown>>20)
	}
}
