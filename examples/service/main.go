// Command service trains an agent that lives in an HTTP service, by the handler that serves the service's users.
//
//	cd examples && go run ./service -config service/run.toml -upstream http://127.0.0.1:8000/v1
//	curl -d 'Which is the largest of these numbers: 41, 87, 63?' http://127.0.0.1:8080/answer
//	curl -X POST http://127.0.0.1:8080/train
//
// It shows molt as a library: molt.Run is one call in a program that goes on with its own work. A question of a user goes to
// the model at -upstream, any server of OpenAI's API; in training the same handler gets another address, which is the only
// difference. The second request lasts as long as the training: when it is cancelled, the run saves its state and stops.
//
// One sees the progress in the service's log, and the new model in runs/service/checkpoints, for the upstream server to load.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/molt-go/molt"
	"github.com/molt-go/molt/rollout/agent"
	"github.com/molt-go/molt/rollout/agent/grade"
	"github.com/molt-go/molt/trainer"
)

// answerer is the handler with the agent.
type answerer struct{ baseURL, key, model string }

func (a answerer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	question, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<16))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	reply, err := a.ask(r.Context(), string(question)+" Reply with the number only.")
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	fmt.Fprint(w, reply)
}

func (a answerer) ask(ctx context.Context, text string) (string, error) {
	body, marshalErr := json.Marshal(map[string]any{"model": a.model, "messages": agent.User(text)})
	request, err := http.NewRequestWithContext(ctx, "POST", a.baseURL+"/chat/completions", bytes.NewReader(body))
	if err = errors.Join(marshalErr, err); err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+a.key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var c struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.NewDecoder(response.Body).Decode(&c); err != nil || len(c.Choices) == 0 {
		return "", errors.Join(fmt.Errorf("the model's server answers %s", response.Status), err)
	}
	return c.Choices[0].Message.Content, nil
}

// Run makes the handler a chat agent: in place of a user, a task asks.
func (a answerer) Run(ctx context.Context, c *agent.ChatContext) (agent.Result, error) {
	question, _, _ := strings.Cut(c.Task.Messages[0].Content, "?")
	recorder := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(ctx, "POST", "/answer", strings.NewReader(question+"?"))
	answerer{c.BaseURL, c.APIKey, c.Model}.ServeHTTP(recorder, request)
	if recorder.Code != http.StatusOK {
		return agent.Result{}, errors.New(recorder.Body.String())
	}
	reward, err := grade.Math(ctx, c.Task, recorder.Body.String())
	return agent.Result{Reward: reward}, err
}

func main() {
	config, upstream := flag.String("config", "service/run.toml", "how to train"), flag.String("upstream", "", "the model's `URL`, to /v1")
	flag.Parse()
	cfg := molt.DefaultConfig()
	register := agent.RegisterChatAgent("answerer", func() agent.ChatAgent { return answerer{} })
	if err := errors.Join(register, trainer.DecodeTOML(*config, nil, &cfg)); err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /answer", answerer{*upstream, "", "served"})
	http.HandleFunc("POST /train", func(w http.ResponseWriter, r *http.Request) {
		if err := molt.Run(r.Context(), cfg, os.Stdout); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil))
}
