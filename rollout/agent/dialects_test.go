package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/rollout"
)

// hermes is a template with calls as models of that name write them.
const hermes = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}" +
	"{% for c in m.tool_calls or [] %}<tool_call>\n" +
	`{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}` + "\n</tool_call>{% endfor %}" +
	"<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

type object = map[string]any

// event is one of a stream.
type event struct {
	name string
	data object
}

// post gives the answer to a request, or the events of its stream.
func (s *stand) post(path, body string, headers ...string) (status int, answer object, events []event) {
	s.Helper()
	response, err := s.request(s.Context(), s.v.token, "POST", "/v1/"+path, body, headers...)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.Fatal(err)
	}
	if response.Header.Get("Content-Type") == "application/json" {
		if err := json.Unmarshal(text, &answer); err != nil {
			s.Fatalf("%v: %s", err, text)
		}
		return response.StatusCode, answer, nil
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(string(text), "\n\n"), "\n\n") {
		e := event{}
		if line, rest, ok := strings.Cut(part, "\ndata: "); ok {
			e.name, part = strings.TrimPrefix(line, "event: "), "data: "+rest
		}
		if data := strings.TrimPrefix(part, "data: "); data != "[DONE]" {
			if err := json.Unmarshal([]byte(data), &e.data); err != nil {
				s.Fatalf("%v: %s", err, data)
			}
			events = append(events, e)
		}
	}
	return response.StatusCode, nil, events
}

// jsonOf makes an object of its text.
func jsonOf(t *testing.T, text string) (o any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return o
}

// at follows keys and indices into an object.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			o, _ := v.(object)
			v = o[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

func text(v any) string { b, _ := json.Marshal(v); return string(b) }

// A conversation with thoughts, a call and its result in each dialect is one sample of what was generated, and each dialect brings back
// what the model said in a form that is found again.
func TestEveryDialectGoesOnFromItsOwnReplies(t *testing.T) {
	const said, call = "<think>\nhm\n</think>\n\nI look.", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"y\":1, \"x\": \"é\"}}\n</tool_call>"
	for _, c := range []struct {
		path, first, second string
		show                func(answer object) string // the messages of the reply as a client sends them back
		want                string                     // its last words
	}{
		{"chat/completions", `{"messages":[{"role":"user","content":"u"}],"tools":[{"type":"function","function":{"name":"f"}}]}`,
			`{"messages":[{"role":"user","content":"u"},%s,{"role":"tool","tool_call_id":"%s","content":"r"}],"tools":[{"type":"function","function":{"name":"f"}}]}`,
			func(a object) string { return text(at(a, "choices", 0, "message")) }, `["choices",0,"message","content"]`},
		{"messages", `{"max_tokens":500,"messages":[{"role":"user","content":"u"}],"tools":[{"name":"f","input_schema":{"type":"object"}}]}`,
			`{"max_tokens":500,"messages":[{"role":"user","content":[{"type":"text","text":"u","cache_control":{"type":"ephemeral"}}]},{"role":"assistant","content":%s},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"%s","content":[{"type":"text","text":"r"}]}]}],"tools":[{"name":"f","input_schema":{"type":"object"}}]}`,
			func(a object) string { return text(a["content"]) }, `["content",0,"text"]`},
		{"messages", `{"max_tokens":500,"thinking":{"type":"enabled","budget_tokens":1024},"messages":[{"role":"user","content":"u"}],"tools":[{"name":"f","input_schema":{}}]}`,
			`{"max_tokens":500,"messages":[{"role":"user","content":"u"},{"role":"assistant","content":%s},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"%s","content":"r"}]}],"tools":[{"name":"f","input_schema":{}}]}`,
			func(a object) string { return text(a["content"]) }, `["content",0,"text"]`},
		{"responses", `{"input":"u","tools":[{"type":"function","name":"f","parameters":{},"strict":true}]}`,
			`{"input":[{"role":"user","content":"u"},%s,{"type":"function_call_output","call_id":"%s","output":"r"}],"tools":[{"type":"function","name":"f","parameters":{}}]}`,
			func(a object) string { return strings.Trim(text(a["output"]), "[]") }, `["output",0,"content",0,"text"]`},
	} {
		g := &saying{texts: []string{said + "\n" + call + "<|im_end|>", "so<|im_end|>"}}
		s := newStand(t, "{% if false %}</think>{% endif %}"+hermes, g, ServerConfig{})
		s.v.spec.Sampling.MaxTokens = 500
		status, first, _ := s.post(c.path, c.first)
		if status != 200 {
			t.Fatalf("%s: %d %v", c.path, status, first)
		}
		id := ""
		for _, b := range slices.Concat(listOf(first["content"]), listOf(first["output"]), listOf(at(first, "choices", 0, "message", "tool_calls"))) {
			if i, ok := at(b, "call_id").(string); ok {
				id = i
			} else if i, ok := at(b, "id").(string); ok && id == "" && at(b, "type") != "reasoning" && at(b, "type") != "message" {
				id = i
			}
		}
		status, second, _ := s.post(c.path, fmt.Sprintf(c.second, c.show(first), id))
		var path []any
		for _, p := range jsonOf(t, c.want).([]any) {
			if f, ok := p.(float64); ok {
				p = int(f)
			}
			path = append(path, p)
		}
		if status != 200 || at(second, path...) != "so" {
			t.Errorf("%s: %d %v", c.path, status, second)
		}
		if shown := s.chat.Decode(g.asked[1].IDs); !strings.HasSuffix(shown, said+"\n"+call+"<|im_end|>\n<|im_start|>tool\nr<|im_end|>\n<|im_start|>assistant\n") {
			t.Errorf("%s: the model was shown %q", c.path, shown)
		}
		samples := s.v.close()
		if len(samples) != 1 {
			t.Fatalf("%s: %d samples; it sent %s", c.path, len(samples), c.show(first))
		}
		want := slices.Concat(s.ids(said+"\n"+call+"<|im_end|>"), s.ids("so<|im_end|>"))
		var trained []int32
		k := samples[0].Tokens()
		for i, m := range k.Mask {
			if m {
				trained = append(trained, k.IDs[i])
			}
		}
		if diff := cmp.Diff(want, trained); diff != "" {
			t.Errorf("%s: %s", c.path, diff)
		}
	}
}

func listOf(v any) []any { l, _ := v.([]any); return l }

// What the events of a stream add up to is the whole answer.
func TestTheEventsOfAStreamMakeTheWholeAnswer(t *testing.T) {
	call := "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"
	for _, said := range []string{"plain 😍 é<|im_end|>", "cut \xf0\x9f", "<think>why</think>so<|im_end|>", "<|im_end|>", strings.Repeat("x", 300),
		"<think>hm</think>I call \n" + call + call + "<|im_end|>", "one STOP two"} {
		g := &saying{texts: []string{said}}
		s := newStand(t, "{% if false %}</think>{% endif %}"+hermes, g, ServerConfig{})
		body := `{"max_tokens":250,"thinking":{"type":"adaptive"},"stop_sequences":["STOP"],
			"messages":[{"role":"user","content":"u"}],"tools":[{"name":"f","input_schema":{}}]%s}`
		_, whole, _ := s.post("messages", fmt.Sprintf(body, ""))
		_, _, events := s.post("messages", fmt.Sprintf(body, `,"stream":true`))
		got := rebuildMessage(t, events)
		for _, o := range []object{whole, got} {
			delete(o, "id")
			for _, b := range listOf(o["content"]) { // of calls, which have the answer's seed in them
				delete(b.(object), "id")
			}
		}
		if diff := cmp.Diff(whole, got); diff != "" || whole["type"] != "message" {
			t.Errorf("%q: %s", said, diff)
		}
		if stop := strings.Contains(said, "STOP"); stop != (whole["stop_reason"] == "stop_sequence") || stop != (whole["stop_sequence"] == "STOP") {
			t.Errorf("%q: %v", said, whole)
		}
		body = `{"max_output_tokens":250,"input":"u","tools":[{"type":"function","name":"f"}]%s}`
		_, whole, _ = s.post("responses", fmt.Sprintf(body, ""))
		_, _, events = s.post("responses", fmt.Sprintf(body, `,"stream":true`))
		got = rebuildResponse(t, events)
		for _, o := range []object{whole, got} {
			delete(o, "id")
			delete(o, "created_at")
			for _, b := range listOf(o["output"]) {
				delete(b.(object), "id")
				delete(b.(object), "call_id")
			}
		}
		if diff := cmp.Diff(whole, got); diff != "" || whole["object"] != "response" {
			t.Errorf("%q: %s", said, diff)
		}
	}
}

// rebuildMessage adds up the events of a message as clients do.
func rebuildMessage(t *testing.T, events []event) (m object) {
	var blocks []object
	for i, e := range events {
		if e.data["type"] != e.name || (i == 0) != (e.name == "message_start") || (i == len(events)-1) != (e.name == "message_stop") {
			t.Errorf("event %d: %v", i, e)
		}
		n, _ := e.data["index"].(float64)
		switch e.name {
		case "message_start":
			m = e.data["message"].(object)
		case "content_block_start":
			if int(n) != len(blocks) {
				t.Errorf("block %v starts after %d", n, len(blocks))
			}
			blocks = append(blocks, e.data["content_block"].(object))
		case "content_block_delta":
			d, b := e.data["delta"].(object), blocks[int(n)]
			for _, key := range []string{"text", "thinking"} {
				if more, ok := d[key].(string); ok {
					b[key] = b[key].(string) + more
				}
			}
			if more, ok := d["partial_json"].(string); ok {
				sofar, _ := b["partial"].(string)
				b["partial"] = sofar + more
			}
		case "content_block_stop":
			if b := blocks[int(n)]; b["partial"] != nil {
				b["input"] = jsonOf(t, b["partial"].(string))
				delete(b, "partial")
			}
		case "message_delta":
			d := e.data["delta"].(object)
			m["stop_reason"], m["stop_sequence"], m["usage"] = d["stop_reason"], d["stop_sequence"], e.data["usage"]
		}
	}
	content := []any{}
	for _, b := range blocks {
		content = append(content, b)
	}
	m["content"] = content
	return m
}

// rebuildResponse checks that the parts of a response add up to what its last event has.
func rebuildResponse(t *testing.T, events []event) object {
	var items []object
	for i, e := range events {
		if e.data["type"] != e.name || e.data["sequence_number"] != float64(i) {
			t.Errorf("event %d: %v", i, e)
		}
		n, _ := e.data["output_index"].(float64)
		switch kind := strings.TrimPrefix(e.name, "response."); {
		case kind == "output_item.added":
			items = append(items, e.data["item"].(object))
		case strings.HasSuffix(kind, ".delta"):
			sofar, _ := items[int(n)]["sofar"].(string)
			items[int(n)]["sofar"] = sofar + e.data["delta"].(string)
			if e.data["item_id"] != items[int(n)]["id"] {
				t.Errorf("event %d: %v", i, e)
			}
		case kind == "output_item.done":
			item, sofar := e.data["item"].(object), items[int(n)]["sofar"]
			shown := at(item, "content", 0, "text")
			if item["type"] == "function_call" {
				shown = item["arguments"]
			}
			if sofar == nil {
				sofar = ""
			}
			if shown != sofar {
				t.Errorf("event %d: %v, deltas %v", i, item, sofar)
			}
		}
	}
	last := events[len(events)-1].data["response"].(object)
	if n := len(listOf(last["output"])); n != len(items) {
		t.Errorf("%d items in the end, %d before", n, len(items))
	}
	return last
}

// tool_choice makes the reply begin with a call; what was put there is not trained on, the rest is.
func TestAForcedCallIsNotTrainedOnButWhatFollowsIs(t *testing.T) {
	chatTools := `"messages":[{"role":"user","content":"u"}],"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]`
	named, open := "<tool_call>\n{\"name\": \"g\", \"arguments\":", "<tool_call>\n{\"name\": \""
	for _, c := range []struct{ path, body, opening, said string }{
		{"chat/completions", `{` + chatTools + `,"tool_choice":{"type":"function","function":{"name":"g"}}}`, named, "{\"x\": 1}}\n</tool_call><|im_end|>"},
		{"chat/completions", `{` + chatTools + `,"tool_choice":"required"}`, open, "g\", \"arguments\": {\"x\": 1}}\n</tool_call><|im_end|>"},
		{"messages", `{"max_tokens":90,"messages":[{"role":"user","content":"u"}],"tools":[{"name":"g","input_schema":{}}],"tool_choice":{"type":"any"}}`,
			named, "{\"x\": 1}}\n</tool_call><|im_end|>"},
		{"messages", `{"max_tokens":90,"messages":[{"role":"user","content":"u"}],"tools":[{"name":"f","input_schema":{}},{"name":"g","input_schema":{}}],
			"tool_choice":{"type":"tool","name":"g"}}`, named, "{\"x\": 1}}\n</tool_call><|im_end|>"},
		{"responses", `{"input":"u","tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}],"tool_choice":{"type":"function","name":"g"}}`,
			named, "{\"x\": 1}}\n</tool_call><|im_end|>"},
	} {
		for _, template := range []string{hermes, strings.Replace(hermes, "assistant\n{% endif %}", "assistant\n<think>\n{% endif %}", 1) + "{% if false %}</think>{% endif %}"} {
			g := &saying{texts: []string{c.said}}
			s := newStand(t, template, g, ServerConfig{})
			s.v.spec.Sampling.MaxTokens = 100
			status, a, _ := s.post(c.path, c.body)
			got := text(a)
			if status != 200 || !strings.Contains(got, `"name":"g"`) || !strings.Contains(got, `{\"x\": 1}`) && !strings.Contains(got, `"input":{"x":1}`) {
				t.Errorf("%s: %d %s", c.path, status, got)
			}
			if shown := s.chat.Decode(g.asked[0].IDs); !strings.HasSuffix(shown, c.opening) || strings.Count(shown, "<think>") != strings.Count(shown, "</think>") {
				t.Errorf("%s: the model was shown %q", c.path, shown)
			}
			samples := s.v.close()
			if len(samples) != 1 || samples[0].NumTrained() != len(s.ids(c.said)) {
				t.Errorf("%s: %d samples", c.path, len(samples))
			}
		}
	}
	s := newStand(t, hermes, &saying{texts: []string{"a"}}, ServerConfig{})
	for body, want := range map[string]string{
		`{"messages":[{"role":"user","content":"u"}],"tool_choice":"required"}`:                  "the request has no tools",
		`{` + chatTools + `,"tool_choice":{"type":"function","function":{"name":"h"}}}`:          `there is no tool "h"`,
		`{` + chatTools + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"tools":1}}}`: "is not supported",
	} {
		if status, a, _ := s.post("chat/completions", body); status != 400 || !strings.Contains(text(a), strings.ReplaceAll(want, `"`, `\"`)) {
			t.Errorf("%s: %d %v", body, status, a)
		}
	}
}

func TestMessagesGoOnFromWhatTheReplyIsGiven(t *testing.T) {
	g := &saying{texts: []string{" two<|im_end|>", "c<|im_end|>"}}
	s := newStand(t, chatML, g, ServerConfig{})
	status, a, _ := s.post("messages", `{"max_tokens":9,"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"one"}]}`)
	if status != 200 || at(a, "content", 0, "text") != " two" || at(a, "stop_reason") != "end_turn" {
		t.Errorf("%d %v", status, a)
	}
	s.post("messages", `{"max_tokens":9,"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"one two"},{"role":"user","content":"v"}]}`)
	if samples := s.v.close(); len(samples) != 1 || samples[0].NumTrained() != len(" two")+1+2 {
		t.Errorf("%d samples", len(samples))
	}
}

func TestCountedTokensAreThoseOfThePrompt(t *testing.T) {
	s := newStand(t, hermes, &saying{texts: []string{"a<|im_end|>"}}, ServerConfig{})
	const body = `{"system":[{"type":"text","text":"be brief"}],"messages":[{"role":"user","content":"u"}],"model":"m"%s}`
	_, counted, _ := s.post("messages/count_tokens", fmt.Sprintf(body, ""))
	_, a, _ := s.post("messages", fmt.Sprintf(body, `,"max_tokens":9`))
	if counted["input_tokens"] != at(a, "usage", "input_tokens") || counted["input_tokens"] == nil || len(counted) != 1 {
		t.Errorf("%v, %v", counted, a)
	}
}

func TestErrorsHaveTheirVendorsForm(t *testing.T) {
	s := newStand(t, chatML, &saying{texts: []string{"a"}}, ServerConfig{Context: 60})
	long := strings.Repeat("u", 100)
	for _, c := range []struct {
		path, body string
		status     int
		kind, say  string
	}{
		{"messages", `{"max_tokens":9,"messages":[{"role":"user","content":"` + long + `"}]}`, 400, "invalid_request_error", "fills the model's context"},
		{"messages", `{"max_tokens":9,"messages":[{"role":"user","content":[{"type":"document"}]}]}`, 400, "invalid_request_error", "document"},
		{"messages", `{"max_tokens":9,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA"}}]}]}`,
			400, "invalid_request_error", "image"},
		{"messages", `{"max_tokens":9,"messages":[{"role":"user","content":"u"}],"tools":[{"type":"web_search_20250305","name":"web"}]}`, 400, "invalid_request_error", "web_search"},
		{"messages", `{"messages":[]}`, 400, "invalid_request_error", "messages: "},
		{"messages/no", `{}`, 404, "not_found_error", "there is no"},
		{"responses", `{"input":"` + long + `"}`, 400, "invalid_request_error", "fills the model's context"},
		{"responses", `{"input":[{"type":"computer_call"}]}`, 400, "invalid_request_error", "computer_call"},
		{"responses", `{"input":"u","previous_response_id":"resp_x"}`, 400, "invalid_request_error", "resp_x"},
		{"responses", `{"input":"u","text":{"format":{"type":"json_schema"}}}`, 400, "invalid_request_error", "json_schema"},
		{"responses", `{"input":"u","tools":[{"type":"web_search"}]}`, 400, "invalid_request_error", "web_search"},
		{"completions", `{"prompt":[1,99999999]}`, 400, "invalid_request_error", "prompt: must be of tokens"},
		{"completions", `{"prompt":""}`, 400, "invalid_request_error", "prompt: must be a text"},
		{"completions", `{"prompt":"a","echo":true}`, 400, "invalid_request_error", "echo"},
	} {
		status, a, _ := s.post(c.path, c.body)
		e, _ := a["error"].(object)
		if message, _ := e["message"].(string); status != c.status || e["type"] != c.kind || !strings.Contains(message, c.say) ||
			(a["type"] == "error") != strings.HasPrefix(c.path, "messages") {
			t.Errorf("%s %.60s: %d %v", c.path, c.body, status, a)
		}
	}
	s.v.token = "wrong"
	if status, a, _ := s.post("messages", `{}`); status != 401 || at(a, "error", "type") != "authentication_error" {
		t.Errorf("%d %v", status, a)
	}
}

func TestAResponseGoesOnFromAnEarlierOne(t *testing.T) {
	g := &saying{texts: []string{"a<|im_end|>", "b<|im_end|>", "c<|im_end|>"}}
	s := newStand(t, chatML, g, ServerConfig{})
	_, first, _ := s.post("responses", `{"input":"u","instructions":"be brief"}`)
	body := fmt.Sprintf(`{"input":"v","instructions":"be brief","previous_response_id":%q}`, first["id"])
	s.post("responses", body)
	s.post("responses", body)
	want := "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n"
	if shown := s.chat.Decode(g.asked[1].IDs); shown != want {
		t.Errorf("the model was shown %q", shown)
	}
	if samples := s.v.close(); len(samples) != 2 || samples[0].NumTrained() != 4 || samples[1].NumTrained() != 2 {
		t.Errorf("%d samples", len(samples))
	}
}

// Texts are continued in the ids that they were generated in. Where a stop, which the text lacks, ended the reply, the rest is a branch.
func TestATextIsContinuedInTheIDsOfItsReplies(t *testing.T) {
	g := &saying{texts: []string{"think", "hell STOP", "x", "y<|im_end|>", "z"}}
	s := newStand(t, chatML, g, ServerConfig{})
	ask := func(prompt any, more string) string {
		t.Helper()
		status, a, _ := s.post("completions", fmt.Sprintf(`{"prompt":%s%s}`, text(prompt), more))
		if status != 200 || a["object"] != "text_completion" {
			t.Fatalf("%d %v", status, a)
		}
		return at(a, "choices", 0, "text").(string)
	}
	prompt := "I "
	prompt += ask(prompt, `,"max_tokens":5`) + ", so "
	prompt += ask(prompt, `,"stop":"STOP","logprobs":2`) + "obs: "
	ask(prompt, `,"max_tokens":1`)
	first := slices.Concat(s.chat.Encode("I "), s.ids("think"), s.chat.Encode(", so "))
	if diff := cmp.Diff(first, g.asked[1].IDs); diff != "" {
		t.Error(diff)
	}
	if got, want := s.chat.Decode(g.asked[2].IDs), "I think, so hell obs: "; got != want {
		t.Errorf("the model was shown %q", got)
	}
	ids := slices.Concat(g.asked[2].IDs, s.ids("x"))
	ask(ids, "")
	if diff := cmp.Diff(ids, g.asked[3].IDs); diff != "" {
		t.Error(diff)
	}
	var trained []int
	for _, sample := range s.v.close() {
		trained = append(trained, sample.NumTrained())
	}
	if diff := cmp.Diff([]int{5 + len("hell STOP"), 1 + len("y") + 1}, trained); diff != "" {
		t.Error(diff)
	}
}

// Case T4: of a tokenizer that adds a BOS and a template that writes one, a prompt has one, whatever the dialect.
func TestAPromptHasOneBOSInEveryDialect(t *testing.T) {
	for _, template := range []string{chatML, "{{ bos_token }}" + chatML} {
		g := &saying{texts: []string{"a<|im_end|>"}}
		s := newStand(t, chatML, g, ServerConfig{})
		s.chat = byteChat(t, template, object{"bos_token": "<|image|>", "add_bos_token": true})
		s.v = s.open(t.Context(), rollout.Spec{Sampling: allRun})
		bos, _ := s.chat.Tokenizer().ID("<|image|>")
		const messages = `[{"role":"user","content":"u"},{"role":"assistant","content":"a"},{"role":"user","content":"v"}]`
		for _, request := range [][2]string{{"chat/completions", `{"messages":[{"role":"user","content":"u"}]}`}, {"chat/completions", `{"messages":` + messages + `}`},
			{"messages", `{"max_tokens":9,"messages":` + messages + `}`}, {"responses", `{"input":` + messages + `}`}, {"completions", `{"prompt":"u"}`},
			{"completions", `{"prompt":"uav"}`}, {"completions", `{"prompt":"<|image|>u"}`}} {
			if status, a, _ := s.post(request[0], request[1]); status != 200 {
				t.Errorf("%v: %d %v", request, status, a)
			}
			ids := g.asked[len(g.asked)-1].IDs
			if n := len(slices.DeleteFunc(slices.Clone(ids), func(id int32) bool { return id != bos })); n != 1 || ids[0] != bos {
				t.Errorf("%v: %d BOS in %q", request, n, s.chat.Decode(ids))
			}
		}
	}
}

// What the client itself put at the start of a reply ends it by no stop string, and may be thoughts.
func TestWhatAReplyIsGivenIsNotTheModels(t *testing.T) {
	for _, c := range []struct{ prefill, said, more, want string }{
		{"one STOP", " two<|im_end|>", `,"stop_sequences":["STOP"]`, " two"},
		{"one STOP", " two STOP three", `,"stop_sequences":["STOP"]`, " two "},
		{"<think>a", "b</think>c<|im_end|>", "", "c"},
		{"<think>a</think>b", "c<|im_end|>", "", "c"},
	} {
		for _, stream := range []string{"", `,"stream":true`} {
			s := newStand(t, "{% if false %}</think>{% endif %}"+chatML, &saying{texts: []string{c.said}}, ServerConfig{})
			_, a, events := s.post("messages", fmt.Sprintf(`{"max_tokens":30,"messages":[{"role":"user","content":"u"},{"role":"assistant","content":%q}]%s%s}`,
				c.prefill, c.more, stream))
			if stream != "" {
				a = rebuildMessage(t, events)
			}
			if got := at(a, "content", 0, "text"); got != c.want {
				t.Errorf("after %q: %q, want %q (%v)", c.prefill, got, c.want, a)
			}
		}
	}
}
