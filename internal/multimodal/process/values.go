package process

import (
	"encoding/binary"
	"math"

	"github.com/portico-llm/portico/internal/multimodal"
)

// values returns what each of the 256 values of the three channels becomes, computed as the backend does: torchvision's
// processors fold the scale into mean and deviation, Pillow's multiply first, and both round to 32 bits on the way.
func values(c common, s Settings) []byte {
	out := make([]byte, 0, 768*s.DType.Size())
	for channel := range 3 {
		mean, std := float32(c.Mean[channel]), float32(c.Std[channel])
		inverse := float32(1 / c.Rescale)
		for v := range 256 {
			var x float32
			switch {
			case s.Scale == Bytes:
				x = float32(v)
			case s.Backend == Torchvision:
				x = (float32(v) - float32(mean*inverse)) / float32(std*inverse)
			default:
				x = (float32(float64(v)*c.Rescale) - mean) / std
			}
			out = appendValue(out, x, s.DType)
		}
	}
	return out
}

func appendValue(b []byte, x float32, dtype multimodal.DType) []byte {
	switch dtype {
	case multimodal.Uint8:
		return append(b, byte(x))
	case multimodal.Float16:
		return binary.LittleEndian.AppendUint16(b, float16(x))
	case multimodal.BFloat16:
		return binary.LittleEndian.AppendUint16(b, bfloat16(x))
	}
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
}

// bfloat16 rounds to the nearest, halves to even.
func bfloat16(x float32) uint16 {
	bits := math.Float32bits(x)
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// float16 rounds to the nearest, halves to even. Values are far from the type's limits above, not from those below.
func float16(x float32) uint16 {
	bits := math.Float32bits(x)
	sign := uint16(bits >> 16 & 0x8000)
	magnitude := math.Float32frombits(bits &^ (1 << 31))
	const smallestNormal = 1.0 / (1 << 14)
	switch {
	case magnitude >= 65520:
		return sign | 0x7c00
	case magnitude < smallestNormal:
		// Multiples of 2^-24.
		return sign | uint16(math.RoundToEven(float64(magnitude)*(1<<24)))
	}
	m := math.Float32bits(magnitude)
	m += 0xfff + m>>13&1
	return sign | uint16(m>>13-(127-15)<<10)
}
