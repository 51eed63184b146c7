package prepost

// Piece is one step of an assistant message as it is taken apart: text for the reader, reasoning, or part of a tool
// call. Concatenated in order, the pieces of a message don't depend on how its text was cut.
type Piece struct {
	Kind PieceKind
	Text string // content, reasoning, or a fragment of a call's arguments

	// For calls. A call begins with a piece that has its name (and perhaps no text), and goes on with fragments of its
	// arguments under the same index.
	Call int    // 0, 1, 2, … in the order of the message
	ID   string // set with the name when the dialect carries ids; otherwise the server makes one
	Name string // set in a call's first piece only
}

// PieceKind tells what a Piece adds to.
type PieceKind uint8

// The kinds of piece.
const (
	Content PieceKind = iota
	Reasoning
	ToolCall
)

// MessageParser takes the text of one choice apart. For one goroutine.
//
// Push is given the next piece of text and passes to emit what has become certain; text that may still turn out to be
// markup is held back. Finish passes on the rest: truncated tells that the answer was cut by a length limit. Parsers
// never fail: what they can't read comes out as content. Neither method keeps emit.
type MessageParser interface {
	Push(text []byte, emit func(Piece))
	Finish(truncated bool, emit func(Piece))
}
