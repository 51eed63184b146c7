// Package shm hands blobs to workers on the same machine through files in shared memory, named as Dynamo's workers look
// for them. A segment is there from Seal to Unlink; a worker that has opened it can read it to the end all the same.
//
// A blob is written to ordinary memory, which is used again, and from there to its file in one go: that takes half the
// time of mapping the file, whose pages would be new, and a system without room is an error and not a signal.
//
// What a process that was killed leaves behind is taken away by Sweep. A Store is safe for concurrent use; a Segment
// belongs to one goroutine at a time.
package shm

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options configure a Store. The zero value works.
type Options struct {
	Dir   string        // where segments are; empty: /dev/shm
	Bytes int64         // bound of all segments together; 0 is 1 GiB
	Stale time.Duration // age from which Sweep takes a dead process's segments; 0 is 10 min
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	o.Dir = cmp.Or(o.Dir, "/dev/shm")
	o.Bytes = cmp.Or(o.Bytes, 1<<30)
	o.Stale = cmp.Or(o.Stale, 10*time.Minute)
	return o
}

// ErrFull is the failure of a Create that would exceed the bound, or for which the system has no room.
var ErrFull = errors.New("there is no room in shared memory")

// Store makes segments.
type Store struct {
	opts    Options
	began   time.Time
	bytes   atomic.Int64 // of the segments that aren't unlinked
	staging staging
}

// New returns a Store. It touches nothing. A process has one for each folder.
func New(opts Options) *Store { return &Store{opts: opts.withDefaults(), began: time.Now()} }

// Close gives idle memory back. Segments can still be unlinked.
func (s *Store) Close() { s.staging.drop(true) }

// Bytes returns the bytes of all segments that aren't unlinked.
func (s *Store) Bytes() int64 { return s.bytes.Load() }

// Segment is one blob: memory until Seal, a file in shared memory from then on.
type Segment struct {
	store *Store
	name  string
	mem   []byte // nil once sealed
	whole []byte // what mem is a part of
	size  int
	made  bool // the file is there
	gone  bool // unlinked
}

// prefix begins the names of all segments, of this process's and of others'.
const prefix = "mm_kwargs_"

// Create makes a segment for each size, all or none. The index in a segment's name counts from 0. What its memory holds
// is undefined.
func (s *Store) Create(sizes []int) (_ []*Segment, err error) {
	var random [6]byte
	_, _ = rand.Read(random[:]) // ends the program when it fails
	out := make([]*Segment, 0, len(sizes))
	defer func() {
		if err != nil {
			for _, seg := range out {
				_ = seg.Unlink() // the first failure is the one that tells
			}
		}
	}()
	if err := s.room(sizes); err != nil {
		return nil, err
	}
	for i, n := range sizes {
		seg, err := s.create(fmt.Sprintf("%s%d_%s_%d", prefix, os.Getpid(), hex.EncodeToString(random[:]), i), n)
		if err != nil {
			return nil, err
		}
		out = append(out, seg)
	}
	return out, nil
}

// create makes one segment.
func (s *Store) create(name string, n int) (*Segment, error) {
	if s.bytes.Add(int64(n)) > s.opts.Bytes {
		s.bytes.Add(int64(-n))
		return nil, ErrFull
	}
	whole, err := s.staging.take(n)
	if err != nil {
		s.bytes.Add(int64(-n))
		return nil, full(err)
	}
	return &Segment{store: s, name: name, mem: whole[:n:n], whole: whole, size: n}, nil
}

// room looks whether the file system has room, as far as one can tell before files are written: an image that has nowhere
// to go needn't be processed.
func (s *Store) room(sizes []int) error {
	var st unix.Statfs_t
	if err := unix.Statfs(s.opts.Dir, &st); err != nil {
		return fmt.Errorf("look for room in shared memory: %w", err)
	}
	need := uint64(0)
	for _, n := range sizes {
		need += uint64(n)
	}
	// A file system without a bound has no blocks at all.
	if st.Blocks > 0 && st.Bavail < need/uint64(st.Bsize) {
		return ErrFull
	}
	return nil
}

// full marks failures for lack of room.
func full(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) {
		return errors.Join(ErrFull, err)
	}
	return err
}

// Name is what a worker is told; Size goes with it.
func (g *Segment) Name() string { return g.name }

// Size is the length in bytes.
func (g *Segment) Size() int { return g.size }

// Bytes returns the memory, to be written to until Seal. It must not be used afterwards.
func (g *Segment) Bytes() []byte { return g.mem }

// Seal makes the file, out of the first n bytes of the memory. A second call does nothing. ErrFull: there is no room; the
// segment then still has to be unlinked.
func (g *Segment) Seal(n int) error {
	if g.made {
		return nil
	}
	if n < 0 || n > len(g.mem) {
		return fmt.Errorf("a segment of %d bytes can't have %d", len(g.mem), n)
	}
	path := g.path()
	// Only this user's workers may read it, as with the segments of Dynamo's frontend.
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("make a segment: %w", full(err))
	}
	_, err = file.Write(g.mem[:n])
	if err := errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(path) // the first failure is the one that tells
		return fmt.Errorf("write a segment of %d bytes: %w", n, full(err))
	}
	g.made = true
	g.release()
	return nil
}

// release gives up the memory.
func (g *Segment) release() {
	g.store.staging.give(g.whole)
	g.mem, g.whole = nil, nil
}

func (g *Segment) path() string { return filepath.Join(g.store.opts.Dir, g.name) }

// Unlink takes the segment away. It is idempotent. A worker that takes segments away itself has done no harm.
func (g *Segment) Unlink() error {
	if g.gone {
		return nil
	}
	g.gone = true
	g.release()
	g.store.bytes.Add(int64(-g.size))
	if !g.made {
		return nil
	}
	if err := os.Remove(g.path()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Sweep takes away segments of processes that are gone, and returns how many it took. Processes of another container may
// share the folder and not be visible from here: only segments that are old, and this user's own, are taken, so that
// nothing that is still waited for is lost. Memory that nobody uses at the moment is given back.
func (s *Store) Sweep(now time.Time) (int, error) {
	s.staging.drop(false)
	entries, err := os.ReadDir(s.opts.Dir)
	if err != nil {
		return 0, fmt.Errorf("look for stale segments: %w", err)
	}
	n := 0
	var errs []error
	for _, e := range entries {
		pid, ok := owner(e.Name())
		if !ok {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || now.Sub(info.ModTime()) < s.opts.Stale || !s.left(pid, info) {
			continue
		}
		if err := os.Remove(filepath.Join(s.opts.Dir, e.Name())); err == nil {
			n++
		} else if !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return n, errors.Join(errs...)
}

// owner reads the process from a segment's name: mm_kwargs_{pid}_{12 hex digits}_{index}.
func owner(name string) (pid int, ok bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	parts := strings.Split(rest, "_")
	if len(parts) != 3 || len(parts[1]) != 12 {
		return 0, false
	}
	if _, err := hex.DecodeString(parts[1]); err != nil {
		return 0, false
	}
	if _, err := strconv.ParseUint(parts[2], 10, 31); err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(parts[0], 10, 31)
	return int(n), err == nil && n > 0
}

// left reports whether a segment's process is gone. What has this process's own number and is older than its store is
// another's: in a container, the successor often has the number of the one that was killed.
func (s *Store) left(pid int, info os.FileInfo) bool {
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() {
		return false
	}
	if pid == os.Getpid() { // with a second for the file system's coarser clock
		return info.ModTime().Before(s.began.Add(-time.Second))
	}
	return errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}
