package item

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/portico-llm/portico/internal/multimodal"
)

// Tensor is a decoded tensor: Data is part of the blob.
type Tensor struct {
	multimodal.Tensor
	Data []byte
}

// maxBuffers bounds the buffers of a blob: a tree and its tensors.
const maxBuffers = 64

// Buffers takes a blob apart. The parts are slices of it.
func Buffers(blob []byte) ([][]byte, error) {
	if len(blob) < 4 {
		return nil, errEnd
	}
	count := binary.LittleEndian.Uint32(blob)
	if count == 0 || count > maxBuffers {
		return nil, fmt.Errorf("a blob of %d buffers", count)
	}
	blob = blob[4:]
	out := make([][]byte, count)
	for i := range out {
		if len(blob) < 8 {
			return nil, errEnd
		}
		n := binary.LittleEndian.Uint64(blob)
		if n > uint64(len(blob)-8) {
			return nil, errEnd
		}
		out[i], blob = blob[8:8+n], blob[8+n:]
	}
	if len(blob) != 0 {
		return nil, fmt.Errorf("%d bytes follow the last buffer", len(blob))
	}
	return out, nil
}

// Tree decodes buffer 0 of a blob into nil, bool, int64, string, []any and map[string]any; the bytes of a tensor inside
// the tree are []byte.
func Tree(buffer []byte) (any, error) {
	d := decoder{buffer}
	v, err := d.value(0)
	if err != nil {
		return nil, err
	}
	if len(d.b) != 0 {
		return nil, fmt.Errorf("%d bytes follow the tree", len(d.b))
	}
	return plain(v)
}

// plain replaces the extension values that may be in a tree by their bytes.
func plain(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case extension:
		if v.kind != rawView {
			return nil, fmt.Errorf("extension type %d isn't used in items", v.kind)
		}
		return v.data, nil
	case []any:
		for i := range v {
			if v[i], err = plain(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			if v[k], err = plain(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// Decode reads a blob of either version. Tensors are sorted by name.
func Decode(blob []byte) ([]Tensor, error) {
	buffers, err := Buffers(blob)
	if err != nil {
		return nil, err
	}
	tree, err := Tree(buffers[0])
	if err != nil {
		return nil, fmt.Errorf("tree: %w", err)
	}
	var out []Tensor
	switch tree := tree.(type) {
	case map[string]any:
		for name, v := range tree {
			element, _ := v.(map[string]any)
			t, err := decodeTensor(name, element, buffers)
			if err != nil {
				return nil, err
			}
			out = append(out, t)
		}
	case []any:
		for _, v := range tree {
			element, _ := v.(map[string]any)
			name, _ := element["key"].(string)
			t, err := decodeTensor(name, element, buffers)
			if err != nil {
				return nil, err
			}
			out = append(out, t)
		}
	default:
		return nil, fmt.Errorf("the tree is a %T", tree)
	}
	slices.SortFunc(out, func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func decodeTensor(name string, element map[string]any, buffers [][]byte) (Tensor, error) {
	t := Tensor{Tensor: multimodal.Tensor{Name: name}}
	data, _ := element["data"].([]any)
	field, _ := element["field"].([]any)
	if len(data) != 3 || len(field) == 0 {
		return t, fmt.Errorf("tensor %s has no data or no field", name)
	}
	dtype, _ := data[0].(string)
	shape, ok := data[1].([]any)
	if !ok {
		return t, fmt.Errorf("tensor %s has no shape", name)
	}
	t.DType = multimodal.DType(dtype)
	bytes := int64(t.DType.Size())
	for _, d := range shape {
		n, ok := d.(int64)
		if !ok || n < 0 || (n > 0 && bytes > maxTensorBytes/n) {
			return t, fmt.Errorf("tensor %s has the shape %v", name, shape)
		}
		bytes *= n
		t.Shape = append(t.Shape, int(n))
	}
	kind, _ := field[0].(string)
	t.Field = multimodal.FieldKind(kind)
	if len(field) > 1 {
		settings, _ := field[1].(map[string]any)
		t.KeepOnCPU, _ = settings["keep_on_cpu"].(bool)
	}
	switch where := data[2].(type) {
	case []byte:
		t.Data, t.Inline = where, where
	case int64:
		if where < 1 || where >= int64(len(buffers)) {
			return t, fmt.Errorf("tensor %s is in buffer %d of %d", name, where, len(buffers))
		}
		t.Data = buffers[where]
	}
	if int64(len(t.Data)) != bytes {
		return t, fmt.Errorf("tensor %s has %d bytes, its shape %v asks for %d", name, len(t.Data), t.Shape, bytes)
	}
	return t, nil
}

// maxTensorBytes bounds the size of a tensor that a shape may ask for.
const maxTensorBytes = 1 << 40
