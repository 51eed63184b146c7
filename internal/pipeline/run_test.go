package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/testkit"
)

// record is a sink that writes down what it is told.
type record struct {
	log     []string
	started int
	flushes int
	delta   func(d *pipeline.Delta) error
}

// Start counts: once is right.
func (r *record) Start(*pipeline.Prepared) error { r.started++; return nil }

// Delta writes prompt.choice "text" tokens, then the finish, what stopped it, and a usage, where there are any.
func (r *record) Delta(d *pipeline.Delta) error {
	line := fmt.Sprintf("%d.%d %q %d", d.Prompt, d.Choice, d.Text, d.Tokens)
	switch {
	case d.Event != "":
		line = "event " + d.Event + " " + strings.Join(d.Comment, "|")
	case d.Raw != nil:
		line = "raw " + string(d.Raw)
	}
	if d.Finish != "" {
		line += " " + string(d.Finish)
	}
	if d.StopReason.Kind != worker.StopNone {
		line += fmt.Sprintf(" at %d%s", d.StopReason.ID, d.StopReason.Text)
	}
	if d.Usage != nil {
		line += fmt.Sprintf(" usage %d", d.Usage.PromptTokens)
	}
	r.log = append(r.log, line)
	if r.delta != nil {
		return r.delta(d)
	}
	return nil
}

// Flush counts.
func (r *record) Flush() error { r.flushes++; return nil }

// newPipeline is a pipeline that logs nothing.
func newPipeline(d router.Dispatcher) *pipeline.Pipeline {
	return pipeline.New(pipeline.Options{Dispatcher: d, Log: slog.New(slog.DiscardHandler)})
}

// prepared is a request for n choices of each prompt.
func prepared(n int, prompts ...string) *pipeline.Prepared {
	set := testkit.ByteModel("m")
	p := &pipeline.Prepared{Set: set, Model: "m", Choices: n, Meta: pipeline.Meta{RequestID: "id"}, Prompt: "rendered"}
	for _, text := range prompts {
		ids, _ := set.Tokenizer.Encode(context.Background(), text, false)
		p.Requests = append(p.Requests, &worker.Request{Model: "m", TokenIDs: ids,
			Stop: worker.StopConditions{StopTokenIDsHidden: []uint32{testkit.EOS}}})
	}
	return p
}

// TestRun plays scripts of outputs, whose tokens are bytes and 256 the end, and compares what the sink was told.
func TestRun(t *testing.T) {
	tests := []struct {
		name   string
		n      int // choices asked for
		stop   []string
		script string
		want   []string
		stops  int32 // how often the worker is told to stop
	}{
		{"one choice", 1, nil, `[{"token_ids":[72,105]},{"token_ids":[33],"finish_reason":"stop"}]`,
			[]string{`0.0 "Hi" 2`, `0.0 "!" 1 stop`}, 0},
		{"broken character waits", 1, nil, `[{"token_ids":[195]},{"token_ids":[164],"finish_reason":"length"}]`,
			[]string{`0.0 "" 1`, `0.0 "ä" 1 length`}, 0},
		{"end token", 1, nil, `[{"token_ids":[72]},{"token_ids":[256]},{"token_ids":[73]}]`,
			[]string{`0.0 "H" 1`, `0.0 "" 1 stop`}, 1},
		{"end token with the engine's finish", 1, nil, `[{"token_ids":[72,256],"finish_reason":"stop"}]`,
			[]string{`0.0 "H" 2 stop`}, 0},
		{"stop string", 1, []string{"lo"}, `[{"token_ids":[72,101,108]},{"token_ids":[108,111,33]},{"token_ids":[33]}]`,
			[]string{`0.0 "He" 3`, `0.0 "l" 2 stop at 0lo`}, 1},
		{"two choices, one goes on", 2, nil,
			`[{"token_ids":[65],"index":1},{"token_ids":[66,256],"index":0},{"token_ids":[67],"index":0},{"token_ids":[68],"index":1,"finish_reason":"stop"}]`,
			[]string{`0.1 "A" 1`, `0.0 "B" 2 stop`, `0.1 "D" 1 stop`}, 1},
		{"the worker ignores n", 2, nil, `[{"token_ids":[65],"finish_reason":"stop"}]`, []string{`0.0 "A" 1 stop`}, 0},
		{"no finish reason", 1, nil, `[{"token_ids":[65,195]}]`, []string{`0.0 "A" 2`, `0.0 "�" 0 stop`}, 0},
		{"nothing at all", 1, nil, `[]`, []string{`0.0 "" 0 stop`}, 0},
		{"items after the finish", 1, nil,
			`[{"token_ids":[65],"finish_reason":"stop"},{"token_ids":[66]},{"token_ids":[],"completion_usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}}]`,
			[]string{`0.0 "A" 1 stop`, `0.0 "" 0 usage 7`}, 0},
		{"annotation", 1, nil,
			`[{"_dynamo_annotated":true,"event":"note","comment":["\"x\""]},{"token_ids":[65],"finish_reason":"eos"}]`,
			[]string{`event note "x"`, `0.0 "A" 1 eos`}, 0},
		{"engine text", 1, []string{"b"}, `[{"token_ids":[1,2],"text":"abc","finish_reason":"stop"}]`,
			[]string{`0.0 "abc" 2 stop`}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			testkit.NoLeaks(t)
			d := testkit.Play(testkit.Items(tt.script))
			req := prepared(tt.n, "prompt")
			req.Requests[0].Stop.Stop = tt.stop
			var sink record
			if err := newPipeline(d).Run(t.Context(), req, &sink); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, sink.log); diff != "" {
				t.Errorf("deltas (-want +got):\n%s", diff)
			}
			call := d.Calls()[0]
			if got := call.Stops.Load(); got != tt.stops || !call.Closed.Load() {
				t.Errorf("told to stop %d times, want %d; closed: %t", got, tt.stops, call.Closed.Load())
			}
			if sink.started != 1 {
				t.Errorf("started %d times", sink.started)
			}
			if len(req.Requests) != 1 || req.Requests[0] != nil || req.Prompt != "" {
				t.Error("the prompt is still held")
			}
		})
	}
}

func TestRunFailures(t *testing.T) {
	tests := []struct {
		name, script string
		kind         fault.Kind
		message      string
		deltas       int
	}{
		{"unknown choice", `[{"token_ids":[65]},{"token_ids":[65],"index":1}]`, fault.BadGateway,
			"The worker answered with a choice that was not asked for", 1},
		{"engine error", `[{"token_ids":[65]},{"token_ids":[66],"finish_reason":{"error":"secret"}}]`, fault.Internal,
			"Internal server error", 1},
		{"engine error with a status", `[{"token_ids":[],"finish_reason":{"error":"{\"code\":429,\"message\":\"secret\"}"}}]`,
			fault.RateLimited, "Rate limit exceeded", 0},
		{"worker error", `[{"_dynamo_annotated":true,"event":"error","error":{"error_type":"WorkerOverloaded","message":"secret"}}]`,
			fault.Overloaded, "Service temporarily overloaded", 0},
		{"worker error for the client",
			`[{"_dynamo_annotated":true,"event":"error","error":{"class":"InvalidRequest","error_type":"InvalidRequest","message":"secret","public":{"type":"message","message":"too hot"}}}]`,
			fault.BadRequest, "too hot", 0},
		{"router queue",
			`[{"_dynamo_annotated":true,"event":"error","error":{"class":"DeadlineExceeded","error_type":"DeadlineExceeded","reason":"router.queue_deadline_exceeded","message":"secret"}}]`,
			fault.RateLimited, "Rate limit exceeded", 0},
		{"exception", `[{"token_ids":[65]},{"_raise":"secret"}]`, fault.Internal, "Internal server error", 1},
		{"lost", `[{"token_ids":[65]},{"_lost":true}]`, fault.Unavailable, "Service temporarily unavailable", 1},
		{"unreadable", `[{"token_ids":"x"}]`, fault.BadGateway, "Bad gateway", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var sink record
			d := testkit.Play(testkit.Items(tt.script))
			err := newPipeline(d).Run(t.Context(), prepared(1, "p"), &sink)
			f, ok := errors.AsType[*fault.Error](err)
			if !ok {
				t.Fatalf("not a fault: %v", err)
			}
			if f.Kind != tt.kind || f.Message != tt.message || len(sink.log) != tt.deltas {
				t.Errorf("got %v %q after %d deltas, want %v %q after %d", f.Kind, f.Message, len(sink.log), tt.kind,
					tt.message, tt.deltas)
			}
			if !d.Calls()[0].Closed.Load() {
				t.Error("the stream is still open")
			}
		})
	}
}

func TestRunDispatchFailure(t *testing.T) {
	want := fault.New(fault.Overloaded, "full")
	d := &testkit.Dispatcher{Script: func(*router.Call, []byte) (testkit.Script, error) { return nil, want }}
	var sink record
	if err := newPipeline(d).Run(t.Context(), prepared(1, "p"), &sink); !errors.Is(err, want) || sink.started != 0 {
		t.Errorf("got %v, started %d times", err, sink.started)
	}
}

func TestRunCancelled(t *testing.T) {
	testkit.NoLeaks(t)
	for _, prompts := range [][]string{{"a"}, {"a", "b", "c"}} {
		d := testkit.Play(testkit.Items(`[{"token_ids":[65]},{"_wait":true}]`))
		ctx, cancel := context.WithCancel(t.Context())
		sink := record{delta: func(*pipeline.Delta) error { cancel(); return nil }}
		err := newPipeline(d).Run(ctx, prepared(1, prompts...), &sink)
		if fault.KindOf(err) != fault.Cancelled {
			t.Errorf("%d prompts: got %v", len(prompts), err)
		}
		for i, c := range d.Calls() {
			if c.Stops.Load() != 1 || !c.Closed.Load() {
				t.Errorf("%d prompts: worker %d: told to stop %d times, closed: %t", len(prompts), i, c.Stops.Load(), c.Closed.Load())
			}
		}
	}
}

func TestRunSinkFails(t *testing.T) {
	want := errors.New("broken pipe")
	d := testkit.Play(testkit.Items(`[{"token_ids":[65]},{"token_ids":[66]}]`))
	sink := record{delta: func(*pipeline.Delta) error { return want }}
	if err := newPipeline(d).Run(t.Context(), prepared(1, "p"), &sink); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
	if n := d.Calls()[0].Stops.Load(); n != 1 {
		t.Errorf("told to stop %d times", n)
	}
}

func TestRunBatch(t *testing.T) {
	testkit.NoLeaks(t)
	d := &testkit.Dispatcher{Script: func(_ *router.Call, body []byte) (testkit.Script, error) {
		q, err := worker.DecodeRequest(worker.JSON, body)
		if err != nil {
			return nil, err
		}
		id := q.TokenIDs[0]
		return testkit.Items(fmt.Sprintf(`[{"token_ids":[%d],"index":1},{"token_ids":[%d],"index":0,"finish_reason":"stop"},
			{"token_ids":[],"index":1,"finish_reason":"length"}]`, id, id+32)), nil
	}}
	var sink record
	if err := newPipeline(d).Run(t.Context(), prepared(2, "A", "B", "C"), &sink); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, l := range sink.log {
		got[l] = true
	}
	for _, want := range []string{`0.1 "A" 1`, `0.0 "a" 1 stop`, `1.1 "B" 1`, `1.0 "b" 1 stop`, `2.1 "C" 1`, `2.0 "c" 1 stop`,
		`0.1 "" 0 length`, `2.1 "" 0 length`} {
		if !got[want] {
			t.Errorf("missing %s in %q", want, sink.log)
		}
	}
	if sink.started != 1 || len(sink.log) != 9 {
		t.Errorf("started %d times, %d deltas", sink.started, len(sink.log))
	}
	ids := map[string]bool{}
	for _, p := range d.Calls() {
		ids[p.Call.RequestID] = true
	}
	if !ids["id-0"] || !ids["id-1"] || !ids["id-2"] {
		t.Errorf("the workers know the prompts as %v", ids)
	}
}

func TestRunBatchFailsAsAWhole(t *testing.T) {
	testkit.NoLeaks(t)
	full := fault.New(fault.Overloaded, "full")
	d := &testkit.Dispatcher{Script: func(_ *router.Call, body []byte) (testkit.Script, error) {
		if strings.Contains(string(body), `"token_ids":[66]`) {
			return nil, full
		}
		return testkit.Items(`[{"_wait":true}]`), nil
	}}
	var sink record
	err := newPipeline(d).Run(t.Context(), prepared(1, "A", "B", "C"), &sink)
	if !errors.Is(err, full) || sink.started != 0 {
		t.Errorf("got %v, started %d times", err, sink.started)
	}
	for _, c := range d.Calls() {
		if !c.Closed.Load() || c.Stops.Load() != 1 {
			t.Error("a worker of the batch goes on")
		}
	}
}

func TestRunBatchFailsLater(t *testing.T) {
	testkit.NoLeaks(t)
	d := &testkit.Dispatcher{Script: func(_ *router.Call, body []byte) (testkit.Script, error) {
		if strings.Contains(string(body), `"token_ids":[66]`) {
			return testkit.Items(`[{"token_ids":[66]},{"_lost":true}]`), nil
		}
		return testkit.Items(`[{"token_ids":[65]},{"_wait":true}]`), nil
	}}
	var sink record
	err := newPipeline(d).Run(t.Context(), prepared(1, "A", "B", "C"), &sink)
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("got %v", err)
	}
	for _, c := range d.Calls() {
		if !c.Closed.Load() {
			t.Error("a worker of the batch goes on")
		}
	}
}

func TestRunRaw(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"choices":[]},{"x":1}]`))
	req := &pipeline.Prepared{Set: testkit.TextModel("m"), Model: "m", Choices: 1, Raw: []byte(`{"model":"m"}`)}
	var sink record
	if err := newPipeline(d).Run(t.Context(), req, &sink); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{`raw {"choices":[]}`, `raw {"x":1}`}, sink.log); diff != "" {
		t.Error(diff)
	}
	if call := d.Calls()[0]; !call.Call.Raw || string(call.Body) != `{"model":"m"}` {
		t.Errorf("raw: %t, body %s", call.Call.Raw, call.Body)
	}
}

func TestRunRawMsgpack(t *testing.T) {
	d := testkit.Play(nil)
	d.Codec = worker.Msgpack
	req := &pipeline.Prepared{Set: testkit.TextModel("m"), Model: "m", Choices: 1, Raw: []byte(`{"a":[1]}`)}
	if err := newPipeline(d).Run(t.Context(), req, &record{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("\x81\xa1a\x91\x01", string(d.Calls()[0].Body)); diff != "" {
		t.Error(diff)
	}
}

// TestRunFlushes checks that output is gathered while more has been received, and that the end is left to the sink.
func TestRunFlushes(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"token_ids":[65]},{"token_ids":[66]},{"token_ids":[67],"finish_reason":"stop"}]`))
	d.Batch = true
	var sink record
	if err := newPipeline(d).Run(t.Context(), prepared(1, "p"), &sink); err != nil {
		t.Fatal(err)
	}
	if sink.flushes != 1 {
		t.Errorf("flushed %d times", sink.flushes)
	}
}

func TestRunSpans(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	defer func() { _ = provider.Shutdown(context.Background()) }()
	d := testkit.Play(testkit.Items(`[{"token_ids":[65,66],"finish_reason":"stop"}]`))
	p := pipeline.New(pipeline.Options{Dispatcher: d, Tracer: provider.Tracer("t"), Log: slog.New(slog.DiscardHandler)})
	req := prepared(1, "p")
	req.Meta.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if err := p.Run(t.Context(), req, &record{}); err != nil {
		t.Fatal(err)
	}
	spans := map[string]sdktrace.ReadOnlySpan{}
	for _, s := range recorder.Ended() {
		spans[s.Name()] = s
	}
	dispatch, wait, stream := spans["router.dispatch"], spans["first_token"], spans["stream"]
	if dispatch == nil || wait == nil || stream == nil {
		t.Fatalf("spans: %v", spans)
	}
	if got := d.Calls()[0].Call.Traceparent; !strings.Contains(got, dispatch.SpanContext().SpanID().String()) {
		t.Errorf("the worker continues %s, not the dispatch span", got)
	}
	if wait.EndTime().After(stream.EndTime()) || !wait.Parent().Equal(stream.Parent()) {
		t.Errorf("first token: ended %v with parent %v, the stream %v and %v",
			wait.EndTime(), wait.Parent().SpanID(), stream.EndTime(), stream.Parent().SpanID())
	}
	if !hasAttr(stream.Attributes(), attribute.Int("gen_ai.usage.output_tokens", 2)) {
		t.Errorf("attributes: %v", stream.Attributes())
	}
}

func hasAttr(attrs []attribute.KeyValue, want attribute.KeyValue) bool {
	for _, a := range attrs {
		if a == want {
			return true
		}
	}
	return false
}

// TestRunTraceHeader checks that without tracing the client's trace goes on to the worker.
func TestRunTraceHeader(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"token_ids":[65],"finish_reason":"stop"}]`))
	req := prepared(1, "p")
	req.Meta.Traceparent, req.Meta.Tracestate, req.Meta.XRequestID = "tp", "ts", "x"
	pin := uint64(7)
	req.Pin = &pin
	if err := newPipeline(d).Run(t.Context(), req, &record{}); err != nil {
		t.Fatal(err)
	}
	c := d.Calls()[0].Call
	if c.Traceparent != "tp" || c.Tracestate != "ts" || c.XRequestID != "x" || *c.Pin != 7 || c.RequestID != "id" ||
		c.Endpoint.Name != "generate" || !c.Serves(1) {
		t.Errorf("call: %+v", c)
	}
}

// TestRunTime bounds the end of a cancelled batch.
func TestRunTime(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	d := testkit.Play(testkit.Items(`[{"_wait":true}]`))
	begin := time.Now()
	err := newPipeline(d).Run(ctx, prepared(1, "a", "b"), &record{})
	if fault.KindOf(err) != fault.Timeout || time.Since(begin) > time.Second {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
}
