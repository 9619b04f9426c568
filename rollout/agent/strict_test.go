package agent

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
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
