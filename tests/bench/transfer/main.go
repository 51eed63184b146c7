// Command transfer measures how images are handed to workers: what it costs, and what stays when nobody reads them. The
// Python peers must be there, with NIXL, whose library this program opens too; `make bench-mm` sees to that.
//
//	go run ./tests/bench/transfer           # a minute
//	go run ./tests/bench/transfer -short    # fewer of everything
//
// Dynamo's connector does the same work beside it, in the same run, where it has a part that can be compared.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/multimodal/nixl"
	"github.com/portico-llm/portico/internal/multimodal/transfer"
	"github.com/portico-llm/portico/tests/e2e/stack"
)

const mib = 1 << 20

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "transfer:", err)
		os.Exit(1)
	}
}

// settings are the command line and what follows from it.
type settings struct {
	root, library, site, python string
	short                       bool
	unread                      int // this process is one that measures so many unread transfers
}

func run(args []string) error {
	s := &settings{}
	f := flag.NewFlagSet("transfer", flag.ContinueOnError)
	f.StringVar(&s.root, "root", ".", "folder of the repository")
	f.BoolVar(&s.short, "short", false, "fewer of everything")
	f.StringVar(&s.library, "nixl-library", "", "NIXL's libnixl_capi.so; empty: that of the peers")
	f.IntVar(&s.unread, "unread", 0, "only measure the memory of so many transfers that nobody reads")
	if err := f.Parse(args); err != nil {
		return err
	}
	if s.unread > 0 {
		return s.measureUnread(s.unread)
	}
	tools, err := stack.FindTools(s.root, false)
	if err != nil {
		return err
	}
	s.python, s.site = filepath.Join(tools.Venv, "bin", "python"), os.Getenv("PORTICO_NIXL_SITE")
	if s.library == "" {
		places := nixl.Find(tools.Venv)
		if found, _ := filepath.Glob(filepath.Join(s.site, ".nixl*.mesonpy.libs", "libnixl_capi.so")); s.site != "" && len(found) > 0 {
			places = found
		}
		s.library = places[0]
	}
	if err := s.costs(); err != nil {
		return err
	}
	return s.memory()
}

// open starts a Transfer; close ends it.
func (s *settings) open(opts transfer.Options) (t *transfer.Transfer, close func() error, err error) {
	opts.Libraries, opts.Log = []string{s.library}, slog.New(slog.NewTextHandler(io.Discard, nil))
	t = transfer.New(opts)
	if opts.NIXL && !t.NIXL() {
		return nil, nil, fmt.Errorf("NIXL can't be used with %s: the environment of PORTICO_VENV may lack it (see tests/peers/README.md)",
			s.library)
	}
	g := lifecycle.New(context.Background())
	g.Go("transfer", t.Run)
	return t, func() error {
		if err := g.Stop(); err != nil {
			return err
		}
		return t.Close()
	}, nil
}

// times are durations of the same step.
type times []time.Duration

// String gives the median and the 95th percentile in milliseconds.
func (t times) String() string {
	slices.Sort(t)
	ms := func(p float64) float64 { return float64(t[int(p*float64(len(t)-1))]) / float64(time.Millisecond) }
	return fmt.Sprintf("p50 %.4f ms, p95 %.4f ms", ms(.5), ms(.95))
}

// goal tells whether the median is within a bound.
func (t times) goal(bound time.Duration) string {
	slices.Sort(t)
	verdict := "met"
	if t[len(t)/2] > bound {
		verdict = "MISSED"
	}
	return fmt.Sprintf("goal %v: %s", bound, verdict)
}

// load tells how busy the machine has been within the last minute.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "load unknown"
	}
	one, _, _ := strings.Cut(string(text), " ")
	return fmt.Sprintf("load %s on %d cores", one, runtime.NumCPU())
}

// costs measures preparing and releasing, with a reader of our own that reads at once.
func (s *settings) costs() error {
	n := 200
	if s.short {
		n = 50
	}
	fmt.Printf("preparing and releasing, %d times each; %s\n", n, load())
	t, end, err := s.open(transfer.Options{NIXL: true})
	if err != nil {
		return err
	}
	lib, err := nixl.Open(s.library)
	if err != nil {
		return err
	}
	reader, err := nixl.New(lib, nixl.Options{})
	if err != nil {
		return err
	}
	got, err := measure(t, n, 7*mib, func(ctx context.Context, b *transfer.Batch, description []byte) error {
		before := t.Stats().Slots.Taken
		if _, err := reader.Read(ctx, description, 0); err != nil {
			return err
		}
		time.Sleep(3 * time.Millisecond) // the notification
		if before == 0 {
			return fmt.Errorf("nothing was taken")
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Printf("  NIXL, 7 MB: take and describe %v (%s); with copying %v; release after the read %v (%s)\n", got.prepare,
		got.prepare.goal(300*time.Microsecond), got.copied, got.release, got.release.goal(5*time.Microsecond))
	if err := reader.Close(); err != nil {
		return err
	}
	if err := end(); err != nil {
		return err
	}
	t, end, err = s.open(transfer.Options{})
	if err != nil {
		return err
	}
	got, err = measure(t, n, 20*mib, nil)
	if err != nil {
		return err
	}
	fmt.Printf("  shared memory, 20 MB: make and describe %v; with copying %v (%s); release %v, beside the answer\n", got.prepare,
		got.copied, got.copied.goal(16*time.Millisecond), got.release)
	return end()
}

// taken are the times of one kind of transfer.
type taken struct {
	prepare times // memory, and what the worker is told; processors write to the memory themselves
	copied  times // the same with the bytes copied there
	release times
}

// measure prepares transfers one after the other, has each read, and releases it.
func measure(t *transfer.Transfer, n, size int, read func(context.Context, *transfer.Batch, []byte) error) (out taken, err error) {
	ctx, source := context.Background(), make([]byte, size)
	for i := range source {
		source[i] = byte(i)
	}
	for i := range n + 5 {
		begin := time.Now()
		b, err := t.Open(ctx, []int{size})
		if err != nil {
			return out, err
		}
		wrote := time.Now()
		copy(b.Bytes(0), source)
		writing := time.Since(wrote)
		b.Told()
		_, value, err := b.Kwargs("image", []int{size}, []string{"0123456789abcdef"})
		if err != nil {
			return out, err
		}
		took := time.Since(begin)
		if read != nil {
			if err := read(ctx, b, request(value)); err != nil {
				return out, err
			}
		}
		begin = time.Now()
		b.Close()
		if i >= 5 { // the first ones make slots
			out.release = append(out.release, time.Since(begin))
			out.prepare, out.copied = append(out.prepare, took-writing), append(out.copied, took)
		}
		if read == nil {
			for t.Stats().SegmentBytes > 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}
	}
	return out, nil
}

// request is the first image's description, out of what a worker is told.
func request(value []byte) []byte {
	var told struct {
		Specs []struct {
			Request json.RawMessage `json:"serialized_request"`
		} `json:"tensor_specs"`
	}
	if json.Unmarshal(value, &told) != nil || len(told.Specs) == 0 {
		return nil
	}
	return told.Specs[0].Request
}

// unreadBound is the pool's bound while transfers aren't read.
const unreadBound = 256 * mib

// memory measures what stays of transfers that nobody reads, each number of them in a process of its own.
func (s *settings) memory() error {
	fmt.Printf("\n20 MB each that nobody reads, pool of %d MiB, %v to read:\n", unreadBound/mib, unreadTime)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	counts := []int{40, 400}
	if s.short {
		counts = []int{40, 80}
	}
	for _, n := range counts {
		cmd := exec.Command(self, "-nixl-library", s.library, "-unread", strconv.Itoa(n))
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return err
		}
		fmt.Printf("  Portico, %3d requests: %s", n, lastLine(out))
	}
	for _, kind := range []string{"kept", "released"} {
		cmd := exec.Command(s.python, filepath.Join(s.root, "tests", "bench", "transfer", "upstream.py"), kind)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+s.site)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return err
		}
		fmt.Printf("  Dynamo's connector, 40 requests, %s after the time: %s", kind, lastLine(out))
	}
	return nil
}

// lastLine passes over what NIXL says.
func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1] + "\n"
}

// unreadTime is how long a reader that never comes is waited for.
const unreadTime = 50 * time.Millisecond

// measureUnread hands over n images that nobody reads and prints what that did to the process's memory.
func (s *settings) measureUnread(n int) error {
	t, end, err := s.open(transfer.Options{NIXL: true, PoolBytes: unreadBound, Cleanup: unreadTime, Wait: 10 * time.Second})
	if err != nil {
		return err
	}
	before := resident("VmRSS:")
	size := 20 * mib
	done := 0
	for range n {
		b, err := t.Open(context.Background(), []int{size})
		if err != nil {
			return err
		}
		mem := b.Bytes(0)
		for i := 0; i < len(mem); i += 4096 {
			mem[i] = 1
		}
		b.Told()
		if _, _, err := b.Kwargs("image", []int{size}, []string{"0123456789abcdef"}); err != nil {
			return err
		}
		b.Close()
		done++
	}
	for t.Stats().Slots.Taken > 0 {
		time.Sleep(time.Millisecond)
	}
	after, peak := resident("VmRSS:"), resident("VmHWM:")
	fmt.Printf("RSS +%d MB, at its peak +%d MB, which is %d MB beyond the pool's bound; %d of %d cleanups complete\n",
		after-before, peak-before, max(peak-before-unreadBound/mib, 0), done-t.Stats().Slots.Taken, n)
	return end()
}

// resident reads one of the process's own measures, in MiB.
func resident(name string) int {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), name)
	n, _ := strconv.Atoi(strings.Fields(rest)[0])
	return n >> 10
}
