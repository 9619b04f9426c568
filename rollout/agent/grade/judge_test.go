package grade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

func says(verdict string) Asker {
	return func(context.Context, string) (string, error) { return verdict, nil }
}

func TestJudgeReadsTheLastScore(t *testing.T) {
	for verdict, want := range map[string]float64{
		`{"score": 0.25}`: 0.25, "```json\n{\"score\" : 1, \"of\": 7}\n```": 1, `first {"score": 0}, then {"score": 0.75}.`: 0.75,
		"4 of 5 points: 0.8": 0.8, "I give it a 1.": 1, ".5": 0.5, `{"score": 5e-1}`: 0.5,
	} {
		g, err := Judge(says(verdict), "")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := g(t.Context(), rollout.Task{}, "reply"); got != want || err != nil {
			t.Errorf("%q: %v, %v, want %v", verdict, got, err, want)
		}
	}
}

func TestJudgeWithoutAScoreIsAnError(t *testing.T) {
	for _, verdict := range []string{"", "good", "8/10", `{"score": -0.5}`, `{"score": 2}, not 1`, `{"score": 1e999}`} {
		g, err := Judge(says(verdict), "")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := g(t.Context(), rollout.Task{}, "reply"); got != 0 || err == nil {
			t.Errorf("%q: %v, %v", verdict, got, err)
		}
	}
	down := errors.New("down")
	g, err := Judge(func(context.Context, string) (string, error) { return "1", down }, "")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := g(t.Context(), rollout.Task{}, "reply"); got != 0 || !errors.Is(err, down) {
		t.Errorf("a model that fails: %v, %v", got, err)
	}
	if _, err := Judge(nil, ""); err == nil {
		t.Error("a judge without a model is made")
	}
	if _, err := Judge(says("1"), "Is it good?"); err == nil {
		t.Error("a template without the reply is taken")
	}
}

func TestJudgeFillsTheTemplateInOnePass(t *testing.T) {
	var prompt string
	g, err := Judge(func(_ context.Context, p string) (string, error) { prompt = p; return "1", nil }, "{task}|{answer}|{reply}")
	if err != nil {
		t.Fatal(err)
	}
	task := rollout.Task{Answer: "{reply}", Messages: []multimodal.Message{{Role: "system", Content: "Be brief."}, {Role: "user", Content: "1+1?"}}}
	if _, err := g(t.Context(), task, "{answer}"); err != nil {
		t.Fatal(err)
	}
	if want := "system: Be brief.\n\nuser: 1+1?|{reply}|{answer}"; prompt != want {
		t.Errorf("prompt %q, want %q", prompt, want)
	}
}

// runes is a model whose tokens are characters, 0 the end of a turn.
type runes struct{}

func (runes) Prompt(msgs []multimodal.Message, opts multimodal.RenderOptions) ([]int32, error) {
	if len(msgs) != 1 || msgs[0].Role != "user" || !opts.AddGenerationPrompt {
		return nil, errors.New("not a user's message with the opening of a reply")
	}
	return []int32(msgs[0].Content), nil
}
func (runes) Decode(ids []int32) string { return string(ids) }
func (runes) StopIDs() []int32          { return []int32{0} }

func TestGeneratorAsksTheModelWithItsChatTemplate(t *testing.T) {
	var asked rollout.Request
	script := rollout.Script{Reply: func(r rollout.Request) ([]int32, []float32, error) {
		asked = r
		return append([]int32("score 0.5"), 0), nil, nil
	}}
	ask := Generator(script, runes{}, rollout.Sampling{MaxTokens: 99})
	if reply, err := ask(t.Context(), "x"); reply != "score 0.5" || err != nil {
		t.Errorf("the model said %q, %v", reply, err)
	}
	g, err := Judge(ask, "Grade: {reply}")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := g(t.Context(), rollout.Task{}, "héllo"); got != 0.5 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	if want := "Grade: héllo"; string(asked.IDs) != want || asked.Sampling.MaxTokens != 99 || !slices.Equal(asked.Sampling.StopIDs, []int32{0}) {
		t.Errorf("asked %q with %+v", string(asked.IDs), asked.Sampling)
	}
	down := errors.New("down")
	ask = Generator(rollout.Script{Reply: func(rollout.Request) ([]int32, []float32, error) { return nil, nil, down }}, runes{}, rollout.Sampling{})
	if reply, err := ask(t.Context(), "x"); !errors.Is(err, down) {
		t.Errorf("a generator that fails: %q, %v", reply, err)
	}
}

// server answers each request with the next of the statuses; 0 breaks the connection, 200 is a completion.
func server(t *testing.T, statuses ...int) (url string, bodies *[]map[string]any) {
	t.Helper()
	bodies = new([]map[string]any)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.URL.Path != "/v1/chat/completions" || r.Method != http.MethodPost {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		body["authorization"] = r.Header.Get("Authorization")
		*bodies = append(*bodies, body)
		status := statuses[min(len(*bodies), len(statuses))-1]
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
		if status == http.StatusOK {
			w.Write([]byte(`{"choices":[{"message":{"role":"assistant","content":"0.5"}}]}`))
		}
	}))
	t.Cleanup(func() {
		s.Close()
		http.DefaultClient.CloseIdleConnections()
		goleak.VerifyNone(t)
	})
	return s.URL + "/v1/", bodies
}

func TestEndpointSendsModelMessageKeyAndFurtherFields(t *testing.T) {
	url, bodies := server(t, 200)
	t.Setenv("JUDGE_KEY", "secret")
	e := Endpoint{BaseURL: url, Model: "judge", KeyEnv: "JUDGE_KEY", Body: map[string]any{"temperature": 0}}
	if reply, err := e.Ask(t.Context(), "hello"); reply != "0.5" || err != nil {
		t.Fatalf("%q, %v", reply, err)
	}
	want := []map[string]any{{"model": "judge", "temperature": 0., "authorization": "Bearer secret",
		"messages": []any{map[string]any{"role": "user", "content": "hello"}}}}
	if diff := cmp.Diff(want, *bodies); diff != "" {
		t.Error(diff)
	}
	t.Setenv("JUDGE_KEY", "")
	if _, err := e.Ask(t.Context(), "hello"); err == nil || !strings.Contains(err.Error(), "JUDGE_KEY") || len(*bodies) != 1 {
		t.Errorf("without the key: %v after %d requests", err, len(*bodies))
	}
}

func TestEndpointTriesAgainOnlyWhereTheServerOrConnectionFailed(t *testing.T) {
	for _, c := range []struct {
		statuses []int
		requests int
		ok       bool
	}{{[]int{503, 0, 200}, 3, true}, {[]int{400}, 1, false}, {[]int{429}, 1, false}, {[]int{500}, 4, false}, {[]int{204}, 1, false}} {
		t.Run(fmt.Sprint(c.statuses), func(t *testing.T) {
			url, bodies := server(t, c.statuses...)
			reply, err := Endpoint{BaseURL: url, Model: "m"}.Ask(t.Context(), "hello")
			if (err == nil) != c.ok || len(*bodies) != c.requests || c.ok && reply != "0.5" {
				t.Errorf("%q, %v after %d requests, want %d", reply, err, len(*bodies), c.requests)
			}
		})
	}
}

func TestEndpointEndsWithItsContext(t *testing.T) {
	url, bodies := server(t, 500)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := (Endpoint{BaseURL: url, Model: "m"}).Ask(ctx, "hello"); !errors.Is(err, context.DeadlineExceeded) || len(*bodies) > 1 {
		t.Errorf("%v after %d requests", err, len(*bodies))
	}
}
