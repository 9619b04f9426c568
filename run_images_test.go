package molt

import (
	"context"
	"image"
	"image/color"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/rollout/agent"
)

// looker rewards at random, so that there is something to learn, and shows another picture in the second turn.
type looker struct {
	file  string
	dice  *rand.Rand
	asked bool
}

func (l *looker) Reset(_ context.Context, task rollout.Task, seed uint64) (agent.Result, error) {
	l.file, l.dice = task.Images[0], rand.New(rand.NewPCG(seed, 1))
	return agent.Result{}, nil
}

func (l *looker) Step(context.Context, string) (agent.Result, error) {
	res := agent.Result{Reward: l.dice.Float64(), Terminated: l.asked}
	if !l.asked {
		l.asked, res.Observation, res.Images = true, agent.User("c"), []string{l.file}
	}
	return res, nil
}

// Case V2. The engine's log-probs of tokens after images are the trainer's to the bit, in every step, while the tower learns too.
func TestAPolicyThatSeesTrainsAsItsEngineGenerates(t *testing.T) {
	if err := agent.RegisterEnv("looker", func() agent.Env { return &looker{} }); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"testdata/reference/models/qwen2_5_vl", "testdata/reference/models/qwen3_vl"} {
		var config struct {
			Image int64 `json:"image_token_id"`
		}
		readJSON(t, filepath.Join(path, "config.json"), &config)
		dir := seeing(t, path, config.Image)
		template := `{"chat_template":"{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text or '<image>' }}` +
			`{% endfor %}{% endif %}b{% endfor %}"}`
		if err := os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(template), 0o644); err != nil {
			t.Fatal(err)
		}
		var lines []string
		for i := range 4 {
			m := image.NewGray(image.Rect(0, 0, 40+30*i, 60))
			for k := range m.Pix {
				m.Pix[k] = color.Gray{Y: uint8(k * (i + 1))}.Y
			}
			f, err := os.Create(filepath.Join(dir, string(rune('a'+i))+".png"))
			if err != nil {
				t.Fatal(err)
			}
			if err := png.Encode(f, m); err != nil {
				t.Fatal(err)
			}
			f.Close()
			lines = append(lines, line(object{"messages": []object{{"role": "user", "content": "a"}}, "images": []string{f.Name()}}))
		}
		data := filepath.Join(dir, "tasks.jsonl")
		if err := os.WriteFile(data, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
		c := tinyConfig(t.TempDir())
		c.Model.Path, c.Model.DType, c.Steps, c.Eval.Tasks, c.Optim.Recompute = dir, "bfloat16", 3, 0, true
		c.Data.Path, c.Agent.Env, c.Rollout.Prompts, c.Rollout.MaxTokens, c.Engine.CacheMB = data, "looker", 2, 4, 16
		out, err := os.Create(filepath.Join(dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if err := Run(context.Background(), c, out); err != nil {
			t.Fatal(path, err)
		}
		steps, _ := rows(t, c)
		for _, row := range steps {
			mismatch, compared := row["mismatch_abs"]
			if row["logprob_diff_max"] != 0 || row["logprob_diff_tokens"] == 0 || !(row["grad_norm"] > 0) || mismatch != 0 || !compared {
				t.Errorf("%s: engine and trainer differ, or nothing is learned: %v", path, row)
			}
		}
		if len(steps) != 3 {
			t.Errorf("%s: %d steps", path, len(steps))
		}
	}
}
