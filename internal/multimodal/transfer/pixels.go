package transfer

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/nixl"
)

// decoded is a decoded image as Dynamo's workers are told of it.
type decoded struct {
	Metadata   string         `json:"nixl_metadata"`
	Descriptor decodedPlace   `json:"nixl_descriptor"`
	Shape      [3]int         `json:"shape"` // height, width, channels
	DType      string         `json:"dtype"`
	Image      map[string]any `json:"metadata"`
	Hash       string         `json:"content_hash"` // 16 hex digits: workers' caches go by it
}

type decodedPlace struct {
	Addr     uint64 `json:"addr"`
	Size     int    `json:"size"`
	MemType  string `json:"mem_type"`
	DeviceID int    `json:"device_id"`
}

// formats are the formats' names in that protocol.
var formats = map[multimodal.Format]string{
	multimodal.JPEG: "Jpeg", multimodal.PNG: "Png", multimodal.WebP: "WebP", multimodal.GIF: "Gif", multimodal.BMP: "Bmp",
}

// Pixels returns what a worker is told of image i, whose pixels stand at the beginning of its memory. The worker makes up
// the key under which it says that it is done, so nobody can tell which image it means: memory of such a batch is never
// used again. Safe for different images at the same time.
func (b *Batch) Pixels(i int, p *multimodal.Pixels) (json.RawMessage, error) {
	if b.segments != nil {
		return nil, errors.New("pixels go over NIXL alone")
	}
	mem := b.slots[i].Bytes()
	n := p.Width * p.Height * 3
	if n != len(p.Data) || n > len(mem) || n == 0 {
		return nil, errLength
	}
	// A decoder may have found the memory too small, and have used its own.
	if &p.Data[0] != &mem[0] {
		copy(mem, p.Data)
	}
	agent, err := b.t.agent.Metadata()
	if err != nil {
		return nil, fmt.Errorf("describe a transfer: %w", err)
	}
	return json.Marshal(decoded{
		Metadata:   agent,
		Descriptor: decodedPlace{Addr: nixl.Address(mem), Size: n, MemType: "Dram"},
		Shape:      [3]int{p.Height, p.Width, 3},
		DType:      "UINT8",
		Image: map[string]any{"Image": map[string]string{
			"format": formats[p.Format], "color_type": "Rgb8", "layout": "HWC"}},
		Hash: contentHash(p),
	})
}

// contentHash is the identity that workers know of decoded images: over their shape, the kind of their elements, and the
// pixels.
func contentHash(p *multimodal.Pixels) string {
	h := xxh3.New()
	head := binary.LittleEndian.AppendUint64(nil, 3)
	for _, n := range []int{p.Height, p.Width, 3} {
		head = binary.LittleEndian.AppendUint64(head, uint64(n))
	}
	_, _ = h.Write(append(head, 0)) // a hash doesn't fail
	_, _ = h.Write(p.Data)
	return fmt.Sprintf("%016x", h.Sum64())
}
