package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/molt-go/molt"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent"
	"github.com/molt-go/molt/trainer"
)

// model answers every question alike, and notes what it was asked.
func model(t *testing.T, status int, reply string) (url string, asked *string) {
	asked = new(string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*asked = r.URL.Path + " " + r.Header.Get("Authorization") + " " + string(body)
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"choices": [{"message": {"content": %q}}]}`, reply)
	}))
	t.Cleanup(s.Close)
	return s.URL + "/v1", asked
}

func TestTrainingAsksTheModelWhatTheServiceAsks(t *testing.T) {
	const question = "Which is it: 41, 87, 63?"
	task := rollout.Task{Messages: agent.User(question + " Reply with the number only."), Answer: "87"}
	url, asked := model(t, 200, "87.")
	answer := httptest.NewRecorder()
	answerer{url, "k", "m"}.ServeHTTP(answer, httptest.NewRequest("POST", "/answer", strings.NewReader(question)))
	served := *asked
	result, err := answerer{}.Run(t.Context(), &agent.ChatContext{Task: task, BaseURL: url, APIKey: "k", Model: "m"})
	if err != nil || result.Reward != 1 || answer.Body.String() != "87." {
		t.Errorf("%+v, %v, answer %q", result, err, answer.Body)
	}
	want := `/v1/chat/completions Bearer k {"messages":[{"role":"user","content":"` + question + ` Reply with the number only."}],"model":"m"}`
	if *asked != served || *asked != want {
		t.Errorf("asked in service\n%s\nin training\n%s\nwant\n%s", served, *asked, want)
	}
}

// A model that fails is no wrong answer: the rollout does not count.
func TestAFailureOfTheModelIsAnError(t *testing.T) {
	url, _ := model(t, 200, "41")
	c := &agent.ChatContext{Task: rollout.Task{Messages: agent.User("?"), Answer: "87"}, BaseURL: url}
	if result, err := (answerer{}).Run(t.Context(), c); err != nil || result.Reward != 0 {
		t.Errorf("a wrong answer: %+v, %v", result, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (answerer{}).Run(ctx, c); err == nil {
		t.Error("no error")
	}
}

func TestTheConfigurationIsValid(t *testing.T) {
	cfg := molt.DefaultConfig()
	if err := trainer.DecodeTOML("run.toml", nil, &cfg); err != nil {
		t.Fatal(err)
	}
	if err := agent.RegisterChatAgent("answerer", func() agent.ChatAgent { return answerer{} }); err != nil {
		t.Fatal(err)
	}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}
