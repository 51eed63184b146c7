package reasonparse

import (
	"bytes"
	"slices"
	"strings"
)

// channels describes an answer that is a sequence of messages, each with a header that says whom it is for.
type channels struct {
	heads  []string // begin a header; the second, if any, names a channel and stands inside headers too
	inner  []string // further markup inside a header
	bodies []string // end a header and begin the message
	ends   []string // end a message

	join      string // goes between two messages of the same kind
	dropBlank bool   // white space between messages is nobody's
	lead      string // what the prompt has begun an answer's first header with

	classify func(header, body string) kind
	primed   func(text []byte) bool     // may text be, or become, the rest of a header that the prompt began?
	tidy     func(header string) string // puts a call's header into the order that tool parsers know; may be nil
}

// kind is whom a message is for.
type kind uint8

const (
	forReader kind = iota
	forSelf        // a thought
	forTool        // a call
	forNobody
)

// maxHeader is the longest header in bytes; anything longer is text that happens to follow a header's marker.
const maxHeader = 256

// channelMachine reads channel dialects. Between messages it is idle: text there is the reader's, because a model that
// forgot its markup shouldn't be silenced.
type channelMachine struct {
	p *Parser
	*channels

	outside, inHeader, inBody *markSet

	head    string // the marker that began the header; empty for a header that the prompt began
	text    []byte // the header so far, its markup included
	resume  sink   // where the text goes if the header turns out to be none
	message bool   // inside a message, also while a header interrupts it
	call    bool   // the message is a call, which is passed on whole

	sought int // how much of the answer's beginning has been searched for the end of a message without a header

	saidContent, saidReasoning bool // a message of that kind has had text
	spoke                      bool // this message has
}

func newChannelMachine(p *Parser, inside bool) *channelMachine {
	c := p.dialect.channels
	m := &channelMachine{p: p, channels: c}
	base := slices.Concat(marks(heads, c.heads), marks(ends, c.ends))
	m.inBody = newMarkSet(base...)
	base = slices.Concat(base, marks(bodies, c.bodies))
	m.outside = newMarkSet(base...)
	m.inHeader = newMarkSet(slices.Concat(base, marks(inner, c.inner))...)
	switch {
	case inside:
		m.enter(forSelf)
	case p.opts.Guided && p.opts.Forced:
		p.set, p.look = m.outside, m.unmarked
	default:
		m.begin("")
	}
	return m
}

// unmarked looks whether an answer that is to be a call begins with a message that lacks its header, and ends like one: it
// is a thought, since the call follows. JSON is the call itself.
func (m *channelMachine) unmarked(rest []byte, final bool) (int, bool) {
	text, v := skipBlank(rest)
	if v == unknown && !final {
		return 0, false
	}
	if v == yes && text[0] != '{' && text[0] != '[' {
		i, mk := m.outside.find(rest[m.sought:])
		switch {
		case mk == nil && !final:
			m.sought += i
			return 0, false
		case mk != nil && mk.act == ends && m.sought+i > 0:
			m.enter(forSelf)
			m.say()
			return 0, true
		}
	}
	m.begin("")
	return 0, true
}

func marks(act action, texts []string) []mark {
	set := make([]mark, 0, len(texts))
	for _, t := range texts {
		set = append(set, mark{text: t, act: act})
	}
	return set
}

// idle enters the space between messages.
func (m *channelMachine) idle() {
	m.message, m.call, m.spoke = false, false, false
	m.p.out, m.p.set = toContent, m.outside
	m.watch()
}

// enter enters a message.
func (m *channelMachine) enter(k kind) {
	p := m.p
	m.message, m.call, m.spoke = true, k == forTool, false
	p.set, p.look = m.inBody, nil
	switch k {
	case forSelf:
		p.out, p.thought = toReasoning, true
		m.watch()
	case forReader:
		p.out = toContent
		m.watch()
	case forTool:
		p.out = toContent
	case forNobody:
		p.out = toNothing
	}
}

// begin enters a header.
func (m *channelMachine) begin(head string) {
	m.head, m.text, m.resume = head, append(m.text[:0], head...), m.p.out
	m.p.out, m.p.set, m.p.look = toHeader, m.inHeader, nil
}

// watch lets the first text of a message, or between messages, be looked at before it is passed on.
func (m *channelMachine) watch() {
	m.p.look = nil
	if m.join != "" || m.dropBlank {
		m.p.look = m.first
	}
}

// first drops white space between messages, and puts the join before a message's first text.
func (m *channelMachine) first(rest []byte, final bool) (int, bool) {
	if m.dropBlank && !m.message {
		n := len(rest) - len(bytes.TrimLeft(rest, " \t\r\n"))
		if n > 0 {
			m.p.pass(n, false)
			rest = rest[n:]
		}
		if len(rest) == 0 {
			return 0, false
		}
	}
	i, mk := m.p.set.find(rest)
	switch {
	case i == 0 && mk != nil:
		return 0, true
	case i == 0 && !final:
		return 0, false
	}
	m.say()
	return 0, true
}

// say notes that text of the present kind follows, and joins it to what has been said.
func (m *channelMachine) say() {
	if m.spoke {
		return
	}
	m.spoke = true
	said := &m.saidContent
	if m.p.out == toReasoning {
		said = &m.saidReasoning
	}
	if *said && m.join != "" {
		m.p.emitText(m.join)
	}
	*said = true
}

func (m *channelMachine) match(mk *mark, _ []byte, _ bool) verdict {
	p := m.p
	n := len(mk.text)
	if p.out == toHeader {
		m.matchHeader(mk)
		return yes
	}
	switch mk.act {
	case heads:
		p.pos += n
		m.begin(mk.text)
	case bodies: // a message without a header
		m.begin("")
		m.matchHeader(mk)
	case ends:
		if m.call {
			p.raw(n)
		} else {
			p.pass(n, p.out == toReasoning)
		}
		m.idle()
	}
	return yes
}

// matchHeader handles a marker inside a header.
func (m *channelMachine) matchHeader(mk *mark) {
	p := m.p
	n := len(mk.text)
	switch {
	case mk.act == bodies:
		k := m.classify(string(m.text), mk.text)
		if k == forTool && p.opts.ToolParser == "" {
			k = forNobody
		}
		p.ledger.decide(len(m.text), k == forSelf)
		m.enter(k)
		if k != forTool {
			p.pass(n, k == forSelf)
			return
		}
		p.emitText(m.callHeader())
		p.raw(n)
	case mk.act == heads && len(m.text) == 0: // the answer begins its header itself
		m.head, m.text = mk.text, append(m.text, mk.text...)
		p.pos += n
	case len(m.text)+n > maxHeader:
		m.giveUp(false)
	case mk.act == inner, mk.act == heads && mk.text != m.heads[0]:
		m.text = append(m.text, mk.text...)
		p.pos += n
	default:
		m.giveUp(false)
	}
}

// callHeader returns the header as a tool parser wants it.
func (m *channelMachine) callHeader() string {
	header := string(m.text)
	if m.head == "" {
		header = m.lead + header
	}
	if m.tidy != nil {
		header = m.tidy(header)
	}
	return header
}

// header collects a header's text as long as it can be one.
func (m *channelMachine) header(text []byte) int {
	for i, c := range text {
		m.text = append(m.text, c)
		if len(m.text) <= maxHeader && isHeaderByte(c) && (m.head != "" || m.markup() || m.primed(m.text)) {
			continue
		}
		m.text = m.text[:len(m.text)-1]
		m.giveUp(false)
		return i
	}
	return len(text)
}

// markup tells whether the header holds markup besides what began it.
func (m *channelMachine) markup() bool { return bytes.Contains(m.text[len(m.head):], []byte("<|")) }

func isHeaderByte(c byte) bool {
	return isNameByte(c) || c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '=' || c == ':' || c == '/'
}

// giveUp ends a header that isn't one: what it holds besides markup and the writer's role is text. At the end of the
// answer a header is more likely cut off than wrong.
func (m *channelMachine) giveUp(final bool) {
	p := m.p
	text := m.salvage(final)
	p.out, p.set = m.resume, m.inBody
	if !m.message {
		m.idle()
	} else if !m.call {
		m.watch()
	}
	p.ledger.decide(len(m.text), p.out == toReasoning)
	m.text = m.text[:0]
	if text == "" || m.dropBlank && !m.message && blank([]byte(text)) {
		return
	}
	p.look = nil
	if !m.call {
		m.say()
	}
	p.emitText(text)
}

// salvage returns what is text in a failed header.
func (m *channelMachine) salvage(final bool) string {
	text := string(m.text[len(m.head):])
	switch {
	case m.call: // an argument that speaks of headers
		return string(m.text)
	case len(m.heads) > 1 && m.head == m.heads[1]: // a message that speaks of channels, if it goes on
		if final {
			return ""
		}
		return string(m.text)
	case m.markup():
		return ""
	case m.head == "":
		if final && strings.HasPrefix(strings.TrimSpace(text), recipient) {
			return ""
		}
		return text
	}
	rest, ok := strings.CutPrefix(text, writer)
	switch {
	case !ok && final && strings.HasPrefix(writer, text), strings.HasPrefix(strings.TrimSpace(rest), recipient):
		return ""
	}
	return rest
}

func (m *channelMachine) finish() {
	if m.p.out == toHeader {
		m.giveUp(true)
	}
}

// What headers say besides markers.
const (
	writer    = "assistant"
	recipient = "to="
)

// addressee returns whom a header says the message is to.
func addressee(header string) string {
	_, to, ok := strings.Cut(header, recipient)
	if !ok {
		return ""
	}
	if i := strings.IndexAny(to, " \t\r\n<"); i >= 0 {
		to = to[:i]
	}
	return to
}

// primedTo tells whether text may be, or become, the addressee of a header.
func primedTo(text []byte) bool {
	rest := bytes.TrimLeft(text, " ")
	return len(text)-len(rest) <= 1 && startsWith(rest, recipient) != no
}

func classifyHarmony(header, _ string) kind {
	if to := addressee(header); to != "" && to != "user" {
		return forTool
	}
	if _, channel, ok := strings.Cut(header, "<|channel|>"); ok && strings.HasPrefix(channel, "analysis") {
		return forSelf
	}
	return forReader
}

// tidyHarmony moves a recipient that stands with the role to where the channel is, and drops white space between the
// two.
func tidyHarmony(header string) string {
	role, channel, ok := strings.Cut(header, "<|channel|>")
	if !ok || role == "" {
		return header
	}
	to := addressee(role)
	if to == "" {
		return "<|start|>" + writer + "<|channel|>" + channel
	}
	n := 0
	for n < len(channel) && isNameByte(channel[n]) {
		n++
	}
	return "<|start|>" + writer + "<|channel|>" + channel[:n] + " " + recipient + to + channel[n:]
}

func classifyMuse(header, _ string) kind {
	switch addressee(header) {
	case "self":
		return forSelf
	case "", "user":
		return forReader
	}
	return forTool
}

func classifyInkling(_, body string) kind {
	switch body {
	case "<|content_thinking|>":
		return forSelf
	case "<|content_text|>":
		return forReader
	case "<|content_invoke_tool_json|>":
		return forTool
	}
	return forNobody
}

// primedName tells whether text may be a function's name.
func primedName(text []byte) bool {
	for _, c := range text {
		if !isNameByte(c) {
			return false
		}
	}
	return len(text) <= maxName
}
