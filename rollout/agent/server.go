package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

const (
	modelName = "policy"
	maxBody   = 32 << 20 // bytes of a request
	maxError  = 1000     // bytes of what is said about one
)

// ServerConfig says how a Server answers.
type ServerConfig struct {
	Context  int                        // positions that the model has
	Template map[string]any             // variables for the chat template
	Images   *multimodal.ImageProcessor // nil: the model reads only text
	// Sampling says what becomes of a request's own temperature, top_p, top_k and logit_bias. "honour": they hold, and tokens that are then
	// not drawn from the model's own distribution are not trained on. "override": the run's hold. "refuse": others than the run's are an
	// error.
	Sampling string
}

// Server answers the model calls of agents in the dialects of OpenAI's and Anthropic's APIs, on a free port of the loopback interface. A
// token opens the session of one rollout and no other, for as long as that runs; time limits are the rollout's. What ends a request ends
// its generation.
type Server struct {
	chat   *multimodal.Chat
	gen    rollout.Generator
	config ServerConfig
	opened bool // the template opens a reply within its thoughts
	url    string
	http   http.Server

	mu     sync.Mutex
	visits map[digest]*visit // by the digest of the token: how long it takes to look one up says nothing of how much of it was right
}

// NewServer starts a server.
func NewServer(chat *multimodal.Chat, gen rollout.Generator, c ServerConfig) (*Server, error) {
	if chat == nil || gen == nil || c.Context < 1 {
		return nil, fmt.Errorf("agent: a server needs a chat, a generator and a context of at least 1 token, not %d", c.Context)
	}
	if !slices.Contains([]string{"honour", "override", "refuse"}, c.Sampling) {
		return nil, fmt.Errorf(`client_sampling = %q is not known; there are "honour", "override" and "refuse"`, c.Sampling)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	s := &Server{chat: chat, gen: gen, config: c, url: "http://" + listener.Addr().String(), visits: map[digest]*visit{}}
	prompt, err := chat.Render(User("?"), multimodal.RenderOptions{AddGenerationPrompt: true, Extra: c.Template})
	s.opened = err == nil && strings.HasSuffix(strings.TrimSpace(prompt), openThought)
	mux := http.NewServeMux()
	for path, speak := range map[string]func(*ask) dialect{
		"chat/completions": func(q *ask) dialect { return &completions{ask: q} },
		"completions":      func(q *ask) dialect { return &completions{ask: q, text: true} },
		"responses":        func(q *ask) dialect { return &responses{ask: q} },
		"messages":         func(q *ask) dialect { return &messages{ask: q} },
	} {
		mux.HandleFunc("POST /v1/"+path, s.answer(s.serve(speak)))
	}
	mux.HandleFunc("POST /v1/messages/count_tokens", s.answer(s.countTokens))
	mux.HandleFunc("GET /v1/models", s.answer(func(_ *visit, w http.ResponseWriter, _ *http.Request) error {
		return send(w, "", map[string]any{"object": "list", "data": []any{model(modelName)}, "has_more": false, "first_id": modelName,
			"last_id": modelName})
	}))
	mux.HandleFunc("GET /v1/models/{id}", s.answer(func(_ *visit, w http.ResponseWriter, r *http.Request) error {
		return send(w, "", model(r.PathValue("id")))
	}))
	mux.HandleFunc("/", s.answer(func(_ *visit, _ http.ResponseWriter, r *http.Request) error {
		return fmt.Errorf("%w %s %.200s", errPath, r.Method, r.RequestURI)
	}))
	versioned := func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/v1/") { // some clients put no version behind the base URL
			r.URL.Path = "/v1" + r.URL.Path
		}
		mux.ServeHTTP(w, r)
	}
	s.http = http.Server{Handler: http.HandlerFunc(versioned), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Minute,
		ErrorLog: log.New(io.Discard, "", 0)}
	go s.http.Serve(listener) // until Close
	return s, nil
}

// Close ends the server and all requests.
func (s *Server) Close() error { return s.http.Close() }

// model is what is said of a model, in OpenAI's form and in Anthropic's.
func model(id string) any {
	return map[string]any{"id": id, "object": "model", "created": 0, "owned_by": "molt", "type": "model", "display_name": id,
		"created_at": "1970-01-01T00:00:00Z"}
}

// visit is the session of one rollout at the server.
type visit struct {
	*Session
	spec  rollout.Spec
	token string
	ctx   context.Context // ends with the session
	close func() []*rollout.Trajectory

	mu        sync.Mutex
	asked     map[digest]uint64               // how often the same was asked
	responses map[string][]multimodal.Message // conversations by the id of the response that they end with
	items     map[string]responseItem         // of these, by their ids
	full, cut bool                            // the last call found no room; its reply reached its limit of tokens
	dead      error                           // of the generator
}

// open lets an agent in until the visit is closed. Its requests end with ctx.
func (s *Server) open(ctx context.Context, spec rollout.Spec) *visit {
	v := &visit{Session: NewSession(s.chat, s.gen, s.config.Images, s.config.Context), spec: spec, token: "molt-" + rand.Text(),
		asked: map[digest]uint64{}, responses: map[string][]multimodal.Message{}, items: map[string]responseItem{}}
	ctx, cancel := context.WithCancelCause(ctx)
	key := sha256.Sum256([]byte(v.token))
	v.ctx, v.close = ctx, func() []*rollout.Trajectory {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.visits, key)
		defer cancel(errKey)
		return v.Session.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visits[key] = v
	return v
}

// answer is f for those with a token, with a context that ends with the session, and its error in the vendor's form.
func (s *Server) answer(f func(*visit, http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := cmp.Or(s.visit(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")), s.visit(r.Header.Get("X-Api-Key")))
		err := errKey
		if v != nil {
			ctx, cancel := context.WithCancelCause(r.Context())
			defer cancel(nil)
			stop := context.AfterFunc(v.ctx, func() {
				cancel(context.Cause(v.ctx))
				past, control := time.Unix(1, 0), http.NewResponseController(w) // a client that neither sends nor reads must not stay
				_, _ = control.SetReadDeadline(past), control.SetWriteDeadline(past)
			})
			err = contain(func() error { return f(v, w, r.WithContext(ctx)) })
			if !stop() { // the deadlines, which may be yet to come, must not meet the connection's next request
				panic(http.ErrAbortHandler)
			}
		}
		if err != nil {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Second)) // of a body that the answer comes before
			status, form := failure(err, strings.HasPrefix(r.URL.Path, "/v1/messages") || r.Header.Get("Anthropic-Version") != "")
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_ = send(w, "", form) // or the client is gone
		}
	}
}

// visit is the session that a token opens, nil if none.
func (s *Server) visit(token string) *visit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.visits[sha256.Sum256([]byte(token))]
}

// crash is a panic.
type crash struct {
	value any
	stack []byte
}

func (c *crash) Error() string { return fmt.Sprintf("panic: %v\n%s", c.value, c.stack) }

// brief is what a client gets to read of an error: neither stack nor Go's types, and not all of its own request.
func brief(err error) error {
	text, c, wrong := err.Error(), (*crash)(nil), (*json.UnmarshalTypeError)(nil)
	if errors.As(err, &c) {
		text = fmt.Sprintf("panic: %v", c.value)
	} else if errors.As(err, &wrong) {
		field := strings.ToLower(wrong.Field[strings.LastIndex(wrong.Field, ".")+1:])
		text = strings.Replace(text, wrong.Error(), strings.TrimLeft(field+" cannot be a "+wrong.Value, " "), 1)
	}
	if len(text) > maxError {
		text = strings.ToValidUTF8(text[:maxError], "") + "…"
	}
	return errors.New(text)
}

// contain makes an error of a panic in f.
func contain(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &crash{v, debug.Stack()}
		}
	}()
	return f()
}

// key stands for a request; again says that it may have come before. seed is the same whenever the rollout is run, in whatever order its
// requests come; the next equal request has another one unless it names its own.
func (v *visit) key(r *http.Request, body []byte, named bool) (key digest, again bool, seed uint64) {
	once := r.Header.Get("Idempotency-Key")
	retry, _ := strconv.Atoi(r.Header.Get("X-Stainless-Retry-Count"))
	asked := sha256.Sum256(slices.Concat([]byte(r.URL.Path), body))
	v.mu.Lock()
	defer v.mu.Unlock()
	seed = rollout.MixSeed(v.spec.Seed, binary.LittleEndian.Uint64(asked[:]), v.asked[asked])
	if !named {
		v.asked[asked]++
	}
	return sha256.Sum256(append(asked[:], once...)), once != "" || retry > 0, seed
}

// call has the model reply and notes how that ended.
func (v *visit) call(ctx context.Context, c Call) (*Reply, error) {
	reply, err := v.Call(ctx, c)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.full, v.cut = errors.Is(err, ErrNoRoom), err == nil && reply.Finish == rollout.FinishLength; errors.Is(err, rollout.ErrDead) {
		v.dead = err
	}
	return reply, err
}

var (
	errKey   = errors.New("the API key opens no session: use the one that the agent was given, while its rollout runs")
	errPath  = errors.New("there is no")
	errLarge = fmt.Errorf("the body is larger than %d MB", maxBody>>20)
	errBad   = errors.New("the request cannot be met")
	// errThread has a client of Anthropic's threads send the whole conversation.
	errThread = errors.New("thread: no conversation is kept here: send all of its messages")
)

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errBad, fmt.Errorf(format, args...))
}

// failure is err's status and its form in OpenAI's API or in Anthropic's.
func failure(err error, anthropic bool) (status int, form any) {
	var code any
	status, kind := http.StatusInternalServerError, "server_error"
	for _, c := range []struct {
		err    error
		status int
		code   any
	}{{errKey, 401, "invalid_api_key"}, {errPath, 404, nil}, {errLarge, 413, nil}, {errBad, 400, nil}, {errPrompt, 400, nil},
		{errThread, 400, "thread_unsupported_request"}, {ErrNoRoom, 400, "context_length_exceeded"}, {rollout.ErrDead, 503, nil}} {
		if errors.Is(err, c.err) {
			status, code = c.status, c.code
		}
	}
	err = brief(err)
	if anthropic {
		kind = map[int]string{400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 413: "request_too_large",
			500: "api_error", 503: "overloaded_error"}[status]
		return status, map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": err.Error(),
			"details": map[string]any{"error_code": code}}}
	}
	if status < 500 {
		kind = "invalid_request_error"
	}
	return status, map[string]any{"error": map[string]any{"message": err.Error(), "type": kind, "param": nil, "code": code}}
}

// send writes an answer, or an event of a stream: "data" is one without a name.
func send(w http.ResponseWriter, event string, value any) error {
	format, kind := "%s", "application/json"
	if event != "" {
		format, kind = "data: %s\n\n", "text/event-stream"
	}
	if event != "" && event != "data" {
		format = "event: " + event + "\n" + format
	}
	text, ok := value.(json.RawMessage) // as it is
	if !ok {
		text, _ = json.Marshal(value) // of maps, texts and finite numbers: cannot fail
	}
	w.Header().Set("Content-Type", kind) // without effect once something was sent
	_, err := fmt.Fprintf(w, format, text)
	return errors.Join(err, http.NewResponseController(w).Flush())
}
