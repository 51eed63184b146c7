package multimodal_test

import (
	"strings"
	"testing"

	"github.com/portico-llm/portico/internal/multimodal"
)

// TestIdentity: whatever shapes what a worker keeps makes another identity, in the digits that engines look at.
func TestIdentity(t *testing.T) {
	one, two := multimodal.Digest([]byte("one")), multimodal.Digest([]byte("two"))
	seen := map[string]string{}
	for name, id := range map[string]string{
		"kwargs":               multimodal.Identity(one, multimodal.ByKwargs, "uint8"),
		"another file":         multimodal.Identity(two, multimodal.ByKwargs, "uint8"),
		"other settings":       multimodal.Identity(one, multimodal.ByKwargs, "bfloat16"),
		"by URL":               multimodal.Identity(one, multimodal.ByURL, ""),
		"by pixels":            multimodal.Identity(one, multimodal.ByPixels, ""),
		"shifted by one":       multimodal.Identity(one, multimodal.ByKwargs+"u", "int8"),
		"URL with settings":    multimodal.Identity(one, multimodal.ByURL, "uint8"),
		"pixels with settings": multimodal.Identity(one, multimodal.ByPixels, "uint8"),
	} {
		if len(id) != 64 || strings.Trim(id, "0123456789abcdef") != "" {
			t.Errorf("%s: %q isn't 64 hex digits", name, id)
		}
		if other, ok := seen[id[:16]]; ok {
			t.Errorf("%s and %s are the same to an engine", name, other)
		}
		seen[id[:16]] = name
	}
	if a, b := multimodal.Identity(one, multimodal.ByURL, ""), multimodal.Identity(multimodal.Digest([]byte("one")), multimodal.ByURL, ""); a != b {
		t.Errorf("the same file has two identities, %s and %s", a, b)
	}
}

func TestTensorLen(t *testing.T) {
	for name, c := range map[string]struct {
		tensor multimodal.Tensor
		want   int
	}{
		"a number":   {multimodal.Tensor{DType: multimodal.Int64}, 8},
		"pixels":     {multimodal.Tensor{DType: multimodal.Uint8, Shape: []int{4, 1176}}, 4704},
		"half":       {multimodal.Tensor{DType: multimodal.Float16, Shape: []int{3, 2, 2}}, 24},
		"bfloat":     {multimodal.Tensor{DType: multimodal.BFloat16, Shape: []int{3}}, 6},
		"float":      {multimodal.Tensor{DType: multimodal.Float32, Shape: []int{3}}, 12},
		"none of it": {multimodal.Tensor{DType: multimodal.Float32, Shape: []int{0, 3}}, 0},
	} {
		if got := c.tensor.Len(); got != c.want {
			t.Errorf("%s: %d bytes, want %d", name, got, c.want)
		}
	}
}
