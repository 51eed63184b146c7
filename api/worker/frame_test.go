package worker_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
)

// TestFrame: a frame shows its size only once it is whole, keeps what follows it out, and is refused by size alone.
func TestFrame(t *testing.T) {
	b := worker.AppendFrame([]byte("before"), []byte("head"), []byte("body"))[6:]
	for n := range len(b) {
		if _, _, size, err := worker.ParseFrame(b[:n]); size != 0 || err != nil {
			t.Fatalf("%d of %d bytes: size %d, %v", n, len(b), size, err)
		}
	}
	header, body, n, err := worker.ParseFrame(append(b, "rest"...))
	if err != nil || n != len(b) || string(header) != "head" || string(body) != "body" {
		t.Errorf("%q %q %d %v", header, body, n, err)
	}
	binary.BigEndian.PutUint64(b[16:], 12345)
	if _, _, n, err := worker.ParseFrame(b); n != len(b) || err != nil {
		t.Errorf("with a checksum: %d, %v", n, err)
	}
	for name, sizes := range map[string][2]uint64{
		"header": {worker.MaxControl + 1, 0}, "body": {0, worker.MaxFrame}, "wraps": {1 << 16, 1<<64 - 1<<16},
	} {
		b := make([]byte, worker.FrameHead)
		binary.BigEndian.PutUint64(b, sizes[0])
		binary.BigEndian.PutUint64(b[8:], sizes[1])
		if _, err := worker.FrameSize(b); !errors.Is(err, worker.ErrFrameTooLarge) {
			t.Errorf("%s too large: %v", name, err)
		}
	}
}

// TestControl: everything that needs an escape is in the id, which also stands twice quoted in the connection info.
func TestControl(t *testing.T) {
	c := &worker.Control{
		ID: `a"b\c` + "\n é", Codec: worker.Msgpack, RequestType: worker.ManyIn, ResponseType: worker.SingleOut,
		Conn:        worker.Connection{Transport: worker.TransportTCP, Address: "[::1]:5", Subject: "s", Context: `a"b\c` + "\n é", StreamType: worker.StreamResponse},
		RequestConn: &worker.Connection{Transport: worker.TransportTCP, Address: "h:1", Subject: "q", Context: `a"b\c` + "\n é", StreamType: worker.StreamRequest},
		Metadata:    map[string]string{"k": "v", "": `"`}, SentNS: new(uint64(1<<64 - 1)),
	}
	got, err := worker.ParseControl(worker.AppendControl(nil, c))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c, got); diff != "" {
		t.Errorf("control:\n%s", diff)
	}
	const info = `"{\"address\":\"h:1\",\"subject\":\"s\",\"context\":\"i\",\"stream_type\":\"response\"}"`
	for name, bad := range map[string]string{
		"not JSON":       `{`,
		"no connection":  `{"id":"i"}`,
		"other plane":    `{"id":"i","connection_info":{"transport":"quic","info":` + info + `}}`,
		"other context":  `{"id":"j","connection_info":{"transport":"tcp_server","info":` + info + `}}`,
		"other type":     `{"id":"i","connection_info":{"transport":"tcp_server","info":` + strings.Replace(info, "response", "request", 1) + `}}`,
		"info not JSON":  `{"id":"i","connection_info":{"transport":"tcp_server","info":"x"}}`,
		"unknown codec":  `{"id":"i","payload_codec":"cbor","connection_info":{"transport":"tcp_server","info":` + info + `}}`,
		"beyond a limit": `{"id":"` + strings.Repeat("x", worker.MaxControl) + `"}`,
	} {
		if c, err := worker.ParseControl([]byte(bad)); err == nil {
			t.Errorf("%s parses as %+v", name, c)
		}
	}
	if c, err := worker.ParseControl([]byte(`{"id":"i","connection_info":{"transport":"tcp_server","info":` + info + `}}`)); err != nil || c.Codec != worker.JSON {
		t.Errorf("without a codec: %+v, %v", c, err)
	}
}

// TestHandshake: keys come in any order, and strings with or without escapes.
func TestHandshake(t *testing.T) {
	for in, want := range map[string]string{
		`{"subject":"abc","stream_type":"response"}`:                        "abc",
		`{"stream_type":"response","x":{"subject":1},"subject":"a\u0062c"}`: "abc",
		`{"subject":"a\u0062c","stream_type":"respons\u0065"}`:              "abc",
	} {
		subject, kind, err := worker.ParseHandshake([]byte(in))
		if err != nil || string(subject) != want || kind != worker.StreamResponse {
			t.Errorf("%s: %q %q %v", in, subject, kind, err)
		}
	}
	for _, bad := range []string{``, `[]`, `{"subject":1}`, `{"subject":"a"`} {
		if s, _, err := worker.ParseHandshake([]byte(bad)); err == nil {
			t.Errorf("%s names %q", bad, s)
		}
	}
	for sig, want := range map[string]worker.Signal{
		`"stop"`: worker.SignalStop, `"kill"`: worker.SignalKill, ` "sentinel" `: worker.SignalSentinel,
		`"other"`: worker.SignalNone, ``: worker.SignalNone, `stop`: worker.SignalNone,
	} {
		if got := worker.ParseSignal([]byte(sig)); got != want {
			t.Errorf("%s is %q", sig, got)
		}
	}
	header, body, _, err := worker.ParseFrame(worker.AppendSignal(nil, worker.SignalKill))
	if err != nil || !bytes.Equal(header, []byte(`"kill"`)) || len(body) > 0 {
		t.Errorf("kill is %q %q %v", header, body, err)
	}
}
