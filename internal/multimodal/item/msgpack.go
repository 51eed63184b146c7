package item

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// The few forms of msgpack that a tree has. Written numbers are as short as they can be.
const (
	fixMap   = 0x80
	fixArray = 0x90
	fixStr   = 0xa0
	mpNil    = 0xc0
	mpFalse  = 0xc2
	mpTrue   = 0xc3
	mpBin8   = 0xc4
	mpExt8   = 0xc7
	mpUint8  = 0xcc
	mpUint16 = 0xcd
	mpUint32 = 0xce
	mpUint64 = 0xcf
	mpInt8   = 0xd0
	mpInt64  = 0xd3
	mpFixExt = 0xd4
	mpStr8   = 0xd9
	mpArr16  = 0xdc
	mpMap16  = 0xde
)

// appendHead appends the head of a map or an array of n members, n at most 15.
func appendHead(b []byte, kind byte, n int) []byte { return append(b, kind|byte(n)) }

func appendString(b []byte, s string) []byte {
	if len(s) < 32 {
		b = append(b, fixStr|byte(len(s)))
	} else {
		b = append(b, mpStr8, byte(len(s)))
	}
	return append(b, s...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, mpTrue)
	}
	return append(b, mpFalse)
}

func appendUint(b []byte, v uint64) []byte {
	switch {
	case v < 0x80:
		return append(b, byte(v))
	case v <= math.MaxUint8:
		return append(b, mpUint8, byte(v))
	case v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, mpUint16), uint16(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, mpUint32), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, mpUint64), v)
}

// appendExt appends an extension value of less than 256 bytes.
func appendExt(b []byte, kind byte, data []byte) []byte {
	switch n := len(data); n {
	case 1, 2, 4, 8, 16:
		log := 0
		for 1<<log < n {
			log++
		}
		b = append(b, mpFixExt+byte(log), kind)
	default:
		b = append(b, mpExt8, byte(n), kind)
	}
	return append(b, data...)
}

// extension is a decoded extension value.
type extension struct {
	kind byte
	data []byte
}

var (
	errEnd  = errors.New("the data ends early")
	errDeep = errors.New("values are nested too deeply")
)

// maxDepth bounds the nesting of a decoded tree; a real one has seven levels.
const maxDepth = 16

// decoder reads msgpack into any: nil, bool, int64, float64, string, []byte, extension, []any, map[string]any.
type decoder struct{ b []byte }

func (d *decoder) take(n uint64) ([]byte, error) {
	if n > uint64(len(d.b)) {
		return nil, errEnd
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out, nil
}

// number reads a big-endian number of n bytes.
func (d *decoder) number(n int) (uint64, error) {
	b, err := d.take(uint64(n))
	if err != nil {
		return 0, err
	}
	var v uint64
	for _, c := range b {
		v = v<<8 | uint64(c)
	}
	return v, nil
}

func (d *decoder) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, errDeep
	}
	head, err := d.number(1)
	if err != nil {
		return nil, err
	}
	c := byte(head)
	switch {
	case c < 0x80:
		return int64(c), nil
	case c >= 0xe0:
		return int64(int8(c)), nil
	case c&0xf0 == fixMap:
		return d.mapping(uint64(c&15), depth)
	case c&0xf0 == fixArray:
		return d.list(uint64(c&15), depth)
	case c&0xe0 == fixStr:
		return d.text(uint64(c & 31))
	}
	return d.long(c, depth)
}

// long reads the forms whose head is one byte that isn't shared with a value.
func (d *decoder) long(c byte, depth int) (any, error) {
	switch c {
	case mpNil:
		return nil, nil
	case mpFalse, mpTrue:
		return c == mpTrue, nil
	case mpUint8, mpUint16, mpUint32, mpUint64:
		v, err := d.number(1 << (c - mpUint8))
		if err == nil && v > math.MaxInt64 {
			return nil, fmt.Errorf("number %d is too large", v)
		}
		return int64(v), err
	case mpInt8, mpInt8 + 1, mpInt8 + 2, mpInt64:
		bits := 8 << (c - mpInt8)
		v, err := d.number(bits / 8)
		return int64(v) << (64 - bits) >> (64 - bits), err
	case mpFixExt, mpFixExt + 1, mpFixExt + 2, mpFixExt + 3, mpFixExt + 4:
		return d.ext(1 << (c - mpFixExt))
	}
	if c < mpBin8 || c > mpMap16+1 || (c > mpExt8+2 && c < mpStr8) {
		return nil, fmt.Errorf("byte %#x isn't used in items", c)
	}
	return d.counted(c, depth)
}

// counted reads a form whose head is followed by a length.
func (d *decoder) counted(c byte, depth int) (any, error) {
	groups := []struct {
		first byte // with a length of so many bytes, and its followers with twice as many each
		bytes int
		read  func(n uint64) (any, error)
	}{
		{mpMap16, 2, func(n uint64) (any, error) { return d.mapping(n, depth) }},
		{mpArr16, 2, func(n uint64) (any, error) { return d.list(n, depth) }},
		{mpStr8, 1, d.text},
		{mpExt8, 1, d.ext},
		{mpBin8, 1, func(n uint64) (any, error) { return d.take(n) }},
	}
	for _, g := range groups {
		if c >= g.first {
			n, err := d.number(g.bytes << (c - g.first))
			if err != nil {
				return nil, err
			}
			return g.read(n)
		}
	}
	return nil, errEnd
}

func (d *decoder) text(n uint64) (any, error) {
	b, err := d.take(n)
	return string(b), err
}

func (d *decoder) ext(n uint64) (any, error) {
	kind, err := d.number(1)
	if err != nil {
		return nil, err
	}
	data, err := d.take(n)
	return extension{kind: byte(kind), data: data}, err
}

func (d *decoder) list(n uint64, depth int) (any, error) {
	if n > uint64(len(d.b)) { // each member takes a byte
		return nil, errEnd
	}
	out := make([]any, n)
	for i := range out {
		var err error
		if out[i], err = d.value(depth + 1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (d *decoder) mapping(n uint64, depth int) (any, error) {
	if n > uint64(len(d.b)) {
		return nil, errEnd
	}
	out := make(map[string]any, n)
	for range n {
		key, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		name, ok := key.(string)
		if !ok {
			return nil, fmt.Errorf("the key of a map is a %T", key)
		}
		if out[name], err = d.value(depth + 1); err != nil {
			return nil, err
		}
	}
	return out, nil
}
