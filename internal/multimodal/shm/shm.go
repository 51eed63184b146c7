// Package shm hands blobs to workers on the same machine through files in shared memory, named as Dynamo's workers look
// for them. A segment is there from Create to Unlink; a worker that has opened it can read it to the end all the same.
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
	"unsafe"

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
	opts  Options
	began time.Time
	bytes atomic.Int64 // of the segments that are there
}

// New returns a Store. It touches nothing. A process has one for each folder.
func New(opts Options) *Store { return &Store{opts: opts.withDefaults(), began: time.Now()} }

// Bytes returns the bytes of all segments that are there.
func (s *Store) Bytes() int64 { return s.bytes.Load() }

// Segment is one file in shared memory. Until Seal it is mapped and can be written to.
type Segment struct {
	store *Store
	name  string
	mem   []byte // nil once sealed
	size  int
	gone  bool // unlinked
}

// prefix begins the names of all segments, of this process's and of others'.
const prefix = "mm_kwargs_"

// Create makes a segment for each size, all or none. The index in a segment's name counts from 0.
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
	mem, err := s.allocate(name, n)
	if err != nil {
		s.bytes.Add(int64(-n))
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) {
			err = errors.Join(ErrFull, err)
		}
		return nil, fmt.Errorf("make a segment of %d bytes: %w", n, err)
	}
	return &Segment{store: s, name: name, mem: mem, size: n}, nil
}

// allocate makes a file and maps it. Its pages are taken at once: writing to a page that the system has no room for
// would end the process.
func (s *Store) allocate(name string, n int) (_ []byte, err error) {
	path := filepath.Join(s.opts.Dir, name)
	// Only this user's workers may read it, as with the segments of Dynamo's frontend.
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = file.Close() // the mapping stays
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	if n == 0 {
		return []byte{}, nil
	}
	if err := unix.Fallocate(int(file.Fd()), 0, 0, int64(n)); err != nil {
		return nil, err
	}
	p, err := unix.MmapPtr(int(file.Fd()), 0, nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), n), nil
}

// Name is what a worker is told; Size goes with it.
func (g *Segment) Name() string { return g.name }

// Size is the length in bytes.
func (g *Segment) Size() int { return g.size }

// Bytes returns the memory, to be written to until Seal. It must not be used afterwards.
func (g *Segment) Bytes() []byte { return g.mem }

// Seal ends writing: the memory is no longer mapped here, and the file stays.
func (g *Segment) Seal() {
	if len(g.mem) > 0 {
		_ = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(g.mem)), uintptr(len(g.mem))) // fails for a wrong address alone
	}
	g.mem = nil
}

// Unlink takes the segment away. It is idempotent. A worker that takes segments away itself has done no harm.
func (g *Segment) Unlink() error {
	if g.gone {
		return nil
	}
	g.gone = true
	g.Seal()
	g.store.bytes.Add(int64(-g.size))
	err := os.Remove(filepath.Join(g.store.opts.Dir, g.name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Sweep takes away segments of processes that are gone, and returns how many it took. Processes of another container may
// share the folder and not be visible from here: only segments that are old, and this user's own, are taken, so that
// nothing that is still waited for is lost.
func (s *Store) Sweep(now time.Time) (int, error) {
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
