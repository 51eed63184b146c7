// Package nixl is the readable side of a NIXL agent: it registers memory, says where a reader finds it, and learns from
// the reader's notification that it is done. NIXL's library is opened at run time, so a process can do without it.
//
// A reader is told of an operation by Metadata and an Op's key: RDMA metadata as Dynamo's connector takes it. One
// goroutine, Run, takes notifications for all operations; what nobody waits for is dropped.
//
// An Agent is safe for concurrent use. Close it after Run has returned.
package nixl

/*
#cgo linux LDFLAGS: -ldl
#include <stdlib.h>
#include "capi.h"
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unsafe"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

// Library is NIXL's library, open.
type Library struct{ c *C.nx_library }

// Open opens the library. It stays open until the process ends.
func Open(path string) (*Library, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var why [512]C.char
	c := C.nx_open(name, &why[0], C.size_t(len(why)))
	if c == nil {
		return nil, fmt.Errorf("open NIXL's library: %s", C.GoString(&why[0]))
	}
	return &Library{c}, nil
}

// Status is a failure in NIXL's own numbers.
type Status int

// Error names the number.
func (s Status) Error() string { return fmt.Sprintf("NIXL status %d", int(s)) }

// check turns a status into an error, if it is one.
func check(s C.int) error {
	if s < 0 {
		return Status(s)
	}
	return nil
}

// Options configure an Agent.
type Options struct {
	ProgressDelay time.Duration         // between two rounds of NIXL's own thread; 0 is 1 ms
	Registerer    prometheus.Registerer // nil: metrics are kept but not registered
	Log           *slog.Logger          // nil: slog.Default()
}

// ErrClosed is the failure of calls after Close.
var ErrClosed = errors.New("the NIXL agent is closed")

// Agent is one NIXL agent with its UCX backend.
type Agent struct {
	lib     *Library
	log     *slog.Logger
	metrics *metrics

	// native guards the handles: calls hold it shared, Close alone. It is taken before mu.
	native                        sync.RWMutex
	agent, backend, notifications unsafe.Pointer // agent is nil once closed

	mu       sync.Mutex
	ops      map[string]*Op // by key
	changes  uint64         // of the set of registrations
	metadata string         // encoded; of the state after madeAt changes
	madeAt   uint64

	wake chan struct{} // holds one token when Run has something to wait for again
}

// New starts an agent. Its name is its own, so that workers tell the agents of many frontends apart. NIXL's threads run
// until Close.
func New(lib *Library, opts Options) (*Agent, error) {
	opts.ProgressDelay = cmp.Or(opts.ProgressDelay, time.Millisecond)
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	a := &Agent{
		lib: lib, log: opts.Log, metrics: newMetrics(opts.Registerer), ops: map[string]*Op{},
		wake: make(chan struct{}, 1), // several operations that begin wake Run once
	}
	name := C.CString("portico-" + uuid.NewString())
	defer C.free(unsafe.Pointer(name))
	delay := C.uint64_t(max(opts.ProgressDelay.Microseconds(), 1)) // 0 would take a whole core
	err := check(C.nx_agent_new(lib.c, name, delay, &a.agent, &a.backend, &a.notifications))
	if err != nil {
		return nil, fmt.Errorf("start a NIXL agent: %w", err)
	}
	return a, nil
}

// Close ends the agent: readers that come later find nobody. All registrations should have been undone before.
func (a *Agent) Close() error {
	a.native.Lock()
	defer a.native.Unlock()
	if a.agent == nil {
		return nil
	}
	err := check(C.nx_agent_free(a.lib.c, a.agent, a.backend, a.notifications))
	a.agent = nil
	return err
}

// Register makes memory readable until the result is called. The memory must not be Go's: its address is given away.
func (a *Agent) Register(mem []byte) (deregister func() error, err error) {
	a.native.RLock()
	defer a.native.RUnlock()
	if a.agent == nil {
		return nil, ErrClosed
	}
	var list unsafe.Pointer
	addr := C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	if err := check(C.nx_register(a.lib.c, a.agent, a.backend, addr, C.size_t(len(mem)), &list)); err != nil {
		return nil, err
	}
	a.changed()
	return func() error { return a.deregister(list) }, nil
}

func (a *Agent) deregister(list unsafe.Pointer) error {
	a.native.RLock()
	defer a.native.RUnlock()
	if a.agent == nil {
		return nil // closing the agent has undone it
	}
	defer a.changed()
	return check(C.nx_deregister(a.lib.c, a.agent, a.backend, list))
}

// changed notes, after a change of the registrations, that metadata made before it has to be made anew.
func (a *Agent) changed() {
	a.mu.Lock()
	a.changes++
	a.mu.Unlock()
}

// Metadata returns the agent's metadata as readers take it. It is made anew only when the registrations have changed.
func (a *Agent) Metadata() (string, error) {
	// native before mu, as everywhere.
	a.native.RLock()
	defer a.native.RUnlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.metadata != "" && a.madeAt == a.changes {
		return a.metadata, nil
	}
	raw, err := a.rawMetadata()
	if err != nil {
		return "", fmt.Errorf("get NIXL metadata: %w", err)
	}
	a.metadata, a.madeAt = encodeMetadata(raw), a.changes
	return a.metadata, nil
}

// rawMetadata asks NIXL. The caller holds native.
func (a *Agent) rawMetadata() ([]byte, error) {
	if a.agent == nil {
		return nil, ErrClosed
	}
	var data unsafe.Pointer
	var n C.size_t
	if err := check(C.nx_metadata(a.lib.c, a.agent, &data, &n)); err != nil {
		return nil, err
	}
	defer C.nx_free(data)
	return C.GoBytes(data, C.int(n)), nil
}

// drain takes the notifications that have come and returns how many there were.
func (a *Agent) drain() (int, error) {
	a.native.RLock()
	defer a.native.RUnlock()
	if a.agent == nil {
		return 0, ErrClosed
	}
	var out *C.char
	var n C.size_t
	err := check(C.nx_notifications(a.lib.c, a.agent, a.notifications, &out, &n))
	if out == nil {
		return 0, err
	}
	defer C.nx_free(unsafe.Pointer(out))
	return a.deliver(unsafe.Slice((*byte)(unsafe.Pointer(out)), int(n))), err
}
