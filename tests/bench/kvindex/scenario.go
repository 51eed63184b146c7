package main

import (
	"slices"

	"github.com/portico-llm/portico/internal/router/kvhash"
	"github.com/portico-llm/portico/internal/router/kvindex"
)

const (
	length    = 2048 // blocks of a sequence, and of a query
	workers   = 64
	sequences = 512
	shared    = 8   // sequences of population R, and families of U and T
	prefix    = 100 // blocks that a family shares
	tails     = 5000
	tailLen   = 3

	rounds1  = 400 // of stored events of one block
	rounds16 = 20  // and of sixteen
)

// mix is splitmix64.
func mix(x uint64) uint64 {
	z := x + 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

func localHash(kind, id, i uint64) uint64 { return mix(kind<<56 | id<<24 | i) }

// The populations. U: 512 sequences, each held by one worker, that share the first 100 blocks in 8 families. R: 8
// sequences, each held by all 64 workers. T: every worker holds the 8 prefixes and 5000 tails of 3 blocks behind them.
const (
	popU = 'U'
	popR = 'R'
	popT = 'T'
)

func sequence(pop rune, s uint64, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		switch {
		case pop == popR:
			out[i] = localHash(3, s, uint64(i))
		case i < prefix:
			out[i] = localHash(1, s%shared, uint64(i))
		default:
			out[i] = localHash(2, s, uint64(i))
		}
	}
	return out
}

func tail(w, k uint64) []uint64 {
	out := sequence(popU, k, prefix)
	for j := range uint64(tailLen) {
		out = append(out, localHash(4, w*8192+k, j))
	}
	return out
}

// event is one event of a worker; remove is nil when it is a stored one. It holds what it says, as the crate's do.
type event struct {
	worker kvindex.Worker
	begins bool // without a parent
	parent uint64
	blocks []kvindex.Block
	remove []uint64
}

func stored(worker uint64, local, name []uint64, from, to int) event {
	e := event{worker: kvindex.Worker{ID: worker}, begins: from == 0, blocks: make([]kvindex.Block, 0, to-from)}
	if from > 0 {
		e.parent = name[from-1]
	}
	for i := from; i < to; i++ {
		e.blocks = append(e.blocks, kvindex.Block{Hash: name[i], Local: local[i]})
	}
	return e
}

func removed(worker uint64, name []uint64, from, to int) event {
	r := slices.Clone(name[from:to])
	slices.Reverse(r)
	return event{worker: kvindex.Worker{ID: worker}, remove: r}
}

func holder(s int) uint64 { return uint64(s)/shared + 1 }

// all returns the sequences of population U or R with n blocks, and how engines name their blocks.
func all(pop rune, n int) (local, name [][]uint64) {
	count := sequences
	if pop == popR {
		count = shared
	}
	for s := range count {
		local = append(local, sequence(pop, uint64(s), n))
		name = append(name, kvhash.Sequence(nil, local[s]))
	}
	return local, name
}

// populate calls f with the stored events of a population.
func populate(pop rune, f func(event)) {
	if pop == popT {
		for w := uint64(1); w <= workers; w++ {
			for k := range uint64(shared) {
				l := sequence(popU, k, prefix)
				f(stored(w, l, kvhash.Sequence(nil, l), 0, prefix))
			}
		}
		for k := range uint64(tails) {
			for w := uint64(1); w <= workers; w++ {
				l := tail(w, k)
				f(stored(w, l, kvhash.Sequence(nil, l), prefix, prefix+tailLen))
			}
		}
		return
	}
	local, name := all(pop, length)
	for from := 0; from < length; from += 64 {
		for s := range local {
			if pop == popU {
				f(stored(holder(s), local[s], name[s], from, from+64))
				continue
			}
			for w := uint64(1); w <= workers; w++ {
				f(stored(w, local[s], name[s], from, from+64))
			}
		}
	}
}

// phase is a number of events of the same kind.
type phase struct {
	name     string
	generate func(f func(event))
}

// phases are applied in this order to one index.
func phases() []phase {
	local, name := all(popU, length+rounds1+rounds16*16)
	each := func(rounds []int, step, base int, f func(s, from int)) {
		for _, k := range rounds {
			for s := range local {
				f(s, base+k*step)
			}
		}
	}
	up := func(n int) (out []int) {
		for k := range n {
			out = append(out, k)
		}
		return out
	}
	down := func(n int) []int {
		out := up(n)
		slices.Reverse(out)
		return out
	}
	add := func(f func(event), n int) func(s, from int) {
		return func(s, from int) { f(stored(holder(s), local[s], name[s], from, from+n)) }
	}
	take := func(f func(event), n int) func(s, from int) {
		return func(s, from int) { f(removed(holder(s), name[s], from, from+n)) }
	}
	return []phase{
		{"stored64", func(f func(event)) { populate(popU, f) }},
		{"stored1", func(f func(event)) { each(up(rounds1), 1, length, add(f, 1)) }},
		{"stored16", func(f func(event)) { each(up(rounds16), 16, length+rounds1, add(f, 16)) }},
		{"removed16", func(f func(event)) { each(down(rounds16), 16, length+rounds1, take(f, 16)) }},
		{"removed1", func(f func(event)) { each(down(rounds1), 1, length, take(f, 1)) }},
		{"dup64", func(f func(event)) { populate(popU, f) }},
		{"removed64", func(f func(event)) { each(down(length/64), 64, 0, take(f, 64)) }},
	}
}

// queries are the prompts asked for at a depth: that many blocks are of a sequence held, the rest is of nobody's. They
// lie one behind the other with a little in between, as the crate's allocator puts its own: the first blocks of prompts
// at distances of a power of two would fall into few places of each cache and drive one another out.
func queries(pop rune, depth int) [][]uint64 {
	const between = 2
	out := make([][]uint64, 1000)
	room := make([]uint64, 0, len(out)*(length+between))
	for k := range out {
		id := uint64(k)
		var q []uint64
		switch pop {
		case popT:
			q = append(tail(1+mix(id)%workers, mix(id+7)%tails), make([]uint64, length-prefix-tailLen)...)
		case popR:
			q = sequence(pop, mix(id^0xABCD)%shared, length)
		default:
			q = sequence(pop, mix(id^0xABCD)%sequences, length)
		}
		for i := depth; i < length; i++ {
			q[i] = localHash(9, id, uint64(i))
		}
		from := len(room)
		room = append(room, q...)
		out[k] = room[from:len(room):len(room)]
		room = append(room, make([]uint64, between)...)
	}
	return out
}
