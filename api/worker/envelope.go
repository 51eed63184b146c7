package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Values of the envelope's fields.
const (
	SingleIn       = "single_in"  // one request body
	ManyIn         = "many_in"    // the worker also dials RequestConn, and reads requests there
	SingleOut      = "single_out" // one item comes back
	ManyOut        = "many_out"   // a stream comes back
	TransportTCP   = "tcp_server" // the worker dials back over TCP
	StreamResponse = "response"   // from the worker
	StreamRequest  = "request"    // to the worker
)

// Control is the header of a request envelope: what a worker needs to know before it looks at the body.
type Control struct {
	ID           string            // of the request, one at a time for each worker
	RequestType  string            // empty: SingleIn
	ResponseType string            // empty: ManyOut
	Codec        Codec             // of the request body and of every frame of the answer
	Conn         Connection        // where the answer is to go
	RequestConn  *Connection       // set with ManyIn only
	Metadata     map[string]string // for the worker's engine
	SentNS       *uint64           // frontend_send_ts_ns
}

// Connection tells a worker where to dial back and what to say there.
type Connection struct {
	Transport  string // empty: TransportTCP
	Address    string // host:port
	Subject    string // names the waiting stream
	Context    string // equals the request id
	StreamType string // empty: StreamResponse
}

// AppendControl appends the header as JSON.
func AppendControl(dst []byte, c *Control) []byte {
	// By hand: the header is built for every attempt of every request. It is JSON whatever the body's codec.
	dst = appendJSONString(append(dst, `{"id":`...), c.ID)
	dst = appendJSONString(append(dst, `,"request_type":`...), or(c.RequestType, SingleIn))
	dst = appendJSONString(append(dst, `,"response_type":`...), or(c.ResponseType, ManyOut))
	dst = append(append(append(dst, `,"payload_codec":"`...), c.Codec.String()...), '"')
	dst = c.Conn.append(append(dst, `,"connection_info":`...))
	if c.RequestConn != nil {
		dst = c.RequestConn.append(append(dst, `,"request_stream_connection_info":`...))
	}
	if c.SentNS != nil {
		w := writer{b: append(dst, `,"frontend_send_ts_ns":`...)}
		w.uint(*c.SentNS)
		dst = w.b
	}
	// Left out when empty, as the optional fields before it.
	if len(c.Metadata) > 0 {
		dst = AppendStringMap(append(dst, `,"metadata":`...), c.Metadata)
	}
	return append(dst, '}')
}

// AppendStringMap appends m as a JSON object with its keys in order.
func AppendStringMap(dst []byte, m map[string]string) []byte {
	dst = append(dst, '{')
	// Sorted, so that the same request is always the same bytes.
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendJSONString(dst, k), ':')
		dst = appendJSONString(dst, m[k])
	}
	return append(dst, '}')
}

// AppendJSONString appends s as a JSON string; bytes that are not UTF-8 become U+FFFD.
func AppendJSONString(dst []byte, s string) []byte { return appendJSONString(dst, s) }

// or returns s, or otherwise when s is empty.
func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// append appends the connection, whose details are a JSON text inside a JSON string.
func (c *Connection) append(dst []byte) []byte {
	dst = appendJSONString(append(dst, `{"transport":`...), or(c.Transport, TransportTCP))
	dst = append(dst, `,"info":"{\"address\":`...)
	dst = appendQuotedTwice(dst, c.Address)
	dst = appendQuotedTwice(append(dst, `,\"subject\":`...), c.Subject)
	dst = appendQuotedTwice(append(dst, `,\"context\":`...), c.Context)
	dst = appendQuotedTwice(append(dst, `,\"stream_type\":`...), or(c.StreamType, StreamResponse))
	return append(dst, `}"}`...)
}

// appendQuotedTwice appends s as a JSON string inside a JSON string.
func appendQuotedTwice(dst []byte, s string) []byte {
	// Nearly always: addresses and ids hold nothing that needs an escape.
	if plain(s) {
		return append(append(append(dst, `\"`...), s...), `\"`...)
	}
	// Quoted twice and freed of the outer quotes, between which it is to stand.
	inner := appendJSONString(nil, s)
	outer := appendJSONString(nil, inner)
	return append(dst, outer[1:len(outer)-1]...)
}

// plain reports whether s needs no escapes. It also says no to what lies beyond ASCII, which appendJSONString checks to
// be UTF-8.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x80 || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// errEnvelope is returned for envelopes that a worker must refuse.
var errEnvelope = errors.New("malformed request envelope")

// ParseControl reads an envelope's header, as a worker does. It refuses what workers refuse: a context that isn't the
// request's id, a stream type that isn't the one asked for. It is used by simulated workers and by tests, so it may
// allocate.
func ParseControl(header []byte) (*Control, error) {
	if len(header) > MaxControl {
		return nil, fmt.Errorf("%w: header of %d bytes", errEnvelope, len(header))
	}
	var raw struct {
		ID           string            `json:"id"`
		RequestType  string            `json:"request_type"`
		ResponseType string            `json:"response_type"`
		Codec        string            `json:"payload_codec"`
		Conn         *connectionJSON   `json:"connection_info"`
		RequestConn  *connectionJSON   `json:"request_stream_connection_info"`
		Metadata     map[string]string `json:"metadata"`
		SentNS       *uint64           `json:"frontend_send_ts_ns"`
	}
	if err := json.Unmarshal(header, &raw); err != nil {
		return nil, fmt.Errorf("%w: %w", errEnvelope, err)
	}
	c := &Control{
		ID: raw.ID, RequestType: raw.RequestType, ResponseType: raw.ResponseType,
		Metadata: raw.Metadata, SentNS: raw.SentNS,
	}
	// Absent is JSON: envelopes are older than the other codec.
	switch raw.Codec {
	case "", "json":
	case "msgpack":
		c.Codec = Msgpack
	default:
		return nil, fmt.Errorf("%w: unknown payload codec %q", errEnvelope, raw.Codec)
	}
	if raw.Conn == nil {
		return nil, fmt.Errorf("%w: no connection_info", errEnvelope)
	}
	if err := raw.Conn.read(&c.Conn, raw.ID, StreamResponse); err != nil {
		return nil, err
	}
	if raw.RequestConn != nil {
		c.RequestConn = &Connection{}
		if err := raw.RequestConn.read(c.RequestConn, raw.ID, StreamRequest); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// connectionJSON is a connection on the wire: the transport's name, and its details as a JSON text.
type connectionJSON struct {
	Transport string `json:"transport"` // tcp_server
	Info      string `json:"info"`      // JSON of address, subject, context and stream_type
}

// read unfolds the connection and checks what workers check.
func (j *connectionJSON) read(c *Connection, id, streamType string) error {
	var info struct {
		Address    string `json:"address"`
		Subject    string `json:"subject"`
		Context    string `json:"context"`
		StreamType string `json:"stream_type"`
	}
	if err := json.Unmarshal([]byte(j.Info), &info); err != nil {
		return fmt.Errorf("%w: connection info: %w", errEnvelope, err)
	}
	*c = Connection{j.Transport, info.Address, info.Subject, info.Context, info.StreamType}
	switch {
	case c.Transport != TransportTCP:
		return fmt.Errorf("%w: response plane mismatch: transport %q", errEnvelope, c.Transport)
	case c.Context != id:
		return fmt.Errorf("%w: context %q of request %q", errEnvelope, c.Context, id)
	case c.StreamType != streamType:
		return fmt.Errorf("%w: stream type %q", errEnvelope, c.StreamType)
	}
	return nil
}
