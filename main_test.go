package molt

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// tiny is a run on a reference model of 142,784 parameters; it has no tokenizer, so it gets as far as that.
func tiny(t *testing.T, more string) string {
	t.Helper()
	model, err := filepath.Abs("testdata/reference/models/llama_untied_gqa")
	if err != nil {
		t.Fatal(err)
	}
	return write(t, "run.toml", "name = \"tiny\"\n[model]\npath = \""+model+"\"\n[data]\nsource = \"largest\"\n[agent]\nenv = \"largest\"\n[log]\ndir = \""+
		t.TempDir()+"\"\n"+more)
}

func TestBadInputIsOneClearError(t *testing.T) {
	truncated := write(t, "short.gguf", "GGUF\x03\x00")
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"no config", nil, "-config is required"},
		{"missing config", []string{"-config", "nowhere.toml"}, "nowhere.toml"},
		{"stray argument", []string{"-config", "run.toml", "train"}, `unexpected argument "train"`},
		{"unknown command", []string{"train"}, `unknown command "train"; known: generate, score, serve, tokens`},
		{"unknown key", []string{"-config", tiny(t, "[optim]\nlearning = 1")}, `run.toml:11`},
		{"nearest key", []string{"-config", tiny(t, "[rollout]\nsample = 1")}, "samples"},
		{"wrong type", []string{"-config", tiny(t, "[optim]\nlr = \"high\"")}, "lr"},
		{"unknown override", []string{"-config", tiny(t, ""), "-set", "optim.rl=1"}, "optim.lr"},
		{"wrong value", []string{"-config", tiny(t, ""), "-set", "rollout.temperature=0"}, "temperature = 0: must be above 0"},
		{"a group of one", []string{"-config", tiny(t, ""), "-set", "rollout.samples=1"}, "[rollout] samples = 1: grpo compares"},
		{"a time without its unit", []string{"-config", tiny(t, ""), "-set", "rollout.timeout=30"}, `must be at least "1ms", with its unit`},
		{"no model", []string{"-config", tiny(t, ""), "-set", "model.path=/nowhere/model"}, "/nowhere/model"},
		{"truncated model", []string{"-config", tiny(t, ""), "-set", "model.path=" + truncated}, "short.gguf"},
		{"unset variable", []string{"-config", tiny(t, ""), "-set", "model.path=$NO_SUCH_VARIABLE/x"}, "NO_SUCH_VARIABLE is not set"},
		{"no tokenizer", []string{"-config", tiny(t, "")}, "tokenizer.json"},
		{"unknown agent", []string{"-config", tiny(t, ""), "-set", "agent.env=smallest"}, `"smallest" is not known; there are`},
		{"an agent and a program", []string{"-config", tiny(t, ""), "-set", `agent.command=["sh"]`}, `env = "largest" and command = ["sh"]: give one`},
		{"no such program", []string{"-config", tiny(t, ""), "-set", "agent.env=", "-set", `agent.command=["no-such", "x"]`},
			`[agent] command = ["no-such" "x"]: exec: "no-such": executable file not found`},
		{"no such grader", []string{"-config", tiny(t, ""), "-set", "agent.env=answer", "-set", "agent.grader=x"}, `[agent] grader "x" is not known`},
		{"unknown source", []string{"-config", tiny(t, ""), "-set", "data.source=smallest"}, "smallest"},
		{"unknown loss", []string{"-config", tiny(t, ""), "-set", "loss.name=pop"}, `"pop"; known: cispo, clip_cov`},
		{"dtype", []string{"-config", tiny(t, ""), "-set", "model.dtype=int8"}, "must be float32 or bfloat16"},
		{"distillation of nothing", []string{"-config", tiny(t, ""), "-set", "algo.estimator=on_policy_distill"}, "algo.kl_coef is 0"},
		{"reference of a variable", []string{"-config", tiny(t, ""), "-set", "model.reference=$NO_SUCH_VARIABLE/x"}, "NO_SUCH_VARIABLE is not set"},
		{"mode", []string{"-config", tiny(t, ""), "-set", "mode=fly"}, `mode = "fly" is not known`},
	} {
		err := run(context.Background(), c.args, nil, nil, &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v does not say %q", c.name, err, c.want)
		}
	}
}

func TestHelpExplains(t *testing.T) {
	overview := []string{"-set table.key=value", "-config file", "molt tokens ", "molt score ", "molt generate ", "molt serve "}
	for args, want := range map[string][]string{
		"-h": overview, "help": overview,
		"tokens -h": {`"spans"`, "-model folder"}, "score -h": {`"entropy"`, "-top K"}, "generate --help": {`"finish"`, "-cache MB", "Each JSON line"}, "serve -h": {"curl", "/v1/load", "-addr host:port", "-cache MB"},
	} {
		var out bytes.Buffer
		err := run(context.Background(), strings.Fields(args), nil, nil, &out)
		for _, text := range want {
			if !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), text) {
				t.Errorf("molt %s: %v, and no %s in\n%s", args, err, text, &out)
			}
		}
	}
}

func TestTogetherTellsWhoFailed(t *testing.T) {
	gone := errors.New("no memory")
	wait := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
	if err := together(context.Background(), func(context.Context) error { return gone }, wait); !errors.Is(err, gone) {
		t.Error("an engine that fails:", err)
	}
	fails := func(context.Context) error { return gone }
	calm := func(ctx context.Context) error { <-ctx.Done(); return nil }
	if err := together(context.Background(), calm, fails); !errors.Is(err, gone) {
		t.Error("a trainer that fails:", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := together(ctx, calm, wait); !errors.Is(err, context.Canceled) {
		t.Error("a stop:", err)
	}
	// A trainer that reports only that it was stopped does not hide why.
	canceled := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	if err := together(context.Background(), func(context.Context) error { return gone }, canceled); !errors.Is(err, gone) || errors.Is(err, context.Canceled) {
		t.Error("an engine that fails while the trainer works:", err)
	}
}
