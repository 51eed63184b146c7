package reply

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/pipeline"
)

// keepPrompt keeps the log probabilities of a prompt, which an engine gives once, with whichever output.
func (f *Fold) keepPrompt(d *pipeline.Delta) {
	var engine struct {
		PromptLogprobs json.RawMessage `json:"prompt_logprobs"`
	}
	// What isn't an object has no members.
	if json.Unmarshal(d.EngineData, &engine) == nil && len(engine.PromptLogprobs) > 0 {
		f.promptLogprobs[d.Prompt] = engine.PromptLogprobs
	}
}

// echoLogProbs are the log probabilities of an echoed prompt's tokens, out of what the worker has told of them. What it
// hasn't is null, as that of the first token always is: nothing stands before it.
func (b *base) echoLogProbs(prompt int, told json.RawMessage) *logprobs {
	var given []map[string]struct { // by token id: the token itself, and what else was likely
		LogProb float64 `json:"logprob"`
		Token   *string `json:"decoded_token"`
	}
	// Of a form that nobody knows nothing is taken.
	if json.Unmarshal(told, &given) != nil {
		given = nil
	}
	l, c := new(logprobs), new(choice)
	for i, id := range b.echoed[prompt] {
		at := position{id: id, text: b.token(id)}
		if i < len(given) {
			var own bool
			for key, one := range given[i] {
				n, err := strconv.ParseUint(key, 10, 32)
				if err != nil {
					continue
				}
				t := worker.TopLogProb{TokenID: uint32(n), LogProb: one.LogProb}
				if t.TokenID == id {
					own, at.value = true, one.LogProb
				} else if one.Token != nil {
					t.HasToken, t.Token = true, *one.Token
				}
				at.top = append(at.top, t)
			}
			if at.known = own; !own { // it tells of another prompt's token
				at.top = nil
			}
			slices.SortFunc(at.top, func(x, y worker.TopLogProb) int {
				return cmp.Or(cmp.Compare(y.LogProb, x.LogProb), cmp.Compare(x.TokenID, y.TokenID))
			})
		}
		b.completionEntry(l, &at, c)
		l.n++
	}
	return l
}

// extend appends another's positions.
func (l *logprobs) extend(more *logprobs) {
	for _, a := range [...]struct{ to, from *[]byte }{
		{&l.tokens, &more.tokens}, {&l.values, &more.values}, {&l.tops, &more.tops}, {&l.offsets, &more.offsets},
	} {
		if l.n > 0 && more.n > 0 {
			*a.to = append(*a.to, ',')
		}
		*a.to = append(*a.to, *a.from...)
	}
	l.n, l.hasTops = l.n+more.n, l.hasTops || more.hasTops
}
