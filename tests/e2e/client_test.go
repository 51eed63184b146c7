package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/testkit"
)

// object is a JSON object in a request.
type object = map[string]any

// client talks to one frontend. Every request has its own connection: kept-alive ones could outlive a frontend.
type client struct {
	base string
	http *http.Client // lints every stream
}

func newClient(t *testing.T, base string) *client {
	alone := testkit.LintTransport{RoundTripper: &http.Transport{DisableKeepAlives: true}, TB: t}
	return &client{base, &http.Client{Transport: alone, Timeout: time.Minute}}
}

// linted stands between a frontend and a client that is a program of its own, whose streams are linted on the way, and
// returns its address.
func linted(t *testing.T, frontend string) string {
	t.Helper()
	to, err := url.Parse(frontend)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     testkit.Client(t).Transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // clients leave early
	}
	s := httptest.NewServer(proxy)
	t.Cleanup(s.Close)
	return s.URL
}

// post sends a JSON request and returns status and body.
func (c *client) post(t *testing.T, path string, body any) (int, []byte) {
	t.Helper()
	res := c.start(t, t.Context(), path, body)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s: read answer: %v", path, err)
	}
	return res.StatusCode, b
}

// start sends a JSON request and returns the response with its body unread.
func (c *client) start(t *testing.T, ctx context.Context, path string, body any) *http.Response {
	t.Helper()
	res, err := c.try(ctx, path, body)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return res
}

func (c *client) try(ctx context.Context, path string, body any) (*http.Response, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return c.http.Do(req)
}

func (c *client) get(t *testing.T, path string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s: read answer: %v", path, err)
	}
	return res.StatusCode, b
}

// answer is what the tests look at in unary answers and in chunks, of chat and completions alike.
type answer struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Model   string `json:"model"`
	Choices []struct {
		Index        int     `json:"index"`
		Text         string  `json:"text"`
		Message      *delta  `json:"message"`
		Delta        *delta  `json:"delta"`
		FinishReason *string `json:"finish_reason"`
		Logprobs     *struct {
			Content []struct {
				Token   string  `json:"token"`
				Logprob float64 `json:"logprob"`
				Top     []struct {
					Token   string  `json:"token"`
					Logprob float64 `json:"logprob"`
				} `json:"top_logprobs"`
			} `json:"content"`
		} `json:"logprobs"`
	} `json:"choices"`
	Usage *usage          `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type delta struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// unary sends a request that must succeed and decodes the answer.
func (c *client) unary(t *testing.T, path string, body any) answer {
	t.Helper()
	status, b := c.post(t, path, body)
	if status != http.StatusOK {
		t.Fatalf("%s: status %d: %s", path, status, b)
	}
	var a answer
	if err := json.Unmarshal(b, &a); err != nil {
		t.Fatalf("%s: %v in %s", path, err, b)
	}
	return a
}

// event is one event of a stream.
type event struct {
	name string
	data string
}

// events reads a stream to its end, or until f returns false.
func events(body io.Reader, f func(event) bool) error {
	r := bufio.NewReader(body)
	var e event
	for {
		line, err := r.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		switch name, value, _ := strings.Cut(line, ":"); name {
		case "data":
			e.data += strings.TrimPrefix(value, " ")
		case "event":
			e.name = strings.TrimPrefix(value, " ")
		case "":
			if value == "" && e.data != "" {
				if !f(e) {
					return nil
				}
			}
			if value == "" {
				e = event{}
			}
		}
		if err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}

// streamed is a whole stream, folded.
type streamed struct {
	text     map[int]string // by choice
	finish   map[int]string
	roles    int
	chunks   int
	usage    *usage
	errors   []string // error events
	done     bool
	trailing int // events after [DONE]
	cut      error
}

// stream sends a request with stream set and folds the answer.
func (c *client) stream(t *testing.T, path string, body object) streamed {
	t.Helper()
	body = with(body, "stream", true)
	res := c.start(t, t.Context(), path, body)
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(res.Body)
		t.Fatalf("%s: status %d: %s", path, res.StatusCode, b)
	}
	if ct := res.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
		t.Errorf("%s: content type %q", path, ct)
	}
	return fold(res.Body)
}

func fold(body io.Reader) streamed {
	s := streamed{text: map[int]string{}, finish: map[int]string{}}
	s.cut = events(body, func(e event) bool {
		if s.done {
			s.trailing++
			return true
		}
		if e.data == "[DONE]" {
			s.done = true
			return true
		}
		var a answer
		if err := json.Unmarshal([]byte(e.data), &a); err != nil || e.name == "error" || len(a.Error) > 0 || a.Choices == nil {
			s.errors = append(s.errors, e.data)
			return true
		}
		s.add(&a)
		return true
	})
	return s
}

func (s *streamed) add(a *answer) {
	s.chunks++
	if a.Usage != nil {
		s.usage = a.Usage
	}
	for _, c := range a.Choices {
		s.text[c.Index] += c.Text
		if c.Delta != nil {
			s.text[c.Index] += c.Delta.Content
			if c.Delta.Role != "" {
				s.roles++
			}
		}
		if c.FinishReason != nil {
			s.finish[c.Index] += *c.FinishReason // a second one shows
		}
	}
}

// with returns a copy of o with a further key.
func with(o object, key string, value any) object {
	c := object{key: value}
	for k, v := range o {
		if k != key {
			c[k] = v
		}
	}
	return c
}

// chat is a chat request.
func chat(model, text string, maxTokens int) object {
	return object{"model": model, "max_tokens": maxTokens, "messages": []object{{"role": "user", "content": text}}}
}
