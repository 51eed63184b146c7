package worker_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/portico-llm/portico/api/worker"
)

// capture returns a recording of a real worker and frontend; testdata/README.md tells how it was made.
func capture(tb testing.TB, name string) []byte {
	tb.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".gz"))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// part is one frame of a recording.
type part struct{ header, body []byte }

// parts splits a recording into its frames; a last one that was cut off is dropped.
func parts(tb testing.TB, b []byte) (list []part) {
	tb.Helper()
	for {
		header, body, n, err := worker.ParseFrame(b)
		if err != nil {
			tb.Fatal(err)
		}
		if n == 0 {
			return list
		}
		if got := worker.AppendFrame(nil, header, body); !bytes.Equal(got, b[:n]) {
			tb.Fatalf("frame encodes to %x, recorded %x", got, b[:n])
		}
		list = append(list, part{header, body})
		b = b[n:]
	}
}

// tcpRequests splits a recording of the TCP request plane into envelopes.
func tcpRequests(tb testing.TB, b []byte) (list []part) {
	tb.Helper()
	for len(b) > 0 {
		b = b[2+binary.BigEndian.Uint16(b):]
		b = b[2+binary.BigEndian.Uint16(b):]
		n := int(binary.BigEndian.Uint32(b))
		list = append(list, parts(tb, b[4:4+n])...)
		b = b[4+n:]
	}
	return list
}

// canonical decodes JSON for a comparison that ignores the order of keys, but no digit of a number.
func canonical(tb testing.TB, b []byte) any {
	tb.Helper()
	var v any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		tb.Fatalf("%v in %s", err, b)
	}
	return v
}

// asJSON transcodes a recorded body.
func asJSON(tb testing.TB, msgpack []byte) []byte {
	tb.Helper()
	b, err := worker.AppendMsgpackAsJSON(nil, msgpack)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// TestRecordedRequests reads recorded envelopes and bodies and writes them again: byte for byte, but for guided
// decoding, which passes through as JSON.
func TestRecordedRequests(t *testing.T) {
	// The request stands behind the headers of the one NATS message, and begins with the zeros of its preamble.
	nats := capture(t, "nats_worker_in.bin")
	_, nats, ok := bytes.Cut(nats, []byte("\r\n\r\n\x00\x00\x00\x00"))
	if !ok {
		t.Fatal("no request in the NATS recording")
	}
	nats = append([]byte{0, 0, 0, 0}, nats...)
	var all []part
	all = append(all, tcpRequests(t, capture(t, "tcp_requests.bin"))...)
	all = append(all, tcpRequests(t, capture(t, "tcp_request_guided.bin"))...)
	header, body, n, err := worker.ParseFrame(nats)
	if err != nil || n == 0 {
		t.Fatalf("NATS request: %d bytes, %v", n, err)
	}
	all = append(all, part{header, body})
	if len(all) != 4 {
		t.Fatalf("%d requests recorded", len(all))
	}
	for _, p := range all {
		control, err := worker.ParseControl(p.header)
		if err != nil {
			t.Fatal(err)
		}
		if control.Codec != worker.Msgpack || control.Conn.Context != control.ID || control.Conn.Address == "" {
			t.Errorf("control read as %+v", control)
		}
		if got := worker.AppendControl(nil, control); !bytes.Equal(got, p.header) {
			t.Errorf("control encodes to\n%s\nrecorded\n%s", got, p.header)
		}
		q, err := worker.DecodeRequest(worker.Msgpack, p.body)
		if err != nil {
			t.Fatal(err)
		}
		again, err := q.Append(nil, worker.Msgpack)
		if err != nil {
			t.Fatal(err)
		}
		if q.Sampling.GuidedDecoding == nil && !bytes.Equal(again, p.body) {
			t.Errorf("request encodes to\n%x\nrecorded\n%x", again, p.body)
		}
		want := canonical(t, asJSON(t, p.body))
		if diff := cmp.Diff(want, canonical(t, asJSON(t, again))); diff != "" {
			t.Errorf("request (-recorded +encoded):\n%s", diff)
		}
		text, err := q.Append(nil, worker.JSON)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, canonical(t, text)); diff != "" {
			t.Errorf("request as JSON (-recorded +encoded):\n%s", diff)
		}
	}
}

// TestRecordedAnswers reads whole answers: handshake, prologue, items, end mark and sentinel, and writes each again.
func TestRecordedAnswers(t *testing.T) {
	for name, want := range map[string]struct {
		tokens int
		finish worker.FinishReason
		usage  *worker.Usage
	}{
		"callhome_tcp.bin": {4, worker.FinishLength, &worker.Usage{
			PromptTokens: 10, CompletionTokens: 4, TotalTokens: 14, CachedTokens: new(0),
		}},
		"callhome_tcp_completions.bin": {3, worker.FinishLength, &worker.Usage{
			PromptTokens: 1, CompletionTokens: 3, TotalTokens: 4, CachedTokens: new(0),
		}},
		"callhome_nats.bin": {4, worker.FinishLength, &worker.Usage{
			PromptTokens: 12, CompletionTokens: 4, TotalTokens: 16, CachedTokens: new(0),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			frames := parts(t, capture(t, name))
			subject, kind, err := worker.ParseHandshake(frames[0].header)
			if err != nil || len(subject) != 36 || kind != worker.StreamResponse {
				t.Fatalf("handshake %q %q %v", subject, kind, err)
			}
			if got := worker.AppendHandshake(nil, string(subject), kind); !bytes.Equal(got[24:], frames[0].header) {
				t.Errorf("handshake encodes to %s", got[24:])
			}
			if e, err := worker.ParsePrologue(frames[1].header); e != nil || err != nil {
				t.Fatalf("prologue: %v, %v", e, err)
			}
			if got := worker.AppendPrologue(nil, nil); !bytes.Equal(got[24:], frames[1].header) {
				t.Errorf("prologue encodes to %s", got[24:])
			}
			last := len(frames) - 1
			if worker.ParseSignal(frames[last].header) != worker.SignalSentinel {
				t.Errorf("last frame is %q", frames[last].header)
			}
			if got := worker.AppendFinal(nil, worker.Msgpack); !bytes.Equal(got, frames[last-1].body) {
				t.Errorf("end mark encodes to %x, recorded %x", got, frames[last-1].body)
			}
			tokens := 0
			var it worker.Item
			for _, p := range frames[2 : last-1] {
				decodeBoth(t, p.body, &it)
				tokens += len(it.Output.TokenIDs)
				again, err := worker.AppendItem(nil, worker.Msgpack, &it)
				if err != nil || !bytes.Equal(again, p.body) {
					t.Errorf("item encodes to\n%x (%v), recorded\n%x", again, err, p.body)
				}
			}
			if tokens != want.tokens || it.Output.FinishReason != want.finish {
				t.Errorf("%d tokens, finish %q", tokens, it.Output.FinishReason)
			}
			if diff := cmp.Diff(want.usage, it.Output.Usage); diff != "" {
				t.Errorf("usage:\n%s", diff)
			}
		})
	}
}

var ignoreNaN = cmp.Options{cmpopts.EquateNaNs(), cmpopts.EquateEmpty()}

// decodeBoth decodes an item from msgpack and, transcoded, from JSON, and checks that both are the same.
func decodeBoth(tb testing.TB, body []byte, it *worker.Item) {
	tb.Helper()
	if err := worker.DecodeItem(worker.Msgpack, body, it); err != nil {
		tb.Fatal(err)
	}
	var other worker.Item
	if err := worker.DecodeItem(worker.JSON, asJSON(tb, body), &other); err != nil {
		tb.Fatal(err)
	}
	if diff := cmp.Diff(*it, other, ignoreNaN); diff != "" {
		tb.Errorf("item (-msgpack +JSON):\n%s", diff)
	}
}

func TestRecordedError(t *testing.T) {
	frames := parts(t, capture(t, "callhome_error.bin"))
	var it worker.Item
	decodeBoth(t, frames[2].body, &it)
	want := worker.Item{Event: "error", Err: &worker.Error{
		Class: "InvalidRequest", Reason: "request.invalid_argument",
		Message:    "max_output_tokens must be specified for mocker",
		Diagnostic: "max_output_tokens must be specified for mocker",
		PublicType: "message",
		Public:     "`max_output_tokens` (or `max_tokens`) is required by the mocker worker",
	}}
	if diff := cmp.Diff(want, it, ignoreNaN, cmpopts.IgnoreFields(worker.Error{}, "PublicRaw")); diff != "" {
		t.Errorf("error item:\n%s", diff)
	}
	if got := string(it.Err.PublicRaw); !strings.Contains(got, `"type":"message"`) {
		t.Errorf("public part is %s", got)
	}
}

func TestRecordedCancels(t *testing.T) {
	stream := worker.AppendSignal(worker.AppendSignal(nil, worker.SignalStop), worker.SignalKill)
	if got := capture(t, "cancel_stream.bin"); !bytes.Equal(got, stream) {
		t.Errorf("recorded %q, ours %q", got, stream)
	}
	if got := capture(t, "cancel_unary.bin"); !bytes.Equal(got, worker.AppendSignal(nil, worker.SignalKill)) {
		t.Errorf("recorded %q", got)
	}
	frames := parts(t, capture(t, "callhome_cut.bin"))
	if len(frames) < 100 {
		t.Fatalf("%d frames", len(frames))
	}
	var it worker.Item
	for _, p := range frames[2:] {
		decodeBoth(t, p.body, &it)
	}
	if it.Final {
		t.Error("a stream that was cut off has an end mark")
	}
}

func TestRecordedDiscovery(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(string(capture(t, "discovery.txt"))), "\n")
	instances, models := 0, 0
	for i := 0; i+1 < len(lines); i += 2 {
		key, value := lines[i], []byte(lines[i+1])
		switch {
		case strings.HasPrefix(key, "v1/instances/"):
			instances++
			in, err := worker.ParseInstance(value)
			if err != nil {
				t.Fatal(err)
			}
			if "v1/instances/"+in.Path() != key {
				t.Errorf("path %q, key %q", in.Path(), key)
			}
			if in.Codec() != worker.Msgpack || in.Transport.NATS == "" {
				t.Errorf("instance read as %+v", in)
			}
			record, err := in.Record()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(canonical(t, value), canonical(t, record)); diff != "" {
				t.Errorf("record:\n%s", diff)
			}
		case strings.HasPrefix(key, "v1/mdc/"):
			models++
			checkModel(t, key, value)
		}
	}
	if instances != 4 || models != 2 {
		t.Errorf("%d instances, %d models", instances, models)
	}
}

func checkModel(t *testing.T, key string, value []byte) {
	t.Helper()
	m, err := worker.ParseModel(value)
	if err != nil {
		t.Fatal(err)
	}
	if "v1/mdc/"+m.Path() != key {
		t.Errorf("path %q, key %q", m.Path(), key)
	}
	c := &m.Card
	if c.DisplayName != "qwen3" || !c.Has("Chat") || c.EffectiveContextLength() != 0 || c.KVCacheBlockSize != 64 {
		t.Errorf("card read as %+v", c)
	}
	if c.Tokenizer.Kind != worker.KindTokenizer || *c.Tokenizer.File.Size != 11422654 || !c.ChatTemplate.IsZero() {
		t.Errorf("files read as %+v %+v", c.Tokenizer, c.ChatTemplate)
	}
	record, err := m.Record()
	if err != nil {
		t.Fatal(err)
	}
	again, err := worker.ParseModel(record)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m, again, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("record read again:\n%s", diff)
	}
}
