package file_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/discovery/file"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// view is what a source has reported, by key.
type view struct {
	mu      sync.Mutex
	records map[string]string
	emits   int
	problem string
}

func (v *view) take(c router.Change) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if (v.emits == 0) != c.Full {
		v.problem = fmt.Sprintf("change %d has Full=%v", v.emits, c.Full)
	}
	v.emits++
	for _, key := range c.Removed {
		if _, ok := v.records[key]; !ok {
			v.problem = "removed without being there: " + key
		}
		delete(v.records, key)
	}
	for _, r := range c.Put {
		v.records[r.Key] = string(r.Value)
	}
}

func (v *view) now() map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.records)
}

// watch runs a source over root until the test ends.
func watch(t *testing.T, opts file.Options) *view {
	t.Helper()
	opts.Log = quiet
	v := &view{records: map[string]string{}}
	g := lifecycle.New(t.Context())
	g.Go("source", func(ctx context.Context) error { return file.New(opts).Run(ctx, v.take) })
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
		if v.problem != "" {
			t.Error(v.problem)
		}
	})
	return v
}

// within waits until the view holds exactly want, and returns how long that took.
func within(t *testing.T, v *view, limit time.Duration, want map[string]string) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		got := v.now()
		if maps.Equal(got, want) {
			return time.Since(start)
		}
		if time.Since(start) > limit {
			t.Fatalf("after %s (-want +got):\n%s", limit, cmp.Diff(want, got))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

const (
	inst1, inst2 = "v1/instances/ns/c/gen/1", "v1/instances/ns/c/gen/2"
	model1       = "v1/mdc/ns/c/gen/1"
)

func register(t *testing.T, opts file.Options) *file.Registrar {
	t.Helper()
	opts.Log = quiet
	r := file.NewRegistrarWith(opts)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func put(t *testing.T, r *file.Registrar, key, value string) {
	t.Helper()
	if err := r.Put(t.Context(), key, []byte(value)); err != nil {
		t.Fatal(err)
	}
}

func TestSourceFollowsRegistrar(t *testing.T) {
	root := filepath.Join(t.TempDir(), "kv") // not there at the start
	v := watch(t, file.Options{Root: root})
	r := register(t, file.Options{Root: root})
	put(t, r, inst1, `{"a":1}`)
	put(t, r, model1, `{"m":1}`)
	within(t, v, time.Second, map[string]string{inst1: `{"a":1}`, model1: `{"m":1}`})

	put(t, r, inst1, `{"a":2}`)
	put(t, r, inst2, `{}`)
	took := within(t, v, time.Second, map[string]string{inst1: `{"a":2}`, inst2: `{}`, model1: `{"m":1}`})
	if took > 250*time.Millisecond {
		t.Errorf("seen after %s: by a scan, not a notification", took)
	}
	if err := r.Remove(t.Context(), inst2); err != nil {
		t.Fatal(err)
	}
	within(t, v, time.Second, map[string]string{inst1: `{"a":2}`, model1: `{"m":1}`})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, v, time.Second, map[string]string{})
	if left, _ := filepath.Glob(root + "/v1/*/*"); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := r.Put(t.Context(), inst1, nil); err == nil {
		t.Error("a closed registrar publishes")
	}
	if err := r.Put(t.Context(), "v1/other/x", nil); err == nil {
		t.Error("an unknown bucket was taken")
	}
}

func TestFolderVanishesAndReturns(t *testing.T) {
	root := t.TempDir()
	v := watch(t, file.Options{Root: root})
	r := register(t, file.Options{Root: root, TTL: time.Second}) // touches every second
	put(t, r, inst1, `{}`)
	within(t, v, time.Second, map[string]string{inst1: `{}`})
	if err := os.RemoveAll(filepath.Join(root, "v1")); err != nil {
		t.Fatal(err)
	}
	within(t, v, 900*time.Millisecond, map[string]string{})
	// The owner publishes what it finds missing, into a folder made anew, which is then watched like the old one.
	within(t, v, 3*time.Second, map[string]string{inst1: `{}`})
	put(t, r, inst2, `{}`)
	within(t, v, time.Second, map[string]string{inst1: `{}`, inst2: `{}`})
}

func TestExpiry(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "v1", "instances")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name string, age time.Duration) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(`{}`), 0o644); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		return path
	}
	dead := write("ns%2Fc%2Fgen%2F1", 11*time.Second)
	temp := write(".tmp_00ff", 11*time.Second)
	fresh := write(".tmp_00fe", 0)
	lock := write(".lock", time.Hour)
	dying := write("ns%2Fc%2Fgen%2F2", 9*time.Second)
	write("ns%2Fc%2Fgen%2F3", 0)
	v := watch(t, file.Options{Root: root})
	inst3 := "v1/instances/ns/c/gen/3"
	within(t, v, 500*time.Millisecond, map[string]string{inst2: `{}`, inst3: `{}`})
	for _, path := range []string{dead, temp} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	for _, path := range []string{fresh, lock} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	// One second before its end: gone when the time is up, not a scan later, and not before.
	took := within(t, v, 1500*time.Millisecond, map[string]string{inst3: `{}`})
	if took < 700*time.Millisecond || took > 1200*time.Millisecond {
		t.Errorf("expired after %s", took)
	}
	if _, err := os.Stat(dying); !os.IsNotExist(err) {
		t.Errorf("the expired file is still there: %v", err)
	}
}

func TestTouchKeepsAlive(t *testing.T) {
	root := t.TempDir()
	v := watch(t, file.Options{Root: root, TTL: 2 * time.Second})
	r := register(t, file.Options{Root: root, TTL: 2 * time.Second})
	put(t, r, inst1, `{}`)
	within(t, v, time.Second, map[string]string{inst1: `{}`})
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if len(v.now()) != 1 {
			t.Fatal("a touched record vanished")
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.emits > 3 {
		t.Errorf("%d changes: touching is no news", v.emits)
	}
}

// A writer that fills the file in place is waited for; what was known stays meanwhile.
func TestPartialWrites(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "v1", "instances")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	v := watch(t, file.Options{Root: root})
	path := filepath.Join(dir, "ns%2Fc%2Fgen%2F1")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, part := range []string{`{"a`, `":`, `1`} {
		if _, err := f.WriteString(part); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Millisecond)
		if got := v.now(); len(got) != 0 {
			t.Fatalf("half a record was reported: %v", got)
		}
	}
	if _, err := f.WriteString(`}`); err != nil {
		t.Fatal(err)
	}
	within(t, v, time.Second, map[string]string{inst1: `{"a":1}`})
	if err := os.WriteFile(path, []byte(`{"a":2`), 0o644); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	within(t, v, 0, map[string]string{inst1: `{"a":1}`})
	// Nobody finishes it: after a while it is reported as it is, for the reader to judge.
	within(t, v, 3*time.Second, map[string]string{inst1: `{"a":2`})
}

// An unreadable folder is not an empty one. The folder stands behind a link, which can be turned in one step to
// something that can't be listed, even by root.
func TestUnreadableFolderKeepsRecords(t *testing.T) {
	root, real := t.TempDir(), t.TempDir()
	broken := filepath.Join(t.TempDir(), "broken")
	link := filepath.Join(root, "v1", "instances")
	turn := func(target string) {
		t.Helper()
		if err := os.Symlink(target, link+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link+".new", link); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(broken, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "v1"), 0o755); err != nil {
		t.Fatal(err)
	}
	turn(real)
	v := watch(t, file.Options{Root: root})
	r := register(t, file.Options{Root: root})
	put(t, r, inst1, `{}`)
	within(t, v, time.Second, map[string]string{inst1: `{}`})
	turn(broken)
	time.Sleep(1200 * time.Millisecond) // two scans
	within(t, v, 0, map[string]string{inst1: `{}`})
	turn(real)
	put(t, r, inst2, `{}`)
	within(t, v, time.Second, map[string]string{inst1: `{}`, inst2: `{}`})
}

// Random writers, some of them rough, end where the folder ends.
func TestRandomHistory(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	root := t.TempDir()
	v := watch(t, file.Options{Root: root})
	r := register(t, file.Options{Root: root})
	want := map[string]string{}
	for step := range 300 {
		key := fmt.Sprintf("%s/ns/c/ep_%d/%x", []string{router.BucketInstances, router.BucketModels}[rng.IntN(2)],
			rng.IntN(3), rng.IntN(4))
		switch rng.IntN(8) {
		case 0, 1:
			if err := r.Remove(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			delete(want, key)
		case 2:
			if err := os.RemoveAll(filepath.Join(root, "v1", "mdc")); err != nil {
				t.Fatal(err)
			}
			for key := range want {
				if strings.HasPrefix(key, router.BucketModels) {
					delete(want, key)
					if err := r.Remove(t.Context(), key); err != nil {
						t.Fatal(err)
					}
				}
			}
		default:
			value := fmt.Sprintf(`{"step":%d}`, step)
			put(t, r, key, value)
			want[key] = value
		}
		if rng.IntN(20) == 0 {
			took := within(t, v, time.Second, want)
			t.Logf("step %d: %d records after %s", step, len(want), took)
		}
	}
	t.Logf("seed %d, keys %v", seed, slices.Sorted(maps.Keys(want)))
	within(t, v, time.Second, want)
}
