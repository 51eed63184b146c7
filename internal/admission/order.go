package admission

import (
	"fmt"
	"time"
)

// Order is the order in which requests that wait are let in. The zero value is FCFS.
type Order uint8

const (
	// FCFS is first come, first served; a priority is as many seconds that the request may have come earlier.
	FCFS Order = iota
	// WSPT is the shortest prompt first, weighed by priority (Smith's rule): the best for the average, and without a
	// guarantee for long prompts other than the bound of the wait.
	WSPT
)

// ParseOrder returns the order of a name, fcfs or wspt; the empty name is fcfs.
func ParseOrder(name string) (Order, error) {
	switch name {
	case "", "fcfs":
		return FCFS, nil
	case "wspt":
		return WSPT, nil
	}
	return FCFS, fmt.Errorf("unknown queue policy %q; known: fcfs, wspt", name)
}

// rank is a request's place among those that wait: higher strict first, then lower score.
type rank struct {
	strict uint32
	score  float64
}

// before reports whether a goes before b.
func (a rank) before(b rank) bool {
	if a.strict != b.strict {
		return a.strict > b.strict
	}
	return a.score < b.score
}

// rankOf is the rank of a request that came at an instant.
func rankOf(o Order, r *Request, came time.Duration) rank {
	out := rank{strict: r.Strict}
	switch o {
	case WSPT:
		// The score is the negative of weight over time, which prefill takes in proportion to the prompt.
		out.score = -weight(r.Priority) / float64(max(r.Tokens, 1))
	default:
		out.score = came.Seconds() - float64(r.Priority)
	}
	return out
}

// weight turns a priority into a factor: 1 for none, more for a positive one, and ever less for a negative one.
func weight(priority int32) float64 {
	if priority >= 0 {
		return 1 + float64(priority)
	}
	return 1 / (1 - float64(priority))
}
