package responses

import (
	"container/list"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/internal/server/reply"
)

// StoreOptions bound a Store. Only MaxCount has no default: 0 keeps nothing.
type StoreOptions struct {
	MaxCount int           // responses kept
	MaxBytes int64         // of all of them together; 0: 64 MiB
	TTL      time.Duration // since a response was last used; 0: 1 h
	MaxTalk  int64         // bytes of what a request refers to, all together; 0: 45 MiB

	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	Now        func() time.Time      // nil: time.Now
}

// withDefaults fills in what was left open.
func (o StoreOptions) withDefaults() StoreOptions {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 64 << 20
	}
	if o.TTL <= 0 {
		o.TTL = time.Hour
	}
	if o.MaxTalk <= 0 {
		o.MaxTalk = 45 << 20
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Store keeps responses in memory. The least recently used go first when there are too many; what nobody has asked for
// longest goes first by age, too. A response belongs to an owner, and nobody else finds it. Safe for concurrent use.
type Store struct {
	opts   StoreOptions
	stored prometheus.Gauge // responses
	memory prometheus.Gauge // bytes

	mu    sync.Mutex               // guards what follows
	byID  map[string]*list.Element // of order
	order *list.List               // of *record, least recently used first, and so in the order of their ends
	bytes int64                    // of all records, and of all links they lead to
}

// record is one response that is kept.
type record struct {
	id, owner string
	kept      reply.Kept // the response, but for its output, which the link has
	link      *link
	until     time.Time
}

// link is one turn of a conversation, and what came before it. It is never changed but for its count.
type link struct {
	before *link  // nil: nothing
	input  []byte // JSON array of items
	output []byte // likewise
	refs   int    // records and links that lead here; guarded by the store's lock. At 0 it isn't counted
}

// overhead is what a record and its link cost beside their texts, in bytes.
const overhead = 512

// NewStore returns an empty Store. It starts nothing: what has grown too old is dropped at the next use.
func NewStore(opts StoreOptions) *Store {
	s := &Store{
		opts:  opts.withDefaults(),
		byID:  map[string]*list.Element{},
		order: list.New(),
		stored: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "dynamo_frontend", Name: "stored_responses",
			Help: "Number of responses kept in memory for later requests"}),
		memory: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "dynamo_frontend", Name: "stored_responses_bytes",
			Help: "Memory taken by the responses kept"}),
	}
	if opts.Registerer != nil {
		opts.Registerer.MustRegister(s.stored, s.memory)
	}
	return s
}

// Keeps reports whether anything is kept at all.
func (s *Store) Keeps() bool { return s.opts.MaxCount > 0 }

// put keeps a response. One that is larger than all the room there is isn't kept. What kept and link hold is the
// store's from here on.
func (s *Store) put(id, owner string, kept reply.Kept, link *link) {
	if !s.Keeps() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	r := &record{id: id, owner: owner, kept: kept, link: link, until: s.opts.Now().Add(s.opts.TTL)}
	s.byID[id] = s.order.PushBack(r)
	s.bytes += r.size()
	s.hold(link)
	for s.order.Len() > s.opts.MaxCount || s.bytes > s.opts.MaxBytes {
		s.drop(s.order.Front())
	}
	s.tell()
}

// get finds a response of owner's. Using it keeps it.
func (s *Store) get(id, owner string) (*record, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	defer s.tell()
	e, ok := s.byID[id]
	if !ok || e.Value.(*record).owner != owner {
		return nil, false
	}
	r := e.Value.(*record)
	r.until = s.opts.Now().Add(s.opts.TTL)
	s.order.MoveToBack(e)
	return r, true
}

// Get returns a response, without its output. Nobody changes it.
func (s *Store) Get(id, owner string) (*reply.Kept, bool) {
	r, ok := s.get(id, owner)
	if !ok {
		return nil, false
	}
	return &r.kept, true
}

// Delete forgets a response, and reports whether there was one. Conversations that go on from it keep what was said.
func (s *Store) Delete(id, owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	defer s.tell()
	e, ok := s.byID[id]
	if !ok || e.Value.(*record).owner != owner {
		return false
	}
	s.drop(e)
	return true
}

// expire drops what has grown too old.
func (s *Store) expire() {
	now := s.opts.Now()
	for e := s.order.Front(); e != nil && !now.Before(e.Value.(*record).until); e = s.order.Front() {
		s.drop(e)
	}
}

// drop forgets one record.
func (s *Store) drop(e *list.Element) {
	r := s.order.Remove(e).(*record)
	delete(s.byID, r.id)
	s.bytes -= r.size()
	s.release(r.link)
}

// hold counts one more that leads to l. A link that nobody led to any more counts again, with those before it.
func (s *Store) hold(l *link) {
	for ; l != nil; l = l.before {
		if l.refs++; l.refs > 1 {
			return
		}
		s.bytes += l.size()
	}
}

// release counts one less.
func (s *Store) release(l *link) {
	for ; l != nil; l = l.before {
		if l.refs--; l.refs > 0 {
			return
		}
		s.bytes -= l.size()
	}
}

// size is what a record costs, without its link.
func (r *record) size() int64 { return int64(len(r.kept.Body)+len(r.kept.Cuts)) + overhead }

// size is what a link costs.
func (l *link) size() int64 { return int64(len(l.input)+len(l.output)) + overhead }

// tell sets the gauges.
func (s *Store) tell() {
	s.stored.Set(float64(s.order.Len()))
	s.memory.Set(float64(s.bytes))
}
