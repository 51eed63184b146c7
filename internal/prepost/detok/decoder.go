package detok

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/portico-llm/portico/internal/prepost"
)

// replacement is what stands for bytes that are no text.
const replacement = "\uFFFD"

var (
	_ prepost.Decoder = (*levelDecoder)(nil)
	_ prepost.Decoder = (*fallbackDecoder)(nil)
	_ prepost.Decoder = (*window)(nil)
	_ prepost.Decoder = (*markupWindow)(nil)
)

// levelDecoder decodes byte-level tokens: concatenate bytes, then read them as UTF-8 with a U+FFFD for every maximal
// invalid part.
type levelDecoder struct {
	m    *Model
	skip skipping
	n    uint8   // bytes held back
	pend [3]byte // an unfinished character
}

// Push appends what id completes. It never fails and, but for tokens that hold parts of characters, only copies.
func (d *levelDecoder) Push(dst []byte, id prepost.TokenID) ([]byte, error) {
	if d.m.skipped(id, d.skip) {
		return dst, nil
	}
	t := d.m.token(id)
	if d.n == 0 && d.m.flags[id]&whole != 0 {
		return append(dst, t...), nil
	}
	// On the stack for tokens of common length.
	buf := make([]byte, 0, 64)
	buf = append(append(buf, d.pend[:d.n]...), t...)
	dst, rest := appendLossy(dst, buf)
	d.n = uint8(copy(d.pend[:], rest))
	return dst, nil
}

// Flush gives up the unfinished character, if there is one. The decoder can be used on.
func (d *levelDecoder) Flush(dst []byte) ([]byte, error) {
	if d.n > 0 { // the beginning of a character is one maximal invalid part
		d.n = 0
		dst = append(dst, replacement...)
	}
	return dst, nil
}

// appendLossy appends b as UTF-8, each maximal invalid part as one U+FFFD (Unicode 16, section 3.9, as Rust's
// from_utf8_lossy), and returns the tail that may still become a character.
func appendLossy(dst, b []byte) (out, rest []byte) {
	for len(b) > 0 {
		n, valid, partial := step(b)
		switch {
		case partial:
			return dst, b
		case valid:
			dst = append(dst, b[:n]...)
		default:
			dst = append(dst, replacement...)
		}
		b = b[n:]
	}
	return dst, nil
}

// step looks at the start of b: the length of a character, or of a maximal invalid part, or (partial) all of b when it
// is the beginning of a character. Table 3-7 of the Unicode standard gives the ranges of the second byte.
func step(b []byte) (n int, valid, partial bool) {
	// lo and hi bound the next byte; need is how many follow the first.
	lo, hi, need := byte(0x80), byte(0xBF), 0
	switch c := b[0]; {
	case c < 0x80:
		return 1, true, false
	// A continuation without a start, an overlong form, or beyond U+10FFFF.
	case c < 0xC2 || c > 0xF4:
		return 1, false, false
	case c < 0xE0:
		need = 1
	case c < 0xF0:
		need = 2
		// E0 would be overlong below A0, ED a surrogate above 9F.
		if c == 0xE0 {
			lo = 0xA0
		} else if c == 0xED {
			hi = 0x9F
		}
	default:
		need = 3
		// F0 would be overlong below 90, F4 beyond U+10FFFF above 8F.
		if c == 0xF0 {
			lo = 0x90
		} else if c == 0xF4 {
			hi = 0x8F
		}
	}
	for i := 1; i <= need; i++ {
		if i == len(b) {
			return i, false, true
		}
		if b[i] < lo || b[i] > hi {
			return i, false, false
		}
		// Only the second byte has a narrower range.
		lo, hi = 0x80, 0xBF
	}
	return need + 1, true, false
}

// maxRun bounds the bytes a fallbackDecoder holds back. The longest run seen in real text is a few emoji; a run that
// reaches the bound is released character by character.
const maxRun = 64

// fallbackDecoder decodes SentencePiece vocabularies with byte tokens. The reference takes a run of byte tokens as
// text when the whole run is valid UTF-8, and as one U+FFFD a byte otherwise, so that a run counts only once it ends.
type fallbackDecoder struct {
	m     *Model
	skip  skipping
	strip bool   // nothing has been emitted yet and the first space is to go
	run   []byte // byte tokens held back
	bad   bool   // the current run is invalid, whatever follows
}

// Push appends what id completes. It never fails. A text token ends a run of bytes ahead of it.
func (d *fallbackDecoder) Push(dst []byte, id prepost.TokenID) ([]byte, error) {
	if d.m.skipped(id, d.skip) {
		return dst, nil
	}
	t := d.m.token(id)
	if d.m.flags[id]&isByte == 0 {
		dst = d.endRun(dst)
		return d.emit(dst, t), nil
	}
	d.run = append(d.run, t...)
	// Nothing can make the run valid any more, so every byte of it, present and to come, is a U+FFFD.
	if d.bad || hopeless(d.run) {
		d.bad = true
		return d.emitBad(dst), nil
	}
	if len(d.run) >= maxRun {
		whole := d.run[:wholePrefix(d.run)]
		dst = d.emit(dst, whole)
		d.run = d.run[:copy(d.run, d.run[len(whole):])]
	}
	return dst, nil
}

// Flush ends the run: what is unfinished stays so.
func (d *fallbackDecoder) Flush(dst []byte) ([]byte, error) { return d.endRun(dst), nil }

// endRun decides what the run is and forgets it.
func (d *fallbackDecoder) endRun(dst []byte) []byte {
	if len(d.run) > 0 {
		if utf8.Valid(d.run) {
			dst = d.emit(dst, d.run)
			d.run = d.run[:0]
		} else {
			dst = d.emitBad(dst)
		}
	}
	d.bad = false
	return dst
}

// emitBad appends one U+FFFD for every byte held back.
func (d *fallbackDecoder) emitBad(dst []byte) []byte {
	for range d.run {
		dst = d.emit(dst, []byte(replacement))
	}
	d.run = d.run[:0]
	return dst
}

// emit appends text, less the answer's first space where the vocabulary wants it gone.
func (d *fallbackDecoder) emit(dst, text []byte) []byte {
	if d.strip && len(text) > 0 {
		d.strip = false
		if text[0] == ' ' {
			text = text[1:]
		}
	}
	return append(dst, text...)
}

// hopeless reports whether no continuation makes b valid UTF-8.
func hopeless(b []byte) bool {
	for len(b) > 0 {
		n, valid, partial := step(b)
		if partial {
			return false
		}
		if !valid {
			return true
		}
		b = b[n:]
	}
	return false
}

// wholePrefix returns the length of b without the unfinished character at its end; b is not hopeless.
func wholePrefix(b []byte) int {
	for i := len(b) - 1; i >= max(0, len(b)-3); i-- {
		if _, _, partial := step(b[i:]); partial {
			return i
		}
		if utf8.RuneStart(b[i]) {
			break
		}
	}
	return len(b)
}

// maxWindow bounds the ids a window decodes at a time: past it what is there is taken as final.
const maxWindow = 32

// window decodes through the reference: text(window) minus text(window without the new ids) is what is new, once it
// doesn't end in an unfinished character.
type window struct {
	decode NativeDecode // the reference
	skip   bool
	ids    []prepost.TokenID // context, then what is still to be emitted
	read   int               // ids[:read] have been emitted; they stay as context
	before string            // text of ids[:read]
}

// newWindow returns a window whose first context is the end of the prompt, of which nothing is emitted.
func newWindow(decode NativeDecode, prompt []prepost.TokenID, skip bool) *window {
	w := &window{decode: decode, skip: skip, ids: append(make([]prepost.TokenID, 0, 16), prompt...), read: len(prompt)}
	return w
}

// Push appends what is certain now. Its error is the reference's.
func (w *window) Push(dst []byte, id prepost.TokenID) ([]byte, error) {
	w.ids = append(w.ids, id)
	return w.advance(dst, len(w.ids) >= maxWindow)
}

// Flush appends the rest, an unfinished character as the reference writes it.
func (w *window) Flush(dst []byte) ([]byte, error) {
	if w.read == len(w.ids) {
		return dst, nil
	}
	return w.advance(dst, true)
}

// advance emits the new ids if their text is final, or if it is forced to. Each call costs two decodes at most.
func (w *window) advance(dst []byte, force bool) ([]byte, error) {
	if w.before == "" && w.read > 0 {
		var err error
		if w.before, err = w.decode(w.ids[:w.read], w.skip); err != nil {
			return dst, err
		}
	}
	now, err := w.decode(w.ids, w.skip)
	if err != nil {
		return dst, err
	}
	if !force && (len(now) <= len(w.before) || strings.HasSuffix(now, replacement)) {
		return dst, nil
	}
	dst = append(dst, now[commonPrefix(w.before, now):]...)
	w.ids = append(w.ids[:0], w.ids[w.read:]...) // the ids just emitted are the next context
	w.read, w.before = len(w.ids), ""
	return dst, nil
}

// markupWindow is a window that some special tokens never get into. The reference, which skips all of them or none, is
// asked for the text of the others.
type markupWindow struct {
	*window
	m     *Model
	skips skipping
}

func newMarkupWindow(m *Model, prompt []prepost.TokenID, s skipping) *markupWindow {
	prompt = slices.DeleteFunc(slices.Clone(prompt), func(id prepost.TokenID) bool { return m.skips(id, s) })
	return &markupWindow{newWindow(m.decode, prompt, false), m, s}
}

// Push appends what is certain now. Its error is the reference's.
func (w *markupWindow) Push(dst []byte, id prepost.TokenID) ([]byte, error) {
	if w.m.skips(id, w.skips) {
		return dst, nil
	}
	return w.window.Push(dst, id)
}

// commonPrefix returns how much of now has been emitted already: normally all of before. A decoder that rewrites its
// past (a space before punctuation, say) leaves only what is still the same, cut at a character.
func commonPrefix(before, now string) int {
	if strings.HasPrefix(now, before) {
		return len(before)
	}
	n := 0
	for n < len(before) && n < len(now) && before[n] == now[n] {
		n++
	}
	for n > 0 && n < len(now) && !utf8.RuneStart(now[n]) {
		n--
	}
	return n
}
