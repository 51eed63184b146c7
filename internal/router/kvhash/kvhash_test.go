package kvhash_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"

	"github.com/portico-llm/portico/internal/router/kvhash"
	"github.com/portico-llm/portico/internal/testkit"
)

// u64 is a number that the vectors write as a decimal string.
type u64 uint64

func (u *u64) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseUint(string(b[1:len(b)-1]), 10, 64)
	*u = u64(v)
	return err
}

func plain(v []u64) []uint64 {
	out := make([]uint64, len(v))
	for i, x := range v {
		out[i] = uint64(x)
	}
	return out
}

type blockVector struct {
	ID         int
	Tokens     []uint32
	Lora, Salt string
	Media      []struct {
		Hash    u64 `json:"mm_hash"`
		Offsets [][2]int
	} `json:"mm_objects"`
	Variants []struct {
		BlockSize  int `json:"block_size"`
		Case       string
		Local, Seq []u64
		Media      [][]u64 `json:"block_mm_hashes"`
	}
}

// names returns the adapter and the salt of a case.
func (v *blockVector) names(name string) (adapter, salt string) {
	switch name {
	case "lora":
		return v.Lora, ""
	case "salt":
		return "", v.Salt
	case "lora+salt", "lora+salt+mm":
		return v.Lora, v.Salt
	}
	return "", ""
}

func TestBlockVectors(t *testing.T) {
	cases := 0
	for v := range testkit.Records[blockVector](t, "../../../tests/golden/kv/block_hashes.jsonl.gz") {
		var media []kvhash.Medium
		for _, m := range v.Media {
			media = append(media, kvhash.Medium{Hash: uint64(m.Hash), Ranges: m.Offsets})
		}
		for _, c := range v.Variants {
			cases++
			l := kvhash.Layout{BlockSize: c.BlockSize, Eagle: c.Case == "eagle"}
			if c.Media != nil {
				l.Media = kvhash.ByBlock(media, c.BlockSize, l.Count(len(v.Tokens)))
				for i, want := range c.Media[:min(len(c.Media), len(l.Media))] { // they list the partial block too
					if d := cmp.Diff(slices.Sorted(slices.Values(plain(want))), slices.Sorted(slices.Values(l.Media[i]))); len(want) > 0 && d != "" {
						t.Errorf("%d %d %s: media of block %d: %s", v.ID, c.BlockSize, c.Case, i, d)
					}
				}
			}
			h := kvhash.New(kvhash.Seed(v.names(c.Case)))
			local, err := h.Local(nil, v.Tokens, l)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(plain(c.Local), local) {
				t.Errorf("%d %d %s: local hashes differ", v.ID, c.BlockSize, c.Case)
			}
			if !slices.Equal(plain(c.Seq), kvhash.Sequence(nil, local)) {
				t.Errorf("%d %d %s: sequence hashes differ", v.ID, c.BlockSize, c.Case)
			}
			room := []uint64{7}
			local, sequence, err := h.Both(room, slices.Clone(room), v.Tokens, l)
			if err != nil || !slices.Equal(append(room, plain(c.Local)...), local) || !slices.Equal(append(room, plain(c.Seq)...), sequence) {
				t.Errorf("%d %d %s: hashes of both kinds differ; %v", v.ID, c.BlockSize, c.Case, err)
			}
		}
	}
	if cases != 4000 {
		t.Errorf("%d cases, not 4000", cases)
	}
}

type miscVector struct {
	Kind       string
	Lora, Salt string

	Seed u64 // seed

	ID   string // mm_identifier
	Hash *u64
	Pad  *uint32 `json:"pad_value"`

	BlockSize  int `json:"block_size"` // universal
	Tokens     []uint32
	Block, Seq []u64
	Lineage    []string `json:"plh"`
	Runs       []struct {
		Offset, Length int
		Hash           u64 `json:"mm_hash"`
	} `json:"mm_runs"`
}

func TestMiscVectors(t *testing.T) {
	kinds := make(map[string]int)
	for v := range testkit.Records[miscVector](t, "../../../tests/golden/kv/misc_hashes.jsonl.gz") {
		kinds[v.Kind]++
		switch v.Kind {
		case "seed":
			if got := kvhash.Seed(v.Lora, v.Salt); got != uint64(v.Seed) {
				t.Errorf("Seed(%q, %q) = %d, want %d", v.Lora, v.Salt, got, v.Seed)
			}
		case "mm_identifier":
			got, ok := kvhash.MediaHash(v.ID)
			if ok != (v.Hash != nil) || ok && (got != uint64(*v.Hash) || kvhash.PadToken(got) != *v.Pad) {
				t.Errorf("MediaHash(%q) = %d, %t; pad token %d", v.ID, got, ok, kvhash.PadToken(got))
			}
		case "universal":
			checkUniversal(t, v)
		}
	}
	if d := cmp.Diff(map[string]int{"seed": 8, "mm_identifier": 32, "universal": 60}, kinds); d != "" {
		t.Error(d)
	}
}

func checkUniversal(t *testing.T, v *miscVector) {
	t.Helper()
	var runs []kvhash.Run
	for _, r := range v.Runs {
		runs = append(runs, kvhash.Run{Offset: r.Offset, Length: r.Length, Hash: uint64(r.Hash)})
	}
	got, err := kvhash.UniversalBlocks(nil, v.Tokens, runs, v.BlockSize, v.Lora, v.Salt)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(v.Block) {
		t.Fatalf("%d blocks, want %d", len(got), len(v.Block))
	}
	for i, u := range got {
		n := new(big.Int).SetUint64(u.Lineage.Hi)
		n.Lsh(n, 64).Or(n, new(big.Int).SetUint64(u.Lineage.Lo))
		want := fmt.Sprintf("%d %d %s", v.Block[i], v.Seq[i], v.Lineage[i])
		if g := fmt.Sprintf("%d %d %s", u.Block, u.Sequence, n); g != want {
			t.Errorf("block size %d, block %d: %s, want %s", v.BlockSize, i, g, want)
		}
	}
}

// TestFastPathsAgree compares every size with the library, at odd offsets too.
func TestFastPathsAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	tokens := make([]uint32, 1000)
	for i := range tokens {
		tokens[i] = r.Uint32()
	}
	for size := 1; size <= 260; size++ {
		for range 5 {
			seed, off := r.Uint64(), r.IntN(4)
			h := kvhash.New(seed)
			got, err := h.Local(nil, tokens[off:off+size], kvhash.Layout{BlockSize: size})
			if err != nil {
				t.Fatal(err)
			}
			var b []byte
			for _, v := range tokens[off : off+size] {
				b = append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
			}
			if d := cmp.Diff([]uint64{xxh3.HashSeed(b, seed)}, got); d != "" {
				t.Errorf("block size %d, seed %d: %s", size, seed, d)
			}
		}
	}
}

func TestLayoutEdges(t *testing.T) {
	for _, c := range []struct {
		l       kvhash.Layout
		n, want int
	}{
		{kvhash.Layout{BlockSize: 16}, 0, 0},
		{kvhash.Layout{BlockSize: 16}, 15, 0},
		{kvhash.Layout{BlockSize: 16}, 33, 2},
		{kvhash.Layout{BlockSize: 16, Eagle: true}, 32, 1},
		{kvhash.Layout{BlockSize: 16, Eagle: true}, 33, 2},
		{kvhash.Layout{}, 10, 0},
	} {
		if got := c.l.Count(c.n); got != c.want {
			t.Errorf("%+v of %d tokens: %d blocks, want %d", c.l, c.n, got, c.want)
		}
	}
	h := kvhash.New(1)
	if _, err := h.Local(nil, []uint32{1}, kvhash.Layout{}); err == nil {
		t.Error("no error for block size 0")
	}
	if _, err := kvhash.UniversalBlocks(nil, nil, nil, 0, "", ""); err == nil {
		t.Error("no error for block size 0")
	}
	if got := kvhash.ByBlock([]kvhash.Medium{{Hash: 1, Ranges: [][2]int{{-1, 3}, {5, 5}, {30, 1000}}}}, 16, 3); len(got[0]) != 0 || len(got[1]) != 1 || len(got[2]) != 1 {
		t.Errorf("ranges that can't be must not count: %v", got)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	tokens := make([]uint32, 4096)
	local, seq := make([]uint64, 0, 4096), make([]uint64, 0, 4096)
	media := make([][]uint64, 8)
	for i := range media {
		media[i] = []uint64{3, 2, 1}
	}
	for _, l := range []kvhash.Layout{
		{BlockSize: 16}, {BlockSize: 32}, {BlockSize: 64}, {BlockSize: 128}, {BlockSize: 10},
		{BlockSize: 16, Eagle: true}, {BlockSize: 16, Media: media},
	} {
		n := testing.AllocsPerRun(10, func() {
			h := kvhash.New(7)
			out, err := h.Local(local, tokens, l)
			if err != nil {
				t.Fatal(err)
			}
			seq = kvhash.Sequence(seq[:0], out)
		})
		if n != 0 {
			t.Errorf("%+v: %v allocations", l, n)
		}
	}
}

func BenchmarkLocal(b *testing.B) {
	tokens := make([]uint32, 32768)
	for i := range tokens {
		tokens[i] = uint32(i*7919) % 151936
	}
	h := kvhash.New(kvhash.BaseSeed)
	dst := make([]uint64, 0, len(tokens))
	for _, size := range []int{4, 16, 32, 64} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				dst, _ = h.Local(dst[:0], tokens, kvhash.Layout{BlockSize: size})
			}
		})
	}
	b.Run("chain16", func(b *testing.B) {
		local, _ := h.Local(nil, tokens, kvhash.Layout{BlockSize: 16})
		for b.Loop() {
			dst = kvhash.Sequence(dst[:0], local)
		}
	})
}
