package kvhash

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/zeebo/xxh3"
)

// secret is XXH3's default secret as little-endian words.
var secret = [24]uint64{
	0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
	0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
	0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
	0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
	0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
	0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
}

const (
	prime32x1 = 0x9E3779B1
	prime32x2 = 0x85EBCA77
	prime32x3 = 0xC2B2AE3D
	prime64x1 = 0x9E3779B185EBCA87
	prime64x2 = 0xC2B2AE3D27D4EB4F
	prime64x3 = 0x165667B19E3779F9
	prime64x4 = 0x85EBCA77C2B2AE63
	prime64x5 = 0x27D4EB2F165667C5
)

// Hasher is XXH3-64 under one seed, with everything that depends on the seed alone worked out beforehand. The sizes of
// usual blocks (16, 64, 128 and 256 bytes) are written out; the rest goes through the library.
type Hasher struct {
	seed       uint64
	lo, hi     uint64     // keys of 16 bytes
	key        [24]uint64 // the secret under the seed
	last, fold [8]uint64  // keys of the last stripe and of the merge, which aren't aligned to words
}

// chain is the hasher of sequence hashes.
var chain = New(BaseSeed)

// New prepares the hasher of a seed. That costs about as much as hashing a few blocks: keep it for a whole prompt.
func New(seed uint64) Hasher {
	h := Hasher{seed: seed, lo: (secret[3] ^ secret[4]) + seed, hi: (secret[5] ^ secret[6]) - seed}
	var b [192]byte
	for i, s := range secret {
		if i%2 == 0 {
			s += seed
		} else {
			s -= seed
		}
		h.key[i] = s
		binary.LittleEndian.PutUint64(b[8*i:], s)
	}
	for i := range 8 {
		h.last[i] = binary.LittleEndian.Uint64(b[192-64-7+8*i:])
		h.fold[i] = binary.LittleEndian.Uint64(b[11+8*i:])
	}
	return h
}

// avalanche is the last step of XXH3.
func avalanche(h uint64) uint64 {
	h ^= h >> 37
	h *= 0x165667919E3779F9
	return h ^ h>>32
}

// fold multiplies to 128 bits and folds the halves.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// pair hashes two words.
func (h *Hasher) pair(a, b uint64) uint64 {
	a, b = a^h.lo, b^h.hi
	return avalanche(16 + bits.ReverseBytes64(a) + b + fold(a, b))
}

// hash64 hashes eight words.
func (h *Hasher) hash64(w *[8]uint64) uint64 {
	k := &h.key
	size := uint64(64)
	return avalanche(size*prime64x1 +
		fold(w[0]^k[0], w[1]^k[1]) + fold(w[6]^k[2], w[7]^k[3]) +
		fold(w[2]^k[4], w[3]^k[5]) + fold(w[4]^k[6], w[5]^k[7]))
}

// hash128 hashes sixteen words.
func (h *Hasher) hash128(w *[16]uint64) uint64 {
	k := &h.key
	size := uint64(128)
	return avalanche(size*prime64x1 +
		fold(w[0]^k[0], w[1]^k[1]) + fold(w[14]^k[2], w[15]^k[3]) +
		fold(w[2]^k[4], w[3]^k[5]) + fold(w[12]^k[6], w[13]^k[7]) +
		fold(w[4]^k[8], w[5]^k[9]) + fold(w[10]^k[10], w[11]^k[11]) +
		fold(w[6]^k[12], w[7]^k[13]) + fold(w[8]^k[14], w[9]^k[15]))
}

// lane multiplies the halves of a word under its key.
func lane(w, key uint64) uint64 {
	w ^= key
	return (w & 0xFFFFFFFF) * (w >> 32)
}

// hash256 hashes thirty-two words: four stripes of eight lanes. Each lane adds up its own products and its neighbour's
// words, so the lanes are taken in pairs and stay in registers.
func (h *Hasher) hash256(w *[32]uint64) uint64 {
	k := &h.key
	size := uint64(256)
	sum := size * prime64x1
	for i := 0; i < 8; i += 2 {
		a, b := start[i], start[i+1]
		a0, a1, a2, a3 := w[i], w[8+i], w[16+i], w[24+i]
		b0, b1, b2, b3 := w[i+1], w[9+i], w[17+i], w[25+i]
		a += b0 + b1 + b2 + b3 + lane(a0, k[i]) + lane(a1, k[i+1]) + lane(a2, k[i+2]) + lane(a3, h.last[i])
		b += a0 + a1 + a2 + a3 + lane(b0, k[i+1]) + lane(b1, k[i+2]) + lane(b2, k[i+3]) + lane(b3, h.last[i+1])
		sum += fold(a^h.fold[i], b^h.fold[i+1])
	}
	return avalanche(sum)
}

// start are the lanes before the first stripe.
var start = [8]uint64{prime32x3, prime64x1, prime64x2, prime64x3, prime64x4, prime32x2, prime64x5, prime32x1}

// bytes hashes tokens followed by words, all of them little-endian. They are laid out in room, if it is large enough.
func (h *Hasher) bytes(room []byte, t []uint32, words []uint64) uint64 {
	b := slices.Grow(room[:0], 4*len(t)+8*len(words))
	for _, v := range t {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for _, v := range words {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return xxh3.HashSeed(b, h.seed)
}
