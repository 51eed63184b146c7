package loadgen

import (
	"strconv"
	"sync"
	"time"
)

// tally collects outcomes of many connections. Safe for concurrent use.
type tally struct {
	mu             sync.Mutex // guards all below
	requests       int        // finished, whatever the outcome
	ok             int
	errors         map[string]int // by kind
	examples       []string       // the first failure of each of the first few kinds
	promptTokens   int            // sums over successes, as the server counted
	outputTokens   int
	ttft, itl, e2e hist
}

// record adds one finished request. Latencies and tokens count for successes only: a refusal is quick, and would make
// a failing server look fast.
func (t *tally) record(s *stream, status int, end time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests++
	if err != nil {
		t.failLocked(status, err)
		return
	}
	t.ok++
	t.promptTokens += s.prompt
	// Without usage the events with text are counted, which servers may merge.
	if s.hasUsage {
		t.outputTokens += s.completion
	} else {
		t.outputTokens += s.contents
	}
	// A success has text, so first is set: stream.end sees to it.
	t.ttft.add(s.first.Sub(s.start))
	t.e2e.add(end.Sub(s.start))
	for _, g := range s.gaps {
		t.itl.add(g)
	}
}

// failLocked counts a failure under its kind, and keeps the text of a kind's first.
func (t *tally) failLocked(status int, err error) {
	if t.errors == nil {
		t.errors = map[string]int{}
	}
	kind := kindOf(err)
	name := string(kind)
	if kind == Status {
		name += "_" + strconv.Itoa(status)
	}
	const most = 5
	if t.errors[name] == 0 && len(t.examples) < most {
		t.examples = append(t.examples, err.Error())
	}
	t.errors[name]++
}

// shards spreads connections over a few tallies, so that recording is no bottleneck and memory stays small with
// thousands of connections.
type shards []*tally

// newShards returns as many tallies as help with n connections.
func newShards(n int) shards {
	// A histogram is some 30 KiB, and a tally has three.
	s := make(shards, min(max(n, 1), 16))
	for i := range s {
		s[i] = new(tally)
	}
	return s
}

// report sums the shards up over the time that the run took. It reads without locks: nobody records any more.
func (s shards) report(took time.Duration) *Report {
	var sum tally
	r := &Report{Seconds: took.Seconds()}
	for _, t := range s {
		r.Requests += t.requests
		r.Succeeded += t.ok
		sum.promptTokens += t.promptTokens
		sum.outputTokens += t.outputTokens
		sum.ttft.merge(&t.ttft)
		sum.itl.merge(&t.itl)
		sum.e2e.merge(&t.e2e)
		for k, n := range t.errors {
			if r.Errors == nil {
				r.Errors = map[string]int{}
			}
			r.Errors[k] += n
		}
		r.Examples = append(r.Examples, t.examples...)
	}
	// Several shards may each have seen the same kind; a handful is enough for a reader.
	r.Examples = r.Examples[:min(len(r.Examples), 5)]
	r.TTFT, r.ITL, r.E2E = sum.ttft.summary(), sum.itl.summary(), sum.e2e.summary()
	if r.Succeeded > 0 {
		r.PromptTokens = float64(sum.promptTokens) / float64(r.Succeeded)
		r.OutputTokens = float64(sum.outputTokens) / float64(r.Succeeded)
	}
	if took > 0 {
		// All requests, but the tokens of whole answers only.
		r.RequestsPerSec = float64(r.Requests) / took.Seconds()
		r.TokensPerSec = float64(sum.outputTokens) / took.Seconds()
	}
	return r
}
