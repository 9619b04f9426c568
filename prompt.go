package molt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch/model"
	"github.com/molt-go/molt/trainer"
)

// textSide is how a model reads and writes text, and reads images.
type textSide struct {
	tok                     *multimodal.Tokenizer
	chat                    *multimodal.Chat
	images                  *multimodal.ImageProcessor
	noTok, noChat, noImages error // why there is none
}

// openText reads the files of the model at path; v is its vision tower, nil for none.
func openText(path string, v *model.Vision) (t textSide) {
	if t.chat, t.noChat = multimodal.OpenChat(path); t.noChat == nil {
		t.tok = t.chat.Tokenizer()
	} else {
		t.tok, t.noTok = multimodal.OpenTokenizer(path)
	}
	t.images, t.noImages = multimodal.OpenImageProcessor(path)
	if p := t.images; p != nil && v != nil && [3]int{p.Patch, p.Frames, p.Merge} != [3]int{v.Patch, v.Frames, v.Merge} {
		t.images, t.noImages = nil, fmt.Errorf("model %s: images have other patches than the vision tower: %d pixels and %d, %d frames "+
			"and %d, merged by %d and %d", path, p.Patch, v.Patch, p.Frames, v.Frames, p.Merge, v.Merge)
	}
	return t
}

// prompt is what a line gives to read: one of text, ids and messages.
type prompt struct {
	text     *string
	ids      []int32
	messages json.RawMessage
	images   []string
	options  multimodal.RenderOptions
}

// decode reads a line that may have other keys too, given by where they go. Beside messages, keys that nobody knows are variables of
// the template.
func (p *prompt) decode(line []byte, known map[string]any) (err error) {
	known["ids"], known["messages"] = &p.ids, &p.messages
	known["tools"], known["add_generation_prompt"] = &p.options.Tools, &p.options.AddGenerationPrompt
	p.options.Extra, err = decodeObject(line, known)
	if err == nil && p.messages == nil {
		err = unknownKey(p.options.Extra, known)
	}
	if err != nil {
		return err
	}
	missing := []bool{p.text == nil, p.ids == nil, p.messages == nil}
	if len(slices.DeleteFunc(missing, func(m bool) bool { return m })) != 1 {
		return errors.New("the line must have exactly one of ids and messages, or for molt tokens text")
	}
	return nil
}

// decodeObject reads a JSON object whose values go where known says, and gives the others. null is as if it were not there, and a
// string a list of one where a list is known.
func decodeObject(text []byte, known map[string]any) (others map[string]any, err error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, fmt.Errorf("this is not a JSON object: %w", err)
	}
	others = map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		value, into := object[key], known[key]
		if into == nil {
			others[key] = value
		}
		if into == nil || string(value) == "null" {
			continue
		}
		if _, list := into.(*[]string); list && value[0] == '"' {
			value = slices.Concat([]byte("["), value, []byte("]"))
		}
		err := json.Unmarshal(value, into)
		if _, ids := into.(*[]int32); ids && err == nil && bytes.ContainsAny(value, "-n") { // among numbers
			err = errors.New("an id is negative or null")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return others, nil
}

// unknownKey is the error for the first of others, if there is one.
func unknownKey(others, known map[string]any) error {
	if len(others) == 0 {
		return nil
	}
	key := slices.Min(slices.Collect(maps.Keys(others)))
	key = key[:min(len(key), 64)]
	nearest := slices.MinFunc(slices.Sorted(maps.Keys(known)), func(a, b string) int {
		return trainer.EditDistance(key, a) - trainer.EditDistance(key, b)
	})
	return fmt.Errorf("unknown key %q; the nearest known key is %q", key, nearest)
}

// render gives the ids of p, and the text of messages.
func (t textSide) render(p prompt) (text string, ids []int32, err error) {
	if p.messages == nil {
		return "", p.ids, nil
	}
	if t.chat == nil {
		return "", nil, fmt.Errorf("messages need a chat template: %w", t.noChat)
	}
	if text, err = t.chat.RenderJSON(p.messages, p.options); err != nil {
		return "", nil, err
	}
	return text, t.chat.Encode(text), nil
}

// request is p for a model, with its images among the ids.
func (t textSide) request(p prompt, vocab, context int) (r rollout.Request, err error) {
	if _, r.IDs, err = t.render(p); err != nil {
		return r, err
	}
	if t.images == nil && len(p.images) > 0 {
		return r, t.noImages
	}
	if t.images != nil {
		seen, err := t.see(p, r.IDs)
		if err != nil {
			return r, err
		}
		r.IDs, r.Images = seen.IDs, rollout.Images(seen)
	}
	if len(r.IDs) == 0 || len(r.IDs) > context {
		return r, fmt.Errorf("the line has %d tokens: must be from 1 to %d, the context", len(r.IDs), context)
	}
	for i, id := range r.IDs {
		if int(id) >= vocab {
			return r, fmt.Errorf("token %d is %d, which is not in the model's vocabulary of %d", i, id, vocab)
		}
	}
	return r, nil
}

// see opens the images that the messages name, and p's own for the others, and finds them among ids.
func (t textSide) see(p prompt, ids []int32) (seen multimodal.ImagePrompt, err error) {
	var sources []string
	find := t.images.Find
	if p.messages != nil {
		var messages []multimodal.Message
		if err = json.Unmarshal(p.messages, &messages); err == nil {
			sources, err = multimodal.Images(messages)
		}
		if err != nil {
			return seen, err
		}
		find = t.images.Expand
	}
	for i := range sources {
		if sources[i] == "" && len(p.images) > 0 {
			sources[i], p.images = p.images[0], p.images[1:]
		}
	}
	images, err := t.images.Open(append(sources, p.images...)...)
	if err != nil {
		return seen, err
	}
	return find(ids, images)
}
