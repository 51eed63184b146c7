package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
)

// Options are what a Pipeline is built from. Only Dispatcher is required.
type Options struct {
	Dispatcher router.Dispatcher
	Tracer     trace.Tracer          // nil: no spans
	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	Log        *slog.Logger          // nil: slog.Default()
}

func (o Options) withDefaults() Options {
	if o.Tracer == nil {
		o.Tracer = noop.NewTracerProvider().Tracer("")
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Pipeline prepares and runs requests. Safe for concurrent use.
type Pipeline struct {
	dispatcher router.Dispatcher
	tracer     trace.Tracer
	log        *slog.Logger
	prepare    *prepareMetrics
	stages     *stageMetrics
}

// New returns a Pipeline. It starts nothing.
func New(opts Options) *Pipeline {
	opts = opts.withDefaults()
	return &Pipeline{
		dispatcher: opts.Dispatcher,
		tracer:     opts.Tracer,
		log:        opts.Log,
		prepare:    newPrepareMetrics(opts.Registerer),
		stages:     newStageMetrics(opts.Registerer),
	}
}

// Run sends req to its workers and passes what they answer to sink, until every choice has ended. It takes req over:
// the prompt and its tokens are dropped once the workers have them.
//
// With one prompt everything, the sink included, runs on the caller's goroutine; the prompts of a batch run beside each
// other and take turns at the sink. When ctx ends, each worker is told to stop and Run returns ctx's error. Failures
// are *fault.Error, those of the sink excepted, which are returned as they are.
func (p *Pipeline) Run(ctx context.Context, req *Prepared, sink Sink) error {
	// The catalog closes a retired model's tokenizer once nobody holds its Set; decoders use it to the last item.
	defer runtime.KeepAlive(req.Set)
	if len(req.Requests) > 1 {
		return p.runBatch(ctx, req, sink)
	}
	// The decoders want to see the prompt, so they are made before it is let go.
	l := newLeg(req, 0, sink)
	stream, err := p.dispatch(ctx, req, 0)
	if err != nil {
		return err
	}
	defer stream.Close()
	if err := sink.Start(req); err != nil {
		return err
	}
	req.release()
	return p.consume(ctx, l, stream)
}

// release drops what only the way to the worker needed, so that a long stream doesn't hold it. The number of requests
// stays.
func (r *Prepared) release() {
	r.Prompt, r.Raw = "", nil
	clear(r.Requests)
}

// dispatch sends one of req's requests and returns the stream of its answer.
func (p *Pipeline) dispatch(ctx context.Context, req *Prepared, prompt int) (router.Stream, error) {
	ctx, span := p.tracer.Start(ctx, "router.dispatch", trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	begin := time.Now()
	p.stages.routing.Inc()
	stream, err := p.dispatcher.Dispatch(ctx, newCall(ctx, req, prompt, span))
	p.stages.routing.Dec()
	p.stages.route.Observe(time.Since(begin).Seconds())
	if err != nil {
		if ctx.Err() != nil && !isFault(err) {
			err = fault.From(context.Cause(ctx))
		}
		span.SetStatus(codes.Error, fault.KindOf(err).String())
		return nil, err
	}
	if span.IsRecording() {
		in := stream.Instance()
		span.SetAttributes(
			attribute.String("portico.endpoint", in.ID().String()),
			attribute.String("portico.worker.instance_id", in.Hex()))
	}
	return stream, nil
}

// newCall describes the request to the router. The dispatcher's context must live as long as the stream, so the span's
// own context is used for the trace header only.
func newCall(ctx context.Context, req *Prepared, prompt int, span trace.Span) *router.Call {
	m := &req.Meta
	call := &router.Call{
		RequestID:   m.RequestID,
		Endpoint:    req.Set.Endpoint,
		Pin:         req.Pin,
		Serves:      req.Set.Serves,
		Traceparent: m.Traceparent,
		Tracestate:  m.Tracestate,
		XRequestID:  m.XRequestID,
		Metadata:    m.Metadata,
	}
	if span.IsRecording() { // the worker's spans hang from ours
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, carrier)
		call.Traceparent, call.Tracestate = carrier["traceparent"], carrier["tracestate"]
	}
	if prompt < len(req.Requests) {
		q := req.Requests[prompt]
		call.TokenIDs, call.Body = q.TokenIDs, q.Append
		return call
	}
	raw := req.Raw
	call.Raw = true
	call.Body = func(dst []byte, codec worker.Codec) ([]byte, error) {
		if codec == worker.Msgpack {
			return worker.AppendJSONAsMsgpack(dst, raw)
		}
		return append(dst, raw...), nil
	}
	return call
}

// consume reads one stream to its end on the caller's goroutine.
func (p *Pipeline) consume(ctx context.Context, l *leg, stream router.Stream) error {
	_, span := p.tracer.Start(ctx, "stream", trace.WithSpanKind(trace.SpanKindInternal))
	defer span.End()
	l.span, l.instance = span, stream.Instance()
	l.began, l.roundtrip = time.Now(), p.stages.roundtrip

	err := stream.Each(l.item)
	if err == nil {
		err = l.end()
	}
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
	return err
}

func isFault(err error) bool {
	_, ok := errors.AsType[*fault.Error](err)
	return ok
}
