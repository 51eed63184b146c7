//go:build invariants

package slots

import "bytes"

// scribble is what free memory is filled with: a reader of a slot that it shouldn't read sees it at once.
const scribble = 0xDB

// state is what the checks know of a slot.
type state struct {
	scribbled []byte // what free memory should hold; nil: nothing is known
}

// take checks that nobody wrote to the slot while it was free.
func (s *Slot) take() {
	if s.state.scribbled != nil && !bytes.Equal(s.mem[:len(s.state.scribbled)], s.state.scribbled) {
		panic("slots: a free slot was written to")
	}
	s.state.scribbled = nil
}

// give scribbles over what was used.
func (s *Slot) give() {
	s.state.scribbled = bytes.Repeat([]byte{scribble}, s.size)
	copy(s.mem, s.state.scribbled)
}

// twice is called for a slot that its owner had given up already.
func (s *Slot) twice() { panic("slots: a slot was given up twice") }
