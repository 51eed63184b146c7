package server_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

const (
	messageBody   = `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`
	messageStream = `{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hi"}]}`
)

func TestMessages(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	res, body := s.do(t, http.MethodPost, "/v1/messages", messageBody, "X-Request-Id", "7b6f0b0e-1111-4222-8333-444455556666")
	var m struct {
		ID, Type, Model string
		Content         []struct{ Type, Text string }
		Reason          string `json:"stop_reason"`
		Usage           map[string]int
	}
	if err := json.Unmarshal([]byte(body), &m); err != nil || res.StatusCode != 200 {
		t.Fatalf("%d %s", res.StatusCode, body)
	}
	if !strings.HasPrefix(m.ID, "msg_") || strings.Contains(m.ID, "-") || m.Type != "message" || m.Content[0].Text != "Hello" ||
		m.Reason != "end_turn" || m.Usage["output_tokens"] != 5 {
		t.Errorf("%s", body)
	}
	if got := res.Header.Get("Request-Id"); got != "7b6f0b0e-1111-4222-8333-444455556666" {
		t.Errorf("request-id %q", got)
	}
	res, body = s.do(t, http.MethodPost, "/v1/messages", messageStream)
	if err := testkit.LintMessages([]byte(body)); err != nil || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%v in %s", err, body)
	}
	if strings.Contains(body, "[DONE]") {
		t.Error("an end mark that Anthropic's API doesn't have")
	}
	if got := s.metric(t, `dynamo_frontend_requests_total{endpoint="anthropic_messages",error_type="",model="m",request_type="stream",status="success"}`); got != "1" {
		t.Errorf("streams counted: %q", got)
	}
	// The length of the prompt, which is a line of the template, is that of the answer's usage.
	_, body = s.do(t, http.MethodPost, "/v1/messages/count_tokens", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`)
	var count struct {
		Input int `json:"input_tokens"`
	}
	if err := json.Unmarshal([]byte(body), &count); err != nil || count.Input != m.Usage["input_tokens"] || count.Input != len("user: hi\n") {
		t.Errorf("counted %s, used %v", body, m.Usage)
	}
}

// TestMessageFaults is the table of failures in Anthropic's form.
func TestMessageFaults(t *testing.T) {
	refuse := func(f *fault.Error) router.Dispatcher {
		return &testkit.Dispatcher{Script: func(*router.Call, []byte) (testkit.Script, error) { return nil, f }}
	}
	for name, tt := range map[string]struct {
		d      router.Dispatcher
		path   string
		body   string
		status int
		kind   string
		text   string
	}{
		"broken":      {nil, "/v1/messages", `{`, 400, "invalid_request_error", "The body is not valid JSON: it ends at byte 1, in the middle of a value"},
		"no tokens":   {nil, "/v1/messages", strings.Replace(messageBody, "9", "0", 1), 400, "invalid_request_error", "`max_tokens` must be from 1 to 1048576, not 0"},
		"too hot":     {nil, "/v1/messages", strings.Replace(messageBody, "9", `9,"temperature":3`, 1), 400, "invalid_request_error", "`temperature` must be from 0 to 2, not 3"},
		"empty stop":  {nil, "/v1/messages", strings.Replace(messageBody, "9", `9,"stop_sequences":[""]`, 1), 400, "invalid_request_error", "`stop_sequences` must not hold an empty string"},
		"effort":      {nil, "/v1/messages", strings.Replace(messageBody, "9", `9,"output_config":{"effort":"x"}`, 1), 400, "invalid_request_error", "`output_config.effort` must be none, minimal, low, medium, high, xhigh or max"},
		"no tools":    {nil, "/v1/messages", strings.Replace(messageBody, "9", `9,"tool_choice":{"type":"any"}`, 1), 400, "invalid_request_error", "`tools` must not be empty when `tool_choice` asks for a call"},
		"no model":    {nil, "/v1/messages", strings.Replace(messageBody, `"m"`, `"nope"`, 1), 404, "not_found_error", "The model `nope` does not exist"},
		"cold model":  {nil, "/v1/messages", strings.Replace(messageBody, `"m"`, `"cold"`, 1), 503, "overloaded_error", "Model `cold` is not ready"},
		"large":       {nil, "/v1/messages", messageBody + strings.Repeat(" ", 2000), 413, "request_too_large", "Request body exceeds the limit of 1024 bytes set by DYN_HTTP_BODY_LIMIT_MB"},
		"limited":     {refuse(fault.New(fault.RateLimited, "Slow down")), "/v1/messages", messageBody, 429, "rate_limit_error", "Slow down"},
		"overloaded":  {refuse(fault.New(fault.Overloaded, "Full")), "/v1/messages", messageStream, 529, "overloaded_error", "Full"},
		"unavailable": {refuse(fault.Lost(nil, "No worker")), "/v1/messages", messageBody, 503, "overloaded_error", "No worker"},
		"timeout":     {refuse(fault.New(fault.Timeout, "Too late")), "/v1/messages", messageBody, 504, "timeout_error", "Too late"},
		"denied":      {refuse(fault.New(fault.PermissionDenied, "No")), "/v1/messages", messageBody, 403, "permission_error", "No"},
		"unknown":     {refuse(fault.New(fault.Unauthenticated, "Who?")), "/v1/messages", messageBody, 401, "authentication_error", "Who?"},
		"worker":      {testkit.Play(testkit.Items(`[{"_raise":"boom"}]`)), "/v1/messages", messageStream, 500, "api_error", "Internal server error"},
		"counting":    {nil, "/v1/messages/count_tokens", `{"model":"text","messages":[{"role":"user","content":"x"}]}`, 501, "api_error", `The workers of model "text" tokenise for themselves; its prompts can't be counted`},
	} {
		t.Run(name, func(t *testing.T) {
			d := tt.d
			if d == nil {
				d = refuse(fault.New(fault.Internal, "a worker was asked"))
			}
			s := start(t, d, func(o *server.Options) { o.BodyLimit, o.FlatErrors = 1024, true })
			res, body := s.do(t, http.MethodPost, tt.path, tt.body)
			var e struct {
				Type  string
				Error struct{ Type, Message string }
				ID    string `json:"request_id"`
			}
			if err := json.Unmarshal([]byte(body), &e); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			want := []any{tt.status, "error", tt.kind, tt.text, res.Header.Get("Request-Id")}
			if diff := cmp.Diff(want, []any{res.StatusCode, e.Type, e.Error.Type, e.Error.Message, e.ID}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMessagesBreakOff(t *testing.T) {
	s := start(t, testkit.Play(testkit.Items(`[{"token_ids":[72]},{"token_ids":[105]},{"_raise":"boom"}]`)), nil)
	_, body := s.do(t, http.MethodPost, "/v1/messages", messageStream)
	if err := testkit.LintMessages([]byte(body)); err != nil {
		t.Errorf("%v in %s", err, body)
	}
	want := "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"Internal server error\"}}\n\n"
	if !strings.HasSuffix(body, want) || strings.Contains(body, "message_stop") || !strings.Contains(body, `"text":"H`) {
		t.Errorf("%s", body)
	}
}

func TestMessagePings(t *testing.T) {
	s := start(t, testkit.Play(testkit.Items(`[{"_sleep":0.2},{"token_ids":[72],"finish_reason":"stop"}]`)),
		func(o *server.Options) { o.Stream.Heartbeat = 20 * time.Millisecond })
	_, body := s.do(t, http.MethodPost, "/v1/messages", messageStream)
	if n := strings.Count(body, "event: ping\n"); n < 3 || strings.Contains(body, ": keep-alive") {
		t.Errorf("%d pings in %s", n, body)
	}
}

func TestMessagesOff(t *testing.T) {
	s := start(t, testkit.Play(hello), func(o *server.Options) { o.NoAnthropic = true })
	if res, body := s.do(t, http.MethodPost, "/v1/messages", messageBody); res.StatusCode != 404 {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if _, body := s.do(t, http.MethodGet, "/v1/models", "", "anthropic-version", "2023-06-01"); !strings.Contains(body, `"object":"list"`) {
		t.Errorf("%s", body)
	}
}

func TestModelsForAnthropic(t *testing.T) {
	s := start(t, testkit.Play(hello), func(o *server.Options) { o.Catalog = testkit.Models{"m": testkit.ByteModel("m"), "cold": nil} })
	_, body := s.do(t, http.MethodGet, "/v1/models?limit=20", "", "anthropic-version", "2023-06-01")
	want := `{"data":[{"type":"model","id":"m","display_name":"m","created_at":"2023-11-14T22:13:20Z"}],"has_more":false,"first_id":"m","last_id":"m"}`
	if body != want {
		t.Errorf("%s", body)
	}
	if _, body := s.do(t, http.MethodGet, "/v1/models/m", "", "anthropic-version", "2023-06-01"); !strings.HasPrefix(body, `{"type":"model","id":"m"`) {
		t.Errorf("%s", body)
	}
	if res, body := s.do(t, http.MethodGet, "/v1/models/x", "", "anthropic-version", "2023-06-01"); res.StatusCode != 404 || !strings.HasPrefix(body, `{"type":"error","error":{"type":"not_found_error"`) {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}
