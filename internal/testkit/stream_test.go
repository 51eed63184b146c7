package testkit_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
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
data: {"type":"message_start","message":{"id":"a","role":"assistant","content":[],"usage":{"input_tokens":3,"output_tokens":0}}}

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

// asked are requests that the streams answer.
var asked = map[string]testkit.Asked{
	"chat":       {Path: "/v1/chat/completions", Body: []byte(`{"stream_options":{"include_usage":true}}`)},
	"completion": {Path: "/v1/completions", Body: []byte(`{"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)},
	"responses":  {Path: "/v1/responses"},
	"messages":   {Path: "/v1/messages?beta=true"},
}

// TestLintStream: each kind of stream is checked by its own rules: without its last event it breaks them.
func TestLintStream(t *testing.T) {
	for name, stream := range wholeStreams {
		if name == "completion" { // its usage also stands alone
			stream = strings.Replace(stream, "data: [DONE]", `data: {"id":"a","object":"text_completion","created":1,"model":"m","choices":[],"usage":{}}`+"\n\ndata: [DONE]", 1)
		}
		if err := testkit.LintStream(asked[name], []byte(stream)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cut := strings.TrimSuffix(stream, "\n\n")
		cut = cut[:strings.LastIndex(cut, "\n\n")+2]
		if testkit.LintStream(asked[name], []byte(cut)) == nil {
			t.Errorf("%s: nothing is said of its missing end", name)
		}
		for other, a := range asked {
			if other != name && testkit.LintStream(a, []byte(stream)) == nil {
				t.Errorf("nothing is said of %s in answer to %s", name, other)
			}
		}
	}
	for name, a := range asked {
		if testkit.LintStream(a, []byte(": alive\n\n")) == nil || testkit.LintStream(a, []byte("data: {\n\n")) == nil {
			t.Errorf("%s: nothing is said of a stream without data or with broken data", name)
		}
	}
	if testkit.LintStream(testkit.Asked{Path: "/v1/models"}, []byte(wholeStreams["chat"])) == nil {
		t.Error("nothing is said of a list that is a stream")
	}
}

// TestAskedFor: usage and choices are those of the request.
func TestAskedFor(t *testing.T) {
	second := strings.ReplaceAll(role+finish, `"index":0`, `"index":1`)
	words := func(stream string) string {
		stream = strings.ReplaceAll(stream, "chat.completion.chunk", "text_completion")
		return regexp.MustCompile(`"delta":{[^}]*}`).ReplaceAllString(stream, `"text":"x"`)
	}
	for _, tt := range []struct {
		name, path, body, stream string
		right                    bool
	}{
		{"usage", "/v1/chat/completions", `{"stream_options":{"include_usage":true}}`, role + finish + usage + done, true},
		{"no usage", "/v1/chat/completions", `{"stream_options":{"include_usage":true}}`, role + finish + done, false},
		{"usage by itself", "/v1/chat/completions", `{}`, role + finish + usage + done, false},
		{"usage refused", "/v1/chat/completions", `{"stream_options":{"include_usage":false}}`, role + finish + usage + done, false},
		{"usage in chunks, missing", "/v1/chat/completions", `{"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`,
			role + finish + usage + done, false},
		{"two of two", "/v1/chat/completions", `{"n":2}`, role + second + finish + done, true},
		{"one of two", "/v1/chat/completions", `{"n":2}`, role + finish + done, true},
		{"two of one", "/v1/chat/completions", `{"n":null}`, role + second + finish + done, false},
		{"none", "/v1/chat/completions", `{}`, done, false},
		{"two prompts", "/v1/completions", `{"prompt":["a","b"]}`, words(role + second + finish + done), true},
		{"one prompt", "/v1/completions", `{"prompt":"a"}`, words(role + second + finish + done), false},
		{"ids of two", "/v1/completions", `{"prompt":[[1],[2]]}`, words(role + second + finish + done), true},
		{"ids of one", "/v1/completions", `{"prompt":[1,2]}`, words(role + second + finish + done), false},
		{"no JSON", "/v1/completions", `{`, words(role + finish + done), false},
		{"told again", "/v1/responses/resp_1?stream=true", "", wholeStreams["responses"], true},
		{"the rest", "/v1/responses/resp_1?stream=true&starting_after=1", "",
			wholeStreams["responses"][strings.Index(wholeStreams["responses"], "event: response.completed"):], true},
		{"too much of the rest", "/v1/responses/resp_1?stream=true&starting_after=1", "", wholeStreams["responses"], false},
		{"the rest without its end", "/v1/responses/resp_1?stream=true&starting_after=2", "", ": nothing\n\n", false},
	} {
		err := testkit.LintStream(testkit.Asked{Path: tt.path, Body: []byte(tt.body)}, []byte(tt.stream))
		if (err == nil) != tt.right {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	forced := testkit.Asked{Path: "/v1/chat/completions", Body: []byte(`{}`), Usage: true}
	if err := testkit.LintStream(forced, []byte(role+finish+usage+done)); err != nil {
		t.Error(err)
	}
}

// TestLintedWhereRead: clients and handlers tell the test of broken streams, and of nothing else. One that is left or
// cut off has no end to check, but what came of it keeps the rules.
func TestLintedWhereRead(t *testing.T) {
	good := wholeStreams["chat"]
	const plain, withUsage = `{"stream":true}`, `{"stream":true,"stream_options":{"include_usage":true}}`
	for _, tt := range []struct {
		name, kind, asked, body string
		leave                   bool
		want                    int
	}{
		{name: "whole", kind: "text/event-stream", asked: withUsage, body: good},
		{name: "broken", kind: "text/event-stream", asked: withUsage, body: good + good, want: 1},
		{name: "not asked for", kind: "text/event-stream", asked: plain, body: good, want: 1},
		{name: "left", kind: "text/event-stream", asked: plain, body: role + text + done + done, leave: true},
		{name: "left when it was broken", kind: "text/event-stream", asked: plain, body: text + role + text + done, leave: true, want: 1},
		{name: "no stream", kind: "application/json", asked: plain, body: "{}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", tt.kind)
				_, _ = io.WriteString(w, tt.body)
				_ = http.NewResponseController(w).Flush()
			})
			s := httptest.NewServer(h)
			defer s.Close()
			client, handler := &told{TB: t}, &told{TB: t}
			c := testkit.Client(client)
			res, err := c.Post(s.URL+"/v1/chat/completions", "application/json", strings.NewReader(tt.asked))
			if err != nil {
				t.Fatal(err)
			}
			if tt.leave {
				_, err = io.ReadFull(res.Body, make([]byte, len(role+text)+3))
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
			testkit.LintHandler(handler, h).ServeHTTP(rec,
				httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(tt.asked)))
			if handler.errors != tt.want || !rec.Flushed || rec.Body.String() != tt.body {
				t.Errorf("the handler told of %d errors, want %d", handler.errors, tt.want)
			}
		})
	}
}

// TestLintedWhenCut: a stream whose connection breaks is checked as far as it came.
func TestLintedWhenCut(t *testing.T) {
	for stream, want := range map[string]int{role + text: 0, role + role: 1, `data: {"id`: 0} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Content-Length", "9999")
			_, _ = io.WriteString(w, stream)
		}))
		client := &told{TB: t}
		res, err := testkit.Client(client).Post(s.URL+"/v1/chat/completions", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(res.Body)
		_ = res.Body.Close()
		s.Close()
		if err == nil || client.errors != want {
			t.Errorf("%q: %v, %d errors, want %d", stream, err, client.errors, want)
		}
	}
}
