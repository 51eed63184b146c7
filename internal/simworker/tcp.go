package simworker

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
)

// maxMessage is the largest request payload of the TCP plane, in bytes. A larger one ends the connection: skipping it
// would mean to read it all.
const maxMessage = 32 << 20

// tcpPlane listens for requests: frames of many requests on persistent connections, acknowledged in their order.
type tcpPlane struct {
	w     *Worker
	group *lifecycle.Group // of Worker.Run; its end is waited for there
	path  string           // what requests for this worker name: instance/namespace/component/endpoint

	mu       sync.Mutex // guards listener, conns, stopped
	listener net.Listener
	conns    map[net.Conn]struct{}
	stopped  bool
}

// start listens and returns the address to advertise, host:port/path. It is done before anything else uses the plane.
func (p *tcpPlane) start(ctx context.Context) (worker.Transport, error) {
	o := &p.w.o
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(o.Host, strconv.Itoa(o.Port)))
	if err != nil {
		return worker.Transport{}, fmt.Errorf("simworker: listen: %w", err)
	}
	p.listener, p.conns = l, map[net.Conn]struct{}{}
	// A slash within a name must not look like one between names.
	escape := strings.NewReplacer("%", "%25", "/", "%2F")
	e := o.Endpoint
	p.path = strings.Join([]string{p.w.instance.Hex(), escape.Replace(e.Namespace), escape.Replace(e.Component), escape.Replace(e.Name)}, "/")
	port := l.Addr().(*net.TCPAddr).Port
	return worker.Transport{TCP: net.JoinHostPort(o.AdvertiseHost, strconv.Itoa(port)) + "/" + p.path}, nil
}

// run accepts connections until ctx ends or stop is called. A failure of the listener ends the worker.
func (p *tcpPlane) run(ctx context.Context) error {
	defer context.AfterFunc(ctx, p.stop)()
	for {
		c, err := p.listener.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("simworker: accept: %w", err)
		}
		if !p.keep(c) || !p.group.Go("request connection", func(context.Context) error { p.serve(c); return nil }) {
			c.Close()
		}
	}
}

// keep notes a connection so that stop can close it; false when stop came first.
func (p *tcpPlane) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		p.conns[c] = struct{}{}
	}
	return !p.stopped
}

// stop closes the listener and all connections; it may be called again. Requests that were accepted go on, as they
// answer over connections of their own.
func (p *tcpPlane) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	if p.listener != nil {
		p.listener.Close()
	}
	for c := range p.conns {
		c.Close()
	}
}

// serve reads requests off one connection until it ends. Each is acknowledged before the next is read, which keeps the
// acknowledgements in order: they carry nothing else to tell which request is meant.
func (p *tcpPlane) serve(c net.Conn) {
	defer func() {
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
		c.Close()
	}()
	r := bufio.NewReaderSize(c, 64<<10)
	var ack []byte
	for {
		path, d, err := readRequest(r)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				p.w.o.Log.Warn("request connection broke", "error", err)
			}
			return
		}
		// An empty reply accepts. The words before the colon of the others are what frontends tell refusals apart by.
		reply := ""
		if path != p.path {
			reply = "Server unavailable: unknown endpoint " + path
		} else {
			switch p.w.accept(p.group, d) {
			case atCapacity:
				reply = "Server overloaded: worker at capacity"
			case unknownEndpoint:
				reply = "Server unavailable: unknown endpoint " + path
			case unanswered:
				continue
			}
		}
		ack = binary.BigEndian.AppendUint32(ack[:0], uint32(len(reply)))
		ack = append(ack, reply...)
		if _, err := c.Write(ack); err != nil {
			return
		}
	}
}

// readRequest reads one request frame: path, headers as a JSON object, payload, each behind its length: two bytes, two
// and four, big-endian. The payload is a new slice that the caller owns.
func readRequest(r *bufio.Reader) (path string, d delivery, err error) {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:2]); err != nil {
		return "", d, err // io.EOF between frames is a clean end
	}
	b := make([]byte, binary.BigEndian.Uint16(n[:2]))
	if _, err := io.ReadFull(r, b); err != nil {
		return "", d, fmt.Errorf("read path: %w", err)
	}
	path = string(b)
	if _, err := io.ReadFull(r, n[:2]); err != nil {
		return "", d, fmt.Errorf("read header length: %w", err)
	}
	b = make([]byte, binary.BigEndian.Uint16(n[:2]))
	if _, err := io.ReadFull(r, b); err != nil {
		return "", d, fmt.Errorf("read headers: %w", err)
	}
	if len(b) > 0 {
		var h map[string]string
		if err := json.Unmarshal(b, &h); err != nil {
			return "", d, fmt.Errorf("headers: %w", err)
		}
		d.headers = headersFrom(func(k string) string { return h[k] })
	}
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return "", d, fmt.Errorf("read payload length: %w", err)
	}
	size := binary.BigEndian.Uint32(n[:])
	if size > maxMessage {
		return "", d, fmt.Errorf("payload of %d bytes is above the limit of %d", size, maxMessage)
	}
	d.payload = make([]byte, size)
	if _, err := io.ReadFull(r, d.payload); err != nil {
		return "", d, fmt.Errorf("read payload: %w", err)
	}
	return path, d, nil
}

// headersFrom picks the headers that matter; both planes use the same names.
func headersFrom(get func(string) string) Headers {
	return Headers{
		RequestID: get("request-id"), Traceparent: get("traceparent"), Tracestate: get("tracestate"), XRequestID: get("x-request-id"),
	}
}
