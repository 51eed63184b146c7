package loadgen

import (
	"bytes"
	"strconv"
	"time"
)

// body finds the end of an HTTP/1.1 message body and takes chunked coding off it. It keeps no bytes: what it can't use
// yet stays with the caller, who brings it again with more behind it. start makes it ready for another answer.
type body struct {
	status   int // of the answer
	chunked  bool
	untilEOF bool // no length given: the body ends with the connection
	close    bool // the server won't take another request here
	left     int  // bytes left of the chunk or of the body
	state    chunkState
}

// chunkState is where in a chunked body the next byte belongs.
type chunkState uint8

// The parts of a chunked body, in their order.
const (
	chunkSize chunkState = iota // the line before a chunk's data
	chunkData
	chunkEnd // the line break after a chunk's data
	trailer  // lines after the last chunk, to an empty one
)

// start reads a head (each line with its line break, without the empty one) and returns the status. Headers that don't
// bear on the body are not looked at. A body without a length ends with the connection, whatever the status.
func (b *body) start(head []byte) (int, error) {
	*b = body{untilEOF: true}
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	// "HTTP/1.1 200": the three digits stand at a fixed place.
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return 0, &failure{BadHTTP, "status line " + clip(line)}
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return 0, &failure{BadHTTP, "status line " + clip(line)}
	}
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			b.chunked, b.untilEOF = bytes.EqualFold(value, []byte("chunked")), false
			if !b.chunked {
				return 0, &failure{BadHTTP, "transfer coding " + clip(value)}
			}
		// Of both headers the later one counts; a server that sends both is broken anyway.
		case bytes.EqualFold(name, []byte("Content-Length")):
			if b.left, err = strconv.Atoi(string(value)); err != nil || b.left < 0 {
				return 0, &failure{BadHTTP, "content length " + clip(value)}
			}
			b.untilEOF = false
		case bytes.EqualFold(name, []byte("Connection")):
			b.close = bytes.EqualFold(value, []byte("close"))
		}
	}
	b.status = status
	return status, nil
}

// feed passes the body bytes within raw to onData. It returns how much of raw it used up and whether the body is over.
// onData may be called several times, once for each chunk, and must not keep the bytes.
func (b *body) feed(raw []byte, now time.Time, onData func([]byte, time.Time) error) (used int, done bool, err error) {
	switch {
	case b.untilEOF:
		return len(raw), false, pass(raw, now, onData)
	case !b.chunked:
		n := min(len(raw), b.left)
		b.left -= n
		return n, b.left == 0, pass(raw[:n], now, onData)
	}
	for {
		// Data is passed on as it comes, however much of the chunk that is; lines wait until they are whole.
		if b.state == chunkData {
			n := min(len(raw)-used, b.left)
			if err := pass(raw[used:used+n], now, onData); err != nil {
				return used, false, err
			}
			used += n
			if b.left -= n; b.left > 0 {
				return used, false, nil
			}
			b.state = chunkEnd
		}
		i := bytes.IndexByte(raw[used:], '\n')
		if i < 0 {
			return used, false, nil
		}
		line := bytes.TrimSuffix(raw[used:used+i], []byte{'\r'})
		used += i + 1
		if done, err := b.line(line); done || err != nil {
			return used, done, err
		}
	}
}

// line handles a line of the chunked coding itself. done tells that the body is over: after the empty line that ends
// the trailers.
func (b *body) line(line []byte) (done bool, err error) {
	switch b.state {
	case chunkSize:
		// Behind a semicolon come extensions, which nobody uses. 31 bits keep the size an int on every platform.
		digits, _, _ := bytes.Cut(line, []byte{';'})
		n, err := strconv.ParseUint(string(bytes.TrimSpace(digits)), 16, 31)
		if err != nil {
			return false, &failure{BadHTTP, "chunk size " + clip(line)}
		}
		if b.left = int(n); n == 0 {
			b.state = trailer
		} else {
			b.state = chunkData
		}
	case chunkEnd:
		if len(line) > 0 {
			return false, &failure{BadHTTP, "chunk longer than its size"}
		}
		b.state = chunkSize
	case trailer:
		return len(line) == 0, nil
	}
	return false, nil
}

// pass leaves out calls without data.
func pass(b []byte, now time.Time, onData func([]byte, time.Time) error) error {
	if len(b) == 0 {
		return nil
	}
	return onData(b, now)
}
