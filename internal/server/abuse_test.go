package server_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// dial opens a connection to s that fails reads and writes after some seconds.
func (s *stack) dial(tb testing.TB) net.Conn {
	tb.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// TestContentEncoding checks that a packed body is refused as that, and not as bad JSON.
func TestContentEncoding(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	for encoding, want := range map[string]int{"gzip": 415, "br": 415, "identity": 200, "Identity": 200} {
		res, body := s.do(t, http.MethodPost, "/v1/chat/completions", chatBody, "Content-Encoding", encoding)
		if res.StatusCode != want || want == 415 && !strings.Contains(body, "Content-Encoding "+encoding+" is not supported") {
			t.Errorf("%s: %d %s", encoding, res.StatusCode, body)
		}
	}
}

// TestPromisedBody checks that a client gets no memory for a body that it only promises.
func TestPromisedBody(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 20 {
		c := s.dial(t)
		fmt.Fprint(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
			"Content-Length: 40000000\r\nExpect: 100-continue\r\n\r\n")
		if _, err := bufio.NewReader(c).ReadString('\n'); err != nil { // 100: the handler is reading
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if grown := after.HeapAlloc - before.HeapAlloc; grown > 100<<20 {
		t.Errorf("20 connections take %d MiB", grown>>20)
	}
}

// TestLargeBody checks that a body that grows past what is believed at first arrives whole, with and without a length.
func TestLargeBody(t *testing.T) {
	d := testkit.Play(hello)
	s := start(t, d, nil)
	text := strings.Repeat("abcdefghij", 300_000)
	body := `{"model":"m","prompt":"` + text + `"}`
	if res, got := s.do(t, http.MethodPost, "/v1/completions", body); res.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", res.StatusCode, got)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/completions", struct{ *bytes.Reader }{bytes.NewReader([]byte(body))})
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.ContentLength = -1
	res, err := s.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	for i, p := range d.Calls() {
		if len(p.Call.TokenIDs) != len(text) || p.Call.TokenIDs[len(text)-1] != 'j' {
			t.Errorf("request %d: %d tokens", i, len(p.Call.TokenIDs))
		}
	}
}

// TestChosenIDInUse checks that a request under an id that is still running gets one of its own: a worker would refuse
// it, and a client's retry would fail because of its first attempt.
func TestChosenIDInUse(t *testing.T) {
	const id = "aaaaaaaa-2222-3333-4444-555555555555"
	d := testkit.Play(testkit.Items(`[{"token_ids":[65]},{"_sleep":0.3},{"token_ids":[66],"finish_reason":"stop"}]`))
	s := start(t, d, nil)
	done := make(chan string, 2)
	for range 2 {
		go func() {
			_, body := s.do(t, http.MethodPost, "/v1/chat/completions", chatBody, "X-Dynamo-Request-Id", id)
			done <- body
		}()
	}
	first, second := <-done, <-done
	if a, b := strings.Contains(first, id), strings.Contains(second, id); a == b ||
		!strings.Contains(first, `"content":"AB"`) || !strings.Contains(second, `"content":"AB"`) {
		t.Errorf("got %s and %s", first, second)
	}
	if _, body := s.do(t, http.MethodPost, "/v1/chat/completions", chatBody, "X-Dynamo-Request-Id", id); !strings.Contains(body, id) {
		t.Errorf("the id isn't free again: %s", body)
	}
}

// TestBodyBrokenOff checks that a client that leaves in the middle of its body counts as one that left, however it did,
// and that a body that is no HTTP is the client's mistake.
func TestBodyBrokenOff(t *testing.T) {
	const head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	for name, tt := range map[string]struct {
		request, class string
		leave          func(*net.TCPConn) error
	}{
		"closed":      {head + "Content-Length: 100\r\n\r\n{", "Cancelled", (*net.TCPConn).Close},
		"half closed": {head + "Content-Length: 100\r\n\r\n{", "Cancelled", (*net.TCPConn).CloseWrite},
		"reset": {head + "Content-Length: 100\r\n\r\n{", "Cancelled", func(c *net.TCPConn) error {
			_ = c.SetLinger(0)
			return c.Close()
		}},
		"chunks": {head + "Transfer-Encoding: chunked\r\n\r\n4\r\n{\"a", "Cancelled", (*net.TCPConn).Close},
		"no chunks": {head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "InvalidRequest",
			func(*net.TCPConn) error { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, testkit.Play(hello), nil)
			c := s.dial(t)
			fmt.Fprint(c, tt.request)
			time.Sleep(20 * time.Millisecond) // the handler is reading
			if err := tt.leave(c.(*net.TCPConn)); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it counts as "+tt.class, func() bool {
				_, body := s.do(t, http.MethodGet, "/metrics", "")
				return strings.Contains(body, `dynamo_frontend_failures_total{class="`+tt.class+`"`)
			})
		})
	}
}

// TestAskingFirst checks that a client that asks whether its body would be taken is told no before it sends anything.
func TestAskingFirst(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	for _, tt := range []struct {
		contentType, length string
		status              int
	}{
		{"application/json", "500000000", http.StatusRequestEntityTooLarge},
		{"text/plain", "50", http.StatusUnsupportedMediaType},
		{"application/json", "50", http.StatusContinue},
	} {
		c := s.dial(t)
		fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %s\r\nExpect: 100-continue\r\n\r\n",
			tt.contentType, tt.length)
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil || !strings.Contains(line, fmt.Sprint(tt.status)) {
			t.Errorf("%s of %s bytes: %q, %v", tt.contentType, tt.length, line, err)
		}
	}
}

// TestMessagesAreShort checks that no error repeats all of what a client made up, in either form.
func TestMessagesAreShort(t *testing.T) {
	long := strings.Repeat("日", 400_000)
	for _, flat := range []bool{false, true} {
		s := start(t, testkit.Play(hello), func(o *server.Options) { o.FlatErrors = flat })
		for name, body := range map[string]string{
			"model":       `{"model":"` + long + `","messages":[{"role":"user","content":"x"}]}`,
			"role":        `{"model":"m","messages":[{"role":"` + long + `","content":"x"}]}`,
			"tool choice": strings.TrimSuffix(chatBody, "}") + `,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"` + long + `"}}}`,
			"kwargs":      strings.TrimSuffix(chatBody, "}") + `,"logit_bias":{"` + long + `":1}}`,
		} {
			res, got := s.do(t, http.MethodPost, "/v1/chat/completions", body)
			if res.StatusCode < 400 || len(got) > 8<<10 || !utf8.ValidString(got) {
				t.Errorf("%s: %d, %d bytes", name, res.StatusCode, len(got))
			}
		}
	}
}

// TestMessagesAreText checks that what a message repeats of a request is cut between characters.
func TestMessagesAreText(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	for _, path := range []string{"/" + strings.Repeat("é", 200), "/v1/models/aaa" + strings.Repeat("日", 200)} {
		if _, body := s.do(t, http.MethodGet, path, ""); !utf8.ValidString(body) || strings.Contains(body, "\ufffd") {
			t.Errorf("%q", body)
		}
	}
}

// TestUnreadBody checks that a client gets no connection for a body that it promises, and nobody reads.
func TestUnreadBody(t *testing.T) {
	s := start(t, testkit.Play(hello), func(o *server.Options) { o.BodyTimeout = 200 * time.Millisecond })
	for _, request := range []string{
		"POST /v1/completions HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\n",
		"POST /v1/completions HTTP/1.1\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n",
		"POST /nowhere HTTP/1.1\r\nContent-Length: 100000\r\n",
		"GET /v1/models HTTP/1.1\r\nContent-Length: 100000\r\n",
	} {
		c := s.dial(t)
		begin := time.Now()
		fmt.Fprint(c, request+"Host: x\r\n\r\n")
		line, err := bufio.NewReader(c).ReadString('\n')
		if took := time.Since(begin); took > time.Second {
			t.Errorf("%q: %q, %v after %v", request, line, err, took)
		}
	}
}

// TestUnreadAnswers checks that a client that asks and asks and never reads loses its connection, whatever it asks for.
func TestUnreadAnswers(t *testing.T) {
	s := start(t, testkit.Play(hello), func(o *server.Options) {
		o.BodyTimeout, o.Stream.WriteTimeout = 200*time.Millisecond, 200*time.Millisecond
		o.OpenAPI = []byte(`{"info":{"title":"` + strings.Repeat("x", 256<<10) + `"}}`)
	})
	long := `{"messages":[{"role":"user","content":"hi"}],"model":"` + strings.Repeat("x", 4<<10) + `"}`
	post := func(path, body string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			path, len(body), body)
	}
	for name, request := range map[string]string{
		"tokens":           post("/tokenize", `{"model":"m","prompt":"`+strings.Repeat("x", 4<<10)+`"}`),
		"a lesser handler": "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n",
		"a refusal":        post("/v1/chat/completions", long),
	} {
		t.Run(name, func(t *testing.T) {
			c := s.dial(t)
			_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
			requests := strings.Repeat(request, max(1, (64<<10)/len(request)))
			end := time.Now().Add(30 * time.Second)
			for rest := requests; !s.hasClosed(c); {
				if time.Now().After(end) {
					t.Fatal("the server waits for ever")
				}
				_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
				n, err := io.WriteString(c, rest)
				if rest = rest[n:]; rest == "" {
					rest = requests
				}
				if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
					time.Sleep(time.Millisecond) // the client has noticed first
				}
			}
		})
	}
}

// TestBodyTimeoutEnds checks that the time for a body is no bound for its answer, and that a connection can be used
// longer than that.
func TestBodyTimeoutEnds(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"token_ids":[65]},{"_sleep":0.4},{"token_ids":[66],"finish_reason":"stop"}]`))
	s := start(t, d, func(o *server.Options) { o.BodyTimeout = 200 * time.Millisecond })
	for range 2 {
		res, body := s.do(t, http.MethodPost, "/v1/chat/completions", chatStream)
		if res.StatusCode != http.StatusOK || !strings.HasSuffix(body, "data: [DONE]\n\n") || strings.Contains(body, "error") {
			t.Errorf("%d %s", res.StatusCode, body)
		}
		time.Sleep(300 * time.Millisecond)
	}
}

// TestAllowedOfEscaped: the methods of a path are those of the path as it was sent.
func TestAllowedOfEscaped(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	for path, want := range map[string]string{"/v1/responses/a%2Fb": "GET, HEAD, DELETE", "/v1/models/a%2Fb": "GET, HEAD", "/v1/tokenize": "POST"} {
		res, body := s.do(t, http.MethodPut, path, "")
		if got := res.Header.Get("Allow"); res.StatusCode != http.StatusMethodNotAllowed || got != want || !strings.Contains(body, "allowed: "+want+`"`) {
			t.Errorf("%s: %d %q %s", path, res.StatusCode, got, body)
		}
	}
}
