package worker

import (
	"encoding/binary"
	"math"
	"strconv"
)

// mpKind tells the kind of a value by its first byte. The ranges are those of the msgpack specification's table of
// formats.
func mpKind(c byte) kind {
	switch {
	case c < 0x80, c >= 0xe0, c >= 0xcc && c <= 0xd3: // fixint up and down, uint 8–64, int 8–64
		return kindInt
	case c < 0x90, c == 0xde, c == 0xdf: // fixmap, map 16, map 32
		return kindMap
	case c < 0xa0, c == 0xdc, c == 0xdd: // fixarray, array 16, array 32
		return kindArray
	case c < 0xc0, c >= 0xd9 && c <= 0xdb: // fixstr, str 8–32
		return kindString
	case c == 0xc0: // nil
		return kindNull
	case c == 0xc2, c == 0xc3: // false, true
		return kindBool
	case c >= 0xc4 && c <= 0xc6: // bin 8–32
		return kindBytes
	case c == 0xca, c == 0xcb: // float 32, float 64
		return kindFloat
	case c >= 0xc7 && c <= 0xc9, c >= 0xd4 && c <= 0xd8: // ext 8–32, fixext 1–16
		return kindExt
	}
	return kindBad // 0xc1 is never used
}

// be reads a big-endian integer of n bytes.
func (r *reader) be(n int) uint64 {
	b := r.take(uint64(n))
	// A short body has left an error and no bytes, which is 0.
	switch len(b) {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(b))
	case 4:
		return uint64(binary.BigEndian.Uint32(b))
	case 8:
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// take consumes n bytes. The result aliases the body and can't grow into what follows.
func (r *reader) take(n uint64) []byte {
	if r.err != nil {
		return nil
	}
	if n > uint64(len(r.b)-r.i) {
		r.failf("value of %d bytes, %d left", n, len(r.b)-r.i)
		return nil
	}
	r.i += int(n)
	return r.b[r.i-int(n) : r.i : r.i]
}

// next consumes one byte; the byte that msgpack never uses stands for none.
func (r *reader) next() byte {
	if b := r.take(1); len(b) == 1 {
		return b[0]
	}
	return 0xc1
}

// count checks a number of entries against what is left: each takes a byte at least, so that a short body can't
// announce a long container.
func (r *reader) count(n uint64, each uint64) uint64 {
	if r.err == nil && n*each > uint64(len(r.b)-r.i) {
		r.failf("container of %d entries, %d bytes left", n, len(r.b)-r.i)
		return 0
	}
	return n
}

// mpMapLen reads a map's header: its number of entries.
func (r *reader) mpMapLen() uint64 {
	switch c := r.next(); c {
	case 0xde: // map 16
		return r.count(r.be(2), 2)
	case 0xdf: // map 32
		return r.count(r.be(4), 2)
	default:
		// fixmap: the number stands in the low four bits.
		return r.count(uint64(c&0x0f), 2)
	}
}

// mpArrayLen reads an array's header: its number of elements.
func (r *reader) mpArrayLen() uint64 {
	switch c := r.next(); c {
	case 0xdc: // array 16
		return r.count(r.be(2), 1)
	case 0xdd: // array 32
		return r.count(r.be(4), 1)
	default:
		// fixarray: likewise.
		return r.count(uint64(c&0x0f), 1)
	}
}

// mpString reads a string. Its bytes are not checked to be UTF-8: whoever writes them out replaces what isn't. The
// result aliases the body, and so stays valid as long as that does.
func (r *reader) mpString() []byte {
	switch c := r.next(); c {
	case 0xd9: // str 8
		return r.take(r.be(1))
	case 0xda: // str 16
		return r.take(r.be(2))
	case 0xdb: // str 32
		return r.take(r.be(4))
	default:
		// fixstr: the length stands in the low five bits.
		return r.take(uint64(c & 0x1f))
	}
}

// mpKey reads a map key. Integer keys, which JSON can't have, are read as their decimal digits.
func (r *reader) mpKey() []byte {
	switch r.peek() {
	case kindString:
		return r.mpString()
	case kindInt:
		n := r.mpInteger()
		if r.scratch = r.scratch[:0]; n.neg {
			r.scratch = append(r.scratch, '-')
		}
		r.scratch = strconv.AppendUint(r.scratch, n.mag, 10)
		return r.scratch
	}
	r.mismatch("a string as key")
	return nil
}

// bytes reads packed bytes; it is called for kindBytes only.
func (r *reader) bytes() []byte {
	// Bytes c4, c5 and c6 announce lengths of 1, 2 and 4 bytes.
	return r.take(r.be(1 << (r.next() - 0xc4)))
}

// mpOpaque passes over bytes or an extension.
func (r *reader) mpOpaque() {
	switch c := r.next(); {
	case c <= 0xc6: // bin: a length, then the bytes
		r.take(r.be(1 << (c - 0xc4)))
	case c <= 0xc9: // ext: a length, a type byte, then the bytes
		r.take(1 + r.be(1<<(c-0xc7)))
	default:
		// fixext: a type byte, then 1, 2, 4, 8 or 16 bytes.
		r.take(1 + 1<<(c-0xd4))
	}
}

// mpInteger reads an integer in any of its nine widths: encoders differ in how narrow they go.
func (r *reader) mpInteger() integer {
	switch c := r.next(); {
	case c < 0x80:
		return integer{mag: uint64(c)}
	case c >= 0xe0: // negative fixint: -32 to -1
		return signed(int64(int8(c)))
	case c <= 0xcf: // uint of 1, 2, 4 or 8 bytes
		return integer{mag: r.be(1 << (c - 0xcc))}
	case c == 0xd0: // int 8
		return signed(int64(int8(r.be(1))))
	case c == 0xd1: // int 16
		return signed(int64(int16(r.be(2))))
	case c == 0xd2: // int 32
		return signed(int64(int32(r.be(4))))
	default:
		// int 64, the last that kindInt leaves.
		return signed(int64(r.be(8)))
	}
}

// signed splits a signed integer into magnitude and sign.
func signed(v int64) integer {
	if v < 0 {
		// The negation wraps, which is right for the smallest value, too.
		return integer{mag: -uint64(v), neg: true}
	}
	return integer{mag: uint64(v)}
}

// mpFloat reads a float of either width, or an integer where an encoder has saved the fraction.
func (r *reader) mpFloat() float64 {
	switch r.b[r.i] {
	case 0xca: // float 32, which widens without loss
		r.i++
		return float64(math.Float32frombits(uint32(r.be(4))))
	case 0xcb: // float 64
		r.i++
		return math.Float64frombits(r.be(8))
	}
	n := r.mpInteger()
	if n.neg {
		return -float64(n.mag)
	}
	return float64(n.mag)
}
