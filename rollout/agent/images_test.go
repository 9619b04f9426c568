package agent

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

// seeing is a template with a placeholder for each image.
const seeing = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}" +
	"{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% else %}[<|image|>]{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}" +
	"{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

// dataURL is a picture of one grey, so many pixels wide and high.
func dataURL(t *testing.T, width, height int, grey uint8) string {
	t.Helper()
	m := image.NewGray(image.Rect(0, 0, width, height))
	for i := range m.Pix {
		m.Pix[i] = color.Gray{Y: grey}.Y
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
}

func eyes(t *testing.T, chat *multimodal.Chat) (*multimodal.ImageProcessor, int32) {
	t.Helper()
	id, ok := chat.Tokenizer().ID("<|image|>")
	if !ok {
		t.Fatal("no placeholder")
	}
	return &multimodal.ImageProcessor{Patch: 2, Frames: 2, Merge: 2, MinPixels: 1, MaxPixels: 1 << 20, Rescale: 1. / 255,
		Std: [3]float32{1, 1, 1}, Token: id}, id
}

// Case V2: a picture is as many placeholders as it has squares of patches; pictures of several turns keep their order and places; what was
// shown before is not opened again. In all three dialects.
func TestImagesStandWhereTheModelSeesThem(t *testing.T) {
	wide, tall := dataURL(t, 12, 8, 10), dataURL(t, 4, 12, 200) // 3 by 2 and 1 by 3 squares of 4 by 4 pixels
	_, data, _ := strings.Cut(tall, ",")
	for path, form := range map[string]string{
		"chat/completions": `{"messages":[{"role":"user","content":[{"type":"text","text":"u"},{"type":"image_url","image_url":{"url":"` + wide + `"}}]}%s]}`,
		"messages": `{"max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"u"},
			{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + strings.TrimPrefix(wide, "data:image/png;base64,") + `"}}]}%s]}`,
		"responses": `{"input":[{"role":"user","content":[{"type":"input_text","text":"u"},{"type":"input_image","image_url":"` + wide + `"}]}%s]}`,
	} {
		more := map[string]string{
			"chat/completions": `,{"role":"assistant","content":"a"},{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + tall + `"}}]}`,
			"messages": `,{"role":"assistant","content":"a"},{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png",
				"data":"` + data + `"}}]}`,
			"responses": `,{"role":"assistant","content":"a"},{"role":"user","content":[{"type":"input_image","image_url":"` + tall + `"}]}`,
		}[path]
		g := &saying{texts: []string{"a<|im_end|>", "b<|im_end|>"}}
		s := newStand(t, seeing, g, ServerConfig{})
		processor, id := eyes(t, s.chat)
		s.config.Images = processor
		s.v = s.open(t.Context(), rollout.Spec{Sampling: allRun})
		for _, next := range []string{"", more} {
			if status, a, _ := s.post(path, fmt.Sprintf(form, next)); status != 200 {
				t.Fatalf("%s: %d %v", path, status, a)
			}
		}
		samples := s.v.close()
		if len(samples) != 1 {
			t.Fatalf("%s: %d samples", path, len(samples))
		}
		k := samples[0].Tokens()
		want := slices.Concat(s.chat.Encode("<|im_start|>user\nu["), slices.Repeat([]int32{id}, 6), s.chat.Encode("]<|im_end|>\n<|im_start|>assistant\n"))
		first := slices.Index(want, id)
		want = slices.Concat(want, s.ids("a<|im_end|>"), s.chat.Encode("\n<|im_start|>user\n["))
		second := len(want)
		want = slices.Concat(want, slices.Repeat([]int32{id}, 3), s.chat.Encode("]<|im_end|>\n<|im_start|>assistant\n"), s.ids("b<|im_end|>"))
		if diff := cmp.Diff(want, k.IDs); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
		if len(k.Images) != 2 || k.Images[0].Start != first || k.Images[1].Start != second || k.Images[0].Grid != [3]int{1, 4, 6} ||
			k.Images[1].Grid != [3]int{1, 6, 2} || k.Images[0].Digest == k.Images[1].Digest || samples[0].NumTrained() != 4 {
			t.Errorf("%s: %d images at %d and %d", path, len(k.Images), first, second)
		}
		if r := g.asked[1]; len(r.Images) != 2 || r.Images[1].Start != second || len(r.Images[1].Pixels) == 0 {
			t.Errorf("%s: the generator sees %d images", path, len(r.Images))
		}
	}
}

// A branch has the images of the part that it shares.
func TestABranchSeesTheImagesBeforeIt(t *testing.T) {
	g := &saying{texts: []string{"a<|im_end|>"}}
	s := newStand(t, seeing, g, ServerConfig{})
	processor, _ := eyes(t, s.chat)
	session := NewSession(s.chat, g, processor, 2000)
	part := func(url string) json.RawMessage {
		return json.RawMessage(`[{"type":"image","image":"` + url + `"}]`)
	}
	history := []multimodal.Message{{Role: "user", Parts: part(dataURL(t, 8, 8, 1))}}
	call := func() multimodal.Message {
		r, err := session.Call(t.Context(), Call{Messages: history, Sampling: allRun})
		if err != nil {
			t.Fatal(err)
		}
		return r.Message
	}
	history = append(history, call(), multimodal.Message{Role: "user", Parts: part(dataURL(t, 4, 4, 2))})
	for range 2 {
		call()
	}
	samples := session.Close()
	if len(samples) != 2 {
		t.Fatalf("%d samples", len(samples))
	}
	a, b := samples[0].Tokens(), samples[1].Tokens()
	if diff := cmp.Diff(a.Images, b.Images); diff != "" || len(a.Images) != 2 {
		t.Errorf("%d images: %s", len(a.Images), diff)
	}
}

// Requests reach no file of this machine, though the images of a task may be files.
func TestARequestsImageIsADataURL(t *testing.T) {
	s := newStand(t, seeing, &saying{texts: []string{"a"}}, ServerConfig{})
	s.config.Images, _ = eyes(t, s.chat)
	s.v = s.open(t.Context(), rollout.Spec{Sampling: allRun})
	for _, url := range []string{"/etc/hostname", "file:///etc/hostname", "http://127.0.0.1/x.png", ""} {
		body := fmt.Sprintf(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":%q}}]}]}`, url)
		if status, a, _ := s.post("chat/completions", body); status != 400 || !strings.Contains(text(a), "data: URL") {
			t.Errorf("%q: %d %v", url, status, a)
		}
	}
	if status, a, _ := s.post("chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`); status != 400 {
		t.Errorf("%d %v", status, a)
	}
}

// A task's images fill the places that its messages have for them, or stand before the question.
func TestAnEnvironmentShowsTheTasksImages(t *testing.T) {
	urls := []string{dataURL(t, 8, 8, 1), dataURL(t, 4, 4, 2)}
	g := &saying{texts: []string{"a<|im_end|>"}}
	chat := byteChat(t, seeing)
	processor, id := eyes(t, chat)
	run, err := NewEnvRunner(chat, g, EnvConfig{MaxTurns: 2, Context: 2000, Images: processor}, func() Env {
		return &stepper{step: func(turn int, _ string) Result {
			return Result{Observation: User("more"), Images: urls[1:], Terminated: turn == 2}
		}}
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, messages := range []string{`[{"role":"user","content":"u"}]`, `[{"role":"user","content":[{"type":"image"},{"type":"image"},{"type":"text","text":"u"}]}]`} {
		task := rollout.Task{Images: urls}
		if err := json.Unmarshal([]byte(messages), &task.Messages); err != nil {
			t.Fatal(err)
		}
		out, err := run.Run(t.Context(), rollout.Spec{Task: task, Sampling: allRun})
		if err != nil {
			t.Fatal(err)
		}
		k := out.Samples[0].Tokens()
		shown := strings.ReplaceAll(chat.Decode(k.IDs), strings.Repeat("<|image|>", 4), "<|image|>")
		want := "<|im_start|>user\n[<|image|>][<|image|>]u<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\n[<|image|>]more<|im_end|>\n"
		if !strings.HasPrefix(shown, want) || len(k.Images) != 3 || k.IDs[k.Images[2].Start] != id || k.Images[0].Len != 4 {
			t.Errorf("%s: %q, %d images", messages, shown, len(k.Images))
		}
	}
}
