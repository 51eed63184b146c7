package multimodal

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/zeebo/blake3"
)

// Way is how an image reaches the worker.
type Way string

// The ways of an image.
const (
	ByURL    Way = "url"    // the worker fetches it
	ByPixels Way = "pixels" // decoded, the worker's own processor does the rest
	ByKwargs Way = "kwargs" // as the tensors of the engine's processor
)

// Digest returns the content hash of a file: the same however it came.
func Digest(file []byte) [32]byte { return blake3.Sum256(file) }

// Identity names an image for engines' caches and for routing, in 64 hex digits of which engines count the first 16.
// Workers keep what they got under an identity, and neither way may find what the other one left, nor one processor
// setting what another made: so way and settings are part of it. settings is a text that tells all that shapes the
// image; empty for ByURL and ByPixels.
func Identity(digest [32]byte, way Way, settings string) string {
	h := blake3.New()
	// Each part with its length: no two triples are the same bytes.
	for _, part := range []string{"portico image 1", string(way), settings} {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(part)))
		_, _ = h.Write(n[:]) // a hash doesn't fail
		_, _ = h.WriteString(part)
	}
	_, _ = h.Write(digest[:])
	return hex.EncodeToString(h.Sum(nil))
}
