package reasonparse

import "slices"

// blockMachine reads thoughts that stand between two markers.
type blockMachine struct {
	p *Parser

	marks *markSet // what matters outside of calls

	marked bool // the thought was begun by a marker in the answer, not by the prompt
	sought int  // how much of the answer's beginning has been searched for the end of an unmarked thought
	owed   int  // ends that may still come and are markup, because something was begun that they end
}

func newBlockMachine(p *Parser, inside bool) *blockMachine {
	m := &blockMachine{p: p}
	d := p.dialect
	m.marks = newMarkSet(slices.Concat(marks(opens, d.open), marks(closes, d.close), marks(drops, d.drop),
		marks(answers, d.answer), callMarks(p.opts.ToolParser))...)
	// An answer that ends a thought nobody began may go on from a prompt that did.
	m.owed = 1
	if inside {
		m.think(false)
	} else {
		m.answer()
	}
	if p.opts.Guided {
		p.look = m.probe // instead of a thought
	}
	return m
}

// think enters a thought.
func (m *blockMachine) think(marked bool) {
	p := m.p
	p.out, p.set, p.thought = toReasoning, m.marks, true
	m.marked, m.owed = marked, 0
}

// answer enters the answer proper.
func (m *blockMachine) answer() {
	p := m.p
	p.out, p.set = toContent, m.marks
	if p.opts.Guided {
		p.look = m.probe
	}
}

// probe looks whether a constrained answer begins with its JSON. From there on nothing is markup.
func (m *blockMachine) probe(rest []byte, final bool) (int, bool) {
	text, v := skipBlank(rest)
	if v == unknown && !final {
		return 0, false
	}
	if v != yes || text[0] != '{' && text[0] != '[' {
		return 0, m.unmarked(rest, final)
	}
	switch i, mk := m.marks.find(text); {
	case i == 0 && mk != nil: // a marker that begins with a bracket
		return 0, true
	case i == 0 && !final:
		return 0, false
	}
	m.p.out, m.p.set = toContent, verbatim
	return 0, true
}

// unmarked enters a thought that lacks its beginning, if its end comes before any other marker; false when that isn't
// known yet. Only at the beginning of an answer that is to be a call: other answers may well begin with text.
func (m *blockMachine) unmarked(rest []byte, final bool) bool {
	p := m.p
	if !p.opts.Forced || p.thought || p.began || p.out != toContent {
		return true
	}
	i, mk := m.marks.find(rest[m.sought:])
	switch {
	case mk == nil && !final:
		m.sought += i
		return false
	case mk != nil && mk.act == closes:
		m.think(false)
	}
	return true
}

// label drops the label of a thought.
func (m *blockMachine) label(rest []byte, final bool) (int, bool) {
	label := m.p.dialect.label
	switch startsWith(rest, label) {
	case yes:
		return len(label), true
	case unknown:
		if !final {
			return 0, false
		}
		return len(rest), true
	}
	return 0, true
}

func (m *blockMachine) match(mk *mark, rest []byte, final bool) verdict {
	p := m.p
	after := rest[len(mk.text):]
	if mk.act == opens || mk.act == closes && p.out == toContent {
		if v := m.quoted(after, final); v != no {
			return m.literal(mk, v)
		}
	}
	switch mk.act {
	case opens:
		m.open()
	case closes:
		return m.close(mk)
	case answers:
		p.pass(len(mk.text), p.out == toReasoning)
		m.answer()
		return yes
	case calls:
		return m.begin(mk, after, final)
	case ends:
		p.raw(len(mk.text))
		m.answer()
		return yes
	}
	p.pass(len(mk.text), p.out == toReasoning)
	return yes
}

// quoted tells whether a marker stands between two equal quotes: then the text is about it.
func (m *blockMachine) quoted(after []byte, final bool) verdict {
	q := m.p.last
	if q != '`' && q != '"' && q != '\'' || !m.p.dialect.words {
		return no
	}
	if len(after) == 0 {
		if final {
			return no
		}
		return unknown
	}
	if after[0] == q {
		return yes
	}
	return no
}

// literal passes a marker on as text.
func (m *blockMachine) literal(mk *mark, v verdict) verdict {
	if v == yes {
		m.p.advance(m.p.buf[m.p.pos : m.p.pos+len(mk.text)])
	}
	return v
}

// open handles an opening marker. In a thought it opens nothing, but the end it asks for may come.
func (m *blockMachine) open() {
	switch {
	case m.p.out == toContent:
		m.think(true)
	case m.marked:
		m.owed++
	default:
		m.marked = true // the answer repeats what the prompt ends with
	}
	if m.p.dialect.label != "" {
		m.p.look = m.label
	}
}

// close handles an end. Outside a thought it is markup if something asks for it or the answer hasn't begun yet, and
// otherwise a word of the answer, where such words can be.
func (m *blockMachine) close(mk *mark) verdict {
	p := m.p
	n := len(mk.text)
	switch {
	case p.out == toReasoning:
		p.pass(n, true)
		m.answer()
	case m.owed > 0:
		m.owed--
		p.pass(n, false)
	case !p.began || !p.dialect.words:
		p.pass(n, false)
	default:
		return m.literal(mk, yes)
	}
	return yes
}

// begin handles the opening marker of a call: if it opens one, the call is passed on untouched. It ends a thought that
// is still open, whose own end may come after the call.
func (m *blockMachine) begin(mk *mark, after []byte, final bool) verdict {
	p := m.p
	if mk.shape != nil {
		switch v := mk.shape(after); {
		case v == unknown && final && p.out == toContent:
			// Cut off, but not in a thought: whatever it is, it goes to the tool parser.
		case v == no || v == unknown && final:
			return m.literal(mk, yes)
		case v == unknown:
			return unknown
		}
	}
	if p.out == toReasoning {
		m.owed++
	}
	p.raw(len(mk.text))
	m.answer()
	if mk.end != "" {
		p.set = newMarkSet(mark{text: mk.end, act: ends})
	}
	return yes
}

func (m *blockMachine) header(text []byte) int { return len(text) }

func (m *blockMachine) finish() {}

// prepender puts the opening marker in front of an answer instead of taking anything apart, for clients that want to
// see thoughts as the model wrote them.
type prepender struct{ p *Parser }

func newPrepender(p *Parser) *prepender {
	m := &prepender{p}
	p.out, p.set = toContent, verbatim
	if p.opts.Enabled && p.opts.Prompt != Closes {
		p.look = m.prepend
	}
	return m
}

// prepend emits the marker once it is clear that the answer doesn't begin with it, and is neither a call nor
// constrained.
func (m *prepender) prepend(rest []byte, final bool) (int, bool) {
	p := m.p
	text, v := skipBlank(rest)
	if v == unknown && !final {
		return 0, false
	}
	starts := []string{p.dialect.open[0]}
	if p.opts.Guided {
		starts = append(starts, "{", "[") // the constraint began at once: there is no thought
	}
	for _, c := range callMarks(p.opts.ToolParser) {
		starts = append(starts, c.text)
	}
	if v == yes {
		v = startsWith(text, starts...)
	}
	if v == unknown && !final {
		return 0, false
	}
	if v != yes {
		p.emitText(p.dialect.open[0])
	}
	return 0, true
}

func (m *prepender) match(*mark, []byte, bool) verdict { return no }

func (m *prepender) header(text []byte) int { return len(text) }

func (m *prepender) finish() {}
