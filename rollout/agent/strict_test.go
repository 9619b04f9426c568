package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/multimodal"
	"github.com/molt-go/molt/rollout"
)

// The engine would refuse these, or find no number in its logits, as a fault of the server's.
func TestSamplingThatNoEngineTakesIsTheClientsFault(t *testing.T) {
	s := newStand(t, chatML, &saying{texts: []string{"a<|im_end|>"}}, ServerConfig{})
	for _, c := range [][3]string{{"chat/completions", `{"messages":[{"role":"user","content":"u"}],"logit_bias":{"65":3e38}}`, "logit_bias: must be from -100 to 100"},
		{"messages", `{"max_tokens":9,"messages":[{"role":"user","content":"u"}],"top_k":3000000000}`, "top_k: must be from 0 to 2147483647"}} {
		status, a, _ := s.post(c[0], c[1])
		if message, _ := at(a, "error", "message").(string); status != 400 || !strings.Contains(message, c[2]) {
			t.Errorf("%s: %d %v", c[0], status, a)
		}
	}
}

// What a reply is made to start with has been said by the client: no stop string is found in it, and what comes of it as thoughts leaves
// the content whole.
func TestAPrefillIsNeitherStoppedNorCutFromTheContent(t *testing.T) {
	for _, c := range []struct{ prefill, more, said, want string }{
		{"Human: ", `,"stop_sequences":["Human:"]`, "yes<|im_end|>", "yes"},
		{"ST", `,"stop_sequences":["STOP"]`, "OP it<|im_end|>", "OP it"},
		{"ab", `,"stop_sequences":["STOP"]`, "c STOP", "c "},
		{"<think>\nLet me see", "", " it.\n</think>\n\nthe answer is 4<|im_end|>", "the answer is 4"},
		{"I call \n", `,"tools":[{"name":"f","input_schema":{}}]`, `<tool_call>{"name": "f", "arguments": {}}</tool_call><|im_end|>`, ""},
	} {
		for _, stream := range []bool{false, true} {
			s := newStand(t, thoughtful, &saying{texts: []string{c.said}}, ServerConfig{})
			status, a, events := s.post("messages", fmt.Sprintf(`{"max_tokens":60,"messages":[{"role":"user","content":"u"},
				{"role":"assistant","content":%s}],"stream":%v%s}`, text(c.prefill), stream, c.more))
			if stream {
				a = rebuildMessage(t, events)
			}
			if got, _ := at(a, "content", 0, "text").(string); status != 200 || got != c.want || len(listOf(a["content"])) != 1 {
				t.Errorf("%q, stream %v: %d %v, want %q", c.prefill, stream, status, a, c.want)
			}
		}
	}
}

// A request that is refused before its body has come is answered, and its connection ends, although no more of the body comes.
func TestARefusedRequestIsAnsweredBeforeItsBody(t *testing.T) {
	s := newStand(t, chatML, &saying{texts: []string{"a"}}, ServerConfig{})
	for token, path := range map[string]string{"wrong": "chat/completions", s.v.token: "nothing"} {
		conn := must(net.Dial("tcp", strings.TrimPrefix(s.url, "http://")))
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(conn, "POST /v1/%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\n{", path, token)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if want := map[string]int{"chat/completions": 401, "nothing": 404}[path]; err != nil || response.StatusCode != want {
			t.Errorf("%s: %v, %v", path, response, err)
		}
	}
	if err := s.http.Shutdown(t.Context()); err != nil { // waits for the connections
		t.Error(err)
	}
}

// offering is a template that shows tools, and calls in the way of Hermes.
const offering = "{% if tools %}{{ tools | tojson }}{% endif %}" + hermes

// forms are the same request with tools in three dialects: its path, the request and where the text of the answer is.
func forms(tools [][3]string, more string) map[string]string {
	chat, flat, anthropic := []string{}, []string{}, []string{}
	for _, t := range tools {
		name, description, parameters := t[0], t[1], t[2]
		if description != "" {
			description = `"description":` + text(description) + ","
		}
		chat = append(chat, fmt.Sprintf(`{"type":"function","function":{"name":%q,%s"parameters":%s}}`, name, description, parameters))
		flat = append(flat, fmt.Sprintf(`{"type":"function","name":%q,%s"parameters":%s}`, name, description, parameters))
		anthropic = append(anthropic, fmt.Sprintf(`{"name":%q,%s"input_schema":%s}`, name, description, parameters))
	}
	return map[string]string{
		"chat/completions": fmt.Sprintf(`{"messages":[{"role":"user","content":"u"}],"tools":[%s]%s}`, strings.Join(chat, ","), more),
		"responses":        fmt.Sprintf(`{"input":"u","tools":[%s]%s}`, strings.Join(flat, ","), more),
		"messages": fmt.Sprintf(`{"max_tokens":300,"messages":[{"role":"user","content":"u"}],"tools":[%s]%s}`, strings.Join(anthropic, ","),
			strings.Replace(more, `"parallel_tool_calls":false`, `"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`, 1)),
	}
}

func TestEveryDialectShowsToolsAlikeAndInTheOrderOfChatTemplates(t *testing.T) {
	const schema = `{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}}}`
	for path, body := range forms([][3]string{{"f", "d", schema}, {"g", "", schema}}, "") {
		g := &saying{texts: []string{"a<|im_end|>"}}
		s := newStand(t, offering, g, ServerConfig{})
		if status, a, _ := s.post(path, body); status != 200 {
			t.Fatalf("%s: %v", path, a)
		}
		shown := strings.ReplaceAll(s.chat.Decode(g.asked[0].IDs), " ", "")
		want := `[{"type":"function","function":{"name":"f","description":"d","parameters":` + schema +
			`}},{"type":"function","function":{"name":"g","parameters":` + schema + `}}]`
		if !strings.HasPrefix(shown, want) {
			t.Errorf("%s: %s", path, shown)
		}
	}
}

func TestOnlyTheFirstCallIsShownWhereOneIsWanted(t *testing.T) {
	const call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": %d}}\n</tool_call>"
	said := fmt.Sprintf(call+call, 1, 2) + "<|im_end|>"
	for more, want := range map[string]int{"": 2, `,"parallel_tool_calls":false`: 1} {
		for path, body := range forms([][3]string{{"f", "", "{}"}}, more) {
			s := newStand(t, offering, &saying{texts: []string{said}}, ServerConfig{})
			s.v.spec.Sampling.MaxTokens = 300
			_, a, _ := s.post(path, body)
			calls := slices.Concat(listOf(at(a, "choices", 0, "message", "tool_calls")), listOf(a["content"]), listOf(a["output"]))
			if len(calls) != want || a["parallel_tool_calls"] != nil && a["parallel_tool_calls"] != (want == 2) {
				t.Errorf("%s%s: %v", path, more, a)
			}
			if samples := s.v.close(); len(samples) != 1 || samples[0].NumTrained() != len(s.ids(said)) {
				t.Errorf("%s%s: trained on %d tokens", path, more, samples[0].NumTrained())
			}
		}
	}
}

// What the model says where a call was begun for it are the arguments, also where they are cut off or no JSON: it can be told so.
func TestABrokenCallThatWasBegunForTheModelIsACall(t *testing.T) {
	for said, want := range map[string]string{
		" {\"x\": 1,}}\n</tool_call><|im_end|>":         "{\"x\": 1,}}\n</tool_call>",
		" {\"x\": \"and so on, and so forth, and then ": "{\"x\": \"and so on, and so forth, and the",
		" {\"x\": 1}}\n</tool_call><|im_end|>":          "{\"x\": 1}",
	} {
		for path, choice := range map[string]string{"chat/completions": `"required"`, "responses": `{"type":"function","name":"f"}`, "messages": `{"type":"any"}`} {
			body := strings.Replace(forms([][3]string{{"f", "", "{}"}}, `,"tool_choice":`+choice)[path], "300", "40", 1)
			s := newStand(t, offering, &saying{texts: []string{said}}, ServerConfig{})
			_, a, _ := s.post(path, body)
			call, arguments := at(a, "choices", 0, "message", "tool_calls", 0, "function"), "arguments"
			if path == "responses" {
				call = at(a, "output", 0)
			} else if path == "messages" {
				call, arguments = at(a, "content", 0), "input"
			}
			got, want := at(call, arguments), any(want)
			if path == "messages" && want != `{"x": 1}` {
				want = object{} // Anthropic's inputs are objects
			} else if path == "messages" {
				want = object{"x": 1.0}
			}
			if at(call, "name") != "f" || !cmp.Equal(got, want) || strings.Contains(text(a), "<tool_call>") {
				t.Errorf("%s, %q: %v", path, said, a)
			}
		}
		s := newStand(t, offering, &saying{texts: []string{said}}, ServerConfig{})
		_, chunks := s.ask(s.v.token, strings.TrimSuffix(forms([][3]string{{"f", "", "{}"}}, `,"tool_choice":"required"`)["chat/completions"], "}")+`,"stream":true}`)
		if content, _, calls, _ := joined(chunks, 0); content != "" || at(jsonOf(t, string(calls)), 0, "function", "name") != "f" {
			t.Errorf("%q: %q and %s", said, content, calls)
		}
	}
}

// An answer in JSON is a call only if it names a tool that was offered.
func TestJSONThatIsAnAnswerIsNoCall(t *testing.T) {
	const bare = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}" +
		`{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}` + "{% endfor %}<|im_end|>\n{% endfor %}" +
		"{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
	for said, calls := range map[string]int{`{"name": "Bob", "parameters": {}}`: 0, `{"name": "f", "parameters": {}}`: 1} {
		s := newStand(t, bare, &saying{texts: []string{said + "<|im_end|>"}}, ServerConfig{})
		_, a, _ := s.post("chat/completions", forms([][3]string{{"f", "", "{}"}}, "")["chat/completions"])
		m := at(a, "choices", 0, "message")
		if got := listOf(at(m, "tool_calls")); len(got) != calls || calls == 0 && at(m, "content") != said {
			t.Errorf("%s: %v", said, m)
		}
	}
}

func TestItemsOfAResponseCanBeReferredTo(t *testing.T) {
	g := &saying{texts: []string{"<think>\nhm\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call><|im_end|>", "so<|im_end|>"}}
	s := newStand(t, "{% if false %}</think>{% endif %}"+hermes, g, ServerConfig{})
	s.v.spec.Sampling.MaxTokens = 500
	const tools = `"tools":[{"type":"function","name":"f","parameters":{}}]`
	_, a, _ := s.post("responses", `{"input":"u",`+tools+`}`)
	input := []any{object{"role": "user", "content": "u"}}
	for _, item := range listOf(a["output"]) {
		input = append(input, object{"type": "item_reference", "id": at(item, "id")})
	}
	input = append(input, object{"type": "function_call_output", "call_id": at(a, "output", 2, "call_id"), "output": "r"})
	status, b, _ := s.post("responses", fmt.Sprintf(`{"input":%s,%s}`, text(input), tools))
	if samples := s.v.close(); status != 200 || at(b, "output", 0, "content", 0, "text") != "so" || len(input) != 5 || len(samples) != 1 {
		t.Errorf("%d %v, %d samples", status, b, len(samples))
	}
	status, b, _ = newStand(t, hermes, g, ServerConfig{}).post("responses", `{"input":[{"type":"item_reference","id":"msg_1"}]}`)
	if message, _ := at(b, "error", "message").(string); status != 400 || !strings.Contains(message, `there is no item "msg_1" in this rollout`) {
		t.Errorf("%d %v", status, b)
	}
}

// A choice that fails takes the others with it: nothing that no client got is trained on.
func TestChoicesComeTogetherOrNotAtAll(t *testing.T) {
	for _, more := range []string{"", `,"stream":true`} {
		var n atomic.Int32
		gen := rollout.GeneratorFunc(func(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
			if n.Add(1) == 3 {
				time.Sleep(20 * time.Millisecond) // after the others
				return rollout.Completion{}, errors.New("boom")
			}
			return script("fine<|im_end|>", r).Generate(ctx, r)
		})
		s := newStand(t, chatML, gen, ServerConfig{})
		for i, want := range []string{"boom", ""} {
			status, a, events := s.post("chat/completions", talk(`,"n":3`+more, "u"))
			if got := text(a) + text(fmt.Sprint(events)); status != 500 && more == "" && want != "" || strings.Contains(got, "boom") != (want != "") {
				t.Errorf("request %d%s: %d %s", i, more, status, got)
			}
		}
		if samples := s.v.close(); len(samples) != 3 {
			t.Errorf("%d samples of the second request's three choices", len(samples))
		}
	}
}

func TestKeysThatAskForNothingAreTakenAndOthersRefused(t *testing.T) {
	ask := map[string]string{"chat/completions": `"messages":[{"role":"user","content":"u"}]`, "completions": `"prompt":"u"`, "responses": `"input":"u"`,
		"messages": `"max_tokens":9,"messages":[{"role":"user","content":"u"}]`}
	ask["messages/count_tokens"] = ask["messages"]
	for path, keys := range map[string][]string{
		"chat/completions": {`"modalities":["text"]`, `"functions":null`, `"function_call":null`, `"audio":null`, `"web_search_options":null`, `"tools":[]`,
			`"prediction":{"type":"content","content":"x"}`, `"prompt_cache_options":{}`, `"moderation":"low"`, `"anything":[]`},
		"completions":           {`"best_of":1`, `"best_of":null`},
		"responses":             {`"prompt":null`, `"context_management":[{"type":"compaction"}]`, `"background_options":null`, `"include":["reasoning.encrypted_content"]`},
		"messages":              {`"output_config":{"effort":"low"}`, `"context_management":{"edits":[]}`, `"container":null`, `"mcp_servers":[]`, `"speed":"fast"`},
		"messages/count_tokens": {`"output_config":{"effort":"low"}`, `"speed":null`, `"mcp_servers":[]`},
	} {
		s := newStand(t, chatML, &saying{texts: []string{"a<|im_end|>"}}, ServerConfig{})
		for _, key := range keys {
			if status, a, _ := s.post(path, `{`+ask[path]+`,`+key+`}`); status != 200 {
				t.Errorf("%s, %s: %v", path, key, a)
			}
		}
	}
	for path, keys := range map[string]map[string]string{
		"chat/completions": {`"modalities":["audio"]`: "modalities: must be text", `"functions":[{"name":"f"}]`: `"functions" is not supported`,
			`"max_tokens":0`: "max_tokens: must be at least 1"},
		"completions": {`"best_of":2`: "best_of: must not be above n", `"prompt":["a","b"]`: "one a request", `"prompt":[]`: "not empty"},
		"messages": {`"output_config":{"format":{"type":"json_schema"}}`: "output_config.format: is not supported", `"mcp_servers":[{}]`: "is not supported",
			`"messages":[{"role":"user","content":"u"},{"role":"assistant","content":[{"type":"thinking","thinking":"x"}]}]`: "has thoughts: leave them out"},
	} {
		s := newStand(t, chatML, &saying{texts: []string{"a<|im_end|>"}}, ServerConfig{})
		for key, want := range keys {
			status, a, _ := s.post(path, `{`+ask[path]+`,`+key+`}`)
			if message, _ := at(a, "error", "message").(string); status != 400 || !strings.Contains(message, want) {
				t.Errorf("%s, %s: %d %v, want %q", path, key, status, a, want)
			}
		}
	}
}

func TestTheOlderAPITakesOnePromptInEveryForm(t *testing.T) {
	g := &saying{texts: []string{"a"}}
	s := newStand(t, chatML, g, ServerConfig{})
	for _, prompt := range []string{`"hi"`, `["hi"]`, `[104,105]`, `[[104,105]]`} {
		if status, a, _ := s.post("completions", `{"prompt":`+prompt+`,"max_tokens":1}`); status != 200 {
			t.Errorf("%s: %v", prompt, a)
		}
	}
	for _, r := range g.asked {
		if !slices.Equal(r.IDs, []int32{'h', 'i'}) {
			t.Errorf("the model was shown %v", r.IDs)
		}
	}
}

func TestWhichLimitOfTokensHolds(t *testing.T) {
	for _, c := range []struct {
		path, more, sampling string
		want                 int
	}{
		{"chat/completions", "", "honour", 40}, {"chat/completions", `,"max_tokens":50`, "honour", 50}, {"chat/completions", `,"max_tokens":50`, "override", 40},
		{"chat/completions", `,"max_tokens":5`, "override", 5}, {"chat/completions", `,"max_tokens":50,"max_completion_tokens":3`, "honour", 3},
		{"messages", `,"max_tokens":64000`, "override", 40}, {"messages", `,"max_tokens":64000`, "refuse", 1960},
	} {
		g := &saying{texts: []string{"a<|im_end|>"}}
		s := newStand(t, chatML, g, ServerConfig{Sampling: c.sampling})
		status, a, _ := s.post(c.path, talk(c.more, "u"))
		if status != 200 || g.asked[0].Sampling.MaxTokens != c.want && (c.want < 1900 || g.asked[0].Sampling.MaxTokens < 1900) {
			t.Errorf("%s%s, %s: %v, %d tokens", c.path, c.more, c.sampling, a, g.asked[0].Sampling.MaxTokens)
		}
	}
}

// The log-probs are those of the script: −1/8, −2/8 …; a character in two tokens is in their bytes.
func TestLogProbsComeWithTheBytesOfTheirTokens(t *testing.T) {
	const said, ask = "hé<|im_end|>", `"logprobs":true,"top_logprobs":0`
	s := newStand(t, chatML, &saying{texts: []string{said}}, ServerConfig{})
	want := jsonOf(t, `[{"token":"h","logprob":-0.125,"bytes":[104],"top_logprobs":[]},{"token":"\ufffd","logprob":-0.25,"bytes":[195],"top_logprobs":[]},
		{"token":"\ufffd","logprob":-0.375,"bytes":[169],"top_logprobs":[]}]`)
	_, a, _ := s.post("chat/completions", talk(","+ask, "u"))
	if diff := cmp.Diff(want, at(a, "choices", 0, "logprobs", "content")); diff != "" {
		t.Error(diff)
	}
	const asking = `{"input":"u","include":["message.output_text.logprobs"]`
	_, a, _ = s.post("responses", asking+"}")
	if diff := cmp.Diff(want, at(a, "output", 0, "content", 0, "logprobs")); diff != "" {
		t.Error(diff)
	}
	_, _, events := s.post("responses", asking+`,"stream":true}`)
	found := 0
	for _, e := range events {
		for _, list := range []any{e.data["logprobs"], at(e.data, "part", "logprobs"), at(e.data, "item", "content", 0, "logprobs")} {
			if cmp.Equal(list, want) {
				found++
			}
		}
	}
	if found != 3 { // output_text.done, content_part.done, output_item.done
		t.Errorf("log-probs in %d events: %v", found, events)
	}
	_, a, _ = s.post("completions", `{"prompt":"u","logprobs":0}`)
	if diff := cmp.Diff(jsonOf(t, `{"h":-0.125}`), at(a, "choices", 0, "logprobs", "top_logprobs", 0)); diff != "" {
		t.Error(diff)
	}
}

func TestAnEndOfTurnIsNoStopSequence(t *testing.T) {
	for said, want := range map[string]string{"hello<|im_end|>": `"end_turn" null`, "a > b<|im_end|>": `"stop_sequence" ">"`} {
		s := newStand(t, chatML, &saying{texts: []string{said}}, ServerConfig{})
		_, a, _ := s.post("messages", `{"max_tokens":20,"stop_sequences":[">"],"messages":[{"role":"user","content":"u"}]}`)
		if got := text(a["stop_reason"]) + " " + text(a["stop_sequence"]); strings.ReplaceAll(got, `\u003e`, ">") != want {
			t.Errorf("%q: %s", said, got)
		}
	}
}

func TestAnItemGrowsFromNothingAndSaysWhetherItIsWhole(t *testing.T) {
	for said, want := range map[string]string{"hello<|im_end|>": "completed", "hello, who are you and why is it that I see": "incomplete"} {
		s := newStand(t, chatML, &saying{texts: []string{said}}, ServerConfig{})
		_, _, events := s.post("responses", `{"input":"u","stream":true}`)
		status := map[string]string{}
		for _, e := range events {
			name := strings.TrimPrefix(e.name, "response.")
			if item, ok := e.data["item"].(object); ok {
				status[name] = item["status"].(string)
				if name == "output_item.added" && len(listOf(item["content"])) != 0 {
					t.Errorf("%q: added with %v", said, item)
				}
			}
			for _, item := range listOf(at(e.data, "response", "output")) {
				status[name] = at(item, "status").(string)
			}
		}
		if diff := cmp.Diff(map[string]string{"output_item.added": "in_progress", "output_item.done": want, want: want}, status); diff != "" {
			t.Errorf("%q: %s", said, diff)
		}
	}
}

func TestClientsThatPutNoVersionBehindTheAddressAreServed(t *testing.T) {
	s := newStand(t, chatML, &saying{texts: []string{"a<|im_end|>"}}, ServerConfig{})
	for path, status := range map[string]int{"POST /messages": 200, "POST /v1/messages": 200, "POST /messages/count_tokens": 200, "GET /models": 200,
		"GET /v1/models/any/of/it": 404, "GET /v1/models/it": 200, "POST /v1/v1/messages": 404} {
		method, path, _ := strings.Cut(path, " ")
		response, err := s.request(t.Context(), s.v.token, method, path, `{"max_tokens":9,"messages":[{"role":"user","content":"u"}]}`)
		if err != nil || response.StatusCode != status {
			t.Errorf("%s: %v, %v", path, response, err)
		}
		response.Body.Close()
	}
}

// spacedChat is a chat over a vocabulary like Llama 2's: a space in front of a text is part of its first word and is not shown.
func spacedChat(t *testing.T) *multimodal.Chat {
	vocab := object{"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = len(vocab)
	}
	merges := []string{}
	for _, c := range "abcdefghijklmnopqrstuvwxyz" {
		vocab[string(c)], vocab["▁"+string(c)] = len(vocab), len(vocab)+1
		merges = append(merges, "▁ "+string(c))
	}
	space, marked := object{"String": " "}, object{"String": "▁"}
	file := object{
		"added_tokens": []object{{"id": 1, "content": "<s>", "special": true}, {"id": 2, "content": "</s>", "special": true}},
		"normalizer": object{"type": "Sequence", "normalizers": []object{{"type": "Prepend", "prepend": "▁"},
			{"type": "Replace", "pattern": space, "content": "▁"}}},
		"decoder": object{"type": "Sequence", "decoders": []object{{"type": "Replace", "pattern": marked, "content": " "}, {"type": "ByteFallback"},
			{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}}},
		"model": object{"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true, "vocab": vocab, "merges": merges},
	}
	dir := t.TempDir()
	for name, v := range map[string]any{"tokenizer.json": file, "tokenizer_config.json": object{"bos_token": "<s>", "eos_token": "</s>",
		"chat_template": "{% for m in messages %}<s>{{ m.role }} {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant {% endif %}"}} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text(v)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return must(multimodal.OpenChat(dir))
}

// What a client has of a text and its continuation, put together, is what the model was shown and said, and is gone on from.
func TestNoSpaceIsLostOrAddedWhereATextGoesOn(t *testing.T) {
	chat := spacedChat(t)
	for path, c := range map[string]struct {
		first, second string
		where         []any
	}{
		"completions": {`{"prompt":"once upon","max_tokens":9}`, `{"prompt":%s,"max_tokens":9}`, []any{"choices", 0, "text"}},
		"messages": {`{"max_tokens":9,"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"once upon"}]}`,
			`{"max_tokens":9,"messages":[{"role":"user","content":"u"},{"role":"assistant","content":%s},{"role":"user","content":"v"}]}`, []any{"content", 0, "text"}},
	} {
		var asked []rollout.Request
		gen := rollout.GeneratorFunc(func(ctx context.Context, r rollout.Request) (rollout.Completion, error) {
			asked = append(asked, r)
			ids := chat.Tokenizer().Encode("a time")
			return rollout.Script{Reply: func(rollout.Request) ([]int32, []float32, error) {
				return append(ids, 2), make([]float32, len(ids)+1), nil
			}}.Generate(ctx, r)
		})
		server, err := NewServer(chat, gen, ServerConfig{Context: 500, Sampling: "honour"})
		if err != nil {
			t.Fatal(err)
		}
		s := &stand{t, server, server.open(t.Context(), rollout.Spec{Sampling: allRun})}
		_, a, _ := s.post(path, c.first)
		said, _ := at(a, c.where...).(string)
		if said != " a time" {
			t.Errorf("%s: %q", path, said)
		}
		more := " so"
		if path == "messages" {
			more = ""
		}
		if status, b, _ := s.post(path, fmt.Sprintf(c.second, text("once upon"+said+more))); status != 200 {
			t.Errorf("%s: %v", path, b)
		}
		if shown := chat.Decode(asked[1].IDs); path == "completions" && shown != "once upon a time so" {
			t.Errorf("%s: the model was shown %q", path, shown)
		}
		samples := s.v.close()
		parent, shared := samples[len(samples)-1].Parent()
		if path == "messages" && len(samples) != 1 || path == "completions" && (len(samples) != 2 || parent != samples[0] || shared < 10) { // all but its stop
			t.Errorf("%s: %d samples, %d tokens shared", path, len(samples), shared)
		}
		http.DefaultClient.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
