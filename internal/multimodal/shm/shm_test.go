package shm_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/portico-llm/portico/internal/multimodal/shm"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestSegments(t *testing.T) {
	dir := t.TempDir()
	s := shm.New(shm.Options{Dir: dir, Bytes: 10_000_000})
	segments, err := s.Create([]int{3, 0, 5_000_000})
	if err != nil {
		t.Fatal(err)
	}
	form := regexp.MustCompile(fmt.Sprintf(`^mm_kwargs_%d_[0-9a-f]{12}_[0-9]+$`, os.Getpid()))
	for i, g := range segments {
		if !form.MatchString(g.Name()) || g.Size() != len(g.Bytes()) {
			t.Errorf("got %q of %d bytes", g.Name(), g.Size())
		}
		for j := range g.Bytes() {
			g.Bytes()[j] = byte(i + 'a')
		}
		for range 2 {
			if err := g.Seal(g.Size()); err != nil {
				t.Error(err)
			}
		}
		path := filepath.Join(dir, g.Name())
		data, err := os.ReadFile(path)
		if err != nil || len(data) != g.Size() || (len(data) > 0 && (data[0] != byte(i+'a') || data[len(data)-1] != byte(i+'a'))) {
			t.Errorf("the file has %d bytes, %v", len(data), err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("got %v, %v", info.Mode(), err)
		}
	}
	if s.Bytes() != 5_000_003 {
		t.Errorf("got %d bytes", s.Bytes())
	}
	// All or none, within the bound.
	if _, err := s.Create([]int{1000, 5_000_000}); !errors.Is(err, shm.ErrFull) {
		t.Errorf("got %v", err)
	}
	if n := len(names(t, dir)); n != 3 || s.Bytes() != 5_000_003 {
		t.Errorf("%d files and %d bytes stay after a failure", n, s.Bytes())
	}
	// A reader that has it open reads on.
	file, err := os.Open(filepath.Join(dir, segments[0].Name()))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := os.Remove(filepath.Join(dir, segments[2].Name())); err != nil { // as workers may
		t.Fatal(err)
	}
	for _, g := range segments {
		for range 2 {
			if err := g.Unlink(); err != nil {
				t.Error(err)
			}
		}
	}
	var buf [3]byte
	if _, err := file.Read(buf[:]); err != nil || string(buf[:]) != "aaa" {
		t.Errorf("got %q, %v", buf, err)
	}
	if left := names(t, dir); len(left) != 0 || s.Bytes() != 0 {
		t.Errorf("%v stay, and %d bytes", left, s.Bytes())
	}
}

// TestNoRoom: a system without room is a failure, not the end of the process.
func TestNoRoom(t *testing.T) {
	s := shm.New(shm.Options{Bytes: 1 << 60})
	if _, err := s.Create([]int{1 << 50}); !errors.Is(err, shm.ErrFull) {
		t.Errorf("a segment of a pebibyte: %v", err)
	}
	if s.Bytes() != 0 {
		t.Errorf("%d bytes stay", s.Bytes())
	}
	if _, err := shm.New(shm.Options{Dir: filepath.Join(t.TempDir(), "none")}).Create([]int{1}); err == nil {
		t.Error("a segment in a folder that isn't there")
	}
}

// TestSeal: the file has what was written and no more, whatever its memory held before.
func TestSeal(t *testing.T) {
	dir := t.TempDir()
	s := shm.New(shm.Options{Dir: dir})
	defer s.Close()
	for _, text := range []string{"a long secret", "short"} {
		segments, err := s.Create([]int{1000})
		if err != nil {
			t.Fatal(err)
		}
		g := segments[0]
		if g.Seal(1001) == nil || g.Seal(-1) == nil {
			t.Error("a file longer than its memory")
		}
		if err := g.Seal(copy(g.Bytes(), text)); err != nil || g.Bytes() != nil {
			t.Errorf("%v, and the memory is still there: %t", err, g.Bytes() != nil)
		}
		if data, err := os.ReadFile(filepath.Join(dir, g.Name())); err != nil || string(data) != text {
			t.Errorf("got %q, %v", data, err)
		}
		if err := g.Unlink(); err != nil {
			t.Error(err)
		}
	}
	// A segment that never became a file, and one whose name is taken, leave nothing.
	segments, err := s.Create([]int{10, 10})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, segments[1].Name()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := segments[1].Seal(10); err == nil {
		t.Error("a file in the place of a folder")
	}
	for _, g := range segments {
		if err := g.Unlink(); err != nil {
			t.Error(err)
		}
	}
	if left := names(t, dir); len(left) != 1 || s.Bytes() != 0 {
		t.Errorf("%v stay, and %d bytes", left, s.Bytes())
	}
}

// TestMemory: segments at the same time never share memory, also when it was used before.
func TestMemory(t *testing.T) {
	dir := t.TempDir()
	s := shm.New(shm.Options{Dir: dir})
	sizes := []int{1, 70 << 10, 3 << 20, 0}
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for round := range 5 {
				n := sizes[(worker+round)%len(sizes)]
				segments, err := s.Create([]int{n, 100})
				if err != nil {
					t.Error(err)
					return
				}
				mark := byte(1 + worker + 10*round)
				want := [][]byte{bytes.Repeat([]byte{mark}, n), bytes.Repeat([]byte{mark + 100}, 100)}
				for i, g := range segments {
					copy(g.Bytes(), want[i])
				}
				for i, g := range segments {
					if err := g.Seal(g.Size()); err != nil {
						t.Error(err)
					}
					if data, err := os.ReadFile(filepath.Join(dir, g.Name())); err != nil || !bytes.Equal(data, want[i]) {
						t.Errorf("a segment of %d bytes has another's, %v", n, err)
					}
					if err := g.Unlink(); err != nil {
						t.Error(err)
					}
				}
				if round == 3 {
					if _, err := s.Sweep(time.Now()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	// More than is kept; the memory isn't touched, so it costs nothing.
	if _, err := s.Create([]int{40 << 20, 40 << 20, 1 << 40}); !errors.Is(err, shm.ErrFull) {
		t.Errorf("got %v", err)
	}
	s.Close()
	if left := names(t, dir); len(left) != 0 || s.Bytes() != 0 {
		t.Errorf("%v stay, and %d bytes", left, s.Bytes())
	}
}

// TestNoSpace: a file system that fills up after memory was given is a failure of Seal, and leaves no file.
func TestNoSpace(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := shm.New(shm.Options{Dir: dir})
	defer s.Close()
	segments, err := s.Create([]int{100_000})
	if err != nil {
		t.Fatal(err)
	}
	// The bound of a file's size fails as a full file system does: in the middle of the file.
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 50_000, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	err = segments[0].Seal(100_000)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EFBIG) {
		t.Errorf("got %v", err)
	}
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("%v stay", left)
	}
	if err := segments[0].Unlink(); err != nil || s.Bytes() != 0 {
		t.Errorf("%v, and %d bytes stay", err, s.Bytes())
	}
}

// TestSweep: only what is old, this user's, named like a segment, and whose process is gone.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	old, young := time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	gone, parent, self := dead.Process.Pid, os.Getppid(), os.Getpid()
	keep := []string{}
	for name, at := range map[string]time.Time{
		fmt.Sprintf("mm_kwargs_%d_0123456789ab_0", gone):    old,
		fmt.Sprintf("mm_kwargs_%d_0123456789ab_12", gone):   old,
		fmt.Sprintf("mm_kwargs_%d_0123456789ab_0", self):    old, // a predecessor's with the same number
		fmt.Sprintf("+mm_kwargs_%d_0123456789ac_0", gone):   young,
		fmt.Sprintf("+mm_kwargs_%d_0123456789ab_0", parent): old,
		fmt.Sprintf("+mm_kwargs_%d_0123456789_0", gone):     old,
		fmt.Sprintf("+mm_kwargs_%d_0123456789xy_0", gone):   old,
		fmt.Sprintf("+mm_kwargs_%d_0123456789ab", gone):     old,
		fmt.Sprintf("+mm_kwargs_%d_0123456789ab_x", gone):   old,
		fmt.Sprintf("+psm_%d", gone):                        old,
		"+mm_kwargs_0_0123456789ab_0":                       old,
		"+mm_kwargs_-1_0123456789ab_0":                      old,
	} {
		if name[0] == '+' {
			name = name[1:]
			keep = append(keep, name)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	s := shm.New(shm.Options{Dir: dir})
	mine, err := s.Create([]int{1})
	if err != nil {
		t.Fatal(err)
	}
	if err := mine[0].Seal(1); err != nil {
		t.Fatal(err)
	}
	keep = append(keep, mine[0].Name())
	// Its own segments stay however old they are.
	n, err := s.Sweep(time.Now())
	if err != nil || n != 3 {
		t.Errorf("got %d, %v, want 3", n, err)
	}
	n, err = s.Sweep(time.Now().Add(time.Hour))
	if err != nil || n != 1 {
		t.Errorf("got %d, %v, want the one that was young", n, err)
	}
	left := map[string]bool{}
	for _, name := range names(t, dir) {
		left[name] = true
	}
	want := map[string]bool{}
	for _, name := range keep {
		if name != fmt.Sprintf("mm_kwargs_%d_0123456789ac_0", gone) {
			want[name] = true
		}
	}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Error(diff)
	}
	if err := mine[0].Unlink(); err != nil {
		t.Error(err)
	}
	if _, err := shm.New(shm.Options{Dir: filepath.Join(dir, "none")}).Sweep(time.Now()); err == nil {
		t.Error("a folder that isn't there is swept")
	}
}
