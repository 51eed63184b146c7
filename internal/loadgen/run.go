package loadgen

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/internal/lifecycle"
)

// Run sends the load and returns what it saw. A few requests to measure the prompts' length come first, then the
// warm-up, then what is reported. Failed requests are part of the report; an error means that there was no measurement.
// When ctx ends, Run abandons the requests under way and reports what it has.
func Run(ctx context.Context, options Options) (*Report, error) {
	o := options.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	c, err := newClient(&o)
	if err != nil {
		return nil, err
	}
	r := &runner{o: o, client: c}
	if r.words, err = r.measureWords(ctx); err != nil {
		return nil, err
	}
	// A phase without a place in the report: what is built on first use, at either end, is not measured.
	if o.Warmup > 0 {
		warm := &phase{runner: r, results: newShards(1), limit: int64(o.Warmup)}
		if err := warm.closedLoop(ctx); err != nil {
			return nil, err
		}
	}
	return r.measure(ctx)
}

// runner holds what the phases of a run share.
type runner struct {
	o      Options // with defaults
	client *client
	words  int           // of every measured prompt
	prompt atomic.Uint64 // number of the next prompt: no two requests of a run have the same
}

// measure runs the measured phase with the server's process watched. The clock starts with the first request and stops
// with the end of the last, so that rates aren't made better by requests that are still under way.
func (r *runner) measure(ctx context.Context) (*Report, error) {
	p := &phase{runner: r, results: newShards(r.o.Connections), limit: int64(r.o.Requests)}
	watch := lifecycle.New(ctx) // ends before the report is made, however this function returns
	defer watch.Stop()
	m := &meter{pid: r.o.ServerPID}
	if m.pid != 0 {
		var err error
		if m.first, err = readUsage(m.pid); err != nil {
			return nil, err
		}
		m.note(m.first)
		watch.Go("process meter", m.watch)
	}
	start := time.Now()
	if r.o.Duration > 0 {
		// No request starts from then on; those under way are waited for, for the time-out of a request at most.
		p.until = start.Add(r.o.Duration)
	}
	loop := p.closedLoop
	if r.o.Rate > 0 {
		loop = p.openLoop
	}
	if err := loop(ctx); err != nil {
		return nil, err
	}
	// All connections have ended: the tallies are read without their locks.
	report := p.results.report(time.Since(start))
	report.Words = r.words
	if err := watch.Stop(); err != nil {
		return nil, err
	}
	if m.pid != 0 {
		var err error
		if m.last, err = readUsage(m.pid); err != nil {
			return nil, fmt.Errorf("loadgen: the server process is gone: %w", err)
		}
		m.note(m.last)
		report.Server = m.report(report)
	}
	return report, nil
}

// report sets the process's figures against what was answered. Failed requests cost the server as well, so they count.
func (m *meter) report(r *Report) *ServerReport {
	const mib = 1 << 20
	cpu := m.last.cpu - m.first.cpu
	s := &ServerReport{
		CPUSeconds:   cpu.Seconds(),
		RSSBeforeMiB: float64(m.first.rss) / mib, RSSPeakMiB: float64(m.peak.rss) / mib, RSSAfterMiB: float64(m.last.rss) / mib,
		PeakThreads: m.peak.threads,
	}
	if r.Requests > 0 {
		s.CPUPerRequestMS = cpu.Seconds() * 1e3 / float64(r.Requests)
	}
	if tokens := r.TokensPerSec * r.Seconds; tokens > 0 {
		s.CPUPerTokenUS = cpu.Seconds() * 1e6 / tokens
	}
	return s
}

// phase is one stretch of load with its own results. It ends with the limit or the time that comes first, or with the
// context; one without either goes on until then.
type phase struct {
	*runner
	results shards       // of this phase alone
	limit   int64        // requests; 0: no limit
	until   time.Time    // zero: no limit
	started atomic.Int64 // requests begun; counted only when there is a limit
}

// next reports whether another request may start. Requests that have started are never cut off by the limits.
func (p *phase) next(ctx context.Context) bool {
	if ctx.Err() != nil || !p.until.IsZero() && !time.Now().Before(p.until) {
		return false
	}
	// Counting up even when refused is harmless: nobody reads the number beyond the limit.
	return p.limit == 0 || p.started.Add(1) <= p.limit
}

// closedLoop keeps every connection busy with one request at a time. A slow server gets fewer requests: latencies are
// what a fixed number of clients sees, not what a given rate of arrivals would. It returns after the last answer.
func (p *phase) closedLoop(ctx context.Context) error {
	g := lifecycle.New(ctx)
	for i := range p.o.Connections {
		g.Go("connection", func(ctx context.Context) error {
			if p.o.Ramp > 0 && !sleep(ctx, p.o.Ramp*time.Duration(i)/time.Duration(p.o.Connections)) {
				return nil
			}
			// Connections share tallies in turn, which spreads their locks evenly.
			one := &requester{phase: p, conn: conn{client: p.client}, tally: p.results[i%len(p.results)]}
			defer one.conn.close()
			for p.next(ctx) {
				one.do(ctx, time.Now())
			}
			return nil
		})
	}
	return g.Wait()
}

// openLoop starts requests at their scheduled times. Connections bounds how many run at once; one that has to wait for
// a place is late, and its latency counts from when it should have started. The schedule never waits for the server:
// what is late is caught up as soon as places are free.
func (p *phase) openLoop(ctx context.Context) error {
	g := lifecycle.New(ctx)
	idle := make(chan *requester, p.o.Connections) // one place per connection: sending never blocks
	for i := range p.o.Connections {
		idle <- &requester{phase: p, conn: conn{client: p.client}, tally: p.results[i%len(p.results)]}
	}
	// A stream of its own under the same seed: arrivals don't depend on the prompts.
	random := rand.New(rand.NewPCG(p.o.Seed, 0x9e3779b97f4a7c15))
	at := time.Now()
	for p.next(ctx) {
		if !sleep(ctx, time.Until(at)) {
			break
		}
		var one *requester
		select {
		// Any idle connection will do; with keep-alive the one unused for longest comes first.
		case one = <-idle:
		case <-ctx.Done():
		}
		if one == nil {
			break
		}
		scheduled := at
		g.Go("request", func(ctx context.Context) error {
			defer func() { idle <- one }()
			one.do(ctx, scheduled)
			return nil
		})
		// From the schedule, not from now: being late once doesn't make the rate lower.
		at = at.Add(p.gap(random))
	}
	err := g.Wait()
	// Every requester is back by now: those that ran sent themselves here before their group's end.
	for range p.o.Connections {
		(<-idle).conn.close()
	}
	return err
}

// gap draws the time to the next arrival. Exponential gaps make the arrivals a Poisson process: many clients that know
// nothing of each other.
func (p *phase) gap(random *rand.Rand) time.Duration {
	mean := float64(time.Second) / p.o.Rate
	if p.o.Arrival == Constant {
		return time.Duration(mean)
	}
	return time.Duration(mean * random.ExpFloat64())
}

// requester sends one request after another on one connection, with buffers that it uses again. For one goroutine at a
// time; its tally is shared.
type requester struct {
	phase  *phase
	conn   conn
	tally  *tally
	stream stream
	body   []byte
}

// do sends one request and records the outcome. start is the moment its latencies count from. It returns when the
// connection is ready for another request, or closed.
func (q *requester) do(ctx context.Context, start time.Time) {
	o := &q.phase.o
	q.body = o.appendBody(q.body[:0], q.phase.prompt.Add(1), q.phase.words, o.MaxTokens, true)
	q.stream.reset(start)
	var text []byte // of an answer that is no stream
	// An error's body goes into the report, a stream's is checked as it comes.
	status, err := q.conn.request(ctx, q.body, func(b []byte, now time.Time) error {
		if q.conn.body.status != 200 {
			text = append(text, b...)
			return nil
		}
		return q.stream.feed(b, now)
	})
	end := time.Now()
	switch {
	// Whatever broke first is the outcome: checking half an answer would only say that it is half.
	case err != nil:
	case status != 200:
		err = &failure{Status, fmt.Sprintf("%d %s", status, clip(text))}
	default:
		err = q.stream.end(o.MaxTokens, !o.NoUsage)
	}
	if err != nil && ctx.Err() != nil {
		return // cut short by the end of the run
	}
	q.tally.record(&q.stream, status, end, err)
}

// measureWords finds how many words make a prompt of the wanted length, one at least. The server counts two prompts of
// known sizes; a line through them gives the tokens a word has and those the chat template adds.
func (r *runner) measureWords(ctx context.Context) (int, error) {
	if r.o.TokensPer > 0 {
		return max(1, int(float64(r.o.PromptTokens-r.o.Overhead)/r.o.TokensPer+0.5)), nil
	}
	// Long enough that a few tokens more or less don't matter, short enough to be cheap.
	const short, long = 50, 550
	few, err := r.countPrompt(ctx, short)
	if err != nil {
		return 0, err
	}
	many, err := r.countPrompt(ctx, long)
	if err != nil {
		return 0, err
	}
	// tokens = overhead + per · words
	per := float64(many-few) / (long - short)
	if per <= 0 {
		return 0, fmt.Errorf("loadgen: the server counts %d tokens for %d words and %d for %d", few, short, many, long)
	}
	overhead := float64(few) - per*short
	return max(1, int((float64(r.o.PromptTokens)-overhead)/per+0.5)), nil
}

// countPrompt asks the server how many tokens prompts of n words have, on average over a few. The answers are one token
// long and not streamed, as usage is in every such answer.
func (r *runner) countPrompt(ctx context.Context, n int) (int, error) {
	const samples = 4
	c := &conn{client: r.client}
	defer c.close()
	sum := 0
	for range samples {
		var answer []byte
		body := r.o.appendBody(nil, r.prompt.Add(1), n, 1, false)
		status, err := c.request(ctx, body, func(b []byte, _ time.Time) error {
			answer = append(answer, b...)
			return nil
		})
		if err != nil {
			return 0, fmt.Errorf("loadgen: measure prompt length: %w", err)
		}
		i := bytes.Index(answer, usageKey)
		if status != 200 || i < 0 {
			return 0, fmt.Errorf("loadgen: measure prompt length: status %d, %s", status, clip(answer))
		}
		sum += numberAfter(answer[i:], promptKey)
	}
	return sum / samples, nil
}

// sleep waits for d; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
