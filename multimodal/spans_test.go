package multimodal

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ranges are the runs of true.
func ranges(mask []bool) [][2]int {
	runs := [][2]int{}
	for i, on := range mask {
		if last := len(runs) - 1; on && last >= 0 && runs[last][1] == i {
			runs[last][1]++
		} else if on {
			runs = append(runs, [2]int{i, i + 1})
		}
	}
	return runs
}

func TestSpansAndMasksEqualMolts(t *testing.T) {
	type collated struct {
		IDs  [][]int32   `json:"input_ids"`
		Mask [][]float64 `json:"loss_mask"`
	}
	var reference struct {
		Templates map[string]struct {
			Jinja    string
			Open     []int32 `json:"reply_open"`
			Close    int32   `json:"reply_close"`
			IsStop   bool    `json:"supervise_close"`
			Collated collated
		}
		Cases []struct {
			Template     string
			Conversation int
			LastOnly     bool `json:"train_on_last_turn_only"`
			MaxLength    int  `json:"max_length"`
			IDs          []int32
			Mask         [][2]int `json:"loss_mask_ranges"`
			Spans        [][2]int `json:"reply_token_ranges"`
			Text         []string `json:"reply_text"`
		}
		Conversations []json.RawMessage
	}
	readReference(t, "sft_masks.json", &reference)
	if len(reference.Cases) == 0 || len(reference.Templates) == 0 {
		t.Fatal("no cases")
	}
	chats := map[string]*Chat{}
	for name, want := range reference.Templates {
		chats[name] = smolLMChat(t, want.Jinja)
		m, err := chats[name].markers()
		if d := cmp.Diff(markers{want.Open, want.Close, want.IsStop}, m, cmp.AllowUnexported(markers{})); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, d)
		}
		for i, ids := range want.Collated.IDs { // padding is no reply, though its id may be the end of turn
			row := make([]float64, len(ids))
			mask, err := chats[name].LossMask(chats[name].ids(t, reference.Conversations[i]), false)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range ranges(mask) {
				copy(row[r[0]:r[1]], slices.Repeat([]float64{1}, r[1]-r[0]))
			}
			if d := cmp.Diff(want.Collated.Mask[i], row); d != "" {
				t.Errorf("%s, row %d of the batch (-want +got):\n%s", name, i, d)
			}
		}
	}
	for i, want := range reference.Cases {
		c := chats[want.Template]
		ids := c.ids(t, reference.Conversations[want.Conversation])
		ids = ids[:min(len(ids), want.MaxLength)]
		mask, err := c.LossMask(ids, want.LastOnly)
		if err != nil {
			t.Fatal(err)
		}
		d := cmp.Diff(want.IDs, ids) + cmp.Diff(want.Mask, ranges(mask))
		spans, err := c.Spans(ids)
		if want.LastOnly && len(spans) > 0 {
			spans = spans[len(spans)-1:]
		}
		if d += cmp.Diff(want.Spans, spans); d != "" || err != nil {
			t.Errorf("case %d: %v (-want +got):\n%s", i, err, d)
		}
		for j, s := range spans {
			if got := c.Decode(ids[s[0]:s[1]]); got != want.Text[j] {
				t.Errorf("case %d: reply %d is %q, want %q", i, j, got, want.Text[j])
			}
		}
	}
}

func (c *Chat) ids(t *testing.T, messages json.RawMessage) []int32 {
	t.Helper()
	text, err := c.RenderJSON(messages, RenderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c.Encode(text)
}

// An end of turn that is also the padding, a tool's turn and two replies.
func TestEveryReplyAndItsEndAreTrainedOnAndNothingElse(t *testing.T) {
	chat, _ := toyChat(t, chatML, "", "<|im_end|>")
	ids := chat.ids(t, json.RawMessage(`[{"role":"user","content":"ab"},{"role":"assistant","content":"cd"},
		{"role":"tool","content":"ef<|im_end|>"},{"role":"assistant","content":"g"},{"role":"user","content":"h"}]`))
	spans, err := chat.Spans(ids)
	if err != nil {
		t.Fatal(err)
	}
	var replies []string
	for _, s := range spans {
		replies = append(replies, chat.Decode(ids[s[0]:s[1]]))
	}
	if d := cmp.Diff([]string{"cd<|im_end|>", "g<|im_end|>"}, replies); d != "" {
		t.Error(d)
	}
	for _, lastOnly := range []bool{false, true} {
		mask, err := chat.LossMask(ids, lastOnly)
		if err != nil {
			t.Fatal(err)
		}
		var trained []int32
		for i, on := range mask {
			if on {
				trained = append(trained, ids[i+1])
			}
		}
		want := "cd<|im_end|>g<|im_end|>"
		if lastOnly {
			want = "g<|im_end|>"
		}
		if got := chat.Decode(trained); got != want || len(mask) != len(ids) {
			t.Errorf("%q is trained on, want %q", got, want)
		}
	}
}

// Lengths 2, 3, 2, 2 of which the headers count none: u a u a gives 0,0,1,1,1,0,0,1,1, where 9 opens and 0 closes a reply.
func TestMasksGoByPosition(t *testing.T) {
	chat := &Chat{markers: func() (markers, error) { return markers{open: []int32{9}, closed: 0, isStop: true}, nil }}
	for _, c := range []struct {
		ids  []int32
		want [][2]int
	}{
		{[]int32{5, 9, 6, 7, 0, 5, 9, 6, 0}, [][2]int{{1, 4}, {6, 8}}},
		{[]int32{9, 6, 0, 0, 0}, [][2]int{{0, 2}}},    // ended, then padded with the same id
		{[]int32{9, 6, 7}, [][2]int{{0, 2}}},          // cut
		{[]int32{9, 6, 9, 7, 0, 8}, [][2]int{{0, 4}}}, // an opener within a reply
		{[]int32{9}, [][2]int{}},                      // cut before the reply
		{nil, [][2]int{}},
		{[]int32{9, 0, 9, 0}, [][2]int{{0, 1}, {2, 3}}}, // empty replies
		{[]int32{6, 0, 5, 5}, [][2]int{}},               // no reply
	} {
		mask, err := chat.LossMask(c.ids, false)
		if d := cmp.Diff(c.want, ranges(mask)); d != "" || err != nil {
			t.Errorf("%v: %v\n%s", c.ids, err, d)
		}
	}
}

func TestTemplatesThatShowNoRepliesAreErrors(t *testing.T) {
	for want, template := range map[string]string{
		"no generation prompt":   "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}",
		"nothing after a reply":  "{{ messages[-1].content }}{% if add_generation_prompt %}<s>{% endif %}",
		"TemplateError: no user": "{{ raise_exception('no ' + messages[0].role) }}",
	} {
		chat, _ := toyChat(t, template, "", "")
		if spans, err := chat.Spans([]int32{1, 2}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", template, spans, err)
		}
		if mask, err := chat.LossMask([]int32{1, 2}, false); err == nil {
			t.Errorf("%s: %v", template, mask)
		}
	}
}
