package worker

import (
	"bytes"
	"fmt"
)

// Signal is a control frame without a body.
type Signal string

// The signals. A frontend sends stop and kill, a worker sends the sentinel after the end mark.
const (
	SignalNone     Signal = ""
	SignalStop     Signal = "stop"     // generate no more, in good order
	SignalKill     Signal = "kill"     // drop everything
	SignalSentinel Signal = "sentinel" // nothing follows on this connection
)

// AppendSignal appends the whole frame of a signal. A connection carries them between data frames, in either direction.
func AppendSignal(dst []byte, s Signal) []byte {
	dst = BeginFrame(dst)
	// A JSON string, quotes included, without a body.
	PutFrameHead(dst[len(dst)-FrameHead:], len(s)+2, 0)
	return append(append(append(dst, '"'), s...), '"')
}

// ParseSignal returns the signal that a header is, SignalNone when it is none. Words that are no signal known here are
// none: a newer peer may have more of them.
func ParseSignal(header []byte) Signal {
	switch string(bytes.TrimSpace(header)) {
	case `"stop"`:
		return SignalStop
	case `"kill"`:
		return SignalKill
	case `"sentinel"`:
		return SignalSentinel
	}
	return SignalNone
}

// AppendHandshake appends the whole frame with which a worker opens a connection for the named stream. The subject is
// the one from the request's connection info; it is what the listener finds the waiting stream by.
func AppendHandshake(dst []byte, subject, streamType string) []byte {
	return appendHeaderFrame(dst, func(b []byte) []byte {
		b = appendJSONString(append(b, `{"subject":`...), subject)
		b = appendJSONString(append(b, `,"stream_type":`...), streamType)
		return append(b, '}')
	})
}

// appendHeaderFrame appends a frame whose header is written in place by header. Its length is known only afterwards,
// which is what the preamble's place is kept for.
func appendHeaderFrame(dst []byte, header func([]byte) []byte) []byte {
	at := len(dst)
	dst = header(BeginFrame(dst))
	PutFrameHead(dst[at:], len(dst)-at-FrameHead, 0)
	return dst
}

// ParseHandshake reads a handshake's header. The subject aliases it where the subject has no escapes.
func ParseHandshake(header []byte) (subject []byte, streamType string, err error) {
	r := reader{b: header, codec: JSON}
	for s := r.openMap(); r.entry(&s); {
		switch string(s.key) {
		case "subject":
			// With escapes the string is in the reader's scratch memory, which the next one overwrites.
			if subject = r.str(); len(r.scratch) > 0 {
				subject = bytes.Clone(subject)
			}
		case "stream_type":
			// The comparison doesn't allocate, and the constant stands in for a new string.
			if v := r.str(); string(v) == StreamResponse {
				streamType = StreamResponse
			} else {
				streamType = string(v)
			}
		default:
			r.skip()
		}
	}
	if err := r.finish(); err != nil {
		return nil, "", fmt.Errorf("handshake: %w", err)
	}
	return subject, streamType, nil
}

// AppendPrologue appends the whole frame with which a worker says that it has begun (e is nil) or can't. A failure is
// written twice: as a text, for peers that know no more, and typed.
func AppendPrologue(dst []byte, e *Error) []byte {
	return appendHeaderFrame(dst, func(b []byte) []byte {
		if e == nil {
			return append(b, `{"error":null}`...)
		}
		b = appendJSONString(append(b, `{"error":`...), e.Message)
		w := writer{b: append(b, `,"typed_error":`...), codec: JSON}
		e.write(&w)
		return append(w.b, '}')
	})
}

// ParsePrologue reads a prologue's header: nil when the worker has begun, otherwise why it hasn't. Workers that give a
// text alone get an error of class Unavailable.
func ParsePrologue(header []byte) (*Error, error) {
	// The usual prologue, byte for byte: every request gets one.
	if string(header) == `{"error":null}` {
		return nil, nil
	}
	r := reader{b: header, codec: JSON}
	var typed *Error
	// A prologue without an error field says nothing of the stream, and is refused.
	message, failed, said := "", false, false
	r.fields(func(key []byte) bool {
		switch string(key) {
		case "error":
			said = true
			if failed = !r.null(); failed {
				message = clip(string(r.str()))
			}
		case "typed_error":
			if !r.null() {
				typed = r.workerError()
			}
		default:
			return false
		}
		return true
	})
	if err := r.finish(); err != nil {
		return nil, fmt.Errorf("prologue: %w", err)
	}
	switch {
	case !said:
		return nil, fmt.Errorf("prologue: %w: no error field", errValue)
	case !failed:
		return nil, nil
	case typed == nil:
		return &Error{Class: "Unavailable", Reason: "transport.cannot_connect", Message: message}, nil
	}
	return typed, nil
}
