package testkit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
)

// Script is what a scripted worker sends, item by item, each an engine output as JSON, with these additions:
//
//   - a float may be {"$f":"nan"}, {"$f":"inf"} or {"$f":"-inf"};
//   - {"_dynamo_annotated":true,…} is the whole envelope: data, event, comment, error;
//   - {"_raise":"text"} is an exception of the engine: an error item that ends the stream;
//   - {"_sleep":seconds} waits, until the request's context ends;
//   - {"_lost":true} is a connection that breaks off;
//   - {"_wait":true} waits for the request's context to end.
type Script []json.RawMessage

// Items parses a script given as one JSON array. A script that can't be parsed is a mistake of the test's and panics.
func Items(array string) Script {
	var s Script
	if err := json.Unmarshal([]byte(array), &s); err != nil {
		panic(fmt.Sprintf("testkit: script: %v", err))
	}
	return s
}

// Dispatcher plays scripts in place of workers. Every item is a frame of its own, unless Batch is set.
type Dispatcher struct {
	// Script returns what the worker that gets call sends. An error is Dispatch's.
	Script func(call *router.Call, body []byte) (Script, error)

	Instance *worker.Instance // nil: one with id 1
	Codec    worker.Codec     // of the bodies given to Script
	Batch    bool             // items have been received before the first is read

	mu    sync.Mutex // guards calls
	calls []*Played  // in the order of their dispatch
}

var _ router.Dispatcher = (*Dispatcher)(nil)

// Played is a call that was dispatched, and what became of it.
type Played struct {
	Call router.Call // as it was when dispatched
	Body []byte      // as a worker would get it

	Stops  atomic.Int32 // how often the worker was told to stop, or lost its stream, before its end
	Closed atomic.Bool  // the stream was closed
	Ended  atomic.Bool  // the script was played to its end
}

// Play returns a Dispatcher whose workers all play s. It may be used for any number of requests at once.
func Play(s Script) *Dispatcher {
	return &Dispatcher{Script: func(*router.Call, []byte) (Script, error) { return s, nil }}
}

// Calls returns what has been dispatched so far. The slice is the caller's; what it points to goes on changing while
// streams run.
func (d *Dispatcher) Calls() []*Played {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]*Played(nil), d.calls...)
}

// Dispatch plays a script as the answer to call. Like the real one it returns when the worker has begun; ctx covers the
// life of the stream.
func (d *Dispatcher) Dispatch(ctx context.Context, call *router.Call) (router.Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	in := d.Instance
	if in == nil {
		in = &worker.Instance{Namespace: call.Endpoint.Namespace, Component: call.Endpoint.Component,
			Endpoint: call.Endpoint.Name, InstanceID: 1}
	}
	body, err := call.Body(nil, d.Codec, router.Target{Instance: in})
	if err != nil {
		return nil, err
	}
	p := &Played{Call: *call, Body: body}
	script, err := d.Script(call, body)
	if err != nil {
		return nil, err
	}
	if err := d.admit(p); err != nil {
		return nil, err
	}
	return &stream{ctx: ctx, script: script, raw: call.Raw, batch: d.Batch, played: p, in: in}, nil
}

// admit notes a call. Like a real worker it refuses an id that it is still working on; endpoints have workers of their own.
func (d *Dispatcher) admit(p *Played) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if c.Call.RequestID == p.Call.RequestID && c.Call.Endpoint == p.Call.Endpoint && !c.Closed.Load() {
			return fault.New(fault.Unavailable, "request %s is already active", p.Call.RequestID)
		}
	}
	d.calls = append(d.calls, p)
	return nil
}

// stream plays one script. It starts no goroutine: all happens in Each.
type stream struct {
	ctx    context.Context  // of Dispatch; streams are one of the places where a context is kept
	script Script           // what is played
	raw    bool             // items are the client's own format
	batch  bool             // more is true until the last item
	played *Played          // what the test looks at
	in     *worker.Instance // who pretends to answer
	told   bool             // the worker was told to stop
	over   bool             // the script was played to its end
	item   worker.Item      // one for all, as real streams have: what a sink keeps of it goes bad
}

// Instance is the worker that pretends to answer.
func (s *stream) Instance() *worker.Instance { return s.in }

// stop tells the worker to stop, once.
func (s *stream) stop() {
	if !s.told && !s.over {
		s.told = true
		s.played.Stops.Add(1)
	}
}

// Close ends the stream. Like the real one it may be called again.
func (s *stream) Close() error {
	s.stop()
	s.played.Closed.Store(true)
	return nil
}

// errLost is what becomes of a stream whose connection broke.
var errLost = fault.Lost(errors.New("connection reset"), "Service temporarily unavailable")

// Each plays the script.
func (s *stream) Each(f func(it *worker.Item, more bool) error) error {
	for i, step := range s.script {
		if err := s.ctx.Err(); err != nil {
			s.stop()
			return err
		}
		it := &s.item
		it.Reset()
		last, err := s.step(step, it)
		if err != nil {
			s.stop()
			return err
		}
		// Steps that only wait pass nothing on.
		if it.HasData || it.Event != "" || it.Err != nil {
			err = f(it, s.batch && i+1 < len(s.script))
		}
		if err != nil {
			s.stop()
			if errors.Is(err, router.ErrStop) {
				return nil
			}
			return err
		}
		if last {
			break
		}
	}
	s.over = true
	s.played.Ended.Store(true)
	return nil
}

// step reads one step into it, or does what it says. last tells that nothing follows.
func (s *stream) step(step json.RawMessage, it *worker.Item) (last bool, err error) {
	var c struct {
		Annotated bool     `json:"_dynamo_annotated"`
		Raise     *string  `json:"_raise"`
		Sleep     *float64 `json:"_sleep"`
		Lost      bool     `json:"_lost"`
		Wait      bool     `json:"_wait"`
	}
	_ = json.Unmarshal(step, &c) // not every step is an object; reading the item says so
	switch {
	case c.Lost:
		return true, errLost
	// What a Python worker sends when its engine raises.
	case c.Raise != nil:
		it.Event, it.Err = "error", &worker.Error{Class: "Internal", Reason: "backend.unknown", Message: "Exception: " + *c.Raise}
		return true, nil
	case c.Sleep != nil || c.Wait:
		return false, s.sleep(c.Sleep)
	}
	frame := append([]byte(nil), step...)
	// Bare outputs get the envelope that workers put around them, and the whole the frame's own.
	if !c.Annotated {
		frame = bytes.Join([][]byte{[]byte(`{"data":`), frame, []byte(`}`)}, nil)
	}
	frame = bytes.Join([][]byte{[]byte(`{"data":`), floats.Replace(frame), []byte(`,"complete_final":false}`)}, nil)
	decode := worker.DecodeItem
	if s.raw {
		decode = worker.DecodeRawItem
	}
	if err := decode(worker.JSON, frame, it); err != nil {
		return true, fault.New(fault.BadGateway, "Bad gateway").Because(err)
	}
	floats.Restore(it)
	return false, nil
}

// sleep waits for so long, or for ever, until the request's context ends.
func (s *stream) sleep(seconds *float64) error {
	var done <-chan time.Time // nil: for ever
	if seconds != nil {
		t := time.NewTimer(time.Duration(*seconds * float64(time.Second)))
		defer t.Stop()
		done = t.C
	}
	select {
	case <-done:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// floats carries the floats JSON can't hold through a JSON decoder, as numbers no test uses.
var floats = special{
	{[]string{`{"$f":"nan"}`, `{"$f": "nan"}`}, "1.71e308", 1.71e308, math.NaN()},
	{[]string{`{"$f":"inf"}`, `{"$f": "inf"}`}, "1.72e308", 1.72e308, math.Inf(1)},
	{[]string{`{"$f":"-inf"}`, `{"$f": "-inf"}`}, "-1.73e308", -1.73e308, math.Inf(-1)},
}

// special are numbers that JSON has no words for.
type special []struct {
	written []string // in scripts
	number  string   // on the way through the decoder
	value   float64  // number, parsed
	meant   float64  // what the test wants
}

// Replace puts numbers in place of the written forms.
func (s special) Replace(b []byte) []byte {
	for _, f := range s {
		for _, w := range f.written {
			b = bytes.ReplaceAll(b, []byte(w), []byte(f.number))
		}
	}
	return b
}

// Restore puts what is meant in place of the numbers.
func (s special) Restore(it *worker.Item) {
	fix := func(v *float64) {
		for _, f := range s {
			if *v == f.value {
				*v = f.meant
			}
		}
	}
	for i := range it.Output.LogProbs {
		fix(&it.Output.LogProbs[i])
	}
	for _, top := range it.Output.TopLogProbs {
		for i := range top {
			fix(&top[i].LogProb)
		}
	}
}
