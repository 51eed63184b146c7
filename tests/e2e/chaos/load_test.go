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
	tokens []string
}

// text is the answer's beginning.
func (r *reference) text(tokens int) string { return strings.Join(r.tokens[:tokens], "") }

// longest is the longest answer that is asked for.
const longest = 80

// learn asks for the answer to each prompt while nothing is broken.
func (d *deployment) learn() []reference {
	d.t.Helper()
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
}

// load is the clients, and what they have seen.
type load struct {
	d     *deployment
	known []reference
	seed  uint64

	mu     sync.Mutex
	counts map[string]int // guarded by mu
}

func newLoad(d *deployment, known []reference, seed uint64) *load {
	return &load{d: d, known: known, seed: seed, counts: map[string]int{}}
}

// count notes the end of a request.
func (l *load) count(kind string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[kind]++
}

// report returns the counts.
func (l *load) report() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.counts)
}

// total is how many requests there were.
func (l *load) total() (n int) {
	for _, c := range l.report() {
		n += c
	}
	return n
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
	want := r.text(q.tokens)
	if random.IntN(4) == 0 {
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
	before := l.d.at(i)
	a := l.d.send(ctx, i, r, q)
	after := l.d.at(i)
	switch {
	case leaves && ctx.Err() != nil:
		a.kind = "left"
	case a.kind == "broken" && (before.down || after.down || before.born != after.born):
		a.kind = "frontend gone"
	case a.kind == "broken":
		l.d.t.Errorf("broken: %s (asked %+v of %q)", a.detail, q, r.prompt)
	case a.kind == "whole" && a.text != want:
		l.d.t.Errorf("wrong text for %+v of %q:\n got %q\nwant %q", q, r.prompt, a.text, want)
	}
	if a.kind != "whole" && !strings.HasPrefix(want, a.text) {
		l.d.t.Errorf("%s behind a wrong text for %+v of %q:\n got %q\nwant %q", a.kind, q, r.prompt, a.text, want)
	}
	l.count(a.kind)
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
	}
	if err := json.NewDecoder(res.Body).Decode(&whole); err != nil {
		return answer{kind: "broken", detail: err.Error()}
	}
	if len(whole.Choices) != 1 || whole.Choices[0].Finish == "" {
		return answer{kind: "broken", detail: fmt.Sprintf("%+v", whole)}
	}
	return answer{kind: "whole", text: whole.Choices[0].Message.Content}
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

// readStream reads a streamed answer: deltas and a finish reason, or an error, and then [DONE], and nothing else.
func readStream(body io.Reader) (a answer) {
	finished, failed, done := false, "", false
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok && lines.Text() == "":
			continue
		case !ok || done:
			return answer{kind: "broken", detail: "line " + lines.Text(), text: a.text}
		case data == "[DONE]":
			done = true
			continue
		}
		var chunk struct {
			failure
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
				Finish *string `json:"finish_reason"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil || finished || failed != "" {
			return answer{kind: "broken", detail: fmt.Sprintf("%v in %s", err, data), text: a.text}
		}
		if e := chunk.Error; e != nil {
			failed = e.Message
			continue
		}
		if len(chunk.Choices) != 1 {
			return answer{kind: "broken", detail: data, text: a.text}
		}
		if text := chunk.Choices[0].Delta.Content; text != "" {
			a.text += text
			a.deltas = append(a.deltas, text)
		}
		finished = chunk.Choices[0].Finish != nil
	}
	switch {
	case lines.Err() != nil || !done || (!finished && failed == ""):
		a.kind, a.detail = "broken", fmt.Sprintf("cut off after %q: %v", a.text, lines.Err())
	case failed != "":
		a.kind, a.detail = "error event", failed
	default:
		a.kind = "whole"
	}
	return a
}
