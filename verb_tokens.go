package molt

import "context"

const tokensFormat = `  {"text": "Hi", "add_special_tokens": false}   {"ids": [26843]}
  {"ids": [1, 4093, 198]}                       {"text": "<|im_start|>user\n"}
  {"messages": [{"role": "user", "content": "Hi"}], "tools": [..], "add_generation_prompt": true, "enable_thinking": false}
                                                {"text": "..", "ids": [..], "spans": [[from, to], ..]}

Special tokens in a text are recognised; it gets none beside them unless add_special_tokens asks for the tokenizer's own. Messages reach
the model's chat template as they are given; keys that are not shown here are variables of the template. ids are those of the text, with
exactly one beginning-of-sequence token in front where the tokenizer adds one to texts: what molt trains on and generates from. spans
are the tokens from..to-1 of the assistant's replies; null where the template does not show their ends.`

func tokensVerb(ctx context.Context, o options, serve server) error {
	t := openText(o.model, nil)
	if t.noTok != nil {
		return t.noTok
	}
	return serve(ctx, o.threads, func(_ context.Context, line []byte) (any, error) {
		var p prompt
		var special bool
		err := p.decode(line, map[string]any{"text": &p.text, "add_special_tokens": &special})
		switch {
		case err != nil:
			return nil, err
		case p.text != nil:
			ids := t.tok.Encode(*p.text)
			if special {
				ids = append([]int32{}, t.tok.AddSpecial(ids)...) // null for none would be wrong
			}
			return map[string]any{"ids": ids}, nil
		case p.ids != nil:
			return map[string]any{"text": t.tok.Decode(p.ids)}, nil
		}
		var out struct {
			Text  string   `json:"text"`
			IDs   []int32  `json:"ids"`
			Spans [][2]int `json:"spans"`
		}
		if out.Text, out.IDs, err = t.render(p); err == nil {
			out.Spans, _ = t.chat.Spans(out.IDs) // nil where the template shows none
		}
		return out, err
	})
}
