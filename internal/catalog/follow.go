package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router"
)

// maxSweep and maxNudges bound the search for retired texts that nobody holds: it looks ever more rarely, and stops
// asking for collections when requests evidently hold on.
const (
	maxSweep  = 30 * time.Second
	maxNudges = 6
)

// errNothing is the failure of a Load that returns neither a text nor an error.
var errNothing = errors.New("nothing was loaded")

// recordID is what a model record stands for in discovery.
type recordID struct {
	endpoint worker.EndpointID
	instance uint64
	suffix   string // adapter; empty for base models
}

// record is a model record as judged once, when it appeared or changed.
type record struct {
	rec     *worker.ModelRecord // as discovery has it; immutable
	refused error               // can't be served
	foreign bool                // outside our namespaces
	key     groupKey            // where it belongs
	id      identity            // and with whom
	legacy  bool                // declares no worker type
}

// follower is the state of Run. One goroutine uses it, except where noted.
type follower struct {
	*Catalog
	tasks *lifecycle.Group // loads, closings, collections

	records map[recordID]*record // all that discovery has, refused ones included
	groups  map[groupKey]*group  // not yet retired, whatever their phase
	order   []*group             // groups, ordered; nil: to be built
	created map[string]int64     // display name → first seen
	noted   map[string]bool      // what the log has been told of and still holds
	notes   map[string]bool      // the same, being gathered by the sync under way

	queue   []*group    // to be loaded, oldest first
	busy    int         // loads under way
	results chan result // of loads; unbuffered

	texts   map[*text]struct{} // open
	orphans int                // open texts without a group
	free    freed              // texts that nobody holds any more; filled by the runtime
	sweepAt time.Time          // zero: nothing to look for
	sweeps  int                // since the last retirement
}

// result is how a load ended.
type result struct {
	g    *group // retired, perhaps, while it was loading
	text *Text  // nil when err isn't
	err  error
}

// newFollower returns the state of one Run, whose tasks end with ctx.
func newFollower(ctx context.Context, c *Catalog) *follower {
	return &follower{
		Catalog: c,
		tasks:   lifecycle.New(ctx),
		records: map[recordID]*record{},
		groups:  map[groupKey]*group{},
		created: map[string]int64{},
		noted:   map[string]bool{},
		results: make(chan result), // handed over or thrown away, never kept
		texts:   map[*text]struct{}{},
	}
}

// run is the loop: news from discovery, from loads and from the clock, then whatever they make possible. All state is
// changed between two waits, so the table is published in one piece.
func (f *follower) run(ctx context.Context) error {
	wake := make(chan struct{}, 1) // one token: there is a newer snapshot
	cancel := f.opts.Store.Watch(func(*router.Snapshot) {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	defer f.stop()
	defer cancel()
	// The first turn sets it; an hour is as good as never.
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
			f.sync(f.opts.Store.Snapshot())
		case r := <-f.results:
			f.finish(r)
		case <-timer.C:
			f.sweep(time.Now())
		}
		f.advance(time.Now())
		f.publish()
		timer.Reset(f.nextWait(time.Now()))
	}
}

// stop ends the loads, shows an empty table and closes every text.
func (f *follower) stop() {
	_ = f.tasks.Stop() // tasks report to the log
	f.table.Store(&table{})
	for t := range f.texts {
		t.close(f.opts.Log)
	}
	f.retired.Store(0)
}

// note tells the log of something once, for as long as it lasts. It is called during sync.
func (f *follower) note(key string, tell func()) {
	if !f.noted[key] && !f.notes[key] {
		tell()
	}
	f.notes[key] = true
}

// sync brings the groups in line with a snapshot.
func (f *follower) sync(snap *router.Snapshot) {
	f.notes = map[string]bool{}
	f.order = nil
	members := f.sort(snap.Models)
	// A group whose card nobody has any more makes room, also for workers with another card that have been waiting.
	for key, g := range f.groups {
		if !slices.ContainsFunc(members[key], func(r *record) bool { return r.id == g.id }) {
			f.retire(g)
		}
	}
	// The card of a new group is its first record's: the lowest key decides, on every frontend alike.
	for key, list := range members {
		g := f.groups[key]
		if g == nil {
			g = newGroup(key, list[0])
			f.groups[key] = g
		}
		f.enlist(g, list, snap.Instances[key.endpoint])
	}
	f.remember()
	f.noteAliases()
	// What wasn't noted again is over, and will be told of anew if it comes back.
	f.noted, f.notes = f.notes, nil
}

// sort judges new and changed records and returns the acceptable ones by group, each list in the order of the keys.
func (f *follower) sort(models []*worker.ModelRecord) map[groupKey][]*record {
	next := make(map[recordID]*record, len(models))
	members := map[groupKey][]*record{}
	for _, m := range models {
		id := recordID{m.ID(), m.InstanceID, m.Suffix}
		r := f.records[id]
		// Discovery keeps a record's pointer for as long as the record is the same: comparing it is enough.
		if r == nil || r.rec != m {
			r = f.judge(m)
		}
		next[id] = r
		switch {
		case r.foreign:
		case r.refused != nil:
			f.note("refused\x00"+m.Card.DisplayName+"\x00"+r.refused.Error(), func() {
				f.opts.Log.Warn("model refused", "model", m.Card.DisplayName, "endpoint", m.ID().String(), "reason", r.refused)
			})
		default:
			members[r.key] = append(members[r.key], r)
		}
	}
	f.records = next
	return members
}

// judge says of a record whether and where it belongs. It hashes the card, which is why it is done once.
func (f *follower) judge(m *worker.ModelRecord) *record {
	r := &record{rec: m}
	if !f.opts.inNamespace(m.Namespace) {
		r.foreign = true
		return r
	}
	if r.refused = check(m); r.refused != nil {
		return r
	}
	kind, declared := workerType(&m.Card)
	r.legacy = !declared
	r.key = groupKey{name: m.Card.DisplayName, endpoint: m.ID(), kind: kind, adapter: m.Suffix != ""}
	r.id = identify(&m.Card, f.opts.Sum(&m.Card))
	return r
}

// enlist takes those of the records that have the group's card, and counts whose instance is there.
func (f *follower) enlist(g *group, list []*record, instances []*worker.Instance) {
	before := g.members
	g.members, g.waiting, g.legacy = nil, 0, false
	live := map[uint64]struct{}{}
	for _, r := range list {
		if r.id != g.id {
			g.waiting++
			f.note("waiting\x00"+g.key.name+"\x00"+g.key.endpoint.String()+"\x00"+r.id.sum, func() {
				f.opts.Log.Warn("worker with another card waits until the present ones have gone", "model", g.key.name,
					"endpoint", g.key.endpoint.String(), "card", r.id.sum, "serving", g.id.sum)
			})
			continue
		}
		g.members = append(g.members, r)
		g.legacy = g.legacy || r.legacy
		if present(instances, r.rec.InstanceID) {
			live[r.rec.InstanceID] = struct{}{}
		}
	}
	g.greet(before)
	g.live = len(live)
	// Stored only when it differs; sets made long ago see the change at once, for they share the pointer.
	if !maps.Equal(*g.workers.Load(), live) {
		g.workers.Store(&live)
	}
}

// present finds an instance, which snapshots have in the order of ids.
func present(instances []*worker.Instance, id uint64) bool {
	_, ok := slices.BinarySearchFunc(instances, id, func(i *worker.Instance, id uint64) int {
		return cmp.Compare(i.InstanceID, id)
	})
	return ok
}

// noteAliases tells of aliases that another model answers to.
func (f *follower) noteAliases() {
	owner := names(f.ordered())
	for _, g := range f.ordered() {
		for _, alias := range answersTo(g.card) {
			if owner[alias] == g.key.name {
				continue
			}
			f.note("alias\x00"+g.key.name+"\x00"+alias, func() {
				f.opts.Log.Warn("alias belongs to another model", "model", g.key.name, "alias", alias, "owner", owner[alias])
			})
		}
	}
}

// remember keeps the time each name was first seen for as long as the name lives.
func (f *follower) remember() {
	now := time.Now().Unix()
	names := make(map[string]int64, len(f.created))
	for key := range f.groups {
		if at, ok := f.created[key.name]; ok {
			names[key.name] = at
		} else {
			names[key.name] = now
		}
	}
	f.created = names
}

// retire forgets a group. Its Set stays with whoever holds it.
func (f *follower) retire(g *group) {
	delete(f.groups, g.key)
	g.gone = true
	// Requests that still hold the set find no worker that serves it.
	g.workers.Store(&map[uint64]struct{}{})
	if g.cancel != nil {
		g.cancel()
	}
	if g.set == nil {
		return
	}
	f.opts.Log.Info("model retired", "model", g.key.name, "endpoint", g.key.endpoint.String())
	g.set = nil
	if g.text == nil {
		return
	}
	// Requests may hold on to it for long: the sweep closes it after the last of them.
	if g.text.groups--; g.text.groups == 0 {
		f.orphans++
		f.sweeps = 0
		if f.sweepAt.IsZero() {
			f.sweepAt = time.Now().Add(f.opts.sweepEvery)
		}
	}
}

// advance takes every group as far as it can go now: it makes sets, queues and starts loads.
func (f *follower) advance(now time.Time) {
	groups := f.ordered()
	for _, g := range groups {
		switch g.phase {
		case idle:
			f.begin(g, groups)
		case failed:
			if !now.Before(g.retryAt) {
				f.enqueue(g)
			}
		}
	}
	// Loads take memory and a core each, so only a few run at a time.
	for f.busy < f.opts.Loaders && len(f.queue) > 0 {
		g := f.queue[0]
		f.queue = f.queue[1:]
		if !g.gone {
			f.load(g)
		}
	}
}

// ordered returns the groups in the order of their keys, which only sync changes.
func (f *follower) ordered() []*group {
	if f.order == nil {
		f.order = make([]*group, 0, len(f.groups))
		for _, key := range slices.SortedFunc(maps.Keys(f.groups), compareKeys) {
			f.order = append(f.order, f.groups[key])
		}
	}
	return f.order
}

// begin decides where an idle group's text comes from.
func (f *follower) begin(g *group, groups []*group) {
	if !serves(g.key.kind) {
		return // never looked up: a worker for other workers
	}
	if !needsText(g.card) {
		g.makeSet(nil)
		return
	}
	if g.key.adapter {
		if base := base(g, groups); base != nil {
			if base.text != nil {
				g.makeSet(base.text)
			}
			return // until the base is loaded
		}
	}
	f.enqueue(g)
}

// base returns the group of the model an adapter belongs to: at the same endpoint, by preference the one its card
// names, and only if the adapter brings no other tokenizer.
func base(adapter *group, groups []*group) *group {
	var found *group
	for _, g := range groups {
		if g.key.adapter || g.key.endpoint != adapter.key.endpoint || !serves(g.key.kind) || !needsText(g.card) ||
			!sameText(g.card, adapter.card) {
			continue
		}
		if g.key.name == adapter.card.SourcePath || g.card.SourcePath == adapter.card.SourcePath {
			return g
		}
		if found == nil {
			found = g
		}
	}
	return found
}

// enqueue puts the group behind the others that wait for a loader.
func (f *follower) enqueue(g *group) {
	g.phase = queued
	f.queue = append(f.queue, g)
}

// load starts one attempt on a goroutine of its own. The result comes back through f.results, or its text is closed
// when nobody waits for it any more.
func (f *follower) load(g *group) {
	ctx, cancel := context.WithTimeout(f.tasks.Context(), f.opts.LoadTimeout)
	g.cancel, g.phase = cancel, loading
	rec := g.source()
	f.busy++
	f.tasks.Go("load model", func(task context.Context) error {
		defer cancel()
		t, err := f.attempt(ctx, rec)
		select {
		case f.results <- result{g, t, err}:
		case <-task.Done():
			if t != nil {
				(&text{Text: t, model: rec.Card.DisplayName}).close(f.opts.Log)
			}
		}
		return nil
	})
}

// attempt calls Load. A panic there is that model's failure and no other's.
func (f *follower) attempt(ctx context.Context, rec *worker.ModelRecord) (t *Text, err error) {
	defer func() {
		if p := recover(); p != nil {
			t, err = nil, fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if t, err = f.opts.Load(ctx, rec); err == nil && t == nil {
		err = errNothing
	}
	return t, err
}

// finish takes the result of a load.
func (f *follower) finish(r result) {
	f.busy--
	g := r.g
	g.cancel = nil
	if r.err != nil {
		if g.gone {
			return
		}
		g.attempt++
		g.phase, g.retryAt = failed, time.Now().Add(backoff(g.attempt))
		// A member that came while this load was under way hasn't been asked yet.
		if g.fresh != nil {
			g.retryAt = time.Now()
		}
		f.failures.Add(1)
		f.opts.Log.Error("model can't be loaded, trying again", "model", g.key.name, "endpoint", g.key.endpoint.String(),
			"attempt", g.attempt, "error", r.err)
		return
	}
	t := &text{Text: r.text, model: g.key.name, free: &f.free}
	// A group that was retired meanwhile has no use for what was loaded for it.
	if g.gone {
		f.tasks.Go("close model", func(context.Context) error { t.close(f.opts.Log); return nil })
		return
	}
	f.texts[t] = struct{}{}
	g.attempt = 0
	g.makeSet(t)
	f.opts.Log.Info("model loaded", "model", g.key.name, "endpoint", g.key.endpoint.String(), "workers", g.live)
}

// sweep closes the texts that nobody can reach any more, and asks for a collection while some retired ones can't be
// told yet: native memory is invisible to the collector, which would take its time.
func (f *follower) sweep(now time.Time) {
	if f.sweepAt.IsZero() || now.Before(f.sweepAt) {
		return
	}
	for _, t := range f.free.take() {
		delete(f.texts, t)
		f.orphans--
		f.tasks.Go("close model", func(context.Context) error { t.close(f.opts.Log); return nil })
	}
	if f.orphans == 0 {
		f.sweepAt, f.sweeps = time.Time{}, 0
		return
	}
	if f.sweeps < maxNudges {
		f.tasks.Go("collect retired models", func(context.Context) error { runtime.GC(); return nil })
	}
	// Doubling from sweepEvery; the shift is bounded by the cap on sweeps below.
	f.sweepAt = now.Add(min(f.opts.sweepEvery<<f.sweeps, maxSweep))
	f.sweeps = min(f.sweeps+1, maxNudges+4)
}

// nextWait returns how long nothing needs to be done without news.
func (f *follower) nextWait(now time.Time) time.Duration {
	wait := time.Hour
	if !f.sweepAt.IsZero() {
		wait = f.sweepAt.Sub(now)
	}
	for _, g := range f.groups {
		if g.phase == failed {
			wait = min(wait, g.retryAt.Sub(now))
		}
	}
	return max(wait, 0)
}
