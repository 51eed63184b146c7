package toolparse

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/portico-llm/portico/internal/prepost"
)

// Tool is a function that the request declares.
type Tool struct {
	Name       string
	Parameters json.RawMessage // JSON schema of the arguments; empty: none given
	Strict     bool            // the arguments are held to the schema by the engine
}

// Choice is the request's tool_choice.
type Choice uint8

// The choices.
const (
	Auto     Choice = iota // the model decides
	None                   // calls are dropped; also for requests without tools
	Required               // at least one call: the answer may be a guided JSON array
	Named                  // one function, Options.Function: the answer may be its arguments alone
)

// Options are what a parser needs to know of the request. The zero value is a request that lets the model decide and
// declares nothing.
type Options struct {
	Tools    []Tool
	Choice   Choice
	Function string // the function of Named
	Single   bool   // parallel_tool_calls is false: only the first call is passed on
	Marked   bool   // a call needs its markers: JSON without them is an answer that was asked for
}

// Parser takes the text of one choice apart. It implements prepost.MessageParser; for one goroutine.
type Parser struct {
	d *dialect
	o Options

	state state
	buf   []byte // text that is held back
	emit  func(prepost.Piece)

	patience int // no decision is tried before so much text is held back

	// lead is set at the beginning of the message and behind a call: white space is held back there, in space, and
	// dropped when a call follows or nothing.
	lead  bool
	space []byte
	tail  []byte // content that may become a marker when another is taken out behind it

	marked bool // a marker was taken out of the message

	calls int      // how many have begun, those that aren't passed on included
	ids   []string // of the calls that were passed on
	open  bool     // a call has begun and not ended
	wrote bool     // some of the open call's arguments are out
	mute  bool     // the open call isn't passed on
	list  bool     // further calls may follow the one just read, as in an array
	plain bool     // the answer is guided JSON: the dialect's markers are text

	value   reader
	after   state // where to go when value is complete
	depth   int   // open brackets of malformed arguments
	schemas *schemas
	x       element

	truncated bool // the end of the text is that of a length limit
	cut       bool
	malformed int
}

var _ prepost.MessageParser = (*Parser)(nil)

// New returns a parser of the named dialect, one of Names. No name stands for a model without a parser: only guided
// answers, of the choices Required and Named, are taken apart.
func New(name string, o Options) (*Parser, error) {
	d := lookup(name)
	if d == nil {
		return nil, fmt.Errorf("tool-call parser %q is not known: the parsers are %s", name, strings.Join(Names(), ", "))
	}
	p := &Parser{d: d, o: o, state: d.start, lead: true}
	p.schemas = &schemas{tools: o.Tools}
	if o.Choice == Required || o.Choice == Named {
		p.state = inGuided
	}
	return p, nil
}

// Cut reports whether the text ended within a call: the arguments of the last call stop in the middle. Such an answer
// was cut off, whatever its engine says.
func (p *Parser) Cut() bool { return p.cut }

// Malformed returns how many calls came with arguments that aren't JSON, and were passed on as the model wrote them.
func (p *Parser) Malformed() int { return p.malformed }

// Calls returns how many calls were passed on so far.
func (p *Parser) Calls() int {
	switch {
	case p.o.Choice == None:
		return 0
	case p.o.Single:
		return min(p.calls, 1)
	}
	return p.calls
}

// patient is how much text may be held back and still be looked at anew with each piece. Beyond it, looking waits until
// there is an eighth more: else the work would grow with the square of the text.
const patient = 2048

// Push takes the next text of the message and passes on what is certain.
func (p *Parser) Push(text []byte, emit func(prepost.Piece)) {
	if p.state == inText && len(p.buf) == 0 && !p.lead && len(p.tail) == 0 && !p.d.first.any(text) {
		if len(text) > 0 {
			emit(prepost.Piece{Kind: prepost.Content, Text: string(text)})
		}
		return
	}
	p.buf = append(p.buf, text...)
	if len(p.buf) < p.patience {
		return
	}
	p.run(emit, false)
	p.patience = 0
	if n := len(p.buf); n > patient {
		p.patience = n + n/8
	}
}

// Finish passes on the rest.
func (p *Parser) Finish(truncated bool, emit func(prepost.Piece)) {
	p.truncated = truncated
	p.run(emit, true)
	p.emit = emit
	p.sayTail()
	p.emit = nil
	if p.open {
		p.open, p.cut = false, !p.mute
	}
	if len(p.space) > 0 && p.calls == 0 && !p.marked {
		emit(prepost.Piece{Kind: prepost.Content, Text: string(p.space)})
	}
	p.buf, p.space = nil, nil
}

// run steps on until the text that is held back decides nothing more.
func (p *Parser) run(emit func(prepost.Piece), final bool) {
	p.emit = emit
	for p.step(final) { // each step that asks for another takes text or goes to another state
	}
	p.emit = nil
	if len(p.buf) == 0 {
		p.buf = p.buf[:0]
	}
}

// consume takes n bytes off the text that is held back.
func (p *Parser) consume(n int) { p.buf = p.buf[n:] }

// to goes on in another state.
func (p *Parser) to(s state) bool {
	p.state = s
	return true
}

// content passes on text for the reader, but for white space that may belong to a call.
func (p *Parser) content(b []byte) {
	if p.lead {
		text := bytes.TrimLeft(b, " \t\r\n")
		p.space = append(p.space, b[:len(b)-len(text)]...)
		if len(text) == 0 {
			return
		}
		p.lead = false
		if len(p.space) > 0 {
			b = append(p.space, text...)
			p.space = nil
		}
	}
	p.say(b)
}

// say emits content. Where markers were taken out, what stood around them must not make a new one: that is taken out
// too, and what may become one is held back in tail.
func (p *Parser) say(b []byte) {
	hold := 0
	if !p.plain {
		if len(p.tail) > 0 {
			b = append(p.tail, b...)
			p.tail = nil
		}
		at, size := firstOf(b, p.d.whole)
		for at >= 0 {
			b = append(append([]byte(nil), b[:at]...), b[at+size:]...)
			at, size = firstOf(b, p.d.whole)
		}
		hold = size
		p.tail = append(p.tail, b[len(b)-hold:]...)
	}
	if len(b) > hold {
		p.emit(prepost.Piece{Kind: prepost.Content, Text: string(b[:len(b)-hold])})
	}
}

// sayTail emits what say has held back: nothing that goes with it follows.
func (p *Parser) sayTail() {
	if len(p.tail) > 0 {
		p.emit(prepost.Piece{Kind: prepost.Content, Text: string(p.tail)})
		p.tail = nil
	}
}

// reasoning passes on a thought.
func (p *Parser) reasoning(b []byte) {
	if len(b) > 0 {
		p.emit(prepost.Piece{Kind: prepost.Reasoning, Text: string(b)})
	}
}

// begin opens a call, and ends one that is still open.
func (p *Parser) begin(name, id string) {
	p.finishCall()
	p.sayTail()
	p.lead, p.space = false, nil
	p.mute = p.o.Choice == None || p.o.Single && p.calls > 0
	if !p.mute {
		if id != "" && slices.Contains(p.ids, id) {
			id = "" // models count from zero again in a second section; clients need ids that differ
		}
		p.ids = append(p.ids, id)
		p.emit(prepost.Piece{Kind: prepost.ToolCall, Call: p.calls, ID: id, Name: name})
	}
	p.calls++
	p.open, p.wrote, p.list = true, false, false
}

// arguments passes on a fragment of the open call's arguments.
func (p *Parser) arguments(b []byte) {
	if len(b) == 0 {
		return
	}
	p.wrote = true
	if !p.mute {
		p.emit(prepost.Piece{Kind: prepost.ToolCall, Call: p.calls - 1, Text: string(b)})
	}
}

// flush passes on what the value reader has made.
func (p *Parser) flush() {
	p.arguments(p.value.out)
	p.value.out = p.value.out[:0]
}

// end closes the open call; one without arguments gets an empty object.
func (p *Parser) end() {
	if p.open && !p.wrote {
		p.arguments([]byte("{}"))
	}
	p.finishCall()
}

// spoil counts the open call as malformed.
func (p *Parser) spoil() {
	if !p.mute {
		p.malformed++
	}
}

// finishCall closes the open call as it is.
func (p *Parser) finishCall() {
	if p.open {
		p.open, p.lead = false, true
	}
}

// declared reports whether the request has a tool of this name. Without any tools every name will do.
func (p *Parser) declared(name string) bool {
	return len(p.o.Tools) == 0 || slices.ContainsFunc(p.o.Tools, func(t Tool) bool { return t.Name == name })
}

// state is where in the grammar the parser is.
//
// Each state has a method that looks at the text held back in buf, takes off its beginning what it can decide on, and
// says whether to step on at once. What makes the result independent of the cuts is that a decision, once taken, would
// be the same with more text behind it: a method that can't be sure returns false and sees the same text again with
// more of it, or with final set. Limits on lengths therefore count from the beginning of what is being read, never from
// what happens to be there, and whether something is too long is decided alike with and without its end in sight.
type state uint8

const (
	inText      state = iota // content
	inGuided                 // at the beginning of an answer that may be guided JSON
	inBody                   // behind a marker that JSON calls follow
	inMembers                // behind the name within a JSON call
	inValue                  // within a value
	inHeadValue              // behind the header of a call
	inRaw                    // within malformed arguments
	inAfter                  // behind a call, before its end marker
	inDeepseek               // within the headers of the dialects so named
	inKimi
	inHarmony
	inInkling
	inMuse
	inGemma
	inAside           // within a thought
	inElement         // between the parameters of a call in tags
	inParameter       // within one of them
	inPython          // between the calls of a list
	inPythonArguments // within one of them
)

// step does one step and reports whether another is to follow at once: then it has taken off text, or gone to a state
// that will.
func (p *Parser) step(final bool) bool {
	switch p.state {
	case inGuided:
		return p.guided(final)
	case inBody:
		return p.body(final)
	case inMembers:
		return p.members(final)
	case inValue:
		return p.inValue(final)
	case inHeadValue:
		return p.headValue(final)
	case inRaw:
		return p.raw(final)
	case inAfter:
		return p.afterCall(final)
	case inDeepseek:
		return p.deepseek(final)
	case inKimi:
		return p.kimi(final)
	case inHarmony:
		return p.harmony(final)
	case inAside:
		return p.aside(final)
	case inInkling:
		return p.inkling(final)
	case inMuse:
		return p.muse(final)
	case inGemma:
		return p.gemma(final)
	case inElement:
		return p.element(final)
	case inParameter:
		return p.parameter(final)
	case inPython:
		return p.python(final)
	case inPythonArguments:
		return p.pythonArguments(final)
	}
	return p.text(final)
}
