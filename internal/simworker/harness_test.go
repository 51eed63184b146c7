package simworker_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/simworker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// records is a Registrar in memory.
type records struct {
	mu   sync.Mutex
	all  map[string]string
	fail error
}

func (r *records) Put(_ context.Context, key string, value []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return r.fail
	}
	if r.all == nil {
		r.all = map[string]string{}
	}
	r.all[key] = string(value)
	return nil
}

func (r *records) Remove(_ context.Context, key string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, key)
	return nil
}

func (r *records) keys() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var keys []string
	for k := range r.all {
		keys = append(keys, k)
	}
	return keys
}

// running is a worker under test and what it registered.
type running struct {
	*simworker.Worker
	records *records
	cancel  context.CancelFunc
	done    chan error
}

// start runs a worker until the test ends.
func start(t *testing.T, o simworker.Options) *running {
	t.Helper()
	r := &running{records: &records{}, done: make(chan error, 1)}
	o.Registrar = r.records
	o.Log = slog.New(slog.DiscardHandler)
	w, err := simworker.New(o)
	if err != nil {
		t.Fatal(err)
	}
	r.Worker = w
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.done <- w.Run(ctx) }()
	t.Cleanup(func() { r.stop(t) })
	select {
	case <-w.Ready():
	case err := <-r.done:
		r.done <- err
		t.Fatalf("not ready: %v", err)
	case <-time.After(10 * time.Second):
		t.Fatal("not ready in time")
	}
	return r
}

// stop ends the worker and waits for it.
func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	select {
	case err := <-r.done:
		r.done <- err
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("Run didn't return")
	}
}

// frontend is the other side: a listener for call backs.
type frontend struct {
	t *testing.T
	l net.Listener
}

func newFrontend(t *testing.T) *frontend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &frontend{t, l}
}

// envelope encodes a request with the subject "s-" + id.
func (f *frontend) envelope(id string, codec worker.Codec, req *worker.Request) []byte {
	f.t.Helper()
	body, err := req.Append(nil, codec)
	if err != nil {
		f.t.Fatal(err)
	}
	control := worker.Control{ID: id, Codec: codec, Conn: worker.Connection{Address: f.l.Addr().String(), Subject: "s-" + id, Context: id}}
	return worker.AppendFrame(nil, worker.AppendControl(nil, &control), body)
}

// tcpFrame is a request frame of the TCP plane.
func tcpFrame(path string, payload []byte) []byte {
	headers := `{"request-id":"r","traceparent":"tp"}`
	b := binary.BigEndian.AppendUint16(nil, uint16(len(path)))
	b = append(b, path...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(headers)))
	b = append(b, headers...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// dial opens a connection to a worker's TCP plane; path is where it takes requests.
func dial(t *testing.T, w *running) (c net.Conn, path string) {
	t.Helper()
	address, path, _ := strings.Cut(w.Instance().Transport.TCP, "/")
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c, path
}

// readAck reads one reply of the TCP plane.
func readAck(t *testing.T, r io.Reader) string {
	t.Helper()
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		t.Fatalf("read acknowledgement: %v", err)
	}
	b := make([]byte, binary.BigEndian.Uint32(n[:]))
	if _, err := io.ReadFull(r, b); err != nil {
		t.Fatalf("read acknowledgement: %v", err)
	}
	return string(b)
}

// send sends one request and checks the acknowledgement.
func (f *frontend) send(w *running, id string, codec worker.Codec, req *worker.Request) {
	f.t.Helper()
	c, path := dial(f.t, w)
	if _, err := c.Write(tcpFrame(path, f.envelope(id, codec, req))); err != nil {
		f.t.Fatal(err)
	}
	if ack := readAck(f.t, c); ack != "" {
		f.t.Fatalf("acknowledgement %q", ack)
	}
}

// call is one call back.
type call struct {
	t       *testing.T
	conn    net.Conn
	r       *bufio.Reader
	subject string
}

// accept takes the next call back and reads its handshake.
func (f *frontend) accept() *call {
	f.t.Helper()
	c := f.acceptRaw()
	header, _, err := c.frame()
	if err != nil {
		f.t.Fatalf("handshake: %v", err)
	}
	subject, kind, err := worker.ParseHandshake(header)
	if err != nil || kind != worker.StreamResponse {
		f.t.Fatalf("handshake %s: %v", header, err)
	}
	c.subject = string(subject)
	return c
}

func (f *frontend) acceptRaw() *call {
	f.t.Helper()
	f.l.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Second))
	conn, err := f.l.Accept()
	if err != nil {
		f.t.Fatalf("no call back: %v", err)
	}
	f.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	return &call{t: f.t, conn: conn, r: bufio.NewReader(conn)}
}

// noCall checks that nobody calls within the time.
func (f *frontend) noCall(within time.Duration) {
	f.t.Helper()
	f.l.(*net.TCPListener).SetDeadline(time.Now().Add(within))
	if conn, err := f.l.Accept(); err == nil {
		conn.Close()
		f.t.Error("a call back that should not be")
	}
}

// frame reads one frame.
func (c *call) frame() (header, body []byte, err error) {
	head := make([]byte, worker.FrameHead)
	if _, err := io.ReadFull(c.r, head); err != nil {
		return nil, nil, err
	}
	size, err := worker.FrameSize(head)
	if err != nil {
		return nil, nil, err
	}
	b := append(head, make([]byte, size-len(head))...)
	if _, err := io.ReadFull(c.r, b[worker.FrameHead:]); err != nil {
		return nil, nil, err
	}
	header, body, _, err = worker.ParseFrame(b)
	return header, body, err
}

// prologue reads the prologue.
func (c *call) prologue() *worker.Error {
	c.t.Helper()
	header, _, err := c.frame()
	if err != nil {
		c.t.Fatalf("prologue: %v", err)
	}
	e, err := worker.ParsePrologue(header)
	if err != nil {
		c.t.Fatalf("prologue %s: %v", header, err)
	}
	return e
}

// signal sends a control frame.
func (c *call) signal(s worker.Signal) {
	c.t.Helper()
	if _, err := c.conn.Write(worker.AppendSignal(nil, s)); err != nil {
		c.t.Fatal(err)
	}
}

// answer is a whole answer, folded by choice.
type answer struct {
	tokens map[uint32][]uint32
	finish map[uint32]worker.FinishReason
	items  int
	logs   int
	errs   []*worker.Error
	final  bool
	end    string // "sentinel", or how the connection ended
}

// rest reads items to the end of the stream and closes, as a frontend does.
func (c *call) rest(codec worker.Codec) answer {
	a := answer{tokens: map[uint32][]uint32{}, finish: map[uint32]worker.FinishReason{}}
	defer c.conn.Close()
	for {
		header, body, err := c.frame()
		switch {
		case errors.Is(err, io.EOF):
			a.end = "eof"
			return a
		case err != nil:
			a.end = err.Error()
			return a
		case worker.ParseSignal(header) == worker.SignalSentinel:
			a.end = "sentinel"
			return a
		case len(header) > 0:
			a.end = fmt.Sprintf("header %s", header)
			return a
		}
		var it worker.Item
		if err := worker.DecodeItem(codec, body, &it); err != nil {
			a.end = "item: " + err.Error()
			return a
		}
		a.add(&it)
	}
}

func (a *answer) add(it *worker.Item) {
	if it.Final {
		a.final = true
		return
	}
	a.items++
	if it.Err != nil {
		a.errs = append(a.errs, it.Err)
	}
	o := &it.Output
	a.tokens[o.Index] = append(a.tokens[o.Index], o.TokenIDs...)
	a.logs += len(o.LogProbs)
	if o.FinishReason != worker.FinishNone {
		a.finish[o.Index] += o.FinishReason
	}
}

func ptr[T any](v T) *T { return &v }

// request asks for n tokens.
func request(n uint32, prompt ...uint32) *worker.Request {
	return &worker.Request{Model: "m", TokenIDs: prompt, Stop: worker.StopConditions{MaxTokens: &n}}
}

// endless asks for n tokens, whatever the engine would rather do.
func endless(n uint32) *worker.Request {
	r := request(n, 1, 2, 3)
	r.Stop.IgnoreEOS = ptr(true)
	return r
}

// waitStats waits until the worker's counts satisfy ok.
func waitStats(t *testing.T, w *running, ok func(simworker.Stats) bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok(w.Stats()) {
		if time.Now().After(deadline) {
			t.Fatalf("stats %+v", w.Stats())
		}
		time.Sleep(time.Millisecond)
	}
}
