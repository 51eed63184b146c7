package loadgen

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

const (
	roleChunk   = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	usageChunk  = `data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":2,"total_tokens":13}}` + "\n\n"
	finishChunk = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}` + "\n\n"
	doneChunk   = "data: [DONE]\n\n"
)

func textChunk(s string) string {
	return fmt.Sprintf(`data: {"choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`+"\n\n", s)
}

// check feeds a whole stream in pieces of n bytes.
func check(body string, n int) (*stream, error) {
	s := &stream{}
	s.reset(time.Now())
	for b := []byte(body); len(b) > 0; {
		k := min(n, len(b))
		if err := s.feed(b[:k], time.Now()); err != nil {
			return s, err
		}
		b = b[k:]
	}
	return s, s.end(2, true)
}

// TestStreamChecks feeds answers that were to have two tokens, in pieces of several sizes. The kind is what the whole
// answer is found to be, empty when nothing is wrong; good also has text that looks like a key.
func TestStreamChecks(t *testing.T) {
	good := roleChunk + textChunk("a") + ": keep-alive\n\n" + textChunk(`"content":"x`) + finishChunk + usageChunk + doneChunk
	for _, c := range []struct {
		name, body string
		kind       Kind
	}{
		{"good", good, ""},
		{"carriage returns", strings.ReplaceAll(good, "\n", "\r\n"), ""},
		{"no done", roleChunk + textChunk("a") + finishChunk + usageChunk, Truncated},
		{"half an event", roleChunk + `data: {"choices"`, Truncated},
		{"two finishes", textChunk("a") + finishChunk + finishChunk + usageChunk + doneChunk, Malformed},
		{"no finish", textChunk("a") + usageChunk + doneChunk, Malformed},
		{"no usage", textChunk("a") + finishChunk + doneChunk, Malformed},
		{"data after done", good + textChunk("a"), Malformed},
		{"comment inside an event", strings.Replace(good, "}\n\n", "}\n: x\n\n", 1), Malformed},
		{"not JSON", "data: hello\n\n", Malformed},
		{"no field", "hello\n\n", Malformed},
		{"error event", textChunk("a") + `data: {"error":{"message":"x"}}` + "\n\n" + doneChunk, ErrorEvent},
		{"flat error event", "event: error\n" + `data: {"message":"x","code":500}` + "\n\n", ErrorEvent},
		{"wrong count", textChunk("a") + finishChunk + strings.Replace(usageChunk, `tokens":2,`, `tokens":3,`, 1) + doneChunk, WrongCount},
		{"no text", finishChunk + usageChunk + doneChunk, WrongCount},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, n := range []int{1, 7, 100, 1 << 20} {
				_, err := check(c.body, n)
				if c.kind == "" && err != nil || c.kind != "" && (err == nil || kindOf(err) != c.kind) {
					t.Errorf("in pieces of %d: %v, want %q", n, err, c.kind)
				}
			}
		})
	}
}

func TestStreamCounts(t *testing.T) {
	s, err := check(roleChunk+textChunk("a")+textChunk("b")+finishChunk+usageChunk+doneChunk, 50)
	if err != nil {
		t.Fatal(err)
	}
	if s.contents != 2 || len(s.gaps) != 1 || s.prompt != 11 || s.completion != 2 || s.first.IsZero() {
		t.Errorf("%d texts, %d gaps, usage %d and %d", s.contents, len(s.gaps), s.prompt, s.completion)
	}
}

// FuzzStream checks that what is found doesn't depend on how the bytes are cut.
func FuzzStream(f *testing.F) {
	f.Add(roleChunk+textChunk("a")+finishChunk+usageChunk+doneChunk, 3)
	f.Add("data: x\n\n: y\n\ndata: [DONE]\n\n", 1)
	f.Fuzz(func(t *testing.T, body string, n int) {
		if n < 1 {
			n = 1
		}
		_, whole := check(body, len(body)+1)
		_, cut := check(body, n)
		if kind(whole) != kind(cut) {
			t.Errorf("whole: %v, in pieces of %d: %v", whole, n, cut)
		}
	})
}

func kind(err error) Kind {
	if err == nil {
		return ""
	}
	return kindOf(err)
}

// FuzzBody checks the same of HTTP bodies, and that nothing is read twice.
func FuzzBody(f *testing.F) {
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
	f.Add(chunked, "3\r\nabc\r\n0\r\n\r\n", 2)
	f.Add("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n", "abcd", 1)
	f.Add(chunked, "5;x=y\r\nabcde\r\n0\r\nT: r\r\n\r\n", 4)
	f.Fuzz(func(t *testing.T, head, data string, n int) {
		if n < 1 {
			n = 1
		}
		whole, wholeErr := unwrap(head, data, len(data)+1)
		cut, cutErr := unwrap(head, data, n)
		if (wholeErr == nil) != (cutErr == nil) || wholeErr == nil && whole != cut {
			t.Errorf("whole %q, %v; in pieces of %d %q, %v", whole, wholeErr, n, cut, cutErr)
		}
	})
}

// unwrap takes HTTP's coding off a body that arrives in pieces of n bytes.
func unwrap(head, data string, n int) (string, error) {
	var b body
	if _, err := b.start([]byte(head)); err != nil {
		return "", err
	}
	var out []byte
	take := func(p []byte, _ time.Time) error { out = append(out, p...); return nil }
	var waiting []byte
	for {
		used, done, err := b.feed(waiting, time.Time{}, take)
		if err != nil || done {
			return string(out), err
		}
		waiting = waiting[used:]
		if data == "" {
			return string(out), errors.New("unfinished")
		}
		k := min(n, len(data))
		waiting, data = append(waiting, data[:k]...), data[k:]
	}
}

// TestBody unwraps bodies in pieces of every small size. Bytes beyond a body's length belong to the next answer.
func TestBody(t *testing.T) {
	for _, c := range []struct{ name, head, data, want string }{
		{"chunked", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n", "3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n", "abc0123456789"},
		{"trailers", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", "1\r\na\r\n0\r\nX: y\r\n\r\n", "a"},
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n", "abcdef", "abc"},
		{"empty", "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for n := 1; n < 20; n++ {
				if got, err := unwrap(c.head, c.data, n); err != nil || got != c.want {
					t.Errorf("in pieces of %d: %q, %v", n, got, err)
				}
			}
		})
	}
	for _, bad := range []string{"HTP/1.1 200 OK\r\n", "HTTP/1.1 xx OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n"} {
		if _, err := unwrap(bad, "x", 1); err == nil || kindOf(err) != BadHTTP {
			t.Errorf("head %q: %v", bad, err)
		}
	}
	if _, err := unwrap("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", "1\r\nab\r\n", 1); err == nil || kindOf(err) != BadHTTP {
		t.Errorf("a chunk longer than its size: %v", err)
	}
}
