package chaos_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// reference is a prompt and what the workers say to it, token by token.
type reference struct {
	prompt string
	tokens []string // nil: it can't be known
	size   int      // of the prompt, in tokens; 0: it can't be known
}

// text is the answer's beginning.
func (r *reference) text(tokens int) string { return strings.Join(r.tokens[:tokens], "") }

// longest is the longest answer that is asked for.
const longest = 80

// learn asks for the answer to each prompt while nothing is broken.
func (d *deployment) learn() []reference {
	d.t.Helper()
	if d.scene.kv {
		return d.learnSizes()
	}
	known := make([]reference, 16)
	var wg sync.WaitGroup
	for i := range known {
		known[i].prompt = fmt.Sprintf("Prompt number %d: what comes next?", i)
		wg.Go(func() {
			a := d.send(context.Background(), 0, &known[i], request{tokens: longest, stream: true})
			if a.kind != "whole" || len(a.deltas) != longest {
				d.t.Errorf("prompt %d: %s, %d deltas", i, a.kind, len(a.deltas))
			}
			known[i].tokens = a.deltas
		})
	}
	wg.Wait()
	if d.t.Failed() {
		d.t.FailNow()
	}
	return known
}

// ask asks for the beginning of an answer.
func (d *deployment) ask(i int, r *reference, tokens int) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	a := d.send(ctx, i, r, request{tokens: tokens})
	if a.kind != "whole" {
		return a.text, errors.New(a.kind + ": " + a.detail)
	}
	return a.text, nil
}

// request is what is asked.
type request struct {
	tokens int
	stream bool
	stop   string // stop string; empty: none
}

// answer is what came.
type answer struct {
	kind   string // whole, an error's status or code, or broken
	detail string
	text   string
	deltas []string // of streams
	finish string
	usage  *usage // nil: none came
}

// usage is the tokens of a request, as clients are told.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// load is the clients, and what they have seen.
type load struct {
	d     *deployment
	known []reference
	seed  uint64

	mu      sync.Mutex
	counts  map[string]int // guarded by mu
	longest time.Duration  // guarded by mu: of a request
}

func newLoad(d *deployment, known []reference, seed uint64) *load {
	return &load{d: d, known: known, seed: seed, counts: map[string]int{}}
}

// count notes the end of a request.
func (l *load) count(kind string, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[kind]++
	l.longest = max(l.longest, took)
}

// report returns the counts.
func (l *load) report() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.counts)
}

// run is one client: it sends one request after the other until it is told to stop, and checks each answer.
func (l *load) run(client int, stop <-chan struct{}) {
	random := rand.New(rand.NewPCG(l.seed, uint64(client)+2))
	for {
		select {
		case <-stop:
			return
		default:
		}
		l.one(random)
		// Clients come back at once after an answer, and not quite so fast after a failure.
		time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
	}
}

// one sends a request and checks its answer.
func (l *load) one(random *rand.Rand) {
	r := &l.known[random.IntN(len(l.known))]
	q := request{tokens: 1 + random.IntN(longest), stream: random.IntN(3) > 0}
	want := ""
	if r.tokens != nil {
		want = r.text(q.tokens)
	}
	if r.tokens != nil && random.IntN(4) == 0 {
		if q.stop = strings.TrimSpace(r.tokens[random.IntN(longest)]); q.stop != "" { // one is all spaces
			want, _, _ = strings.Cut(want, q.stop)
		}
	}
	i := random.IntN(frontends)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	leaves := random.IntN(20) == 0 // clients that don't wait
	if leaves {
		var left context.CancelFunc
		ctx, left = context.WithTimeout(ctx, time.Duration(random.IntN(2000))*time.Millisecond)
		defer left()
	}
	before, began := l.d.at(i), time.Now()
	a := l.d.send(ctx, i, r, q)
	after := l.d.at(i)
	switch {
	case leaves && ctx.Err() != nil:
		a.kind = "left"
	case a.kind == "broken" && (before.down || after.down || before.born != after.born):
		a.kind = "frontend gone"
	case a.kind == "broken":
		l.d.t.Errorf("broken: %s (asked %+v of %q)", a.detail, q, r.prompt)
	case r.tokens == nil:
		l.checkCounts(r, q, &a)
	case a.kind == "whole" && a.text != want:
		l.d.t.Errorf("wrong text for %+v of %q:\n got %q\nwant %q", q, r.prompt, a.text, want)
	}
	if r.tokens != nil && a.kind != "whole" && !strings.HasPrefix(want, a.text) {
		l.d.t.Errorf("%s behind a wrong text for %+v of %q:\n got %q\nwant %q", a.kind, q, r.prompt, a.text, want)
	}
	kind := a.kind
	if kind != "whole" && kind != "left" && kind != "frontend gone" {
		kind = fmt.Sprintf("%s: %.60s", a.kind, a.detail)
	}
	l.count(kind, time.Since(began))
	if a.kind != "whole" && a.kind != "left" {
		time.Sleep(100 * time.Millisecond)
	}
}

// send sends one request to a frontend and reads the answer. It knows nothing of what is right but the form.
func (d *deployment) send(ctx context.Context, i int, r *reference, q request) (a answer) {
	body := map[string]any{
		"model": model, "max_tokens": q.tokens, "stream": q.stream,
		"messages": []map[string]string{{"role": "user", "content": r.prompt}},
	}
	if q.stop != "" {
		body["stop"] = q.stop
	}
	if r.tokens == nil {
		d.countable(body, q)
	}
	b, err := json.Marshal(body)
	if err != nil {
		return answer{kind: "broken", detail: err.Error()}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.at(i).URL+"/v1/chat/completions", bytes.NewReader(b))
	if err != nil {
		return answer{kind: "broken", detail: err.Error()}
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := d.client.Do(req)
	if err != nil {
		return answer{kind: "broken", detail: err.Error()}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return refused(res)
	}
	if q.stream {
		return readStream(res.Body)
	}
	var whole struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
			Finish string `json:"finish_reason"`
		} `json:"choices"`
		Usage *usage `json:"usage"`
	}
	if err := json.NewDecoder(res.Body).Decode(&whole); err != nil {
		return answer{kind: "broken", detail: err.Error()}
	}
	if len(whole.Choices) != 1 || whole.Choices[0].Finish == "" {
		return answer{kind: "broken", detail: fmt.Sprintf("%+v", whole)}
	}
	c := &whole.Choices[0]
	return answer{kind: "whole", text: c.Message.Content, finish: c.Finish, usage: whole.Usage}
}

// failure is an error as clients get it.
type failure struct {
	Error *struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    any    `json:"code"`
	} `json:"error"`
}

// allowed are the statuses that broken parts may have; anything else is a fault of the frontend's.
var allowed = map[int]bool{
	http.StatusNotFound: true, // a model whose workers are all gone, and whose records are, too
	529:                 true, http.StatusServiceUnavailable: true, http.StatusGatewayTimeout: true,
}

// refused reads an answer that isn't 200.
func refused(res *http.Response) answer {
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{kind: "broken", detail: err.Error()}
	}
	var f failure
	if json.Unmarshal(b, &f) != nil || f.Error == nil || f.Error.Message == "" || f.Error.Type == "" || !allowed[res.StatusCode] {
		return answer{kind: "broken", detail: fmt.Sprintf("status %d: %s", res.StatusCode, b)}
	}
	return answer{kind: fmt.Sprintf("status %d", res.StatusCode), detail: f.Error.Message}
}

// chunk is an event of a stream.
type chunk struct {
	failure
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		Finish *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *usage `json:"usage"`
}

// readStream reads a streamed answer: deltas, a finish reason and perhaps the usage, or an error, and then [DONE], and
// nothing else.
func readStream(body io.Reader) (a answer) {
	failed, done := "", false
	broken := func(detail string) answer { return answer{kind: "broken", detail: detail, text: a.text} }
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok && lines.Text() == "":
			continue
		case !ok || done:
			return broken("line " + lines.Text())
		case data == "[DONE]":
			done = true
			continue
		}
		var c chunk
		if err := json.Unmarshal([]byte(data), &c); err != nil || failed != "" || a.usage != nil {
			return broken(fmt.Sprintf("%v in %s", err, data))
		}
		switch {
		case c.Error != nil && a.finish == "":
			failed = c.Error.Message
		case c.Usage != nil && len(c.Choices) == 0 && a.finish != "":
			a.usage = c.Usage
		case len(c.Choices) != 1 || a.finish != "":
			return broken(data)
		default:
			a.take(&c)
		}
	}
	switch {
	case lines.Err() != nil || !done || (a.finish == "" && failed == ""):
		a.kind, a.detail = "broken", fmt.Sprintf("cut off after %q: %v", a.text, lines.Err())
	case failed != "":
		a.kind, a.detail = "error event", failed
	default:
		a.kind = "whole"
	}
	return a
}

// take adds a chunk's only choice.
func (a *answer) take(c *chunk) {
	if text := c.Choices[0].Delta.Content; text != "" {
		a.text += text
		a.deltas = append(a.deltas, text)
	}
	if finish := c.Choices[0].Finish; finish != nil {
		a.finish = *finish
	}
}
