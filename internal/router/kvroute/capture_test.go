package kvroute_test

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/kvhash"
	"github.com/portico-llm/portico/internal/router/kvroute"
	"github.com/portico-llm/portico/internal/testkit"
)

// TestRecordedTraffic replays what a real router and real workers said on NATS: the hashes of the prompts are those that
// the router told others and the worker stored, and the index finds a prompt where the worker has it.
func TestRecordedTraffic(t *testing.T) {
	var prompts [][]uint32
	var stored []worker.KVEvent
	var told [][]uint64
	replay(t, func(subject string, body []byte) {
		topic := subject[strings.LastIndexByte(subject, '.')+1:]
		if strings.HasPrefix(topic, "generate-") {
			_, request, _, err := worker.ParseFrame(body)
			if err != nil {
				t.Fatal(err)
			}
			q, err := worker.DecodeRequest(worker.Msgpack, request)
			if err != nil || q.Routing.DPRank == nil {
				t.Fatalf("request %+v, %v", q, err)
			}
			prompts = append(prompts, q.TokenIDs)
			return
		}
		var e worker.Event
		if worker.ParseEvent(body, &e) != nil {
			return
		}
		switch topic {
		case worker.TopicActiveSequences:
			if err := worker.ReadActiveSequences(e.Payload, func(a *worker.ActiveSequence) error {
				if a.Kind == worker.SequenceAdded {
					told = append(told, a.Blocks)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		case worker.TopicKVEvents:
			if err := worker.ReadKVEvents(worker.Msgpack, e.Payload, func(ev *worker.KVEvent) error {
				c := *ev
				c.Blocks = slices.Clone(ev.Blocks)
				stored = append(stored, c)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
	})
	if len(prompts) != 3 || len(told) != 3 || len(stored) != 10 {
		t.Fatalf("%d prompts, %d placed, %d stored", len(prompts), len(told), len(stored))
	}
	h := kvhash.New(kvhash.Seed("", ""))
	local, err := h.Local(nil, prompts[0], kvhash.Layout{BlockSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(told[0], kvhash.Sequence(nil, local)); diff != "" {
		t.Errorf("sequence hashes (-told +ours):\n%s", diff)
	}
	var blocks []uint64
	for _, b := range stored[0].Blocks {
		blocks = append(blocks, b.Tokens)
	}
	if diff := cmp.Diff(blocks, local); diff != "" {
		t.Errorf("block hashes (-stored +ours):\n%s", diff)
	}

	w := newWorld(t, kvroute.Options{})
	holder := newEngine(stored[0].Worker.WorkerID, 101)
	other := newEngine(holder.id-1, 102)
	for _, e := range []*engine{holder, other} {
		w.cards[e.id] = &worker.Card{DisplayName: "m", ModelInput: "Tokens", KVCacheBlockSize: 16}
		e.mute = true // what it holds is in the recording alone
	}
	w.publish(holder, other)
	w.send(holder, stored...)
	if id, ticket := w.choose(&router.Query{RequestID: "x", TokenIDs: prompts[0], Request: &worker.Request{}}); id != holder.id {
		t.Errorf("worker %d, and not the one that has the prompt", id)
	} else if got := w.r.Loads(endpoint)[1]; got.Prefill != int64(len(prompts[0])-11*16) || got.Blocks != 11 {
		t.Errorf("load %+v", got)
		ticket.Done()
	}
}

// replay calls f with every recorded message.
func replay(t *testing.T, f func(subject string, body []byte)) {
	t.Helper()
	type message struct{ Subject, Hex string }
	for h := range testkit.Records[message](t, "../../../api/worker/testdata/kv_nats.jsonl.gz") {
		body, err := hex.DecodeString(h.Hex)
		if err != nil {
			t.Fatal(err)
		}
		f(h.Subject, body)
	}
}
