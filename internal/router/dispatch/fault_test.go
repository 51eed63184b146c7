package dispatch_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router/dispatch"
	"github.com/portico-llm/portico/internal/testkit"
)

// statuses are those of the kinds that workers' errors become.
var statuses = map[fault.Kind]int{
	fault.BadRequest: 400, fault.Unauthenticated: 401, fault.PermissionDenied: 403, fault.NotFound: 404,
	fault.Conflict: 409, fault.TooLarge: 413, fault.UnsupportedMedia: 415, fault.RateLimited: 429, fault.Cancelled: 499,
	fault.Internal: 500, fault.NotImplemented: 501, fault.BadGateway: 502, fault.Unavailable: 503, fault.Timeout: 504,
	fault.Overloaded: 529,
}

// Worker errors end as they do in the recordings, but for two things: an engine that says 503 or 529 is not worded as
// an internal error, and the status of a backend is a detail only where the backend stated one.
func TestRecordedFaults(t *testing.T) {
	type recorded struct {
		Name    string                     `json:"name"`
		Item    map[string]json.RawMessage `json:"item"`
		Status  int                        `json:"status"`
		Message string                     `json:"message"`
		Details map[string]any             `json:"details"`
	}
	seen := 0
	for c := range testkit.Records[recorded](t, "testdata/errors.jsonl.gz") {
		delete(c.Item, "_dynamo_annotated")
		raw, err := json.Marshal(map[string]any{"data": c.Item})
		if err != nil {
			t.Fatal(err)
		}
		if _, finish := c.Item["finish_reason"]; finish {
			continue // the engine's message travels in an output
		}
		seen++
		var it worker.Item
		if err := worker.DecodeItem(worker.JSON, raw, &it); err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		f := dispatch.Fault(it.Err)
		if statuses[f.Kind] != c.Status {
			t.Errorf("%s: status %d, recorded %d", c.Name, statuses[f.Kind], c.Status)
		}
		stated := c.Message == "Internal server error" && c.Status != 500
		if f.Message != c.Message && !stated {
			t.Errorf("%s: message %q, recorded %q", c.Name, f.Message, c.Message)
		}
		if strings.Contains(f.Message, "secret") || strings.Contains(f.Message, "thing") {
			t.Errorf("%s: private text %q is shown", c.Name, f.Message)
		}
		if _, backend := c.Details["backend_status"]; !backend {
			if diff := cmp.Diff(c.Details, f.Details); diff != "" {
				t.Errorf("%s: details:\n%s", c.Name, diff)
			}
		}
	}
	if seen < 50 {
		t.Errorf("%d cases", seen)
	}
}

// TestFaultOrigins reads errors in the forms that workers of several versions send: what is lost comes from the
// transport, in whichever form it says so.
func TestFaultOrigins(t *testing.T) {
	for in, want := range map[string]fault.Origin{
		`{"error_type":"Disconnected"}`:                                           fault.FromTransport,
		`{"error_type":{"Backend":"EngineShutdown"}}`:                             fault.FromTransport,
		`{"error_type":"InvalidArgument"}`:                                        fault.FromWorker,
		`{"class":"Unavailable"}`:                                                 fault.FromWorker,
		`{"class":"CapacityExhausted","reason":"router.queue_deadline_exceeded"}`: fault.FromWorker,
	} {
		e, err := worker.ParseError([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		f := dispatch.Fault(e)
		if f.Origin != want || !errors.Is(f, e) {
			t.Errorf("%s is from %d", in, f.Origin)
		}
		if strings.Contains(in, "queue_deadline") && f.Kind != fault.RateLimited {
			t.Errorf("%s is %v", in, f.Kind)
		}
	}
}
