package server

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
)

// Attribute names of OpenTelemetry's GenAI and HTTP semantic conventions.
const (
	attrOperation   = attribute.Key("gen_ai.operation.name")
	attrProvider    = attribute.Key("gen_ai.provider.name")
	attrModel       = attribute.Key("gen_ai.request.model")
	attrAnswerModel = attribute.Key("gen_ai.response.model")
	attrAnswerID    = attribute.Key("gen_ai.response.id")
	attrFinish      = attribute.Key("gen_ai.response.finish_reasons")
	attrInput       = attribute.Key("gen_ai.usage.input_tokens")
	attrOutput      = attribute.Key("gen_ai.usage.output_tokens")
	attrMaxTokens   = attribute.Key("gen_ai.request.max_tokens")
	attrTemperature = attribute.Key("gen_ai.request.temperature")
	attrTopP        = attribute.Key("gen_ai.request.top_p")
	attrTopK        = attribute.Key("gen_ai.request.top_k")
	attrFrequency   = attribute.Key("gen_ai.request.frequency_penalty")
	attrPresence    = attribute.Key("gen_ai.request.presence_penalty")
	attrSeed        = attribute.Key("gen_ai.request.seed")
	attrChoices     = attribute.Key("gen_ai.request.choice.count")
	attrMethod      = attribute.Key("http.request.method")
	attrRoute       = attribute.Key("http.route")
	attrStatus      = attribute.Key("http.response.status_code")
	attrError       = attribute.Key("error.type")
)

// startSpan starts the request's span, as a child of the client's.
func (x *exchange) startSpan() {
	if x.s.opts.Tracer == nil {
		return
	}
	// W3C trace context; without one the span begins a trace of its own.
	ctx := propagation.TraceContext{}.Extract(x.r.Context(), propagation.HeaderCarrier(x.r.Header))
	ctx, x.span = x.s.opts.Tracer.Start(ctx, "POST "+x.r.URL.Path, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attrMethod.String(x.r.Method), attrRoute.String(x.r.URL.Path)))
	x.r = x.r.WithContext(ctx)
	if !x.span.IsRecording() { // not sampled: the context goes on, the attributes would be for nothing
		x.span.End()
		x.span = nil
	}
}

// describe notes what is asked for.
func (x *exchange) describe(c *openai.Common, operation string, maxTokens *int64) {
	if x.span == nil {
		return
	}
	// The conventions' name: the operation and the model, both bounded.
	x.span.SetName(operation + " " + x.model.name)
	attrs := []attribute.KeyValue{
		attrOperation.String(operation), attrProvider.String("nvidia.dynamo"), attrModel.String(c.Model),
	}
	for _, n := range []struct {
		key   attribute.Key
		value *int64
	}{{attrMaxTokens, maxTokens}, {attrTopK, c.TopK}, {attrSeed, c.Seed}} {
		if n.value != nil {
			attrs = append(attrs, n.key.Int64(*n.value))
		}
	}
	for _, f := range []struct {
		key   attribute.Key
		value *float64
	}{
		{attrTemperature, c.Temperature}, {attrTopP, c.TopP},
		{attrFrequency, c.FrequencyPenalty}, {attrPresence, c.PresencePenalty},
	} {
		if f.value != nil {
			attrs = append(attrs, f.key.Float64(*f.value))
		}
	}
	// Only where it isn't the default, as the conventions want it.
	if c.N != nil && *c.N != 1 {
		attrs = append(attrs, attrChoices.Int64(*c.N))
	}
	x.span.SetAttributes(attrs...)
}

// describeAnswer notes what was answered.
func (x *exchange) describeAnswer(o *observed, u worker.Usage) {
	if x.span == nil {
		return
	}
	x.span.SetAttributes(attrAnswerModel.String(x.model.name), attrAnswerID.String(x.answerID),
		attrInput.Int(u.PromptTokens), attrOutput.Int(u.CompletionTokens), attrFinish.StringSlice(o.finish))
}

// endSpan gives the span its status. What a client got wrong is no error of the server's span, by the HTTP conventions.
func (x *exchange) endSpan(a answerTo) {
	if x.span == nil {
		return
	}
	if x.failure != nil {
		x.span.SetAttributes(attrStatus.Int(a.status), attrError.String(a.label))
		if a.status >= 500 {
			x.span.SetStatus(codes.Error, x.failure.Kind.String())
		}
	} else {
		x.span.SetAttributes(attrStatus.Int(200))
	}
	x.span.End()
}
