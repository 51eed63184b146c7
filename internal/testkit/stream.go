package testkit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Asked is the request that a stream answers: what is right in it depends on what was asked for.
type Asked struct {
	Path  string // with the query
	Body  []byte // nil: none
	Usage bool   // chunks end with usage, asked for or not: a setting of the server
}

// LintStream checks a stream by the rules of the interface that was asked, and by what the request says: usage where it
// is asked for and nowhere else, and no more choices than n and the prompts allow.
func LintStream(asked Asked, stream []byte) error { return asked.lint(stream, true) }

// lint checks a whole stream, or what there is of one that was left or cut off: then there is no end to check.
func (a Asked) lint(stream []byte, whole bool) error {
	if !whole {
		stream = stream[:bytes.LastIndex(stream, []byte("\n\n"))+1]
		if len(stream) == 0 {
			return nil
		}
		stream = stream[:len(stream)+1]
	}
	u, err := url.Parse(a.Path)
	if err != nil {
		return err
	}
	switch path := u.Path; {
	case strings.HasSuffix(path, "/completions"):
		opts, err := a.options(strings.HasSuffix(path, "/chat/completions"))
		if err != nil {
			return err
		}
		opts.Unfinished = !whole
		return Lint(stream, opts)
	case strings.HasSuffix(path, "/messages"):
		return lintMessages(stream, whole)
	case strings.HasSuffix(path, "/responses"):
		return lintResponses(stream, whole)
	case strings.Contains(path, "/responses/"): // told again, from the beginning or from within
		if after := u.Query().Get("starting_after"); after != "" {
			n, err := strconv.Atoi(after)
			if err != nil {
				return err
			}
			return lintRest(stream, n+1, whole)
		}
		return lintResponses(stream, whole)
	}
	return fmt.Errorf("%s has no streams", a.Path)
}

// options are what a request for chunks asks for.
func (a Asked) options(chat bool) (LintOptions, error) {
	var q struct {
		Options *struct {
			Usage      bool `json:"include_usage"`
			Continuous bool `json:"continuous_usage_stats"`
		} `json:"stream_options"`
		N      *int            `json:"n"`
		Prompt json.RawMessage `json:"prompt"`
	}
	opts := LintOptions{Chat: chat, Choices: 1}
	if err := json.Unmarshal(a.Body, &q); err != nil {
		return opts, fmt.Errorf("the request of a stream: %w: %q", err, a.Body)
	}
	if q.Options != nil {
		opts.Usage, opts.ContinuousUsage = q.Options.Usage, q.Options.Usage && q.Options.Continuous
	}
	opts.Usage = opts.Usage || a.Usage
	if q.N != nil {
		opts.Choices = *q.N
	}
	var prompts []json.RawMessage // a list of numbers is one prompt, of anything else several
	if json.Unmarshal(q.Prompt, &prompts) == nil && len(prompts) > 0 && bytes.ContainsAny(prompts[0][:1], `["`) {
		opts.Choices *= len(prompts)
	}
	return opts, nil
}

// Client is the client of tests: every stream that it reads is linted, with what its request asked for. It ends with
// the test. A test that needs a transport of its own puts a LintTransport around it; tests/arch sees to it.
func Client(tb testing.TB) *http.Client {
	t := &http.Transport{}
	tb.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: LintTransport{RoundTripper: t, TB: tb}}
}

// LintTransport lints every stream that comes through it: whole when it was read to its end, and else as far as it came.
type LintTransport struct {
	http.RoundTripper
	TB testing.TB // told of streams that break a rule
}

// RoundTrip implements http.RoundTripper.
func (t LintTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	sent := &lintRequest{ReadCloser: req.Body}
	if req.Body != nil && req.Body != http.NoBody {
		req = req.Clone(req.Context())
		req.Body, req.GetBody = sent, nil
	}
	res, err := t.RoundTripper.RoundTrip(req)
	if err == nil {
		lintLater(t.TB, func() Asked { return Asked{Path: req.URL.RequestURI(), Body: sent.bytes()} }, res)
	}
	return res, err
}

// CloseIdleConnections is what http.Client looks for.
func (t LintTransport) CloseIdleConnections() {
	if c, ok := t.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// LintResponse lints the answer, should it be a stream, when it has been read or left: for tests that make their own
// connections.
func LintResponse(tb testing.TB, asked Asked, res *http.Response) {
	lintLater(tb, func() Asked { return asked }, res)
}

func lintLater(tb testing.TB, asked func() Asked, res *http.Response) {
	if isStream(res.Header) {
		res.Body = &lintBody{ReadCloser: res.Body, check: func(body []byte, whole bool) { asked().report(tb, body, whole) }}
	}
}

func isStream(h http.Header) bool {
	return strings.HasPrefix(h.Get("Content-Type"), "text/event-stream")
}

// report tells a test what is wrong with a stream.
func (a Asked) report(tb testing.TB, stream []byte, whole bool) {
	if err := a.lint(stream, whole); err != nil {
		tb.Errorf("the stream breaks a rule: %v\n%s %s\n%s", err, a.Path, clipped(a.Body), clipped(stream))
	}
}

// clipped is as much of a text as a log has room for.
func clipped(text []byte) []byte { return text[:min(len(text), 4000)] }

// lintBody keeps what is read until the end comes, or the reader leaves.
type lintBody struct {
	io.ReadCloser
	mu    sync.Mutex // guards what follows: Close may come while somebody reads
	read  bytes.Buffer
	check func(body []byte, whole bool) // nil once it was called
}

// Read implements io.Reader.
func (b *lintBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read.Write(p[:n])
	if err != nil {
		b.endLocked(err == io.EOF)
	}
	return n, err
}

// Close implements io.Closer.
func (b *lintBody) Close() error {
	b.mu.Lock()
	b.endLocked(false)
	b.mu.Unlock()
	return b.ReadCloser.Close()
}

// endLocked checks what was read, once.
func (b *lintBody) endLocked(whole bool) {
	if b.check != nil {
		b.check(b.read.Bytes(), whole)
		b.check = nil
	}
}

// LintHandler lints every stream that h writes: for tests whose clients are programs of their own, or that record
// answers without a connection.
func LintHandler(tb testing.TB, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, l := &lintRequest{ReadCloser: r.Body}, &lintWriter{ResponseWriter: w}
		r.Body = asked
		h.ServeHTTP(l, r)
		if isStream(w.Header()) {
			Asked{Path: r.URL.RequestURI(), Body: asked.bytes()}.report(tb, l.written.Bytes(), r.Context().Err() == nil)
		}
	})
}

// lintRequest keeps what is read of a request.
type lintRequest struct {
	io.ReadCloser
	mu   sync.Mutex   // an answer may come while the request is still being sent
	read bytes.Buffer // guarded by mu
}

// Read implements io.Reader.
func (b *lintRequest) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read.Write(p[:n])
	return n, err
}

// bytes returns what has been read so far.
func (b *lintRequest) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.read.Bytes())
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
