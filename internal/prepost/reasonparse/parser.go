package reasonparse

import (
	"errors"
	"unicode/utf8"

	"github.com/portico-llm/portico/internal/prepost"
)

// Options say what is known about an answer before its first byte.
type Options struct {
	// Prompt is what the end of the rendered prompt says: ReadPrompt tells.
	Prompt Prompt
	// Enabled is what the request says: the function of the same name tells.
	Enabled bool
	// ToolParser is the name of the tool parser that reads the content afterwards; empty when no tools are in effect
	// (none given, or tool_choice none).
	ToolParser string
	// Guided says that the answer proper is JSON by constraint (response_format, tool_choice required or named). Some
	// engines let the constraint begin at once, without a thought, whatever the prompt says.
	Guided bool
	// Forced says, with Guided, that the answer proper is a call and nothing else. Text in front of it that ends like a
	// thought is one, also without its beginning; it is held back until that is known.
	Forced bool
}

// Parser takes the thoughts out of one choice's text. For one goroutine.
type Parser struct {
	dialect *dialect
	opts    Options
	machine machine

	emit func(prepost.Piece) // during a call only
	buf  []byte              // text that isn't decided yet
	pos  int                 // how much of buf is

	set  *markSet                                          // what to look for now
	out  sink                                              // where text goes now
	look func(rest []byte, final bool) (drop int, ok bool) // has to decide before anything else does

	last    byte // the byte before pos: quoted markers are text
	began   bool // the answer proper has begun with something that isn't white space
	thought bool // there has been a thought
	ledger  ledger
}

var _ prepost.MessageParser = (*Parser)(nil)

// sink is where text goes.
type sink uint8

const (
	toContent sink = iota
	toReasoning
	toNothing
	toHeader
)

// machine is what a dialect's markers do.
type machine interface {
	// match handles a marker at the beginning of rest. It consumes what it understands; no makes the marker's first
	// character text; unknown waits for more, and is never given when final.
	match(m *mark, rest []byte, final bool) verdict
	// header takes text inside a header and returns how much of it still belongs there.
	header(text []byte) int
	// finish ends what is unfinished.
	finish()
}

// New returns a parser for one choice. Unknown names act as "basic"; the empty name means that the model has no
// reasoning parser, and is an error.
func New(name string, opts Options) (*Parser, error) {
	if name == "" {
		return nil, errors.New("reasonparse: no parser named")
	}
	return newParser(lookup(name), opts), nil
}

// BeginsInside reports whether an answer begins within a thought, as far as one can know before it comes.
func BeginsInside(name string, opts Options) bool { return lookup(name).inside(&opts) }

func newParser(d *dialect, opts Options) *Parser {
	p := &Parser{dialect: d, opts: opts}
	inside := d.inside(&opts)
	switch {
	case d.prepend:
		p.machine = newPrepender(p)
	case d.channels != nil:
		p.machine = newChannelMachine(p, inside)
	default:
		p.machine = newBlockMachine(p, inside)
	}
	return p
}

// inside reports whether an answer begins within a thought.
func (d *dialect) inside(opts *Options) bool {
	return opts.Prompt == Opens || d.force && opts.Enabled && opts.Prompt != Closes
}

// Push takes the next piece of text.
func (p *Parser) Push(text []byte, emit func(prepost.Piece)) { p.PushTokens(text, 0, emit) }

// PushTokens is Push for a piece that is the text of so many tokens, which are counted for ReasoningTokens.
func (p *Parser) PushTokens(text []byte, tokens int, emit func(prepost.Piece)) {
	if len(text) == 0 {
		p.ledger.arrive(0, tokens)
		return
	}
	p.emit = emit
	if len(p.buf) == 0 && p.look == nil && p.out <= toReasoning && p.set.plain(text) {
		p.ledger.settle(tokens, p.out == toReasoning)
		p.show(text)
	} else {
		p.ledger.arrive(len(text), tokens)
		p.buf = append(p.buf, text...)
		p.run(false)
	}
	p.emit = nil
}

// Finish passes on what is held back: the beginning of a marker that never came is text. A thought that the answer's
// end or a length limit cuts off stays reasoning, whatever truncated says.
func (p *Parser) Finish(_ bool, emit func(prepost.Piece)) {
	p.emit = emit
	p.run(true)
	p.machine.finish()
	p.ledger.settle(0, p.out == toReasoning) // tokens after the last text
	p.emit = nil
}

// Thinking tells whether the text read so far ends inside a thought.
func (p *Parser) Thinking() bool { return p.out == toReasoning }

// ReasoningTokens is the number of tokens given to PushTokens that belong to thoughts, as far as their text is
// decided; after Finish, of all.
func (p *Parser) ReasoningTokens() int { return p.ledger.reasoning }

// run decides as much of the held-back text as it can; all of it when final.
func (p *Parser) run(final bool) {
	for p.pos < len(p.buf) && p.step(p.buf[p.pos:], final) {
	}
	p.buf = p.buf[:copy(p.buf, p.buf[p.pos:])]
	p.pos = 0
}

// step decides something at the beginning of rest; false when more text is needed for that.
func (p *Parser) step(rest []byte, final bool) bool {
	if p.look != nil {
		look := p.look
		drop, ok := look(rest, final)
		if !ok {
			return false
		}
		p.look = nil
		if drop > 0 {
			p.pass(drop, p.out == toReasoning)
		}
		return true
	}
	i, m := p.set.find(rest)
	if i > 0 {
		p.advance(rest[:i])
		return true
	}
	if m == nil {
		switch {
		case !final:
			return false
		case p.out == toHeader: // half a marker ends a cut-off header
			p.machine.finish()
			p.pass(len(rest), p.out == toReasoning)
		default:
			p.advance(firstCharacter(rest))
		}
		return true
	}
	switch p.machine.match(m, rest, final) {
	case no:
		p.advance(firstCharacter(rest))
	case unknown:
		return false
	}
	return true
}

// firstCharacter returns the first character of text, whole: pieces are valid UTF-8 as long as the answer is.
func firstCharacter(text []byte) []byte {
	_, n := utf8.DecodeRune(text)
	return text[:n]
}

// advance passes on text that holds no marker, as far as the state takes it.
func (p *Parser) advance(text []byte) {
	if p.out == toHeader {
		p.pos += p.machine.header(text)
		return
	}
	p.pos += len(text)
	p.text(text)
}

// text passes on text that has left the buffer.
func (p *Parser) text(text []byte) {
	p.ledger.decide(len(text), p.out == toReasoning)
	p.show(text)
}

// show passes on text whose tokens are accounted for.
func (p *Parser) show(text []byte) {
	p.last = text[len(text)-1]
	if p.out == toContent {
		p.began = p.began || !blank(text)
	}
	p.emitText(string(text))
}

// emitText emits text, from the answer or not, for whom the present state says.
func (p *Parser) emitText(text string) {
	switch p.out {
	case toContent:
		p.emit(prepost.Piece{Kind: prepost.Content, Text: text})
	case toReasoning:
		p.emit(prepost.Piece{Kind: prepost.Reasoning, Text: text})
	}
}

// pass consumes n bytes of markup.
func (p *Parser) pass(n int, reasoning bool) {
	p.last = p.buf[p.pos+n-1]
	p.pos += n
	p.ledger.decide(n, reasoning)
}

// raw consumes n bytes of a call's markup: they are content, for the tool parser to read.
func (p *Parser) raw(n int) {
	text := p.buf[p.pos : p.pos+n]
	p.pass(n, false)
	p.began = true
	p.emit(prepost.Piece{Kind: prepost.Content, Text: string(text)})
}

func blank(text []byte) bool {
	for _, c := range text {
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return false
		}
	}
	return true
}

// verbatim is the set of a state in which nothing is a marker any more.
var verbatim = newMarkSet()
