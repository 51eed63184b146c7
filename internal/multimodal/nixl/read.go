package nixl

/*
#include <stdlib.h>
#include "capi.h"
*/
import "C"

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxMetadata bounds an agent's metadata, unpacked; that of a thousand registrations has some kilobytes.
const maxMetadata = 16 << 20

// decodeMetadata is the reverse of encodeMetadata.
func decodeMetadata(text string) ([]byte, error) {
	packed, ok := strings.CutPrefix(text, "b64:")
	if !ok {
		return nil, errors.New("agent metadata in an unknown form")
	}
	raw, err := base64.StdEncoding.DecodeString(packed)
	if err != nil {
		return nil, fmt.Errorf("agent metadata: %w", err)
	}
	z, err := zlib.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("agent metadata: %w", err)
	}
	out, err := io.ReadAll(io.LimitReader(z, maxMetadata+1))
	if err == nil && len(out) > maxMetadata {
		err = errors.New("too large")
	}
	if err != nil {
		return nil, fmt.Errorf("agent metadata: %w", err)
	}
	return out, nil
}

// Read is a worker's side of an Op, for simulated workers and tests: it reads what description, made by Describe, tells
// of, and notifies the other side then. With most above 0 it reads at most so many bytes and says nothing, as a reader
// that breaks off. It blocks until the bytes are there or ctx ends.
func (a *Agent) Read(ctx context.Context, description []byte, most int) ([]byte, error) {
	var m metadata
	if err := json.Unmarshal(description, &m); err != nil {
		return nil, fmt.Errorf("read over NIXL: %w", err)
	}
	if len(m.Descriptors) != 1 || m.Descriptors[0].Size <= 0 {
		return nil, errors.New("read over NIXL: not one piece of memory")
	}
	remote, err := decodeMetadata(m.NixlMetadata)
	if err != nil {
		return nil, err
	}
	n, key := m.Descriptors[0].Size, m.NotificationKey
	if most > 0 {
		n, key = min(n, most), ""
	}
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("read over NIXL: %w", err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	deregister, err := a.Register(mem)
	if err != nil {
		return nil, fmt.Errorf("read over NIXL: %w", err)
	}
	defer func() { _ = deregister() }() // before the memory goes
	if err := a.read(ctx, remote, m.Descriptors[0].Ptr, mem, key); err != nil {
		return nil, fmt.Errorf("read over NIXL: %w", err)
	}
	return bytes.Clone(mem), nil
}

// read moves bytes and waits for them.
func (a *Agent) read(ctx context.Context, remote []byte, from uint64, to []byte, key string) error {
	request, err := a.beginRead(remote, from, to, key)
	if err != nil {
		return err
	}
	defer a.endRead(request)
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for {
		done, err := a.readDone(request)
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (a *Agent) beginRead(remote []byte, from uint64, to []byte, key string) (unsafe.Pointer, error) {
	a.native.RLock()
	defer a.native.RUnlock()
	if a.agent == nil {
		return nil, ErrClosed
	}
	md, text := C.CBytes(remote), C.CString(key)
	defer C.free(md)
	defer C.free(unsafe.Pointer(text))
	r := C.nx_read{
		metadata: md, metadata_len: C.size_t(len(remote)), key: text, key_len: C.size_t(len(key)),
		from: C.uintptr_t(from), to: C.uintptr_t(Address(to)), len: C.size_t(len(to)),
	}
	var request unsafe.Pointer
	if err := check(C.nx_read_begin(a.lib.c, a.agent, a.backend, &r, &request)); err != nil {
		return nil, err
	}
	return request, nil
}

func (a *Agent) readDone(request unsafe.Pointer) (bool, error) {
	a.native.RLock()
	defer a.native.RUnlock()
	if a.agent == nil {
		return false, ErrClosed
	}
	s := C.nx_read_status(a.lib.c, a.agent, request)
	return s == 0, check(s)
}

func (a *Agent) endRead(request unsafe.Pointer) {
	a.native.RLock()
	defer a.native.RUnlock()
	if a.agent != nil {
		C.nx_read_end(a.lib.c, a.agent, request)
	}
}
