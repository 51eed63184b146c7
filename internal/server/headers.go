package server

import (
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
)

// maxRequestID bounds the request id a client may have echoed.
const maxRequestID = 512

// newID returns a version 4 UUID. Ids name answers and guard nothing, so they need no cryptographic randomness.
func newID() string {
	var b [16]byte
	hi, lo := rand.Uint64(), rand.Uint64() //nolint:gosec // see above
	for i := range 8 {
		b[i], b[8+i] = byte(hi>>(8*i)), byte(lo>>(8*i))
	}
	// Version 4 and the variant of RFC 9562; 122 bits are left to chance.
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	var s [36]byte
	hex.Encode(s[:8], b[:4])
	hex.Encode(s[9:13], b[4:6])
	hex.Encode(s[14:18], b[6:8])
	hex.Encode(s[19:23], b[8:10])
	hex.Encode(s[24:], b[10:])
	// Eight digits, three times four, and twelve: the usual form.
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}

// requestID is the id the client chose with x-dynamo-request-id, if that is a UUID, or a new one. Anything else is
// ignored, not refused: it only names the request. Parse takes several spellings, String gives the usual one.
func requestID(h http.Header) (id string, chosen bool) {
	if v := h.Get("X-Dynamo-Request-Id"); v != "" {
		if id, err := uuid.Parse(v); err == nil {
			return id.String(), true
		}
	}
	return newID(), false
}

// meta reads what the headers say of a request. Values that can't be read are refused: a request that was meant for
// one worker must not reach another.
func (s *Server) meta(h http.Header, id string) (pipeline.Meta, error) {
	m := pipeline.Meta{
		RequestID:  id,
		XRequestID: clipHeader(h.Get("X-Request-Id")),
		// Tenants behind one proxy must not learn from each other's cached prefixes.
		CacheSalt: h.Get("X-Tenant-Id"),
	}
	if tp := h.Get("Traceparent"); len(tp) == 55 { // 00-<trace>-<span>-<flags>; anything else is no trace context
		m.Traceparent, m.Tracestate = tp, h.Get("Tracestate")
	}
	// Each header has its current name, and older ones that routers in front of us still send.
	r := headerReader{h: h}
	m.BackendInstanceID = r.uint64("X-Dynamo-Worker-Instance-Id", "X-Worker-Instance-Id")
	m.PrefillWorkerID = r.uint64("X-Dynamo-Prefill-Instance-Id", "X-Prefill-Instance-Id")
	m.DPRank = r.uint32("X-Dynamo-Dp-Rank", "X-Dp-Rank", "X-Data-Parallel-Rank")
	m.PrefillDPRank = r.uint32("X-Dynamo-Prefill-Dp-Rank", "X-Prefill-Dp-Rank")
	m.Priority = r.int32("X-Dynamo-Request-Priority", "X-Request-Priority")
	m.StrictPriority = r.uint32("X-Dynamo-Request-Strict-Priority", "X-Request-Strict-Priority")
	if r.err != nil {
		return m, r.err
	}
	if m.Agent = agent(h); m.Agent != nil {
		m.Session, m.SessionFinal = m.Agent.Session, m.Agent.Final != nil && *m.Agent.Final
	}
	var err error
	m.Metadata, err = s.metadata(h)
	return m, err
}

// metadata collects the headers that a worker gets as metadata, without their prefix.
func (s *Server) metadata(h http.Header) (map[string]string, error) {
	var out map[string]string
	size := 0
	// net/http has put the names into canonical form, so case tells nothing.
	for name, values := range h {
		if len(name) <= len(s.opts.MetaPrefix) || !strings.EqualFold(name[:len(s.opts.MetaPrefix)], s.opts.MetaPrefix) {
			continue
		}
		key := strings.ToLower(name[len(s.opts.MetaPrefix):])
		// All of it travels to the worker in the message's header, which transports bound. Of headers that repeat, the
		// first value counts.
		if size += len(key) + len(values[0]); size > s.opts.MetaLimit {
			return nil, fault.New(fault.HeaderTooLarge, "The %s headers hold more than %d bytes",
				s.opts.MetaPrefix, s.opts.MetaLimit)
		}
		if out == nil {
			out = make(map[string]string)
		}
		out[key] = values[0]
	}
	return out, nil
}

// headerReader reads numbers from headers that have several names, and keeps the first failure.
type headerReader struct {
	h   http.Header // names in canonical form
	err error       // the first failure
}

// get returns the first of the names that is there. The names are in canonical form.
func (r *headerReader) get(names []string) (name, value string) {
	for _, n := range names {
		if v := r.h[n]; len(v) > 0 && v[0] != "" {
			return n, strings.TrimSpace(v[0])
		}
	}
	return "", ""
}

// fail notes that a header can't be read, unless another one couldn't be before it.
func (r *headerReader) fail(name string) {
	if r.err == nil {
		r.err = fault.New(fault.BadRequest, "The header %s must be an integer in range", strings.ToLower(name))
	}
}

// uint64 reads an instance id; nil: absent, or a failure that was noted. The two below are the same for other sizes.
func (r *headerReader) uint64(names ...string) *uint64 {
	name, v := r.get(names)
	if v == "" {
		return nil
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		r.fail(name)
		return nil
	}
	return &n
}

// uint32 reads a rank or a strict priority.
func (r *headerReader) uint32(names ...string) *uint32 {
	name, v := r.get(names)
	if v == "" {
		return nil
	}
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil {
		r.fail(name)
		return nil
	}
	u := uint32(n)
	return &u
}

// int32 reads a priority, which may be negative.
func (r *headerReader) int32(names ...string) *int32 {
	name, v := r.get(names)
	if v == "" {
		return nil
	}
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil {
		r.fail(name)
		return nil
	}
	i := int32(n)
	return &i
}

// clipHeader drops a client's id that is too long to be one.
func clipHeader(v string) string {
	if len(v) > maxRequestID {
		return ""
	}
	return v
}
