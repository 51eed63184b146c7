package worker_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/portico-llm/portico/api/worker"
)

func FuzzFrame(f *testing.F) {
	for _, name := range []string{"callhome_tcp.bin", "cancel_stream.bin", "tcp_requests.bin"} {
		f.Add(capture(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		header, body, n, err := worker.ParseFrame(b)
		if err != nil || n == 0 {
			if n != 0 {
				t.Fatalf("size %d with %v", n, err)
			}
			return
		}
		if n != worker.FrameHead+len(header)+len(body) || n > len(b) {
			t.Fatalf("size %d of %d, header %d, body %d", n, len(b), len(header), len(body))
		}
		again := worker.AppendFrame(nil, header, body)
		if !bytes.Equal(again[:16], b[:16]) || !bytes.Equal(again[worker.FrameHead:], b[worker.FrameHead:n]) {
			t.Fatalf("frame changes: %x, %x", b[:n], again)
		}
		// No prefix is a frame, so the outcome doesn't depend on where reads split.
		if _, _, short, err := worker.ParseFrame(b[:n-1]); short != 0 || err != nil {
			t.Fatalf("a prefix is a frame of %d (%v)", short, err)
		}
		// Headers come from workers: none of their parsers may fail otherwise than by an error.
		worker.ParseHandshake(header)
		worker.ParseSignal(header)
		worker.ParsePrologue(header)
	})
}

// sameFloats treats what JSON can't carry, NaN and the infinities, as one.
var sameFloats = cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b float64) bool {
	return a == b || (math.IsNaN(a-a) && math.IsNaN(b-b))
})}

func FuzzItem(f *testing.F) {
	for _, name := range []string{"callhome_tcp.bin", "callhome_error.bin"} {
		for _, p := range parts(f, capture(f, name)) {
			if len(p.body) > 0 {
				f.Add(p.body, true)
				f.Add(asJSON(f, p.body), false)
			}
		}
	}
	f.Add([]byte(frame(`{"token_ids":[1],"log_probs":[null,1e999],"top_logprobs":[[{"token_id":1,"logprob":-0.0,"bytes":[1]}]],"finish_reason":{"error":"x"},"stop_reason":"\ud800"}`)), false)
	f.Fuzz(func(t *testing.T, body []byte, packed bool) {
		codec, other := worker.JSON, worker.Msgpack
		if packed {
			codec, other = other, codec
		}
		var raw, it worker.Item
		worker.DecodeRawItem(codec, body, &raw)
		worker.DecodeBareItem(codec, body, &raw)
		if err := worker.DecodeItem(codec, body, &it); err != nil {
			return
		}
		if it.Final {
			return // the end mark has no other content when it is encoded
		}
		for _, c := range []worker.Codec{codec, other} {
			b, err := worker.AppendItem(nil, c, &it)
			if err != nil {
				t.Fatalf("%+v doesn't encode: %v", it, err)
			}
			var again worker.Item
			if err := worker.DecodeItem(c, b, &again); err != nil {
				t.Fatalf("%+v encodes to %q in %v: %v", it, b, c, err)
			}
			if diff := cmp.Diff(settled(t, it), settled(t, again), sameFloats); diff != "" {
				t.Fatalf("by way of %v:\n%s", c, diff)
			}
		}
	})
}

// settled brings an item to the form that survives both codecs: raw JSON without spaces, strings in UTF-8.
func settled(t *testing.T, it worker.Item) worker.Item {
	b, err := worker.AppendItem(nil, worker.Msgpack, &it)
	if err != nil {
		t.Fatal(err)
	}
	text := asJSON(t, b)
	var out worker.Item
	if err := worker.DecodeItem(worker.JSON, text, &out); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if e := it.Err; e != nil { // private texts are cut again where replacement characters made them longer
		out.Err.Diagnostic, out.Err.Message = "", ""
		for c := out.Err.CausedBy; c != nil; c = c.CausedBy {
			c.Diagnostic, c.Message = "", ""
		}
	}
	return out
}

func FuzzControl(f *testing.F) {
	for _, p := range tcpRequests(f, capture(f, "tcp_requests.bin")) {
		f.Add(p.header)
	}
	f.Add([]byte(`{"id":"i","metadata":{"a":"\u0000"},"frontend_send_ts_ns":1,"connection_info":{"transport":"tcp_server","info":"{\"context\":\"i\",\"stream_type\":\"response\"}"}}`))
	f.Fuzz(func(t *testing.T, header []byte) {
		c, err := worker.ParseControl(header)
		if err != nil {
			return
		}
		again, err := worker.ParseControl(worker.AppendControl(nil, c))
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		// Absent types become the usual ones.
		c.RequestType, c.ResponseType = again.RequestType, again.ResponseType
		if len(c.Metadata) == 0 {
			c.Metadata = nil
		}
		if diff := cmp.Diff(c, again); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzRequest(f *testing.F) {
	for _, p := range tcpRequests(f, capture(f, "tcp_requests.bin")) {
		f.Add(p.body, true)
		f.Add(asJSON(f, p.body), false)
	}
	for _, codec := range []worker.Codec{worker.JSON, worker.Msgpack} {
		body, err := fullRequest().Append(nil, codec)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body, codec == worker.Msgpack)
	}
	f.Fuzz(func(t *testing.T, body []byte, packed bool) {
		codec := worker.JSON
		if packed {
			codec = worker.Msgpack
		}
		q, err := worker.DecodeRequest(codec, body)
		if err != nil {
			return
		}
		first := reencode(t, q)
		second := reencode(t, first)
		if diff := cmp.Diff(first, second, sameFloats); diff != "" {
			t.Fatal(diff)
		}
	})
}

// reencode sends a request through msgpack and then through JSON.
func reencode(t *testing.T, q *worker.Request) *worker.Request {
	for _, codec := range []worker.Codec{worker.Msgpack, worker.JSON} {
		b, err := q.Append(nil, codec)
		if err != nil {
			t.Fatal(err)
		}
		again, err := worker.DecodeRequest(codec, b)
		if err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		q = again
	}
	return q
}
