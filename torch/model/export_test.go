package model

import "github.com/molt-go/molt/torch"

// Stream gives the residual stream where each layer begins, and the last hidden states.
func (m *Model) Stream(s *torch.Scope, b *Batch, seen ...Seen) (stream []torch.Tensor) {
	x, err := m.inputs(s, b, nil, seen)
	if err != nil {
		panic(err)
	}
	stages := m.stages(s, b, nil)
	for i, stage := range stages {
		x = stage(s, x)
		switch {
		case i == len(stages)-1 || i == 0:
			stream = append(stream, x[0])
		case i < len(stages)-2: // what the last layer adds to is not in the reference
			stream = append(stream, s.Add(x[0], x[1]))
		}
	}
	return stream
}

// JSON is c's config.json.
func (c Config) JSON() map[string]any { return c.hf(torch.Float32) }
