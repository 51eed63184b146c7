package observe_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/portico-llm/portico/internal/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLogLevels(t *testing.T) {
	var out strings.Builder
	log := observe.NewLogger(&out, observe.LogOptions{Level: slog.LevelWarn,
		Targets: map[string]slog.Level{"router": slog.LevelDebug - 4, "noisy": slog.LevelError}})
	ctx := context.Background()
	log.Info("general info")
	log.Warn("general warning")
	log.With(observe.Target, "router").Log(ctx, slog.LevelDebug-4, "router trace", "n", 1)
	log.With(observe.Target, "noisy").Warn("noisy warning")
	log.With(observe.Target, "other").Info("other info")
	log.WithGroup("g").With(observe.Target, "router").Info("not a target within a group")
	log.With("name", "router").Info("not a target under another key")
	var got []string
	for line := range strings.Lines(out.String()) {
		_, rest, _ := strings.Cut(line, " ") // without the time
		got = append(got, strings.TrimSpace(rest))
	}
	want := []string{`level=WARN msg="general warning"`, `level=TRACE msg="router trace" target=router n=1`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestLogJSONCarriesTheTrace(t *testing.T) {
	var out strings.Builder
	log := observe.NewLogger(&out, observe.LogOptions{JSON: true})
	ctx := trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
	log.InfoContext(ctx, "worker lost", observe.Target, "router")
	var got map[string]any
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "time")
	want := map[string]any{"level": "INFO", "message": "worker lost", "target": "router",
		"trace_id": "01000000000000000000000000000000", "span_id": "0200000000000000"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRegistry(t *testing.T) {
	families, err := observe.NewRegistry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	have := make(map[string]bool)
	for _, f := range families {
		have[f.GetName()] = true
	}
	for _, name := range []string{"go_goroutines", "process_open_fds", "portico_build_info"} {
		if !have[name] {
			t.Errorf("no %s", name)
		}
	}
}

func TestMetricsPrefix(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "dynamo_frontend_inflight_requests", Help: "h"}),
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "go_other", Help: "h"}))
	for prefix, want := range map[string][]string{
		"dynamo_frontend": {"dynamo_frontend_inflight_requests", "go_other"},
		"mine":            {"go_other", "mine_inflight_requests"},
	} {
		for range 2 { // gathering renames a copy: the second time finds the same
			families, err := observe.WithPrefix(registry, "dynamo_frontend", prefix).Gather()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range families {
				got = append(got, f.GetName())
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("prefix %q: %s", prefix, diff)
			}
		}
	}
}

// received is what a collector got.
type received struct {
	collector.UnimplementedTraceServiceServer

	mu      sync.Mutex
	spans   []string
	service string
	header  string
}

func (r *received) take(request *collector.ExportTraceServiceRequest, header string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.header = header
	for _, resource := range request.ResourceSpans {
		for _, a := range resource.Resource.Attributes {
			if a.Key == "service.name" {
				r.service = a.Value.GetStringValue()
			}
		}
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				r.spans = append(r.spans, scope.Scope.Name+"/"+span.Name)
			}
		}
	}
}

// Export implements the collector's gRPC service.
func (r *received) Export(ctx context.Context, request *collector.ExportTraceServiceRequest) (
	*collector.ExportTraceServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	r.take(request, strings.Join(md.Get("x-key"), ","))
	return &collector.ExportTraceServiceResponse{}, nil
}

// ServeHTTP is the collector's HTTP service.
func (r *received) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	export := &collector.ExportTraceServiceRequest{}
	if err != nil || proto.Unmarshal(body, export) != nil || request.URL.Path != "/v1/traces" {
		http.Error(w, "unexpected export", http.StatusBadRequest)
		return
	}
	r.take(export, request.Header.Get("x-key"))
}

func (r *received) check(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if diff := cmp.Diff([]string{"pipeline/render"}, r.spans); diff != "" || r.service != "svc" || r.header != "secret" {
		t.Errorf("service %q, header %q, spans:\n%s", r.service, r.header, diff)
	}
}

// export makes one span and waits until it is exported.
func export(t *testing.T, opts observe.TraceOptions) {
	t.Helper()
	opts.Service, opts.Headers, opts.Log = "svc", map[string]string{"x-key": "secret"}, slog.New(slog.DiscardHandler)
	tracing, err := observe.StartTracing(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if !tracing.Exporting() {
		t.Error("not exporting")
	}
	_, span := tracing.Tracer("pipeline").Start(t.Context(), "render")
	span.End()
	if err := tracing.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestExportOverHTTP(t *testing.T) {
	r := &received{}
	server := httptest.NewServer(r)
	defer server.Close()
	export(t, observe.TraceOptions{Endpoint: server.URL + "/v1/traces"})
	r.check(t)
}

func TestExportOverGRPC(t *testing.T) {
	for _, compression := range []string{"none", "gzip"} {
		t.Run(compression, func(t *testing.T) {
			r := &received{}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			collector.RegisterTraceServiceServer(server, r)
			served := make(chan error, 1)
			go func() { served <- server.Serve(listener) }()
			defer func() {
				server.Stop()
				if err := <-served; err != nil {
					t.Error(err)
				}
			}()
			export(t, observe.TraceOptions{Endpoint: "http://" + listener.Addr().String(), Protocol: "grpc",
				Compression: compression})
			r.check(t)
		})
	}
}

func TestSamplers(t *testing.T) {
	recorded := func(name string, parent bool) bool {
		tracing, err := observe.StartTracing(t.Context(), observe.TraceOptions{Endpoint: "http://127.0.0.1:1/v1/traces",
			Sampler: name, Log: slog.New(slog.DiscardHandler), Timeout: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		if parent {
			carrier := propagation.MapCarrier{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
			ctx = propagation.TraceContext{}.Extract(ctx, carrier)
		}
		_, span := tracing.Tracer("t").Start(ctx, "s")
		sampled := span.SpanContext().IsSampled()
		span.End()
		// Nothing listens there: the last export fails, or is cut off, within its bound.
		closing, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_ = tracing.Close(closing)
		return sampled
	}
	tests := []struct {
		name         string
		root, parent bool
	}{
		{"always_on", true, true}, {"always_off", false, false}, {"traceidratio", false, false},
		{"", true, true}, {"parentbased_always_off", false, true}, {"parentbased_traceidratio", false, true},
	}
	for _, tt := range tests {
		if root, child := recorded(tt.name, false), recorded(tt.name, true); root != tt.root || child != tt.parent {
			t.Errorf("%s: root %v, child of a sampled parent %v", tt.name, root, child)
		}
	}
	if _, err := observe.StartTracing(t.Context(), observe.TraceOptions{Endpoint: "http://a:1", Sampler: "often"}); err == nil {
		t.Error("an unknown sampler was taken")
	}
}

func TestWithoutEndpoint(t *testing.T) {
	tracing, err := observe.StartTracing(t.Context(), observe.TraceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if tracing.Exporting() || tracing.Close(t.Context()) != nil {
		t.Error("exports without an endpoint")
	}
}
