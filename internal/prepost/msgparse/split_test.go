package msgparse_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/prepost/reasonparse"
	"github.com/portico-llm/portico/internal/prepost/toolparse"
)

// together is what a client puts together from an answer that arrives in pieces. Ids are left out: they are made up.
func together(tb testing.TB, plan *prepost.AnswerPlan, truncated bool, pieces ...string) string {
	tb.Helper()
	p := plan.New()
	var content, reasoning strings.Builder
	var calls []string
	emit := func(piece prepost.Piece) {
		if !utf8.ValidString(piece.Text) {
			tb.Errorf("a piece ends inside a character: %q", piece.Text)
		}
		switch piece.Kind {
		case prepost.Reasoning:
			reasoning.WriteString(piece.Text)
		case prepost.Content:
			content.WriteString(piece.Text)
		case prepost.ToolCall:
			if piece.Name != "" {
				if piece.Call != len(calls) {
					tb.Errorf("call %d after %d others", piece.Call, len(calls))
				}
				calls = append(calls, piece.Name+" ")
			}
			if piece.Call >= len(calls) {
				tb.Errorf("arguments of call %d, of which there are %d", piece.Call, len(calls))
				return
			}
			calls[piece.Call] += piece.Text
		}
	}
	for _, piece := range pieces {
		p.Push([]byte(piece), len(piece), emit)
	}
	p.Finish(truncated, emit)
	return fmt.Sprintf("content %q reasoning %q calls %q cut %v tokens %d", content.String(), reasoning.String(), calls, p.Cut(), p.ReasoningTokens())
}

// planned is the plan for two parsers, by number; nil when nothing is to be done.
func planned(tool, reasoning, bits uint8) (*prepost.AnswerPlan, string) {
	toolNames, thoughtNames := append(toolparse.Names(), ""), append(reasonparse.Names(), "")
	q := prepost.AnswerRequest{
		ToolParser:      toolNames[int(tool)%len(toolNames)],
		ReasoningParser: thoughtNames[int(reasoning)%len(thoughtNames)],
		Choice:          prepost.CallChoice(bits % 4), Function: "f", OneCall: bits&4 != 0, JSON: bits&8 != 0,
		Special: func(string) bool { return bits&32 != 0 },
	}
	if bits&16 != 0 {
		q.Tools = tools
	}
	if bits&64 != 0 {
		q.Prompt = "<think>\n"
	}
	plan := msgparse.Plan(&q)
	if plan == nil || plan.New == nil {
		return nil, ""
	}
	return plan, fmt.Sprintf("%s and %s, %+v", q.ToolParser, q.ReasoningParser, q)
}

// FuzzSplit: whatever the two parsers, one behind the other, make of an answer, they make it of any pieces of it.
func FuzzSplit(f *testing.F) {
	for i, text := range []string{
		"<think>a</think>b<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>c",
		"a</think>[{\"name\":\"f\",\"parameters\":{}}]", "{\"x\": \"é</think>\"}", "[TOOL_CALLS]f{\"x\":1}",
		"<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{}<|call|>",
	} {
		for bits := range uint8(8) {
			f.Add(text, uint8(i*7)+bits, bits*5, bits*16+uint8(i), 3, 11)
		}
	}
	f.Fuzz(func(t *testing.T, text string, tool, reasoning, bits uint8, i, j int) {
		plan, name := planned(tool, reasoning, bits)
		if plan == nil || len(text) > 1000 || !utf8.ValidString(text) {
			t.Skip()
		}
		// Text reaches the parsers in whole characters.
		cut := func(n int) int {
			n = (n%(len(text)+1) + len(text) + 1) % (len(text) + 1)
			for n < len(text) && !utf8.RuneStart(text[n]) {
				n++
			}
			return n
		}
		i, j = cut(i), cut(j)
		i, j = min(i, j), max(i, j)
		truncated := bits&128 != 0
		whole := together(t, plan, truncated, text)
		if got := together(t, plan, truncated, text[:i], text[i:j], text[j:]); got != whole {
			t.Errorf("%s: %q cut at %d and %d:\n got   %s\n whole %s", name, text, i, j, got, whole)
		}
	})
}
