package rollout

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/multimodal"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tasks.jsonl")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestReadTasks(t *testing.T) {
	path := write(t, `{"messages": [{"role": "user", "content": "1+1"}], "answer": "2"}

{"id": "b", "source": "s", "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "é"}], "extra": {"k": 1}}`)
	s, err := ReadTasks(path)
	must(t, err)
	want := []Task{
		{ID: "tasks.jsonl:1", Source: "tasks.jsonl", Messages: []multimodal.Message{{Role: "user", Content: "1+1"}}, Answer: "2"},
		{ID: "b", Source: "s", Extra: []byte(`{"k": 1}`),
			Messages: []multimodal.Message{{Role: "system", Content: "x"}, {Role: "user", Content: "é"}}},
	}
	if diff := cmp.Diff(want, s.(Tasks).List); diff != "" {
		t.Error(diff)
	}
}

func TestABadLineNamesFileAndLine(t *testing.T) {
	const good = `{"messages": [{"role": "user", "content": "1+1"}], "answer": "2"}` + "\n"
	for line, want := range map[string]string{
		`{"messages": [}`:                               "tasks.jsonl:2: invalid character",
		`{"messages": []}`:                              `tasks.jsonl:2: "messages" is missing or empty`,
		`{"messages": [{"content": "x"}]}`:              `tasks.jsonl:2: message 0 has no "role"`,
		`{"messages": 3}`:                               "tasks.jsonl:2: messages: want list, not number",
		`{"messages": [{"role": "user"}], "answer": 5}`: "tasks.jsonl:2: answer: want string, not number",
		`[1]`:                                "tasks.jsonl:2: the line: want object, not array",
		`{"messages": [{"role":"user"}]} {}`: "tasks.jsonl:2: more than one",
		`{"mesages": [{"role": "user"}]}`:    `tasks.jsonl:2: json: unknown field "mesages"`,
		"\x00\xff":                           "tasks.jsonl:2: invalid character",
		`{"messages": [{"role": "user"}], "ans":`: "tasks.jsonl:2: unexpected EOF",
	} {
		_, err := ReadTasks(write(t, good+line+"\n"+good))
		wantError(t, err, want)
	}
	_, err := ReadTasks(write(t, "\n\n"))
	wantError(t, err, "no tasks")
	_, err = ReadTasks(filepath.Join(t.TempDir(), "none"))
	wantError(t, err, "no such file")
}

func FuzzParseTask(f *testing.F) {
	f.Add([]byte(`{"messages": [{"role": "user", "content": "1+1"}], "answer": "2"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if task, err := parseTask(line); err == nil && (len(task.Messages) == 0 || task.Messages[0].Role == "") {
			t.Errorf("accepted %q", line)
		}
	})
}

func TestOpenDataByName(t *testing.T) {
	path := write(t, `{"messages": [{"role": "user", "content": "1"}]}`+"\n"+`{"messages": [{"role": "user", "content": "2"}]}`)
	train, eval, err := OpenData(DataConfig{Source: "jsonl", Path: path, EvalPath: path, Eval: 1})
	must(t, err)
	if train.Len() != 2 || eval.Len() != 1 {
		t.Errorf("%d tasks, %d held out", train.Len(), eval.Len())
	}
	_, _, err = OpenData(DataConfig{Source: "jsnl"})
	wantError(t, err, `source = "jsnl" is not known; there are jsonl`)
	_, _, err = OpenData(DataConfig{Source: "jsonl"})
	wantError(t, err, "path is missing")
	wantError(t, RegisterSource("jsonl", openJSONL), "registered already")
}

func TestConfigDefaultsAreValidAndMistakesAreNamed(t *testing.T) {
	must(t, DefaultConfig().Validate())
	for key, damage := range map[string]func(*Config){
		"prompts = 0":     func(c *Config) { c.Prompts = 0 },
		"samples = -1":    func(c *Config) { c.Samples = -1 },
		"temperature = 0": func(c *Config) { c.Temperature = 0 },
		`timeout = "0s"`:  func(c *Config) { c.Timeout = 0 },
		`timeout = "30ns": must be at least "1ms", with its unit`: func(c *Config) { c.Timeout = 30 },
		"max_failed = -1":  func(c *Config) { c.MaxFailed = -1 },
		"max_refill = -1":  func(c *Config) { c.MaxRefill = -1 },
		"filter_equal":     func(c *Config) { c.FilterEqual, c.Samples = true, 1 },
		"concurrency = 0":  func(c *Config) { c.Concurrency = 0 },
		"max_tokens = 0":   func(c *Config) { c.MaxTokens = 0 },
		"max_turns = -100": func(c *Config) { c.MaxTurns = -100 },
	} {
		c := DefaultConfig()
		damage(&c)
		wantError(t, c.Validate(), key)
	}
	c := DefaultConfig()
	_, err := toml.Decode(`timeout = "90s"`, &c)
	must(t, err)
	if c.Timeout != 90*time.Second {
		t.Error(c.Timeout)
	}
	wantError(t, DataConfig{Source: "x", Path: "p"}.Validate(), "path")
	wantError(t, DataConfig{Source: "x", Epochs: -1}.Validate(), "epochs = -1")
}

// A rollout's seed is a function of what is run, so a resumed run draws the same.
func TestSeedsDiffer(t *testing.T) {
	seen := map[uint64]bool{}
	for run := range uint64(3) {
		for task := range uint64(20) {
			for epoch := range uint64(4) {
				for sample := range uint64(8) {
					s := MixSeed(run, task, epoch, sample)
					if seen[s] || s != MixSeed(run, task, epoch, sample) {
						t.Fatal("a seed repeats, or changes")
					}
					seen[s] = true
				}
			}
		}
	}
}
