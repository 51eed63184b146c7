package testkit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// LintStream checks a whole stream by the rules of its interface, which its events tell: chunks of chats and of
// completions, OpenAI's Responses or Anthropic's Messages. Usage may be at the end, in every chunk, in both or in none:
// what was asked for isn't known here, so that tests of it call Lint.
func LintStream(body []byte) error {
	events, err := Events(body)
	if err != nil {
		return err
	}
	for _, e := range events {
		if e.Data == "" || e.Data == "[DONE]" {
			continue
		}
		var first struct {
			Type   string `json:"type"`
			Object string `json:"object"`
		}
		if err := json.Unmarshal([]byte(e.Data), &first); err != nil {
			return fmt.Errorf("no JSON: %w: %q", err, e.Data)
		}
		switch {
		case strings.HasPrefix(first.Type, "response."):
			return LintResponses(body)
		case first.Type == "message_start", first.Type == "ping", first.Type == "error":
			return LintMessages(body)
		}
		opts := LintOptions{
			Chat:            first.Object == "chat.completion.chunk",
			Usage:           bytes.Contains(body, []byte(`"choices":[]`)),
			ContinuousUsage: continuous(events),
		}
		return Lint(body, opts)
	}
	return fmt.Errorf("a stream without data")
}

// continuous reports whether the first chunk with choices has a usage: then all others have to.
func continuous(events []Event) bool {
	for _, e := range events {
		var c Chunk
		if json.Unmarshal([]byte(e.Data), &c) == nil && c.Choices != nil && len(*c.Choices) > 0 {
			return len(c.Usage) > 0 && string(c.Usage) != "null"
		}
	}
	return false
}

// LintResponse sees to it that the answer, should it be a stream, is linted once it has been read to its end. One that
// its reader leaves, or that is cut off, has no end that could be checked.
func LintResponse(tb testing.TB, res *http.Response) {
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		res.Body = &lintBody{ReadCloser: res.Body, check: func(body []byte) {
			if err := LintStream(body); err != nil {
				tb.Errorf("the stream breaks a rule: %v\n%s", err, clipped(body))
			}
		}}
	}
}

// clipped is as much of a stream as a log has room for.
func clipped(body []byte) []byte { return body[:min(len(body), 4000)] }

// LintTransport lints every stream that its client reads to the end.
type LintTransport struct {
	http.RoundTripper
	TB testing.TB // told of streams that break a rule
}

// RoundTrip implements http.RoundTripper.
func (t LintTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.RoundTripper.RoundTrip(req)
	if err == nil {
		LintResponse(t.TB, res)
	}
	return res, err
}

// CloseIdleConnections is what http.Client looks for.
func (t LintTransport) CloseIdleConnections() {
	if c, ok := t.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// lintBody keeps what was read until the end comes.
type lintBody struct {
	io.ReadCloser
	read  bytes.Buffer
	check func([]byte) // nil once it was called
}

// Read implements io.Reader.
func (b *lintBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read.Write(p[:n])
	if err == io.EOF && b.check != nil {
		b.check(b.read.Bytes())
		b.check = nil
	}
	return n, err
}

// LintHandler lints every stream that h writes to its end: for tests whose clients are programs of their own, or that
// record answers without a connection.
func LintHandler(tb testing.TB, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l := &lintWriter{ResponseWriter: w}
		h.ServeHTTP(l, r)
		if r.Context().Err() != nil || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
			return
		}
		if err := LintStream(l.written.Bytes()); err != nil {
			tb.Errorf("the stream breaks a rule: %v\n%s", err, clipped(l.written.Bytes()))
		}
	})
}

// lintWriter keeps what is written.
type lintWriter struct {
	http.ResponseWriter
	written bytes.Buffer
}

// Write implements io.Writer.
func (w *lintWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.written.Write(p[:n])
	return n, err
}

// Unwrap is for http.ResponseController, which flushes and sets deadlines.
func (w *lintWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
