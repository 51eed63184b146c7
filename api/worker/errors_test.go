package worker_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
)

// TestParseErrorClasses lists what workers of all ages write, and the class and reason it stands for. The last lines
// are pairs of class and reason: a pair that contradicts itself is an internal error.
func TestParseErrorClasses(t *testing.T) {
	for in, want := range map[string][2]string{
		`{"class":"InvalidRequest"}`:                                                    {"InvalidRequest", "request.invalid"},
		`{"error_type":"InvalidArgument"}`:                                              {"InvalidRequest", "request.invalid_argument"},
		`{"error_type":{"Backend":"InvalidArgument"}}`:                                  {"InvalidRequest", "backend.invalid_argument"},
		`{"error_type":"CannotConnect"}`:                                                {"Unavailable", "transport.cannot_connect"},
		`{"error_type":"Disconnected"}`:                                                 {"Unavailable", "transport.disconnected"},
		`{"error_type":"WorkerUnavailable"}`:                                            {"Unavailable", "backend.worker_unavailable"},
		`{"error_type":{"Backend":"CannotConnect"}}`:                                    {"Unavailable", "backend.cannot_connect"},
		`{"error_type":{"Backend":"Disconnected"}}`:                                     {"Unavailable", "backend.disconnected"},
		`{"error_type":{"Backend":"EngineShutdown"}}`:                                   {"Unavailable", "backend.engine_shutdown"},
		`{"error_type":{"Backend":"StreamIncomplete"}}`:                                 {"Unavailable", "backend.stream_incomplete"},
		`{"error_type":"ConnectionTimeout"}`:                                            {"DeadlineExceeded", "transport.connection_timeout"},
		`{"error_type":"ResponseTimeout"}`:                                              {"DeadlineExceeded", "backend.response_timeout"},
		`{"error_type":{"Backend":"ConnectionTimeout"}}`:                                {"DeadlineExceeded", "backend.connection_timeout"},
		`{"error_type":{"Backend":"ResponseTimeout"}}`:                                  {"DeadlineExceeded", "backend.response_timeout"},
		`{"error_type":"ResourceExhausted"}`:                                            {"CapacityExhausted", "capacity.exhausted"},
		`{"error_type":"WorkerOverloaded"}`:                                             {"CapacityExhausted", "capacity.worker_overloaded"},
		`{"error_type":{"Backend":"Cancelled"}}`:                                        {"Cancelled", "backend.cancelled"},
		`{"error_type":{"Backend":"Unknown"}}`:                                          {"Internal", "backend.unknown"},
		`{"error_type":"Unknown"}`:                                                      {"Internal", "runtime.unclassified"},
		`{"class":"SomethingNew"}`:                                                      {"Internal", "runtime.unclassified"},
		`{}`:                                                                            {"Internal", "runtime.unclassified"},
		`{"class":"Unavailable","error_type":"Disconnected"}`:                           {"Unavailable", "transport.disconnected"},
		`{"class":"Unavailable","error_type":"InvalidArgument"}`:                        {"Unavailable", "backend.unavailable"},
		`{"class":"Unavailable","reason":"backend.engine_shutdown"}`:                    {"Unavailable", "backend.engine_shutdown"},
		`{"class":"InvalidRequest","reason":"backend.engine_shutdown"}`:                 {"Internal", "runtime.invalid_error"},
		`{"class":"Unavailable","reason":"no.such"}`:                                    {"Internal", "runtime.invalid_error"},
		`{"class":"RateLimited","reason":"router.queue_deadline_exceeded"}`:             {"RateLimited", "router.queue_deadline_exceeded"},
		`{"class":"CapacityExhausted","reason":"capacity.pool_exhausted","future":[1]}`: {"CapacityExhausted", "capacity.pool_exhausted"},
	} {
		e, err := worker.ParseError([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got := [2]string{e.Class, e.Reason}; got != want {
			t.Errorf("%s is %v, want %v", in, got, want)
		}
	}
}

func TestParseErrorParts(t *testing.T) {
	e, err := worker.ParseError([]byte(`{"class":"PayloadTooLarge","message":"secret","diagnostic":"` + strings.Repeat("é", 4000) +
		`","public":{"type":"size_limit","limit":5,"actual":9},"caused_by":{"class":"Internal","message":"root"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Diagnostic) != 4096 {
		t.Errorf("diagnostic of %d bytes", len(e.Diagnostic))
	}
	e.Diagnostic = ""
	root := &worker.Error{Class: "Internal", Reason: "runtime.internal", Message: "root"}
	want := &worker.Error{
		Class: "PayloadTooLarge", Reason: "request.payload_too_large", Message: "secret",
		PublicType: "size_limit", PublicRaw: []byte(`{"type":"size_limit","limit":5,"actual":9}`), CausedBy: root,
	}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	if !errors.Is(e, root) && errors.Unwrap(e).Error() != root.Error() {
		t.Error("the cause is not in the chain")
	}
	// None of these is a public part of a known type.
	for _, public := range []string{`null`, `"text"`, `{"type":"secret","message":"m"}`, `{"message":"m"}`, `[1]`} {
		e, err := worker.ParseError([]byte(`{"class":"Internal","public":` + public + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if e.Public != "" || e.PublicType != "" || e.PublicRaw != nil {
			t.Errorf("public %s is shown: %+v", public, e)
		}
	}
	// Far beyond what is kept: the rest is skipped, not refused.
	chain := strings.Repeat(`{"caused_by":`, 200) + `{}` + strings.Repeat(`}`, 200)
	if _, err := worker.ParseError([]byte(chain)); err != nil {
		t.Errorf("long chain of causes: %v", err)
	}
	for _, bad := range []string{``, `[]`, `{"class":1}`, `{"message":{}}`, `{"class":"Internal"`} {
		if e, err := worker.ParseError([]byte(bad)); err == nil {
			t.Errorf("%s parses as %+v", bad, e)
		}
	}
}

func TestPrologue(t *testing.T) {
	typed := &worker.Error{Class: "InvalidRequest", Reason: "request.invalid", Message: "no", PublicType: "message", Public: "told", PublicRaw: []byte(`{"type":"message","message":"told"}`)}
	header, _, _, err := worker.ParseFrame(worker.AppendPrologue(nil, typed))
	if err != nil {
		t.Fatal(err)
	}
	got, err := worker.ParsePrologue(header)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(typed, got); diff != "" {
		t.Errorf("prologue:\n%s", diff)
	}
	for in, want := range map[string]*worker.Error{
		`{"error":null}`: nil,
		`{ "error" : null, "typed_error": null, "x": 1 }`: nil,
		`{"error":"text"}`: {Class: "Unavailable", Reason: "transport.cannot_connect", Message: "text"},
	} {
		got, err := worker.ParsePrologue([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", in, diff)
		}
	}
	for _, bad := range []string{`{}`, `"sentinel"`, `{"error":1}`, `null`, ``} {
		if e, err := worker.ParsePrologue([]byte(bad)); err == nil {
			t.Errorf("%s parses as %+v", bad, e)
		}
	}
}
