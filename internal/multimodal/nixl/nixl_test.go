package nixl

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bare is an agent without a library behind it.
func bare() *Agent {
	return &Agent{metrics: newMetrics(nil), ops: map[string]*Op{}, wake: make(chan struct{}, 1)}
}

// block writes notifications as the library's side does.
func block(keys ...string) []byte {
	var out []byte
	for _, k := range keys {
		out = append(binary.NativeEndian.AppendUint32(out, uint32(len(k))), k...)
	}
	return out
}

// TestDeliver: a notification completes its own operation and no other; what nobody waits for is dropped.
func TestDeliver(t *testing.T) {
	a := bare()
	one, two, three := a.Expect(), a.Expect(), a.Expect()
	three.Forget()
	if n := a.deliver(block("", "foreign", one.key, three.key, one.key)); n != 5 {
		t.Errorf("got %d notifications, want 5", n)
	}
	if one.Reads() != 2 || two.Reads() != 0 || three.Reads() != 0 {
		t.Errorf("got %d, %d and %d reads, want 2, 0, 0", one.Reads(), two.Reads(), three.Reads())
	}
	select {
	case <-one.Heard():
	default:
		t.Error("nothing is heard of a read")
	}
	two.Forget()
	one.Forget()
	if len(a.ops) != 0 {
		t.Errorf("%d operations stay", len(a.ops))
	}
}

// FuzzDeliver: keys are the workers' text.
func FuzzDeliver(f *testing.F) {
	f.Add(block("a", "", strings.Repeat("x", 300)))
	f.Add([]byte{255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		a := bare()
		op := a.Expect()
		a.deliver(data)
		if op.Reads() > 0 && !bytes.Contains(data, []byte(op.key)) {
			t.Error("an operation is read without its key")
		}
	})
}

// TestMetadataForm: what readers unpack is what was packed.
func TestMetadataForm(t *testing.T) {
	raw := bytes.Repeat([]byte("metadata\x00"), 100)
	text, ok := strings.CutPrefix(encodeMetadata(raw), "b64:")
	if !ok {
		t.Fatal("no prefix")
	}
	packed, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	z, err := zlib.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(z); err != nil || !bytes.Equal(got, raw) {
		t.Errorf("got %q, %v", got, err)
	}
}

// FuzzDescription: what a frontend tells a worker is text of others.
func FuzzDescription(f *testing.F) {
	f.Add(encodeMetadata([]byte("agent")))
	f.Add("b64:eJw")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		raw, err := decodeMetadata(text)
		if err != nil {
			return
		}
		if again, err := decodeMetadata(encodeMetadata(raw)); err != nil || !bytes.Equal(again, raw) {
			t.Errorf("%q doesn't come back: %v", raw, err)
		}
	})
}

// TestPauses: looks come quickly while something is expected, rarer while it doesn't come, and hardly otherwise.
func TestPauses(t *testing.T) {
	a := bare()
	if got := a.nextPause(shortPause, 0); got != idlePause {
		t.Errorf("idle: got %v", got)
	}
	op := a.Expect()
	pause := shortPause
	for range 100 {
		pause = a.nextPause(pause, 0)
	}
	if pause != longPause || a.nextPause(pause, 1) != shortPause {
		t.Errorf("got %v, then %v", pause, a.nextPause(pause, 1))
	}
	a.deliver(block(op.key))
	if got := a.nextPause(pause, 1); got != idlePause {
		t.Errorf("all read: got %v", got)
	}
	op.Forget()
}

// TestOpenFailures: without a library there is an error that names it, and nothing else happens.
func TestOpenFailures(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.so")
	if err := os.WriteFile(text, []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none.so"): "none.so", text: "text.so", "libm.so.6": "nixl_capi_create_configured_agent",
	} {
		if lib, err := Open(path); lib != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, %v", path, lib, err)
		}
	}
}

// TestFind: an environment's library comes ahead of the system's own.
func TestFind(t *testing.T) {
	venv := t.TempDir()
	want := filepath.Join(venv, "lib", "python3.12", "site-packages", ".nixl_cu13.mesonpy.libs", fileName)
	if err := os.MkdirAll(filepath.Dir(want), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(want, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got := Find(venv)
	if got[0] != want || got[len(got)-1] != fileName {
		t.Errorf("got %v", got)
	}
	if diff := cmp.Diff(Find(""), got[1:]); diff != "" {
		t.Error(diff)
	}
}

// TestClosed: an agent without handles refuses, and undoing a registration that is gone is fine.
func TestClosed(t *testing.T) {
	a := bare()
	if _, err := a.Register(make([]byte, 1)); err != ErrClosed {
		t.Errorf("got %v", err)
	}
	if _, err := a.Metadata(); err == nil {
		t.Error("a closed agent has metadata")
	}
	if err := a.deregister(nil); err != nil {
		t.Error(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	g := a.Expect()
	if _, err := g.Describe([]byte{1}); err == nil {
		t.Error("a closed agent describes memory")
	}
}
