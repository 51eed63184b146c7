package server_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

func TestUnary(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	res, body := s.do(t, http.MethodPost, "/v1/chat/completions", chatBody)
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "application/json" || !strings.Contains(body, `"content":"Hello"`) {
		t.Errorf("%d %v %s", res.StatusCode, res.Header, body)
	}
	id := res.Header.Get("X-Request-Id")
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(id) ||
		!strings.Contains(body, `"id":"chatcmpl-`+id+`"`) {
		t.Errorf("id %q in %s", id, body)
	}
	for series, want := range map[string]string{
		`dynamo_frontend_requests_total{endpoint="chat_completions",error_type="",model="m",request_type="unary",status="success"}`: "1",
		`dynamo_frontend_requests_started_total{endpoint="chat_completions",model="m",request_type="unary"}`:                        "1",
		`dynamo_frontend_inflight_requests{model="m"}`:                                                                              "0",
		`dynamo_frontend_active_requests{model="m"}`:                                                                                "0",
		`dynamo_frontend_queued_requests{model="m"}`:                                                                                "0",
		`dynamo_frontend_output_tokens_total{model="m"}`:                                                                            "5",
		`dynamo_frontend_output_sequence_tokens_sum{model="m"}`:                                                                     "5",
		`dynamo_frontend_time_to_first_token_seconds_count{model="m"}`:                                                              "1",
		`dynamo_frontend_inter_token_latency_seconds_count{model="m"}`:                                                              "3",
		`dynamo_frontend_request_duration_seconds_count{model="m"}`:                                                                 "1",
		`dynamo_frontend_input_sequence_tokens_count{model="m"}`:                                                                    "1",
		`dynamo_frontend_stage_duration_seconds_count{stage="route"}`:                                                               "1",
		`dynamo_frontend_cached_tokens_count{model="m"}`:                                                                            "0",
		`dynamo_frontend_stage_requests{phase="aggregated",stage="route"}`:                                                          "0",
		`dynamo_frontend_stage_requests{phase="aggregated",stage="dispatch"}`:                                                       "0",
		`dynamo_frontend_stage_requests{phase="",stage="preprocess"}`:                                                               "0",
		`dynamo_frontend_stage_duration_seconds_count{stage="preprocess"}`:                                                          "1",
	} {
		if got := s.metric(t, series); got != want {
			t.Errorf("%s is %q, want %s", series, got, want)
		}
	}
}

func TestStream(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	for path, body := range map[string]string{
		"/v1/chat/completions": chatStream,
		"/v1/completions":      `{"model":"m","stream":true,"prompt":["a","b"]}`,
	} {
		res, got := s.do(t, http.MethodPost, path, body)
		if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" ||
			res.Header.Get("Cache-Control") != "no-cache, no-transform" || res.Header.Get("X-Accel-Buffering") != "no" ||
			res.Uncompressed { // the client takes gzip, which would gather events
			t.Errorf("%d %v", res.StatusCode, res.Header)
		}
		if err := testkit.Lint([]byte(got), testkit.LintOptions{Chat: path == "/v1/chat/completions"}); err != nil {
			t.Errorf("%v in %s", err, got)
		}
	}
}

// TestHeaders checks what headers do, and that they are echoed or handed on.
func TestHeaders(t *testing.T) {
	d := testkit.Play(hello)
	s := start(t, d, nil)
	const id = "aaaaaaaa-2222-3333-4444-555555555555"
	res, body := s.do(t, http.MethodPost, "/v1/chat/completions", chatBody, "X-Dynamo-Request-Id", id, "X-Request-Id", "mine",
		"Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Tracestate", "a=b",
		"X-Dynamo-Worker-Instance-Id", "18446744073709551615", "X-Dynamo-Meta-Team", "red")
	if res.Header.Get("X-Request-Id") != "mine" || !strings.Contains(body, "chatcmpl-"+id) {
		t.Errorf("%v %s", res.Header, body)
	}
	c := d.Calls()[0].Call
	if c.RequestID != id || c.XRequestID != "mine" || c.Tracestate != "a=b" || !strings.HasPrefix(c.Traceparent, "00-4bf9") ||
		c.Pin == nil || *c.Pin != 1<<64-1 || c.Metadata["team"] != "red" {
		t.Errorf("call: %+v", c)
	}
	for _, tt := range []struct {
		header, value string
		status        int
	}{
		{"X-Dynamo-Worker-Instance-Id", "seven", 400},
		{"X-Data-Parallel-Rank", "-1", 400},
		{"X-Dynamo-Request-Priority", "3000000000", 400},
		{"X-Dynamo-Meta-Big", strings.Repeat("x", 9000), 431},
		{"X-Dynamo-Request-Id", "not a uuid", 200},
	} {
		if res, body := s.do(t, http.MethodPost, "/v1/chat/completions", chatBody, tt.header, tt.value); res.StatusCode != tt.status {
			t.Errorf("%s: %s: got %d %s", tt.header, tt.value, res.StatusCode, body)
		}
	}
}

// openAIError is an error in OpenAI's form.
type openAIError struct {
	Error struct {
		Message, Type string
		Param, Code   *string
	}
}

func TestErrors(t *testing.T) {
	full := &fault.Error{Kind: fault.Overloaded, Message: "full", RetryAfter: 2500 * time.Millisecond}
	s := start(t, &testkit.Dispatcher{Script: func(*router.Call, []byte) (testkit.Script, error) { return nil, full }},
		func(o *server.Options) { o.BodyLimit = 1 << 20 })
	tests := []struct {
		name, method, path, body, contentType string
		status                                int
		kind, code, message                   string // message: a part of it
	}{
		{"unknown model", "POST", "/v1/chat/completions", `{"model":"nope","messages":[{"role":"user","content":"x"}]}`, "", 404,
			"invalid_request_error", "model_not_found", "nope"},
		{"unknown model, streamed", "POST", "/v1/completions", `{"model":"nope","prompt":"x","stream":true}`, "", 404,
			"invalid_request_error", "model_not_found", "nope"},
		{"cold model", "POST", "/v1/completions", `{"model":"cold","prompt":"x"}`, "", 503, "server_error", "service_unavailable", "cold"},
		{"cold model before validation", "POST", "/v1/completions", `{"model":"cold","prompt":"x","n":0}`, "", 503, "server_error", "service_unavailable", "cold"},
		{"out of range", "POST", "/v1/completions", `{"model":"m","prompt":"x","n":0}`, "", 400, "invalid_request_error", "invalid_value", "n"},
		{"no JSON", "POST", "/v1/chat/completions", `{"model":`, "", 400, "invalid_request_error", "invalid_json", ""},
		{"empty body", "POST", "/v1/chat/completions", ``, "application/json", 400, "invalid_request_error", "", ""},
		{"wrong type", "POST", "/v1/chat/completions", chatBody, "text/plain", 415, "invalid_request_error", "unsupported_media_type", "application/json"},
		{"suffix type", "POST", "/v1/chat/completions", chatBody, "application/vnd.x+json; charset=utf-8", 529, "server_error", "overloaded", "full"},
		{"overloaded", "POST", "/v1/chat/completions", chatStream, "", 529, "server_error", "overloaded", "full"},
		{"too large", "POST", "/v1/chat/completions", strings.Repeat(" ", 1<<20) + chatBody, "", 413, "invalid_request_error",
			"request_too_large", "exceeds the limit of 1 MB set by DYN_HTTP_BODY_LIMIT_MB"},
		{"unknown route", "POST", "/v1/nothing", `{}`, "", 404, "invalid_request_error", "not_found", "Route not found: POST /v1/nothing"},
		{"route of somebody else", "GET", "/v1/realtime", "", "", 404, "invalid_request_error", "not_found", "/v1/realtime is not served here"},
		{"below it", "POST", "/v1/files/file-1/content", `{}`, "", 404, "invalid_request_error", "not_found", "is not served here"},
		{"wrong method", "GET", "/v1/chat/completions", "", "", 405, "invalid_request_error", "", "allowed: POST"},
		{"no such model", "GET", "/v1/models/a/b", "", "", 404, "invalid_request_error", "model_not_found", "a/b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			headers := []string{}
			if tt.contentType != "" {
				headers = append(headers, "Content-Type", tt.contentType)
			}
			res, body := s.do(t, tt.method, tt.path, tt.body, headers...)
			var e openAIError
			if err := json.Unmarshal([]byte(body), &e); err != nil {
				t.Fatalf("%v: %s", err, body)
			}
			code := ""
			if e.Error.Code != nil {
				code = *e.Error.Code
			}
			if res.StatusCode != tt.status || e.Error.Type != tt.kind || code != tt.code || !strings.Contains(e.Error.Message, tt.message) {
				t.Errorf("got %d %s", res.StatusCode, body)
			}
			if res.Header.Get("Content-Type") != "application/json" {
				t.Errorf("headers: %v", res.Header)
			}
			if tt.status == 405 && res.Header.Get("Allow") != "POST" {
				t.Errorf("Allow: %q", res.Header.Get("Allow"))
			}
			if tt.status == 529 && res.Header.Get("Retry-After") != "3" {
				t.Errorf("Retry-After: %q", res.Header.Get("Retry-After"))
			}
		})
	}
	for series, want := range map[string]string{
		`dynamo_frontend_requests_total{endpoint="completions",error_type="not_found",model="unknown_model",request_type="stream",status="error"}`: "1",
		`dynamo_frontend_requests_total{endpoint="completions",error_type="unavailable",model="cold",request_type="unary",status="error"}`:         "2",
		`dynamo_frontend_requests_total{endpoint="chat_completions",error_type="overload",model="m",request_type="stream",status="error"}`:         "1",
		`dynamo_frontend_active_requests{model="unknown_model"}`:                                                                                   "0",
	} {
		if got := s.metric(t, series); got != want {
			t.Errorf("%s is %q, want %s", series, got, want)
		}
	}
}

// TestFlatErrors checks Dynamo's form, before and inside a stream.
func TestFlatErrors(t *testing.T) {
	s := start(t, testkit.Play(testkit.Items(`[{"token_ids":[65]},{"_lost":true}]`)), func(o *server.Options) {
		o.FlatErrors, o.OverloadStatus = true, 503
	})
	_, body := s.do(t, http.MethodPost, "/v1/chat/completions", chatBody)
	if want := `{"message":"Service temporarily unavailable","type":"Service Unavailable","code":503}`; body != want {
		t.Errorf("got %s", body)
	}
	_, body = s.do(t, http.MethodPost, "/v1/chat/completions", chatStream)
	ev := events(t, body)
	if len(ev) != 3 || ev[2].Data != "[DONE]" ||
		ev[1].Data != `{"error":{"message":"Service temporarily unavailable","type":"service_unavailable","code":503}}` {
		t.Errorf("got %s", body)
	}
}

// TestErrorAfterFirstByte checks OpenAI's form of a failure in a stream.
func TestErrorAfterFirstByte(t *testing.T) {
	s := start(t, testkit.Play(testkit.Items(`[{"token_ids":[65]},{"_lost":true}]`)), nil)
	res, body := s.do(t, http.MethodPost, "/v1/chat/completions", chatStream)
	ev := events(t, body)
	if res.StatusCode != 200 || len(ev) != 3 || ev[2].Data != "[DONE]" || ev[1].Data !=
		`{"error":{"message":"Service temporarily unavailable","type":"server_error","param":null,"code":"service_unavailable"}}` {
		t.Errorf("got %s", body)
	}
	if err := testkit.Lint([]byte(body), testkit.LintOptions{Chat: true}); err != nil {
		t.Error(err)
	}
	if got := s.metric(t, `dynamo_frontend_failures_total{class="Unavailable",reason="backend.unavailable"}`); got != "1" {
		t.Errorf("failures: %q", got)
	}
}

func TestModels(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	var list struct {
		Object string
		Data   []struct {
			ID, Object string
			Created    int64
		}
	}
	_, body := s.do(t, http.MethodGet, "/v1/models", "")
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	if diff := cmp.Diff([]string{"m", "org/m", "text"}, ids); diff != "" || list.Object != "list" {
		t.Errorf("%s in %s", diff, body)
	}
	for path, want := range map[string]int{
		"/v1/models/m": 200, "/v1/models/org/m": 200, "/v1/models/org%2Fm": 200, "/v1/models/cold": 404, "/v1/models/nope": 404,
		"/v1/models/m/ready": 200, "/v1/models/org/m/ready": 200, "/v1/models/cold/ready": 503, "/v1/models/nope/ready": 404,
		"/health": 200, "/live": 200, "/ready": 200, "/openapi.json": 404,
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			if res, body := s.do(t, method, path, ""); res.StatusCode != want {
				t.Errorf("%s %s: %d %s", method, path, res.StatusCode, body)
			}
		}
	}
}

func TestOpenAPI(t *testing.T) {
	s := start(t, testkit.Play(hello), func(o *server.Options) {
		o.OpenAPI = []byte("openapi: 3.1.0\ninfo:\n  title: t\n")
		o.Paths = server.Paths{Chat: "/chat", Health: "healthz"}
	})
	if _, body := s.do(t, http.MethodGet, "/openapi.json", ""); body != `{"info":{"title":"t"},"openapi":"3.1.0"}` {
		t.Errorf("got %s", body)
	}
	if res, _ := s.do(t, http.MethodPost, "/chat", chatBody); res.StatusCode != 200 {
		t.Errorf("moved path: %d", res.StatusCode)
	}
	if res, _ := s.do(t, http.MethodGet, "/healthz", ""); res.StatusCode != 200 {
		t.Errorf("moved path: %d", res.StatusCode)
	}
	if _, err := server.New(server.Options{Pipeline: newPipeline(nil), Catalog: testkit.Models{}, OpenAPI: []byte("a: [")}); err == nil {
		t.Error("a broken description was taken")
	}
}

func newPipeline(d router.Dispatcher) *pipeline.Pipeline {
	return pipeline.New(pipeline.Options{Dispatcher: d})
}

// TestTextWorker checks workers that speak the client's format, in both modes.
func TestTextWorker(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"id":"w","object":"chat.completion.chunk","created":1,"model":"x","choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"}}]},
		{"id":"w","object":"chat.completion.chunk","created":1,"model":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}]`))
	s := start(t, d, nil)
	request := strings.Replace(chatBody, `"m"`, `"text"`, 1)
	_, body := s.do(t, http.MethodPost, "/v1/chat/completions", request)
	if !strings.Contains(body, `"message":{"content":"Hi"`) || !strings.Contains(body, `"finish_reason":"stop"`) {
		t.Errorf("got %s", body)
	}
	_, body = s.do(t, http.MethodPost, "/v1/chat/completions", strings.Replace(chatStream, `"m"`, `"text"`, 1))
	if err := testkit.Lint([]byte(body), testkit.LintOptions{Chat: true}); err != nil {
		t.Errorf("%v in %s", err, body)
	}
	if got := string(d.Calls()[0].Body); !strings.Contains(got, `"messages"`) {
		t.Errorf("the worker got %s", got)
	}
}

// TestUnknownFields checks that they are counted, not refused.
func TestUnknownFields(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	res, _ := s.do(t, http.MethodPost, "/v1/chat/completions", strings.Replace(chatBody, "{", `{"foo":1,"bar":2,`, 1))
	if got := s.metric(t, `dynamo_frontend_unknown_request_fields_total{endpoint="chat_completions"}`); got != "2" || res.StatusCode != 200 {
		t.Errorf("%d, %q counted", res.StatusCode, got)
	}
}

// TestPanic checks that a panic ends its request only.
func TestPanic(t *testing.T) {
	s := start(t, &testkit.Dispatcher{Script: func(call *router.Call, _ []byte) (testkit.Script, error) {
		if len(call.TokenIDs) == 1 {
			panic("broken invariant")
		}
		return hello, nil
	}}, nil)
	res, body := s.do(t, http.MethodPost, "/v1/completions", `{"model":"m","prompt":"x"}`)
	if res.StatusCode != 500 || strings.Contains(body, "invariant") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if res, _ := s.do(t, http.MethodPost, "/v1/completions", `{"model":"m","prompt":"xy"}`); res.StatusCode != 200 {
		t.Errorf("the next request: %d", res.StatusCode)
	}
	if got := s.metric(t, `dynamo_frontend_http_panics_total`); got != "1" {
		t.Errorf("panics: %q", got)
	}
	if got := s.metric(t, `dynamo_frontend_inflight_requests{model="m"}`); got != "0" {
		t.Errorf("in flight: %q", got)
	}
}

// TestPanicInStream checks that a panic after the first byte doesn't pass for the end of a whole answer.
func TestPanicInStream(t *testing.T) {
	s := start(t, panicking{}, nil)
	res, body := s.do(t, http.MethodPost, "/v1/chat/completions", chatStream)
	if ev := events(t, body); res.StatusCode != 200 || len(ev) != 3 || !strings.Contains(ev[0].Data, `"content":"a"`) ||
		!strings.HasPrefix(ev[1].Data, `{"error":{"message":"Internal server error"`) || ev[2].Data != "[DONE]" {
		t.Errorf("%d %q", res.StatusCode, body)
	}
	if got := s.metric(t, `dynamo_frontend_http_panics_total`); got != "1" {
		t.Errorf("panics: %q", got)
	}
}

// panicking is a dispatcher whose streams break an invariant after their first item.
type panicking struct{}

func (panicking) Dispatch(ctx context.Context, _ *router.Call) (router.Stream, error) {
	return &panickingStream{steadyStream{&steady{tokens: 2, batch: 1}, ctx}}, nil
}

type panickingStream struct{ steadyStream }

func (s *panickingStream) Each(f func(*worker.Item, bool) error) error {
	return s.steadyStream.Each(func(it *worker.Item, more bool) error {
		if it.Output.FinishReason != "" {
			panic("broken invariant")
		}
		return f(it, more)
	})
}

// TestBurstIsOneWrite checks that an answer that has been received as a whole leaves with one system call, headers and
// end of body included.
func TestBurstIsOneWrite(t *testing.T) {
	testkit.NoLeaks(t)
	srv := benchServer(t, &steady{tokens: 64, batch: 64})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counting := &countingListener{Listener: ln}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(context.Background(), counting) }()
	defer func() { _ = srv.Shutdown(context.Background()); <-done }()
	res, err := testkit.Client(t).Post("http://"+ln.Addr().String()+"/v1/chat/completions", "application/json", strings.NewReader(chatStream))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := testkit.Lint(body, testkit.LintOptions{Chat: true}); err != nil {
		t.Error(err)
	}
	if n := counting.writes.Load(); n != 1 {
		t.Errorf("%d writes", n)
	}
}

// countingListener counts the writes on its connections.
type countingListener struct {
	net.Listener
	writes atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &countingConn{c, l}, err
}

type countingConn struct {
	net.Conn
	l *countingListener
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.l.writes.Add(1)
	return c.Conn.Write(p)
}

// TestWithoutSocket checks that the handler works behind any http.Server.
func TestWithoutSocket(t *testing.T) {
	srv, err := server.New(server.Options{Pipeline: newPipeline(testkit.Play(hello)), Catalog: testkit.Models{"m": testkit.ByteModel("m")}})
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(chatStream))
	req.Header.Set("Content-Type", "application/json")
	res := httptest.NewRecorder()
	testkit.LintHandler(t, srv.Handler()).ServeHTTP(res, req)
	if err := testkit.Lint(res.Body.Bytes(), testkit.LintOptions{Chat: true}); err != nil {
		t.Error(err)
	}
}

// TestWorkerCancels checks that a worker that cancels a request by itself doesn't count as a client that left.
func TestWorkerCancels(t *testing.T) {
	s := start(t, testkit.Play(testkit.Items(`[{"_dynamo_annotated":true,"event":"error","error":{"error_type":{"Backend":"Cancelled"},`+
		`"class":"Cancelled","reason":"backend.cancelled","message":"m"}}]`)), nil)
	if res, body := s.do(t, http.MethodPost, "/v1/chat/completions", chatBody); res.StatusCode != 499 {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if got := s.metric(t, "dynamo_frontend_disconnected_clients"); got != "0" {
		t.Errorf("disconnected clients: %q", got)
	}
}
