// Package stopjail finds stop strings in an answer that arrives in pieces, and holds back text that may still become
// one.
//
// The result doesn't depend on how the text is cut: generation stops at the first moment at which the text so far
// contains a stop string, that is, at the match with the earliest end, and of two with the same end at the longer one.
//
// Each byte of text costs a constant for each stop string, however long the strings are: they come from clients. The
// search is Knuth, Morris and Pratt's; where it stands in a string is also how much text has to be held back for it.
//
// A Jail belongs to one goroutine. It holds at most one byte less than the longest stop string.
package stopjail

// Jail searches the text of one choice.
type Jail struct {
	stops []stop
	held  []byte // text that has not been released: the longest beginning of a hidden stop string at the text's end
}

// stop is one stop string and how far the text's end agrees with it.
type stop struct {
	text    string
	visible bool    // the match itself is part of the answer
	back    []int32 // back[i]: the length of the longest proper beginning of text that text[:i+1] ends with
	state   int     // the length of the longest beginning of text that the text so far ends with
}

// Hit is a stop string that was found.
type Hit struct {
	Stop string
}

// New returns a jail for the given stop strings: hidden ones are cut from the answer, visible ones stay in it. Empty
// strings are ignored. It takes four bytes for every byte of a stop string.
func New(hidden, visible []string) *Jail {
	j := &Jail{}
	for _, t := range hidden {
		j.add(t, false)
	}
	for _, t := range visible {
		j.add(t, true)
	}
	return j
}

func (j *Jail) add(text string, visible bool) {
	if text == "" {
		return
	}
	s := stop{text: text, visible: visible, back: make([]int32, len(text))}
	for i, k := 1, 0; i < len(text); i++ {
		for k > 0 && text[i] != text[k] {
			k = int(s.back[k-1])
		}
		if text[i] == text[k] {
			k++
		}
		s.back[i] = int32(k)
	}
	j.stops = append(j.stops, s)
}

// next takes one byte and reports whether the text now ends with the whole stop string. It isn't called after that.
func (s *stop) next(c byte) bool {
	for s.state > 0 && s.text[s.state] != c {
		s.state = int(s.back[s.state-1])
	}
	if s.text[s.state] == c {
		s.state++
	}
	return s.state == len(s.text)
}

// Push takes the next piece of text and appends to dst what may be released. After a hit nothing more comes out: the
// text from the stop string on (or after it, if it is visible) is gone, and Push isn't called again.
func (j *Jail) Push(dst, text []byte) (out []byte, hit *Hit) {
	for i, c := range text {
		s := j.byte(c)
		if s == nil {
			continue
		}
		// All of held and of text up to here, less the match where it is hidden. A hidden match begins in held at the
		// earliest: its beginning was held back.
		dst = append(append(dst, j.held...), text[:i+1]...)
		j.held = j.held[:0]
		if !s.visible {
			dst = dst[:len(dst)-len(s.text)]
		}
		return dst, &Hit{s.text}
	}
	return j.release(dst, text), nil
}

// byte takes one byte to all stop strings and returns the longest that the text now ends with.
func (j *Jail) byte(c byte) (best *stop) {
	for i := range j.stops {
		s := &j.stops[i]
		if s.next(c) && (best == nil || len(s.text) > len(best.text)) {
			best = s
		}
	}
	return best
}

// release appends held and text but for what has to be held back now.
func (j *Jail) release(dst, text []byte) []byte {
	keep := 0
	for i := range j.stops {
		if s := &j.stops[i]; !s.visible { // what stays in the answer may leave at once
			keep = max(keep, s.state)
		}
	}
	// keep is at most what is there: a state counts bytes of held and text.
	if keep <= len(text) {
		dst = append(append(dst, j.held...), text[:len(text)-keep]...)
		j.held = append(j.held[:0], text[len(text)-keep:]...)
		return dst
	}
	out := len(j.held) + len(text) - keep
	dst = append(dst, j.held[:out]...)
	j.held = append(j.held[:copy(j.held, j.held[out:])], text...)
	return dst
}

// Pass releases what is held and then text, unsearched. A later match doesn't reach back into it.
func (j *Jail) Pass(dst, text []byte) []byte {
	dst = j.Flush(dst)
	return append(dst, text...)
}

// Flush appends what is held: the text has ended and it became no stop string, or it is to be forgotten.
func (j *Jail) Flush(dst []byte) []byte {
	dst = append(dst, j.held...)
	j.held = j.held[:0]
	for i := range j.stops {
		j.stops[i].state = 0
	}
	return dst
}
