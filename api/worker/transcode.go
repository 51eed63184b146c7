package worker

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
	"unicode/utf8"
)

// AppendJSONAsMsgpack appends the one value that the JSON text holds as msgpack. Integers of 64 bits stay exact; other
// numbers become floats of 64 bits. On failure dst comes back as it was.
func AppendJSONAsMsgpack(dst, json []byte) ([]byte, error) {
	r := reader{b: json, codec: JSON}
	n := len(dst)
	dst = r.appendMsgpack(dst)
	if err := r.finish(); err != nil {
		return dst[:n], err
	}
	return dst, nil
}

// AppendMsgpackAsJSON appends the one value that the msgpack bytes hold as JSON. Integers of 64 bits stay exact, NaN,
// infinities and extensions become null, packed bytes an array of numbers, integer keys their digits. On failure dst
// comes back as it was.
func AppendMsgpackAsJSON(dst, msgpack []byte) ([]byte, error) {
	r := reader{b: msgpack, codec: Msgpack}
	n := len(dst)
	dst = r.appendJSON(dst)
	if err := r.finish(); err != nil {
		return dst[:n], err
	}
	return dst, nil
}

// appendMsgpack appends the next value, whatever it is. Failures stay in the reader; what has been appended by then is
// of no use.
func (r *reader) appendMsgpack(dst []byte) []byte {
	switch r.peek() {
	case kindNull:
		r.null()
		return append(dst, 0xc0) // nil
	case kindBool:
		if r.boolean() {
			return append(dst, 0xc3) // true
		}
		return append(dst, 0xc2) // false
	case kindInt:
		n := r.integer()
		if n.neg {
			// Right for -2^63 as well, where the negation wraps twice.
			return appendMsgpackInt(dst, -int64(n.mag))
		}
		return appendMsgpackUint(dst, n.mag)
	case kindFloat:
		return binary.BigEndian.AppendUint64(append(dst, 0xcb), math.Float64bits(r.float()))
	case kindString:
		return appendMsgpackString(dst, r.str())
	case kindArray:
		// JSON doesn't say how many entries follow: they are counted, and the header is filled in afterwards.
		h := r.reserve(&dst)
		n := 0
		for s := r.openArray(); r.elem(&s); n++ {
			dst = r.appendMsgpack(dst)
		}
		return h.fill(dst, n, 0x90, 0xdc)
	case kindMap:
		h := r.reserve(&dst)
		n := 0
		for s := r.openMap(); r.entry(&s); n++ {
			dst = r.appendMsgpack(appendMsgpackString(dst, s.key))
		}
		return h.fill(dst, n, 0x80, 0xde)
	default:
		r.failf("no value")
		return dst
	}
}

// head is room for the header of a container whose number of entries isn't known yet.
type head struct{ at, size int }

// reserve makes room for a header that is wide enough whatever follows: an entry takes two bytes of JSON at least.
// Widening a header later would move all of the content, once for every level of nesting. Headers of 16 bits do for
// nearly all bodies.
func (r *reader) reserve(dst *[]byte) head {
	h := head{at: len(*dst), size: 3}
	// Fewer bytes than entries of 16 bits can count: three bytes of header are enough.
	if len(r.b)-r.i > math.MaxUint16 {
		h.size = 5 // one byte, then a length of 32 bits
	}
	*dst = append(*dst, make([]byte, h.size)...)
	return h
}

// smallContent is how much content may move so that a small container gets the short header.
const smallContent = 256

// fill writes the header in front of the content appended since reserve, for n entries.
func (h head) fill(dst []byte, n int, short, long byte) []byte {
	at := dst[h.at:]
	switch content := at[h.size:]; {
	// The content moves up to where the short header ends.
	case n <= 15 && len(content) <= smallContent:
		at[0] = short | byte(n)
		copy(at[1:], content)
		return dst[:len(dst)-h.size+1]
	case h.size == 3:
		at[0] = long
		binary.BigEndian.PutUint16(at[1:], uint16(n))
	default:
		at[0] = long + 1
		binary.BigEndian.PutUint32(at[1:], uint32(n))
	}
	return dst
}

// appendMsgpackString appends a string; msgpack readers refuse strings that are not UTF-8. Only then is it copied once
// more.
func appendMsgpackString(dst, s []byte) []byte {
	if !utf8.Valid(s) {
		s = bytes.ToValidUTF8(s, []byte("\ufffd"))
	}
	return append(appendMsgpackStringHead(dst, len(s)), s...)
}

// appendJSON appends the next value, whatever it is, without spaces. From JSON it normalises: white space goes, numbers
// and strings are written anew. Failures stay in the reader.
func (r *reader) appendJSON(dst []byte) []byte {
	switch r.peek() {
	case kindNull:
		r.null()
		return append(dst, "null"...)
	case kindBool:
		return strconv.AppendBool(dst, r.boolean())
	case kindInt:
		n := r.integer()
		if n.neg {
			dst = append(dst, '-')
		}
		return strconv.AppendUint(dst, n.mag, 10)
	case kindFloat:
		return appendJSONFloat(dst, r.float())
	case kindString:
		return appendJSONString(dst, r.str())
	case kindBytes:
		return AppendJSONNumbers(dst, r.bytes())
	// Timestamps and the like: no worker sends them, and JSON has no form for them.
	case kindExt:
		r.mpOpaque()
		return append(dst, "null"...)
	case kindArray:
		return r.appendJSONArray(dst)
	case kindMap:
		return r.appendJSONMap(dst)
	default:
		r.failf("no value")
		return dst
	}
}

// AppendJSONNumbers appends token ids, or bytes in the form that workers give them in JSON, as an array of numbers.
func AppendJSONNumbers[T uint8 | uint32](dst []byte, list []T) []byte {
	dst = append(dst, '[')
	for i, n := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(n), 10)
	}
	return append(dst, ']')
}

// appendJSONArray appends the array that comes next.
func (r *reader) appendJSONArray(dst []byte) []byte {
	dst = append(dst, '[')
	n := 0
	for s := r.openArray(); r.elem(&s); n++ {
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = r.appendJSON(dst)
	}
	return append(dst, ']')
}

// appendJSONMap appends the map that comes next, its keys in their order and with their repetitions.
func (r *reader) appendJSONMap(dst []byte) []byte {
	dst = append(dst, '{')
	n := 0
	for s := r.openMap(); r.entry(&s); n++ {
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendJSONString(dst, s.key), ':')
		dst = r.appendJSON(dst)
	}
	return append(dst, '}')
}
