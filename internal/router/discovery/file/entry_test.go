package file

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/router"
)

// entry is a listed file that can't be looked at, or one that looks old.
type entry struct {
	fs.FileInfo // nil: err
	err         error
}

func (entry) Name() string                 { return "ff" }
func (entry) IsDir() bool                  { return false }
func (entry) Type() fs.FileMode            { return 0 }
func (entry) Mode() fs.FileMode            { return 0 }
func (entry) ModTime() time.Time           { return time.Now().Add(-time.Hour) }
func (e entry) Info() (fs.FileInfo, error) { return e, e.err }

// TestUnknownIsNotGone keeps a known record whose file can't be looked at, and drops one whose file is gone.
func TestUnknownIsNotGone(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain") // nothing can be looked up below it, which isn't ErrNotExist
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, path string
		entry      entry
		known      bool
		stays      bool
	}{
		{"gone", t.TempDir(), entry{err: fs.ErrNotExist}, true, false},
		{"unreadable", t.TempDir(), entry{err: errors.New("input/output error")}, true, true},
		{"unreadable and new", t.TempDir(), entry{err: errors.New("input/output error")}, false, false},
		{"old and gone", t.TempDir(), entry{}, true, false},
		{"old and unreadable", plain, entry{}, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := &watch{opts: Options{}.withDefaults(), log: slog.New(slog.DiscardHandler), seen: map[string]*seen{}}
			b := &bucketDir{name: router.BucketInstances, path: tc.path}
			key := b.name + "/ff"
			if tc.known {
				w.seen[key] = &seen{bucket: b.name, sent: true}
			}
			present, next := map[string]struct{}{}, time.Second
			w.scanEntry(b, tc.entry, time.Now(), present, &router.Change{}, &next)
			if _, ok := present[key]; ok != tc.stays {
				t.Errorf("present: %v", ok)
			}
		})
	}
}
