package simworker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/simworker"
)

// kept is an Output that keeps whole items.
type kept struct{ items []worker.Item }

func (k *kept) Send(it *worker.Item) error { k.items = append(k.items, *it); return nil }
func (k *kept) SendJSON(b []byte) error    { return fmt.Errorf("JSON %s", b) }
func (k *kept) params() (p json.RawMessage) {
	return k.items[len(k.items)-1].Output.DisaggregatedParams
}

// decode sends a request to a decode worker's engine.
func decode(ctx context.Context, e *simworker.Decoder, q *worker.Request) (*kept, error) {
	req := &simworker.Request{ID: "r", Tokens: q}
	if err := e.Admit(req); err != nil {
		return nil, err
	}
	out := &kept{}
	return out, e.Generate(ctx, req, out)
}

// TestReceipts takes the result of a prefill to a decode engine: it answers for the same prompt only.
func TestReceipts(t *testing.T) {
	q := request(1, 1, 2, 3)
	out := &kept{}
	prefill := &simworker.Prefiller{}
	if err := prefill.Generate(t.Context(), &simworker.Request{Tokens: q}, out); err != nil {
		t.Fatal(err)
	}
	if len(out.items) != 1 || out.items[0].Output.FinishReason != worker.FinishLength || len(out.items[0].Output.TokenIDs) != 1 {
		t.Fatalf("prefill's answer: %+v", out.items)
	}
	if u := out.items[0].Output.Usage; u == nil || u.PromptTokens != 3 || u.CachedTokens == nil {
		t.Errorf("prefill's usage: %+v", u)
	}
	result := fmt.Appendf(nil, `{"disaggregated_params":%s}`, out.params())
	e := &simworker.Decoder{Engine: echo()}
	for name, tc := range map[string]struct {
		q     *worker.Request
		alone bool
		fails bool
	}{
		"the same prompt":    {&worker.Request{TokenIDs: []uint32{1, 2, 3}, PrefillResult: result}, false, false},
		"another prompt":     {&worker.Request{TokenIDs: []uint32{1, 2, 4}, PrefillResult: result}, false, true},
		"none":               {&worker.Request{TokenIDs: []uint32{1, 2, 3}}, false, true},
		"none needed":        {&worker.Request{TokenIDs: []uint32{1, 2, 3}}, true, false},
		"wrong all the same": {&worker.Request{TokenIDs: []uint32{1}, PrefillResult: result}, true, true},
		"no result":          {&worker.Request{TokenIDs: []uint32{1, 2, 3}, PrefillResult: []byte(`[]`)}, false, true},
		"no tokens":          {nil, false, true},
	} {
		e.Alone = tc.alone
		got, err := decode(t.Context(), e, tc.q)
		if (err != nil) != tc.fails {
			t.Errorf("%s: %v", name, err)
		}
		if w, ok := errors.AsType[*worker.Error](err); err != nil && (!ok || w.Class != "InvalidRequest") {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && len(got.items) == 0 {
			t.Errorf("%s: no answer", name)
		}
	}
}

// openRooms serves rooms on a free port until the test ends.
func openRooms(t *testing.T) (*simworker.Rooms, func()) {
	t.Helper()
	r, err := simworker.ListenRooms("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := lifecycle.New(t.Context())
	g.Go("rooms", r.Run)
	stop := sync.OnceFunc(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return r, stop
}

// meet is a request whose workers meet in a room.
func meet(r *simworker.Rooms, room uint64, prompt ...uint32) *worker.Request {
	host, port := r.Address()
	return &worker.Request{TokenIDs: prompt, BootstrapInfo: &worker.Bootstrap{Host: host, Port: port, Room: room}}
}

// TestRooms lets both sides of many requests meet, either of them first.
func TestRooms(t *testing.T) {
	r, _ := openRooms(t)
	prefill := &simworker.Prefiller{Rooms: r}
	e := &simworker.Decoder{Engine: echo()}
	var wg sync.WaitGroup
	for i := range uint32(20) {
		late := time.Duration(i%3) * 10 * time.Millisecond
		wg.Go(func() {
			time.Sleep(late)
			out := &kept{}
			if err := prefill.Generate(t.Context(), &simworker.Request{Tokens: meet(r, uint64(i), i, i)}, out); err != nil {
				t.Errorf("prefill %d: %v", i, err)
			}
		})
		wg.Go(func() {
			time.Sleep(20*time.Millisecond - late)
			out, err := decode(t.Context(), e, meet(r, uint64(i), i, i))
			if err != nil || len(out.items) == 0 {
				t.Errorf("decode %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	// A receipt for another prompt isn't taken.
	wg.Go(func() {
		_ = prefill.Generate(t.Context(), &simworker.Request{Tokens: meet(r, 99, 1)}, &kept{})
	})
	if _, err := decode(t.Context(), e, meet(r, 99, 2)); err == nil {
		t.Error("the receipt of another prompt is good enough")
	}
	wg.Wait()
}

// TestRoomsEnd ends one side while the other waits: a decode engine waits on until it is stopped.
func TestRoomsEnd(t *testing.T) {
	r, stop := openRooms(t)
	e := &simworker.Decoder{Engine: echo()}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := decode(ctx, e, meet(r, 1, 1))
		ended <- err
	}()
	stop()
	select {
	case err := <-ended:
		t.Fatalf("ended with the prefill worker: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	// A prefill whose decode worker never comes is stopped likewise.
	r, _ = openRooms(t)
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	p := &simworker.Prefiller{Rooms: r}
	if err := p.Generate(ctx, &simworker.Request{Tokens: meet(r, 1, 1)}, &kept{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	// Somebody who doesn't speak the protocol is let go.
	host, port := r.Address()
	c, err := net.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write([]byte("hi"))
	c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(c); err != nil || len(b) != 0 {
		t.Errorf("%q, %v", b, err)
	}
}

// TestWalkGoesOn cuts an answer at every place: a request with the first part as prompt gets the second.
func TestWalkGoesOn(t *testing.T) {
	ids := []uint32{10, 11, 12, 13, 14, 15, 16}
	e := &simworker.Generator{Source: simworker.Walk{IDs: ids}}
	all := generate(t, e, endless(40)).tokens[0]
	// As a sign that more than a few tokens count: no short cycle.
	for period := 1; period < 10; period++ {
		if cmp.Equal(all[:20], all[period:period+20]) {
			t.Fatalf("repeats after %d: %v", period, all)
		}
	}
	first := endless(40)
	for k := range all {
		q := endless(uint32(len(all) - k))
		q.TokenIDs = append(append([]uint32{}, first.TokenIDs...), all[:k]...)
		if diff := cmp.Diff(all[k:], generate(t, e, q).tokens[0]); diff != "" {
			t.Errorf("cut at %d (-whole +rest):\n%s", k, diff)
		}
	}
	if got := generate(t, &simworker.Generator{Source: simworker.Walk{}}, request(5, 1)).tokens[0]; len(got) != 0 {
		t.Errorf("without words: %v", got)
	}
}
