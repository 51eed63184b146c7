package loadgen

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"
)

// Arrival names how requests of the open loop are spaced.
type Arrival string

// The arrival processes.
const (
	Poisson  Arrival = "poisson"
	Constant Arrival = "constant"
)

// Options say what to send and how. URL and Model are needed; the rest has defaults.
type Options struct {
	URL   string // base, such as http://127.0.0.1:8000; plain HTTP only
	Model string

	PromptTokens int     // prompt length in tokens as the server counts them; 0 is 109
	TokensPer    float64 // tokens per generated word; 0 measures it with two short requests beforehand
	Overhead     int     // tokens the chat template adds; used when TokensPer is given
	MaxTokens    int     // tokens of every answer; 0 is 64
	IgnoreEOS    bool    // ask the worker to go on past its end token
	NoUsage      bool    // don't ask for usage; then token counts are not checked

	Connections int           // closed loop: requests at a time; open loop: at most this many; 0 is 16
	Rate        float64       // requests per second of the open loop; 0 is the closed loop
	Arrival     Arrival       // open loop; empty is Poisson
	KeepAlive   bool          // reuse connections; false opens one per request
	Ramp        time.Duration // closed loop: spread the first requests over this time

	Requests int           // end after this many requests, warm-up not counted; 0: no such end
	Duration time.Duration // end after this time; both 0 is 10 s
	Warmup   int           // requests sent and forgotten before the measured ones
	Timeout  time.Duration // of one request; 0 is 60 s

	Seed      uint64 // prompts and arrivals; 0 is drawn anew, so that no prefix cache helps
	ServerPID int    // process whose CPU and memory to measure, with its children; 0: none
	Log       *slog.Logger
}

// withDefaults returns o with every option set that has a default; a drawn seed among them, so that it isn't drawn
// twice.
func (o Options) withDefaults() Options {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&o.PromptTokens, 109)
	set(&o.MaxTokens, 64)
	set(&o.Connections, 16)
	if o.Arrival == "" {
		o.Arrival = Poisson
	}
	if o.Requests == 0 && o.Duration == 0 {
		o.Duration = 10 * time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	if o.Seed == 0 {
		o.Seed = uint64(time.Now().UnixNano())
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// validate refuses what no run could make sense of. Whether there is a server at the URL is found out by the first
// request.
func (o *Options) validate() error {
	u, err := url.Parse(o.URL)
	switch {
	case err != nil:
		return fmt.Errorf("loadgen: url: %w", err)
	case u.Scheme != "http" || u.Host == "":
		return fmt.Errorf("loadgen: url %q: want http://host:port", o.URL)
	case o.Model == "":
		return errors.New("loadgen: a model name is needed")
	case o.PromptTokens < 0 || o.MaxTokens < 0 || o.Connections < 0 || o.Rate < 0 || o.Requests < 0 || o.Warmup < 0:
		return errors.New("loadgen: counts and rates must not be negative")
	case o.Arrival != Poisson && o.Arrival != Constant:
		return fmt.Errorf("loadgen: arrival %q: want %s or %s", o.Arrival, Poisson, Constant)
	}
	return nil
}
