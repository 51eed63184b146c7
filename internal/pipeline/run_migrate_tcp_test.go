package pipeline_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/callhome"
	"github.com/portico-llm/portico/internal/router/dispatch"
	"github.com/portico-llm/portico/internal/router/plane/nats"
	"github.com/portico-llm/portico/internal/router/plane/tcp"
	"github.com/portico-llm/portico/internal/router/policy"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/simworker"
	"github.com/portico-llm/portico/internal/testkit"
)

// farm is a server and simulated workers of one endpoint, joined by a real request plane and the answers' TCP plane.
type farm struct {
	url     string
	client  *http.Client
	workers []*simworker.Worker
}

// noRecords is a registrar: the farm publishes its workers itself.
type noRecords struct{}

func (noRecords) Put(context.Context, string, []byte) error { return nil }
func (noRecords) Remove(context.Context, string) error      { return nil }

// newFarm starts a server that moves requests up to limit times, and n workers with the same engine. Requests travel
// over TCP.
func newFarm(t *testing.T, n, limit int, engine simworker.Engine, opts dispatch.Options) *farm {
	t.Helper()
	return newFarmAt(t, "", n, limit, engine, opts)
}

// newFarmAt is newFarm with requests that travel over a NATS server, or over TCP without one.
func newFarmAt(t *testing.T, natsURL string, n, limit int, engine simworker.Engine, opts dispatch.Options) *farm {
	t.Helper()
	testkit.NoLeaks(t)
	log, set, parsed := slog.New(slog.DiscardHandler), testkit.ByteModel("m"), testkit.ByteModel("parsed")
	parsed.ToolParser, parsed.ReasoningParser = "hermes", "qwen3"
	group := lifecycle.New(context.Background())
	f := &farm{client: testkit.Client(t)}
	snap := &router.Snapshot{Version: 1, Instances: map[worker.EndpointID][]*worker.Instance{}}
	for i := range n {
		w, err := simworker.New(simworker.Options{
			Endpoint: set.Endpoint, InstanceID: uint64(i + 1), Codec: worker.Msgpack, Registrar: noRecords{},
			NATSURL: natsURL, Engine: engine, CloseWait: time.Second, Grace: 100 * time.Millisecond, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		group.Go("worker", w.Run)
		<-w.Ready()
		f.workers = append(f.workers, w)
		snap.Instances[set.Endpoint] = append(snap.Instances[set.Endpoint], w.Instance())
	}
	home, err := callhome.Listen(callhome.Options{Host: "127.0.0.1", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	group.Go("callhome", home.Run)
	plane := tcp.New(tcp.Options{Log: log})
	letters, err := nats.New(nats.Options{URL: natsURL, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	choose, err := policy.New(policy.RoundRobin)
	if err != nil {
		t.Fatal(err)
	}
	opts.Snapshots, opts.Policy, opts.CallHome, opts.Log = func() *router.Snapshot { return snap }, choose, home, log
	opts.NATS, opts.TCP = letters, plane
	d := dispatch.New(opts)
	srv, err := server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{
			Dispatcher: d, Migration: pipeline.Migration{Limit: limit}, Log: log, Answers: msgparse.Plan}),
		Catalog: testkit.Models{"m": set, "parsed": parsed}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.url = "http://" + ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- srv.Serve(context.Background(), ln) }()
	t.Cleanup(func() {
		f.client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx)
		err := errors.Join(<-served, letters.Close(), plane.Close(), group.Stop())
		if err != nil || d.InFlight() != 0 {
			t.Errorf("%v; %d requests in flight", err, d.InFlight())
		}
	})
	return f
}

// start sends a request.
func (f *farm) start(ctx context.Context, t *testing.T, path, body string) *http.Response {
	t.Helper()
	res, err := f.send(ctx, "", path, body)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// send sends a request under a name, which workers hear; they hear none when it is empty.
func (f *farm) send(ctx context.Context, name, path, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if name != "" {
		req.Header.Set("X-Request-Id", name)
	}
	return f.client.Do(req)
}

var unlike = regexp.MustCompile(`"(id|created)":("[^"]*"|\d+)`)

// ask returns an answer without its id and its time.
func (f *farm) ask(t *testing.T, path, body string) string {
	t.Helper()
	got, err := f.askAs(t.Context(), "", path, body)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// askAs is ask under a name.
func (f *farm) askAs(ctx context.Context, name, path, body string) (string, error) {
	res, err := f.send(ctx, name, path, body)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return fmt.Sprintf("%d\n%s", res.StatusCode, unlike.ReplaceAll(b, []byte(`"$1":0`))), err
}

// reciter is a deterministic engine: whatever of its answer a prompt ends with, it goes on from there. It dies where it
// is told to, and checks that every request it gets fits what its predecessors have done. Clients' requests that have
// names may come side by side.
type reciter struct {
	separate bool              // the finish reason comes in an item of its own
	death    error             // how it dies; nil: without a word
	hold     func(attempt int) // called when an attempt is about to die or to end; may be nil

	mu       sync.Mutex
	recitals map[string]*recital // guarded by mu, like all below; by the names of clients' requests
	attempts int                 // since the beginning
	deaths   int                 // since the beginning
}

// recital is what becomes of one client's request.
type recital struct {
	answer   []uint32
	first    *worker.Request // as it came to the first worker
	attempts int
	cuts     []int // position at which each attempt dies; beyond them none does
	faults   []string
}

// reset prepares for the next request without a name, which is answered with answer.
func (r *reciter) reset(answer []uint32, cuts ...int) { r.expect("", answer, cuts...) }

// expect prepares for a client's request.
func (r *reciter) expect(name string, answer []uint32, cuts ...int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.recitals == nil {
		r.recitals = map[string]*recital{}
	}
	r.recitals[name] = &recital{answer: answer, cuts: cuts}
}

// complaints returns what was wrong with what workers were asked for a client's request, which has ended.
func (r *reciter) complaints(name string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.recitals[name].faults
}

// admit finds out where in the answer a request goes on, which attempt it is, and where that dies.
func (r *reciter) admit(name string, q *worker.Request) (answer []uint32, pos, attempt, cut int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	is := r.recitals[name]
	if is.first == nil {
		is.first = q
	}
	attempt, cut = is.attempts, -1
	r.attempts++
	if is.attempts++; attempt < len(is.cuts) {
		cut = is.cuts[attempt]
	}
	pos = len(q.TokenIDs) - len(is.first.TokenIDs)
	if want := slices.Concat(is.first.TokenIDs, is.answer[:pos]); !slices.Equal(q.TokenIDs, want) {
		is.faults = append(is.faults, fmt.Sprintf("prompt %v, want %v", q.TokenIDs, want))
	}
	check := func(name string, first, got *uint32) {
		if first == nil && got == nil {
			return
		}
		if first == nil || got == nil || *got != uint32(max(int(*first)-pos, 0)) {
			is.faults = append(is.faults, fmt.Sprintf("%s at %d: %v of %v", name, pos, got, first))
		}
	}
	check("max_tokens", is.first.Stop.MaxTokens, q.Stop.MaxTokens)
	check("min_tokens", is.first.Stop.MinTokens, q.Stop.MinTokens)
	return is.answer, pos, attempt, cut
}

// Generate implements simworker.Engine.
func (r *reciter) Generate(_ context.Context, req *simworker.Request, out simworker.Output) error {
	q := req.Tokens
	answer, begin, attempt, cut := r.admit(req.Headers.XRequestID, q)
	if r.hold != nil {
		defer r.hold(attempt)
	}
	die := func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.deaths++
		if r.death != nil {
			return r.death
		}
		return simworker.ErrDie
	}
	var it worker.Item
	for pos := begin; ; pos++ {
		if pos == cut {
			return die()
		}
		it.Reset()
		it.HasData = true
		finish := recite(&it, q, answer, pos, pos-begin+1)
		if finish != worker.FinishNone && r.separate {
			if err := out.Send(&it); err != nil {
				return err
			}
			if pos+1 == cut {
				return die()
			}
			it.Reset()
			it.HasData = true
		}
		if it.Output.FinishReason = finish; finish != worker.FinishNone {
			it.Output.Usage = &worker.Usage{PromptTokens: len(q.TokenIDs), CompletionTokens: pos - begin + 1,
				TotalTokens: len(q.TokenIDs) + pos - begin + 1}
		}
		if err := out.Send(&it); err != nil {
			return err
		}
		if finish != worker.FinishNone {
			if pos+1 == cut {
				return die() // all is said but the end mark
			}
			return nil
		}
	}
}

// recite fills in the token at a position, the nth of this attempt, and says whether it is the last. Like an engine's,
// its end token counts once min_tokens others have come.
func recite(it *worker.Item, q *worker.Request, answer []uint32, pos, n int) worker.FinishReason {
	id := testkit.EOS
	if pos < len(answer) {
		id = answer[pos]
	}
	o := &it.Output
	o.TokenIDs = append(o.TokenIDs, id)
	if want := q.Output.Logprobs; want != nil {
		o.LogProbs = append(o.LogProbs, -float64(pos)/8)
		top := []worker.TopLogProb{{Rank: 1, TokenID: id, LogProb: -float64(pos) / 8}, {Rank: 2, TokenID: 'x', LogProb: -9}}
		o.TopLogProbs = append(o.TopLogProbs, top[:min(int(*want), 2)])
	}
	enough := q.Stop.MinTokens == nil || n > int(*q.Stop.MinTokens)
	switch {
	case enough && slices.Contains(q.EOSTokenIDs, id):
		return worker.FinishEOS
	case enough && slices.Contains(q.Stop.StopTokenIDs, id):
		return worker.FinishStop
	case q.Stop.MaxTokens != nil && n >= int(*q.Stop.MaxTokens):
		return worker.FinishLength
	}
	return worker.FinishNone
}

// bytesOf is an answer of a model whose tokens are bytes; ⏹ is its end token.
func bytesOf(text string) []uint32 {
	var out []uint32
	for i, part := range strings.Split(text, "⏹") {
		if i > 0 {
			out = append(out, testkit.EOS)
		}
		for j := range len(part) {
			out = append(out, uint32(part[j]))
		}
	}
	return out
}

const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
	conversation   = `{"model":"m","messages":[{"role":"user","content":"hi"}]`
)

// recitals are requests and the answers of a deterministic worker.
var recitals = []struct{ name, path, request, answer string }{
	{"characters of several tokens", chatPath, `"stream":true`, "né 日本語 🙂🙂 ende⏹"},
	{"a character broken off", chatPath, `"stream":true`, "ok \xf0\x9f⏹"},
	{"stop string", chatPath, `"stream":true,"stop":["END"]`, "the EN ENd, the END and more⏹"},
	{"stop string of several bytes", chatPath, `"stream":true,"stop":["。終"]`, "日本。本。終わり⏹"},
	{"stop string kept", chatPath, `"stream":true,"stop":["END"],"include_stop_str_in_output":true`, "say END and⏹"},
	{"half a stop string", chatPath, `"stream":true,"stop":["lo!"]`, "hello lo⏹"},
	{"stop id", chatPath, `"stream":true,"stop_token_ids":[33]`, "well! no⏹"},
	{"log probabilities", chatPath, `"stream":true,"logprobs":true,"top_logprobs":2`, "añb⏹"},
	{"min_tokens", chatPath, `"stream":true,"min_tokens":6`, "ab⏹cd⏹ef⏹"},
	{"min_tokens and a stop string", chatPath, `"stream":true,"min_tokens":5,"stop":["ab"]`, "ababababab⏹"},
	{"max_tokens", chatPath, `"stream":true,"max_tokens":5`, "日本語⏹"},
	{"max_tokens within a stop string", chatPath, `"stream":true,"max_tokens":4,"stop":["abcde"]`, "xabcdefg⏹"},
	{"the end beyond the end token", chatPath, `"stream":true,"ignore_eos":true,"max_tokens":6`, "ab⏹cd⏹ef⏹"},
	{"usage", chatPath, `"stream":true,"stream_options":{"include_usage":true}`, "count me⏹"},
	{"usage in every chunk", chatPath, `"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, "count me⏹"},
	{"unary", chatPath, `"stop":["zz"],"logprobs":true`, "one, zwö z⏹"},
	{"completion", completionPath, `"prompt":"say","stream":true,"logprobs":1,"max_tokens":20`, "né 日本⏹"},
	{"unary completion", completionPath, `"prompt":"say","max_tokens":4`, "été⏹"},
	{"a tool call", chatPath, tool + `,"stream":true`, "ok <tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"é🙂\"}}</tool_call>⏹"},
	{"two tool calls", chatPath, tool, `<tool_call>{"name":"f","arguments":{}}</tool_call> <tool_call>{"name":"f","arguments":{"x":1}}</tool_call>⏹`},
	{"thoughts and a call", chatPath, tool + `,"stream":true,"stream_options":{"include_usage":true}`,
		"<think>hm, né</think>so <tool_call>{\"name\":\"f\",\"arguments\":{\"x\":[]}}</tool_call>⏹"},
	{"unary stop string", chatPath, `"stop":["END"]`, "the EN ENd, the END and more⏹"},
	{"unary thoughts and a call", chatPath, tool, "<think>hm, né</think>so <tool_call>{\"name\":\"f\",\"arguments\":{\"x\":[]}}</tool_call>⏹"},
	{"log probabilities of a unary completion", completionPath, `"prompt":"say","logprobs":1,"max_tokens":20`, "né 日本⏹"},
	{"completion with a stop string", completionPath, `"prompt":"say","stream":true,"stop":["END"]`, "EN ENd, END⏹"},
	{"unary completion with a stop string", completionPath, `"prompt":"say","stop":["END"]`, "EN ENd, END⏹"},
	{"no call after all", chatPath, tool + `,"stream":true,"stop":["no"]`, "<think>a</think>x <tool_ca no⏹"},
}

// tool is what a request for the model with parsers has beside its messages.
const tool = `"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`

// body is the whole request.
func body(path, request string) string {
	if strings.HasPrefix(request, tool) {
		return strings.Replace(conversation, `"m"`, `"parsed"`, 1) + "," + request + "}"
	}
	if path == chatPath {
		return conversation + "," + request + "}"
	}
	return `{"model":"m",` + request + "}"
}

// TestMigrateEverywhere kills the worker behind each token of each answer, in several ways, and then the next worker one
// token later: the client's bytes are those of a run in which nothing happened. Many requests lose their workers at a
// time: an end of stream that comes together with data is noticed half a second later.
func TestMigrateEverywhere(t *testing.T) {
	shutdown := &worker.Error{Class: "Unavailable", Reason: "backend.engine_shutdown", Message: "going down"}
	for _, way := range []struct {
		name  string
		death error
		apart bool // the finish reason comes in an item of its own
		nats  bool // requests travel over NATS
	}{
		{"broken", nil, false, false}, {"broken with a finish of its own", nil, true, false}, {"shutdown", shutdown, false, false},
		{"broken over NATS", nil, false, true}, {"shutdown over NATS", shutdown, false, true},
	} {
		t.Run(way.name, func(t *testing.T) {
			engine, url := &reciter{separate: way.apart, death: way.death}, ""
			if way.nats {
				url = startNATS(t)
			}
			// The workers come back at once, so none is left aside.
			f := newFarmAt(t, url, 4, 3, engine, dispatch.Options{QuarantineFor: -1})
			jobs := make(chan func(), 1)
			var clients sync.WaitGroup
			for range 32 {
				clients.Go(func() {
					for job := range jobs {
						if !t.Failed() { // one difference says as much as a thousand
							job()
						}
					}
				})
			}
			for _, c := range recitals {
				answer, request := bytesOf(c.answer), body(c.path, c.request)
				engine.reset(answer)
				want := f.ask(t, c.path, request)
				if !strings.HasPrefix(want, "200\n") || strings.Contains(want, `"error"`) {
					t.Errorf("%s: %s", c.name, want)
				}
				for k := range len(answer) + 1 {
					jobs <- func() { f.survives(t, engine, c.path, request, want, c.name, answer, k) }
					if way.death == nil && !way.apart && k%3 == 0 { // the rest of the way is the same for all
						jobs <- func() { f.survives(t, engine, c.path, request, want, c.name, answer, k, k+1, k+1) }
					}
				}
			}
			close(jobs)
			clients.Wait()
			if t.Logf("%d times a worker was lost", engine.deaths); engine.deaths < 150 {
				t.Error("which is not often enough to say anything")
			}
		})
	}
}

// survives asks for an answer whose workers die at the cuts, one after the other, and wants what comes without.
func (f *farm) survives(t *testing.T, engine *reciter, path, request, want, what string, answer []uint32, cuts ...int) {
	name := fmt.Sprint(what, ", killed at ", cuts)
	engine.expect(name, answer, cuts...)
	got, err := f.askAs(t.Context(), name, path, request)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%s: %v (-unfailed +got):\n%s", name, err, diff)
	}
	if faults := engine.complaints(name); len(faults) > 0 {
		t.Errorf("%s: %q", name, faults)
	}
}

// startNATS starts a NATS server.
func startNATS(t *testing.T) (url string) {
	t.Helper()
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("no NATS server")
	}
	return s.ClientURL()
}

// TestMigrateEnds looks at what clients see when a request can't go on.
func TestMigrateEnds(t *testing.T) {
	const phrase = "Stream ended before generation completed"
	const stays = phrase + "; the answer can't go on at another worker: "
	tests := []struct {
		name           string
		workers, limit int
		request        string
		want           string // message of the error event
		attempts       int
	}{
		{"limit", 5, 3, "", phrase, 4},
		{"off", 2, 0, "", phrase, 1},
		{"no candidate left", 2, 3, "", phrase + ", and no other worker is left to go on", 2},
		{"guided decoding", 2, 3, `,"response_format":{"type":"json_object"}`,
			stays + "guided decoding would start over in the middle of its grammar", 1},
		{"choices", 2, 3, `,"n":2`, stays + "several choices are generated together", 1},
		{"pinned", 2, 3, `,"nvext":{"backend_instance_id":2}`, phrase, 1},
		{"penalty", 2, 3, `,"presence_penalty":0.5`, stays + "penalties count the tokens a worker has generated itself", 1},
		{"repetition", 2, 3, `,"repetition_penalty":1.1`,
			stays + "a repetition penalty may count the tokens a worker has generated itself alone", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			engine := &reciter{}
			f := newFarm(t, tt.workers, tt.limit, engine, dispatch.Options{QuarantineFor: -1})
			engine.reset(bytesOf("0123456789"), 2, 3, 4, 5, 6)
			got := f.ask(t, chatPath, conversation+`,"stream":true`+tt.request+`}`)
			if !strings.Contains(got, `"message":"`+tt.want+`"`) || !strings.HasSuffix(got, "data: [DONE]\n\n") ||
				strings.Contains(got, `"finish_reason":"`) || !strings.Contains(got, `"content":"0"`) {
				t.Errorf("answer:\n%s", got)
			}
			if engine.attempts != tt.attempts {
				t.Errorf("%d attempts, want %d", engine.attempts, tt.attempts)
			}
		})
	}
}

// TestMigrateSilent moves a request away from a worker that has stopped talking.
func TestMigrateSilent(t *testing.T) {
	stuck := make(chan struct{})
	engine := &reciter{hold: func(attempt int) {
		if attempt == 0 {
			<-stuck
		}
	}}
	defer close(stuck)
	f := newFarm(t, 2, 1, engine, dispatch.Options{StreamTimeout: 50 * time.Millisecond})
	engine.reset(bytesOf("0123456789⏹"), 4)
	got := f.ask(t, completionPath, `{"model":"m","prompt":"p"}`)
	if !strings.Contains(got, `"text":"0123456789"`) {
		t.Errorf("answer:\n%s", got)
	}
}

// gate is an engine that dies at once for the first request and lets the second wait before or within its answer.
type gate struct {
	within  bool
	seen    atomic.Int32
	arrived chan struct{} // closed by the second
	open    chan struct{} // closed by the test
}

// Admit implements simworker.Admitter: what waits here has not begun.
func (g *gate) Admit(*simworker.Request) error {
	if g.seen.Add(1) == 2 && !g.within {
		close(g.arrived)
		<-g.open
	}
	return nil
}

// Generate implements simworker.Engine.
func (g *gate) Generate(ctx context.Context, _ *simworker.Request, out simworker.Output) error {
	if err := out.Send(&worker.Item{HasData: true, Output: worker.Output{TokenIDs: []uint32{'a'}}}); err != nil {
		return err
	}
	if g.seen.Load() == 1 {
		return simworker.ErrDie
	}
	if g.within {
		close(g.arrived)
	}
	<-ctx.Done()
	return simworker.ErrStopped
}

// TestMigrateClientLeaves cancels a request on its way to another worker, and one that goes on there: the lost worker
// hears nothing, the other exactly one cancel.
func TestMigrateClientLeaves(t *testing.T) {
	for _, within := range []bool{false, true} {
		t.Run(fmt.Sprintf("within the answer %t", within), func(t *testing.T) {
			engine := &gate{within: within, arrived: make(chan struct{}), open: make(chan struct{})}
			f := newFarm(t, 2, 3, engine, dispatch.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			res := f.start(ctx, t, chatPath, conversation+`,"stream":true}`)
			if line, err := bufio.NewReader(res.Body).ReadBytes('\n'); err != nil || !bytes.Contains(line, []byte(`"content":"a"`)) {
				t.Fatalf("%s %v", line, err)
			}
			<-engine.arrived
			cancel()
			res.Body.Close()
			if !within { // the server notices meanwhile that its client has left; the worker hears it when it calls
				time.Sleep(50 * time.Millisecond)
				close(engine.open)
			}
			var lost, told simworker.Stats
			for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
				lost, told = f.workers[0].Stats(), f.workers[1].Stats()
				if lost.Failed == 0 {
					lost, told = told, lost
				}
				if told.Stopped+told.Killed+told.Lost > 0 {
					break
				}
			}
			if lost.Failed != 1 || lost.Stopped+lost.Killed+lost.Lost != 0 || lost.Received != 1 {
				t.Errorf("the lost worker: %+v", lost)
			}
			if told.Stopped+told.Killed != 1 || told.Lost+told.Failed+told.Completed != 0 || told.Received != 1 {
				t.Errorf("the other worker: %+v", told)
			}
		})
	}
}

// TestMigrateCrash lets a worker with many streams crash: all of them end as if nothing had happened.
func TestMigrateCrash(t *testing.T) {
	const streams = 40
	answer := bytesOf(strings.Repeat("né 日本語 🙂 ", 12) + "⏹")
	half := make(chan struct{}, streams)
	engine := simworker.EngineFunc(func(ctx context.Context, req *simworker.Request, out simworker.Output) error {
		const prompt = len("user: hi\n")
		for i := len(req.Tokens.TokenIDs) - prompt; i < len(answer); i++ {
			it := worker.Item{HasData: true, Output: worker.Output{TokenIDs: answer[i : i+1]}}
			if i == len(answer)-1 {
				it.Output.FinishReason = worker.FinishEOS
			}
			if err := out.Send(&it); err != nil {
				return err
			}
			if i == len(answer)/2 {
				half <- struct{}{}
			}
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	f := newFarm(t, 2, 3, engine, dispatch.Options{})
	want := f.ask(t, chatPath, conversation+`,"stream":true}`)
	<-half
	answers := make(chan string, streams)
	for range streams {
		go func() { answers <- f.ask(t, chatPath, conversation+`,"stream":true}`) }()
	}
	for range streams / 2 {
		<-half
	}
	f.workers[0].Abort()
	for range streams {
		if diff := cmp.Diff(want, <-answers); diff != "" {
			t.Errorf("a stream (-unfailed +got):\n%s", diff)
		}
	}
	if n := f.workers[1].Stats().Received; n < streams/2+2 {
		t.Errorf("the other worker got %d requests: nothing has moved", n)
	}
}
