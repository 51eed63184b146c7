package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// endpoints are a request's path and body up to its last members.
var endpoints = map[string]string{
	"/v1/chat/completions": `{"model":"m","messages":[{"role":"user","content":"hi"}]`,
	"/v1/completions":      `{"model":"m","prompt":"hi"`,
}

// responsesRequest is the same for an endpoint with events of its own.
const responsesRequest = `{"model":"m","input":"hi"`

// TestFaultNeverLooksLikeSuccess plays what can befall a worker, before and after its first output. Clients have to see
// a failure, and so has the one who watches the metrics.
func TestFaultNeverLooksLikeSuccess(t *testing.T) {
	faults := map[string]string{
		"lost before the first output":    `[{"_lost":true}]`,
		"lost":                            `[{"token_ids":[65]},{"_lost":true}]`,
		"raised before the first output":  `[{"_raise":"x"}]`,
		"raised":                          `[{"token_ids":[65]},{"_raise":"x"}]`,
		"error event":                     `[{"token_ids":[65]},{"_dynamo_annotated":true,"event":"error","comment":["x"]}]`,
		"engine ends with an error":       `[{"token_ids":[65]},{"token_ids":[],"finish_reason":{"error":"x"}}]`,
		"a choice nobody asked for":       `[{"token_ids":[65]},{"token_ids":[65],"index":7}]`,
		"bytes that are no engine output": `[{"token_ids":[65]},{"token_ids":"x"}]`,
	}
	for name, script := range faults {
		t.Run(name, func(t *testing.T) {
			s := start(t, testkit.Play(testkit.Items(script)), nil)
			all := maps.Clone(endpoints)
			all["/v1/responses"], all["/v1/messages"] = responsesRequest, strings.TrimSuffix(messageBody, "}")
			for path, body := range all {
				res, got := s.do(t, http.MethodPost, path, body+"}")
				if res.StatusCode < 500 || strings.Contains(got, "finish_reason") || strings.Contains(got, `"completed"`) {
					t.Errorf("%s: %d %s", path, res.StatusCode, got)
				}
				res, got = s.do(t, http.MethodPost, path, body+`,"stream":true}`)
				if !strings.Contains(script, `{"token_ids":[65]}`) {
					if res.StatusCode < 500 {
						t.Errorf("%s, streamed: %d %s", path, res.StatusCode, got)
					}
					continue
				}
				switch path {
				case "/v1/responses":
					failedResponse(t, got)
					continue
				case "/v1/messages":
					failedMessage(t, got)
					continue
				}
				ev := events(t, got)
				if len(ev) < 2 || ev[len(ev)-1].Data != "[DONE]" || !strings.HasPrefix(ev[len(ev)-2].Data, `{"error":{"message":`) ||
					strings.Contains(got, `"finish_reason":"`) {
					t.Errorf("%s, streamed: %s", path, got)
				}
			}
			_, metrics := s.do(t, http.MethodGet, "/metrics", "")
			failures := 0.0
			for line := range strings.Lines(metrics) {
				if !strings.HasPrefix(line, "dynamo_frontend_requests_total{") || strings.HasSuffix(line, " 0\n") {
					continue
				}
				if strings.Contains(line, `status="success"`) {
					t.Errorf("counted as a success: %s", line)
				}
				n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
				if err != nil {
					t.Fatal(err)
				}
				failures += n
			}
			if want := float64(2 * len(all)); failures != want {
				t.Errorf("%g failures are counted, want %g", failures, want)
			}
		})
	}
}

// failedResponse checks a responses stream that broke off after its first output.
func failedResponse(t *testing.T, got string) {
	t.Helper()
	if err := testkit.LintResponses([]byte(got)); err != nil {
		t.Error(err)
	}
	ev := events(t, got)
	if n := len(ev); n < 3 || ev[n-3].Name != "response.failed" || ev[n-2].Name != "error" ||
		!strings.Contains(ev[n-3].Data, `"error":{"code":"server_error","message":"`) ||
		!strings.Contains(ev[n-3].Data, `"text":"A"`) || strings.Contains(got, `"completed"`) {
		t.Errorf("it looks like success: %s", got)
	}
}

// failedMessage checks a stream of Anthropic's events that broke off after its first output.
func failedMessage(t *testing.T, got string) {
	t.Helper()
	ev := events(t, got)
	if last := ev[len(ev)-1]; last.Name != "error" || !strings.Contains(got, `"text":"A"`) || strings.Contains(got, "message_stop") ||
		strings.Contains(got, `"end_turn"`) {
		t.Errorf("it looks like success: %s", got)
	}
}

// TestUsageAgrees compares the usage of streams with that of answers in one piece, and checks that only those who asked
// for it get it.
func TestUsageAgrees(t *testing.T) {
	one := `{"token_ids":[65,66]},{"token_ids":[67,68],"finish_reason":"%s"}`
	three := `{"token_ids":[65],"index":0},{"token_ids":[66,67],"index":1,"finish_reason":"stop"},` +
		`{"token_ids":[68],"index":2,"finish_reason":"length"},{"token_ids":[],"index":0,"finish_reason":"stop"}`
	for name, tt := range map[string]struct {
		script, members string
		tokens          float64
	}{
		"stop":        {fmt.Sprintf(one, "stop"), ``, 4},
		"length":      {fmt.Sprintf(one, "length"), `,"max_tokens":4`, 4},
		"stop string": {fmt.Sprintf(one, "stop"), `,"stop":"C"`, 3},
		"choices":     {three, `,"n":3`, 4},
		"reported": {`{"token_ids":[65],"completion_usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}},` +
			`{"token_ids":[66],"finish_reason":"stop","completion_usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,` +
			`"prompt_tokens_details":{"cached_tokens":8}}}`, ``, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, testkit.Play(testkit.Items("["+tt.script+"]")), nil)
			for path, body := range endpoints {
				chat := strings.Contains(path, "chat")
				_, whole := s.do(t, http.MethodPost, path, body+tt.members+"}")
				_, plain := s.do(t, http.MethodPost, path, body+tt.members+`,"stream":true}`)
				_, asked := s.do(t, http.MethodPost, path, body+tt.members+`,"stream":true,"stream_options":{"include_usage":true}}`)
				if err := testkit.Lint([]byte(plain), testkit.LintOptions{Chat: chat}); err != nil {
					t.Errorf("%s: %v", path, err)
				}
				if err := testkit.Lint([]byte(asked), testkit.LintOptions{Chat: chat, Usage: true}); err != nil {
					t.Errorf("%s: %v", path, err)
				}
				ev := events(t, asked)
				a, b := usage(t, whole), usage(t, ev[len(ev)-2].Data)
				if a["completion_tokens"] != tt.tokens || fmt.Sprint(a) != fmt.Sprint(b) {
					t.Errorf("%s: %v in one piece, %v streamed", path, a, b)
				}
				if cached := fmt.Sprint(a["prompt_tokens_details"]); name == "reported" && !strings.Contains(cached, "cached_tokens:8") {
					t.Errorf("%s: %v, cached %s", path, a, cached)
				}
			}
		})
	}
}

func usage(t *testing.T, body string) map[string]any {
	t.Helper()
	var v struct{ Usage map[string]any }
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return v.Usage
}

// paced is a dispatcher whose workers generate the next token when they are told to.
type paced chan struct{}

func (p paced) Dispatch(ctx context.Context, call *router.Call) (router.Stream, error) {
	if _, err := call.Body(nil, worker.Msgpack, router.Target{}); err != nil {
		return nil, err
	}
	return &pacedStream{next: p, ctx: ctx}, nil
}

type pacedStream struct {
	steadyStream
	next paced
	ctx  context.Context
}

func (s *pacedStream) Each(f func(*worker.Item, bool) error) error {
	for {
		select {
		case _, more := <-s.next:
			it := worker.Item{HasData: true, Output: worker.Output{TokenIDs: []uint32{'a'}}}
			if !more {
				it.Output.FinishReason = worker.FinishStop
			}
			if err := f(&it, !more); err != nil || !more {
				return err
			}
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

// TestTokensLeaveAsTheyCome checks that nothing on the way gathers a slow answer: a token is with the client before the
// next one is generated.
func TestTokensLeaveAsTheyCome(t *testing.T) {
	all := maps.Clone(endpoints)
	all["/v1/responses"], all["/v1/messages"] = responsesRequest, strings.TrimSuffix(messageBody, "}")
	for path, body := range all {
		t.Run(path, func(t *testing.T) {
			next := make(paced)
			s := start(t, next, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, strings.NewReader(body+`,"stream":true}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			first := make(chan struct{})
			go func() { next <- struct{}{}; close(first) }() // the status comes with it
			res, err := s.Client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			<-first
			answer := bufio.NewReader(res.Body)
			for range 5 {
				for line := ""; !strings.Contains(line, `"a"`); {
					if line, err = answer.ReadString('\n'); err != nil {
						t.Fatalf("%v ahead of a token that was generated", err)
					}
				}
				next <- struct{}{}
			}
			close(next)
			if _, err := io.Copy(io.Discard, answer); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestImpossibleValuesStayHere sends values that have taken engines down. Each is refused with the name of its field,
// and no worker hears of it.
func TestImpossibleValuesStayHere(t *testing.T) {
	d := testkit.Play(hello)
	s := start(t, d, nil)
	bias := `{"1":1`
	for i := range 20000 {
		bias += fmt.Sprintf(`,"%d":1`, i+2)
	}
	for _, tt := range []struct{ field, value string }{
		{"n", "100000"}, {"max_tokens", "1048577"}, {"n", "0"}, {"n", "-1"}, {"n", "1.5"},
		{"max_tokens", "0"}, {"max_tokens", "-1"}, {"max_tokens", "1000000000000000000"}, {"max_tokens", "99999999999999999999"},
		{"temperature", "1e308"}, {"temperature", "-0.1"}, {"temperature", "1e400"}, {"temperature", "NaN"},
		{"top_p", "0"}, {"top_p", "1.1"}, {"min_p", "-1"}, {"top_k", "-2"}, {"repetition_penalty", "0"},
		{"prompt_logprobs", "-1"}, {"prompt_logprobs", "100000"}, {"seed", "1e400"}, {"min_tokens", "-1"},
		{"guided_regex", `"["`}, {"guided_regex", `""`}, {"logit_bias", bias + "}"}, {"logit_bias", `{"x":1}`},
		{"stop", `[` + strings.TrimSuffix(strings.Repeat(`"a",`, 33), ",") + `]`}, {"stop", `""`},
		{"guided_json", strings.Repeat(`{"a":`, 600) + "1" + strings.Repeat("}", 600)},
	} {
		for path, body := range endpoints {
			res, got := s.do(t, http.MethodPost, path, body+`,"`+tt.field+`":`+tt.value+"}")
			named := strings.Contains(got, tt.field) || strings.Contains(got, "nests deeper")
			if res.StatusCode != http.StatusBadRequest || !named {
				t.Errorf("%s: %s %.40s: %d %s", path, tt.field, tt.value, res.StatusCode, got)
			}
		}
	}
	if n := len(d.Calls()); n != 0 {
		t.Errorf("%d requests reached a worker", n)
	}
}

// TestBodiesOfKnownClients sends what popular client libraries send beside the fields of OpenAI's description.
func TestBodiesOfKnownClients(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	const user = `"messages":[{"role":"user","content":"hi"}]`
	for name, body := range map[string]string{
		"nulls for everything left out": user + `,"stream":false,"n":1,"temperature":0.7,"stop":null,"logprobs":null,"max_tokens":null,"tools":null,"tool_choice":null,"user":null,"seed":null,"logit_bias":null,"response_format":null`,
		"names and empty tool calls":    `"messages":[{"role":"system","content":"s","name":null},{"role":"user","content":"hi","name":"u"},{"role":"assistant","content":"x","tool_calls":[],"function_call":null,"refusal":null,"audio":null},{"role":"user","content":"go on"}]`,
		"content parts":                 `"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":5,"max_tokens":1,"stream":true,"stream_options":{"include_usage":true}`,
		"caching and safety":            user + `,"prompt_cache_key":"k","safety_identifier":"s","store":false,"service_tier":"auto","metadata":{"a":"b"},"verbosity":"low","prompt_cache_retention":"24h"`,
		"fields of other servers":       user + `,"mirostat":1,"repeat_penalty":1.1,"provider":{"order":["x"]},"transforms":[],"caching":true,"stream_options":null`,
		"tools without parameters":      user + `,"tools":[{"type":"function","function":{"name":"now","description":null,"strict":null}}],"tool_choice":"auto","parallel_tool_calls":true`,
		"reasoning":                     user + `,"reasoning_effort":"medium","chat_template_kwargs":{"enable_thinking":false},"separate_reasoning":true`,
	} {
		if res, got := s.do(t, http.MethodPost, "/v1/chat/completions", `{"model":"m",`+body+"}"); res.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", name, res.StatusCode, got)
		}
	}
}

// TestClientsLeaveAtAnyTime lets many clients leave at random moments. Each running worker is told once, and nothing is
// left behind.
func TestClientsLeaveAtAnyTime(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"_sleep":0.02},{"token_ids":[65]},{"_sleep":0.02},{"token_ids":[66],"finish_reason":"stop"}]`))
	s := start(t, d, nil)
	raw := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
	var clients sync.WaitGroup
	for i := range 300 {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		clients.Go(func() {
			defer c.Close()
			r := rand.New(rand.NewPCG(1, uint64(i)))
			body := []string{chatBody, chatStream}[i%2]
			request := fmt.Sprintf(raw, len(body), body)
			if i%5 == 0 {
				request = request[:r.IntN(len(request))]
			}
			fmt.Fprint(c, request)
			time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
			if i%3 == 0 {
				_ = c.(*net.TCPConn).SetLinger(0)
			}
		})
	}
	clients.Wait()
	eventually(t, "all requests end", func() bool {
		return s.metric(t, `dynamo_frontend_active_requests{model="m"}`) == "0"
	})
	for _, call := range d.Calls() {
		if told := call.Stops.Load(); !call.Closed.Load() || told > 1 || (told == 1) == call.Ended.Load() {
			t.Errorf("closed %t, told to stop %d times, ended %t", call.Closed.Load(), told, call.Ended.Load())
		}
	}
}

// TestDrainBreaksNoStream drains a server with many streams.
func TestDrainBreaksNoStream(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"token_ids":[65]},{"_sleep":0.2},{"token_ids":[66],"finish_reason":"stop"}]`))
	s := start(t, d, nil)
	const streams = 200
	bodies := make([]string, streams)
	var clients, begun sync.WaitGroup
	begun.Add(streams)
	for i := range streams {
		answer, _ := s.open(t, chatStream)
		clients.Go(func() {
			for {
				line, err := answer.ReadString('\n')
				if bodies[i] == "" {
					begun.Done()
				}
				bodies[i] += line
				if err != nil {
					return
				}
			}
		})
	}
	begun.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	clients.Wait()
	for i, body := range bodies {
		if !strings.Contains(body, `"finish_reason":"stop"`) || !strings.Contains(body, "data: [DONE]") {
			t.Fatalf("stream %d ended with %s", i, body)
		}
	}
}

// TestLabelsAreBounded checks that nothing a client chooses becomes a label: names of models, paths, ids.
func TestLabelsAreBounded(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	count := func() int {
		_, body := s.do(t, http.MethodGet, "/metrics", "")
		return strings.Count(body, "\n")
	}
	ask := func(i int) {
		s.do(t, http.MethodPost, "/v1/chat/completions", fmt.Sprintf(`{"model":"m%d","messages":[{"role":"user","content":"x"}],"f%d":1}`, i, i))
		s.do(t, http.MethodPost, fmt.Sprintf("/v1/%d", i), `{}`)
		s.do(t, http.MethodGet, fmt.Sprintf("/v1/models/%d", i), "")
		s.do(t, http.MethodPost, "/v1/messages", fmt.Sprintf(`{"model":"m%d","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`, i))
		s.do(t, http.MethodPost, "/v1/responses", fmt.Sprintf(`{"model":"m%d","input":"x"}`, i))
		s.do(t, http.MethodGet, fmt.Sprintf("/v1/responses/resp_%d?stream=true", i), "")
		s.do(t, http.MethodPost, "/v1/embeddings", fmt.Sprintf(`{"model":"m%d","input":"x"}`, i))
	}
	ask(0)
	before := count()
	for i := range 200 {
		ask(i + 1)
	}
	if after := count(); after != before {
		t.Errorf("%d lines of metrics became %d", before, after)
	}
}

// TestHeaderAbuse checks that headers are bounded in size and time.
func TestHeaderAbuse(t *testing.T) {
	s := start(t, testkit.Play(hello), func(o *server.Options) { o.HeaderTimeout = time.Second })
	c := s.dial(t)
	go func() {
		_, _ = fmt.Fprintf(c, "GET /live HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("x", 1<<20))
	}()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("%v, %v", res, err)
	}
	_ = c.Close()
	slow := s.dial(t)
	fmt.Fprint(slow, "GET /live HTTP/1.1\r\nHo")
	begin := time.Now()
	if got, err := io.ReadAll(slow); err != nil || strings.Contains(string(got), "200 OK") || time.Since(begin) > 5*time.Second {
		t.Errorf("half a header was waited for: %q, %v after %v", got, err, time.Since(begin))
	}
}

// TestStreamsDontMix runs many streams beside each other, each with a text of its own.
func TestStreamsDontMix(t *testing.T) {
	d := &testkit.Dispatcher{Script: func(call *router.Call, _ []byte) (testkit.Script, error) {
		id := call.TokenIDs[0]
		return testkit.Items(fmt.Sprintf(`[{"token_ids":[%d]},{"_sleep":0.002},{"token_ids":[%d,%d],"finish_reason":"stop"}]`, id, id, id)), nil
	}}
	s := start(t, d, nil)
	var clients sync.WaitGroup
	for i := range 64 {
		clients.Go(func() {
			letter := string(rune('A' + i%26))
			_, body := s.do(t, http.MethodPost, "/v1/completions", `{"model":"m","prompt":"`+letter+`","stream":true}`)
			if strings.Count(body, `"text":"`+letter) != 2 || strings.Count(body, `"text":"`) != 2 {
				t.Errorf("%s got %s", letter, body)
			}
		})
	}
	clients.Wait()
}
