package reply

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
)

// tokenBytes is what a tokenizer may know beyond prepost.Tokenizer: the bytes a token stands for, which need not be
// whole characters.
type tokenBytes interface {
	TokenBytes(id prepost.TokenID) ([]byte, bool)
}

// logprobs gathers encoded log probabilities, of one chunk or of one whole choice.
type logprobs struct {
	n int // positions

	content []byte // chat: entries

	tokens, values, tops, offsets []byte // completions: elements of the four arrays
	hasTops                       bool   // a position has alternatives
}

// reset makes room for the next chunk and keeps the memory.
func (l *logprobs) reset() {
	l.n, l.hasTops = 0, false
	l.content, l.tokens, l.values = l.content[:0], l.tokens[:0], l.values[:0]
	l.tops, l.offsets = l.tops[:0], l.offsets[:0]
}

// addLogProbs encodes d's log probabilities, if it has any and the client asked for them.
func (b *base) addLogProbs(l *logprobs, d *pipeline.Delta, c *choice) {
	if !b.opts.LogProbs || len(d.LogProbs) == 0 {
		return
	}
	for i, id := range d.TokenIDs {
		at := position{id: id, text: b.token(id), known: i < len(d.LogProbs)}
		if at.known { // an engine that reports fewer values than tokens leaves the rest unknown
			at.value = d.LogProbs[i]
		}
		if i < len(d.TopLogProbs) {
			at.top = d.TopLogProbs[i]
		}
		if b.opts.Chat {
			b.chatEntry(l, &at)
		} else {
			b.completionEntry(l, &at, c)
		}
		l.n++
	}
}

// position is one token of an answer, with what is known of its probability.
type position struct {
	id    uint32              // the token drawn
	text  tokenText           // as a client sees it
	value float64             // natural logarithm of its probability; only when known
	known bool                // the engine reported a value
	top   []worker.TopLogProb // likeliest first; of the delta, not copied
}

// tokenText is a token as a client sees it.
type tokenText struct {
	text  string // decoded by itself, without its neighbours
	bytes []byte // the token's own; nil: those of text
}

// token returns the text of a token.
func (b *base) token(id uint32) tokenText {
	if b.opts.TokensAsIDs {
		return tokenText{text: "token_id:" + strconv.FormatUint(uint64(id), 10)}
	}
	// Only a test or a worker that takes text has none; the probabilities are worth having all the same.
	if b.tokenizer == nil {
		return tokenText{}
	}
	// An id outside the vocabulary has no text: that is no reason to end an answer.
	text, err := b.tokenizer.Decode([]uint32{id}, b.opts.SkipSpecial)
	if err != nil {
		return tokenText{}
	}
	t := tokenText{text: text}
	// A part of a character has no text of its own, but it has bytes; whole ones may stand before or behind it.
	if tb, ok := b.tokenizer.(tokenBytes); ok && strings.Contains(text, "\ufffd") {
		if own, ok := tb.TokenBytes(id); ok && len(own) > 0 {
			t.bytes = own
		}
	}
	return t
}

// alternative returns the text of an alternative, which the engine may have given.
func (b *base) alternative(a *worker.TopLogProb) tokenText {
	if b.opts.TokensAsIDs || !a.HasToken {
		t := b.token(a.TokenID)
		// The engine's bytes are better than ours: it knows them for every token.
		if len(a.Bytes) > 0 {
			t.bytes = a.Bytes
		}
		return t
	}
	return tokenText{text: a.Token, bytes: a.Bytes}
}

// each calls f for the alternatives a client gets: as many as it asked for, and the chosen token in any case.
func (b *base) each(at *position, f func(t tokenText, value float64, known bool)) {
	if b.opts.TopLogProbs == 0 {
		return
	}
	// Engines list the likeliest tokens; the one drawn may be beyond them.
	chosen := false
	for i := range at.top[:min(len(at.top), b.opts.TopLogProbs)] {
		a, v := b.alternative(&at.top[i]), at.top[i].LogProb
		if at.top[i].TokenID == at.id {
			chosen = true
			if at.known && !b.opts.Chat { // the completions form has one place for both, and the token's own value wins
				v = at.value
			}
		}
		f(a, v, true)
	}
	if !chosen {
		f(at.text, at.value, at.known)
	}
}

// chatEntry appends one entry of a chat choice's logprobs.content.
func (b *base) chatEntry(l *logprobs, at *position) {
	dst := l.content
	if l.n > 0 {
		dst = append(dst, ',')
	}
	dst = append(dst, '{')
	dst = appendToken(dst, at.text, at.value, at.known)
	// Beyond OpenAI's format: texts of tokens aren't unique, ids are.
	dst = append(dst, `,"token_id":`...)
	dst = strconv.AppendUint(dst, uint64(at.id), 10)
	dst = append(dst, `,"top_logprobs":[`...)
	first := true
	b.each(at, func(t tokenText, value float64, known bool) {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(appendToken(append(dst, '{'), t, value, known), '}')
	})
	l.content = append(dst, "]}"...)
}

// appendToken appends the members that entries and alternatives share: token, logprob and bytes.
func appendToken(dst []byte, t tokenText, value float64, known bool) []byte {
	dst = appendString(append(dst, `"token":`...), t.text)
	dst = appendKnown(append(dst, `,"logprob":`...), value, known)
	dst = append(dst, `,"bytes":`...)
	if t.bytes != nil {
		return appendBytes(dst, t.bytes)
	}
	return appendBytes(dst, t.text)
}

// appendKnown appends a log probability, or null for one nobody reported.
func appendKnown(dst []byte, value float64, known bool) []byte {
	if !known {
		return append(dst, "null"...)
	}
	return appendLogProb(dst, value)
}

// completionEntry appends one position to the four arrays of the completions form.
func (b *base) completionEntry(l *logprobs, at *position, c *choice) {
	if l.n > 0 {
		l.tokens, l.values = append(l.tokens, ','), append(l.values, ',')
		l.tops, l.offsets = append(l.tops, ','), append(l.offsets, ',')
	}
	l.tokens = appendString(l.tokens, at.text.text)
	l.values = appendKnown(l.values, at.value, at.known)
	// Offsets count characters (code points) of the answer's text, through all chunks of the choice.
	l.offsets = strconv.AppendInt(l.offsets, int64(c.offset), 10)
	c.count(at.text)

	if len(at.top) == 0 {
		l.tops = append(l.tops, "null"...)
		return
	}
	l.hasTops = true
	l.tops = append(l.tops, '{')
	var seen [32]string // the form is an object: of alternatives with the same text the likelier stays
	n := 0
	b.each(at, func(t tokenText, value float64, known bool) {
		// Alternatives come likeliest first, so the one that is kept came first.
		if slices.Contains(seen[:n], t.text) {
			return
		}
		if n > 0 {
			l.tops = append(l.tops, ',')
		}
		if n < len(seen) {
			seen[n] = t.text
			n++
		}
		l.tops = appendKnown(append(appendString(l.tops, t.text), ':'), value, known)
	})
	l.tops = append(l.tops, '}')
}

// count moves the offset past t. A character counts where it begins, whichever token it ends in.
func (c *choice) count(t tokenText) {
	if t.bytes == nil {
		// A skipped token has no text, and parts no character.
		if n := utf8.RuneCountInString(t.text); n > 0 {
			c.offset += n
			c.unfinished = 0
		}
		return
	}
	for _, b := range t.bytes {
		if b&0xc0 == 0x80 && c.unfinished > 0 { // goes on with the character
			c.unfinished--
			continue
		}
		c.offset++ // also for a byte that belongs nowhere: the answer has a replacement character in its place
		switch {
		case b >= 0xf0:
			c.unfinished = 3
		case b >= 0xe0:
			c.unfinished = 2
		case b >= 0xc0:
			c.unfinished = 1
		default:
			c.unfinished = 0
		}
	}
}

// appendLogProbs appends the logprobs value of a choice.
func (b *base) appendLogProbs(dst []byte, l *logprobs) []byte {
	if l.n == 0 {
		return append(dst, "null"...)
	}
	if b.opts.Chat {
		dst = append(append(dst, `{"content":[`...), l.content...)
		return append(dst, `],"refusal":null}`...)
	}
	// Four arrays of the same length, one element for each position.
	dst = append(append(dst, `{"tokens":[`...), l.tokens...)
	dst = append(append(dst, `],"token_logprobs":[`...), l.values...)
	dst = append(dst, `],"top_logprobs":[`...)
	// An empty array, not one of nulls, when no alternatives were asked for.
	if l.hasTops {
		dst = append(dst, l.tops...)
	}
	dst = append(append(dst, `],"text_offset":[`...), l.offsets...)
	return append(dst, "]}"...)
}
