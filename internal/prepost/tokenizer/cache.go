package tokenizer

import (
	"container/list"
	"context"
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/internal/prepost"
)

// CacheOptions are what Caches are made from. The zero value works.
type CacheOptions struct {
	Bytes      int64                 // memory for each tokenizer; 0: 8 MiB
	Block      int                   // a block has at least so many bytes; 0: 512
	Strip      int                   // the ids of texts of so many tokens are kept in one piece, too; 0: 4096
	Registerer prometheus.Registerer // nil: counted, not registered
}

// withDefaults fills in what is empty.
func (o CacheOptions) withDefaults() CacheOptions {
	if o.Bytes <= 0 {
		o.Bytes = 8 << 20
	}
	if o.Block <= 0 {
		o.Block = 512
	}
	if o.Strip <= 0 {
		o.Strip = 4096
	}
	return o
}

// Caches makes a cache for each tokenizer and counts for all of them. Safe for concurrent use.
type Caches struct {
	opts         CacheOptions
	hits, misses prometheus.Counter
	known, fresh *prometheus.CounterVec // tokens, by model
	bytes        prometheus.Gauge

	mu   sync.Mutex
	live map[string]int // caches by model, whose series end with the last. Guarded by mu
}

// NewCaches returns Caches. It starts nothing.
func NewCaches(o CacheOptions) *Caches {
	o = o.withDefaults()
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "dynamo_frontend", Name: name, Help: help}
	}
	c := &Caches{
		opts:   o,
		live:   map[string]int{},
		hits:   prometheus.NewCounter(counter("tokenizer_cache_hits_total", "Texts some of whose tokens were known")),
		misses: prometheus.NewCounter(counter("tokenizer_cache_misses_total", "Texts none of whose tokens were known")),
		known: prometheus.NewCounterVec(counter("tokenizer_cache_cached_tokens_total",
			"Tokens of these texts that were known"), []string{"model"}),
		fresh: prometheus.NewCounterVec(counter("tokenizer_cache_uncached_tokens_total",
			"Tokens of these texts that were encoded"), []string{"model"}),
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "dynamo_frontend", Name: "tokenizer_cache_bytes",
			Help: "Memory of texts and their tokens, over all models"}),
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(c.hits, c.misses, c.known, c.fresh, c.bytes)
	}
	return c
}

// cache remembers the ids of blocks of text (see cuts), whatever text they are part of: a conversation that has grown by
// a message differs from the one before in its last blocks only. What is found is compared byte by byte, so an answer is
// never another text's. Of long texts it has strips as well, so that their ids needn't be put together each time. What
// hasn't been used for long goes first.
type cache struct {
	all          *Caches
	cuts         *cuts
	model        string
	seed         maphash.Seed
	known, fresh prometheus.Counter

	mu     sync.Mutex
	closed bool
	last   uint64                   // number of the block that was added last
	blocks map[uint64]*list.Element // of *block, by hash
	texts  shelf                    // of *block
	strips shelf                    // of *strip
}

// newCache returns a cache for a tokenizer whose texts are cut at c.
func (s *Caches) newCache(c *cuts, model string) *cache {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[model]++
	strips := s.opts.Bytes / 4
	return &cache{all: s, cuts: c, model: model, seed: maphash.MakeSeed(),
		known: s.known.WithLabelValues(model), fresh: s.fresh.WithLabelValues(model),
		blocks: map[uint64]*list.Element{}, texts: shelf{room: s.opts.Bytes - strips}, strips: shelf{room: strips}}
}

// left ends a model's series with its last cache: names of models come and go without end.
func (s *Caches) left(model string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[model]--; s.live[model] == 0 {
		delete(s.live, model)
		s.known.DeleteLabelValues(model)
		s.fresh.DeleteLabelValues(model)
	}
}

// piece is a block of a text.
type piece struct {
	text  string
	hash  uint64
	known *block // nil: to be encoded
}

// pieceLists are reused: a long text has some hundred pieces.
var pieceLists = sync.Pool{New: func() any { return new([]piece) }}

// encode returns the ids of text, those of blocks that are known without asking encode, which is called once at most: for
// what lies between the first and the last block that aren't. The ids of long texts may be shared with other callers.
func (k *cache) encode(
	ctx context.Context, text string, encode func(context.Context, string, bool) ([]prepost.TokenID, error),
) ([]prepost.TokenID, error) {
	// A text of one block is as soon encoded as looked up.
	if len(text) < 2*k.all.opts.Block {
		return encode(ctx, text, false)
	}
	list := pieceLists.Get().(*[]piece)
	pieces := k.cut((*list)[:0], text)
	defer func() {
		clear(pieces) // the text is its request's
		*list = pieces
		pieceLists.Put(list)
	}()
	if len(pieces) < 2 {
		return encode(ctx, text, false)
	}
	from, to, total := unknown(pieces)
	if from == to {
		k.count(total, 0)
		return k.together(pieces, nil, from, to, total), nil
	}
	// Adjacent blocks are adjacent in the text, so that a run of them is one piece of it.
	run := text[length(pieces[:from]) : len(text)-length(pieces[to:])]
	ids, err := encode(ctx, run, false)
	if err != nil {
		return nil, err
	}
	k.count(total, len(ids))
	k.split(pieces[from:to], run, ids)
	k.keep(pieces, from, to)
	return k.together(pieces, ids, from, to, total), nil
}

// cut cuts a text into blocks and looks them up. A block ends at the first place that is far enough from its beginning,
// so that texts with a common beginning have common blocks.
func (k *cache) cut(pieces []piece, text string) []piece {
	var before *block
	for begin := 0; begin < len(text); {
		p, ok := k.follow(before, text[begin:])
		if !ok {
			end := len(text)
			if next, ok := k.cuts.next(text, begin+k.all.opts.Block); ok {
				end = next.at
			}
			p = k.find(before, text[begin:end])
		}
		pieces = append(pieces, p)
		before, begin = p.known, begin+len(p.text)
	}
	return pieces
}

// follow returns the block that text begins with, if it is the one that came behind before last time, and the text can be
// cut where it ends.
func (k *cache) follow(before *block, text string) (piece, bool) {
	if before == nil {
		return piece{}, false
	}
	b := before.next.Load()
	if b == nil || !strings.HasPrefix(text, b.text) {
		return piece{}, false
	}
	if rest := text[len(b.text):]; rest != "" {
		// Mostly by the token that stood here last time.
		if next := b.next.Load(); next == nil || !strings.HasPrefix(rest, next.text[:next.token]) {
			if _, n := k.cuts.match(rest); n == 0 {
				return piece{}, false
			}
		}
	}
	b.touch()
	return piece{b.text, b.hash, b}, true
}

// unknown returns the blocks to encode, those from and up to but not including to, and the number of the other ids.
func unknown(pieces []piece) (from, to, total int) {
	from = len(pieces)
	for i := range pieces {
		if pieces[i].known == nil {
			from, to = min(from, i), i+1
		}
	}
	to = max(from, to)
	for i := range pieces {
		if i < from || i >= to {
			total += len(pieces[i].known.ids)
		}
	}
	return from, to, total
}

// length is how many bytes the pieces have.
func length(pieces []piece) (n int) {
	for i := range pieces {
		n += len(pieces[i].text)
	}
	return n
}

// together returns the ids of all the blocks, of which those between from and to are ids.
func (k *cache) together(pieces []piece, ids []prepost.TokenID, from, to, total int) []prepost.TokenID {
	all := from == 0 && to == len(pieces)
	if size := total + len(ids); size >= k.all.opts.Strip {
		switch {
		case to == len(pieces) && from > 0:
			return k.lengthen(pieces, from, ids, size)
		case !all:
			ids = join(pieces, ids, from, to, size+size/8)
		}
		k.strip(pieces, ids, nil)
		return slices.Clip(ids)
	}
	if all {
		return ids
	}
	return join(pieces, ids, from, to, total+len(ids))
}

// join puts the ids of the blocks together, in a slice of its own that has room for so many.
func join(pieces []piece, ids []prepost.TokenID, from, to, room int) []prepost.TokenID {
	out := make([]prepost.TokenID, 0, room)
	for i := range pieces[:from] {
		out = append(out, pieces[i].known.ids...)
	}
	out = append(out, ids...)
	for i := range pieces[to:] {
		out = append(out, pieces[to+i].known.ids...)
	}
	return out
}

// count counts a text with so many known and fresh tokens.
func (k *cache) count(known, fresh int) {
	if known > 0 {
		k.all.hits.Inc()
	} else {
		k.all.misses.Inc()
	}
	k.known.Add(float64(known))
	k.fresh.Add(float64(fresh))
}

// split makes blocks of a run that was encoded as one. Their ids are told apart by the tokens they begin with, provided
// that these stand in the ids as often as in the text: a vocabulary in which other text has the same id is left alone.
func (k *cache) split(pieces []piece, run string, ids []prepost.TokenID) {
	places := k.cuts.find(run)
	if !sameCount(places, ids) {
		return
	}
	at := 0 // of the end of the block, in the run
	for i := range pieces {
		p := &pieces[i]
		at += len(p.text)
		end := 0 // of its ids
		for len(places) > 0 && places[0].at <= at {
			n := slices.Index(ids[end:], places[0].id)
			if n < 0 { // impossible with equal counts, but for tokens that change places
				return
			}
			if end += n; places[0].at == at { // the next block's
				break
			}
			end++
			places = places[1:]
		}
		if i+1 == len(pieces) {
			end = len(ids)
		}
		if p.known == nil {
			_, token := k.cuts.match(p.text)
			p.known = &block{hash: p.hash, text: strings.Clone(p.text), token: token, ids: slices.Clone(ids[:end])}
		}
		ids = ids[end:]
	}
}

// sameCount reports whether each token stands in ids as often as in places. Few different ones do in any text.
func sameCount(places []place, ids []prepost.TokenID) bool {
	var counted [16]prepost.TokenID
	n := 0
	for i, p := range places {
		if slices.Contains(counted[:n], p.id) {
			continue
		}
		if n == len(counted) { // a text of nothing but tokens isn't worth it
			return false
		}
		counted[n] = p.id
		n++
		want := 0
		for _, q := range places[i:] {
			if q.id == p.id {
				want++
			}
		}
		for _, id := range ids {
			if id == p.id {
				want--
			}
		}
		if want != 0 {
			return false
		}
	}
	return true
}
