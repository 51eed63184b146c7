// Package file is discovery through a shared folder: one file per record, in a folder per bucket, alive for as long as
// its owner touches it.
//
//	ROOT/v1/instances/dynamo%2Fbackend%2Fgenerate%2F1f
//
// The folder is scanned at short intervals, and at once when the kernel reports a change: the scan alone decides what
// there is, so that a lost notification costs time and never a record. A folder that is missing is an empty one.
package file

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/portico-llm/portico/internal/router"
)

// DefaultTTL is how long a record lives after its last touch.
const DefaultTTL = 10 * time.Second

const (
	// defaultRescan bounds how late a change is seen when no notification arrives.
	defaultRescan = 500 * time.Millisecond
	// settle gathers the notifications of one burst into one scan.
	settle = 5 * time.Millisecond
	// writing is how long a file that is not yet JSON is taken to be still under way; after it, it is reported as it is.
	writing = time.Second
)

// Options of a Source. The zero value works.
type Options struct {
	Root   string        // empty: dynamo_store_kv in the temporary folder
	TTL    time.Duration // 0: 10 s; at least 1 s, as writers touch no more often
	Rescan time.Duration // 0: 500 ms
	Log    *slog.Logger  // nil: slog.Default()
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	if o.Root == "" {
		o.Root = filepath.Join(os.TempDir(), "dynamo_store_kv")
	}
	if o.TTL <= 0 {
		o.TTL = DefaultTTL
	}
	o.TTL = max(o.TTL, time.Second)
	if o.Rescan <= 0 {
		o.Rescan = defaultRescan
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Source watches a folder of records. Each Run is independent of others.
type Source struct{ opts Options }

var _ router.Source = (*Source)(nil)

// New returns a source over the folder; it need not exist.
func New(opts Options) *Source { return &Source{opts.withDefaults()} }

// Run implements router.Source: it follows the folder until ctx ends, and then returns nil. Records past their time are
// gone at once; their files are deleted, as every reader of such a folder does. A folder can't be so wrong that Run
// fails: what isn't there may come.
func (s *Source) Run(ctx context.Context, emit func(router.Change)) error {
	w := &watch{opts: s.opts, log: s.opts.Log, seen: map[string]*seen{}, dirty: map[string]bool{}, bucket: map[string]*bucketDir{}}
	for _, b := range router.Buckets() {
		w.bucket[b] = &bucketDir{name: b, path: filepath.Join(s.opts.Root, filepath.FromSlash(b))}
	}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		s.opts.Log.Warn("no file notifications, the folder is scanned instead", "root", s.opts.Root, "error", err)
	} else {
		w.notify = notify
		defer func() { _ = notify.Close() }() // nothing is written through it
	}
	return w.run(ctx, emit)
}

// watch is the state of one Run; one goroutine uses it.
type watch struct {
	opts   Options // with defaults
	log    *slog.Logger
	notify *fsnotify.Watcher     // nil: scanning alone
	bucket map[string]*bucketDir // by name of the bucket
	seen   map[string]*seen      // by key
	dirty  map[string]bool       // paths reported as written since the last scan: read even if they look the same
	listed bool                  // the first, full change has been emitted
}

// bucketDir is the folder of one bucket, which may come and go.
type bucketDir struct {
	name, path string      // v1/instances, and where it is
	watched    fs.FileInfo // the folder that is being watched; nil: none
	failing    bool        // unreadable, reported
}

// seen is a file at its last reading.
type seen struct {
	bucket string      // whose folder it is in
	info   fs.FileInfo // as it was then: identity, time and size tell whether to read again
	value  []byte      // what was emitted last; nil: nothing
	sent   bool        // the value has been emitted; a file still being written is seen but not sent
}

// run scans when a file changes, when a record's time is up, and at the latest after Options.Rescan.
func (w *watch) run(ctx context.Context, emit func(router.Change)) error {
	// Nil channels, which never deliver, stand for a watcher that couldn't be made.
	var events <-chan fsnotify.Event
	var failures <-chan error
	if w.notify != nil {
		events, failures = w.notify.Events, w.notify.Errors
	}
	// The first scan is due at once.
	timer := time.NewTimer(0)
	defer timer.Stop()
	hurried := false // the timer is set to settle; a steady flow of events must not put the scan off again and again
	soon := func() {
		if !hurried {
			hurried = true
			timer.Reset(settle)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev := <-events:
			// A touch is no news: the next scan reads it in time.
			if ev.Op != fsnotify.Chmod {
				w.dirty[ev.Name] = true
				soon()
			}
		// The kernel's queue has overflown, most likely: what was lost is found by looking.
		case err := <-failures:
			w.log.Debug("file notifications lost, scanning", "error", err)
			soon()
		case <-timer.C:
			hurried = false
			c, next := w.scan(time.Now())
			if c.Full || len(c.Put) > 0 || len(c.Removed) > 0 {
				emit(c)
			}
			timer.Reset(next)
		}
	}
}

// scan compares the folders with what was seen and returns the difference and when to look again. A folder that can't
// be read contributes nothing, and its records stay.
func (w *watch) scan(now time.Time) (c router.Change, next time.Duration) {
	next = w.opts.Rescan
	for _, name := range router.Buckets() {
		w.scanBucket(w.bucket[name], now, &c, &next)
	}
	clear(w.dirty)
	// The first change is complete by definition; what the sink knew before is none of ours.
	if !w.listed {
		w.listed, c.Full, c.Removed = true, true, nil
	}
	slices.Sort(c.Removed)
	// Never at once: a clock that jumps must not make this a busy loop.
	return c, max(next, settle)
}

// scanBucket adds a folder's differences to c, and shortens next to when its first record is due.
func (w *watch) scanBucket(b *bucketDir, now time.Time, c *router.Change, next *time.Duration) {
	w.follow(b) // before reading, so that nothing falls between
	entries, err := os.ReadDir(b.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		// Unreadable is not empty: what was known stays until the folder can be read again.
		if !b.failing {
			b.failing = true
			w.log.Warn("discovery folder can't be read, known records stay", "path", b.path, "error", err)
		}
		return
	}
	if b.failing {
		b.failing = false
		w.log.Info("discovery folder can be read again", "path", b.path)
	}
	present := make(map[string]struct{}, len(entries))
	for _, e := range entries {
		w.scanEntry(b, e, now, present, c, next)
	}
	// What was seen and is no longer there has been removed, or has expired just now.
	for key, s := range w.seen {
		if _, ok := present[key]; !ok && s.bucket == b.name {
			delete(w.seen, key)
			if s.sent {
				c.Removed = append(c.Removed, key)
			}
		}
	}
}

// scanEntry looks at one file: it deletes it when its time is up, and otherwise notes its key as present and reads it.
func (w *watch) scanEntry(b *bucketDir, e fs.DirEntry, now time.Time, present map[string]struct{}, c *router.Change,
	next *time.Duration,
) {
	name, ok := decode(e.Name())
	temp := strings.HasPrefix(e.Name(), tempPrefix)
	if !ok && !temp || !e.Type().IsRegular() {
		return
	}
	key := b.name + "/" + name
	file := filepath.Join(b.path, e.Name())
	info, err := e.Info()
	// Temporary files of writers that died expire like records.
	if err == nil && now.Sub(info.ModTime()) > w.opts.TTL {
		info, err = w.expire(file)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return // deleted meanwhile, or just now
	case err != nil:
		// That a file can't be looked at doesn't say that it is gone: what was known stays.
		w.log.Debug("discovery record can't be looked at", "path", file, "error", err)
		if _, known := w.seen[key]; known && !temp {
			present[key] = struct{}{}
		}
		return
	case temp:
		return
	}
	age := now.Sub(info.ModTime())
	*next = min(*next, w.opts.TTL-age+time.Millisecond)
	present[key] = struct{}{}
	w.read(b, key, file, info, age, c)
}

// read adds the file to the change if its content is new. A file that vanishes between listing and reading is left to
// the next scan. age is the time since the last write or touch, by which a half-written file is told from a broken one.
func (w *watch) read(b *bucketDir, key, file string, info fs.FileInfo, age time.Duration, c *router.Change) {
	old := w.seen[key]
	if old != nil && !w.dirty[file] && os.SameFile(old.info, info) &&
		old.info.ModTime().Equal(info.ModTime()) && old.info.Size() == info.Size() && old.sent {
		return
	}
	value, err := os.ReadFile(file)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			w.log.Debug("discovery record can't be read", "path", file, "error", err)
		}
		if old == nil {
			w.seen[key] = &seen{bucket: b.name, info: info}
		}
		return
	}
	if age < writing && !json.Valid(value) {
		// Somebody writes in place. What was known stays, and the next scan looks again.
		if old == nil {
			w.seen[key] = &seen{bucket: b.name, info: info}
		}
		return
	}
	// A touch changes the time and not the value, which is no change to anybody.
	same := old != nil && old.sent && string(old.value) == string(value)
	w.seen[key] = &seen{bucket: b.name, info: info, value: value, sent: true}
	if !same {
		c.Put = append(c.Put, router.Record{Key: key, Value: value})
	}
}

// expire deletes a file whose owner is gone and returns fs.ErrNotExist, or what the file is now: the owner may have
// touched it since the listing, and then it stays. Deleting is left to whoever comes first; that it fails doesn't make
// the record live on. Other errors mean that nobody knows.
func (w *watch) expire(file string) (fs.FileInfo, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if time.Since(info.ModTime()) <= w.opts.TTL {
		return info, nil
	}
	switch err := os.Remove(file); {
	case err == nil:
		w.log.Info("discovery record expired", "path", file)
	case !errors.Is(err, fs.ErrNotExist):
		w.log.Debug("expired discovery record can't be deleted", "path", file, "error", err)
	}
	return nil, fs.ErrNotExist
}

// follow keeps the notification on the folder that now stands at the path: it may have been created, or replaced, since
// the last scan. Watches belong to a folder's identity, not to its path.
func (w *watch) follow(b *bucketDir) {
	if w.notify == nil {
		return
	}
	info, err := os.Stat(b.path)
	if err != nil || !info.IsDir() {
		b.drop(w.notify)
		return
	}
	if b.watched != nil && os.SameFile(b.watched, info) {
		return
	}
	b.drop(w.notify)
	if err := w.notify.Add(b.path); err != nil {
		w.log.Debug("folder can't be watched, scanning", "path", b.path, "error", err)
		return
	}
	b.watched = info
}

// drop ends the notification, if there is one.
func (b *bucketDir) drop(notify *fsnotify.Watcher) {
	if b.watched == nil {
		return
	}
	b.watched = nil
	_ = notify.Remove(b.path) // the kernel has often dropped it already
}
