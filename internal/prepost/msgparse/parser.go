package msgparse

import (
	"math/rand/v2"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/reasonparse"
	"github.com/portico-llm/portico/internal/prepost/toolparse"
)

// parser is the way of one choice's text through both parsers.
type parser struct {
	thoughts *reasonparse.Parser // nil: the text goes straight on
	tools    *toolparse.Parser   // nil: content is content

	emit    func(prepost.Piece) // of the present call
	between func(prepost.Piece) // takes what the reasoning parser gives; made once, not for each token
	behind  func(prepost.Piece) // takes what the tool parser gives
	content []byte              // on its way between the two
}

var _ prepost.AnswerParser = (*parser)(nil)

// newParser makes the parsers of a plan. Either stage may be nil.
func newParser(tools *toolStage, thoughts *thoughtStage) *parser {
	p := &parser{}
	// Both names have been looked up already, so neither constructor can fail.
	if thoughts != nil {
		p.thoughts, _ = reasonparse.New(thoughts.name, thoughts.options)
	}
	if tools != nil {
		p.tools, _ = toolparse.New(tools.name, tools.options)
	}
	if tools != nil && thoughts != nil && tools.name == "inkling" && !tools.forced() {
		// The header that answers of this dialect begin in has been read by then: what comes is text.
		p.tools.Push([]byte("<|content_text|>"), func(prepost.Piece) {})
	}
	p.between = p.pass
	p.behind = func(piece prepost.Piece) { p.emit(piece) }
	if tools != nil && tools.name == "mistral" {
		p.behind = p.numbered
	}
	return p
}

// Push takes the next text.
func (p *parser) Push(text []byte, tokens int, emit func(prepost.Piece)) {
	p.emit = emit
	switch {
	case p.thoughts != nil:
		p.thoughts.PushTokens(text, tokens, p.between)
	case p.tools != nil:
		p.tools.Push(text, p.behind)
	case len(text) > 0:
		emit(prepost.Piece{Text: string(text)})
	}
	p.emit = nil
}

// Finish passes on what both parsers hold, in the order of the text.
func (p *parser) Finish(truncated bool, emit func(prepost.Piece)) {
	p.emit = emit
	if p.thoughts != nil {
		p.thoughts.Finish(truncated, p.between)
	}
	if p.tools != nil {
		p.tools.Finish(truncated, p.behind)
	}
	p.emit = nil
}

// pass takes a piece from the reasoning parser: thoughts are done with, content goes on.
func (p *parser) pass(piece prepost.Piece) {
	if p.tools == nil || piece.Kind != prepost.Content {
		p.emit(piece)
		return
	}
	p.content = append(p.content[:0], piece.Text...)
	p.tools.Push(p.content, p.behind)
}

// Cut reports whether the answer ended within a call.
func (p *parser) Cut() bool { return p.tools != nil && p.tools.Cut() }

// ReasoningTokens counts the tokens of thoughts.
func (p *parser) ReasoningTokens() int {
	if p.thoughts == nil {
		return 0
	}
	return p.thoughts.ReasoningTokens()
}

// numbered gives calls the only ids that Mistral's templates take back: nine letters and digits.
func (p *parser) numbered(piece prepost.Piece) {
	if piece.Kind == prepost.ToolCall && piece.Name != "" && piece.ID == "" {
		const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
		var id [9]byte
		for i := range id {
			id[i] = letters[rand.IntN(len(letters))]
		}
		piece.ID = string(id[:])
	}
	p.emit(piece)
}
