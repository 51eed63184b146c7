package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/testkit"
)

// relay plays one script after the other: the first worker's, then that of the worker the request goes on at, and so
// forth. An entry "!" is a Dispatch that fails as it does without workers, "!full" one that finds all at capacity.
func relay(scripts ...string) *testkit.Dispatcher {
	n := 0
	return &testkit.Dispatcher{Script: func(call *router.Call, _ []byte) (testkit.Script, error) {
		script := scripts[min(n, len(scripts)-1)]
		n++
		switch script {
		case "!":
			return nil, fault.New(fault.Unavailable, "No workers available")
		case "!full":
			return nil, &fault.Error{Kind: fault.Overloaded, Message: "All workers are busy", RetryAfter: 1e9}
		case "!refused":
			call.Failed(7, fault.Lost(errors.New("refused"), "The worker can't be reached"))
			call.Failed(8, &fault.Error{Kind: fault.Overloaded, Origin: fault.FromTransport, Message: "full"})
			return testkit.Items(`[{"token_ids":[65]},{"_lost":true}]`), nil
		}
		return testkit.Items(script), nil
	}}
}

// movable is a pipeline that moves requests up to limit times.
func movable(d router.Dispatcher, m pipeline.Migration, reg prometheus.Registerer) *pipeline.Pipeline {
	return pipeline.New(pipeline.Options{
		Dispatcher: d, Migration: m, Registerer: reg, Log: slog.New(slog.DiscardHandler)})
}

// sent decodes what a worker was sent.
func sent(t *testing.T, p *testkit.Played) *worker.Request {
	t.Helper()
	q, err := worker.DecodeRequest(worker.JSON, p.Body)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestMigrate(t *testing.T) {
	const lost = `{"_lost":true}`
	failing := func(class, reason string) string {
		return fmt.Sprintf(`{"_dynamo_annotated":true,"event":"error","error":{"class":%q,"reason":%q,"message":"m"}}`, class, reason)
	}
	tests := []struct {
		name    string
		scripts []string
		change  func(*pipeline.Prepared)
		want    []string   // deltas
		kind    fault.Kind // of the failure, with message
		message string     // empty: none
		calls   int
	}{
		{name: "connection lost", scripts: []string{`[{"token_ids":[72]},` + lost + `]`, `[{"token_ids":[105],"finish_reason":"stop"}]`},
			want: []string{`0.0 "H" 1`, `0.0 "i" 1 stop`}, calls: 2},
		{name: "lost before the first output", scripts: []string{`[` + lost + `]`, `[{"token_ids":[105],"finish_reason":"stop"}]`},
			want: []string{`0.0 "i" 1 stop`}, calls: 2},
		{name: "half a character", scripts: []string{`[{"token_ids":[195]},` + lost + `]`, `[{"token_ids":[164],"finish_reason":"eos"}]`},
			want: []string{`0.0 "" 1`, `0.0 "ä" 1 eos`}, calls: 2},
		{name: "half a stop string", scripts: []string{`[{"token_ids":[72,108]},` + lost + `]`, `[{"token_ids":[111,33]}]`},
			change: func(p *pipeline.Prepared) { p.Requests[0].Stop.Stop = []string{"lo"} },
			want:   []string{`0.0 "H" 2`, `0.0 "" 1 stop at 0lo`}, calls: 2},
		{name: "engine shuts down", scripts: []string{`[{"token_ids":[72]},` + failing("Unavailable", "backend.engine_shutdown") + `]`,
			`[{"token_ids":[105],"finish_reason":"stop"}]`}, want: []string{`0.0 "H" 1`, `0.0 "i" 1 stop`}, calls: 2},
		{name: "worker at capacity", scripts: []string{`[` + failing("CapacityExhausted", "capacity.worker_overloaded") + `]`,
			`[{"token_ids":[105],"finish_reason":"stop"}]`}, want: []string{`0.0 "i" 1 stop`}, calls: 2},
		{name: "everything at capacity", scripts: []string{`[` + failing("CapacityExhausted", "capacity.exhausted") + `]`},
			kind: fault.Overloaded, message: "Service temporarily overloaded", calls: 1},
		{name: "cancelled by the backend", scripts: []string{`[{"token_ids":[72]},` + failing("Cancelled", "backend.cancelled") + `]`},
			want: []string{`0.0 "H" 1`}, kind: fault.Cancelled, message: "Request cancelled", calls: 1},
		{name: "a barred cause", scripts: []string{`[{"_dynamo_annotated":true,"event":"error","error":{"class":"Unavailable",
			"reason":"backend.disconnected","message":"m","caused_by":{"class":"Cancelled","reason":"request.cancelled","message":"c"}}}]`},
			kind: fault.Unavailable, message: "Service temporarily unavailable", calls: 1},
		{name: "an exception", scripts: []string{`[{"token_ids":[72]},{"_raise":"x"}]`},
			want: []string{`0.0 "H" 1`}, kind: fault.Internal, message: "Internal server error", calls: 1},
		{name: "lost behind the finish", scripts: []string{`[{"token_ids":[72],"finish_reason":"stop"},` + lost + `]`},
			want: []string{`0.0 "H" 1 stop`}, calls: 1},
		{name: "lost behind the last token", scripts: []string{`[{"token_ids":[72]},{"token_ids":[195]},` + lost + `]`},
			change: func(p *pipeline.Prepared) { p.Requests[0].Stop.MaxTokens = new(uint32(2)) },
			want:   []string{`0.0 "H" 1`, `0.0 "" 1`, `0.0 "�" 0 length`}, calls: 1},
		{name: "lost with the context full", scripts: []string{`[{"token_ids":[72]},{"token_ids":[73]},` + lost + `]`},
			change: func(p *pipeline.Prepared) {
				set, card := *p.Set, *p.Set.Card
				n := uint32(len(p.Requests[0].TokenIDs) + 2)
				card.ContextLength, card.RuntimeConfig.ContextLength = &n, &n
				set.Card, p.Set = &card, &set
			},
			want: []string{`0.0 "H" 1`, `0.0 "I" 1`, `0.0 "" 0 length`}, calls: 1},
		{name: "limit", scripts: []string{`[{"token_ids":[72]},` + lost + `]`},
			want: []string{`0.0 "H" 1`, `0.0 "H" 1`, `0.0 "H" 1`}, kind: fault.Unavailable, message: "Service temporarily unavailable", calls: 3},
		{name: "no other", scripts: []string{`[{"token_ids":[72]},` + lost + `]`, `!`}, want: []string{`0.0 "H" 1`},
			kind: fault.Unavailable, message: "Service temporarily unavailable, and no other worker is left to go on", calls: 1},
		{name: "others full", scripts: []string{`[{"token_ids":[72]},` + lost + `]`, `!full`}, want: []string{`0.0 "H" 1`},
			kind: fault.Overloaded, message: "All workers are busy", calls: 1},
		{name: "none but the one at capacity", scripts: []string{`[` + failing("CapacityExhausted", "capacity.worker_overloaded") + `]`, `!`},
			kind: fault.Overloaded, message: "Service temporarily overloaded", calls: 1},
		{name: "the worker's text", scripts: []string{`[{"token_ids":[72],"text":"H"},` + lost + `]`},
			want: []string{`0.0 "H" 1`}, kind: fault.Unavailable, message: "Service temporarily unavailable; the answer can't go " +
				"on at another worker: the worker makes the text itself", calls: 1},
		{name: "too long", scripts: []string{`[{"token_ids":[72]},{"token_ids":[72,72,72]},` + lost + `]`},
			want: []string{`0.0 "H" 1`, `0.0 "HHH" 3`}, kind: fault.Unavailable, message: "Service temporarily unavailable; the " +
				"answer can't go on at another worker: it has become too long", calls: 1},
		{name: "annotations come once", scripts: []string{`[{"_dynamo_annotated":true,"event":"note","comment":["1"]},` + lost + `]`,
			`[{"token_ids":[105],"finish_reason":"stop"}]`}, want: []string{`event note 1`, `0.0 "i" 1 stop`}, calls: 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			testkit.NoLeaks(t)
			d := relay(tt.scripts...)
			req := prepared(1, "prompt")
			if tt.change != nil {
				tt.change(req)
			}
			var sink record
			err := movable(d, pipeline.Migration{Limit: 2, MaxSeqLen: 9}, nil).Run(t.Context(), req, &sink)
			checkFailure(t, err, tt.kind, tt.message)
			if diff := cmp.Diff(tt.want, sink.log); diff != "" {
				t.Errorf("deltas (-want +got):\n%s", diff)
			}
			if sink.started != 1 || len(d.Calls()) != tt.calls {
				t.Errorf("started %d times, %d calls, want %d", sink.started, len(d.Calls()), tt.calls)
			}
			for i, c := range d.Calls() {
				if !c.Closed.Load() || c.Stops.Load() > 1 || c.Call.RequestID != "id" {
					t.Errorf("call %d as %s: closed %t, told to stop %d times", i, c.Call.RequestID, c.Closed.Load(), c.Stops.Load())
				}
			}
		})
	}
}

// checkFailure compares a failure with what is expected; an empty message expects none.
func checkFailure(t *testing.T, err error, kind fault.Kind, message string) {
	t.Helper()
	if message == "" {
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Kind != kind || f.Message != message {
		t.Errorf("got %v, want %v %q", err, kind, message)
	}
}

// TestMigrateRequest looks at what the next worker is asked.
func TestMigrateRequest(t *testing.T) {
	d := relay(`[{"token_ids":[65,66]},{"token_ids":[67]},{"_lost":true}]`, `[{"token_ids":[68]},{"_lost":true}]`,
		`[{"token_ids":[69],"finish_reason":"length"}]`)
	req := prepared(1, "PQ")
	q := req.Requests[0]
	q.Stop.MaxTokens, q.Stop.MinTokens, q.Stop.Stop = new(uint32(9)), new(uint32(3)), []string{"zz"}
	q.Sampling.Temperature, q.ExtraArgs = new(0.5), []byte(`{"a":1}`)
	q.Annotations, q.Output.PromptLogprobs = []string{"x"}, new(uint32(1))
	if err := movable(d, pipeline.Migration{Limit: 3}, nil).Run(t.Context(), req, &record{}); err != nil {
		t.Fatal(err)
	}
	calls := d.Calls()
	want := *sent(t, calls[0])
	want.Annotations, want.Output.PromptLogprobs = []string{}, nil
	for i, more := range [][]uint32{nil, {65, 66, 67}, {65, 66, 67, 68}} {
		got := sent(t, calls[i])
		if i == 0 {
			continue
		}
		want.TokenIDs = slices.Concat([]uint32{'P', 'Q'}, more)
		want.Stop.MaxTokens, want.Stop.MinTokens = new(uint32(9-len(more))), new(uint32(0))
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Errorf("request %d (-want +got):\n%s", i, diff)
		}
		if diff := cmp.Diff(want.TokenIDs, calls[i].Call.TokenIDs); diff != "" {
			t.Errorf("call %d (-want +got):\n%s", i, diff)
		}
		if got := calls[i].Call.Exclude; len(got) != i || got[0] != 1 {
			t.Errorf("call %d excludes %v", i, got)
		}
	}
}

// TestMigrateBlocked runs requests that can't be continued: they fail once something has come, and not before.
func TestMigrateBlocked(t *testing.T) {
	tests := []struct {
		name   string
		change func(*pipeline.Prepared)
		never  bool // not even a restart
	}{
		{"guided", func(p *pipeline.Prepared) { p.Requests[0].Sampling.GuidedDecoding = []byte(`{"json":{}}`) }, false},
		{"choices", func(p *pipeline.Prepared) { p.Choices = 2 }, false},
		{"best of", func(p *pipeline.Prepared) { p.Requests[0].Sampling.BestOf = new(uint8(2)) }, false},
		{"presence", func(p *pipeline.Prepared) { p.Requests[0].Sampling.PresencePenalty = new(0.5) }, false},
		{"frequency", func(p *pipeline.Prepared) { p.Requests[0].Sampling.FrequencyPenalty = new(-0.5) }, false},
		{"repetition", func(p *pipeline.Prepared) { p.Requests[0].Sampling.RepetitionPenalty = new(1.1) }, false},
		{"phrases", func(p *pipeline.Prepared) {
			p.Requests[0].ExtraArgs = []byte(`{"sampling_options":{"bad_words_token_ids":[[5],[6,7]]}}`)
		}, false},
		{"thinking", func(p *pipeline.Prepared) { p.Requests[0].Stop.MaxThinkingTokens = new(uint32(5)) }, false},
		{"embeddings", func(p *pipeline.Prepared) { p.Requests[0].PromptEmbeds = "AAAA" }, false},
		{"large media", func(p *pipeline.Prepared) {
			p.Requests[0].MultiModalData = []byte(`{"image_url":["` + strings.Repeat("x", 2<<20) + `"]}`)
		}, false},
		{"text worker", func(p *pipeline.Prepared) {
			*p = pipeline.Prepared{Set: testkit.TextModel("m"), Model: "m", Choices: 1, Raw: []byte(`{}`), Meta: p.Meta}
		}, false},
		{"pinned", func(p *pipeline.Prepared) { p.Pin = new(uint64(1)) }, true},
		{"long prompt", func(p *pipeline.Prepared) { p.Requests[0].TokenIDs = make([]uint32, 101) }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, first := range []string{`[{"_lost":true}]`, `[{"token_ids":[72]},{"_lost":true}]`} {
				d := relay(first, `[{"token_ids":[105],"finish_reason":"stop"}]`)
				req := prepared(1, "prompt")
				tt.change(req)
				err := movable(d, pipeline.Migration{Limit: 2, MaxSeqLen: 100}, nil).Run(t.Context(), req, &record{})
				if restart := !tt.never && !strings.Contains(first, "token"); restart {
					if err != nil || len(d.Calls()) != 2 {
						t.Errorf("not begun anew: %v after %d calls", err, len(d.Calls()))
					} else if !bytes.Equal(d.Calls()[0].Body, d.Calls()[1].Body) {
						t.Error("begun anew with another body")
					}
				} else if fault.KindOf(err) != fault.Unavailable || len(d.Calls()) != 1 {
					t.Errorf("got %v after %d calls", err, len(d.Calls()))
				} else if f := fault.From(err); !tt.never && !strings.Contains(f.Message, "can't go on at another worker: ") {
					t.Errorf("the client isn't told why: %q", f.Message)
				}
			}
		})
	}
}

// TestMigrateAllowed runs requests that look like those above, and whose answers do go on elsewhere.
func TestMigrateAllowed(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*worker.Request)
		m      pipeline.Migration
	}{
		"no penalties":       {change: func(q *worker.Request) { q.Sampling.PresencePenalty, q.Sampling.RepetitionPenalty = new(0.0), new(1.0) }},
		"counted in prompts": {func(q *worker.Request) { q.Sampling.RepetitionPenalty = new(1.1) }, pipeline.Migration{Repetition: true}},
		"seed":               {change: func(q *worker.Request) { q.Sampling.Seed = new(int64(5)) }},
		"banned tokens": {change: func(q *worker.Request) {
			q.ExtraArgs = []byte(`{"sampling_options":{"bad_words_token_ids":[[5],6],"detokenize":true}}`)
		}},
		"a salt": {change: func(q *worker.Request) { q.ExtraArgs = []byte(`{"nvext":{"cache_salt":"bad_words_token_ids"}}`) }},
	} {
		d := relay(`[{"token_ids":[72]},{"_lost":true}]`, `[{"token_ids":[105],"finish_reason":"stop"}]`)
		req := prepared(1, "prompt")
		tc.change(req.Requests[0])
		tc.m.Limit = 1
		if err := movable(d, tc.m, nil).Run(t.Context(), req, &record{}); err != nil || len(d.Calls()) != 2 {
			t.Errorf("%s: %v after %d calls", name, err, len(d.Calls()))
		}
	}
}

func TestMigrateUsage(t *testing.T) {
	d := relay(`[{"token_ids":[65,66]},{"_lost":true}]`,
		`[{"token_ids":[67],"finish_reason":"stop"},{"token_ids":[],"completion_usage":{"prompt_tokens":8,"completion_tokens":1,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":8}}}]`)
	var got worker.Usage
	sink := record{delta: func(d *pipeline.Delta) error {
		if d.Usage != nil {
			got = *d.Usage
		}
		return nil
	}}
	if err := movable(d, pipeline.Migration{Limit: 1}, nil).Run(t.Context(), prepared(1, "prompt"), &sink); err != nil {
		t.Fatal(err)
	}
	want := worker.Usage{PromptTokens: 6, CompletionTokens: 3, TotalTokens: 9, CachedTokens: new(6)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
}

// TestMigrateBatch loses the worker of each prompt of a batch at another place.
func TestMigrateBatch(t *testing.T) {
	testkit.NoLeaks(t)
	d := &testkit.Dispatcher{Script: func(_ *router.Call, body []byte) (testkit.Script, error) {
		q, err := worker.DecodeRequest(worker.JSON, body)
		if err != nil {
			return nil, err
		}
		id := q.TokenIDs[0]
		if len(q.TokenIDs) < 3 {
			return testkit.Items(fmt.Sprintf(`[{"token_ids":[%d]},{"_lost":true}]`, id)), nil
		}
		return testkit.Items(fmt.Sprintf(`[{"token_ids":[%d],"finish_reason":"stop"}]`, id+32)), nil
	}}
	text := map[int]string{}
	sink := record{delta: func(d *pipeline.Delta) error { text[d.Prompt] += string(d.Text); return nil }}
	if err := movable(d, pipeline.Migration{Limit: 3}, nil).Run(t.Context(), prepared(1, "A", "BB", "CCC"), &sink); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[int]string{0: "AAa", 1: "Bb", 2: "c"}, text); diff != "" {
		t.Error(diff)
	}
}

// TestMigrateCancelled ends the request while it is on its way to another worker.
func TestMigrateCancelled(t *testing.T) {
	testkit.NoLeaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	d := &testkit.Dispatcher{Script: func(*router.Call, []byte) (testkit.Script, error) {
		if n++; n == 2 {
			cancel()
			return nil, ctx.Err()
		}
		return testkit.Items(`[{"token_ids":[65]},{"_lost":true}]`), nil
	}}
	reg := prometheus.NewRegistry()
	err := movable(d, pipeline.Migration{Limit: 3}, reg).Run(ctx, prepared(1, "p"), &record{})
	if fault.KindOf(err) != fault.Cancelled || n != 2 || d.Calls()[0].Stops.Load() != 1 {
		t.Errorf("got %v after %d calls, the first told to stop %d times", err, n, d.Calls()[0].Stops.Load())
	}
	checkMoves(t, reg, `{migration_type="ongoing_request",model="m",outcome="cancelled"} 1`)
}

// checkMoves compares the counter of moves with its series.
func checkMoves(t *testing.T, reg *prometheus.Registry, series ...string) {
	t.Helper()
	const name = "dynamo_frontend_model_migration_total"
	want := "# HELP " + name + " Requests sent to another worker because theirs was lost\n# TYPE " + name + " counter\n" +
		name + strings.Join(series, "\n"+name) + "\n"
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), name); err != nil {
		t.Error(err)
	}
}

func TestMigrateMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	d := relay("!refused", "!refused", `[{"token_ids":[66],"finish_reason":"stop"}]`)
	p := movable(d, pipeline.Migration{Limit: 2, MaxSeqLen: 4}, reg)
	if err := p.Run(t.Context(), prepared(1, "p"), &record{}); err != nil {
		t.Fatal(err)
	}
	// Those at capacity aren't excluded: they may have room by now.
	if diff := cmp.Diff([]uint64{7, 1, 7, 1}, d.Calls()[2].Call.Exclude); diff != "" {
		t.Errorf("excluded:\n%s", diff)
	}
	checkMoves(t, reg, `{migration_type="new_request",model="m",outcome="failure"} 1`,
		`{migration_type="new_request",model="m",outcome="success"} 1`,
		`{migration_type="ongoing_request",model="m",outcome="success"} 2`)
	if n := testutil.CollectAndCount(reg, "dynamo_frontend_model_migration_duration_seconds"); n != 1 {
		t.Errorf("%d series of durations", n)
	}
	_ = p.Run(t.Context(), prepared(1, "too long"), &record{})
	const name = "dynamo_frontend_model_migration_max_seq_len_exceeded_total"
	if err := testutil.GatherAndCompare(reg, strings.NewReader("# HELP "+name+
		" Requests that became too long to go on at another worker\n# TYPE "+name+" counter\n"+name+`{model="m"} 1`+"\n"), name); err != nil {
		t.Error(err)
	}
}

// silent is a sink that takes everything.
type silent struct{}

func (silent) Start(*pipeline.Prepared) error { return nil }
func (silent) Delta(*pipeline.Delta) error    { return nil }
func (silent) Flush() error                   { return nil }

// BenchmarkMigratable shows what it costs to be ready for a move: an answer of 256 tokens, with and without.
func BenchmarkMigratable(b *testing.B) {
	var script strings.Builder
	script.WriteString("[")
	for range 255 {
		script.WriteString(`{"token_ids":[65]},`)
	}
	script.WriteString(`{"token_ids":[65],"finish_reason":"length"}]`)
	items := testkit.Items(script.String())
	for _, limit := range []int{0, 3} {
		b.Run(fmt.Sprintf("limit %d", limit), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p := movable(testkit.Play(items), pipeline.Migration{Limit: limit}, nil)
				if err := p.Run(b.Context(), prepared(1, "prompt"), silent{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestMigrateLink hands the trace of the lost worker's part to the next, once, and nothing that isn't one.
func TestMigrateLink(t *testing.T) {
	const good = `{"trace_id":"0af7651916cd43dd8448eb211c80319c","span_id":"b7ad6b7169203331"}`
	for name, tc := range map[string]struct{ said, want string }{
		"a link":   {`{"span_id":"b7ad6b7169203331","trace_id":"0af7651916cd43dd8448eb211c80319c","more":1}`, good},
		"none":     {`null`, ""},
		"no trace": {`{"span_id":"b7ad6b7169203331"}`, ""},
		"all zero": {`{"trace_id":"00000000000000000000000000000000","span_id":"b7ad6b7169203331"}`, ""},
		"nonsense": {`"x"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := relay(`[{"token_ids":[65],"worker_trace_link":`+tc.said+`},{"token_ids":[66]},{"_lost":true}]`,
				`[{"token_ids":[67]},{"_lost":true}]`, `[{"token_ids":[68],"finish_reason":"stop"}]`)
			if err := movable(d, pipeline.Migration{Limit: 3}, nil).Run(t.Context(), prepared(1, "P"), &record{}); err != nil {
				t.Fatal(err)
			}
			for i, want := range []string{"", tc.want, ""} {
				if got := string(sent(t, d.Calls()[i]).MigrationLink); got != want {
					t.Errorf("worker %d is told %q, want %q", i, got, want)
				}
			}
		})
	}
}
