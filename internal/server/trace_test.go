package server_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// TestTrace checks the request's span, its place under the client's, and that the stages hang from it.
func TestTrace(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	defer func() { _ = provider.Shutdown(context.Background()) }()
	d := testkit.Play(hello)
	s := start(t, d, func(o *server.Options) {
		o.Tracer = provider.Tracer("t")
		o.Pipeline = pipeline.New(pipeline.Options{Dispatcher: d, Tracer: o.Tracer, Log: o.Log})
	})
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	s.do(t, http.MethodPost, "/v1/chat/completions", strings.Replace(chatBody, "{", `{"temperature":0.5,"seed":7,"max_tokens":9,`, 1),
		"Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	s.do(t, http.MethodPost, "/v1/completions", `{"model":"nope","prompt":"x"}`)

	spans := map[string]sdktrace.ReadOnlySpan{}
	eventually(t, "the spans end", func() bool {
		for _, span := range recorder.Ended() {
			spans[span.Name()] = span
		}
		return spans["chat m"] != nil && spans["POST /v1/completions"] != nil
	})
	root := spans["chat m"]
	if root.SpanContext().TraceID().String() != trace || root.Parent().SpanID().String() != "00f067aa0ba902b7" {
		t.Errorf("the client's trace is not continued: %v", root.SpanContext())
	}
	for _, stage := range []string{"prepost.render", "prepost.tokenise", "router.dispatch", "first_token", "stream"} {
		if spans[stage] == nil || spans[stage].Parent().SpanID() != root.SpanContext().SpanID() {
			t.Errorf("stage %s does not hang from the request", stage)
		}
	}
	want := []attribute.KeyValue{
		attribute.String("gen_ai.operation.name", "chat"), attribute.String("gen_ai.request.model", "m"),
		attribute.Float64("gen_ai.request.temperature", 0.5), attribute.Int64("gen_ai.request.seed", 7),
		attribute.Int64("gen_ai.request.max_tokens", 9), attribute.Int("gen_ai.usage.input_tokens", 9),
		attribute.Int("gen_ai.usage.output_tokens", 5), attribute.StringSlice("gen_ai.response.finish_reasons", []string{"stop"}),
		attribute.Int("http.response.status_code", 200),
	}
	has := attribute.NewSet(root.Attributes()...)
	for _, a := range want {
		if v, ok := has.Value(a.Key); !ok || v != a.Value {
			t.Errorf("%s is %v, want %v", a.Key, v.String(), a.Value.String())
		}
	}
	if v, _ := has.Value("gen_ai.response.id"); !strings.HasPrefix(v.AsString(), "chatcmpl-") {
		t.Errorf("the answer's id is %q", v.AsString())
	}
	failed := attribute.NewSet(spans["POST /v1/completions"].Attributes()...)
	if v, _ := failed.Value("error.type"); v.AsString() != "not_found" {
		t.Errorf("error.type: %v", v.String())
	}
	if !strings.Contains(d.Calls()[0].Call.Traceparent, trace) {
		t.Errorf("the worker got %q", d.Calls()[0].Call.Traceparent)
	}
}
