// Package tool has tools that agents offer a model: Python in a confined process, and a calculator. What a model gets
// wrong comes back as a text for it to read and is no error. The package knows no tensors, no trainer and no engine.
package tool

import (
	"context"
	"encoding/json"
	"fmt"
)

// Tool is what a model can call. Several goroutines may call it at once.
type Tool struct {
	Name, Description string
	Parameters        json.RawMessage // JSON schema of the arguments, an object
	// Call answers the model, whose arguments are as it wrote them. An error is the host's fault, or the end of ctx.
	Call func(ctx context.Context, arguments json.RawMessage) (string, error)
}

// Definition is the tool as the OpenAI chat API and chat templates have it, an element of their list of tools.
func (t Tool) Definition() (json.RawMessage, error) {
	function := map[string]any{"name": t.Name, "description": t.Description, "parameters": t.Parameters}
	return json.Marshal(map[string]any{"type": "function", "function": function})
}

// oneString is a tool with one argument, a string; about says what it holds.
func oneString(name, description, key, about string, call func(context.Context, string) (string, error)) Tool {
	const schema = `{"type":"object","properties":{%[1]q:{"type":"string","description":%[2]q}},"required":[%[1]q]}`
	parameters := fmt.Appendf(nil, schema, key, about)
	return Tool{name, description, parameters, func(ctx context.Context, arguments json.RawMessage) (string, error) {
		var given map[string]json.RawMessage
		if err := json.Unmarshal(arguments, &given); err != nil {
			return fmt.Sprintf("error: the arguments are not a JSON object: %v", err), nil
		}
		var value string
		switch raw, ok := given[key]; {
		case !ok:
			return fmt.Sprintf("error: the argument %q is missing", key), nil
		case json.Unmarshal(raw, &value) != nil || raw[0] != '"':
			return fmt.Sprintf("error: the argument %q must be a string, not %.40s", key, raw), nil
		}
		return call(ctx, value)
	}}
}
