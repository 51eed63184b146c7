package testkit_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/testkit"
)

// Streams that keep the rules, by what they are.
var wholeStreams = map[string]string{
	"chat": `data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":"stop"}]}

data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":1}}

data: [DONE]

`,
	"completion": `: alive

data: {"id":"a","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"x","finish_reason":"stop"}],"usage":{"prompt_tokens":1}}

data: [DONE]

`,
	"responses": `event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"r","object":"response","status":"in_progress","output":[]}}

event: response.in_progress
data: {"type":"response.in_progress","sequence_number":1,"response":{"id":"r","object":"response","status":"in_progress","output":[]}}

event: response.completed
data: {"type":"response.completed","sequence_number":2,"response":{"id":"r","object":"response","status":"completed","output":[],"usage":{},"error":null}}

data: [DONE]

`,
	"messages": `event: message_start
data: {"type":"message_start","message":{"id":"a","role":"assistant","content":[]}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":0}}

event: message_stop
data: {"type":"message_stop"}

`,
}

// told notes what a test is told.
type told struct {
	testing.TB
	errors int
}

func (t *told) Errorf(string, ...any) { t.errors++ }

// TestLintStream: each kind of stream is found out and checked by its own rules: without its last event it breaks them.
func TestLintStream(t *testing.T) {
	for name, stream := range wholeStreams {
		if err := testkit.LintStream([]byte(stream)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cut := strings.TrimSuffix(stream, "\n\n")
		cut = cut[:strings.LastIndex(cut, "\n\n")+2]
		if testkit.LintStream([]byte(cut)) == nil {
			t.Errorf("%s: nothing is said of its missing end", name)
		}
	}
	if testkit.LintStream([]byte(": alive\n\n")) == nil || testkit.LintStream([]byte("data: {\n\n")) == nil {
		t.Error("nothing is said of a stream without data or with broken data")
	}
}

// TestLintedWhereRead: clients and handlers tell the test of broken streams that come to an end, and of nothing else.
func TestLintedWhereRead(t *testing.T) {
	good := wholeStreams["chat"]
	for _, tt := range []struct {
		name, kind, body string
		leave            bool
		want             int
	}{
		{name: "whole", kind: "text/event-stream", body: good},
		{name: "broken", kind: "text/event-stream", body: good + good, want: 1},
		{name: "left", kind: "text/event-stream", body: good + good, leave: true},
		{name: "no stream", kind: "application/json", body: "{}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tt.kind)
				_, _ = io.WriteString(w, tt.body)
				_ = http.NewResponseController(w).Flush()
			})
			s := httptest.NewServer(h)
			defer s.Close()
			client, handler := &told{TB: t}, &told{TB: t}
			c := http.Client{Transport: testkit.LintTransport{RoundTripper: &http.Transport{}, TB: client}}
			defer c.CloseIdleConnections()
			res, err := c.Get(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			if tt.leave {
				_, err = io.ReadFull(res.Body, make([]byte, 10))
			} else {
				_, err = io.ReadAll(res.Body)
			}
			_ = res.Body.Close()
			if err != nil || client.errors != tt.want {
				t.Errorf("%v, the client told of %d errors, want %d", err, client.errors, tt.want)
			}
			if tt.leave {
				return
			}
			rec := httptest.NewRecorder()
			testkit.LintHandler(handler, h).ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
			if handler.errors != tt.want || !rec.Flushed || rec.Body.String() != tt.body {
				t.Errorf("the handler told of %d errors, want %d", handler.errors, tt.want)
			}
		})
	}
}
