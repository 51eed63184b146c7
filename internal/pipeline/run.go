package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/admission"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/constraint"
)

// Options are what a Pipeline is built from. Only Dispatcher is required.
type Options struct {
	Dispatcher router.Dispatcher     // how requests reach workers
	Migration  Migration             // zero: a lost worker ends its requests
	Courier    multimodal.Courier    // brings images to workers; nil: workers fetch them
	Routing    bool                  // whoever routes looks at images, too
	Tracer     trace.Tracer          // nil: no spans
	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	Log        *slog.Logger          // nil: slog.Default()

	// Gate lets requests in before they are tokenised; nil: all at once.
	Gate *admission.Gate
	// Workers says what the workers of a set can take, as the gate asks it; its nil is: anything. Nil: nobody knows.
	Workers func(set *catalog.Set) func(pending int64) admission.State

	// Alone reports whether a decode worker is to read a prompt itself although there are prefill workers, given the calls
	// to either; that to a prefill worker is made when it is wanted. It must be quick. Nil: never.
	Alone func(decode *router.Call, prefill func() *router.Call) bool

	// Taints knows which taints workers have; nil: requests that require one find no worker.
	Taints *constraint.Index

	// MaxPrompt bounds the bytes of a prompt's text, whatever the model's context; 0: there is no such bound.
	MaxPrompt int64

	// Answers decides how the answer to a chat request is taken apart; its nil is: not at all. Nil: none are.
	Answers func(*prepost.AnswerRequest) *prepost.AnswerPlan
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	if o.Tracer == nil {
		o.Tracer = noop.NewTracerProvider().Tracer("")
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Taints == nil {
		o.Taints = new(constraint.Index)
	}
	return o
}

// Pipeline prepares and runs requests. Safe for concurrent use.
type Pipeline struct {
	dispatcher router.Dispatcher // never changed after New, like all of it
	tracer     trace.Tracer
	log        *slog.Logger
	prepare    *prepareMetrics // of PrepareChat and PrepareCompletion
	decode     *detokMetrics   // of Run
	series     modelSeries     // of all metrics here that have a model
	stages     *stageMetrics   // of Run
	migration  Migration
	migrations *migrationMetrics
	gate       *admission.Gate // nil: none
	workers    func(set *catalog.Set) func(pending int64) admission.State
	prefills   *prefillMetrics
	alone      func(decode *router.Call, prefill func() *router.Call) bool // nil: never
	taints     *constraint.Index
	maxPrompt  int64 // bytes; 0: no bound
	answers    func(*prepost.AnswerRequest) *prepost.AnswerPlan
	courier    multimodal.Courier // nil: workers fetch images
	mmRouting  bool
}

// New returns a Pipeline. It starts nothing.
func New(opts Options) *Pipeline {
	opts = opts.withDefaults()
	prepare, moves := newPrepareMetrics(opts.Registerer), newMigrationMetrics(opts.Registerer)
	prefills := newPrefillMetrics(opts.Registerer)
	return &Pipeline{
		series: modelSeries{vecs: []vec{
			prepare.input, prepare.images, prepare.videos, prepare.audio, moves.total, moves.duration, moves.tooLong,
			prefills.total,
		}},
		dispatcher: opts.Dispatcher,
		tracer:     opts.Tracer,
		log:        opts.Log,
		prepare:    prepare,
		decode:     newDetokMetrics(opts.Registerer, prepare.detokenise),
		stages:     newStageMetrics(opts.Registerer),
		migration:  opts.Migration,
		migrations: moves,
		prefills:   prefills,
		answers:    opts.Answers,
		courier:    opts.Courier,
		mmRouting:  opts.Routing,
		gate:       opts.Gate,
		workers:    opts.Workers,
		alone:      opts.Alone,
		taints:     opts.Taints,
		maxPrompt:  opts.MaxPrompt,
	}
}

// Run sends req to its workers and passes what they answer to sink, until every choice has ended. It takes req over:
// the prompt is dropped once the workers have it, and so are its tokens unless the request may have to go on elsewhere.
//
// With one prompt everything, the sink included, runs on the caller's goroutine; the prompts of a batch run beside each
// other and take turns at the sink. When ctx ends, each worker is told to stop and Run returns ctx's error. Failures
// are *fault.Error, those of the sink excepted, which are returned as they are.
func (p *Pipeline) Run(ctx context.Context, req *Prepared, sink Sink) error {
	// The catalog closes a retired model's tokenizer once nobody holds its Set; decoders use it to the last item.
	defer runtime.KeepAlive(req.Set)
	defer req.leave()
	if len(req.Requests) > 1 {
		return p.runBatch(ctx, req, sink)
	}
	// Memory that is taken for images is released with this call, whichever way it ends.
	if err := p.loadMedia(ctx, req); err != nil {
		return err
	}
	defer req.media.close()
	// The decoders want to see the prompt, so they are made before it is let go.
	l := newLeg(req, 0, sink)
	stream, err := p.start(ctx, req, l)
	if err != nil {
		req.media.unsent()
		return req.blame(err)
	}
	// Closing a stream that isn't complete tells the worker to stop, whatever the way out of here.
	defer stream.Close()
	if err := sink.Start(req); err != nil {
		return err
	}
	req.release()
	return p.consume(ctx, req, l, stream)
}

// release drops what only the way to the worker needed, so that a long stream doesn't hold it. The number of requests
// stays.
func (r *Prepared) release() {
	r.Prompt, r.Raw = "", nil
	// Entries become nil, the slice keeps its length.
	clear(r.Requests)
}

// start sends the request of a leg and returns the stream of its answer.
func (p *Pipeline) start(ctx context.Context, req *Prepared, l *leg) (router.Stream, error) {
	call := newCall(req, l)
	p.narrow(call, req)
	call.Toll = &l.toll
	l.move = p.newMove(req, l, call)
	stream, err := p.send(ctx, req, l, call, req.media)
	req.place.Sent()
	if l.move != nil && l.move.refused > 0 {
		p.migrations.fresh(req.Model, l.move.refused, outcomeOf(ctx, err))
	}
	return stream, err
}

// dispatch sends one call and returns the stream of its answer. ph is the part of a request that the worker does.
func (p *Pipeline) dispatch(ctx context.Context, call *router.Call, ph *phase) (router.Stream, error) {
	ctx, span := p.tracer.Start(ctx, "router.dispatch", trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	if span.IsRecording() { // the worker's spans hang from ours
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, carrier)
		call.Traceparent, call.Tracestate = carrier["traceparent"], carrier["tracestate"]
	}
	begin := time.Now()
	// Until the worker has said that it started; the gauge shows requests that wait for one.
	ph.routing.Inc()
	stream, err := p.dispatcher.Dispatch(ctx, call)
	ph.routing.Dec()
	p.stages.route.Observe(time.Since(begin).Seconds())
	if err != nil {
		if ctx.Err() != nil && !isFault(err) {
			err = fault.From(context.Cause(ctx))
		}
		span.SetStatus(codes.Error, fault.KindOf(err).String())
		return nil, err
	}
	if span.IsRecording() {
		// Ids go to spans, which are sampled, and never to metrics, whose labels are kept.
		in := stream.Instance()
		span.SetAttributes(
			attribute.String("portico.endpoint", in.ID().String()),
			attribute.String("portico.worker.instance_id", in.Hex()))
	}
	return stream, nil
}

// newCall describes the request to the router.
func newCall(req *Prepared, l *leg) *router.Call {
	m, prompt := &req.Meta, l.prompt
	call := &router.Call{
		RequestID: workerID(m.RequestID, prompt, len(req.Requests)),
		Endpoint:  req.Set.Endpoint,
		Pin:       req.Pin,
		Session:   m.Session,

		SessionFinal: m.SessionFinal,

		Serves:      req.Set.Serves,
		Traceparent: m.Traceparent,
		Tracestate:  m.Tracestate,
		XRequestID:  m.XRequestID,
		Metadata:    m.Metadata,
	}
	// Body may be called again for another attempt, so what it reads isn't released before Dispatch has returned.
	if prompt < len(req.Requests) {
		describe(call, req.Requests[prompt], req.media, &l.aimed)
		return call
	}
	// A Text worker takes the client's JSON, in whichever codec its plane speaks.
	raw := req.Raw
	call.Raw = true
	call.Body = func(dst []byte, codec worker.Codec, _ router.Target) ([]byte, error) {
		if codec == worker.Msgpack {
			return worker.AppendJSONAsMsgpack(dst, raw)
		}
		return append(dst, raw...), nil
	}
	return call
}

// describe has a call carry a request, which tells its worker the rank that the router has decided on. Until Dispatch
// returns, the request is the call's. media is what it says of images; nil: nothing. Where it goes is noted in aimed.
func describe(call *router.Call, q *worker.Request, media *loadedMedia, aimed *aim) {
	call.TokenIDs, call.Request = media.routing(q), q
	call.Body = func(dst []byte, codec worker.Codec, to router.Target) ([]byte, error) {
		media.told()
		aimed.rank = to.Rank
		if to.Rank == nil {
			return q.Append(dst, codec)
		}
		// The client's wish comes back afterwards: the next worker may have other ranks.
		asked := q.Routing.DPRank
		defer func() { q.Routing.DPRank = asked }()
		q.Routing.DPRank = to.Rank
		return q.Append(dst, codec)
	}
}

// workerID is the id under which a worker knows the request of one prompt. A worker refuses an id that it is already
// working on, so the prompts of a batch have ids of their own.
func workerID(id string, prompt, prompts int) string {
	if prompts < 2 {
		return id
	}
	return id + "-" + strconv.Itoa(prompt)
}

// consume reads one answer to its end on the caller's goroutine.
func (p *Pipeline) consume(ctx context.Context, req *Prepared, l *leg, stream router.Stream) error {
	_, span := p.tracer.Start(ctx, "stream", trace.WithSpanKind(trace.SpanKindInternal))
	defer span.End()
	// The wait for the first output is a stage of its own: most of what makes an answer slow is in it.
	_, l.wait = p.tracer.Start(ctx, "first_token", trace.WithSpanKind(trace.SpanKindInternal))
	ph := p.stages.aggregated
	if l.prefilled != nil {
		ph = p.stages.decode
	}
	ph.awaiting.Inc()
	l.awaiting = ph.awaiting
	defer l.arrived()
	l.span = span
	l.began, l.roundtrip = time.Now(), p.stages.roundtrip

	err := p.read(ctx, req, l, stream)
	l.account(p.decode)
	if span.IsRecording() {
		span.SetAttributes(attribute.Int("gen_ai.usage.output_tokens", l.tokens))
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && !isFault(err) {
		err = fault.From(context.Cause(ctx))
	}
	span.SetStatus(codes.Error, fault.KindOf(err).String())
	if l.items == 0 {
		l.wait.SetStatus(codes.Error, fault.KindOf(err).String())
	}
	return err
}

// isFault tells failures that are ready for a client from those still to be classified.
func isFault(err error) bool {
	_, ok := errors.AsType[*fault.Error](err)
	return ok
}
