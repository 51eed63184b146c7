package transfer_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/multimodal/transfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newTransfer returns a Transfer through shared memory in a folder of its own.
func newTransfer(t *testing.T, opts transfer.Options) (*transfer.Transfer, string) {
	t.Helper()
	opts.ShmDir = t.TempDir()
	opts.Registerer = prometheus.NewRegistry()
	tr := transfer.New(opts)
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := os.ReadDir(opts.ShmDir); len(left) != 0 || tr.Stats().SegmentBytes != 0 {
			t.Errorf("%v stay, %+v", left, tr.Stats())
		}
	})
	return tr, opts.ShmDir
}

// TestSegments: what a worker is told leads to what was written.
func TestSegments(t *testing.T) {
	tr, dir := newTransfer(t, transfer.Options{})
	b, err := tr.Open(t.Context(), []int{5, 10})
	if err != nil {
		t.Fatal(err)
	}
	copy(b.Bytes(0), "hello")
	copy(b.Bytes(1), "world")
	b.Told()
	field, value, err := b.Kwargs("image", []int{5, 5}, []string{"a", "b"})
	if err != nil || field != "mm_kwargs_shm" || b.Way() != "shm" {
		t.Fatalf("got %s, %v", field, err)
	}
	var got struct {
		Modality string
		Items    []struct {
			Name string
			Size int
		}
		Hashes []string `json:"mm_hashes"`
	}
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"hello", "world"} {
		data, err := os.ReadFile(filepath.Join(dir, got.Items[i].Name))
		if err != nil || string(data[:got.Items[i].Size]) != want {
			t.Errorf("got %q, %v, want %q", data, err, want)
		}
	}
	if got.Modality != "image" || strings.Join(got.Hashes, "") != "ab" {
		t.Errorf("got %+v", got)
	}
	b.Close()
	b.Close()
	(*transfer.Batch)(nil).Close()
}

// TestLength: an item that is longer than its memory is told to nobody.
func TestLength(t *testing.T) {
	tr, _ := newTransfer(t, transfer.Options{})
	b, err := tr.Open(t.Context(), []int{5})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, _, err := b.Kwargs("image", []int{6}, []string{"a"}); err == nil {
		t.Error("six bytes of five")
	}
}

// TestFull: without room there is an error that says so, and nothing is held.
func TestFull(t *testing.T) {
	tr, _ := newTransfer(t, transfer.Options{PoolBytes: 1000})
	b, err := tr.Open(t.Context(), []int{600})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Open(t.Context(), []int{100, 600}); !errors.Is(err, transfer.ErrNone) {
		t.Errorf("got %v", err)
	}
	b.Close()
	for end := time.Now().Add(5 * time.Second); tr.Stats().SegmentBytes > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if b, err = tr.Open(t.Context(), []int{100, 600}); err != nil {
		t.Fatal(err)
	}
	b.Close()
}

// TestNoLibrary: NIXL that isn't there is one line in the log.
func TestNoLibrary(t *testing.T) {
	var log bytes.Buffer
	tr, _ := newTransfer(t, transfer.Options{
		NIXL: true, Libraries: []string{"/none/libnixl_capi.so"}, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	b, err := tr.Open(t.Context(), []int{1})
	if err != nil || b.Way() != "shm" || tr.NIXL() {
		t.Fatalf("got %v", err)
	}
	b.Close()
	if none := transfer.New(transfer.Options{NIXL: true, Log: slog.New(slog.DiscardHandler)}); none.NIXL() {
		t.Error("NIXL without a library")
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "/none/libnixl_capi.so") {
		t.Errorf("got %q", log.String())
	}
}

// TestSweeps: what a dead process left goes while the transfer runs, and the run ends with its context.
func TestSweeps(t *testing.T) {
	tr, dir := newTransfer(t, transfer.Options{Stale: time.Minute})
	old := time.Now().Add(-time.Hour)
	path := filepath.Join(dir, "mm_kwargs_2000000000_0123456789ab_0")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	g := lifecycle.New(t.Context())
	g.Go("transfer", tr.Run)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(path); err != nil {
			break
		}
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}

// TestMany: batches of many requests at once leave nothing, also those that are closed when the process ends.
func TestMany(t *testing.T) {
	tr, _ := newTransfer(t, transfer.Options{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				b, err := tr.Open(t.Context(), []int{1000, 1})
				if err != nil {
					t.Error(err)
					return
				}
				b.Told()
				b.Close()
			}
		})
	}
	wg.Wait()
}
