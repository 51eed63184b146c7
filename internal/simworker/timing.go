package simworker

import (
	"context"
	"math"
	"math/rand/v2"
	"time"
)

// Timing is how long an engine takes. The zero value takes no time at all.
type Timing struct {
	TTFT           time.Duration // to the first token of an empty prompt
	PerPromptToken time.Duration // added to TTFT for every prompt token
	ITL            time.Duration // between tokens
	PerContext     time.Duration // added to ITL for every thousand tokens of context, as attention grows
	Jitter         float64       // standard deviation of both, as a share; drawn from the request's random source
	Speed          float64       // divides all of it; 0 is 1
}

// first returns the time to the first token.
func (t *Timing) first(promptTokens int, r *rand.Rand) time.Duration {
	return t.scale(t.TTFT+time.Duration(promptTokens)*t.PerPromptToken, r)
}

// gap returns the time between two tokens with so many before, prompt included.
func (t *Timing) gap(context int, r *rand.Rand) time.Duration {
	return t.scale(t.ITL+time.Duration(context)*t.PerContext/1000, r)
}

// scale applies jitter and speed. Jitter leaves the mean as it is. A time of zero stays zero and draws nothing.
func (t *Timing) scale(d time.Duration, r *rand.Rand) time.Duration {
	if d == 0 {
		return 0
	}
	f := 1.0
	if t.Jitter > 0 {
		// Log-normal: never negative, with the long tail that real latencies have.
		s2 := math.Log(1 + t.Jitter*t.Jitter)
		f = math.Exp(r.NormFloat64()*math.Sqrt(s2) - s2/2)
	}
	if t.Speed > 0 {
		f /= t.Speed
	}
	return time.Duration(float64(d) * f)
}

// pace waits for moments on a schedule: delays add up from the start, so that a late wake-up shortens the next wait
// instead of slowing the stream. The zero value is ready; the schedule begins with the first wait. For one goroutine.
type pace struct {
	due   time.Time
	timer *time.Timer
}

// wait returns at the moment d after the last one, at once when that has passed. When ctx ends first its error is
// returned; then the schedule is of no more use.
func (p *pace) wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	if p.due.IsZero() {
		p.due = time.Now()
	}
	p.due = p.due.Add(d)
	left := time.Until(p.due)
	if left <= 0 {
		return ctx.Err()
	}
	if p.timer == nil {
		p.timer = time.NewTimer(left)
	} else {
		p.timer.Reset(left)
	}
	select {
	case <-p.timer.C:
		return nil
	case <-ctx.Done():
		p.timer.Stop()
		return ctx.Err()
	}
}
