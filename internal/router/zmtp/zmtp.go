// Package zmtp speaks as much of ZeroMQ's wire protocol (ZMTP 3.0, mechanism NULL, over TCP) as publishing and
// subscribing take: a Publisher is what others call a PUB socket that is bound, Subscribe a SUB socket that is connected.
//
// Both ends keep ZeroMQ's promise and no more: messages of one connection arrive whole and in order, and are lost while
// there is no connection or when a subscriber is too slow. Whoever needs to know counts them.
package zmtp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

const (
	greetingSize = 64
	maxMessage   = 64 << 20 // bytes of all parts of a message together
	maxParts     = 64

	// handshakeTimeout bounds the greeting and what follows it until messages may flow.
	handshakeTimeout = 10 * time.Second
	// keepAlive is how soon the system looks whether a silent peer is still there.
	keepAlive = 15 * time.Second
)

// Flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// errProtocol is the root of the errors for what a peer may not send.
var errProtocol = errors.New("zmtp: protocol error")

// greeting is what both sides send first: signature, version 3.0, mechanism, and that neither is a server.
func greeting() []byte {
	b := make([]byte, greetingSize)
	b[0], b[9], b[10] = 0xff, 0x7f, 3
	copy(b[12:], "NULL")
	return b
}

// checkGreeting refuses peers that speak another protocol, an older version or want credentials.
func checkGreeting(b []byte) error {
	switch {
	case b[0] != 0xff || b[9]&1 == 0:
		return fmt.Errorf("%w: no ZeroMQ peer", errProtocol)
	case b[10] < 3:
		return fmt.Errorf("%w: version %d", errProtocol, b[10])
	}
	if mechanism := strings.TrimRight(string(b[12:32]), "\x00"); mechanism != "NULL" {
		return fmt.Errorf("%w: mechanism %q", errProtocol, mechanism)
	}
	return nil
}

// appendFrame appends one frame.
func appendFrame(dst []byte, flags byte, body []byte) []byte {
	if len(body) <= 0xff {
		dst = append(dst, flags, byte(len(body)))
	} else {
		dst = binary.BigEndian.AppendUint64(append(dst, flags|flagLong), uint64(len(body)))
	}
	return append(dst, body...)
}

// appendMessage appends a message of several parts.
func appendMessage(dst []byte, parts [][]byte) []byte {
	for i, p := range parts {
		flags := byte(0)
		if i < len(parts)-1 {
			flags = flagMore
		}
		dst = appendFrame(dst, flags, p)
	}
	return dst
}

// ready is the command that ends a handshake: it names the kind of socket.
func ready(kind string) []byte {
	body := append([]byte{5}, "READY"...)
	body = append(append(body, 11), "Socket-Type"...)
	body = append(binary.BigEndian.AppendUint32(body, uint32(len(kind))), kind...)
	return appendFrame(nil, flagCommand, body)
}

// peer is one connection. It is read by one goroutine.
type peer struct {
	conn net.Conn
	r    *bufio.Reader
	buf  []byte   // of the parts of the message at hand
	ends []int    // where in buf each part ends
	list [][]byte // the parts
}

// newPeer prepares a connection for its handshake.
func newPeer(c net.Conn) *peer {
	if t, ok := c.(*net.TCPConn); ok {
		// Peers that vanish without a word are to be noticed; failing to ask for it isn't worth giving up for.
		_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive, Count: 3})
	}
	return &peer{conn: c, r: bufio.NewReaderSize(c, 64<<10)}
}

// handshake exchanges greetings and says what kind of socket this is.
func (p *peer) handshake(kind string) error {
	if err := p.conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	if _, err := p.conn.Write(greeting()); err != nil {
		return err
	}
	var theirs [greetingSize]byte
	if _, err := io.ReadFull(p.r, theirs[:]); err != nil {
		return err
	}
	if err := checkGreeting(theirs[:]); err != nil {
		return err
	}
	if _, err := p.conn.Write(ready(kind)); err != nil {
		return err
	}
	flags, body, err := p.frame(nil)
	if err != nil {
		return err
	}
	if name, rest := command(body); flags&flagCommand == 0 || name != "READY" {
		if name == "ERROR" {
			return fmt.Errorf("%w: refused: %q", errProtocol, rest)
		}
		return fmt.Errorf("%w: no handshake", errProtocol)
	}
	return p.conn.SetDeadline(time.Time{})
}

// command splits a command into its name and what follows.
func command(body []byte) (name string, rest []byte) {
	if len(body) == 0 {
		return "", nil
	}
	end := 1 + int(body[0])
	if len(body) < end {
		return "", nil
	}
	return string(body[1:end]), body[end:]
}

// frame appends the body of the next frame to dst.
func (p *peer) frame(dst []byte) (flags byte, body []byte, err error) {
	if flags, err = p.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, nil, fmt.Errorf("%w: flags %#x", errProtocol, flags)
	}
	var size uint64
	if flags&flagLong != 0 {
		var b [8]byte
		if _, err = io.ReadFull(p.r, b[:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(b[:])
	} else {
		n, err := p.r.ReadByte()
		if err != nil {
			return 0, nil, err
		}
		size = uint64(n)
	}
	if size > maxMessage || uint64(len(dst))+size > maxMessage {
		return 0, nil, fmt.Errorf("%w: message of more than %d bytes", errProtocol, maxMessage)
	}
	// Memory grows with what has come, not with what was announced.
	for size > 0 {
		n := int(min(size, 64<<10))
		at := len(dst)
		dst = append(dst, make([]byte, n)...)
		if _, err = io.ReadFull(p.r, dst[at:]); err != nil {
			return 0, nil, err
		}
		size -= uint64(n)
	}
	return flags, dst, nil
}

// message reads the next message. Commands on the way are handed to onCommand. The parts are valid until the next call.
func (p *peer) message(onCommand func(name string, rest []byte) error) ([][]byte, error) {
	p.buf, p.ends, p.list = p.buf[:0], p.ends[:0], p.list[:0]
	if cap(p.buf) > 1<<20 { // one large message isn't worth holding on to
		p.buf = nil
	}
	for {
		start := len(p.buf)
		flags, buf, err := p.frame(p.buf)
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			name, rest := command(buf[start:])
			if err := onCommand(name, rest); err != nil {
				return nil, err
			}
			p.buf = buf[:start]
			continue
		}
		p.buf = buf
		if p.ends = append(p.ends, len(buf)); len(p.ends) > maxParts {
			return nil, fmt.Errorf("%w: more than %d parts", errProtocol, maxParts)
		}
		if flags&flagMore == 0 {
			break
		}
	}
	from := 0
	for _, end := range p.ends {
		p.list = append(p.list, p.buf[from:end:end])
		from = end
	}
	return p.list, nil
}

// pong answers a heartbeat, with the context that came with it.
func pong(rest []byte) []byte {
	body := append([]byte{4}, "PONG"...)
	if len(rest) > 2 {
		body = append(body, rest[2:min(len(rest), 18)]...) // behind the time to live; at most 16 bytes
	}
	return appendFrame(nil, flagCommand, body)
}

// hostPort takes the scheme off an endpoint.
func hostPort(endpoint string) (string, error) {
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("zmtp: endpoint %q is not tcp://host:port", endpoint)
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return "", fmt.Errorf("zmtp: endpoint %q: %w", endpoint, err)
	}
	return address, nil
}
