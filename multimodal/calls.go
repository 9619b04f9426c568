package multimodal

// CallStyle is a stand-in.
type CallStyle struct{}

// Calls is a stand-in.
func (c *Chat) Calls() CallStyle { return CallStyle{} }

// Opening is a stand-in.
func (s CallStyle) Opening(name string) string {
	if name == "" {
		return "<tool_call>\n{\"name\": \""
	}
	return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": "
}
