package rollout

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// ReadTasks reads a file with one task a line, as JSON: {"messages": [{"role": "user", "content": "…"}], "answer":
// "…"}, and optionally id, source, images, tools, extra. Empty lines are skipped. Any other key is an error, since a
// misspelt "answer" would train on nothing; what an agent needs beyond these goes into extra. Errors name file and line.
func ReadTasks(path string) (Source, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("rollout: tasks: %w", err)
	}
	sum := sha256.Sum256(data)
	s := Tasks{Name: fmt.Sprintf("%x", sum[:8])}
	num := 0
	for line := range bytes.Lines(data) {
		num++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		task, err := parseTask(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, num, err)
		}
		if task.ID == "" {
			task.ID = fmt.Sprintf("%s:%d", filepath.Base(path), num)
		}
		if task.Source == "" {
			task.Source = filepath.Base(path)
		}
		s.List = append(s.List, task)
	}
	if len(s.List) == 0 {
		return nil, fmt.Errorf("%s: no tasks: it needs one JSON object a line", path)
	}
	return s, nil
}

func parseTask(line []byte) (Task, error) {
	var t Task
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&t); err != nil {
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			kind := strings.NewReplacer("slice", "list", "struct", "object").Replace(wrong.Type.Kind().String())
			err = fmt.Errorf("%s: want %s, not %s", cmp.Or(wrong.Field, "the line"), kind, wrong.Value)
		}
		return Task{}, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Task{}, errors.New("more than one JSON value on the line")
	}
	if len(t.Messages) == 0 {
		return Task{}, errors.New(`"messages" is missing or empty`)
	}
	for i, m := range t.Messages {
		if m.Role == "" {
			return Task{}, fmt.Errorf(`message %d has no "role"`, i)
		}
	}
	return t, nil
}

func openJSONL(c DataConfig) (train, eval Source, err error) {
	if train, err = ReadTasks(c.Path); err != nil || c.EvalPath == "" {
		return train, nil, err
	}
	if eval, err = ReadTasks(c.EvalPath); err != nil {
		return nil, nil, err
	}
	if held := eval.(Tasks); c.Eval > 0 && len(held.List) > c.Eval {
		held.List = held.List[:c.Eval]
		eval = held
	}
	return train, eval, nil
}
