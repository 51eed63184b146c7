package nixl

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/google/uuid"
)

// encodeMetadata packs an agent's metadata as Dynamo's connector does.
func encodeMetadata(raw []byte) string {
	var buf bytes.Buffer
	z := zlib.NewWriter(&buf) // its default level is theirs
	_, _ = z.Write(raw)       // a buffer doesn't fail
	_ = z.Close()
	return "b64:" + base64.StdEncoding.EncodeToString(buf.Bytes())
}

// Op is one piece of memory that a reader is to read.
type Op struct {
	agent *Agent
	key   string
	reads atomic.Int32  // notifications so far
	heard chan struct{} // holds one token when there have been more
}

// Expect begins to wait for notifications with a key of its own. End it with Forget.
func (a *Agent) Expect() *Op {
	op := &Op{agent: a, key: uuid.NewString(), heard: make(chan struct{}, 1)} // one token says as much as two
	a.mu.Lock()
	a.ops[op.key] = op
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default: // it will look anyway
	}
	return op
}

// Reads returns how many readers have said that they are done.
func (op *Op) Reads() int { return int(op.reads.Load()) }

// Heard gets a value when Reads may have grown. One goroutine may wait for it.
func (op *Op) Heard() <-chan struct{} { return op.heard }

// Forget ends the wait: a notification that comes later is dropped.
func (op *Op) Forget() {
	op.agent.mu.Lock()
	delete(op.agent.ops, op.key)
	op.agent.mu.Unlock()
}

// descriptor and metadata are Dynamo's RdmaMetadata. Readers refuse fields that they don't know.
type descriptor struct {
	Device string `json:"device"`
	Ptr    uint64 `json:"ptr"`
	Size   int    `json:"size"`
}

type metadata struct {
	Descriptors     []descriptor `json:"descriptors"`
	NixlMetadata    string       `json:"nixl_metadata"`
	NotificationKey string       `json:"notification_key"`
	OperationKind   int          `json:"operation_kind"` // 1: the reader reads
}

// Describe tells a reader where mem is, which must be inside registered memory, and under which key to say that it is
// done.
func (op *Op) Describe(mem []byte) (json.RawMessage, error) {
	agent, err := op.agent.Metadata()
	if err != nil {
		return nil, err
	}
	return json.Marshal(metadata{
		Descriptors:     []descriptor{{Device: "cpu", Ptr: Address(mem), Size: len(mem)}},
		NixlMetadata:    agent,
		NotificationKey: op.key,
		OperationKind:   1,
	})
}

// Address returns where memory outside Go's heap is.
func Address(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// deliver hands notifications to those who wait for them. A block is lengths and keys, in turn.
func (a *Agent) deliver(block []byte) int {
	n := 0
	a.mu.Lock()
	defer a.mu.Unlock()
	for ; len(block) >= 4; n++ {
		size := min(int(binary.NativeEndian.Uint32(block)), len(block)-4)
		key := block[4 : 4+size]
		block = block[4+size:]
		op, ok := a.ops[string(key)]
		if !ok {
			a.metrics.unknown.Inc() // late, or of readers that make up their own
			continue
		}
		op.reads.Add(1)
		select {
		case op.heard <- struct{}{}:
		default:
		}
		a.metrics.read.Inc()
	}
	return n
}

// Pauses between two looks for notifications. While somebody waits for one, looks come quickly at first; a queue that
// nobody waits for is only kept from growing.
const (
	shortPause = time.Millisecond
	longPause  = 16 * time.Millisecond
	idlePause  = 250 * time.Millisecond
)

// Run takes notifications until ctx ends, and returns nil then.
func (a *Agent) Run(ctx context.Context) error {
	pause := idlePause
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
			pause = shortPause
		case <-timer.C:
			n, err := a.drain()
			if err != nil {
				a.log.Warn("taking NIXL notifications failed", "error", err)
				pause = idlePause
			} else {
				pause = a.nextPause(pause, n)
			}
		}
		timer.Reset(pause)
	}
}

// nextPause is the pause after a look that found n notifications.
func (a *Agent) nextPause(pause time.Duration, n int) time.Duration {
	a.mu.Lock()
	waiting := false
	for _, op := range a.ops {
		// One that has been read waits for the end of its answer, not for a notification.
		if waiting = op.Reads() == 0; waiting {
			break
		}
	}
	a.mu.Unlock()
	switch {
	case !waiting:
		return idlePause
	case n > 0:
		return shortPause
	}
	return min(max(pause+pause/4, shortPause), longPause)
}
