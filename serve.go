package molt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/molt-go/molt/rollout"
)

const serveFormat = `  POST /v1/completions   continues token ids or text, in the dialect of vLLM
  POST /v1/load          {"version": 7, "path": "DIR"}: new weights, from a Hugging Face folder or a .gguf file; running requests go on
  GET  /metrics (Prometheus), /health (200 once there are weights)

  curl http://127.0.0.1:8000/v1/completions -d '{"prompt": [1, 4093, 198], "max_tokens": 4, "logprobs": 0, "return_token_ids": true}'

prompt is a list of ids or a text, or a list of those. Other keys, with their defaults: max_tokens 16, temperature 1 (0 is greedy), top_p,
top_k, min_p, repetition_penalty, logit_bias, seed (else random), n 1, stop, stop_token_ids, ignore_eos, logprobs, return_token_ids,
skip_special_tokens true, stream, stream_options, model (of any name, which the answer repeats); one that is not known is an error.
max_tokens is cut to the room that the context leaves. Choices are as vLLM gives them, with policy_versions, one a token. token_ids are
all that were generated, text ends before what stopped it; finish_reason is also "abort", when the server was stopped. Log-probs are those
at the request's temperature, at 1 when greedy, before anything was cut off. Sample i > 0 of n has a seed made of the request's and i. A
stream has a chunk a token, but with logprobs above 0 one a choice.`

func serveVerb(ctx context.Context, o options, _ server) error {
	g, err := newGenerator(o)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.addr)
	if err != nil {
		return fmt.Errorf("-addr: %w; port 0 takes a free one", err)
	}
	return together(ctx, g.engine.Run, func(ctx context.Context) error {
		e := &endpoints{generator: g, stopping: ctx}
		s := &http.Server{Handler: e.handler(), ReadHeaderTimeout: 10 * time.Second}
		s.BaseContext = func(net.Listener) context.Context { return ctx }
		served := make(chan error, 1)
		go func() { served <- s.Serve(listener) }()
		err := g.engine.LoadFile(ctx, 0, o.model)
		if err == nil {
			e.loaded.Store(true)
			fmt.Fprintf(o.log, "molt: serving %s at http://%s\n", o.model, listener.Addr())
			select {
			case <-ctx.Done():
			case err = <-served:
			}
		}
		if ctx.Err() != nil { // to be stopped is how serving ends; if the engine failed, together says so
			err = nil
		}
		wait, cancel := context.WithTimeout(context.Background(), 3*time.Second) // for clients to take their answers
		defer cancel()
		if s.Shutdown(wait) != nil {
			_ = s.Close()
		}
		return err
	})
}

// endpoints answer HTTP requests by a generator.
type endpoints struct {
	*generator
	stopping context.Context // ends when the server is stopped or the engine has failed
	loaded   atomic.Bool
}

// refusal is an error with a status of its own.
type refusal struct {
	status int
	error
}

func bad(format string, args ...any) error {
	return refusal{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

func (e *endpoints) handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, answer := range map[string]func(http.ResponseWriter, *http.Request) (any, error){ // nil: it has written its answer
		"POST /v1/completions": e.complete, "POST /v1/load": e.load, "GET /health": e.health, "GET /metrics": e.metrics, "/": unknown,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if value, err := answer(w, r); value != nil || err != nil {
				status, text := e.encode(value, err)
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				_, _ = w.Write(text) // or the client is gone
			}
		})
	}
	return mux
}

func unknown(_ http.ResponseWriter, r *http.Request) (any, error) {
	return nil, refusal{http.StatusNotFound, fmt.Errorf("there is no %s %s; molt serve -h lists what there is", r.Method, r.URL.Path)}
}

// encode is value as JSON, or err in OpenAI's form, with the names of vLLM.
func (e *endpoints) encode(value any, err error) (status int, text []byte) {
	if err == nil {
		if text, err = encode(value); err == nil {
			return http.StatusOK, text
		}
	}
	status = http.StatusInternalServerError
	if r := (refusal{}); errors.As(err, &r) {
		status = r.status
	} else if errors.Is(err, rollout.ErrDead) || e.stopping.Err() != nil {
		status = http.StatusServiceUnavailable
	}
	kind := strings.TrimSuffix(strings.ReplaceAll(http.StatusText(status), " ", ""), "Error") + "Error"
	text, _ = encode(map[string]any{"error": map[string]any{"message": err.Error(), "type": kind, "code": status}}) // cannot fail
	return status, text
}

// read takes a body whose values go where known says.
func read(w http.ResponseWriter, r *http.Request, known map[string]any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxLine))
	if errors.As(err, new(*http.MaxBytesError)) {
		return refusal{http.StatusRequestEntityTooLarge, fmt.Errorf("the body is larger than %d MB", maxLine>>20)}
	}
	var others map[string]any
	if err == nil {
		others, err = decodeObject(body, known)
	}
	if err = cmp.Or(err, unknownKey(others, known)); err != nil {
		err = refusal{http.StatusBadRequest, err}
	}
	return err
}

func (e *endpoints) health(http.ResponseWriter, *http.Request) (any, error) {
	if e.loaded.Load() && e.stopping.Err() == nil {
		return map[string]any{"status": "ok"}, nil
	}
	return nil, refusal{http.StatusServiceUnavailable, errors.New("there are no weights yet, or the server is stopping")}
}

func (e *endpoints) load(w http.ResponseWriter, r *http.Request) (any, error) {
	version, path := int32(-1), ""
	if err := read(w, r, map[string]any{"version": &version, "path": &path}); err != nil {
		return nil, err
	}
	if version < 0 || path == "" {
		return nil, bad("version must be there, from 0 on, and path, a Hugging Face folder or a .gguf file")
	}
	err := e.engine.LoadFile(r.Context(), version, path)
	if err != nil && !errors.Is(err, rollout.ErrDead) {
		err = refusal{http.StatusBadRequest, err}
	}
	return map[string]any{"version": version}, err
}

// metrics are in Prometheus' text format.
func (e *endpoints) metrics(w http.ResponseWriter, _ *http.Request) (any, error) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	s := e.engine.Stats()
	for _, m := range []struct {
		name, kind, help string
		value            int64
	}{
		{"steps_total", "counter", "Steps of the engine.", s.Steps},
		{"generated_tokens_total", "counter", "Tokens generated.", s.Generated},
		{"prefill_tokens_total", "counter", "Tokens of prompts, and of what was recomputed, that went through the model.", s.PrefillRows},
		{"prefix_hit_tokens_total", "counter", "Tokens that did not have to, as they were in the cache.", s.PrefixHits},
		{"preemptions_total", "counter", "Sequences that gave way to older ones.", s.Preemptions},
		{"running", "gauge", "Sequences that are generated now.", int64(s.Running)},
		{"waiting", "gauge", "Sequences that wait for their turn.", int64(s.Waiting)},
		{"free_pages", "gauge", "Pages of the cache without those of prefixes that are kept.", int64(s.FreePages)},
		{"pages", "gauge", "Pages of the cache.", int64(s.Pages)},
		{"policy_version", "gauge", "Version of the weights; -1 before the first.", int64(s.Version)},
	} {
		fmt.Fprintf(w, "# HELP molt_%s %s\n# TYPE molt_%[1]s %[3]s\nmolt_%[1]s %[4]d\n", m.name, m.help, m.kind, m.value)
	}
	return nil, nil
}
