package callhome

import (
	"sync"
	"syscall"

	"github.com/portico-llm/portico/api/worker"
)

// bufferSize is that of a pooled read buffer: about a hundred items of a token each.
const bufferSize = 16 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }}

// input holds the bytes of a stream that have been read and not yet used. It has memory only while there are any: a
// pooled buffer, or one of its own for a frame that is larger. The zero value is empty. For one goroutine at a time.
type input struct {
	pooled *[]byte // nil: buf is nil, or too large for the pool
	buf    []byte
	r, w   int // buf[r:w] is unread
}

// What unread returns is valid until the next room or release. filled takes what a read returned, an error's -1 too.
func (in *input) unread() []byte { return in.buf[in.r:in.w] }
func (in *input) buffered() int  { return in.w - in.r }
func (in *input) consume(n int)  { in.r += n }
func (in *input) filled(n int)   { in.w += max(n, 0) }

// release gives the memory back; unread bytes are dropped.
func (in *input) release() {
	if in.pooled != nil {
		buffers.Put(in.pooled)
	}
	*in = input{}
}

// room returns memory to read into, never empty. It moves what is unread only when there is none left behind it.
func (in *input) room() []byte {
	switch {
	case in.buf == nil:
		in.pooled = buffers.Get().(*[]byte)
		in.buf = *in.pooled
	case in.r == in.w:
		in.r, in.w = 0, 0
	case in.w == len(in.buf) && in.r > 0:
		in.w = copy(in.buf, in.buf[in.r:in.w])
		in.r = 0
	case in.w == len(in.buf):
		in.grow()
	}
	return in.buf[in.w:]
}

// grow doubles a buffer that is full of one frame, up to the frame's size: what a frame announces is not believed until
// its bytes come.
func (in *input) grow() {
	size := 2 * len(in.buf)
	// room has moved the frame to the front, so its head is there.
	if need, err := worker.FrameSize(in.buf[:in.w]); err == nil && need > 0 {
		size = min(size, max(need, len(in.buf)+1))
	}
	bigger := make([]byte, size)
	copy(bigger, in.buf[:in.w])
	// The pooled buffer goes back at its own size; what replaces it is dropped when the frame has been read.
	w := in.w
	in.release()
	in.buf, in.w = bigger, w
}

// poll reads once without waiting, for what is there already. Without anything it leaves no memory behind.
func (in *input) poll(rc syscall.RawConn) {
	// The outcome is in what has been read; whoever reads next finds the error again.
	_ = rc.Read(func(fd uintptr) bool {
		n, err := syscall.Read(int(fd), in.room())
		if err == nil {
			in.filled(n)
		}
		return true
	})
	if in.buffered() == 0 {
		in.release()
	}
}
