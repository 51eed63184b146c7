package tcp

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
)

// frames are buffers for what is written at once. Each grows to the largest message it has held, which largeMessage and
// the lengths of path and headers bound: larger envelopes are written from where they stand.
var frames = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// appendHead appends everything that comes before the envelope: path, headers, and the envelope's length. The lengths
// are big-endian, two bytes for the first two and four for the envelope's. It returns dst also with an error, as the
// caller keeps the memory.
func appendHead(dst []byte, path string, m *router.Message) ([]byte, error) {
	if len(path) > math.MaxUint16 {
		return dst, fault.Lost(errors.New("an address of more bytes than there may be"), "The worker can't be reached")
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(path)))
	dst = append(dst, path...)
	// Room for the headers' length, which is known once they are written.
	at := len(dst)
	dst = appendHeaders(append(dst, 0, 0), path, m)
	size := len(dst) - at - 2
	if size > math.MaxUint16 {
		return dst, fault.New(fault.HeaderTooLarge, "The request's trace headers are too large")
	}
	binary.BigEndian.PutUint16(dst[at:], uint16(size))
	return binary.BigEndian.AppendUint32(dst, uint32(len(m.Envelope))), nil
}

// appendHeaders appends the headers as a JSON object of strings. Trace headers that the request doesn't have are left
// out: an empty traceparent would be a malformed one.
func appendHeaders(dst []byte, path string, m *router.Message) []byte {
	dst = worker.AppendJSONString(append(dst, `{"request-id":`...), m.RequestID)
	dst = worker.AppendJSONString(append(dst, `,"x-endpoint-path":`...), path)
	// Workers measure the way of a request by this, in nanoseconds since 1970.
	dst = strconv.AppendInt(append(dst, `,"x-frontend-send-ts-ns":"`...), time.Now().UnixNano(), 10)
	dst = append(dst, '"')
	for _, h := range [...]struct{ name, value string }{
		{"traceparent", m.Traceparent}, {"tracestate", m.Tracestate}, {"x-request-id", m.XRequestID},
	} {
		if h.value != "" {
			dst = append(append(append(dst, `,"`...), h.name...), `":`...)
			dst = worker.AppendJSONString(dst, h.value)
		}
	}
	return append(dst, '}')
}
