package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/time/rate"
)

// TraceOptions says where traces go. The zero value exports none.
type TraceOptions struct {
	Endpoint    string            // URL, complete with its path; empty exports nothing
	Protocol    string            // "grpc", or anything else for http/protobuf
	Headers     map[string]string // sent with every export
	Timeout     time.Duration     // of one export; zero means 10 s
	Compression string            // "gzip", or anything else for none
	Service     string            // service.name; empty: the library's own
	Attributes  map[string]string // of the resource
	Sampler     string            // OpenTelemetry's name; empty means parentbased_always_on
	SamplerArg  float64           // share of the requests, for the samplers named …ratio
	Log         *slog.Logger      // nil: slog.Default()
}

// flushTimeout bounds what Close waits for a collector that doesn't answer.
const flushTimeout = 5 * time.Second

// Tracing makes spans and exports them.
type Tracing struct {
	provider trace.TracerProvider     // never nil
	sdk      *sdktrace.TracerProvider // nil when nothing is exported
	exporter *otlptrace.Exporter      // nil like sdk
}

// StartTracing prepares the export. The collector isn't contacted before there are spans, so that it may come later.
// The library's goroutines run until Close.
func StartTracing(ctx context.Context, opts TraceOptions) (*Tracing, error) {
	if opts.Endpoint == "" {
		return &Tracing{provider: noop.NewTracerProvider()}, nil
	}
	if opts.Timeout == 0 {
		opts.Timeout = 10 * time.Second
	}
	log := opts.Log
	if log == nil {
		log = slog.Default()
	}
	sampler, err := newSampler(opts.Sampler, opts.SamplerArg)
	if err != nil {
		return nil, err
	}
	exporter, err := otlptrace.New(ctx, newClient(opts))
	if err != nil {
		return nil, fmt.Errorf("prepare the export of traces: %w", err)
	}
	// A collector that is away would fill the log: one line a minute says as much.
	seldom := &rate.Sometimes{Interval: time.Minute}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		seldom.Do(func() { log.Warn("traces not exported", "error", err) })
	}))
	// Spans are exported in batches, beside the requests: a slow collector drops spans and delays nobody.
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithSampler(sampler),
		sdktrace.WithResource(newResource(opts)))
	return &Tracing{provider: provider, sdk: provider, exporter: exporter}, nil
}

// Tracer returns the tracer of one part of the program.
func (t *Tracing) Tracer(name string) trace.Tracer { return t.provider.Tracer(name) }

// Exporting reports whether spans go anywhere.
func (t *Tracing) Exporting() bool { return t.sdk != nil }

// Close exports what is still waiting, for a bounded time, and ends the export. It is called once, after the last span
// has ended.
func (t *Tracing) Close(ctx context.Context) error {
	if t.sdk == nil {
		return nil
	}
	flush, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	err := t.sdk.Shutdown(flush)
	if err == nil {
		return nil
	}
	// The library leaves the last export to its retries. Ending the exporter under it ends them too.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return fmt.Errorf("export the last traces: %w", errors.Join(err, t.exporter.Shutdown(stop)))
}

// newClient returns the exporter's transport. A URL with the scheme http is not encrypted.
func newClient(opts TraceOptions) otlptrace.Client {
	gzip := opts.Compression == "gzip"
	if opts.Protocol == "grpc" {
		options := []otlptracegrpc.Option{otlptracegrpc.WithEndpointURL(opts.Endpoint),
			otlptracegrpc.WithHeaders(opts.Headers), otlptracegrpc.WithTimeout(opts.Timeout)}
		if gzip {
			options = append(options, otlptracegrpc.WithCompressor("gzip"))
		}
		return otlptracegrpc.NewClient(options...)
	}
	compression := otlptracehttp.NoCompression
	if gzip {
		compression = otlptracehttp.GzipCompression
	}
	return otlptracehttp.NewClient(otlptracehttp.WithEndpointURL(opts.Endpoint), otlptracehttp.WithHeaders(opts.Headers),
		otlptracehttp.WithTimeout(opts.Timeout), otlptracehttp.WithCompression(compression))
}

// newResource says which process the spans are of. What the operator says wins.
func newResource(opts TraceOptions) *resource.Resource {
	version, _ := Version()
	attributes := []attribute.KeyValue{attribute.String("service.version", version)}
	for key, text := range opts.Attributes {
		attributes = append(attributes, attribute.String(key, text))
	}
	if opts.Service != "" {
		attributes = append(attributes, attribute.String("service.name", opts.Service))
	}
	own := resource.NewSchemaless(attributes...)
	merged, err := resource.Merge(resource.Default(), own)
	if err != nil {
		return own // the two disagree on a schema: ours is the one that matters
	}
	return merged
}

// newSampler knows OpenTelemetry's names of samplers. Those that begin with parentbased follow the client's decision
// where there is one.
func newSampler(name string, arg float64) (sdktrace.Sampler, error) {
	switch name {
	case "always_on":
		return sdktrace.AlwaysSample(), nil
	case "always_off":
		return sdktrace.NeverSample(), nil
	case "traceidratio":
		return sdktrace.TraceIDRatioBased(arg), nil
	case "", "parentbased_always_on":
		return sdktrace.ParentBased(sdktrace.AlwaysSample()), nil
	case "parentbased_always_off":
		return sdktrace.ParentBased(sdktrace.NeverSample()), nil
	case "parentbased_traceidratio":
		return sdktrace.ParentBased(sdktrace.TraceIDRatioBased(arg)), nil
	default:
		return nil, fmt.Errorf("unknown sampler %q", name)
	}
}
