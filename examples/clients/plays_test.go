package clients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

var schema = map[string]any{"type": "object", "properties": map[string]any{"a": map[string]any{"type": "integer"}}}

// asking is a request for a chat.
func asking(messages ...openai.ChatCompletionMessageParamUnion) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: "gpt", Messages: messages}
}

// offering is asking with tools.
func offering(messages ...openai.ChatCompletionMessageParamUnion) openai.ChatCompletionNewParams {
	p := asking(messages...)
	for _, name := range []string{"add", "sub"} {
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: name, Parameters: schema}))
	}
	return p
}

func chatTalk(ctx context.Context, o openai.Client, _ anthropic.Client) (saw []any, err error) {
	p := asking(openai.DeveloperMessage("be brief"), openai.UserMessage("a"))
	for turn := range 3 {
		p.Stop = openai.ChatCompletionNewParamsStopUnion{}
		if turn == 1 {
			p.Stop.OfStringArray = []string{"STOP", "HALT"}
		}
		r, err := o.Chat.Completions.New(ctx, p)
		if err != nil {
			return saw, err
		}
		m := r.Choices[0].Message
		saw = append(saw, m.Content)
		switch turn {
		case 0:
			saw = append(saw, r.Choices[0].FinishReason, r.Usage.TotalTokens-r.Usage.PromptTokens)
		case 1:
			saw = append(saw, r.Choices[0].FinishReason)
		case 2:
			saw = append(saw, m.JSON.ExtraFields["reasoning_content"].Raw())
		}
		p.Messages = append(p.Messages, m.ToParam(), openai.UserMessage("more"))
	}
	return saw, nil
}

func chatTools(ctx context.Context, o openai.Client, _ anthropic.Client) (saw []any, err error) {
	p := offering(openai.UserMessage("a"))
	for range 2 {
		r, err := o.Chat.Completions.New(ctx, p)
		if err != nil {
			return saw, err
		}
		m := r.Choices[0].Message
		p.Messages, saw = append(p.Messages, m.ToParam()), append(saw, m.Content)
		for _, c := range m.ToolCalls {
			saw = append(saw, c.Function.Name, c.Function.Arguments)
			p.Messages = append(p.Messages, openai.ToolMessage("3", c.ID))
		}
	}
	p.Messages = append(p.Messages, openai.UserMessage("b"))
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	stream, sum := o.Chat.Completions.NewStreaming(ctx, p), openai.ChatCompletionAccumulator{}
	for stream.Next() {
		if !sum.AddChunk(stream.Current()) {
			return saw, errors.New("a chunk does not fit")
		}
		if text, ok := sum.JustFinishedContent(); ok {
			saw = append(saw, text)
		}
		if c, ok := sum.JustFinishedToolCall(); ok { // of each
			saw = append(saw, sum.Choices[0].Message.Content, c.Name, c.Arguments)
		}
	}
	last := sum.Choices[0]
	return append(saw, last.FinishReason, len(last.Message.ToolCalls), sum.Usage.TotalTokens > sum.Usage.PromptTokens), stream.Err()
}

func chatChoice(ctx context.Context, o openai.Client, _ anthropic.Client) (saw []any, err error) {
	for _, choice := range []openai.ChatCompletionToolChoiceOptionUnionParam{{OfAuto: openai.String("required")},
		openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{Name: "sub"})} {
		p := offering(openai.UserMessage("a"))
		p.ToolChoice = choice
		r, err := o.Chat.Completions.New(ctx, p)
		if err != nil {
			return saw, err
		}
		for _, c := range r.Choices[0].Message.ToolCalls {
			saw = append(saw, c.Function.Name, c.Function.Arguments, r.Choices[0].FinishReason)
		}
	}
	return saw, nil
}

// chatOptions asks for n, log-probs and a seed.
func chatOptions(ctx context.Context, o openai.Client, _ anthropic.Client) (saw []any, err error) {
	p := asking(openai.UserMessage("a"))
	p.N, p.Logprobs, p.TopLogprobs = openai.Int(3), openai.Bool(true), openai.Int(2)
	r, err := o.Chat.Completions.New(ctx, p)
	if err != nil {
		return nil, err
	}
	probs := r.Choices[2].Logprobs.Content
	var same []string
	for range 2 {
		p = asking(openai.UserMessage("a"))
		p.Seed = openai.Int(7)
		again, err := o.Chat.Completions.New(ctx, p)
		if err != nil {
			return nil, err
		}
		same = append(same, again.Choices[0].Message.Content)
	}
	return []any{len(r.Choices), len(probs), len(probs[1].TopLogprobs), same[0] == same[1]}, nil
}

func completions(ctx context.Context, o openai.Client, _ anthropic.Client) ([]any, error) {
	p := openai.CompletionNewParams{Model: "gpt", MaxTokens: openai.Int(5), Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("once ")}}
	r, err := o.Completions.New(ctx, p)
	if err != nil {
		return nil, err
	}
	p.MaxTokens, p.Prompt.OfString = openai.Int(50), openai.String("once "+r.Choices[0].Text+", ")
	stream, text := o.Completions.NewStreaming(ctx, p), ""
	for stream.Next() {
		text += stream.Current().Choices[0].Text
	}
	models, err := o.Models.List(ctx)
	if err = errors.Join(err, stream.Err()); err != nil {
		return nil, err
	}
	return []any{r.Choices[0].Text, r.Choices[0].FinishReason, text, models.Data[0].ID}, nil
}

func respond(ctx context.Context, o openai.Client, _ anthropic.Client) (saw []any, err error) {
	p := responses.ResponseNewParams{Model: "gpt", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("a")}}
	for _, name := range []string{"add", "sub"} {
		p.Tools = append(p.Tools, responses.ToolParamOfFunction(name, schema, false))
	}
	r, err := o.Responses.New(ctx, p)
	if err != nil {
		return nil, err
	}
	for _, item := range r.Output {
		saw = append(saw, item.Type)
	}
	asked := r.Output[len(r.Output)-1].AsFunctionCall()
	saw = append(saw, r.OutputText(), asked.Name, asked.Arguments)
	result := responses.ResponseInputItemParamOfFunctionCallOutput("3")
	result.OfFunctionCallOutput.CallID = openai.String(asked.CallID)
	p.PreviousResponseID, p.Input = openai.String(r.ID), responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{result}}
	if r, err = o.Responses.New(ctx, p); err != nil {
		return saw, err
	}
	saw = append(saw, r.OutputText())
	p.PreviousResponseID, p.Input = openai.String(r.ID), responses.ResponseNewParamsInputUnion{OfString: openai.String("b")}
	stream, text := o.Responses.NewStreaming(ctx, p), ""
	for stream.Next() {
		e := stream.Current()
		if e.Type == "response.output_text.delta" {
			text += e.Delta
		}
		if e.Type == "response.completed" {
			saw = append(saw, text, e.Response.Status, e.Response.OutputText())
		}
	}
	p = responses.ResponseNewParams{Model: "gpt", Input: p.Input, Tools: p.Tools}
	p.ToolChoice.OfFunctionTool = &responses.ToolChoiceFunctionParam{Name: "sub"}
	r, err = o.Responses.New(ctx, p)
	if err = errors.Join(err, stream.Err()); err != nil {
		return saw, err
	}
	asked = r.Output[0].AsFunctionCall()
	return append(saw, asked.Name, asked.Arguments), nil
}

// writing is a request for a message.
func writing(messages ...anthropic.MessageParam) anthropic.MessageNewParams {
	return anthropic.MessageNewParams{Model: "any", MaxTokens: 190, Messages: messages}
}

func user(text string) anthropic.MessageParam {
	return anthropic.NewUserMessage(anthropic.NewTextBlock(text))
}

// streamed is the message that the events of a stream add up to.
func streamed(stream interface {
	Next() bool
	Current() anthropic.MessageStreamEventUnion
	Err() error
}) (m anthropic.Message, err error) {
	for stream.Next() {
		if err := m.Accumulate(stream.Current()); err != nil {
			return m, err
		}
	}
	return m, stream.Err()
}

func messages(ctx context.Context, _ openai.Client, a anthropic.Client) (saw []any, err error) {
	p := writing(user("a"))
	p.System = []anthropic.TextBlockParam{{Text: "be brief"}}
	counted, err := a.Messages.CountTokens(ctx, anthropic.MessageCountTokensParams{Model: "any", Messages: p.Messages,
		System: anthropic.MessageCountTokensParamsSystemUnion{OfTextBlockArray: p.System}})
	if err != nil {
		return nil, err
	}
	first, err := a.Messages.New(ctx, p)
	if err != nil {
		return nil, err
	}
	saw = append(saw, first.Content[0].Text, first.StopReason, first.Usage.OutputTokens)
	p.Messages, p.StopSequences = append(p.Messages, first.ToParam(), user("b")), []string{"STOP", "HALT"}
	second, err := a.Messages.New(ctx, p)
	if err != nil {
		return saw, err
	}
	saw = append(saw, second.Content[0].Text, second.StopReason, second.StopSequence)
	p.Messages, p.StopSequences = append(p.Messages, second.ToParam(), user("c")), nil
	third, err := streamed(a.Messages.NewStreaming(ctx, p))
	if err != nil {
		return saw, err
	}
	return append(saw, third.Content[0].Text, counted.InputTokens == first.Usage.InputTokens), nil
}

func messagesTools(ctx context.Context, _ openai.Client, a anthropic.Client) (saw []any, err error) {
	p := writing(user("a"))
	for _, name := range []string{"add", "sub"} {
		p.Tools = append(p.Tools, anthropic.ToolUnionParamOfTool(anthropic.ToolInputSchemaParam{Properties: schema["properties"]}, name))
	}
	p.Thinking = anthropic.ThinkingConfigParamOfEnabled(1024)
	r, err := a.Messages.New(ctx, p)
	if err != nil {
		return nil, err
	}
	use := r.Content[2]
	saw = append(saw, r.Content[0].Thinking, r.Content[1].Text, use.Name, string(use.Input), r.StopReason)
	p.Messages = append(p.Messages, r.ToParam(), anthropic.NewUserMessage(anthropic.NewToolResultBlock(use.ID, "3", false)))
	end, err := a.Messages.New(ctx, p)
	if err != nil {
		return saw, err
	}
	saw = append(saw, end.Content[0].Text)
	p.Messages = append(p.Messages, end.ToParam(), user("b"))
	last, err := streamed(a.Messages.NewStreaming(ctx, p))
	if err != nil {
		return saw, err
	}
	saw = append(saw, last.Content[0].Thinking, last.Content[1].Text, string(last.Content[2].Input), string(last.Content[3].Input), last.StopReason)
	p.Messages, p.ToolChoice = p.Messages[:1], anthropic.ToolChoiceParamOfTool("add")
	forced, err := a.Messages.New(ctx, p)
	if err != nil {
		return saw, err
	}
	return append(saw, forced.Content[0].Name, string(forced.Content[0].Input)), nil
}

// failures are the codes or types of errors, in the SDKs' own classes.
func failures(ctx context.Context, o openai.Client, a anthropic.Client) (saw []any, err error) {
	format := asking(openai.UserMessage("a"))
	format.ResponseFormat.OfJSONObject = &shared.ResponseFormatJSONObjectParam{}
	long := strings.Repeat("long ", 2000)
	for _, call := range []func() error{
		func() error { _, err := o.Chat.Completions.New(ctx, asking(), option.WithAPIKey("no")); return err },
		func() error { _, err := o.Chat.Completions.New(ctx, format); return err },
		func() error { _, err := o.Chat.Completions.New(ctx, asking(openai.UserMessage(long))); return err },
		func() error { _, err := o.Files.Get(ctx, "f"); return err },
	} {
		var e *openai.Error
		if err := call(); !errors.As(err, &e) {
			return saw, fmt.Errorf("no error of the SDK: %w", err)
		}
		saw = append(saw, e.Code)
	}
	bad := writing(user("a"))
	bad.StopSequences = []string{""}
	for _, call := range []func() error{
		func() error {
			_, err := a.Messages.New(ctx, writing(user("a")), anthropicoption.WithAPIKey("no"))
			return err
		},
		func() error { _, err := a.Messages.New(ctx, bad); return err },
		func() error { _, err := a.Messages.New(ctx, writing(user(long))); return err },
		func() error {
			_, err := a.Messages.Batches.Get(ctx, "b", anthropic.MessageBatchGetParams{})
			return err
		},
	} {
		var e *anthropic.Error
		if err := call(); !errors.As(err, &e) {
			return saw, fmt.Errorf("no error of the SDK: %w", err)
		}
		var form struct{ Error struct{ Type string } }
		if err := json.Unmarshal([]byte(e.RawJSON()), &form); err != nil {
			return saw, err
		}
		saw = append(saw, form.Error.Type)
	}
	return saw, nil
}

// together has 50 calls at once of each SDK.
func together(ctx context.Context, o openai.Client, a anthropic.Client) ([]any, error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	right, failed := 0, error(nil)
	for i := range 100 {
		all.Go(func() {
			number, said, err := fmt.Sprintf("%03d", i), "", error(nil)
			if i%2 == 0 {
				var r *openai.ChatCompletion
				if r, err = o.Chat.Completions.New(ctx, asking(openai.UserMessage("<"+number+">"))); err == nil {
					said = r.Choices[0].Message.Content
				}
			} else {
				var r *anthropic.Message
				if r, err = a.Messages.New(ctx, writing(user("<"+number+">"))); err == nil {
					said = r.Content[0].Text
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if failed = errors.Join(failed, err); said == number {
				right++
			}
		})
	}
	all.Wait()
	return []any{right}, failed
}

func chatOnce(ctx context.Context, o openai.Client, _ anthropic.Client) ([]any, error) {
	r, err := o.Chat.Completions.New(ctx, asking(openai.UserMessage("a")))
	if err != nil {
		return nil, err
	}
	return []any{r.Choices[0].Message.Content}, nil
}

func chatStream(ctx context.Context, o openai.Client, _ anthropic.Client) ([]any, error) {
	stream, text := o.Chat.Completions.NewStreaming(ctx, asking(openai.UserMessage("a"))), ""
	for stream.Next() {
		text += stream.Current().Choices[0].Delta.Content
	}
	return []any{text}, stream.Err()
}

func messagesOnce(ctx context.Context, _ openai.Client, a anthropic.Client) ([]any, error) {
	r, err := a.Messages.New(ctx, writing(user("a")))
	if err != nil {
		return nil, err
	}
	return []any{r.Content[0].Text}, nil
}

func messagesStream(ctx context.Context, _ openai.Client, a anthropic.Client) ([]any, error) {
	m, err := streamed(a.Messages.NewStreaming(ctx, writing(user("a"))))
	if err != nil {
		return nil, err
	}
	return []any{m.Content[0].Text}, nil
}
