package kvroute_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/events"
	"github.com/portico-llm/portico/internal/router/kvroute"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var endpoint = worker.EndpointID{Namespace: "ns", Component: "c", Name: "generate"}

const blockSize = 4

// world is a Router and what it finds in discovery.
type world struct {
	t       testing.TB
	r       *kvroute.Router
	cache   events.Handler
	version uint64

	mu      sync.Mutex
	engines map[uint64]*engine // by publisher
	live    []*engine          // in discovery
	cards   map[uint64]*worker.Card
}

func newWorld(t testing.TB, opts kvroute.Options) *world {
	t.Helper()
	w := &world{t: t, engines: map[uint64]*engine{}, cards: map[uint64]*worker.Card{}}
	opts.Mode, opts.Dispatch = kvroute.Mode, w.dispatch
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.Settle, opts.Retry = time.Microsecond, time.Millisecond
	w.r = kvroute.New(opts)
	w.cache = w.r.Topics()[0].Handler
	g := lifecycle.New(context.Background())
	g.Go("router", w.r.Run)
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// publish makes the engines the ones that are in discovery.
func (w *world) publish(list ...*engine) {
	w.mu.Lock()
	slices.SortFunc(list, func(a, b *engine) int { return int(a.id) - int(b.id) })
	w.live = list
	w.version++
	snap := &router.Snapshot{Version: w.version, Instances: map[worker.EndpointID][]*worker.Instance{}}
	for _, e := range list {
		w.engines[e.publisher] = e
		snap.Instances[endpoint] = append(snap.Instances[endpoint], e.instance)
		card := w.cards[e.id]
		if card == nil {
			card = &worker.Card{DisplayName: "m", ModelInput: "Tokens", KVCacheBlockSize: blockSize}
		}
		snap.Models = append(snap.Models, &worker.ModelRecord{Namespace: endpoint.Namespace, Component: endpoint.Component,
			Endpoint: endpoint.Name, InstanceID: e.id, Card: *card})
		src := &worker.EventSource{Scope: e.channel().Scope, Topic: worker.TopicKVEvents, Publisher: e.publisher}
		src.Metadata.Worker.WorkerID = e.id
		if !e.mute {
			src.Metadata.Recovery = &worker.Instance{Namespace: endpoint.Namespace, Component: endpoint.Component,
				Endpoint: fmt.Sprintf("query_%x", e.publisher), InstanceID: e.id}
		}
		snap.Sources = append(snap.Sources, src)
	}
	w.mu.Unlock()
	w.r.Follow(snap)
}

// candidates are all workers in discovery.
func (w *world) candidates() (out []router.Candidate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.live {
		out = append(out, router.Candidate{Instance: e.instance})
	}
	return out
}

// dispatch answers recovery queries as the engines do.
func (w *world) dispatch(ctx context.Context, call *router.Call) (router.Stream, error) {
	body, err := call.Body(nil, worker.JSON, router.Target{})
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.engines {
		if call.Endpoint.Name == fmt.Sprintf("query_%x", e.publisher) {
			answer, err := e.answer(body)
			if err != nil {
				return nil, err
			}
			return &reply{ctx: ctx, raw: answer}, nil
		}
	}
	return nil, errors.New("nobody there")
}

// reply is the stream of an answer of one item.
type reply struct {
	ctx context.Context
	raw []byte
}

func (r *reply) Instance() *worker.Instance { return nil }
func (r *reply) Close() error               { return nil }
func (r *reply) Each(f func(it *worker.Item, more bool) error) error {
	if r.ctx.Err() != nil {
		return r.ctx.Err()
	}
	return f(&worker.Item{HasData: true, Raw: r.raw}, false)
}

// engine is a worker with a cache: paths of blocks, each under a name of its own.
type engine struct {
	id, publisher uint64
	instance      *worker.Instance
	mute          bool // nobody can be asked
	moody         bool // it may refuse to answer, in histories

	mu      sync.Mutex
	fail    int // so many queries fail
	window  int // so many of its last events it can tell again
	queries int
	log     []worker.KVEvent
	last    uint64
	told    uint64 // the last event that was delivered, or is part of an answer
	names   uint64
	nodes   map[uint64]*node // by name
	roots   map[uint64]uint64
}

type node struct {
	local, parent uint64
	kids          map[uint64]uint64 // local → name
}

func newEngine(id, publisher uint64) *engine {
	in := &worker.Instance{Namespace: endpoint.Namespace, Component: endpoint.Component, Endpoint: endpoint.Name, InstanceID: id}
	return &engine{id: id, publisher: publisher, instance: in, window: 8, nodes: map[uint64]*node{}, roots: map[uint64]uint64{}}
}

func (e *engine) channel() *worker.EventChannel {
	return &worker.EventChannel{Scope: worker.EndpointScope(endpoint), Topic: worker.TopicKVEvents, Publisher: e.publisher}
}

// emit notes an event and returns it.
func (e *engine) emit(ev worker.KVEvent) worker.KVEvent {
	e.last++
	ev.ID, ev.Worker = e.last, worker.WorkerRank{WorkerID: e.id}
	e.log = append(e.log, ev)
	return ev
}

// store puts a path into the cache and returns the events of what is new.
func (e *engine) store(path []uint64) (out []worker.KVEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ev := worker.KVEvent{Kind: worker.KVStored}
	kids, parent := e.roots, uint64(0)
	for _, local := range path {
		name, ok := kids[local]
		if !ok {
			e.names++
			name = e.id<<32 | e.names
			kids[local] = name
			e.nodes[name] = &node{local: local, parent: parent, kids: map[uint64]uint64{}}
			if len(ev.Blocks) == 0 {
				ev.HasParent, ev.Parent = parent != 0, parent
			}
			ev.Blocks = append(ev.Blocks, worker.KVBlock{Hash: name, Tokens: local})
		}
		kids, parent = e.nodes[name].kids, name
	}
	if len(ev.Blocks) > 0 {
		out = append(out, e.emit(ev))
	}
	return out
}

// evict drops a leaf.
func (e *engine) evict(pick func(n int) int) (out []worker.KVEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var leaves []uint64
	for _, name := range slices.Sorted(maps.Keys(e.nodes)) {
		if len(e.nodes[name].kids) == 0 {
			leaves = append(leaves, name)
		}
	}
	if len(leaves) == 0 {
		return nil
	}
	name := leaves[pick(len(leaves))]
	e.drop(name)
	return append(out, e.emit(worker.KVEvent{Kind: worker.KVRemoved, Hashes: []uint64{name}}))
}

// clear drops everything.
func (e *engine) clear() []worker.KVEvent {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.nodes)
	clear(e.roots)
	return []worker.KVEvent{e.emit(worker.KVEvent{Kind: worker.KVCleared})}
}

// reset drops everything, and counts events and names anew.
func (e *engine) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.nodes)
	clear(e.roots)
	e.log, e.last, e.told, e.names, e.fail = nil, 0, 0, 0, 0
}

// refuse lets so many queries fail.
func (e *engine) refuse(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail = n
}

// after returns what the cache held after an event, as the plain reading of all events up to there has it.
func (e *engine) after(event uint64) *engine {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := newEngine(e.id, e.publisher)
	for _, ev := range e.log[:event] {
		switch ev.Kind {
		case worker.KVStored:
			kids, parent := was.roots, ev.Parent
			if ev.HasParent {
				kids = was.nodes[parent].kids
			}
			for _, b := range ev.Blocks {
				was.nodes[b.Hash] = &node{local: b.Tokens, parent: parent, kids: map[uint64]uint64{}}
				kids[b.Tokens] = b.Hash
				kids, parent = was.nodes[b.Hash].kids, b.Hash
			}
		case worker.KVRemoved:
			was.drop(ev.Hashes[0])
		default:
			clear(was.nodes)
			clear(was.roots)
		}
	}
	return was
}

// drop removes a leaf.
func (e *engine) drop(name uint64) {
	n := e.nodes[name]
	delete(e.nodes, name)
	if n.parent != 0 {
		delete(e.nodes[n.parent].kids, n.local)
	} else {
		delete(e.roots, n.local)
	}
}

// holds counts the leading blocks of a path in the cache.
func (e *engine) holds(path []uint64) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	kids := e.roots
	for _, local := range path {
		name, ok := kids[local]
		if !ok {
			break
		}
		kids = e.nodes[name].kids
		n++
	}
	return n
}

// answer is what the engine says to a query: the events asked for as long as it has them, and otherwise all its cache.
func (e *engine) answer(query []byte) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queries++
	if e.fail > 0 {
		e.fail--
		return nil, errors.New("not now")
	}
	start := startOf(query)
	if start > e.last+1 {
		return fmt.Appendf(nil, `{"TooNew":{"requested_start":%d,"newest_available":%d}}`, start, e.last), nil
	}
	var list []worker.KVEvent
	e.told = e.last
	kind := "TreeDump"
	if oldest := max(0, len(e.log)-e.window); start > 0 && start > uint64(oldest) {
		kind, list = "Events", e.log[start-1:]
	} else {
		list = e.dump(e.roots, 0, nil)
	}
	out := fmt.Appendf(nil, `{%q:{"last_event_id":%d,"events":[`, kind, e.last)
	for i, ev := range list {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, asJSON(&ev)...)
	}
	return append(out, `]}}`...), nil
}

// dump lists the cache as events, parents first.
func (e *engine) dump(kids map[uint64]uint64, parent uint64, out []worker.KVEvent) []worker.KVEvent {
	for _, local := range slices.Sorted(maps.Keys(kids)) {
		name := kids[local]
		out = append(out, worker.KVEvent{Worker: worker.WorkerRank{WorkerID: e.id}, Kind: worker.KVStored, HasParent: parent != 0, Parent: parent,
			Blocks: []worker.KVBlock{{Hash: name, Tokens: local}}})
		out = e.dump(e.nodes[name].kids, name, out)
	}
	return out
}
