package molt

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/torch"
)

// answered is an answer of any verb.
type answered struct {
	Text     *string
	IDs      []int32
	Spans    [][2]int
	LogProbs []float32
	Entropy  []float32
	Top      [][][2]float64
	Finish   string
	Error    string
}

// output is what a verb writes for lines; bad of them must be errors.
func output(t *testing.T, verb, path string, bad int, lines []string, flags ...string) string {
	t.Helper()
	var out, stderr bytes.Buffer
	args := append([]string{verb, "-model", path}, flags...)
	err := run(t.Context(), args, strings.NewReader(strings.Join(lines, "\n")), &out, &stderr)
	if want := fmt.Sprintf("%d of %d lines gave an error", bad, len(lines)); bad == 0 && err != nil || bad > 0 && (err == nil ||
		err.Error() != want) {
		t.Fatalf("molt %s: %v, want %q\n%s%s", strings.Join(args, " "), err, want, &out, &stderr)
	}
	return out.String()
}

func ask(t *testing.T, verb, path string, bad int, lines []string, flags ...string) []answered {
	t.Helper()
	answers := make([]answered, len(lines))
	for i, text := range strings.SplitAfterN(output(t, verb, path, bad, lines, flags...), "\n", len(lines)) {
		if err := json.Unmarshal([]byte(text), &answers[i]); err != nil {
			t.Fatal(err, text)
		}
	}
	return answers
}

func line(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

type object = map[string]any

func readReference(t *testing.T, name string, into any) {
	t.Helper()
	readJSON(t, filepath.Join("testdata/reference", name), into)
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func smolLM(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cache, "molt", "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v\n`make test` fetches the model", err)
	}
	return path
}

func near(t *testing.T, what string, want, got []float32, tolerance float64) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateApprox(0, tolerance), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func TestTokensEqualTheReference(t *testing.T) {
	var reference struct {
		Strings []struct {
			Text    string
			IDs     []int32
			Decoded string
		}
		Chat []struct {
			Messages  json.RawMessage
			Rendered  string
			Prompt    string `json:"rendered_generation_prompt"`
			IDs       []int32
			PromptIDs []int32 `json:"ids_generation_prompt"`
		}
	}
	readReference(t, "smollm_tokenizer.json", &reference)
	var lines []string
	var want []answered
	for _, s := range reference.Strings {
		lines = append(lines, line(object{"text": s.Text}), line(object{"ids": s.IDs}))
		want = append(want, answered{IDs: s.IDs}, answered{Text: &s.Decoded})
	}
	for _, c := range reference.Chat {
		lines = append(lines, line(object{"messages": c.Messages}), line(object{"messages": c.Messages, "add_generation_prompt": true}))
		want = append(want, answered{Text: &c.Rendered, IDs: c.IDs}, answered{Text: &c.Prompt, IDs: c.PromptIDs})
	}
	if len(reference.Strings) == 0 || len(reference.Chat) == 0 {
		t.Fatal("no cases")
	}
	got := ask(t, "tokens", smolLM(t), 0, lines)
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(answered{}, "Spans")); d != "" {
		t.Error(d)
	}
}

func TestSpansEqualTheReference(t *testing.T) {
	var reference struct {
		Templates map[string]struct{ Jinja string }
		Cases     []struct {
			Template     string
			Conversation int
			LastOnly     bool `json:"train_on_last_turn_only"`
			MaxLength    int  `json:"max_length"`
			IDs          []int32
			Spans        [][2]int `json:"reply_token_ranges"`
		}
		Conversations []json.RawMessage
	}
	readReference(t, "sft_masks.json", &reference)
	if len(reference.Templates) == 0 {
		t.Fatal("no templates")
	}
	for name, template := range reference.Templates {
		path := smolLM(t)
		if template.Jinja != "" {
			path = withTemplate(t, template.Jinja)
		}
		var lines []string
		for _, c := range reference.Conversations {
			lines = append(lines, line(object{"messages": c}))
		}
		got, cases := ask(t, "tokens", path, 0, lines), 0
		for _, c := range reference.Cases {
			if a := got[c.Conversation]; c.Template == name && !c.LastOnly && len(a.IDs) <= c.MaxLength {
				cases++
				if d := cmp.Diff(c.IDs, a.IDs) + cmp.Diff(c.Spans, a.Spans, cmpopts.EquateEmpty()); d != "" {
					t.Errorf("%s, conversation %d (-want +got):\n%s", name, c.Conversation, d)
				}
			}
		}
		if cases == 0 {
			t.Errorf("%s: no cases", name)
		}
	}
}

// withTemplate is a folder with the text side of SmolLM2 and a template of its own.
func withTemplate(t *testing.T, template string) string {
	t.Helper()
	dir := t.TempDir()
	err := multimodal.SaveText(smolLM(t), dir)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// tensors are those of a reference model, by name.
type tensors struct {
	*testing.T
	file *torch.SafeTensors
}

// models calls f with every model of the reference.
func models(t *testing.T, f func(t *testing.T, path string, ref tensors)) {
	paths, _ := filepath.Glob("testdata/reference/models/*")
	if len(paths) == 0 {
		t.Fatal("no models in the reference")
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			file, err := torch.OpenSafeTensors(filepath.Join(path, "ref.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			f(t, path, tensors{t, file})
		})
	}
}

// matrix is a tensor of two dimensions, row by row.
func matrix[T int64 | float32](r tensors, name string) [][]T {
	r.Helper()
	e, ok := r.file.Lookup(name)
	if !ok || len(e.Shape) != 2 {
		r.Fatalf("no matrix %s, but %v", name, e.Shape)
	}
	rows := make([][]T, e.Shape[0])
	data := bytes.NewReader(e.Data)
	for i := range rows {
		rows[i] = make([]T, e.Shape[1])
		if err := binary.Read(data, binary.LittleEndian, rows[i]); err != nil {
			r.Fatal(name, err)
		}
	}
	return rows
}

// unpadded gives the real ids of every row of a batch, and where they start.
func unpadded(r tensors, batch string) (ids [][]int64, starts []int) {
	mask := matrix[int64](r, batch+".attention_mask")
	for i, row := range matrix[int64](r, batch+".input_ids") {
		start := slices.Index(mask[i], 1)
		n := 0
		for _, real := range mask[i] {
			n += int(real)
		}
		ids, starts = append(ids, row[start:start+n]), append(starts, start)
	}
	return ids, starts
}

// pictures gives the files of the images that stand in each row, in the order of the rows; the reference has them as bytes.
func pictures(r tensors, path string, rows [][]int64) [][]string {
	r.Helper()
	var config struct {
		Image *int64 `json:"image_token_id"`
	}
	readJSON(r.T, filepath.Join(path, "config.json"), &config)
	files, dir, n := make([][]string, len(rows)), r.TempDir(), 0
	for i, row := range rows {
		for j, id := range row {
			if config.Image == nil || id != *config.Image || j > 0 && row[j-1] == id {
				continue
			}
			e, ok := r.file.Lookup(fmt.Sprintf("pre.%d.image", n))
			if !ok {
				r.Fatalf("no image %d", n)
			}
			m := image.NewNRGBA(image.Rect(0, 0, e.Shape[1], e.Shape[0]))
			for k, v := range e.Data {
				m.Pix[k/3*4+k%3] = v
				m.Pix[k/3*4+3] = 255
			}
			var file bytes.Buffer
			if err := png.Encode(&file, m); err != nil {
				r.Fatal(err)
			}
			name := filepath.Join(dir, fmt.Sprint(n, ".png"))
			if err := os.WriteFile(name, file.Bytes(), 0o644); err != nil {
				r.Fatal(err)
			}
			files[i] = append(files[i], name)
			n++
		}
	}
	return files
}

func TestScoresEqualTheReference(t *testing.T) {
	models(t, func(t *testing.T, path string, ref tensors) {
		for _, side := range []string{"right", "left"} {
			ids, starts := unpadded(ref, side)
			logp := matrix[float32](ref, side+".log_probs")
			var lines []string
			for i, files := range pictures(ref, path, ids) {
				lines = append(lines, line(object{"ids": ids[i], "images": files}))
			}
			for i, got := range ask(t, "score", path, 0, lines) {
				n := len(ids[i])
				near(t, side+" log-probs", logp[i][starts[i]:starts[i]+n-1], got.LogProbs, 3e-5)
				if _, ok := ref.file.Lookup(side + ".entropy"); ok {
					near(t, "entropy", matrix[float32](ref, side+".entropy")[i][:n], got.Entropy, 5e-5)
				}
			}
		}
	})
}

func TestGreedyTokensEqualTheReference(t *testing.T) {
	models(t, func(t *testing.T, path string, ref tensors) {
		ids, _ := unpadded(ref, "gen")
		want, logp, margin := matrix[int64](ref, "gen.new_ids"), matrix[float32](ref, "gen.log_probs"), matrix[float32](ref, "gen.margin")
		var lines []string
		for i, files := range pictures(ref, path, ids) {
			lines = append(lines, line(object{"ids": ids[i], "images": files, "max_tokens": len(want[i]), "ignore_eos": true}))
		}
		for i, got := range ask(t, "generate", path, 0, lines, "-cache", "16") {
			checkGreedy(t, want[i], logp[i], margin[i], got, 3e-5)
		}
	})
}

// checkGreedy compares up to the first token where the two best are closer than the numbers' noise.
func checkGreedy[T int32 | int64](t *testing.T, want []T, logp, margin []float32, got answered, tolerance float64) {
	t.Helper()
	n := slices.IndexFunc(margin, func(m float32) bool { return m < 1e-4 })
	if n < 0 {
		n = len(want)
	}
	ids := make([]T, len(got.IDs))
	for i, id := range got.IDs {
		ids[i] = T(id)
	}
	if len(ids) != len(want) || got.Finish != "length" {
		t.Fatalf("%d tokens, finish %q; want %d", len(ids), got.Finish, len(want))
	}
	if d := cmp.Diff(want[:n], ids[:n]); d != "" {
		t.Errorf("ids (-want +got):\n%s", d)
	}
	near(t, "log-probs", logp[:n], got.LogProbs[:n], tolerance)
}

func TestSmolLM2ScoresAndGeneratesAsTheReference(t *testing.T) {
	var reference struct {
		Prompts []struct {
			IDs     []int32   `json:"ids"`
			Greedy  []int32   `json:"greedy_ids"`
			Text    string    `json:"greedy_text"`
			LogP    []float32 `json:"greedy_log_probs"`
			Margins []float32 `json:"greedy_margin_top1_top2"`
		}
		Texts []struct {
			IDs     []int32
			LogP    []float32 `json:"log_probs_of_next"`
			Entropy []float32
			Argmax  []float64
		}
	}
	readReference(t, "smollm_model.json", &reference)
	if len(reference.Prompts) == 0 || len(reference.Texts) == 0 {
		t.Fatal("no cases")
	}
	var texts, prompts []string
	for _, x := range reference.Texts {
		texts = append(texts, line(object{"ids": x.IDs}))
	}
	for i, got := range ask(t, "score", smolLM(t), 0, texts, "-top", "2") {
		want := reference.Texts[i]
		near(t, "log-probs", want.LogP[:len(want.IDs)-1], got.LogProbs, 1e-3)
		near(t, "entropy", want.Entropy, got.Entropy, 1e-3)
		for j, top := range got.Top {
			if len(top) != 2 || top[0][0] != want.Argmax[j] || top[0][1] < top[1][1] {
				t.Errorf("position %d: the likeliest are %v, want %v first", j, top, want.Argmax[j])
			}
		}
	}
	for _, p := range reference.Prompts {
		prompts = append(prompts, line(object{"ids": p.IDs, "max_tokens": len(p.Greedy), "ignore_eos": true}))
	}
	for i, got := range ask(t, "generate", smolLM(t), 0, prompts) {
		want := reference.Prompts[i]
		checkGreedy(t, want.Greedy, want.LogP, want.Margins, got, 1e-3)
		if *got.Text != want.Text {
			t.Errorf("text %q, want %q", *got.Text, want.Text)
		}
	}
}
