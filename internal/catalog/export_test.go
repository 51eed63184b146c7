package catalog

import "time"

// WithSweep shortens the time after which retired models are looked for.
func (o Options) WithSweep(d time.Duration) Options {
	o.sweepEvery = d
	return o
}
