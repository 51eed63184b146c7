package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Subscribe connects to a publisher's endpoint (tcp://host:port), asks for the messages whose first part begins with
// topic, and calls f with each of them until the connection ends, f fails, or ctx ends; it never returns nil. connected is
// called ahead of the first message, when the publisher has been asked. The parts are valid during the call. Everything
// runs on the caller's goroutine.
func Subscribe(ctx context.Context, endpoint, topic string, connected func(), f func(parts [][]byte) error) error {
	address, err := hostPort(endpoint)
	if err != nil {
		return err
	}
	d := net.Dialer{Timeout: handshakeTimeout}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	// Whatever is being read or written then fails, and the reason is ctx's.
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer func() {
		stop()
		_ = c.Close()
	}()
	err = subscribe(newPeer(c), topic, connected, f)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// subscribe is Subscribe over a connection.
func subscribe(p *peer, topic string, connected func(), f func(parts [][]byte) error) error {
	if err := p.handshake("SUB"); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	// Version 3.0 subscribes by a message, which every later version understands.
	if err := p.write(appendFrame(nil, 0, append([]byte{1}, topic...))); err != nil {
		return err
	}
	connected()
	for {
		parts, err := p.message(func(name string, rest []byte) error {
			if name == "PING" {
				return p.write(pong(rest))
			}
			return nil // whatever newer versions say
		})
		if err != nil {
			return err
		}
		if err := f(parts); err != nil {
			return err
		}
	}
}

// write sends what is small; a peer that doesn't take it in time has lost its connection.
func (p *peer) write(b []byte) error {
	if err := p.conn.SetWriteDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	_, err := p.conn.Write(b)
	return errors.Join(err, p.conn.SetWriteDeadline(time.Time{}))
}
