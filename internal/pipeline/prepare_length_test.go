package pipeline_test

import (
	"context"
	"strings"
	"testing"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/testkit"
)

// measured is a tokenizer that knows its longest token, and counts the texts it is given.
type measured struct {
	testkit.Bytes
	longest int
	encoded int
}

func (m *measured) LongestToken() int { return m.longest }

func (m *measured) Encode(ctx context.Context, text string, special bool) ([]prepost.TokenID, error) {
	m.encoded++
	return m.Bytes.Encode(ctx, text, special)
}

// TestTooLongToTokenise: a text that can't fit is refused before it occupies a tokenizer.
func TestTooLongToTokenise(t *testing.T) {
	for _, tc := range []struct {
		name             string
		context, longest int // 0: unknown
		most             int64
		bytes            int
		code             string // of the refusal; empty: none
	}{
		{"nothing is known", 0, 0, 0, 1000, ""},
		{"as long as can be", 10, 5, 0, 50, ""},
		{"longer", 10, 5, 0, 51, "context_length_exceeded"},
		{"tokens of unknown length", 10, 0, 0, 51, ""},
		{"an unknown context", 0, 5, 0, 51, ""},
		{"as long as is taken", 0, 0, 50, 50, ""},
		{"longer than is taken", 0, 0, 50, 51, "string_above_max_length"},
		{"the context goes first", 10, 5, 50, 51, "context_length_exceeded"},
	} {
		set, tok := testkit.ByteModel("m"), &measured{longest: tc.longest}
		card := *set.Card
		card.ContextLength = nil
		if n := uint32(tc.context); n > 0 {
			card.ContextLength = &n
		}
		set.Card, set.Tokenizer = &card, tok
		p := pipeline.New(pipeline.Options{MaxPrompt: tc.most})
		check := func(param string, err error) {
			t.Helper()
			code, at := "", param
			if f := fault.From(err); f != nil {
				code, at = f.Code, f.Param
				if f.Kind != fault.BadRequest {
					t.Errorf("%s: %v", tc.name, f)
				}
			}
			if code != tc.code || at != param || (tok.encoded == 0) != (tc.code != "") {
				t.Errorf("%s: %v with code %q at %q, %d texts encoded", tc.name, err, code, at, tok.encoded)
			}
			tok.encoded = 0
		}
		var req openai.CompletionRequest
		req.Model, req.Prompt = "m", openai.Prompt{Texts: []string{strings.Repeat("x", tc.bytes)}}
		_, err := p.PrepareCompletion(t.Context(), set, pipeline.Meta{}, &req)
		check("prompt", err)
		// The template adds "user: " and a line feed.
		body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", tc.bytes-7) + `"}]}`
		chat, err := openai.DecodeChat([]byte(body), openai.DecodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.PrepareChat(t.Context(), set, pipeline.Meta{}, chat)
		check("messages", err)
	}
}
