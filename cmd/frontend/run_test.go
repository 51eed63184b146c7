package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/portico-llm/portico/internal/config"
	"github.com/portico-llm/portico/internal/testkit"
)

// model is the folder the embedded worker serves, seen from this package.
const model = "../../configs/models/smollm2-135m-instruct"

// started is a server that runs inside the test.
type started struct {
	url   string
	ready string // the line printed for new users
	stop  func() error
}

// startEmbedded runs the whole program with the simulated worker on a free port.
func startEmbedded(t *testing.T, args ...string) *started {
	t.Helper()
	// The etcd and OpenTelemetry libraries keep no goroutines here; what is left running is a leak of ours.
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	return startProgram(t, append([]string{"--embedded", "--model-path", model}, args...)...)
}

// startProgram runs the whole program on a free port until it has a model.
func startProgram(t *testing.T, args ...string) *started {
	t.Helper()
	cfg, _, err := config.Load(append([]string{"--http-host", "127.0.0.1", "--http-port", "0"}, args...), nil, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	in, out := io.Pipe()
	done := make(chan error, 1) // run's result
	go func() {
		err := run(ctx, cfg, slog.New(slog.DiscardHandler), out)
		_ = out.Close()
		done <- err
	}()
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		cancel()
		t.Fatalf("no ready line: %v, %v", err, <-done)
	}
	_, rest, _ := strings.Cut(line, "curl -N ")
	url, _, _ := strings.Cut(rest, "/v1/")
	s := &started{url: url, ready: strings.TrimSpace(line)}
	stopped := false
	s.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(30 * time.Second):
			return fmt.Errorf("the server did not stop")
		}
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func chat(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := testkit.Client(t).Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestEmbedded(t *testing.T) {
	s := startEmbedded(t)
	if !strings.Contains(s.ready, "/v1/chat/completions") || !strings.Contains(s.ready, "smollm2-135m-instruct") {
		t.Errorf("the ready line is %q", s.ready)
	}
	status, body := chat(t, s.url, `{"model":"smollm2-135m-instruct","max_tokens":5,"messages":[{"role":"user","content":"Hello"}]}`)
	var answer struct {
		Choices []struct {
			Message struct{ Content string }
			Finish  string `json:"finish_reason"`
		}
		Usage struct {
			Completion int `json:"completion_tokens"`
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); status != 200 || err != nil || len(answer.Choices) != 1 {
		t.Fatalf("%d %s %v", status, body, err)
	}
	if c := answer.Choices[0]; c.Message.Content == "" || c.Finish != "length" || answer.Usage.Completion != 5 {
		t.Errorf("answer %s", body)
	}
	status, body = chat(t, s.url, `{"model":"smollm2-135m-instruct","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"Hello"}]}`)
	if status != 200 || !strings.HasSuffix(body, "data: [DONE]\n\n") || !strings.Contains(body, answer.Choices[0].Message.Content[:4]) {
		t.Errorf("%d, streamed %s", status, body)
	}
	if status, body = chat(t, s.url, `{"model":"other","messages":[{"role":"user","content":"Hello"}]}`); status != 404 {
		t.Errorf("unknown model: %d %s", status, body)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

// TestRunningStreamFinishesOnStop: a stream that is running when the stop comes ends properly, and run returns nil.
func TestRunningStreamFinishesOnStop(t *testing.T) {
	s := startEmbedded(t)
	resp, err := testkit.Client(t).Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader(
		`{"model":"smollm2-135m-instruct","stream":true,"max_tokens":100,"ignore_eos":true,"messages":[{"role":"user","content":"Hello"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	events := bufio.NewReader(resp.Body)
	if _, err := events.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1) // the stop's result
	go func() { stopped <- s.stop() }()
	rest, err := io.ReadAll(events)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") || !strings.Contains(string(rest), `"finish_reason":"length"`) {
		t.Errorf("the stream ended with %v: …%s", err, rest[max(0, len(rest)-300):])
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg, _, err := config.Load([]string{"--embedded", "--http-host", "127.0.0.1", "--model-path", model,
		"--http-port", fmt.Sprint(l.Addr().(*net.TCPAddr).Port)}, nil, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	err = run(t.Context(), cfg, slog.New(slog.DiscardHandler), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "http-port") {
		t.Errorf("got %v, want an error that names the port's setting", err)
	}
}

// TestNoNATS: where requests go over NATS, a server that can't be reached ends the start within its time.
func TestNoNATS(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	defer goleak.VerifyNone(t, leaks)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	_ = l.Close() // nobody listens there now
	cfg, _, err := config.Load([]string{"--discovery-backend", "mem", "--request-plane", "nats", "--http-host", "127.0.0.1",
		"--http-port", "0", "--nats-server", "nats://name:secret@" + at, "--nats-startup-connect-timeout-seconds", "1"}, nil, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = run(ctx, cfg, slog.New(slog.DiscardHandler), io.Discard)
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "nats-server: no server could be reached within 1s") ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want an error that names the setting", err)
	}
}

// TestBrokenModelFolder: a start that can't succeed ends with an error and leaves nothing running.
func TestBrokenModelFolder(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	defer goleak.VerifyNone(t, leaks)
	cfg, _, err := config.Load([]string{"--embedded", "--http-host", "127.0.0.1", "--http-port", "0",
		"--model-path", filepath.Join(t.TempDir(), "nothing")}, nil, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	err = run(t.Context(), cfg, slog.New(slog.DiscardHandler), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "model-path") {
		t.Errorf("got %v, want an error that names the folder's setting", err)
	}
}

// TestReadyLine: the line can be pasted into a shell, whatever a model is called.
func TestReadyLine(t *testing.T) {
	for _, name := range []string{"m", `it's "a" \ model`, "a\x01é$(x)`x`"} {
		line := readyLine(config.Default(), &net.TCPAddr{IP: net.IPv4zero, Port: 1}, name)
		_, command, _ := strings.Cut(line, "curl ")
		out, err := exec.CommandContext(t.Context(), "sh", "-c", `set -- `+command+`; printf %s "$6"`).Output()
		if err != nil {
			t.Fatal(err)
		}
		var body struct{ Model string }
		if err := json.Unmarshal(out, &body); err != nil || body.Model != name {
			t.Errorf("%s: %q, %v", line, body.Model, err)
		}
	}
}
