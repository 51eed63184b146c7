package kvhash

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Lineage identifies a block by content, place and parent in 128 bits: a mode of two bits, the position, the whole
// sequence hash, and the low bits of the parent's.
type Lineage struct{ Hi, Lo uint64 }

// maxLineage is the first position that Lineage can't hold.
const maxLineage = 1 << 24

// Universal is one block in the hashing of Dynamo's block manager. It differs from the router's where there are media: a
// placeholder counts by its medium and by its offset there.
type Universal struct {
	Block, Sequence uint64
	Lineage         Lineage
}

// Run is a run of placeholder tokens that stand for one medium.
type Run struct {
	Offset, Length int
	Hash           uint64
}

// UniversalBlocks appends the universal hashes of a prompt's complete blocks to dst. Runs are in ascending order and
// don't overlap. Positions that a Lineage can't hold leave it zero.
func UniversalBlocks(dst []Universal, tokens []uint32, runs []Run, blockSize int, adapter, salt string) ([]Universal, error) {
	if blockSize <= 0 {
		return dst, ErrBlockSize
	}
	h := New(Seed(adapter, salt))
	var buf [room]byte
	var parent uint64
	for i := range len(tokens) / blockSize {
		from := i * blockSize
		for len(runs) > 0 && runs[0].Offset+runs[0].Length <= from {
			runs = runs[1:]
		}
		t, u := tokens[from:from+blockSize], Universal{}
		if len(runs) > 0 && runs[0].Offset < from+blockSize {
			u.Block = xxh3.HashSeed(slots(t, from, runs), h.seed)
		} else {
			u.Block = h.block(buf[:], t, nil)
		}
		u.Sequence = u.Block
		if i > 0 {
			u.Sequence = Next(parent, u.Block)
		}
		u.Lineage = lineage(u.Sequence, parent, i)
		dst, parent = append(dst, u), u.Sequence
	}
	return dst, nil
}

// slots encodes a block with placeholders: 13 bytes for each token, tagged by what it is.
func slots(t []uint32, from int, runs []Run) []byte {
	b := make([]byte, 0, 13*len(t))
	for i, id := range t {
		at := from + i
		for len(runs) > 0 && runs[0].Offset+runs[0].Length <= at {
			runs = runs[1:]
		}
		if len(runs) > 0 && runs[0].Offset <= at {
			b = append(b, 1)
			b = binary.LittleEndian.AppendUint32(b, uint32(at-runs[0].Offset))
			b = binary.LittleEndian.AppendUint64(b, runs[0].Hash)
			continue
		}
		b = append(b, 0)
		b = binary.LittleEndian.AppendUint32(b, id)
		b = binary.LittleEndian.AppendUint64(b, 0)
	}
	return b
}

// lineage packs mode, position, sequence hash and as much of the parent's as fits.
func lineage(sequence, parent uint64, position int) Lineage {
	mode, width := uint64(0), 8
	switch {
	case position >= maxLineage:
		return Lineage{}
	case position >= 1<<16:
		mode, width = 2, 24
	case position >= 1<<8:
		mode, width = 1, 16
	}
	rest := 62 - width // bits of the parent; the sequence hash lies above them
	return Lineage{
		Hi: mode<<62 | uint64(position)<<rest | sequence>>(64-rest),
		Lo: sequence<<rest | parent&(1<<rest-1),
	}
}
