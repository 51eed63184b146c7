// Package kvhash computes the block hashes by which a router and its workers speak of the same cached tokens. They must
// agree with the workers' bit for bit.
//
// A prompt is cut into blocks of the worker's block size; what is left at the end isn't hashed. A block's local hash
// says what is in it, and is seeded by the adapter and the cache salt, so that prompts under different ones never
// share. A sequence hash says what is in a block and in all blocks before it.
//
//	h := kvhash.New(kvhash.Seed(adapter, salt))
//	local, err = h.Local(local[:0], tokens, kvhash.Layout{BlockSize: 16})
//	seq = kvhash.Sequence(seq[:0], local)
//
// Nothing is allocated where the caller's slices have room. Everything is safe for concurrent use.
package kvhash

import (
	"errors"
	"slices"

	"github.com/zeebo/xxh3"
)

// BaseSeed is the seed of blocks without adapter and salt, and of the chain.
const BaseSeed = 1337

// ErrBlockSize refuses a block size that isn't positive.
var ErrBlockSize = errors.New("kvhash: the block size isn't positive")

// Seed mixes an adapter's name and a cache salt into the seed of local hashes. An empty string is as good as none.
func Seed(adapter, salt string) uint64 {
	s := uint64(BaseSeed)
	if adapter != "" {
		s += xxh3.HashString(adapter)
	}
	if salt != "" {
		s += xxh3.HashStringSeed(salt, 1)
	}
	return s
}

// Layout says how a prompt is cut.
type Layout struct {
	BlockSize int

	// Eagle looks one token beyond each block, as workers with that kind of speculative decoding do. A block whose next
	// token isn't known yet has no hash.
	Eagle bool

	// Media lists for each block the hashes of the images and other media in it, in any order and without repetition. It
	// may be shorter than the prompt has blocks.
	Media [][]uint64
}

// Count returns how many blocks a prompt of n tokens has.
func (l Layout) Count(n int) int {
	window := l.window()
	if l.BlockSize <= 0 || n < window {
		return 0
	}
	return (n-window)/l.BlockSize + 1
}

func (l Layout) window() int {
	if l.Eagle {
		return l.BlockSize + 1
	}
	return l.BlockSize
}

// room is what most blocks need when they are laid out as bytes; on the stack, once for a prompt.
const room = 1024

// Local appends the local hashes of a prompt's complete blocks to dst.
func (h *Hasher) Local(dst []uint64, tokens []uint32, l Layout) ([]uint64, error) {
	if l.BlockSize <= 0 {
		return dst, ErrBlockSize
	}
	n, size := l.Count(len(tokens)), l.BlockSize
	dst = slices.Grow(dst, n)
	plain := len(l.Media) == 0
	switch window := l.window(); {
	case plain && window == 4:
		for i := range n {
			t := tokens[i*size : i*size+4]
			dst = append(dst, h.pair(uint64(t[0])|uint64(t[1])<<32, uint64(t[2])|uint64(t[3])<<32))
		}
	case plain && window == 16:
		for i := range n {
			dst = append(dst, h.hash64(words8(tokens[i*size:])))
		}
	case plain && window == 32:
		for i := range n {
			dst = append(dst, h.hash128(words16(tokens[i*size:])))
		}
	case plain && window == 64:
		for i := range n {
			dst = append(dst, h.hash256(words32(tokens[i*size:])))
		}
	default:
		var buf [room]byte
		for i := range n {
			var media []uint64
			if i < len(l.Media) {
				media = l.Media[i]
			}
			dst = append(dst, h.block(buf[:], tokens[i*size:i*size+window], media))
		}
	}
	return dst, nil
}

// block hashes one block of any size. The hashes of media follow the tokens in ascending order.
func (h *Hasher) block(buf []byte, t []uint32, media []uint64) uint64 {
	if len(media) > 0 {
		var few [16]uint64
		sorted := append(few[:0], media...)
		slices.Sort(sorted)
		return h.bytes(buf, t, sorted)
	}
	switch len(t) {
	case 4:
		return h.pair(uint64(t[0])|uint64(t[1])<<32, uint64(t[2])|uint64(t[3])<<32)
	case 16:
		return h.hash64(words8(t))
	case 32:
		return h.hash128(words16(t))
	case 64:
		return h.hash256(words32(t))
	}
	return h.bytes(buf, t, nil)
}

// stretch is how many blocks Both takes at a time: few enough for the processor to look beyond them.
const stretch = 16

// Both appends a prompt's local hashes to local, and its sequence hashes to sequence. It does in turns what Local and
// Sequence do one after the other: a sequence hash waits for the one before it, and local hashes fill the time.
func (h *Hasher) Both(local, sequence []uint64, tokens []uint32, l Layout) (locals, sequences []uint64, err error) {
	if l.BlockSize <= 0 {
		return local, sequence, ErrBlockSize
	}
	n, old := l.Count(len(tokens)), len(local)
	local, sequence = slices.Grow(local, n), slices.Grow(sequence, n)
	if len(l.Media) > 0 { // they go by the number of the block
		local, err = h.Local(local, tokens, l)
		return local, Sequence(sequence, local[old:]), err
	}
	beyond, last := l.window()-l.BlockSize, uint64(0)
	for at := 0; at < n; at += stretch {
		to := min(at+stretch, n)
		if local, err = h.Local(local, tokens[at*l.BlockSize:to*l.BlockSize+beyond], l); err != nil {
			return local, sequence, err
		}
		blocks := local[old+at:]
		if at == 0 {
			last, blocks = blocks[0], blocks[1:]
			sequence = append(sequence, last)
		}
		sequence = follow(sequence, blocks, last)
		last = sequence[len(sequence)-1]
	}
	return local, sequence, nil
}

// Sequence appends the sequence hashes of a prompt, given its local hashes, to dst.
func Sequence(dst, local []uint64) []uint64 {
	dst = slices.Grow(dst, len(local))
	if len(local) == 0 {
		return dst
	}
	return follow(append(dst, local[0]), local[1:], local[0])
}

// follow appends the sequence hashes of blocks behind one with the sequence hash last.
func follow(dst, local []uint64, last uint64) []uint64 {
	for _, l := range local {
		last = chain.pair(last, l)
		dst = append(dst, last)
	}
	return dst
}

// Next is the sequence hash of a block with the given local hash behind a block with the sequence hash parent.
func Next(parent, local uint64) uint64 { return chain.pair(parent, local) }
