// Package router names the nouns of workers: where they are found (Source, Snapshot), how one is chosen (Policy), how a
// request reaches it (Plane) and how its answer comes back (Dispatcher, Stream). Its children implement them; only
// cmd/frontend joins them.
//
//	Source ──▶ discovery.Store ──▶ *Snapshot (immutable, atomic)
//	Call ──▶ Dispatcher: Policy or Chooser picks ─▶ Plane delivers ─▶ callhome receives ─▶ Stream
//
// Snapshots are immutable and shared without locks. Concurrency rules stand with each interface.
package router

import (
	"context"
	"errors"
	"time"

	"github.com/portico-llm/portico/api/worker"
)

// The buckets of discovery. A record's key is its bucket, a slash, and the path inside the bucket.
const (
	BucketInstances = "v1/instances"
	BucketModels    = "v1/mdc"
	BucketChannels  = "v1/event_channels"
	BucketSources   = "v1/event_sources"
)

// Buckets returns the buckets that a Source lists and follows.
func Buckets() []string {
	return []string{BucketInstances, BucketModels, BucketChannels, BucketSources}
}

// Change is one step of a Source: records that appeared or changed, and keys that went away. Full marks a complete
// listing: whatever it doesn't hold is gone.
type Change struct {
	Full    bool
	Put     []Record
	Removed []string // keys
}

// Record is one discovery record: its full key, such as v1/instances/ns/comp/ep/1f, and its JSON value.
type Record struct {
	Key   string
	Value []byte
}

// Source watches a discovery backend. Run lists all buckets, then follows them until ctx ends; it calls emit from one
// goroutine at a time, the first time with Full set, and again with Full after every outage. An outage is not an
// error: Run reports it in its log, keeps what was known, and tries again with bounded back-off for as long as ctx
// lives. Run returns nil when ctx ends, and an error only when the backend can never work (a bad address, say).
type Source interface {
	Run(ctx context.Context, emit func(Change)) error
}

// Snapshot is everything discovery knows at one moment. It is immutable.
type Snapshot struct {
	Version   uint64                                   // grows with every change
	Instances map[worker.EndpointID][]*worker.Instance // ordered by instance id
	Models    []*worker.ModelRecord                    // ordered by key
	Channels  []*worker.EventChannel                   // ordered by key
	Sources   []*worker.EventSource                    // ordered by key
}

// Candidate is one instance a Policy may choose.
type Candidate struct {
	Instance *worker.Instance
	InFlight int64 // requests of this frontend now at the instance
	// Factor multiplies the instance's cost for this request, which prefers it the more the smaller it is; 0 is 1.
	Factor float64
}

// Query is what a Policy may look at beside the candidates. It is read-only.
type Query struct {
	RequestID string
	TokenIDs  []uint32        // prompt
	Request   *worker.Request // all of it, routing hints included; nil: the worker takes the client's own format
	Pin       *uint64         // instance id the client chose; policies other than direct never see it set, choosers do
	Ordinal   uint64          // number of this choice at its endpoint: 0, 1, 2, …
	Random    func(n int) int // uniform in [0, n)

	// Memo is what a Chooser remembers of the call from one try to the next, such as the hashes of its prompt. Only the
	// Chooser writes it.
	Memo any
}

// Policy chooses one of the candidates (at least one) and returns its index. A Policy is a pure function of its
// arguments and safe for concurrent use.
type Policy interface {
	Pick(q *Query, candidates []Candidate) (int, error)
}

// Chooser chooses like a Policy, and may remember what it chose: it is told what becomes of the request. Safe for
// concurrent use. Choose may block until ctx ends, for a request to wait its turn; it fails with a *fault.Error, or with
// the context's error. A request that insists on an instance comes with that one candidate.
type Chooser interface {
	Choose(ctx context.Context, q *Query, candidates []Candidate) (Choice, error)
}

// Choice is what a Chooser chose.
type Choice struct {
	Index  int     // among the candidates
	Rank   *uint32 // data-parallel rank inside the instance; nil: the worker's own choice
	Ticket Ticket  // nil: nobody wants to know what becomes of the request there
}

// Ticket follows one try of a request at one instance, from the choice to the end of its stream. Its methods are called
// by one goroutine at a time and must not block.
type Ticket interface {
	// Item is told of every item of the answer before the reader of the stream is. The item is valid during the call.
	Item(it *worker.Item)
	// Done is called once, when the try has failed or its stream is closed.
	Done()
}

// Target is where one try of a call goes.
type Target struct {
	Instance *worker.Instance
	Rank     *uint32 // data-parallel rank; nil: the worker's own choice
}

// Toll is what one request has cost, over all its calls. The Dispatcher adds to it; whoever makes the calls adds what
// becomes of their streams. It belongs to the goroutine that makes them.
type Toll struct {
	// Waited is the time spent on waiting for workers to begin.
	Waited time.Duration
	// Struck is how many workers in a row were lost, or stayed silent, once they had the request and before any output.
	// After some, the request is most likely to blame, and no further worker is risked.
	Struck int
}

// ErrStruck is the cause of Dispatch's failure when a request has struck too many workers to be tried on another.
var ErrStruck = errors.New("the request has struck too many workers")

// Call is one request to be sent to some worker of an endpoint. The Dispatcher doesn't change it, but for its Toll, and
// reads it only until Dispatch returns.
type Call struct {
	RequestID string
	Endpoint  worker.EndpointID
	TokenIDs  []uint32 // for the policy; may be nil
	Pin       *uint64  // the instance the client insists on; nil: the policy chooses

	// Request is the request as far as choosers may look at it; nil for workers that take the client's own format.
	Request *worker.Request

	// Serves narrows the choice to some of the endpoint's instances, given by their ids: those that hold an adapter, or
	// those whose card is the one the request was prepared for. Nil admits all. It is called from several goroutines.
	Serves func(instanceID uint64) bool

	// Factor says how much the request prefers an instance, as Candidate.Factor; nil: it prefers none.
	Factor func(instanceID uint64) float64
	// Session is what requests have in common that should go to one worker, so that it finds its cache; empty: nothing.
	Session string
	// SessionFinal says that the session has no further requests.
	SessionFinal bool

	// Toll is what the request has cost so far; nil: nothing, and nobody wants to know.
	Toll *Toll
	// Exclude lists instances that aren't to be tried: they have failed this request before.
	Exclude []uint64
	// Failed, unless nil, is told of every instance that was tried in vain and why, before Dispatch returns and on its
	// goroutine.
	Failed func(instanceID uint64, err error)

	// Body appends the request body in the worker's codec to dst. It may be called again for another try, whose target is
	// another.
	Body func(dst []byte, codec worker.Codec, to Target) ([]byte, error)

	// Raw asks for items undecoded (Item.Raw): the worker answers in the client's own format.
	Raw bool
	// Bare asks for the same of an endpoint whose items have no envelope for annotations and errors.
	Bare bool

	Traceparent string // W3C trace context for the worker; empty: none
	Tracestate  string
	XRequestID  string
	Metadata    map[string]string
}

// Dispatcher sends calls. Safe for concurrent use.
//
// Dispatch picks a worker, delivers the request, and returns once the worker has dialled back and said that it
// started. ctx covers the whole life of the stream: when it ends, the worker is told to stop and the stream ends. A
// worker that can't be reached is left aside for a while and another is tried, within bounds of number, of time and of
// what the request has cost (Call.Toll). Errors are *fault.Error.
type Dispatcher interface {
	Dispatch(ctx context.Context, call *Call) (Stream, error)
}

// ErrStop ends a stream in good order when the function given to Each returns it: the worker is told to stop
// generating, and Each returns nil.
var ErrStop = errors.New("stop generating")

// Stream is the answer to one Call. It is used by one goroutine. Close must be called, may be called again, and
// releases everything; before the stream's end it tells the worker to stop.
type Stream interface {
	// Instance is the worker that answers.
	Instance() *worker.Instance

	// Each reads the stream on the caller's goroutine and calls f for every item until the stream is complete. more
	// tells that another item has already been received, so that f can gather output before writing it. The item and
	// everything in it is valid only during the call. The end mark itself is not passed on.
	//
	// Each returns nil when the stream was complete or f returned ErrStop; f's own error after stopping the worker; a
	// *fault.Error with origin FromTransport when the worker was lost; and the context's error when ctx ended.
	Each(f func(it *worker.Item, more bool) error) error

	Close() error
}
