// Package item is the blob in which an image's tensors travel to a vLLM worker: vLLM's msgpack of one multimodal item,
// with the large tensors beside it.
//
//	blob    = u32 count, then count times: u64 length, bytes          (little-endian)
//	bytes 0 = msgpack of the item's tree
//	bytes n = the data of a tensor, little-endian, in C order
//
// A tensor below 256 bytes is part of the tree. The tree's form differs by the version of vLLM. All of the blob but the
// large tensors' data is known before an image is decoded: Layout returns it, and where the data goes, so that a
// processor writes straight into the memory that is sent. Decode is the other direction, for tests and tools.
package item

import (
	"encoding/binary"
	"fmt"

	"github.com/portico-llm/portico/internal/multimodal"
)

// Version is a form of the tree.
type Version int

// The versions.
const (
	// Keyed is vLLM's form since 0.14: a map by tensor name.
	Keyed Version = iota
	// Listed is the form before: a list of elements that say their name.
	Listed
)

// VersionOf returns the form that a release of vLLM reads, given as its major and minor number.
func VersionOf(major, minor int) Version {
	if major == 0 && minor < 14 {
		return Listed
	}
	return Keyed
}

// inlineBelow is the size in bytes from which on a tensor gets a buffer of its own.
const inlineBelow = 256

// rawView is the msgpack extension type of a tensor's bytes inside the tree.
const rawView = 3

// Layout lays out the blob of a tree of tensors: those without Inline data get buffers of their own, in order. It sets
// their Offset and returns all of the blob besides their data, and the blob's size.
func Layout(tensors []multimodal.Tensor, version Version) (frame []multimodal.Chunk, size int, err error) {
	count := uint32(1)
	for i := range tensors {
		t := &tensors[i]
		switch {
		case t.Inline != nil && len(t.Inline) != t.Len():
			return nil, 0, fmt.Errorf("tensor %s has %d bytes, its shape %v asks for %d", t.Name, len(t.Inline), t.Shape, t.Len())
		case t.Inline != nil && t.Len() >= inlineBelow:
			return nil, 0, fmt.Errorf("tensor %s of %d bytes is too large for the tree", t.Name, t.Len())
		case t.Inline == nil && t.Len() < inlineBelow:
			return nil, 0, fmt.Errorf("tensor %s of %d bytes belongs into the tree", t.Name, t.Len())
		case t.Inline == nil:
			count++
		}
	}
	tree := appendTree(nil, tensors, version)
	chunk := make([]byte, 0, 4+8+len(tree)+8)
	chunk = binary.LittleEndian.AppendUint32(chunk, count)
	chunk = binary.LittleEndian.AppendUint64(chunk, uint64(len(tree)))
	chunk = append(chunk, tree...)
	for i := range tensors {
		t := &tensors[i]
		if t.Inline != nil {
			continue
		}
		chunk = binary.LittleEndian.AppendUint64(chunk, uint64(t.Len()))
		frame = append(frame, multimodal.Chunk{Offset: size, Data: chunk})
		t.Offset = size + len(chunk)
		size = t.Offset + t.Len()
		chunk = nil
	}
	if chunk != nil {
		frame, size = append(frame, multimodal.Chunk{Data: chunk}), len(chunk)
	}
	return frame, size, nil
}

// appendTree appends the msgpack of the tree. Buffers have indices from 1 on.
func appendTree(b []byte, tensors []multimodal.Tensor, version Version) []byte {
	buffer := uint64(0)
	if version == Listed {
		b = appendHead(b, fixArray, len(tensors))
		for i := range tensors {
			t := &tensors[i]
			b = appendHead(b, fixMap, 4)
			b = appendString(appendString(b, "modality"), "image")
			b = appendString(appendString(b, "key"), t.Name)
			b = appendTensor(appendString(b, "data"), t, &buffer)
			b = appendListedField(appendString(b, "field"), t)
		}
		return b
	}
	b = appendHead(b, fixMap, len(tensors))
	for i := range tensors {
		t := &tensors[i]
		b = appendHead(appendString(b, t.Name), fixMap, 2)
		b = appendTensor(appendString(b, "data"), t, &buffer)
		b = appendKeyedField(appendString(b, "field"), t)
	}
	return b
}

// appendTensor appends a tensor; one outside the tree gets the next buffer.
func appendTensor(b []byte, t *multimodal.Tensor, buffer *uint64) []byte {
	b = appendHead(b, fixArray, 3)
	b = appendString(b, string(t.DType))
	b = appendHead(b, fixArray, len(t.Shape))
	for _, d := range t.Shape {
		b = appendUint(b, uint64(d))
	}
	if t.Inline == nil {
		*buffer++
		return appendUint(b, *buffer)
	}
	return appendExt(b, rawView, t.Inline)
}

func appendKeyedField(b []byte, t *multimodal.Tensor) []byte {
	b = appendString(appendHead(b, fixArray, 2), string(t.Field))
	switch t.Field {
	case multimodal.Flat:
		b = appendHead(b, fixMap, 3)
		b = appendBool(appendString(b, "keep_on_cpu"), t.KeepOnCPU)
		b = appendSlices(appendString(b, "slices"), t)
		return appendUint(appendString(b, "dim"), 0)
	case multimodal.Shared:
		b = appendHead(b, fixMap, 2)
		b = appendBool(appendString(b, "keep_on_cpu"), t.KeepOnCPU)
		return appendUint(appendString(b, "batch_size"), 1)
	}
	b = appendHead(b, fixMap, 1)
	return appendBool(appendString(b, "keep_on_cpu"), t.KeepOnCPU)
}

func appendListedField(b []byte, t *multimodal.Tensor) []byte {
	switch t.Field {
	case multimodal.Flat:
		b = appendString(appendHead(b, fixArray, 3), string(t.Field))
		return appendUint(appendSlices(b, t), 0)
	case multimodal.Shared:
		return appendUint(appendString(appendHead(b, fixArray, 2), string(t.Field)), 1)
	}
	return appendString(appendHead(b, fixArray, 1), string(t.Field))
}

// appendSlices appends the one slice of a flat field: all of this item's rows.
func appendSlices(b []byte, t *multimodal.Tensor) []byte {
	rows := 1
	if len(t.Shape) > 0 {
		rows = t.Shape[0]
	}
	b = appendHead(b, fixArray, 1) // items
	b = appendHead(b, fixArray, 1) // dimensions
	b = appendHead(b, fixArray, 3)
	b = appendUint(b, 0)
	b = appendUint(b, uint64(rows))
	return append(b, mpNil)
}
