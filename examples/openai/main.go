// Command openai trains an agent that owns its loop and calls the model with OpenAI's official Go SDK.
//
//	cd examples && go run ./openai -config openai/run.toml
//
// It shows that nothing in such an agent is about training: it gets an address and a key, and the calls it makes there
// are what is trained on. An agent that exists needs a Run method that starts it and says what its result is worth.
//
// The agent here answers a question and then looks at its answer again. One sees the mean reward of each step, and the
// share of right answers before and after. `make quickstart` fetches the model and has the same tasks.
package main

import (
	"context"
	"errors"
	"log"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/molt-go/molt"
	"github.com/molt-go/molt/rollout/agent"
	"github.com/molt-go/molt/rollout/agent/grade"
)

// careful answers twice. Its methods are of no use to several rollouts at once; molt makes one for each.
type careful struct {
	client   openai.Client
	model    string
	messages []openai.ChatCompletionMessageParamUnion
}

// say adds what the user says and the model's reply to the conversation.
func (a *careful) say(ctx context.Context, text string) (string, error) {
	a.messages = append(a.messages, openai.UserMessage(text))
	completion, err := a.client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: a.model, Messages: a.messages})
	if err != nil {
		return "", err
	}
	if len(completion.Choices) == 0 {
		return "", errors.New("a completion without a choice")
	}
	a.messages = append(a.messages, completion.Choices[0].Message.ToParam())
	return completion.Choices[0].Message.Content, nil
}

// answer is the agent.
func (a *careful) answer(ctx context.Context, question string) (string, error) {
	if _, err := a.say(ctx, question); err != nil {
		return "", err
	}
	return a.say(ctx, "Check that. Which number is it? Reply with the number only.")
}

// Run is all that training adds. A Result without a Score is shown with its Reward.
func (a *careful) Run(ctx context.Context, c *agent.ChatContext) (agent.Result, error) {
	a.client = openai.NewClient(option.WithBaseURL(c.BaseURL), option.WithAPIKey(c.APIKey))
	a.model = c.Model
	reply, err := a.answer(ctx, c.Task.Messages[0].Content)
	if err != nil {
		return agent.Result{}, err
	}
	reward, err := right(ctx, c.Task, reply)
	return agent.Result{Reward: reward}, err
}

// right gives 1 for a reply with one number, the one that was asked for, else 0.
var right grade.Grader

func main() {
	var err error
	if right, err = grade.Regexp(`^\D*(\d+)\D*$`); err != nil {
		log.Fatal(err)
	}
	if err := agent.RegisterChatAgent("careful", func() agent.ChatAgent { return &careful{} }); err != nil {
		log.Fatal(err)
	}
	molt.Main()
}
