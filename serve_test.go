package molt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
	"go.uber.org/goleak"
)

// served is a choice of an answer, or of a chunk.
type served struct {
	Index    int
	Text     string
	LogProbs *struct {
		Tokens []string
		LogP   []float32            `json:"token_logprobs"`
		Top    []map[string]float32 `json:"top_logprobs"`
	}
	Finish   *string `json:"finish_reason"`
	Stop     any     `json:"stop_reason"`
	IDs      []int32 `json:"token_ids"`
	Prompt   []int32 `json:"prompt_token_ids"`
	Versions []int32 `json:"policy_versions"`
}

type servedAnswer struct {
	ID, Object, Model string
	Choices           []served
	Usage             map[string]int
	Error             struct {
		Message, Type string
		Code          int
	}
}

// site is a running `molt serve`.
type site struct {
	*testing.T
	url  string
	stop func() error
}

// firstLine tells when a line is complete.
type firstLine struct {
	bytes.Buffer
	line chan string
	once sync.Once
}

func (f *firstLine) Write(b []byte) (int, error) {
	f.Buffer.Write(b)
	if text, _, ok := strings.Cut(f.String(), "\n"); ok {
		f.once.Do(func() { f.line <- text })
	}
	return len(b), nil
}

func serving(t *testing.T, path string, flags ...string) *site {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stderr := &firstLine{line: make(chan string, 1)}
	ended := make(chan error, 1)
	before := goleak.IgnoreCurrent()
	args := append([]string{"serve", "-model", path, "-addr", "127.0.0.1:0", "-threads", "1", "-cache", "32"}, flags...)
	go func() { ended <- run(ctx, args, nil, io.Discard, stderr) }()
	s := &site{T: t}
	s.stop = sync.OnceValue(func() error {
		cancel()
		err := <-ended
		http.DefaultClient.CloseIdleConnections()
		return errors.Join(err, goleak.Find(before, goleak.IgnoreAnyFunction("github.com/dlclark/regexp2/v2.runClock")))
	})
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	select {
	case line := <-stderr.line:
		url := regexp.MustCompile(`http://127\.0\.0\.1:\d+$`).FindString(line)
		if url == "" {
			t.Fatalf("%q does not say where", line)
		}
		s.url = url
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	}
	return s
}

// send gives the status and the body of an answer.
func (s *site) send(method, path, body string) (int, string) {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		s.Error(err)
		return 0, ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.Error(err)
	}
	return response.StatusCode, string(text)
}

func (s *site) post(path, body string) (status int, a servedAnswer) {
	s.Helper()
	status, text := s.send("POST", path, body)
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		s.Errorf("%v: %s", err, text)
	}
	return status, a
}

// complete gives the choices of a request that succeeds.
func (s *site) complete(o object) servedAnswer {
	s.Helper()
	status, a := s.post("/v1/completions", line(o))
	if status != http.StatusOK {
		s.Fatalf("%s: %d %+v", line(o), status, a.Error)
	}
	return a
}

// streamed puts the chunks of a stream together.
func (s *site) streamed(o object) (a servedAnswer, chunks int) {
	s.Helper()
	o = maps.Clone(o)
	o["stream"] = true
	_, text := s.send("POST", "/v1/completions", line(o))
	text, ok := strings.CutSuffix(text, "data: [DONE]\n\n")
	if !ok {
		s.Fatalf("the stream has no end: %s", text)
	}
	for _, event := range strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		var part servedAnswer
		if err := json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &part); err != nil {
			s.Fatalf("%v: %s", err, event)
		}
		chunks++
		if part.Usage != nil {
			a.Usage = part.Usage
		}
		for _, c := range part.Choices {
			for len(a.Choices) <= c.Index {
				a.Choices = append(a.Choices, served{Index: len(a.Choices)})
			}
			whole := &a.Choices[c.Index]
			if whole.Finish != nil {
				s.Errorf("choice %d goes on after its end", c.Index)
			}
			whole.Text += c.Text
			whole.IDs, whole.Versions = append(whole.IDs, c.IDs...), append(whole.Versions, c.Versions...)
			whole.Finish, whole.Stop = c.Finish, c.Stop
			if c.Prompt != nil {
				whole.Prompt = c.Prompt
			}
			if whole.LogProbs == nil {
				whole.LogProbs = c.LogProbs
			} else if l := whole.LogProbs; c.LogProbs != nil {
				l.Tokens, l.LogP = append(l.Tokens, c.LogProbs.Tokens...), append(l.LogP, c.LogProbs.LogP...)
				l.Top = append(l.Top, c.LogProbs.Top...)
			}
		}
	}
	return a, chunks
}

// metric reads one of /metrics.
func (s *site) metric(name string) string {
	s.Helper()
	_, text := s.send("GET", "/metrics", "")
	_, rest, ok := strings.Cut(text, "\n"+name+" ")
	if !ok {
		s.Fatalf("no %s in\n%s", name, text)
	}
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// waitFor waits until a metric has a value.
func (s *site) waitFor(name, value string) {
	s.Helper()
	for range 3000 {
		if s.metric(name) == value {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.Fatalf("%s is %s, and never became %s", name, s.metric(name), value)
}

func TestServedTokensEqualTheEnginesForTheSameSeed(t *testing.T) {
	s := serving(t, tinyModel)
	prompts := [][]int32{{5, 6, 7}, {9}, {11, 12}}
	sampling := rollout.Sampling{Temperature: 0.8, TopP: 0.9, TopK: 50, MinP: 0.01, Penalty: 1.1, MaxTokens: 9, TopLogP: 3, IgnoreEOS: true,
		Bias: map[int32]float32{3: 2}}
	o := object{"prompt": prompts, "temperature": 0.8, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "repetition_penalty": 1.1, "max_tokens": 9,
		"logprobs": 3, "ignore_eos": true, "logit_bias": object{"3": 2}, "seed": 41, "n": 2, "return_token_ids": true}
	got := s.complete(o)
	g, err := newGenerator(options{model: tinyModel, dtype: torch.Float32, threads: 1, cacheMB: 32, maxRunning: 256})
	if err != nil {
		t.Fatal(err)
	}
	err = together(t.Context(), g.engine.Run, func(ctx context.Context) error {
		if err := g.engine.LoadFile(ctx, 0, tinyModel); err != nil {
			return err
		}
		for i, c := range got.Choices {
			if sampling.Seed = 41; i%2 == 1 {
				sampling.Seed = rollout.MixSeed(41, 1)
			}
			want, err := g.engine.Generate(ctx, rollout.Request{IDs: prompts[i/2], Sampling: sampling})
			if err != nil {
				return err
			}
			if c.Index != i || *c.Finish != "length" || c.Text != "" || !slices.Equal(c.Prompt, prompts[i/2]) {
				t.Errorf("choice %d: %+v", i, c)
			}
			for j, token := range want.Tokens {
				name := fmt.Sprint("token_id:", token.ID())
				if c.IDs[j] != token.ID() || c.LogProbs.LogP[j] != token.LogP() || c.Versions[j] != 0 || c.LogProbs.Tokens[j] != name {
					t.Errorf("choice %d, token %d: %d %v %s, want %d %v", i, j, c.IDs[j], c.LogProbs.LogP[j], c.LogProbs.Tokens[j],
						token.ID(), token.LogP())
				}
				top := map[string]float32{}
				for _, x := range want.Top[j] {
					top[fmt.Sprint("token_id:", x.ID)] = x.LogP
				}
				top[name] = token.LogP()
				if d := cmp.Diff(top, c.LogProbs.Top[j]); d != "" {
					t.Error(d)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]int{"prompt_tokens": 6, "completion_tokens": 54, "total_tokens": 60}, got.Usage); d != "" || len(got.Choices) != 6 {
		t.Error(d, len(got.Choices))
	}
	again, _ := s.streamed(o)
	if d := cmp.Diff(got.Choices, again.Choices); d != "" {
		t.Errorf("a stream gives something else:\n%s", d)
	}
	unseeded := object{"prompt": []int{5}, "ignore_eos": true}
	if a, b := s.complete(unseeded), s.complete(unseeded); slices.Equal(a.Choices[0].IDs, b.Choices[0].IDs) || len(a.Choices[0].IDs) != 16 {
		t.Errorf("without a seed: %v and %v", a.Choices[0].IDs, b.Choices[0].IDs)
	}
}

// talking is the tiny model with words: id 2, which ends a text, is special, 3 and 4 are letters, 5 is half a character.
func talking(t *testing.T) string {
	t.Helper()
	dir, vocab := t.TempDir(), object{"<eos>": 2, "a": 3, "b": 4, "Ã": 5}
	for id := 6; id < 320; id++ {
		vocab[fmt.Sprintf("w%d_", id)] = id
	}
	text := line(object{"model": object{"type": "BPE", "vocab": vocab, "merges": []string{}},
		"added_tokens": []object{{"id": 2, "content": "<eos>", "special": true}}, "decoder": object{"type": "ByteLevel"},
		"pre_tokenizer": object{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}})
	err := errors.Join(os.CopyFS(dir, os.DirFS(tinyModel)), os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(text), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestServedTextEndsBeforeWhatStoppedIt(t *testing.T) {
	s := serving(t, talking(t))
	ask := func(more object) object {
		o := object{"prompt": "ab", "seed": 1, "max_tokens": 6, "return_token_ids": true, "logprobs": 0, "logit_bias": object{"2": -100}}
		maps.Copy(o, more)
		return o
	}
	full := s.complete(ask(nil)).Choices[0]
	var words []string
	for _, id := range full.IDs {
		words = append(words, fmt.Sprintf("w%d_", id))
	}
	text := strings.Join(words, "")
	if full.Text != text || !slices.Equal(full.Prompt, []int32{3, 4}) || words[0] == words[1] || words[1] == words[2] {
		t.Fatalf("%+v", full)
	}
	across := words[1][1:] + words[2][:2]
	before, _, _ := strings.Cut(text, across)
	third := full.IDs[2]
	ends := object{"2": 1000}
	for _, c := range []struct {
		more         object
		text, finish string
		stop         any
		tokens       int
	}{
		{object{"max_tokens": 3}, strings.Join(words[:3], ""), "length", nil, 3},
		{object{"stop": across}, before, "stop", across, 3},
		{object{"stop": []string{"zzz", words[2], across, "never there at all"}}, before, "stop", across, 3},
		{object{"stop_token_ids": []int32{third}}, words[0] + words[1], "stop", float64(third), 3},
		{object{"stop_token_ids": []int32{third}, "ignore_eos": true}, words[0] + words[1], "stop", float64(third), 3},
		{object{"logit_bias": ends}, "", "stop", nil, 1},
		{object{"logit_bias": ends, "ignore_eos": true, "stop": "eos>"}, "", "length", nil, 6},
		{object{"logit_bias": ends, "ignore_eos": true, "skip_special_tokens": false, "stop": "s><e"}, "<eo", "stop", "s><e", 2},
		{object{"logit_bias": object{"5": 1000}, "stop": "ab"}, strings.Repeat("\uFFFD", 6), "length", nil, 6},
	} {
		whole := s.complete(ask(c.more))
		got := whole.Choices[0]
		if got.Text != c.text || *got.Finish != c.finish || got.Stop != c.stop || len(got.IDs) != c.tokens || len(got.Versions) != c.tokens {
			t.Errorf("%v: %q, %s, %v, %v, want %q, %s, %v, %d tokens", c.more, got.Text, *got.Finish, got.Stop, got.IDs, c.text, c.finish, c.stop, c.tokens)
		}
		c.more["stream_options"] = object{"include_usage": true}
		parts, chunks := s.streamed(ask(c.more))
		if d := cmp.Diff(whole.Choices, parts.Choices) + cmp.Diff(whole.Usage, parts.Usage); d != "" || chunks != c.tokens+2 {
			t.Errorf("%v: a stream of %d chunks gives something else:\n%s", c.more, chunks, d)
		}
	}
	if l := full.LogProbs; !slices.Equal(l.Tokens, words) || len(l.Top[1]) != 1 || l.Top[1][words[1]] != l.LogP[1] {
		t.Errorf("%+v", l)
	}
	plain := s.complete(object{"prompt": []string{"ab", "b"}, "max_tokens": 2}).Choices
	if c := plain[1]; len(plain) != 2 || c.IDs != nil || c.Prompt != nil || c.LogProbs != nil || c.Index != 1 {
		t.Errorf("%+v", plain)
	}
}

func TestABadRequestIsRefusedAndItsFieldNamed(t *testing.T) {
	s := serving(t, tinyModel)
	for body, want := range map[string]string{
		`garbage`: "not a JSON object", ``: "not a JSON object", `[1]`: "not a JSON object", `{}`: "prompt", `{"prompt":null}`: "prompt",
		`{"prompt":[]}`: "prompt has 0 tokens", `{"prompt":[[1],[]]}`: "prompt has 0 tokens", `{"prompt":[1,null]}`: "prompt: ",
		`{"prompt":5}`: "prompt: ", `{"prompt":[1.5]}`: "prompt: ", `{"prompt":{"ids":[1]}}`: "prompt: ", `{"prompt":[1,"a"]}`: "prompt: ",
		`{"prompt":[320]}`: "prompt: token 320", `{"prompt":[-1]}`: "prompt: token -1", `{"prompt":"a"}`: "prompt, stop: the model has no tokenizer",
		`{"prompt":[` + strings.Repeat("1,", 256) + `1]}`: "prompt has 257 tokens: must have from 1 to 256",
		`{"prompt":[1],"max_token":1}`:                    `"max_token"; the nearest known key is "max_tokens"`,
		`{"prompt":[1],"guided_json":{}}`:                 `unknown key "guided_json"`, `{"prompt":[1],"max_tokens":0}`: "max_tokens",
		`{"prompt":[1],"max_tokens":"a"}`: "max_tokens: ", `{"prompt":[1],"max_tokens":-1}`: "max_tokens", `{"prompt":[1],"temperature":-1}`: "temperature",
		`{"prompt":[1],"temperature":1e300}`: "temperature", `{"prompt":[1],"top_p":0}`: "top_p", `{"prompt":[1],"top_p":1.1}`: "top_p",
		`{"prompt":[1],"top_k":-2}`: "top_k", `{"prompt":[1],"min_p":2}`: "min_p", `{"prompt":[1],"repetition_penalty":0}`: "repetition_penalty",
		`{"prompt":[1],"seed":-1}`: "seed: ", `{"prompt":[1],"seed":1.5}`: "seed: ", `{"prompt":[1],"n":0}`: "n is 0",
		`{"prompt":[1],"n":9223372036854775807}`: "n is", `{"prompt":[[1],[2]],"n":16000}`: "prompts times n", `{"prompt":[1],"logprobs":-1}`: "logprobs",
		`{"prompt":[1],"logprobs":256}`: "logprobs", `{"prompt":[1],"stop":"a"}`: "stop", `{"prompt":[1],"stop":[1]}`: "stop: ",
		`{"prompt":[1],"stop_token_ids":[320]}`: "stop_token_ids", `{"prompt":[1],"stop_token_ids":[null]}`: "stop_token_ids",
		`{"prompt":[1],"stop_token_ids":3}`: "stop_token_ids", `{"prompt":[1],"logit_bias":{"320":1}}`: "logit_bias",
		`{"prompt":[1],"logit_bias":{"a":1}}`: "logit_bias", `{"prompt":[1],"ignore_eos":1}`: "ignore_eos: ", `{"prompt":[1],"echo":true}`: "echo: true",
		`{"prompt":[1],"frequency_penalty":0.5}`: "frequency_penalty: 0.5", `{"prompt":[1],"stream":"yes"}`: "stream: ",
		`{"prompt":[1],"stream":true,"n":0}`: "n is 0",
	} {
		status, a := s.post("/v1/completions", body)
		if status != 400 || a.Error.Code != 400 || a.Error.Type != "BadRequestError" || !strings.Contains(a.Error.Message, want) {
			t.Errorf("%.80s: %d %+v, want %q", body, status, a.Error, want)
		}
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/v1/completions", strings.Repeat(" ", maxLine+1), 413, "larger than 64 MB"},
		{"GET", "/v1/completions", "", 404, "there is no GET /v1/completions"}, {"POST", "/health", "", 404, "no POST"},
		{"POST", "/v1/chat", "", 404, "there is no POST /v1/chat"}, {"GET", "/", "", 404, "there is no GET /"},
		{"POST", "/v1/load", `{"version":1}`, 400, "path"}, {"POST", "/v1/load", `{"path":"x"}`, 400, "version"},
		{"POST", "/v1/load", `{"version":1,"path":"/nowhere"}`, 400, "/nowhere"}, {"POST", "/v1/load", `{"version":-1,"path":"x"}`, 400, "version"},
		{"POST", "/v1/load", `{"verzion":1}`, 400, `nearest known key is \"version\"`},
	} {
		if status, text := s.send(c.method, c.path, c.body); status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s %s %.60s: %d %s, want %d %s", c.method, c.path, c.body, status, text, c.status, c.want)
		}
	}
	s.complete(object{"prompt": []int{1}, "model": "policy", "echo": false, "presence_penalty": 0, "user": "me", "stop": nil, "top_k": -1,
		"stream_options": nil, "temperature": 1e-7})
}
