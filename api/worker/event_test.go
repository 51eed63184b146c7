package worker_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
)

// heard is one line of the recording of two routers and two workers.
type heard struct {
	Subject string          `json:"subject"`
	Hex     string          `json:"hex"`
	Key     string          `json:"key"`
	Value   json.RawMessage `json:"value"`
}

func kvCapture(tb testing.TB) (messages []heard, records []heard) {
	tb.Helper()
	for line := range bytes.Lines(capture(tb, "kv_nats.jsonl")) {
		var h heard
		if err := json.Unmarshal(line, &h); err != nil {
			tb.Fatal(err)
		}
		if h.Key != "" {
			records = append(records, h)
		} else {
			messages = append(messages, h)
		}
	}
	return messages, records
}

// TestEventsOfWorkers reads what real workers and routers published, and writes it again byte for byte where nothing
// in it is left out.
func TestEventsOfWorkers(t *testing.T) {
	messages, _ := kvCapture(t)
	count := map[string]int{}
	for _, h := range messages {
		topic := h.Subject[strings.LastIndexByte(h.Subject, '.')+1:]
		if !strings.Contains("kv-events kv_metrics active_sequences_events forward-pass-metrics", topic) {
			continue
		}
		body, err := hex.DecodeString(h.Hex)
		if err != nil {
			t.Fatal(err)
		}
		var e worker.Event
		if err := worker.ParseEvent(body, &e); err != nil || e.Topic != topic {
			t.Fatalf("%s: %v, topic %q", h.Subject, err, e.Topic)
		}
		if again := worker.AppendEvent(nil, &e); !bytes.Equal(again, body) {
			t.Errorf("envelope %x\nbecomes  %x", body, again)
		}
		count[topic]++
		switch topic {
		case worker.TopicKVMetrics:
			k, err := worker.ParseKVMetrics(e.Payload)
			if err != nil || k.Worker.WorkerID == 0 || k.KVUsedBlocks == nil || k.ActiveDecodeBlocks != nil {
				t.Errorf("metrics %+v, %v", k, err)
			}
			if again := worker.AppendKVMetrics(nil, &k); !bytes.Equal(again, e.Payload) {
				t.Errorf("metrics %x\nbecome  %x", e.Payload, again)
			}
		case worker.TopicActiveSequences:
			a, err := sequence(e.Payload)
			if err != nil || a.Kind == worker.SequenceUnknown || a.RequestID == "" {
				t.Errorf("sequence %+v, %v", a, err)
			}
			if again := worker.AppendActiveSequence(nil, &a); !bytes.Equal(again, e.Payload) {
				t.Errorf("sequence %x\nbecomes  %x", e.Payload, again)
			}
		case worker.TopicKVEvents:
			readKVEvents(t, e.Payload)
		}
	}
	want := map[string]int{"kv-events": 10, "kv_metrics": 14, "active_sequences_events": 12, "forward-pass-metrics": 2}
	if diff := cmp.Diff(want, count); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

// sequence reads a payload of one event.
func sequence(payload []byte) (out worker.ActiveSequence, err error) {
	err = worker.ReadActiveSequences(payload, func(a *worker.ActiveSequence) error { out = *a; return nil })
	return out, err
}

// TestSequenceBatch reads what a busy router publishes over ZeroMQ: several events in one message.
func TestSequenceBatch(t *testing.T) {
	batch := worker.AppendActiveSequences(nil,
		&worker.ActiveSequence{RequestID: "a", Kind: worker.SequencePrefilled, Router: 7},
		&worker.ActiveSequence{RequestID: "b", Kind: worker.SequenceFreed, Router: 7})
	var got []string
	err := worker.ReadActiveSequences(batch, func(a *worker.ActiveSequence) error {
		got = append(got, fmt.Sprintf("%s %d %d", a.RequestID, a.Kind, a.Router))
		return nil
	})
	if diff := cmp.Diff([]string{"a 2 7", "b 3 7"}, got); diff != "" || err != nil {
		t.Errorf("%v, events (-want +got):\n%s", err, diff)
	}
	stop := errors.New("enough")
	if err := worker.ReadActiveSequences(batch, func(*worker.ActiveSequence) error { return stop }); err != stop {
		t.Errorf("error %v", err)
	}
}

// TestSessionBinding reads what Dynamo's router published, and writes the same bytes.
func TestSessionBinding(t *testing.T) {
	const published = "85aa73657373696f6e5f6964a6736573732d32a9776f726b65725f6964cf0bae0dfb6aa912cba764705f72616e6b00" +
		"a873657175656e6365cf18ecf5ea4c15afbda97772697465725f6964cf0a98125f4746c2ca"
	payload, err := hex.DecodeString(published)
	if err != nil {
		t.Fatal(err)
	}
	b, err := worker.ParseSessionBinding(payload)
	want := worker.SessionBinding{Session: "sess-2", WorkerID: 841625553842279115, DPRank: new(uint32(0)),
		Sequence: 1796080738061627325, Writer: 763380337266311882}
	if diff := cmp.Diff(want, b); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got := hex.EncodeToString(worker.AppendSessionBinding(nil, &b)); got != published {
		t.Errorf("written %s, published %s", got, published)
	}
	later := b
	later.Sequence++
	later.Writer = 0
	if !later.Later(&b) || b.Later(&later) || b.Later(&b) {
		t.Error("the order of changes")
	}
}

func readKVEvents(t *testing.T, payload []byte) {
	t.Helper()
	var first, again []*worker.KVEvent
	keep := func(to *[]*worker.KVEvent) func(*worker.KVEvent) error {
		return func(e *worker.KVEvent) error {
			c := *e
			c.Blocks, c.Hashes = slices.Clone(e.Blocks), slices.Clone(e.Hashes)
			*to = append(*to, &c)
			return nil
		}
	}
	if err := worker.ReadKVEvents(worker.Msgpack, payload, keep(&first)); err != nil || len(first) == 0 {
		t.Fatalf("%d events, %v", len(first), err)
	}
	for _, e := range first {
		if e.Tier != "device" || e.ID == 0 || e.Kind != worker.KVStored || len(e.Blocks) == 0 || e.Worker.WorkerID == 0 {
			t.Errorf("event %+v", e)
		}
	}
	if err := worker.ReadKVEvents(worker.Msgpack, worker.AppendKVEvents(nil, first...), keep(&again)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("events written and read (-want +got):\n%s", diff)
	}
}

// TestKVQuery writes the query that a real router sent, byte for byte.
func TestKVQuery(t *testing.T) {
	messages, _ := kvCapture(t)
	n := 0
	for _, h := range messages {
		if !strings.Contains(h.Subject, "worker_kv_query_source_") {
			continue
		}
		n++
		envelope, err := hex.DecodeString(h.Hex)
		if err != nil {
			t.Fatal(err)
		}
		_, body, _, err := worker.ParseFrame(envelope)
		if err != nil {
			t.Fatal(err)
		}
		q := worker.KVQuery{Worker: worker.WorkerRank{WorkerID: 7587899260174522431}}
		if strings.HasSuffix(h.Subject, "43") {
			q.Worker.WorkerID = 7587899260174522435
		}
		got, err := q.Append(nil, worker.Msgpack)
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("query %x, %v\nwant  %x", got, err, body)
		}
	}
	if n != 2 {
		t.Errorf("%d queries in the recording", n)
	}
}

func TestKVAnswer(t *testing.T) {
	for _, tc := range []struct {
		name, json string
		want       worker.KVAnswer
		ids        []uint64
		dump       bool
	}{
		{"events", `{"Events":{"events":[{"worker_id":1,"event":{"event_id":7,"data":"cleared","dp_rank":2}}],"last_event_id":9}}`,
			worker.KVAnswer{Kind: "Events", LastID: 9}, []uint64{7}, false},
		{"dump", `{"TreeDump":{"last_event_id":18446744073709551615,"events":[{"worker_id":1,"event":{"event_id":1,` +
			`"data":{"stored":{"parent_hash":null,"blocks":[{"block_hash":5,"tokens_hash":6}]}},"dp_rank":0}},` +
			`{"worker_id":1,"event":{"event_id":2,"data":{"removed":{"block_hashes":[5]}},"dp_rank":0}}],"reset_scope":"x"}}`,
			worker.KVAnswer{Kind: "TreeDump", LastID: 1<<64 - 1}, []uint64{1, 2}, true},
		{"failed", `{"TreeDumpFailed":{"last_event_id":3,"message":"no"}}`,
			worker.KVAnswer{Kind: "TreeDumpFailed", LastID: 3, Message: "no"}, nil, false},
		{"too new", `{"TooNew":{"requested_start":1,"requested_end":null,"newest_available":0}}`,
			worker.KVAnswer{Kind: "TooNew"}, nil, false},
		{"error", `{"Error":"text"}`, worker.KVAnswer{Kind: "Error", Message: "text"}, nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			packed, err := worker.AppendJSONAsMsgpack(nil, []byte(tc.json))
			if err != nil {
				t.Fatal(err)
			}
			for codec, body := range map[worker.Codec][]byte{worker.JSON: []byte(tc.json), worker.Msgpack: packed} {
				var ids []uint64
				got, err := worker.ReadKVAnswer(codec, body, func(e *worker.KVEvent, dump bool) error {
					ids = append(ids, e.ID)
					if dump != tc.dump {
						t.Errorf("dump %t", dump)
					}
					return nil
				})
				if err != nil || !slices.Equal(ids, tc.ids) {
					t.Errorf("codec %v: events %v, %v", codec, ids, err)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("codec %v (-want +got):\n%s", codec, diff)
				}
			}
		})
	}
	stop := errors.New("enough")
	body := []byte(`{"Events":{"events":[{"event":{"data":"cleared"}}]}}`)
	if _, err := worker.ReadKVAnswer(worker.JSON, body, func(*worker.KVEvent, bool) error { return stop }); err != stop {
		t.Errorf("error %v", err)
	}
}

// TestBareItem takes an answer that comes without an envelope, in both codecs.
func TestBareItem(t *testing.T) {
	text := `{"data":{"TreeDump":{"events":[],"last_event_id":7}},"complete_final":false}`
	packed, err := worker.AppendJSONAsMsgpack(nil, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for codec, body := range map[worker.Codec][]byte{worker.JSON: []byte(text), worker.Msgpack: packed} {
		var it worker.Item
		if err := worker.DecodeBareItem(codec, body, &it); err != nil || !it.HasData || it.Final ||
			string(it.Raw) != `{"TreeDump":{"events":[],"last_event_id":7}}` {
			t.Errorf("codec %v: %v, item %+v, raw %s", codec, err, it, it.Raw)
		}
		if err := worker.DecodeRawItem(codec, body, &it); err != nil || it.HasData {
			t.Errorf("codec %v: %v, item %+v: an envelope was found", codec, err, it)
		}
	}
}

// TestPublisherRecords reads the records of real publishers; each writes the key it stands under.
func TestPublisherRecords(t *testing.T) {
	_, records := kvCapture(t)
	channels, sources := 0, 0
	for _, h := range records {
		var path string
		var again []byte
		var err error
		if strings.HasPrefix(h.Key, "v1/event_channels/") {
			c, e := worker.ParseEventChannel(h.Value)
			if e != nil {
				t.Fatal(e)
			}
			channels++
			if got := c.Scope.Subject(); got != c.Transport.SubjectPrefix {
				t.Errorf("subject %q, announced %q", got, c.Transport.SubjectPrefix)
			}
			path = "v1/event_channels/" + c.Path()
			again, err = c.Record()
		} else {
			s, e := worker.ParseEventSource(h.Value)
			if e != nil {
				t.Fatal(e)
			}
			sources++
			if s.Metadata.Worker.WorkerID != s.Metadata.Recovery.InstanceID {
				t.Errorf("source %+v", s)
			}
			path = "v1/event_sources/" + s.Path()
			again, err = s.Record()
		}
		if err != nil || path != h.Key {
			t.Errorf("path %s of %s, %v", path, h.Key, err)
		}
		var want, got any
		if errors.Join(json.Unmarshal(h.Value, &want), json.Unmarshal(again, &got)) != nil || !cmp.Equal(want, got) {
			t.Errorf("record %s\nbecomes %s", h.Value, again)
		}
	}
	if channels != 9 || sources != 2 {
		t.Errorf("%d channels, %d sources", channels, sources)
	}
	odd := worker.EventChannel{Scope: worker.EventScope{Kind: worker.ScopeComponent, ID: worker.EndpointID{Namespace: "a.b", Component: "c/d"}}, Topic: "t t", Publisher: 31}
	if got := odd.Path(); got != "namespace/a%2Eb/component/c%2Fd/topic/t%20t/1f" {
		t.Errorf("path %s", got)
	}
	for _, bad := range []string{`{"type":"Endpoint"}`, `{"scope":{"kind":"galaxy"},"topic":"t"}`, `{"topic":"t"}`, `[]`, `{"scope":{"kind":"namespace","name":"n"}}`} {
		if _, err := worker.ParseEventChannel([]byte(bad)); err == nil {
			t.Errorf("channel %s is read", bad)
		}
		if _, err := worker.ParseEventSource([]byte(bad)); err == nil {
			t.Errorf("source %s is read", bad)
		}
	}
}

// FuzzEvent reads what anybody may publish: nothing may fail otherwise than by an error, and what was read is written
// and read again to the same.
func FuzzEvent(f *testing.F) {
	messages, _ := kvCapture(f)
	for _, h := range messages {
		body, err := hex.DecodeString(h.Hex)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
		var e worker.Event
		if worker.ParseEvent(body, &e) == nil {
			f.Add(e.Payload)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var e, again worker.Event
		if worker.ParseEvent(b, &e) == nil {
			if err := worker.ParseEvent(worker.AppendEvent(nil, &e), &again); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(e, again, cmpEmpty); diff != "" {
				t.Fatal(diff)
			}
		}
		worker.ReadActiveSequences(b, func(a *worker.ActiveSequence) error {
			if a.Kind == worker.SequenceUnknown {
				return nil
			}
			if _, err := sequence(worker.AppendActiveSequence(nil, a)); err != nil {
				t.Fatal(err)
			}
			return nil
		})
		if s, err := worker.ParseSessionBinding(b); err == nil {
			again, err := worker.ParseSessionBinding(worker.AppendSessionBinding(nil, &s))
			if diff := cmp.Diff(s, again); err != nil || diff != "" {
				t.Fatal(err, diff)
			}
		}
		worker.ParseKVMetrics(b)
		worker.ReadKVEvents(worker.Msgpack, b, func(*worker.KVEvent) error { return nil })
		worker.ReadKVEvents(worker.JSON, b, func(*worker.KVEvent) error { return nil })
		worker.ReadKVAnswer(worker.Msgpack, b, func(*worker.KVEvent, bool) error { return nil })
		worker.ReadKVAnswer(worker.JSON, b, func(*worker.KVEvent, bool) error { return nil })
		worker.ParseEventChannel(b)
		worker.ParseEventSource(b)
	})
}

// cmpEmpty takes nil and empty bytes for the same.
var cmpEmpty = cmp.Comparer(func(a, b []byte) bool { return bytes.Equal(a, b) })
