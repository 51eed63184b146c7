// Package images_test has the receivers of Dynamo's workers read what this project hands over, with the real NIXL.
package images_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/multimodal/nixl"
	"github.com/portico-llm/portico/internal/multimodal/transfer"
	"github.com/portico-llm/portico/tests/e2e/stack"
)

// tools are the peers; python is their interpreter, and site a folder with unpacked packages beside them, or empty.
var (
	tools        *stack.Tools
	python, site string
)

func TestMain(m *testing.M) {
	root := filepath.Join("..", "..", "..")
	if !stack.Installed(root) {
		fmt.Fprintln(os.Stderr, "images: left out: the peers are not installed; make e2e does that")
		os.Exit(0)
	}
	var err error
	if tools, err = stack.FindTools(root, false); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
	python, site = filepath.Join(tools.Venv, "bin", "python"), os.Getenv("PORTICO_NIXL_SITE")
	os.Exit(m.Run())
}

// libraries returns where NIXL's library may be.
func libraries() []string {
	if site == "" {
		return nixl.Find(filepath.Dir(filepath.Dir(python)))
	}
	found, _ := filepath.Glob(filepath.Join(site, ".nixl*.mesonpy.libs", "libnixl_capi.so"))
	return found
}

// needNIXL skips where the environment is one that somebody made without it.
func needNIXL(t testing.TB) {
	t.Helper()
	cmd := exec.Command(python, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('nixl') is None)")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+site)
	if err := cmd.Run(); err != nil {
		t.Skip("the Python environment has no nixl: set PORTICO_NIXL_SITE to a folder with its packages")
	}
}

// newTransfer returns a Transfer that runs until the test ends.
func newTransfer(t testing.TB, opts transfer.Options) *transfer.Transfer {
	t.Helper()
	opts.Libraries = libraries()
	opts.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	tr := transfer.New(opts)
	if opts.NIXL && !tr.NIXL() {
		t.Fatal("NIXL's library can't be used")
	}
	g := lifecycle.New(t.Context())
	g.Go("transfer", tr.Run)
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	return tr
}

// answer is what a reader says.
type answer struct {
	ID    int      `json:"id"`
	Sums  []string `json:"sums"`
	Zeros []bool   `json:"zeros"`
	Error string   `json:"error"`
}

// reader is a worker that reads images.
type reader struct {
	t       testing.TB
	cmd     *exec.Cmd
	in      io.WriteCloser
	next    int
	answers map[int]chan answer
	mu      sync.Mutex
	done    sync.WaitGroup
}

// newReader starts a worker and waits until it is ready.
func newReader(t testing.TB, env ...string) *reader {
	t.Helper()
	r := &reader{t: t, answers: map[int]chan answer{-1: make(chan answer, 1)}}
	r.cmd = exec.Command(python, filepath.Join("testdata", "reader.py"))
	r.cmd.Env = append(append(os.Environ(), "PYTHONPATH="+site, "UCX_NET_DEVICES=lo"), env...)
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.ExtraFiles = []*os.File{in}
	log, err := os.Create(filepath.Join(t.TempDir(), "reader.log"))
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.Stdout, r.cmd.Stderr = log, log
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	r.done.Go(func() { r.listen(out) })
	t.Cleanup(func() {
		_ = r.in.Close()
		r.stop(5 * time.Second)
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the reader's log:\n%s", text[max(0, len(text)-4000):])
		}
		_ = log.Close()
	})
	r.wait(-1, 60*time.Second)
	return r
}

// listen takes answers until the reader ends.
func (r *reader) listen(out io.ReadCloser) {
	defer out.Close()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			r.t.Error(err)
			return
		}
		r.mu.Lock()
		c := r.answers[a.ID]
		r.mu.Unlock()
		c <- a
	}
}

// stop waits for the reader to end by itself, and kills it then.
func (r *reader) stop(grace time.Duration) {
	timer := time.AfterFunc(grace, func() { _ = r.cmd.Process.Kill() })
	defer timer.Stop()
	_ = r.cmd.Wait()
	r.done.Wait()
}

// order is a line for the reader.
type order struct {
	ID     int                        `json:"id"`
	Args   map[string]json.RawMessage `json:"extra_args"`
	Image  json.RawMessage            `json:"decoded,omitempty"`
	After  float64                    `json:"after,omitempty"`
	Beside bool                       `json:"beside,omitempty"`
	Plain  bool                       `json:"plain,omitempty"`
}

// send asks the reader to read and returns the number to wait for.
func (r *reader) send(o order) int {
	r.mu.Lock()
	o.ID = r.next
	r.next++
	r.answers[o.ID] = make(chan answer, 1)
	r.mu.Unlock()
	line, err := json.Marshal(o)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.in.Write(append(line, '\n')); err != nil {
		r.t.Fatal(err)
	}
	return o.ID
}

// wait returns an answer.
func (r *reader) wait(id int, within time.Duration) answer {
	r.t.Helper()
	r.mu.Lock()
	c := r.answers[id]
	r.mu.Unlock()
	select {
	case a := <-c:
		return a
	case <-time.After(within):
		r.t.Fatalf("no answer within %v", within)
		panic("unreachable")
	}
}

// shipment is a batch with what was written to it.
type shipment struct {
	*transfer.Batch
	args map[string]json.RawMessage
	sums []string
}

// ship fills a batch with random images of these sizes and describes it.
func ship(t testing.TB, tr *transfer.Transfer, random *rand.ChaCha8, sizes ...int) *shipment {
	t.Helper()
	b, err := tr.Open(t.Context(), sizes)
	if err != nil {
		t.Fatal(err)
	}
	s := &shipment{Batch: b}
	hashes := make([]string, len(sizes))
	for i := range sizes {
		_, _ = random.Read(b.Bytes(i))
		sum := sha256.Sum256(b.Bytes(i))
		s.sums = append(s.sums, hex.EncodeToString(sum[:]))
		hashes[i] = s.sums[i]
	}
	b.Told()
	field, value, err := b.Kwargs("image", sizes, hashes)
	if err != nil {
		t.Fatal(err)
	}
	s.args = map[string]json.RawMessage{field: value}
	return s
}

// eventually waits until a condition holds.
func eventually(t testing.TB, within time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(time.Millisecond)
	}
}
