package file

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/portico-llm/portico/internal/lifecycle"
)

// minTouch bounds how often files are touched.
const minTouch = time.Second

// errClosed is the failure of a Put after Close.
var errClosed = errors.New("the registrar is closed")

// Registrar publishes the records of one worker in a folder and keeps them alive. Safe for concurrent use. It starts a
// goroutine with the first record; Close ends it.
type Registrar struct {
	opts Options // with defaults
	id   uint64  // of the instance

	mu     sync.Mutex
	owned  map[string]record // guarded by mu; by path
	keep   *lifecycle.Group  // guarded by mu; nil until the first Put
	closed bool              // guarded by mu
}

// record is a file of ours: where it stands, and what it says.
type record struct {
	dir, name string
	value     []byte
}

// NewRegistrar returns a registrar with a random instance id over the folder, with default options.
func NewRegistrar(root string) *Registrar { return NewRegistrarWith(Options{Root: root}) }

// NewRegistrarWith returns a registrar whose records live for opts.TTL after each touch. The folder is made with the
// first record.
func NewRegistrarWith(opts Options) *Registrar {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the program instead
	return &Registrar{opts: opts.withDefaults(), id: binary.BigEndian.Uint64(b[:]), owned: map[string]record{}}
}

// InstanceID returns the id the worker is to register under.
func (r *Registrar) InstanceID(context.Context) (uint64, error) { return r.id, nil }

// Put publishes or replaces a record. Readers see the whole value or none of it. The goroutine that keeps records alive
// lives until Close, whatever becomes of ctx.
func (r *Registrar) Put(ctx context.Context, key string, value []byte) error {
	dir, name, ok := path(r.opts.Root, key)
	if !ok {
		return fmt.Errorf("discovery key %q is in no known bucket", key)
	}
	rec := record{dir, name, slices.Clone(value)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	if err := rec.publish(); err != nil {
		return fmt.Errorf("publish %s: %w", key, err)
	}
	r.owned[filepath.Join(dir, name)] = rec
	if r.keep == nil {
		r.keep = lifecycle.New(context.WithoutCancel(ctx))
		r.keep.Go("touch discovery files", r.touchLoop)
	}
	return nil
}

// Remove takes one of the registrar's records away. Files of others are left alone.
func (r *Registrar) Remove(_ context.Context, key string) error {
	dir, name, ok := path(r.opts.Root, key)
	if !ok {
		return fmt.Errorf("discovery key %q is in no known bucket", key)
	}
	file := filepath.Join(dir, name)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, mine := r.owned[file]; !mine {
		return nil
	}
	// Forgotten before it is removed: a touch in between would publish it again.
	delete(r.owned, file)
	return removeFile(file)
}

// Close takes all records away and ends the registrar's goroutine. It may be called again; Put fails after it.
func (r *Registrar) Close() error {
	r.mu.Lock()
	r.closed = true
	keep := r.keep
	var errs []error
	for file := range r.owned {
		errs = append(errs, removeFile(file))
	}
	clear(r.owned)
	r.mu.Unlock()
	if keep != nil { // outside the lock: the goroutine may be waiting for it
		errs = append(errs, keep.Stop())
	}
	return errors.Join(errs...)
}

// removeFile deletes a file; one that is gone already is no failure, since readers delete what they take for dead.
func removeFile(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record: %w", err)
	}
	return nil
}

// touchLoop renews the records until ctx ends: three times in their lifetime, so that two touches may be late.
func (r *Registrar) touchLoop(ctx context.Context) error {
	tick := time.NewTicker(max(r.opts.TTL/3, minTouch))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			r.touch(r.opts.Log)
		}
	}
}

// touch renews every record. One that is gone (its folder was removed, or a reader took it for dead) is published anew.
// A failure is logged and tried again with the next tick.
func (r *Registrar) touch(log *slog.Logger) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, file := range slices.Sorted(maps.Keys(r.owned)) {
		// The zero access time leaves that as it is.
		err := os.Chtimes(file, time.Time{}, now)
		if errors.Is(err, fs.ErrNotExist) {
			err = r.owned[file].publish()
		}
		if err != nil {
			log.Warn("discovery record can't be renewed", "path", file, "error", err)
		}
	}
}

// publish writes the record beside its place and moves it there. A rename within a folder is atomic (POSIX): readers
// see the old file or the new one.
func (r record) publish() error {
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return fmt.Errorf("create folder: %w", err)
	}
	var b [8]byte
	_, _ = rand.Read(b[:])
	// A random name, so that writers in one folder don't meet.
	temp := filepath.Join(r.dir, tempPrefix+hex.EncodeToString(b[:]))
	if err := os.WriteFile(temp, r.value, 0o644); err != nil {
		return errors.Join(fmt.Errorf("write: %w", err), removeFile(temp))
	}
	if err := os.Rename(temp, filepath.Join(r.dir, r.name)); err != nil {
		return errors.Join(fmt.Errorf("move into place: %w", err), removeFile(temp))
	}
	return nil
}
