package messages

import (
	"strings"

	"github.com/portico-llm/portico/internal/prepost"
)

// blockWriter is told of the blocks of a message, one after the other.
type blockWriter interface {
	begin(p *prepost.Piece)                // a block of p's kind; of a call p holds the name and perhaps an id
	text(kind prepost.PieceKind, s string) // more of the open block, never empty
	end(kind prepost.PieceKind)            // the open block is whole
}

// blocks cuts an answer into blocks. White space between two blocks of another kind belongs to neither: models write
// line breaks around thoughts and calls, and Anthropic's API takes no text block of nothing else.
type blocks struct {
	out  blockWriter
	open bool
	kind prepost.PieceKind // of the open block

	held     strings.Builder   // white space that may turn out to begin a block
	heldKind prepost.PieceKind // of that block

	begun int // blocks
	calls int // of them uses of tools
}

// push adds a piece.
func (b *blocks) push(p *prepost.Piece) {
	switch {
	case p.Kind == prepost.ToolCall && p.Name != "":
		b.begin(p)
		b.calls++
		b.add(p.Text)
	case b.open && b.kind == p.Kind:
		b.held.Reset() // it stood between two parts of one block
		b.add(p.Text)
	case p.Kind != prepost.ToolCall: // a call without a name has never begun
		b.hold(p)
	}
}

// begin ends the open block and begins another. White space ahead of it is dropped.
func (b *blocks) begin(p *prepost.Piece) {
	b.close()
	b.held.Reset()
	b.open, b.kind = true, p.Kind
	b.begun++
	b.out.begin(p)
}

// add adds to the open block.
func (b *blocks) add(s string) {
	if s != "" {
		b.out.text(b.kind, s)
	}
}

// hold gathers what may begin a block, until it is more than white space.
func (b *blocks) hold(p *prepost.Piece) {
	if b.heldKind != p.Kind {
		b.held.Reset()
		b.heldKind = p.Kind
	}
	if strings.TrimSpace(p.Text) == "" {
		b.held.WriteString(p.Text)
		return
	}
	ahead := b.held.String()
	b.begin(p)
	b.add(ahead)
	b.add(p.Text)
}

// close ends the open block.
func (b *blocks) close() {
	if b.open {
		b.open = false
		b.out.end(b.kind)
	}
}

// finish ends the message. An answer of nothing at all has one empty text block: clients look at the first one.
func (b *blocks) finish() {
	if b.begun == 0 {
		text := ""
		if b.heldKind == prepost.Content {
			text = b.held.String()
		}
		b.begin(&prepost.Piece{Kind: prepost.Content})
		b.add(text)
	}
	b.close()
}
