package etcd_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/discovery/etcd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// binary builds the etcd server of the tests once; without it there is nothing to test against.
var binary = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("../../../../tests/etcdserver/build.sh").Output()
	return strings.TrimSpace(string(out)), err
})

// server is a real etcd in a process of its own.
type server struct {
	t    *testing.T
	dir  string
	addr string
	cmd  *exec.Cmd
}

func startServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir(), addr: "127.0.0.1:0"}
	s.start()
	t.Cleanup(s.kill)
	return s
}

// start begins, or begins again, with the same data at the same address.
func (s *server) start() {
	s.t.Helper()
	path, err := binary()
	if err != nil {
		s.t.Fatalf("build etcd: %v", err)
	}
	s.cmd = exec.Command(path, "--data-dir", s.dir, "--listen", s.addr)
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if err != nil || !ok {
		s.t.Fatalf("etcd said %q, %v", line, err)
	}
	s.addr = addr
}

func (s *server) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

func (s *server) options() etcd.Options {
	return etcd.Options{Endpoints: []string{"http://" + s.addr}, LeaseTTL: 2 * time.Second, Log: quiet}
}

func (s *server) client() *clientv3.Client {
	s.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.addr}, DialTimeout: 5 * time.Second})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// view is what a source has reported, by key.
type view struct {
	mu      sync.Mutex
	records map[string]string
	full    int
	problem string
}

func (v *view) take(c router.Change) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if c.Full {
		v.full++
		clear(v.records)
	} else if v.full == 0 {
		v.problem = "the first change was not full"
	}
	for _, key := range c.Removed {
		delete(v.records, key)
	}
	for _, r := range c.Put {
		v.records[r.Key] = string(r.Value)
	}
}

func (v *view) now() (map[string]string, int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.records), v.full
}

func watch(t *testing.T, opts etcd.Options) *view {
	t.Helper()
	source, err := etcd.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	v := &view{records: map[string]string{}}
	g := lifecycle.New(t.Context())
	g.Go("source", func(ctx context.Context) error { return source.Run(ctx, v.take) })
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

func within(t *testing.T, v *view, limit time.Duration, want map[string]string) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		got, full := v.now()
		if full > 0 && maps.Equal(got, want) {
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

func register(t *testing.T, opts etcd.Options) *etcd.Registrar {
	t.Helper()
	r, err := etcd.NewRegistrar(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func put(t *testing.T, r *etcd.Registrar, key, value string) {
	t.Helper()
	if err := r.Put(t.Context(), key, []byte(value)); err != nil {
		t.Fatal(err)
	}
}

func TestSourceFollowsRegistrar(t *testing.T) {
	s := startServer(t)
	r := register(t, s.options())
	put(t, r, inst1, `{"a":1}`)
	v := watch(t, s.options())
	within(t, v, 5*time.Second, map[string]string{inst1: `{"a":1}`})
	put(t, r, inst2, `{}`)
	put(t, r, model1, `{}`)
	put(t, r, inst1, `{"a":2}`)
	if took := within(t, v, time.Second, map[string]string{inst1: `{"a":2}`, inst2: `{}`, model1: `{}`}); took > 300*time.Millisecond {
		t.Errorf("seen after %s", took)
	}
	if err := r.Remove(t.Context(), inst2); err != nil {
		t.Fatal(err)
	}
	within(t, v, time.Second, map[string]string{inst1: `{"a":2}`, model1: `{}`})
	id, err := r.InstanceID(t.Context())
	if err != nil || id == 0 {
		t.Errorf("instance id %x, %v", id, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, v, time.Second, map[string]string{}) // revoked, not expired
	if err := r.Put(t.Context(), inst1, nil); err == nil {
		t.Error("a closed registrar publishes")
	}
	if err := r.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

// TestRefusedPut: a record that couldn't be replaced stays the registrar's, to be taken away.
func TestRefusedPut(t *testing.T) {
	s := startServer(t)
	r, err := etcd.NewRegistrar(s.options())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	const key = router.BucketInstances + "/a"
	if err := r.Put(t.Context(), key, []byte("1")); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Put(ended, key, []byte("2")); err == nil {
		t.Error("no error")
	}
	if err := r.Remove(t.Context(), key); err != nil {
		t.Error(err)
	}
	resp, err := s.client().Get(t.Context(), key)
	if err != nil || resp.Count != 0 {
		t.Errorf("%d records, %v", resp.Count, err)
	}
}

// A worker that dies without a word is gone once its lease has ended; those that live stay.
func TestLeaseExpiry(t *testing.T) {
	s := startServer(t)
	v := watch(t, s.options())
	r := register(t, s.options())
	put(t, r, inst1, `{}`)
	c := s.client()
	lease, err := c.Grant(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(t.Context(), inst2, `{}`, clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	within(t, v, time.Second, map[string]string{inst1: `{}`, inst2: `{}`})
	took := within(t, v, 6*time.Second, map[string]string{inst1: `{}`})
	t.Logf("gone after %s", took)
}

// While etcd is away everything known stays; afterwards there is neither a ghost nor a gap, whatever happened meanwhile.
func TestOutage(t *testing.T) {
	s := startServer(t)
	v := watch(t, s.options())
	r := register(t, s.options())
	put(t, r, inst1, `{}`)
	c := s.client()
	if _, err := c.Put(t.Context(), inst2, `{}`); err != nil {
		t.Fatal(err)
	}
	known := map[string]string{inst1: `{}`, inst2: `{}`}
	within(t, v, time.Second, known)

	s.kill()
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if got, full := v.now(); full != 1 || !maps.Equal(got, known) {
			t.Fatalf("during the outage: %v, %d listings", got, full)
		}
	}
	s.start()
	if _, err := c.Delete(t.Context(), inst2); err != nil {
		t.Fatal(err)
	}
	put(t, r, model1, `{}`)
	took := within(t, v, 10*time.Second, map[string]string{inst1: `{}`, model1: `{}`})
	t.Logf("healed after %s", took)
	time.Sleep(3 * time.Second) // longer than the lease: it is being renewed again
	within(t, v, 0, map[string]string{inst1: `{}`, model1: `{}`})
}

// An etcd that comes back empty (another data folder) has forgotten everything: so do we, but for what its owner
// publishes again under a new lease.
func TestDataLoss(t *testing.T) {
	s := startServer(t)
	v := watch(t, s.options())
	r := register(t, s.options())
	put(t, r, inst1, `{}`)
	before, err := r.InstanceID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := s.client()
	for i := range 20 { // a revision the new server won't reach soon
		if _, err := c.Put(t.Context(), inst2, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	within(t, v, time.Second, map[string]string{inst1: `{}`, inst2: `19`})
	s.kill()
	s.dir = t.TempDir()
	s.start()
	within(t, v, 15*time.Second, map[string]string{inst1: `{}`})
	if after, err := r.InstanceID(t.Context()); err != nil || after != before {
		t.Errorf("the instance id changed from %x to %x, %v", before, after, err)
	}
	put(t, r, inst2, `{}`)
	within(t, v, time.Second, map[string]string{inst1: `{}`, inst2: `{}`})
}

// Losing the lease alone (it was revoked, or the process slept) costs a new one.
func TestLeaseLost(t *testing.T) {
	s := startServer(t)
	v := watch(t, s.options())
	r := register(t, s.options())
	put(t, r, inst1, `{}`)
	within(t, v, time.Second, map[string]string{inst1: `{}`})
	id, err := r.InstanceID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client().Revoke(t.Context(), clientv3.LeaseID(id)); err != nil {
		t.Fatal(err)
	}
	within(t, v, time.Second, map[string]string{})
	within(t, v, 5*time.Second, map[string]string{inst1: `{}`})
}

// A frozen etcd answers nothing and closes nothing; the pings find out.
func TestFrozenServer(t *testing.T) {
	s := startServer(t)
	opts := s.options()
	v := watch(t, opts)
	r := register(t, opts)
	put(t, r, inst1, `{}`)
	within(t, v, time.Second, map[string]string{inst1: `{}`})
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second) // longer than the lease
	within(t, v, 0, map[string]string{inst1: `{}`})
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	within(t, v, 10*time.Second, map[string]string{inst1: `{}`})
}

// A watch that begins behind a compaction says so instead of waiting for ever: the session then lists anew.
func TestCompaction(t *testing.T) {
	s := startServer(t)
	c := s.client()
	first, err := c.Put(t.Context(), inst1, `0`)
	if err != nil {
		t.Fatal(err)
	}
	last := first.Header.Revision
	for range 5 {
		resp, err := c.Put(t.Context(), inst1, `{}`)
		if err != nil {
			t.Fatal(err)
		}
		last = resp.Header.Revision
	}
	if _, err := c.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := etcd.FollowFrom(ctx, c, first.Header.Revision, func(router.Change) {}); !errors.Is(err, etcd.ErrCompacted) {
		t.Errorf("got %v", err)
	}
}

func TestStart(t *testing.T) {
	t.Run("nobody there", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		source, err := etcd.New(etcd.Options{Endpoints: []string{addr}, StartTimeout: time.Second, RequestTimeout: time.Second, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		err = source.Run(t.Context(), func(router.Change) { t.Error("a change without a server") })
		if err == nil || !strings.Contains(err.Error(), addr) {
			t.Errorf("%v doesn't name %s", err, addr)
		}
		if took := time.Since(start); took < time.Second || took > 6*time.Second {
			t.Errorf("gave up after %s", took)
		}
	})
	t.Run("late", func(t *testing.T) {
		s := startServer(t)
		s.kill()
		v := watch(t, s.options())
		time.Sleep(500 * time.Millisecond)
		s.start()
		within(t, v, 10*time.Second, map[string]string{})
	})
	t.Run("cancelled", func(t *testing.T) {
		source, err := etcd.New(etcd.Options{Endpoints: []string{"127.0.0.1:1"}, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := source.Run(ctx, func(router.Change) {}); err != nil {
			t.Error(err)
		}
	})
}

func TestAuthentication(t *testing.T) {
	s := startServer(t)
	c := s.client()
	for _, err := range []error{
		second(c.RoleAdd(t.Context(), "root")),
		second(c.UserAdd(t.Context(), "root", "secret")),
		second(c.UserGrantRole(t.Context(), "root", "root")),
		second(c.AuthEnable(t.Context())),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	good := s.options()
	good.Username, good.Password = "root", "secret"
	v := watch(t, good)
	r := register(t, good)
	put(t, r, inst1, `{}`)
	within(t, v, 5*time.Second, map[string]string{inst1: `{}`})

	bad := good
	bad.Password = "wrong"
	for name, opts := range map[string]etcd.Options{"wrong password": bad, "none": s.options()} {
		source, err := etcd.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := source.Run(t.Context(), func(router.Change) {}); err == nil || time.Since(start) > 10*time.Second {
			t.Errorf("%s: %v after %s", name, err, time.Since(start))
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestOptionsAreChecked(t *testing.T) {
	for name, opts := range map[string]etcd.Options{
		"scheme":        {Endpoints: []string{"ftp://x:1"}},
		"no host":       {Endpoints: []string{"http://"}},
		"empty":         {Endpoints: []string{" "}},
		"no password":   {Username: "u"},
		"no key":        {CertFile: "c.pem"},
		"missing files": {CAFile: "/nonexistent/ca.pem"},
	} {
		if _, err := etcd.New(opts); err == nil {
			t.Errorf("%s: accepted by New", name)
		}
		if _, err := etcd.NewRegistrar(opts); err == nil {
			t.Errorf("%s: accepted by NewRegistrar", name)
		}
	}
}

// Random writes through restarts of the server and compactions end where etcd ends.
func TestRandomHistory(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	s := startServer(t)
	v := watch(t, s.options())
	c := s.client()
	want := map[string]string{}
	for step := range 200 {
		key := fmt.Sprintf("%s/ns/c/ep%d/%x", []string{router.BucketInstances, router.BucketModels}[rng.IntN(2)],
			rng.IntN(3), rng.IntN(4))
		var err error
		var rev int64
		switch n := rng.IntN(20); {
		case n < 6:
			var resp *clientv3.DeleteResponse
			if resp, err = c.Delete(t.Context(), key); err == nil {
				rev = resp.Header.Revision
			}
			delete(want, key)
		default:
			var resp *clientv3.PutResponse
			want[key] = fmt.Sprintf(`{"step":%d}`, step)
			if resp, err = c.Put(t.Context(), key, want[key]); err == nil {
				rev = resp.Header.Revision
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if step%40 == 20 {
			_, _ = c.Compact(t.Context(), rev) // refused when compacted already: fine
		}
		if step%70 == 60 {
			s.kill()
			s.start()
		}
	}
	within(t, v, 10*time.Second, want)
}
