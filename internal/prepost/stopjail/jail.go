// Package stopjail finds stop strings in an answer that arrives in pieces, and holds back text that may still become
// one.
//
// The result doesn't depend on how the text is cut: generation stops at the first moment at which the text so far
// contains a stop string, that is, at the match with the earliest end, and of two with the same end at the longer one.
//
// A Jail belongs to one goroutine. It holds at most one byte less than the longest stop string.
package stopjail

import (
	"bytes"
	"strings"
)

// Jail searches the text of one choice.
type Jail struct {
	stops []stop
	keep  int    // how much of the past a match may reach back into: the longest stop string less one
	tail  []byte // the last keep bytes of the text so far
	held  int    // how many bytes at the end of tail have not been released
}

type stop struct {
	text    string
	visible bool // the match itself is part of the answer
}

// Hit is a stop string that was found.
type Hit struct {
	Stop string
}

// New returns a jail for the given stop strings: hidden ones are cut from the answer, visible ones stay in it. Empty
// strings are ignored.
func New(hidden, visible []string) *Jail {
	j := &Jail{}
	add := func(texts []string, visible bool) {
		for _, t := range texts {
			if t != "" {
				j.stops = append(j.stops, stop{t, visible})
				j.keep = max(j.keep, len(t)-1)
			}
		}
	}
	add(hidden, false)
	add(visible, true)
	return j
}

// Push takes the next piece of text and appends to dst what may be released. After a hit nothing more comes out: the
// text from the stop string on (or after it, if it is visible) is gone.
func (j *Jail) Push(dst, text []byte) (out []byte, hit *Hit) {
	if len(j.stops) == 0 {
		return append(dst, text...), nil
	}
	past := len(j.tail)
	buf := append(j.tail, text...)
	released := past - j.held
	if s, end, ok := j.find(buf, past); ok {
		if !s.visible {
			end -= len(s.text)
		}
		j.tail, j.held = buf[:0], 0
		if end > released {
			dst = append(dst, buf[released:end]...)
		}
		return dst, &Hit{s.text}
	}
	j.held = j.suffix(buf)
	dst = append(dst, buf[released:len(buf)-j.held]...)
	j.tail = buf[:copy(buf, buf[max(0, len(buf)-j.keep):])]
	return dst, nil
}

// find returns the match in buf with the earliest end after past. What ends before has been searched already.
func (j *Jail) find(buf []byte, past int) (best stop, end int, ok bool) {
	for _, s := range j.stops {
		from := max(0, past-len(s.text)+1)
		i := bytes.Index(buf[from:], []byte(s.text))
		if i < 0 {
			continue
		}
		e := from + i + len(s.text)
		if !ok || e < end || e == end && len(s.text) > len(best.text) {
			best, end, ok = s, e, true
		}
	}
	return best, end, ok
}

// suffix returns the length of buf's longest suffix that begins a hidden stop string.
func (j *Jail) suffix(buf []byte) int {
	longest := 0
	for _, s := range j.stops {
		if s.visible {
			continue
		}
		for n := min(len(s.text)-1, len(buf)); n > longest; n-- {
			if strings.HasPrefix(s.text, string(buf[len(buf)-n:])) {
				longest = n
				break
			}
		}
	}
	return longest
}

// Pass releases what is held and then text, unsearched. A later match doesn't reach back into it.
func (j *Jail) Pass(dst, text []byte) []byte {
	dst = j.Flush(dst)
	j.tail = j.tail[:0]
	return append(dst, text...)
}

// Flush appends what is held: the text has ended and it became no stop string.
func (j *Jail) Flush(dst []byte) []byte {
	dst = append(dst, j.tail[len(j.tail)-j.held:]...)
	j.held = 0
	return dst
}
