package transfer

import (
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/portico-llm/portico/internal/multimodal"
)

// TestContentHash: over rank and dimensions, in 64 bits each, a zero for the kind of element, and the pixels.
func TestContentHash(t *testing.T) {
	p := &multimodal.Pixels{Header: multimodal.Header{Width: 2, Height: 1}, Data: []byte{1, 2, 3, 4, 5, 6}}
	raw := "\x03\x00\x00\x00\x00\x00\x00\x00" + "\x01\x00\x00\x00\x00\x00\x00\x00" + "\x02\x00\x00\x00\x00\x00\x00\x00" +
		"\x03\x00\x00\x00\x00\x00\x00\x00" + "\x00" + "\x01\x02\x03\x04\x05\x06"
	got := contentHash(p)
	const digits = "0123456789abcdef"
	want := ""
	for n, i := xxh3.HashString(raw), 0; i < 16; i++ {
		want = string(digits[n&15]) + want
		n >>= 4
	}
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestPixelsAlone: shared memory has no place for decoded images, and images that don't fit their memory are none.
func TestPixelsAlone(t *testing.T) {
	tr := New(Options{ShmDir: t.TempDir()})
	if _, err := tr.OpenNIXL(t.Context(), []int{1}); err == nil {
		t.Error("slots without NIXL")
	}
	b, err := tr.Open(t.Context(), []int{3})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Pixels(0, &multimodal.Pixels{Header: multimodal.Header{Width: 1, Height: 1}, Data: b.Bytes(0)}); err == nil {
		t.Error("pixels in shared memory")
	}
	b.Close()
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}
