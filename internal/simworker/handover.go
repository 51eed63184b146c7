package simworker

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
)

// Prefiller is the engine of a prefill worker. It takes the time of a prompt, then sends one token and what a decode
// worker needs to go on: a receipt for exactly this prompt, in the answer or, when the request names a room, there.
type Prefiller struct {
	Timing Timing
	Rooms  *Rooms // where decode workers come to fetch receipts; nil: they get them by way of the frontend
	Seed   uint64 // of the times' jitter
}

var _ Engine = (*Prefiller)(nil)

// receipt is what stands for a KV cache here: it says which prompt was read.
type receipt struct {
	Prompt string `json:"prompt"` // hash, hexadecimal
}

// receiptFor returns the receipt of a prompt.
func receiptFor(prompt uint64) []byte {
	b, _ := json.Marshal(receipt{strconv.FormatUint(prompt, 16)}) // a string has always a form
	return b
}

// Admit refuses a request that isn't made of tokens.
func (e *Prefiller) Admit(req *Request) error { return (&Generator{}).Admit(req) }

// Generate implements Engine. With a room it ends once the decode worker has been there.
func (e *Prefiller) Generate(ctx context.Context, req *Request, out Output) error {
	q := req.Tokens
	hash := promptHash(q.TokenIDs)
	var p pace
	if err := p.wait(ctx, e.Timing.first(len(q.TokenIDs), rand.New(rand.NewPCG(e.Seed, hash)))); err != nil {
		return err
	}
	if b := q.BootstrapInfo; b != nil && e.Rooms != nil {
		if err := e.Rooms.fill(ctx, b.Room, hash); err != nil {
			return err
		}
	}
	it := worker.Item{HasData: true}
	// Any token will do: the decode worker makes its own first one.
	if n := len(q.TokenIDs); n > 0 {
		it.Output.TokenIDs = []uint32{q.TokenIDs[n-1]}
	}
	cached := 0
	it.Output.FinishReason = worker.FinishLength
	it.Output.DisaggregatedParams = receiptFor(hash)
	it.Output.Usage = &worker.Usage{
		PromptTokens: len(q.TokenIDs), CompletionTokens: len(it.Output.TokenIDs),
		TotalTokens: len(q.TokenIDs) + len(it.Output.TokenIDs), CachedTokens: &cached,
	}
	return out.Send(&it)
}

// Decoder is the engine of a decode worker: another engine that answers only when the prompt's receipt is there.
type Decoder struct {
	Engine Engine
	// Alone lets it answer requests without a receipt, as engines do that can read prompts themselves.
	Alone bool
}

var _ Engine = (*Decoder)(nil)

// errReceipt is the failure of a request with the receipt of another prompt, or none.
func errReceipt(what string) error {
	return &worker.Error{Class: "InvalidRequest", Reason: "request.invalid", Message: "prefill: " + what,
		PublicType: "message", Public: "this decode worker needs the result of a prefill worker: " + what}
}

// Admit refuses requests whose receipt can be seen to be wrong beforehand.
func (e *Decoder) Admit(req *Request) error {
	if a, ok := e.Engine.(Admitter); ok {
		if err := a.Admit(req); err != nil {
			return err
		}
	}
	q := req.Tokens
	switch {
	case q == nil:
		return errReceipt("the request isn't made of tokens")
	case q.BootstrapInfo != nil:
		return nil // it is in the room
	case q.PrefillResult == nil && e.Alone:
		return nil
	case q.PrefillResult == nil:
		return errReceipt("there is none")
	}
	var result struct {
		Params receipt `json:"disaggregated_params"`
	}
	if err := json.Unmarshal(q.PrefillResult, &result); err != nil {
		return errReceipt("it can't be read")
	}
	if want := strconv.FormatUint(promptHash(q.TokenIDs), 16); result.Params.Prompt != want {
		return errReceipt("it is for another prompt")
	}
	return nil
}

// Generate implements Engine. A receipt that never comes is waited for until the frontend asks to stop, as engines wait
// for a KV cache whose sender has died.
func (e *Decoder) Generate(ctx context.Context, req *Request, out Output) error {
	if b := req.Tokens.BootstrapInfo; b != nil {
		got, err := fetch(ctx, b)
		if err != nil {
			<-ctx.Done()
			return ctx.Err()
		}
		if got != promptHash(req.Tokens.TokenIDs) {
			return errReceipt("the one in the room is for another prompt")
		}
	}
	return e.Engine.Generate(ctx, req, out)
}

// Rooms is where a prefill worker hands receipts over. Run may be called once; everything else is safe for concurrent
// use.
type Rooms struct {
	listener net.Listener

	mu    sync.Mutex
	rooms map[uint64]*room // guarded by mu: those with somebody in them
}

// room is one meeting. Whoever comes first makes it.
type room struct {
	prompt  chan uint64   // one place: the prefill side need not wait to put it down
	fetched chan struct{} // closed by the decode side
}

// ListenRooms opens a place for rooms at an address; Run serves it and closes it.
func ListenRooms(address string) (*Rooms, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("simworker: rooms: %w", err)
	}
	return &Rooms{listener: l, rooms: map[uint64]*room{}}, nil
}

// Address returns host and port of the place.
func (r *Rooms) Address() (host string, port uint16) {
	a := r.listener.Addr().(*net.TCPAddr)
	return a.IP.String(), uint16(a.Port)
}

// roomWait bounds how long one side of a meeting waits for the other.
const roomWait = 60 * time.Second

// Run takes decode workers in until ctx ends, and returns nil then.
func (r *Rooms) Run(ctx context.Context) error {
	g := lifecycle.New(ctx)
	defer g.Stop()
	defer r.listener.Close()
	defer context.AfterFunc(ctx, func() { r.listener.Close() })()
	for {
		c, err := r.listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("simworker: rooms: %w", err)
		}
		g.Go("room", func(ctx context.Context) error {
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			r.serve(ctx, c)
			return nil
		})
	}
}

// serve reads the number of a room and answers with the hash of the prompt that was read for it. A connection that
// breaks off needs no answer.
func (r *Rooms) serve(ctx context.Context, c net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, roomWait)
	defer cancel()
	_ = c.SetDeadline(time.Now().Add(roomWait))
	var b [8]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return
	}
	number := binary.BigEndian.Uint64(b[:])
	at := r.enter(number)
	select {
	case prompt := <-at.prompt:
		binary.BigEndian.PutUint64(b[:], prompt)
		if _, err := c.Write(b[:]); err == nil {
			close(at.fetched)
		}
	case <-ctx.Done():
	}
	r.leave(number, at)
}

// enter returns a room, a new one if nobody is in it.
func (r *Rooms) enter(number uint64) *room {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.rooms[number]
	if at == nil {
		at = &room{prompt: make(chan uint64, 1), fetched: make(chan struct{})}
		r.rooms[number] = at
	}
	return at
}

// leave takes a room away, unless that has been done.
func (r *Rooms) leave(number uint64, at *room) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rooms[number] == at {
		delete(r.rooms, number)
	}
}

// errRoom is the failure of a prefill whose decode worker doesn't come.
var errRoom = errors.New("simworker: nobody came to fetch the prefill")

// fill puts a receipt into a room and waits until it has been fetched.
func (r *Rooms) fill(ctx context.Context, number, prompt uint64) error {
	at := r.enter(number)
	defer r.leave(number, at)
	select {
	case at.prompt <- prompt:
	default:
		return fmt.Errorf("simworker: room %d has been filled before", number)
	}
	t := time.NewTimer(roomWait)
	defer t.Stop()
	select {
	case <-at.fetched:
		return nil
	case <-t.C:
		return errRoom
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fetch waits in a room for the receipt.
func fetch(ctx context.Context, b *worker.Bootstrap) (uint64, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	_ = c.SetDeadline(time.Now().Add(roomWait))
	buf := binary.BigEndian.AppendUint64(nil, b.Room)
	if _, err := c.Write(buf); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(c, buf); err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(buf), nil
}
