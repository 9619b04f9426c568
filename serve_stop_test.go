package molt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/molt-go/molt/torch"
)

// long is a request that takes long: 200 samples of 250 tokens, one after the other.
func long(t *testing.T) (*site, object) {
	return serving(t, tinyModel, "-max-running", "1"), object{"prompt": []int{1, 2, 3}, "max_tokens": 250, "ignore_eos": true, "n": 200}
}

func TestAClientThatLeavesFreesItsSequence(t *testing.T) {
	s, o := long(t)
	for _, o["stream"] = range []bool{false, true} {
		ctx, leave := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, "POST", s.url+"/v1/completions", strings.NewReader(line(o)))
		if err != nil {
			t.Fatal(err)
		}
		left := make(chan error)
		go func() {
			response, err := http.DefaultClient.Do(r)
			if err == nil {
				_, err = io.ReadAll(response.Body)
				response.Body.Close()
			}
			left <- err
		}()
		s.waitFor("molt_running", "1")
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		s.waitFor("molt_running", "0")
	}
	if s.metric("molt_waiting") != "0" || len(s.metric("molt_generated_tokens_total")) > 4 {
		t.Error("tokens generated for nobody:", s.metric("molt_generated_tokens_total"))
	}
}

func TestALoadThatFailsLeavesTheOldVersionServing(t *testing.T) {
	s := serving(t, tinyModel)
	o := object{"prompt": []int{5, 6}, "temperature": 0, "ignore_eos": true}
	before := s.complete(o).Choices[0]
	other := "testdata/reference/models/llama_tied_rope_llama3"
	if status, a := s.post("/v1/load", line(object{"version": 3, "path": other})); status != 400 || !strings.Contains(a.Error.Message, "version 3") {
		t.Errorf("another model: %d %+v", status, a)
	}
	lacking := lacking(t, "model.norm.weight")
	if status, a := s.post("/v1/load", line(object{"version": 3, "path": lacking})); status != 400 || !strings.Contains(a.Error.Message, "model.norm.weight") {
		t.Errorf("a missing parameter: %d %+v", status, a)
	}
	if d := cmp.Diff(before, s.complete(o).Choices[0]); d != "" {
		t.Errorf("the old version gives something else:\n%s", d)
	}
	if status, text := s.send("POST", "/v1/load", line(object{"version": 7, "path": tinyModel})); status != 200 || text != "{\"version\":7}\n" {
		t.Error(status, text)
	}
	after := s.complete(o).Choices[0]
	if d := cmp.Diff(before, after, cmpopts.IgnoreFields(served{}, "Versions")); d != "" || after.Versions[0] != 7 {
		t.Errorf("version %d: %s", after.Versions[0], d)
	}
}

// lacking is a copy of the tiny model without one of its tensors.
func lacking(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(tinyModel)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "model.safetensors")
	file, err := os.ReadFile(path)
	if err == nil && bytes.Count(file, []byte(`"`+name+`"`)) == 1 {
		file = bytes.Replace(file, []byte(name), []byte(strings.Repeat("x", len(name))), 1)
		err = os.WriteFile(path, file, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestARequestThatSpansALoadHasBothVersions(t *testing.T) {
	s := serving(t, tinyModel, "-max-running", "3")
	answered := make(chan []served)
	go func() {
		answered <- s.complete(object{"prompt": [][]int{{1, 2, 3}, make([]int, 40)}, "max_tokens": 250, "ignore_eos": true, "n": 6}).Choices
	}()
	s.waitFor("molt_running", "3")
	if status, a := s.post("/v1/load", line(object{"version": 1, "path": tinyModel})); status != 200 {
		t.Errorf("%d %+v", status, a)
	}
	both := 0
	for _, c := range <-answered {
		if !slices.IsSorted(c.Versions) || len(c.Versions) != len(c.IDs) {
			t.Errorf("%+v", c)
		}
		if c.Versions[0] == 0 && slices.Contains(c.Versions, 1) {
			both++
		}
	}
	if both == 0 {
		t.Error("no choice has tokens of both versions")
	}
}

func TestTwoHundredRequestsAtOnceAreAnsweredLikeAlone(t *testing.T) {
	s := serving(t, tinyModel)
	ask := func(i int) object {
		return object{"prompt": []int{i % 300, 7}, "max_tokens": 4 + i%9, "seed": i, "ignore_eos": true, "logprobs": 0, "return_token_ids": true}
	}
	var all sync.WaitGroup
	got := make([]servedAnswer, 200)
	for i := range got {
		all.Go(func() {
			if i%4 == 0 {
				got[i], _ = s.streamed(ask(i))
			} else {
				got[i] = s.complete(ask(i))
			}
		})
	}
	all.Wait()
	for i := 0; i < len(got); i += 17 {
		if d := cmp.Diff(s.complete(ask(i)).Choices, got[i].Choices); d != "" {
			t.Errorf("request %d (-alone +among others):\n%s", i, d)
		}
	}
}

func TestAStopAnswersWhatRunsAndEndsCleanly(t *testing.T) {
	s, o := long(t)
	answered := make(chan servedAnswer, 2)
	go func() { answered <- s.complete(o) }()
	go func() { a, _ := s.streamed(o); answered <- a }()
	silent, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://")) // never asks
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for s.metric("molt_waiting") != "399" {
		time.Sleep(time.Millisecond)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	for range 2 {
		a := <-answered
		if c := a.Choices[199]; len(a.Choices) != 200 || *c.Finish != "abort" || len(c.IDs) != len(c.Versions) {
			t.Errorf("%d choices, the last %+v", len(a.Choices), c)
		}
	}
	if _, err := http.Get(s.url + "/health"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
}

func TestServeRefusesWhatItCannotDo(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for args, want := range map[string]string{
		"-addr " + taken.Addr().String(): "address already in use", "-addr nowhere": "-addr: ", "-context 257": "-context is 257: at most 256",
		"-context -1": "-context is -1", "-max-running 0": "-max-running 0", "-cache 0": "cache_mb = 0", "-top 1": "not defined: -top",
	} {
		err := run(t.Context(), append([]string{"serve", "-model", tinyModel}, strings.Fields(args)...), nil, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("molt serve %s: %v, want %q", args, err, want)
		}
	}
	empty := lacking(t, "model.norm.weight")
	if err := run(t.Context(), []string{"serve", "-model", empty, "-addr", "127.0.0.1:0", "-cache", "16"}, nil, io.Discard, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "model.norm.weight") {
		t.Error("a first load that fails:", err)
	}
}

func TestWithoutWeightsOrAnEngineTheAnswerIs503(t *testing.T) {
	g, err := newGenerator(options{model: tinyModel, dtype: torch.Float32, threads: 1, cacheMB: 16, maxRunning: 8})
	if err != nil {
		t.Fatal(err)
	}
	e := &endpoints{generator: g, stopping: t.Context()}
	check := func(method, path, body string) {
		t.Helper()
		w := httptest.NewRecorder()
		e.handler().ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "ServiceUnavailableError") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	check("GET", "/health", "")
	check("POST", "/v1/completions", `{"prompt":[1]}`)
	e.loaded.Store(true)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.engine.Run(gone); err != nil {
		t.Fatal(err)
	}
	check("POST", "/v1/completions", `{"prompt":[1]}`)
	check("POST", "/v1/completions", `{"prompt":[1],"stream":true}`)
	check("POST", "/v1/load", line(object{"version": 1, "path": tinyModel}))
	e.stopping = gone
	check("GET", "/health", "")
}

func TestALogProbThatIsNoNumberIsAnErrorAndValidJSON(t *testing.T) {
	e := &endpoints{stopping: t.Context()}
	status, text := e.encode(choice{LogProbs: &logProbs{LogP: []number{number(math.NaN())}}}, nil)
	if status != http.StatusInternalServerError || !json.Valid(text) || !strings.Contains(string(text), "NaN") {
		t.Errorf("%d %s", status, text)
	}
}

func TestHealthAndMetricsAreThere(t *testing.T) {
	s := serving(t, tinyModel, "-context", "100", "-max-running", "3")
	if status, text := s.send("GET", "/health", ""); status != 200 {
		t.Error(status, text)
	}
	if status, _ := s.send("HEAD", "/health", ""); status != 200 {
		t.Error(status)
	}
	if a := s.complete(object{"model": "tiny", "prompt": []int{1, 2}, "max_tokens": 1000, "ignore_eos": true}); len(a.Choices[0].IDs) != 98 || a.Model != "tiny" ||
		a.Object != "text_completion" || *a.Choices[0].Finish != "length" {
		t.Errorf("%+v", a)
	}
	_, text := s.send("GET", "/metrics", "")
	for _, sample := range regexp.MustCompile(`(?m)^(\w+).* -?\d+$`).FindAllStringSubmatch(text, -1) {
		kind := "gauge"
		if strings.HasSuffix(sample[1], "_total") {
			kind = "counter"
		}
		if !strings.Contains(text, "# TYPE "+sample[1]+" "+kind+"\n") || !strings.Contains(text, "# HELP "+sample[1]+" ") {
			t.Errorf("%s has no HELP or TYPE", sample[1])
		}
	}
	for name, want := range map[string]string{"molt_generated_tokens_total": "98", "molt_running": "0", "molt_waiting": "0",
		"molt_steps_total": "98", "molt_policy_version": "0", "molt_preemptions_total": "0"} {
		if got := s.metric(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}
