package kvhash

import (
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/zeebo/xxh3"
)

// MediaHash returns the hash of an image or other medium known by an identifier: of a SHA-256 in 64 hexadecimal digits
// its first eight bytes, of anything else the XXH3. The empty identifier has none.
func MediaHash(id string) (hash uint64, ok bool) {
	if id == "" {
		return 0, false
	}
	var digest [32]byte
	if len(id) == 64 {
		if _, err := hex.Decode(digest[:], []byte(id)); err == nil {
			return binary.BigEndian.Uint64(digest[:]), true
		}
	}
	return xxh3.HashString(id), true
}

// PadToken is the token id that stands for a medium where a worker has no placeholder of its own: 30 bits of the hash,
// moved above any real vocabulary.
func PadToken(hash uint64) uint32 { return uint32(hash&(1<<30-1)) + 1_000_000 }

// Medium is one medium of a prompt and the tokens it covers: ranges [from, to), in any order.
type Medium struct {
	Hash   uint64
	Ranges [][2]int
}

// ByBlock lists the media of each of the first n blocks, as Layout.Media wants them.
func ByBlock(media []Medium, blockSize, n int) [][]uint64 {
	if blockSize <= 0 || n <= 0 || len(media) == 0 {
		return nil
	}
	out := make([][]uint64, n)
	for _, m := range media {
		for _, r := range m.Ranges {
			if r[0] < 0 || r[1] <= r[0] {
				continue
			}
			for i := r[0] / blockSize; i < n && i*blockSize < r[1]; i++ {
				if !slices.Contains(out[i], m.Hash) {
					out[i] = append(out[i], m.Hash)
				}
			}
		}
	}
	return out
}
