package reasonparse

import (
	"slices"
	"strings"

	"github.com/portico-llm/portico/internal/prepost"
)

// Switches are the parts of a request with which a client turns thinking on and off. Pointers are nil, and the effort
// empty, when the client said nothing.
type Switches struct {
	EnableThinking  *bool  // chat_template_kwargs.enable_thinking
	Thinking        *bool  // chat_template_kwargs.thinking, or the type of "thinking"
	ReasoningEffort string // reasoning_effort
}

// off tells whether anything in the request says no.
func (s Switches) off() bool {
	return s.EnableThinking != nil && !*s.EnableThinking || s.Thinking != nil && !*s.Thinking ||
		strings.EqualFold(s.ReasoningEffort, "none")
}

func isTrue(b *bool) bool { return b != nil && *b }

// Enabled tells whether the named parser expects a thought from an answer to a request with these switches; see the
// package comment for the table. It only decides whether an answer without an opening marker begins as a thought: a
// thought that is marked as one is recognised in any case.
func Enabled(name string, s Switches) bool {
	if s.off() {
		return false
	}
	switch lookup(name).gate {
	case ifThinking:
		return isTrue(s.Thinking) || isTrue(s.EnableThinking)
	case ifEffort:
		return s.ReasoningEffort != ""
	case ifEnableOnly:
		return isTrue(s.EnableThinking)
	}
	return true
}

// Prompt is what the end of a rendered prompt says about thinking.
type Prompt uint8

// The states a prompt leaves an answer in.
const (
	Unmarked Prompt = iota // nothing: the model decides
	Opens                  // the answer begins inside a thought
	Closes                 // the prompt holds an empty thought: there will be none
)

// ReadPrompt tells what the end of a rendered prompt says to the named parser. The last few hundred bytes of the
// prompt are enough.
func ReadPrompt(name, promptTail string) Prompt {
	d := lookup(name)
	tail := strings.TrimRight(promptTail, " \t\r\n")
	for _, marker := range d.open {
		if strings.HasSuffix(tail, marker) || d.label != "" && strings.HasSuffix(tail, marker+strings.TrimSpace(d.label)) {
			return Opens
		}
	}
	for _, marker := range slices.Concat(d.close, d.answer) {
		if strings.HasSuffix(tail, marker) {
			return Closes
		}
	}
	return Unmarked
}

// ReadTurn is ReadPrompt for a prompt that ends in the middle of an assistant's message which the answer continues:
// turn is the text of that message as rendered.
func ReadTurn(name, turn string) Prompt {
	p := newParser(lookup(name), Options{})
	p.Push([]byte(turn), func(prepost.Piece) {})
	switch {
	case ReadPrompt(name, turn) == Opens || p.Thinking():
		return Opens
	case p.thought:
		return Closes
	}
	return Unmarked
}
