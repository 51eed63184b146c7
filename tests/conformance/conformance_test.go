// Package conformance_test pins what clients see, byte for byte. Each file under testdata is a transcript: what a
// worker sends, what a client sends, and exactly what it gets. The whole way between the two is real but for the model,
// whose tokens are bytes, and the transport, which plays the worker's part.
//
// Sections of a transcript:
//
//	server      settings, as "key: value": errors (dynamo), strict, heartbeat, usage (forced), draining, body-limit,
//	            tool-parser, reasoning-parser, reasoning-field
//	worker      a testkit.Script; or "refuse <kind>: <message>". "worker x" is for the prompt x of a batch
//	request     method and path, headers, an empty line, the body
//	client      leaves: a text; the client closes its connection once it has seen it
//	            stops: a text; the server is shut down once the client has seen it, with the grace period "grace"
//	response    what it gets: status, headers in alphabetical order, body. Ids are written as ID
//	engine      what reached workers, id and body, one a line; empty: nothing did
//	outcome     "stops: n": how many times workers were told to stop; "any" where that depends on who was faster
//
// go test ./tests/conformance -update writes response and engine anew; read the difference.
package conformance_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds everything a transcript waits for.
const patience = 10 * time.Second

// TestTranscripts plays every transcript. A folder with few of them is a mistake: the pattern would match nothing, and
// the test pass. With -update a file is written only if nothing else failed.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d transcripts, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			a := parse(string(raw))
			if a.String() != string(raw) {
				t.Fatal("the transcript can't be written as it was read")
			}
			play(t, a)
			if testkit.Updating() && !t.Failed() {
				if err := os.WriteFile(file, []byte(a.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// play runs one transcript and compares what it was to bring about. Each has a server and a connection of its own, so
// that nothing of one is seen in another.
func play(t *testing.T, a *archive) {
	t.Helper()
	d := &testkit.Dispatcher{Script: scripts(a)}
	srv, address := serve(t, d, a.settings("server"))
	client := a.settings("client")
	c := send(t, address, a.text("request"))
	request := askedBy(a)
	compare(t, a, "response", receive(t, c, request, client["leaves"], client["stops"], func() {
		ctx, cancel := context.WithTimeout(context.Background(), duration(t, client["grace"]))
		defer cancel()
		_ = srv.Shutdown(ctx) // that the grace period was too short is what some transcripts are about
	}))

	calls := d.Calls()
	// The prompts of a batch reach workers in any order; their ids end with their numbers.
	slices.SortFunc(calls, func(x, y *testkit.Played) int { return strings.Compare(x.Call.RequestID, y.Call.RequestID) })
	if a.find("engine") != nil {
		var bodies strings.Builder
		for _, c := range calls {
			bodies.WriteString(ids.ReplaceAllString(c.Call.RequestID+" "+string(c.Body), "ID") + "\n")
		}
		compare(t, a, "engine", bodies.String())
	}
	stopped(t, calls, a.settings("outcome")["stops"])
}

// stopped waits until workers have been told to stop as often as wanted, which is never unless said otherwise.
func stopped(t *testing.T, calls []*testkit.Played, want string) {
	t.Helper()
	switch want {
	case "any":
		return
	case "":
		want = "0"
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		var n int
		for _, c := range calls {
			n += int(c.Stops.Load())
		}
		if strconv.Itoa(n) == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("workers were told to stop %d times, want %s", n, want)
		}
	}
}

// compare checks a section against what came, or takes that over when goldens are updated.
func compare(t *testing.T, a *archive, name, got string) {
	t.Helper()
	if testkit.Updating() {
		a.set(name, got)
		return
	}
	if diff := cmp.Diff(a.text(name), got); diff != "" {
		t.Errorf("%s (- want, + got):\n%s", name, diff)
	}
}

// scripts returns what the workers of a transcript play. A section for the prompt stands above the common one; without
// either a call is a failure of its own, which shows in the response.
func scripts(a *archive) func(*router.Call, []byte) (testkit.Script, error) {
	return func(call *router.Call, _ []byte) (testkit.Script, error) {
		// Tokens of the test's model are bytes.
		prompt := make([]byte, len(call.TokenIDs))
		for i, id := range call.TokenIDs {
			prompt[i] = byte(id)
		}
		s := a.find("worker " + string(prompt))
		if s == nil {
			s = a.find("worker")
		}
		if s == nil {
			return nil, fault.New(fault.Internal, "no worker is expected to be asked")
		}
		if refusal, ok := strings.CutPrefix(s.text, "refuse "); ok {
			kind, message, _ := strings.Cut(strings.TrimSpace(refusal), ": ")
			return nil, &fault.Error{Kind: kinds[kind], Message: message, Origin: fault.FromTransport}
		}
		return testkit.Items(s.text), nil
	}
}

// kinds are the faults that a refusal may have, by their names in transcripts.
var kinds = map[string]fault.Kind{
	"overloaded": fault.Overloaded, "unavailable": fault.Unavailable, "too_large": fault.TooLarge,
}

// serve starts a server for one transcript, which the test's end shuts down, and returns its address. It has a fixed
// clock, a model m of bytes and a model cold that no worker serves.
func serve(t *testing.T, d router.Dispatcher, settings map[string]string) (*server.Server, string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	opts := server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: d, Log: log, Answers: msgparse.Plan}),
		Catalog:  testkit.Models{"m": model(settings), "cold": nil},
		Log:      log,
		Now:      func() time.Time { return time.Unix(1700000000, 0) },

		FlatErrors: settings["errors"] == "dynamo",
		ForceUsage: settings["usage"] == "forced",

		ReasoningField: settings["reasoning-field"],
	}
	opts.Decode.Strict = settings["strict"] == "true"
	if v, ok := settings["heartbeat"]; ok {
		opts.Stream.Heartbeat = duration(t, v)
	}
	if v, ok := settings["body-limit"]; ok {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		opts.BodyLimit = n
	}
	srv, err := server.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(context.Background(), ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = srv.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	if settings["draining"] == "true" {
		srv.Drain()
	}
	return srv, ln.Addr().String()
}

// model is the model m, with the parsers of the settings.
func model(settings map[string]string) *catalog.Set {
	set := testkit.ByteModel("m")
	set.ToolParser, set.ReasoningParser = settings["tool-parser"], settings["reasoning-parser"]
	return set
}

// duration reads a setting; one that can't be read ends the test.
func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// send sends a request over a connection of its own, in one write. Line breaks become those of HTTP; the last one of
// the body is the file's, not the request's.
func send(t *testing.T, address, request string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	// One deadline for the whole exchange: an answer that hangs fails.
	_ = c.SetDeadline(time.Now().Add(patience))
	head, body, _ := strings.Cut(request, "\n\n")
	body = strings.TrimSuffix(body, "\n")
	first, headers, _ := strings.Cut(strings.TrimSuffix(head, "\n"), "\n")
	var b strings.Builder
	fmt.Fprintf(&b, "%s HTTP/1.1\r\nHost: portico\r\nConnection: close\r\nContent-Length: %d\r\n", first, len(body))
	for line := range strings.Lines(headers) {
		b.WriteString(strings.TrimSuffix(line, "\n") + "\r\n")
	}
	if _, err := io.WriteString(c, b.String()+"\r\n"+body); err != nil {
		t.Fatal(err)
	}
	return c
}

// request is what a transcript asks for.
type request struct {
	method string
	testkit.Asked
}

// askedBy reads it.
func askedBy(a *archive) request {
	head, body, _ := strings.Cut(a.text("request"), "\n\n")
	line, _, _ := strings.Cut(head, "\n")
	method, path, _ := strings.Cut(line, " ")
	return request{method, testkit.Asked{Path: path, Body: []byte(body), Usage: a.settings("server")["usage"] == "forced"}}
}

// receive reads an answer, as far as the client stays for it, and closes the connection. stop is called beside it when
// the text stopAt has come. It reads byte by byte, to stop exactly there.
func receive(t *testing.T, c net.Conn, asked request, leaveAt, stopAt string, stop func()) string {
	t.Helper()
	defer c.Close()
	res, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: asked.method})
	if err != nil {
		t.Fatal(err)
	}
	testkit.LintResponse(t, asked.Asked, res)
	defer func() { _ = res.Body.Close() }()
	var body strings.Builder
	var stopping sync.WaitGroup
	defer stopping.Wait()
	for buf := make([]byte, 1); ; {
		n, err := res.Body.Read(buf)
		body.Write(buf[:n])
		switch {
		case err == io.EOF, leaveAt != "" && strings.HasSuffix(body.String(), leaveAt):
			return written(res, body.String())
		case err != nil:
			t.Fatalf("%v after %s", err, body.String())
		case stopAt != "" && strings.HasSuffix(body.String(), stopAt):
			stopAt = ""
			stopping.Go(stop)
		}
	}
}

// ids are UUIDs and the ids of calls, which are new in every run.
var ids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|call_[0-9a-f]{24}`)

// written is a response as transcripts write it: without what differs from run to run, and with a line's end at the
// end.
func written(res *http.Response, body string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d\n", res.StatusCode)
	var names []string
	for name := range res.Header {
		if name != "Date" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(res.Header[name], ", "))
	}
	b.WriteString("\n" + body)
	if !strings.HasSuffix(body, "\n") {
		b.WriteString("\n")
	}
	return ids.ReplaceAllString(b.String(), "ID")
}
