package dispatch_test

import (
	"context"
	"encoding/binary"
	"net"
	"testing"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router/dispatch"
)

// lean is a worker that allocates next to nothing, so that a benchmark counts the dispatcher's own allocations. It
// answers requests one after another with n tokens.
func (f *fleet) lean(id uint64, n int) *worker.Instance {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(func() { ln.Close() })
	home := f.home.Address()
	body, err := worker.AppendItem(nil, worker.Msgpack, &worker.Item{HasData: true, Output: worker.Output{TokenIDs: []uint32{7}}})
	if err != nil {
		f.tb.Fatal(err)
	}
	var rest []byte
	rest = append(rest, worker.AppendPrologue(nil, nil)...)
	for range n {
		rest = worker.AppendFrame(rest, nil, body)
	}
	rest = worker.AppendFrame(rest, nil, worker.AppendFinal(nil, worker.Msgpack))
	rest = worker.AppendSignal(rest, worker.SignalSentinel)
	f.group.Go("lean worker", func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { ln.Close() })()
		for {
			c, err := ln.Accept()
			if err != nil {
				return nil
			}
			// The plane opens a further connection where it is behind with reading acceptances.
			f.group.Go("lean connection", func(ctx context.Context) error {
				serveLean(ctx, c, home, rest)
				return nil
			})
		}
	})
	in := instance(id)
	in.Transport.TCP = ln.Addr().String() + "/" + in.Path()
	return in
}

// serveLean accepts each request on a connection, calls home and says the same every time.
func serveLean(ctx context.Context, c net.Conn, home string, rest []byte) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	buf, out := make([]byte, 64<<10), []byte(nil)
	have := 0
	for {
		n, err := c.Read(buf[have:])
		if err != nil {
			return
		}
		have += n
		size := messageSize(buf[:have])
		if size == 0 || size > have {
			continue
		}
		c.Write([]byte{0, 0, 0, 0})
		subject := subjectIn(buf[:have])
		have = copy(buf, buf[size:have])
		out = worker.AppendHandshake(out[:0], subject, worker.StreamResponse)
		out = append(out, rest...)
		h, err := net.Dial("tcp", home)
		if err != nil {
			return
		}
		h.Write(out)
		h.Read(out[:1]) // until the frontend closes
		h.Close()
	}
}

func messageSize(b []byte) int {
	at := 0
	for _, width := range []int{2, 2, 4} {
		if len(b) < at+width {
			return 0
		}
		n := make([]byte, 4)
		copy(n[4-width:], b[at:at+width])
		at += width + int(binary.BigEndian.Uint32(n))
	}
	return at
}

func subjectIn(b []byte) string {
	const mark = `\"subject\":\"`
	for i := range b {
		if len(b) > i+len(mark)+36 && string(b[i:i+len(mark)]) == mark {
			return string(b[i+len(mark) : i+len(mark)+36])
		}
	}
	return ""
}

func BenchmarkDispatch(b *testing.B) {
	f := newFleet(b, dispatch.Options{})
	f.publish(f.lean(1, 64))
	b.ReportAllocs()
	tokens := 0
	each := func(it *worker.Item, _ bool) error { tokens += len(it.Output.TokenIDs); return nil }
	for b.Loop() {
		s, err := f.d.Dispatch(context.Background(), newCall())
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Each(each); err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
	if tokens != 64*b.N {
		b.Errorf("%d tokens for %d requests", tokens, b.N)
	}
}
