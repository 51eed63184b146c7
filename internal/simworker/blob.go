package simworker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// tensor is what the head of an item says of one of its tensors.
type tensor struct {
	name, dtype string
	shape       []int
}

var errBlob = errors.New("it ends too early, or has bytes that don't belong")

// blobTensors reads the frame of an image item, a count and as many buffers with their lengths, and from the first
// buffer, in msgpack, the item's tensors: {name: {"data": [type, shape, where], "field": …}}. Names come in order.
func blobTensors(blob []byte) ([]tensor, error) {
	if len(blob) < 4 {
		return nil, errBlob
	}
	count, rest := binary.LittleEndian.Uint32(blob), blob[4:]
	var head []byte
	for i := range count {
		if len(rest) < 8 {
			return nil, errBlob
		}
		n := binary.LittleEndian.Uint64(rest)
		if rest = rest[8:]; n > uint64(len(rest)) {
			return nil, errBlob
		}
		if i == 0 {
			head = rest[:n]
		}
		rest = rest[n:]
	}
	if len(rest) > 0 || len(head) == 0 {
		return nil, errBlob
	}
	r := packReader{b: head}
	item, ok := r.value(0).(map[string]any)
	if r.failed || !ok || len(r.b) > 0 {
		return nil, errors.New("its head is not the msgpack of an item")
	}
	out := make([]tensor, 0, len(item))
	for name, v := range item {
		t, err := itemTensor(name, v)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b tensor) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// itemTensor reads one element of an item.
func itemTensor(name string, v any) (tensor, error) {
	element, _ := v.(map[string]any)
	data, _ := element["data"].([]any)
	if len(data) != 3 {
		return tensor{}, fmt.Errorf("%s has no tensor", name)
	}
	t := tensor{name: name, shape: []int{}}
	t.dtype, _ = data[0].(string)
	dims, ok := data[1].([]any)
	for _, d := range dims {
		n, isInt := d.(int)
		ok = ok && isInt
		t.shape = append(t.shape, n)
	}
	if t.dtype == "" || !ok {
		return tensor{}, fmt.Errorf("%s has no type and shape", name)
	}
	return t, nil
}

// packReader reads the part of msgpack that items use. Values become map[string]any, []any, string, int, float64, bool
// and nil; what an extension holds is passed over. After a failure every value is nil.
type packReader struct {
	b      []byte
	failed bool
}

// maxDepth bounds nesting; items have five levels.
const maxDepth = 32

// take returns the next n bytes, or none.
func (r *packReader) take(n int) []byte {
	if r.failed || n < 0 || n > len(r.b) {
		r.failed = true
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

// number reads an unsigned integer of n bytes.
func (r *packReader) number(n int) int {
	var v uint64
	for _, c := range r.take(n) {
		v = v<<8 | uint64(c)
	}
	if v > math.MaxInt {
		r.failed = true
		return 0
	}
	return int(v)
}

// value reads one value.
func (r *packReader) value(depth int) any {
	lead := r.take(1)
	if lead == nil || depth > maxDepth {
		r.failed = true
		return nil
	}
	switch c := lead[0]; {
	case c < 0x80:
		return int(c)
	case c < 0x90:
		return r.mapping(int(c&0x0f), depth)
	case c < 0xa0:
		return r.array(int(c&0x0f), depth)
	case c < 0xc0:
		return string(r.take(int(c & 0x1f)))
	case c >= 0xe0:
		return int(int8(c))
	default:
		return r.long(c, depth)
	}
}

// long reads a value whose lead byte says how its length or number is written.
func (r *packReader) long(c byte, depth int) any {
	switch c {
	case 0xc0:
		return nil
	case 0xc2, 0xc3:
		return c == 0xc3
	case 0xc4, 0xc5, 0xc6: // bytes
		return string(r.take(r.number(1 << (c - 0xc4))))
	case 0xc7, 0xc8, 0xc9: // an extension: length, kind, bytes
		n := r.number(1 << (c - 0xc7))
		r.take(1)
		r.take(n)
		return nil
	case 0xca, 0xcb:
		bits := r.take(4 << (c - 0xca))
		if len(bits) == 8 {
			return math.Float64frombits(binary.BigEndian.Uint64(bits))
		}
		if len(bits) == 4 {
			return float64(math.Float32frombits(binary.BigEndian.Uint32(bits)))
		}
		return nil
	case 0xcc, 0xcd, 0xce, 0xcf:
		return r.number(1 << (c - 0xcc))
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8: // an extension of fixed length
		r.take(1 + 1<<(c-0xd4))
		return nil
	case 0xd9, 0xda, 0xdb:
		return string(r.take(r.number(1 << (c - 0xd9))))
	case 0xdc, 0xdd:
		return r.array(r.number(2<<(c-0xdc)), depth)
	case 0xde, 0xdf:
		return r.mapping(r.number(2<<(c-0xde)), depth)
	}
	r.failed = true // signed integers of several bytes have no place in items
	return nil
}

// array reads n values.
func (r *packReader) array(n, depth int) []any {
	if n > len(r.b) { // each has a byte at least
		r.failed = true
		return nil
	}
	out := make([]any, 0, n)
	for range n {
		out = append(out, r.value(depth+1))
	}
	return out
}

// mapping reads n pairs; keys that aren't text are a failure.
func (r *packReader) mapping(n, depth int) map[string]any {
	if n > len(r.b)/2 {
		r.failed = true
		return nil
	}
	out := make(map[string]any, n)
	for range n {
		key, ok := r.value(depth + 1).(string)
		if !ok {
			r.failed = true
			return nil
		}
		out[key] = r.value(depth + 1)
	}
	return out
}
