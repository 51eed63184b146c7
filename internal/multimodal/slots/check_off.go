//go:build !invariants

package slots

// state is empty without the checks.
type state struct{}

func (s *Slot) take() {}
func (s *Slot) give() {}

// twice passes over a second release, which must not make two owners of a slot.
func (s *Slot) twice() {}
