package pipeline_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/testkit"
)

// upper is a parser that makes capitals reasoning, holds back a trailing "<", and calls f at each "!".
type upper struct {
	held      string
	calls     int
	reasoning int
	end       string // how Finish was called
}

func (u *upper) Push(text []byte, tokens int, emit func(prepost.Piece)) {
	for _, r := range u.held + string(text) {
		u.held = ""
		switch {
		case r == '<':
			u.held = "<"
		case r == '!':
			emit(prepost.Piece{Kind: prepost.ToolCall, Call: u.calls, Name: "f"})
			u.calls++
		case r >= 'A' && r <= 'Z':
			u.reasoning++
			emit(prepost.Piece{Kind: prepost.Reasoning, Text: string(r)})
		default:
			emit(prepost.Piece{Text: string(r)})
		}
	}
}

func (u *upper) Finish(truncated bool, emit func(prepost.Piece)) {
	u.end += fmt.Sprintf("truncated=%v", truncated)
	if u.held != "" {
		emit(prepost.Piece{Text: u.held})
	}
}

func (u *upper) Cut() bool            { return u.calls > 1 }
func (u *upper) ReasoningTokens() int { return u.reasoning }

// TestRunParsed: what a choice's parser gives takes the place of its text, stop strings act ahead of it, and what it
// held back comes with the end.
func TestRunParsed(t *testing.T) {
	tests := []struct {
		name, items string
		choices     int
		stop        []string
		want        []string
		end         string
	}{
		{"pieces", `[{"token_ids":[65,98]},{"token_ids":[60]},{"token_ids":[67,99],"finish_reason":"stop"}]`, 1, nil,
			[]string{"0 r(A) c(b) 1", "0 0", "0 r(C) c(c) 1 stop"}, "truncated=false"},
		{"held back to the end", `[{"token_ids":[97,60],"finish_reason":"length"}]`, 1, nil,
			[]string{"0 c(a) c(<) 0 length"}, "truncated=true"},
		{"no finish reason", `[{"token_ids":[97,60]}]`, 1, nil, []string{"0 c(a) 0", "0 c(<) 0 stop"}, "truncated=false"},
		{"a stop string ahead of a call", `[{"token_ids":[97,98,33,33]}]`, 1, []string{"b"}, []string{"0 c(a) 0 stop"}, "truncated=false"},
		{"a call that was cut", `[{"token_ids":[33,33],"finish_reason":"eos"}]`, 1, nil, []string{"0 f f 0 length"}, "truncated=false"},
		{"choices apart", `[{"index":1,"token_ids":[60]},{"index":0,"token_ids":[97],"finish_reason":"stop"},
			{"index":1,"token_ids":[65],"finish_reason":"stop"}]`, 2, nil,
			[]string{"1 0", "0 c(a) 0 stop", "1 r(A) 1 stop"}, "truncated=false"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var parsers []*upper
			p := prepared(tt.choices, "hi")
			p.Answer = &prepost.AnswerPlan{New: func() prepost.AnswerParser {
				parsers = append(parsers, &upper{})
				return parsers[len(parsers)-1]
			}}
			p.Requests[0].Stop.Stop = tt.stop
			var got []string
			sink := &record{delta: func(d *pipeline.Delta) error {
				if len(d.Text) > 0 {
					t.Errorf("text beside the pieces: %q", d.Text)
				}
				line := fmt.Sprint(d.Choice)
				for _, piece := range d.Pieces {
					line += " " + []string{"c(" + piece.Text + ")", "r(" + piece.Text + ")", piece.Name}[piece.Kind]
				}
				got = append(got, strings.TrimSuffix(fmt.Sprintf("%s %d %s", line, d.Reasoning, d.Finish), " "))
				return nil
			}}
			if err := newPipeline(testkit.Play(testkit.Items(tt.items))).Run(t.Context(), p, sink); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("- want, + got:\n%s", diff)
			}
			for _, u := range parsers {
				if u.end != tt.end {
					t.Errorf("finished with %q, want %q", u.end, tt.end)
				}
			}
		})
	}
}
