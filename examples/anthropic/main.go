// Command anthropic trains an agent that calls the model with Anthropic's official Go SDK: it lets the model guess a number.
//
//	cd examples && go run ./anthropic -config anthropic/run.toml
//
// It shows an agent that owns its loop, and rewards along the way to an answer. The SDK streams, retries and keeps the
// conversation as it does with any other model; a temperature, tools or a system prompt would be asked for in the same
// way. The tokens of every guess are trained on, those of the hints are not.
//
// One sees the mean reward of each step, and the share of held-out numbers found before and after. `make quickstart`,
// once, fetches the model that the configuration names.
package main

import (
	"context"
	"fmt"
	"log"
	"regexp"
	"strconv"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"github.com/molt-go/molt"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent"
)

const (
	most    = 30 // numbers run from 1 to this
	guesses = 5
)

// host knows the number and tells the model whether it is higher or lower.
type host struct{}

var number = regexp.MustCompile(`\d+`)

func (host) Run(ctx context.Context, c *agent.ChatContext) (agent.Result, error) {
	client := anthropic.NewClient(option.WithBaseURL(strings.TrimSuffix(c.BaseURL, "/v1")), option.WithAPIKey(c.APIKey))
	secret, err := strconv.Atoi(c.Task.Answer)
	if err != nil {
		return agent.Result{}, err
	}
	talk := []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(c.Task.Messages[0].Content))}
	nearest := most
	for turn := range guesses {
		reply, err := client.Messages.New(ctx, anthropic.MessageNewParams{Model: c.Model, MaxTokens: 8, Messages: talk})
		if err != nil {
			return agent.Result{}, err
		}
		guess, _ := strconv.Atoi(number.FindString(reply.Content[0].Text)) // 0 where there is none
		hint := "Higher. Your next guess?"
		if guess > secret {
			hint = "Lower. Your next guess?"
		}
		nearest = min(nearest, max(guess-secret, secret-guess))
		if guess == secret {
			found := 1.0
			return agent.Result{Reward: 1 - 0.1*float64(turn), Score: &found}, nil // soon is better than late
		}
		talk = append(talk, reply.ToParam(), anthropic.NewUserMessage(anthropic.NewTextBlock(hint)))
	}
	lost := 0.0
	return agent.Result{Reward: 0.3 * float64(most-nearest) / most, Score: &lost}, nil
}

// numbers are all numbers; every fourth is held out.
func numbers(rollout.DataConfig) (train, held rollout.Source, err error) {
	var lists [2][]rollout.Task
	for n := 1; n <= most; n++ {
		text := fmt.Sprintf("I think of a number from 1 to %d. Guess it. Reply with one number only; I say whether mine is higher or lower.", most)
		task := rollout.Task{ID: fmt.Sprint(n), Messages: agent.User(text), Answer: fmt.Sprint(n)}
		isHeld := n % 4 / 3
		lists[isHeld] = append(lists[isHeld], task)
	}
	return rollout.Tasks{List: lists[0], Name: "numbers"}, rollout.Tasks{List: lists[1], Name: "numbers, held out"}, nil
}

func main() {
	if err := rollout.RegisterSource("numbers", numbers); err != nil {
		log.Fatal(err)
	}
	if err := agent.RegisterChatAgent("host", func() agent.ChatAgent { return host{} }); err != nil {
		log.Fatal(err)
	}
	molt.Main()
}
