package images_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/transfer"
)

// TestShm: Dynamo's receiver reads what is put into shared memory, and nothing stays there.
func TestShm(t *testing.T) {
	tr := newTransfer(t, transfer.Options{})
	r := newReader(t)
	random := rand.NewChaCha8([32]byte{1})
	var names []string
	for range 4 {
		s := ship(t, tr, random, 1, 100, 7<<20, 20<<20)
		a := r.wait(r.send(order{Args: s.args}), 30*time.Second)
		if a.Error != "" || !cmp.Equal(a.Sums, s.sums) {
			t.Fatalf("got %+v, want %v", a, s.sums)
		}
		names = append(names, string(s.args["mm_kwargs_shm"]))
		s.Close()
	}
	eventually(t, 5*time.Second, "segments are taken away", func() bool { return tr.Stats().SegmentBytes == 0 })
	// Whoever reads later is told that there is nothing.
	s := ship(t, tr, random, 1000)
	s.Close()
	eventually(t, 5*time.Second, "the segment is taken away", func() bool { return tr.Stats().SegmentBytes == 0 })
	if a := r.wait(r.send(order{Args: s.args}), 30*time.Second); a.Error == "" {
		t.Error("a segment is read after its end")
	}
	left, err := filepath.Glob("/dev/shm/mm_kwargs_*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		for _, n := range names {
			if strings.Contains(n, filepath.Base(path)) {
				t.Errorf("%s was left behind", path)
			}
		}
	}
}

// transports runs a test with what UCX chooses on one machine, and over TCP. The choice is made when a process opens the
// library, so this process's own is given from outside; a reader that knows only TCP makes both use it.
func transports(t *testing.T, f func(t *testing.T, env string)) {
	needNIXL(t)
	for _, tls := range []string{"all", "tcp,self"} {
		t.Run(tls, func(t *testing.T) { f(t, "UCX_TLS="+tls) })
	}
}

// TestNIXL: Dynamo's receivers read what was registered, the slots are used again, and a reader that comes later gets
// zeros in place of another request's bytes.
func TestNIXL(t *testing.T) {
	transports(t, func(t *testing.T, env string) {
		tr := newTransfer(t, transfer.Options{NIXL: true, Cleanup: 300 * time.Millisecond})
		r := newReader(t, env)
		random := rand.NewChaCha8([32]byte{2})
		check := func(o order, s *shipment) {
			t.Helper()
			a := r.wait(r.send(o), 60*time.Second)
			if a.Error != "" || !cmp.Equal(a.Sums, s.sums) {
				t.Fatalf("got %+v, want %v", a, s.sums)
			}
		}
		// One after the other in the same slots.
		for range 3 {
			s := ship(t, tr, random, 1, 5000, 7<<20, 20<<20)
			check(order{Args: s.args}, s)
			s.Close()
			eventually(t, 5*time.Second, "slots are free", func() bool { return tr.Stats().Slots.Taken == 0 })
		}
		if st := tr.Stats().Slots; st.Free != 4 {
			t.Errorf("got %+v, want the 4 slots of the first request", st)
		}
		s := ship(t, tr, random, 3<<20)
		check(order{Args: s.args, Plain: true}, s)
		s.Close()

		// Read in time, but after the answer has ended.
		s = ship(t, tr, random, 6<<20)
		id := r.send(order{Args: s.args, After: .1})
		s.Close()
		if a := r.wait(id, 30*time.Second); a.Error != "" || !cmp.Equal(a.Sums, s.sums) {
			t.Errorf("got %+v, want %v", a, s.sums)
		}
		eventually(t, 5*time.Second, "slots are free", func() bool { return tr.Stats().Slots.Taken == 0 })

		// Never read: given up. Whoever comes then sees zeros, also when others use the pool meanwhile.
		late := ship(t, tr, random, 6<<20)
		before := tr.Stats().Slots.Bytes
		late.Close()
		eventually(t, 5*time.Second, "the slot is given up", func() bool { return tr.Stats().Slots.Bytes < before })
		other := ship(t, tr, random, 6<<20)
		if a := r.wait(r.send(order{Args: late.args}), 60*time.Second); a.Error != "" || !cmp.Equal(a.Zeros, []bool{true}) {
			t.Errorf("a late reader got %+v, want zeros", a)
		}
		check(order{Args: other.args}, other)
		other.Close()
	})
}

// TestTogether: many readers at once, each with bytes of its own.
func TestTogether(t *testing.T) {
	transports(t, func(t *testing.T, env string) {
		tr := newTransfer(t, transfer.Options{NIXL: true, Cleanup: 10 * time.Second})
		r := newReader(t, env)
		random := rand.NewChaCha8([32]byte{3})
		for range 2 {
			var all []*shipment
			var ids []int
			for i := range 16 {
				all = append(all, ship(t, tr, random, 1<<20+i, 100*i+1))
				ids = append(ids, r.send(order{Args: all[i].args, Beside: true}))
			}
			for i, s := range all {
				if a := r.wait(ids[i], 60*time.Second); a.Error != "" || !cmp.Equal(a.Sums, s.sums) {
					t.Fatalf("reader %d got %+v, want %v", i, a, s.sums)
				}
				s.Close()
			}
			eventually(t, 5*time.Second, "slots are free", func() bool { return tr.Stats().Slots.Taken == 0 })
		}
	})
}

// TestKilledReader: a worker that dies while it reads does no harm to the others.
func TestKilledReader(t *testing.T) {
	transports(t, func(t *testing.T, env string) {
		tr := newTransfer(t, transfer.Options{NIXL: true, Cleanup: 300 * time.Millisecond})
		random := rand.NewChaCha8([32]byte{4})
		dying, well := newReader(t, env), newReader(t, env)
		s := ship(t, tr, random, 1<<20)
		if a := dying.wait(dying.send(order{Args: s.args}), 60*time.Second); a.Error != "" {
			t.Fatal(a.Error)
		}
		s.Close()
		var unread []*shipment
		for i := range 3 {
			unread = append(unread, ship(t, tr, random, 32<<20, 32<<20))
			dying.send(order{Args: unread[i].args, Beside: true})
		}
		if err := dying.cmd.Process.Signal(os.Kill); err != nil {
			t.Fatal(err)
		}
		for _, s := range unread {
			s.Close()
		}
		for range 3 {
			s := ship(t, tr, random, 2<<20)
			if a := well.wait(well.send(order{Args: s.args}), 60*time.Second); a.Error != "" || !cmp.Equal(a.Sums, s.sums) {
				t.Fatalf("got %+v, want %v", a, s.sums)
			}
			s.Close()
		}
		eventually(t, 5*time.Second, "all slots are free or given up", func() bool { return tr.Stats().Slots.Taken == 0 })
	})
}

// TestPixels: Dynamo's reader of decoded images gets the pixels, and memory whose reader can't be heard is not used again.
func TestPixels(t *testing.T) {
	transports(t, func(t *testing.T, env string) {
		tr := newTransfer(t, transfer.Options{NIXL: true, Cleanup: 100 * time.Millisecond})
		r := newReader(t, env)
		random := rand.NewChaCha8([32]byte{5})
		for i, size := range [][2]int{{640, 480}, {1, 1}, {33, 77}} {
			width, height := size[0], size[1]
			b, err := tr.OpenNIXL(t.Context(), []int{width * height * 3})
			if err != nil {
				t.Fatal(err)
			}
			_, _ = random.Read(b.Bytes(0))
			sum := sha256.Sum256(append(fmt.Appendf(nil, "(%d, %d, 3)", height, width), b.Bytes(0)...))
			b.Told()
			image, err := b.Pixels(0, &multimodal.Pixels{
				Header: multimodal.Header{Format: multimodal.PNG, Width: width, Height: height}, Data: b.Bytes(0)})
			if err != nil {
				t.Fatal(err)
			}
			a := r.wait(r.send(order{Image: image}), 60*time.Second)
			if a.Error != "" || !cmp.Equal(a.Sums, []string{hex.EncodeToString(sum[:])}) {
				t.Fatalf("image %d: got %+v, want %x", i, a, sum)
			}
			b.Close()
			eventually(t, 5*time.Second, "the slot is given up", func() bool { return tr.Stats().Slots.Bytes == 0 })
		}
	})
}

// TestShutdown: a process that ends gives up at once what still waits for its readers.
func TestShutdown(t *testing.T) {
	needNIXL(t)
	for _, overNIXL := range []bool{true, false} {
		tr := transfer.New(transfer.Options{
			NIXL: overNIXL, Libraries: libraries(), Cleanup: time.Hour, Log: slog.New(slog.DiscardHandler)})
		group := lifecycle.New(t.Context())
		group.Go("transfer", tr.Run)
		random := rand.NewChaCha8([32]byte{6})
		for range 3 {
			ship(t, tr, random, 1<<20, 1000).Close()
		}
		begin := time.Now()
		if err := errors.Join(group.Stop(), tr.Close()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("the end took %v", took)
		}
		if st := tr.Stats(); st.Slots.Bytes != 0 || st.Slots.Taken != 0 || st.SegmentBytes != 0 {
			t.Errorf("%+v stays", st)
		}
	}
}
