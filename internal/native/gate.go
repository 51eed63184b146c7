package native

import "context"

// Gate bounds how many native calls run at once, over all tokenizers and templates of the process: a call into native
// code holds an operating-system thread and can't be interrupted, so without a bound a burst of long prompts starves
// timers and short requests. A nil Gate doesn't bound. Safe for concurrent use.
type Gate struct{ slots chan struct{} }

// NewGate returns a gate that lets n calls through at a time; n below 1 means 1.
func NewGate(n int) *Gate { return &Gate{slots: make(chan struct{}, max(n, 1))} } // one slot per running call

// Enter waits for a free slot, or for ctx to end. Each nil return needs one Leave.
func (g *Gate) Enter(ctx context.Context) error {
	if g == nil {
		return nil
	}
	select {
	case g.slots <- struct{}{}:
		return nil
	default:
	}
	select {
	case g.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leave gives the slot back.
func (g *Gate) Leave() {
	if g != nil {
		<-g.slots
	}
}
