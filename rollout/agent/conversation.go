package agent

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/molt-go/molt/multimodal"
)

// conversation gives the digest of what the template is given before the first message and after each.
func (s *Session) conversation(messages []multimodal.Message, opts multimodal.RenderOptions) ([]digest, error) {
	head, err := json.Marshal([]any{opts.Tools, opts.Extra})
	sums := []digest{sha256.Sum256(head)}
	for i, m := range messages {
		sum, bad := follow(sums[i], m, m.Role == "assistant")
		if m.Role == "assistant" && bad == nil && !s.recorded(sum) {
			sum, bad = follow(sums[i], m, false)
		}
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("message %d: %w", i, bad))
		}
		sums = append(sums, sum)
	}
	return sums, err
}

// recorded tells whether a conversation ends with a reply of the model.
func (s *Session) recorded(sum digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turns[sum] != nil
}

// follow is the digest of a conversation with one more message. Of what the model said a client may leave out the thoughts, and may write
// the arguments of calls otherwise.
func follow(sum digest, m multimodal.Message, said bool) (digest, error) {
	if said {
		m.Reasoning, m.Extra, m.ToolCalls = "", nil, normal(m.ToolCalls)
	}
	text, err := json.Marshal(m)
	return sha256.Sum256(append(sum[:], text...)), err
}

// normal is a list of tool calls with one way to write the same.
func normal(calls json.RawMessage) json.RawMessage {
	var list []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"function"`
	}
	if len(calls) == 0 || json.Unmarshal(calls, &list) != nil {
		return calls
	}
	for i := range list {
		args := &list[i].Function.Arguments
		var text string
		if json.Unmarshal(*args, &text) == nil && json.Valid([]byte(text)) {
			*args = json.RawMessage(text)
		}
		var value any
		if json.Unmarshal(*args, &value) == nil {
			*args, _ = json.Marshal(value) // keys in order, and 1.0 is 1
		}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return calls
	}
	return text
}
