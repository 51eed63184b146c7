package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	// FrameHead is the size of a frame's preamble: header length, body length and checksum, eight bytes each.
	FrameHead = 24
	// MaxFrame is the largest frame either side accepts, preamble included.
	MaxFrame = 32 << 20
	// MaxControl is the largest header: control messages are small.
	MaxControl = 128 << 10
)

// ErrFrameTooLarge is returned for a frame whose announced size exceeds MaxFrame or whose header exceeds MaxControl.
var ErrFrameTooLarge = errors.New("frame too large")

// AppendFrame appends a two-part frame. Header and body may each be empty, which means absent: a header alone is a
// control message, a body alone is data, both are a request. The checksum is left out, as zero. Sizes are the caller's
// to keep: a frame beyond MaxFrame is refused by its reader.
func AppendFrame(dst, header, body []byte) []byte {
	dst = BeginFrame(dst)
	PutFrameHead(dst[len(dst)-FrameHead:], len(header), len(body))
	dst = append(dst, header...)
	return append(dst, body...)
}

// BeginFrame appends an empty preamble, to be filled by PutFrameHead once header and body have been appended in place.
func BeginFrame(dst []byte) []byte { return append(dst, make([]byte, FrameHead)...) }

// PutFrameHead writes the preamble of a frame to the first FrameHead bytes of dst.
func PutFrameHead(dst []byte, header, body int) {
	// One bounds check for the three writes.
	_ = dst[FrameHead-1]
	binary.BigEndian.PutUint64(dst, uint64(header))
	binary.BigEndian.PutUint64(dst[8:], uint64(body))
	binary.BigEndian.PutUint64(dst[16:], 0)
}

// FrameSize returns the whole size of the frame that b begins with, or 0 when b is too short to tell. Frames that
// nobody may send are refused here, before any memory is spent on them. It needs the preamble alone, so a reader knows
// how much to wait for.
func FrameSize(b []byte) (int, error) {
	if len(b) < FrameHead {
		return 0, nil
	}
	// Each is bounded by itself first, so that the sum can't overflow.
	h, d := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	if h > MaxControl || d > MaxFrame || FrameHead+h+d > MaxFrame {
		return 0, fmt.Errorf("%w: header of %d bytes, body of %d", ErrFrameTooLarge, h, d)
	}
	return FrameHead + int(h) + int(d), nil
}

// ParseFrame returns the first frame of b and its size; n is 0 while b doesn't hold a whole frame. Header and body
// alias b. The checksum is not looked at: release builds of workers send none.
func ParseFrame(b []byte) (header, body []byte, n int, err error) {
	n, err = FrameSize(b)
	if err != nil || n == 0 || n > len(b) {
		return nil, nil, 0, err
	}
	h := FrameHead + int(binary.BigEndian.Uint64(b))
	// Capacities end where the parts do: appending to one doesn't write over the next frame.
	return b[FrameHead:h:h], b[h:n:n], n, nil
}
