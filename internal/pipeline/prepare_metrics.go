package pipeline

import (
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
)

// inputTokensAttr follows the GenAI semantic conventions.
const inputTokensAttr = attribute.Key("gen_ai.usage.input_tokens")

// prepareMetrics are the metrics of preparation, under the names operators already chart.
type prepareMetrics struct {
	template   prometheus.Observer      // seconds to render a conversation
	tokenise   prometheus.Observer      // seconds to encode one prompt
	latency    prometheus.Observer      // the same as tokenise, in milliseconds
	detokenise prometheus.Observer      // milliseconds to decode one output, sampled
	input      *prometheus.HistogramVec // by model, like the next three
	images     *prometheus.HistogramVec // content parts of each chat request
	videos     *prometheus.HistogramVec
	audio      *prometheus.HistogramVec
}

// The bounds are the ones dashboards for Dynamo expect.
var (
	// Seconds, then milliseconds, then counts.
	templateBuckets = []float64{0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05}
	tokeniseBuckets = []float64{0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1}
	latencyBuckets  = []float64{0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512}
	inputBuckets    = []float64{0, 100, 210, 430, 870, 1800, 3600, 7400, 15000, 31000, 63000, 130000}
	partBuckets     = []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 100}
)

// newPrepareMetrics makes the metrics and registers them; nil registers none.
func newPrepareMetrics(reg prometheus.Registerer) *prepareMetrics {
	// Unregistered metrics still work, so that no caller has to ask whether there are any.
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "dynamo_frontend", Name: name, Help: help, Buckets: buckets,
		}, labels)
		if reg != nil {
			reg.MustRegister(h)
		}
		return h
	}
	parts := func(name, kind string) *prometheus.HistogramVec {
		return histogram(name, "Number of "+kind+" content parts per request", partBuckets, "model")
	}
	latency := histogram("tokenizer_latency_ms", "Tokenizer latency in milliseconds", latencyBuckets, "operation")
	return &prepareMetrics{
		template: histogram("template_seconds", "Template application time in preprocessor (seconds)",
			templateBuckets).WithLabelValues(),
		tokenise: histogram("tokenize_seconds", "Tokenization time in preprocessor (seconds)",
			tokeniseBuckets).WithLabelValues(),
		latency:    latency.WithLabelValues("tokenize"),
		detokenise: latency.WithLabelValues("detokenize"),
		input:      histogram("input_sequence_tokens", "Input sequence length in tokens", inputBuckets, "model"),
		images:     parts("images_per_request", "image_url"),
		videos:     parts("videos_per_request", "video_url"),
		audio:      parts("audio_per_request", "audio_url"),
	}
}

// inputTokens observes the length of one prompt. Names come from the catalog, so there are few.
func (m *prepareMetrics) inputTokens(model string, n int) {
	m.input.WithLabelValues(model).Observe(float64(n))
}

// countMedia observes how many parts of each kind a chat request has.
func (m *prepareMetrics) countMedia(model string, media []openai.Media) {
	// Requests without media count as zero: the share of them is part of the distribution.
	var images, videos, audio float64
	for i := range media {
		switch mediaKey(media[i].Kind) {
		case "image_url":
			images++
		case "video_url":
			videos++
		case "audio_url":
			audio++
		}
	}
	m.images.WithLabelValues(model).Observe(images)
	m.videos.WithLabelValues(model).Observe(videos)
	m.audio.WithLabelValues(model).Observe(audio)
}

// endWith marks a span as failed, by the kind of failure only: texts may hold what the client wrote.
func endWith(span trace.Span, err error) { span.SetStatus(codes.Error, fault.KindOf(err).String()) }
